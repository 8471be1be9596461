//! Dense little-endian bit streams of n-bit codes, and the one layout that starts at the high bits.

use crate::simd::{Isa, Loop, dispatch};

/// Bytes that `count` codes of `bits` bits take in a dense stream.
pub const fn packed_len(count: usize, bits: u32) -> usize {
    (count * bits as usize).div_ceil(8)
}

/// Packs codes of 1 to 8 bits into a little-endian bit stream: code `i` stands at bits `i * bits` onwards, bit `b` of the
/// stream in byte `b / 8` at position `b % 8`. Unused bits of the last byte are 0. `out` has [`packed_len`] bytes.
///
/// With 4 bits that is low nibble first (fp4, compressed-tensors, natural order); with 3 bits eight values in three
/// bytes; with 6 bits the three bytes of four fp6 codes.
pub fn pack_bits(isa: Isa, codes: &[u8], bits: u32, out: &mut [u8]) {
    match bits {
        4 => dispatch(isa, Nibbles { codes, out }),
        6 => dispatch(isa, Sixes { codes, out }),
        8 => out.copy_from_slice(codes),
        bits => pack_any(codes, bits, out),
    }
}

/// [`pack_bits`] into bytes of its own, on the best instruction set.
pub fn packed_bits(codes: &[u8], bits: u32) -> Vec<u8> {
    let mut bytes = vec![0; packed_len(codes.len(), bits)];
    pack_bits(Isa::best(), codes, bits, &mut bytes);
    bytes
}

/// The first `count` codes of a stream that [`pack_bits`] wrote, as unsigned numbers; `None` where it is shorter.
pub fn unpacked_bits(bytes: &[u8], bits: u32, count: usize) -> Option<Vec<u8>> {
    let mut codes = vec![0; count];
    unpack_bits(Isa::best(), bytes.get(..packed_len(count, bits))?, bits, &mut codes);
    Some(codes)
}

/// Makes offset-binary codes of the first `count` two's complement ones in a stream of [`pack_bits`], or the reverse: half of
/// the range more is another highest bit.
pub fn flip_highest_bits(isa: Isa, bits: u32, count: usize, bytes: &mut [u8]) {
    let eights = count / 8 * bits as usize;
    let (whole, tail) = bytes.split_at_mut(eights.min(bytes.len()));
    let highest = field_mask(1, bits as usize) << (bits - 1);
    dispatch(isa, Flip { eights: whole, bits: bits as usize, highest });
    let left = highest & !(u64::MAX << (count % 8 * bits as usize));
    tail.iter_mut().zip(left.to_le_bytes()).for_each(|(byte, highest)| *byte ^= highest);
}

/// As many bytes as a code has bits are eight codes.
struct Flip<'a> {
    eights: &'a mut [u8],
    bits: usize,
    /// The highest bits of codes, from bit 0 on.
    highest: u64,
}

impl Loop for Flip<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let highest = self.highest.to_le_bytes();
        if self.bits.is_power_of_two() {
            return self.eights.iter_mut().for_each(|byte| *byte ^= highest[0]);
        }
        for eight in self.eights.chunks_exact_mut(self.bits) {
            eight.iter_mut().zip(highest).for_each(|(byte, highest)| *byte ^= highest);
        }
    }
}

/// The codes of a stream that [`pack_bits`] wrote, as unsigned numbers; `codes` says how many.
pub fn unpack_bits(isa: Isa, bytes: &[u8], bits: u32, codes: &mut [u8]) {
    match bits {
        1 => dispatch(isa, Unpack::<1> { bytes, codes }),
        2 => dispatch(isa, Unpack::<2> { bytes, codes }),
        3 => dispatch(isa, Unpack::<3> { bytes, codes }),
        4 => dispatch(isa, UnpackNibbles { bytes, codes }),
        5 => dispatch(isa, Unpack::<5> { bytes, codes }),
        6 => dispatch(isa, Unpack::<6> { bytes, codes }),
        7 => dispatch(isa, Unpack::<7> { bytes, codes }),
        _ => codes.copy_from_slice(&bytes[..codes.len()]),
    }
}

/// Eight codes are as many bytes as a code has bits.
struct Unpack<'a, const BITS: usize> {
    bytes: &'a [u8],
    codes: &'a mut [u8],
}

impl<const BITS: usize> Loop for Unpack<'_, BITS> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mask = ((1u16 << BITS) - 1) as u8;
        let (groups, rest) = self.bytes.as_chunks::<BITS>();
        let (eights, tail) = self.codes.as_chunks_mut::<8>();
        let left = if groups.len() > eights.len() { &self.bytes[eights.len() * BITS..] } else { rest };
        for (eight, group) in eights.iter_mut().zip(groups) {
            let mut word = [0; 8];
            word[..BITS].copy_from_slice(group);
            *eight = spread::<BITS>(u64::from_le_bytes(word)).to_le_bytes();
        }
        unpack_tail(left, BITS, mask, tail);
    }
}

/// Eight codes one after the other, put into a byte each: upper halves move apart three times.
#[inline(always)]
fn spread<const BITS: usize>(word: u64) -> u64 {
    let fours = const { field_mask(4 * BITS, 64) };
    let word = (word & fours) | (word & fours << (4 * BITS)) << (32 - 4 * BITS);
    let pairs = const { field_mask(2 * BITS, 32) };
    let word = (word & pairs) | (word & pairs << (2 * BITS)) << (16 - 2 * BITS);
    let codes = const { field_mask(BITS, 16) };
    (word & codes) | (word & codes << BITS) << (8 - BITS)
}

/// The lowest `bits` bits of every stretch of `every`.
const fn field_mask(bits: usize, every: usize) -> u64 {
    let (mut mask, mut at) = (0, 0);
    while at < 64 {
        mask |= ((1 << bits) - 1) << at;
        at += every;
    }
    mask
}

/// Fewer than eight codes.
#[inline(always)]
fn unpack_tail(bytes: &[u8], bits: usize, mask: u8, codes: &mut [u8]) {
    let mut word = [0; 8];
    word.iter_mut().zip(bytes).for_each(|(to, byte)| *to = *byte);
    let word = u64::from_le_bytes(word);
    codes.iter_mut().enumerate().for_each(|(i, code)| *code = (word >> (bits * i)) as u8 & mask);
}

struct UnpackNibbles<'a> {
    bytes: &'a [u8],
    codes: &'a mut [u8],
}

impl Loop for UnpackNibbles<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (pairs, tail) = self.codes.as_chunks_mut::<2>();
        for (pair, byte) in pairs.iter_mut().zip(self.bytes) {
            let byte = u16::from(*byte);
            *pair = (byte & 0xF | (byte & 0xF0) << 4).to_le_bytes();
        }
        if let ([last], Some(byte)) = (tail, self.bytes.get(pairs.len())) {
            *last = byte & 0xF;
        }
    }
}

fn pack_any(codes: &[u8], bits: u32, out: &mut [u8]) {
    let mask = (1u32 << bits) - 1;
    let (mut pending, mut count, mut bytes) = (0u32, 0, out.iter_mut());
    for code in codes {
        pending |= (u32::from(*code) & mask) << count;
        count += bits;
        while count >= 8 {
            bytes.next().into_iter().for_each(|byte| *byte = pending as u8);
            pending >>= 8;
            count -= 8;
        }
    }
    bytes.next().into_iter().for_each(|byte| *byte = pending as u8);
}

struct Nibbles<'a> {
    codes: &'a [u8],
    out: &'a mut [u8],
}

impl Loop for Nibbles<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (pairs, tail) = self.codes.as_chunks::<2>();
        for (byte, pair) in self.out.iter_mut().zip(pairs) {
            // One 16-bit lane a pair: the shape that vectorizes.
            let both = u16::from_le_bytes(*pair) & 0x0F0F;
            *byte = (both | both >> 4) as u8;
        }
        if let ([last], Some(byte)) = (tail, self.out.get_mut(pairs.len())) {
            *byte = last & 0x0F;
        }
    }
}

struct Sixes<'a> {
    codes: &'a [u8],
    out: &'a mut [u8],
}

impl Loop for Sixes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (fours, tail) = self.codes.as_chunks::<4>();
        let (head, rest) = self.out.split_at_mut(fours.len() * 3);
        for (bytes, four) in head.as_chunks_mut::<3>().0.iter_mut().zip(fours) {
            let word = u32::from_le_bytes(*four) & 0x3F3F_3F3F;
            let packed = (word & 0x3F) | (word >> 2 & 0xFC0) | (word >> 4 & 0x3_F000) | (word >> 6 & 0xFC_0000);
            let [a, b, c, _] = packed.to_le_bytes();
            *bytes = [a, b, c];
        }
        pack_any(tail, 6, rest);
    }
}

/// Packs 2-bit codes four to a byte, the first in the two highest bits. A last byte that is not full is filled with 0.
pub fn pack_crumbs_first_high(codes: &[u8], out: &mut [u8]) {
    for (byte, four) in out.iter_mut().zip(codes.chunks(4)) {
        let shifts = [6, 4, 2, 0];
        *byte = four.iter().zip(shifts).fold(0, |byte, (code, shift)| byte | (code & 3) << shift);
    }
}

/// The codes that [`pack_crumbs_first_high`] packed.
pub fn unpack_crumbs_first_high(bytes: &[u8], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code = bytes[i / 4] >> (6 - 2 * (i % 4)) & 3;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packed(isa: Isa, codes: &[u8], bits: u32) -> Vec<u8> {
        let mut out = vec![0xAA; packed_len(codes.len(), bits)];
        pack_bits(isa, codes, bits, &mut out);
        out
    }

    #[test]
    fn packing_matches_published_examples() {
        // fp4 [0.5, 1, -6, 1.5] and fp6 e2m3 [0.125, 1, -7.5, 2]
        assert_eq!(packed(Isa::BASELINE, &[1, 2, 15, 3], 4), [0x21, 0x3F]);
        assert_eq!(packed(Isa::BASELINE, &[1, 8, 63, 16], 6), [1, 242, 67]);
        let int3: Vec<u8> = [0i8, 1, 2, 3, -1, -2, -3, -4].iter().map(|c| *c as u8).collect();
        assert_eq!(packed(Isa::BASELINE, &int3, 3), [136, 118, 151]);
        let mut byte = [0];
        pack_crumbs_first_high(&[0, 1, 2, 3], &mut byte);
        assert_eq!(byte, [27]);
    }

    proptest! {
        #[test]
        fn bit_streams_round_trip_on_every_isa(codes in prop::collection::vec(any::<u8>(), 0..200), bits in 1u32..=8) {
            let masked: Vec<u8> = codes.iter().map(|c| c & ((1u16 << bits) - 1) as u8).collect();
            let mut plain = vec![0; packed_len(codes.len(), bits)];
            pack_any(&codes, bits, &mut plain);
            for isa in Isa::available() {
                let bytes = packed(isa, &codes, bits);
                prop_assert_eq!(&bytes, &plain);
                let mut back = vec![0; codes.len()];
                unpack_bits(isa, &bytes, bits, &mut back);
                prop_assert_eq!(&back, &masked);
            }
        }

        #[test]
        fn flipping_the_highest_bit_adds_half_the_range(codes in prop::collection::vec(any::<u8>(), 0..200), bits in 1u32..=8) {
            let more: Vec<u8> = codes.iter().map(|code| code.wrapping_add(1 << (bits - 1))).collect();
            for isa in Isa::available() {
                let mut bytes = packed(isa, &codes, bits);
                flip_highest_bits(isa, bits, codes.len(), &mut bytes);
                prop_assert_eq!(&bytes, &packed(isa, &more, bits));
            }
        }

        #[test]
        fn two_bit_codes_round_trip_first_high(codes in prop::collection::vec(0u8..4, 0..50)) {
            let mut bytes = vec![0xFF; codes.len().div_ceil(4)];
            pack_crumbs_first_high(&codes, &mut bytes);
            let mut back = vec![0; codes.len()];
            unpack_crumbs_first_high(&bytes, &mut back);
            prop_assert_eq!(back, codes);
        }
    }
}
