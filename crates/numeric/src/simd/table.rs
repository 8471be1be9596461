//! Looking up codes of four bits in a table of bytes. NEON does it for a vector at a time, which no compiler makes of a loop.
#![allow(unsafe_code)]

/// The entries that the lower four bits of codes name.
#[cfg(not(target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn entries<const N: usize>(table: &[i8; 16], codes: &[u8; N]) -> [i8; N] {
    codes.map(|code| table[usize::from(code & 0xF)])
}

/// The entries that the lower four bits of codes name.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn entries<const N: usize>(table: &[i8; 16], codes: &[u8; N]) -> [i8; N] {
    use std::arch::aarch64::*;
    let mut entries = [0; N];
    let ((vectors, rest), (from, left)) = (entries.as_chunks_mut::<16>(), codes.as_chunks::<16>());
    for (entries, codes) in vectors.iter_mut().zip(from) {
        // SAFETY: NEON is part of the architecture, and all arrays have the 16 bytes that are read and written.
        unsafe {
            let codes = vandq_u8(vld1q_u8(codes.as_ptr()), vdupq_n_u8(0xF));
            vst1q_s8(entries.as_mut_ptr(), vqtbl1q_s8(vld1q_s8(table.as_ptr()), codes));
        }
    }
    for (entry, code) in rest.iter_mut().zip(left) {
        *entry = table[usize::from(code & 0xF)];
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_those_of_the_lower_bits() {
        let table: [i8; 16] = std::array::from_fn(|i| 7 * i as i8 - 50);
        let codes: [u8; 37] = std::array::from_fn(|i| (i * 29) as u8);
        assert_eq!(entries(&table, &codes).to_vec(), codes.map(|code| table[usize::from(code % 16)]).to_vec());
    }
}
