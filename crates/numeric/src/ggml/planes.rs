//! The positions of codes in llama.cpp's blocks, split into planes of one, two and four bits. Not the dense streams of
//! [`crate::pack`].

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

/// `codes` is four runs of 32; byte `j` has the low two bits of element `j` of the first run lowest, of the fourth highest.
#[inline(always)]
pub(super) fn put_pairs_of_bits(codes: impl Fn(usize) -> u8, bytes: &mut [u8]) {
    for (j, byte) in bytes.iter_mut().enumerate().take(32) {
        *byte = (0..4).fold(0, |bits, run| bits | (codes(32 * run + j) & 3) << (2 * run));
    }
}

/// The inverse of [`put_pairs_of_bits`] for one run.
#[inline(always)]
pub(super) fn pair_of_bits(byte: u8, run: usize) -> u8 {
    byte >> (2 * run) & 3
}

/// `codes` is eight runs of 32; bit `g` of byte `j` is bit `bit` of element `j` of run `g`.
#[inline(always)]
pub(super) fn put_bits(codes: &[u8], bit: u32, bytes: &mut [u8]) {
    for (j, byte) in bytes.iter_mut().enumerate().take(32) {
        *byte = (0..8).fold(0, |bits, run| bits | (codes[32 * run + j] >> bit & 1) << run);
    }
}

/// The inverse of [`put_bits`]: adds the bits to codes that have the others.
#[inline(always)]
pub(super) fn take_bits(bytes: &[u8], bit: u32, codes: &mut [u8; 256]) {
    for (run, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code |= (byte >> run & 1) << bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_and_fifth_bits_round_trip() {
        let codes: [u8; 32] = std::array::from_fn(|j| (j * 7 % 32) as u8);
        let (mut bytes, mut back) = ([0; 16], [0; 32]);
        put_nibbles(&codes, &mut bytes);
        assert_eq!(bytes[3], codes[3] & 0xF | codes[19] << 4);
        take_nibbles(&bytes, &mut back);
        take_fifth_bits(put_fifth_bits(&codes), &mut back);
        assert_eq!(back, codes);
    }

    #[test]
    fn bit_planes_round_trip() {
        let codes: [u8; 256] = std::array::from_fn(|j| (j * 37 % 8) as u8);
        let (mut low, mut high, mut back) = ([0; 64], [0; 32], [0; 256]);
        for (half, bytes) in low.chunks_exact_mut(32).enumerate() {
            put_pairs_of_bits(|j| codes[128 * half + j], bytes);
        }
        put_bits(&codes, 2, &mut high);
        for (j, code) in back.iter_mut().enumerate() {
            *code = pair_of_bits(low[j / 128 * 32 + j % 32], j / 32 % 4);
        }
        take_bits(&high, 2, &mut back);
        assert_eq!(back, codes);
        assert_eq!(high[5] >> 3 & 1, codes[96 + 5] >> 2);
    }
}
