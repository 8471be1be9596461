//! Where llama.cpp's blocks put codes of four and five bits. Not the dense streams of [`crate::pack`].

/// `codes` is two halves; byte `j` has element `j` of the first half in its low nibble, of the second in its high one.
#[inline(always)]
pub(super) fn put_nibbles(codes: &[u8], bytes: &mut [u8]) {
    let (low, high) = codes.split_at(bytes.len());
    for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
        *byte = low & 0xF | high << 4;
    }
}

/// The inverse of [`put_nibbles`].
#[inline(always)]
pub(super) fn take_nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        (*low, *high) = (byte & 0xF, byte >> 4);
    }
}

/// Bit 4 of code `j` is bit `j` of the word.
#[inline(always)]
pub(super) fn put_fifth_bits(codes: &[u8; 32]) -> [u8; 4] {
    let mut word = 0u32;
    for (j, code) in codes.iter().enumerate() {
        word |= u32::from(code >> 4 & 1) << j;
    }
    word.to_le_bytes()
}

/// The inverse of [`put_fifth_bits`]: adds the bits to codes that have the lower four.
#[inline(always)]
pub(super) fn take_fifth_bits(word: [u8; 4], codes: &mut [u8; 32]) {
    let word = u32::from_le_bytes(word);
    for (j, code) in codes.iter_mut().enumerate() {
        *code |= ((word >> j & 1) as u8) << 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_share_bytes_and_come_back() {
        let codes: [u8; 32] = std::array::from_fn(|j| (j * 7 % 32) as u8);
        let (mut bytes, mut back) = ([0; 16], [0; 32]);
        put_nibbles(&codes, &mut bytes);
        assert_eq!(bytes[3], codes[3] & 0xF | codes[19] << 4);
        take_nibbles(&bytes, &mut back);
        take_fifth_bits(put_fifth_bits(&codes), &mut back);
        assert_eq!(back, codes);
    }
}
