//! Sums of products in lanes that are kept side by side, by hand: the compiler makes scalars of them, or moves lanes about. All variants
//! compute the same bits: products are rounded before they are added.
#![allow(unsafe_code)]

use super::isa::{Isa, Level};
#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;
#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// Partial sums.
pub(crate) const LANES: usize = 32;

/// Adds product `i` of two slices of one length to lane `i % LANES`.
pub(crate) fn add_products(isa: Isa, a: &[f32], b: &[f32], lanes: &mut [f32; LANES]) {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    match isa.level() {
        Level::Baseline => baseline(a, b, lanes),
        // SAFETY: an `Isa` of this level exists only where all of the variant's features were detected on this CPU.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => unsafe { avx2(a, b, lanes) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => unsafe { avx512(a, b, lanes) },
        // SAFETY: as above.
        #[cfg(target_arch = "aarch64")]
        Level::Neon => unsafe { neon(a, b, lanes) },
    }
    for ((lane, a), b) in lanes.iter_mut().zip(a_rest).zip(b_rest) {
        *lane += a * b;
    }
}

fn baseline(a: &[[f32; LANES]], b: &[[f32; LANES]], lanes: &mut [f32; LANES]) {
    for (a, b) in a.iter().zip(b) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane += a * b;
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn avx2(a: &[[f32; LANES]], b: &[[f32; LANES]], lanes: &mut [f32; LANES]) {
    // SAFETY: eight elements from `8 * part` on are within the 32 of an array.
    let load = |array: &[f32; LANES], part: usize| unsafe { _mm256_loadu_ps(array.as_ptr().add(8 * (part % 4))) };
    let mut sums = [load(lanes, 0), load(lanes, 1), load(lanes, 2), load(lanes, 3)];
    for (a, b) in a.iter().zip(b) {
        for (part, sum) in sums.iter_mut().enumerate() {
            *sum = _mm256_add_ps(*sum, _mm256_mul_ps(load(a, part), load(b, part)));
        }
    }
    for (part, sum) in lanes.as_chunks_mut::<8>().0.iter_mut().zip(sums) {
        // SAFETY: the array has the eight elements that are written.
        unsafe { _mm256_storeu_ps(part.as_mut_ptr(), sum) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(a: &[[f32; LANES]], b: &[[f32; LANES]], lanes: &mut [f32; LANES]) {
    // SAFETY: 16 elements from 0 or 16 on are within the 32 of an array.
    let load = |array: &[f32; LANES], part: usize| unsafe { _mm512_loadu_ps(array.as_ptr().add(16 * (part % 2))) };
    let mut sums = [load(lanes, 0), load(lanes, 1)];
    for (a, b) in a.iter().zip(b) {
        for (part, sum) in sums.iter_mut().enumerate() {
            *sum = _mm512_add_ps(*sum, _mm512_mul_ps(load(a, part), load(b, part)));
        }
    }
    for (part, sum) in lanes.as_chunks_mut::<16>().0.iter_mut().zip(sums) {
        // SAFETY: the array has the 16 elements that are written.
        unsafe { _mm512_storeu_ps(part.as_mut_ptr(), sum) }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn neon(a: &[[f32; LANES]], b: &[[f32; LANES]], lanes: &mut [f32; LANES]) {
    // SAFETY: four elements from `4 * part` on are within the 32 of an array.
    let load = |array: &[f32; LANES], part: usize| unsafe { vld1q_f32(array.as_ptr().add(4 * (part % 8))) };
    let mut sums = [vdupq_n_f32(0.0); 8];
    for (part, sum) in sums.iter_mut().enumerate() {
        *sum = load(lanes, part);
    }
    for (a, b) in a.iter().zip(b) {
        for (part, sum) in sums.iter_mut().enumerate() {
            *sum = vaddq_f32(*sum, vmulq_f32(load(a, part), load(b, part)));
        }
    }
    for (part, sum) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
        // SAFETY: the array has the four elements that are written.
        unsafe { vst1q_f32(part.as_mut_ptr(), sum) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_in_lanes_are_the_same_on_every_isa() {
        for count in [0, 1, 31, 32, 33, 64, 100, 517] {
            let values = |seed: usize| -> Vec<f32> {
                (0..count).map(|i| ((i * 7919 + seed * 131) % 2003) as f32 / 1001.5 - 1.0).collect()
            };
            let (a, b) = (values(1), values(2));
            let mut expected = [0.5; LANES];
            for (index, (a, b)) in a.iter().zip(&b).enumerate() {
                expected[index % LANES] += a * b;
            }
            for isa in Isa::available() {
                let mut lanes = [0.5; LANES];
                add_products(isa, &a, &b, &mut lanes);
                assert_eq!(lanes, expected, "{count} {}", isa.name());
            }
        }
    }
}
