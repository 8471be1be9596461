//! Arithmetic on arrays lane by lane. On aarch64 by hand: of loops over arrays of several vectors, the compiler makes vectors along
//! another axis, and spends most instructions on moving lanes about. Elsewhere it makes vectors of the scalar formulas.
#![allow(unsafe_code)]

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::*;

/// An operation on two numbers, which is computed in every lane.
pub(crate) trait Pairwise {
    /// The specification.
    fn of(a: f32, b: f32) -> f32;

    /// The same in four lanes.
    ///
    /// # Safety
    /// The CPU has NEON.
    #[cfg(target_arch = "aarch64")]
    unsafe fn of_four(a: float32x4_t, b: float32x4_t) -> float32x4_t;
}

/// `a + b`.
pub(crate) struct Sum;
/// `a - b`.
pub(crate) struct Difference;
/// `a * b`.
pub(crate) struct Product;
/// `a / b`.
pub(crate) struct Quotient;
/// The greater; `b` where one is NaN.
pub(crate) struct Greater;
/// The lesser; `b` where one is NaN.
pub(crate) struct Lesser;
/// `a` if it is finite, else `b`.
pub(crate) struct FiniteOr;

macro_rules! pairwise {
    ($name:ident, |$a:ident, $b:ident| $of:expr, $of_four:expr) => {
        impl Pairwise for $name {
            #[inline(always)]
            fn of($a: f32, $b: f32) -> f32 {
                $of
            }

            #[cfg(target_arch = "aarch64")]
            #[inline]
            #[target_feature(enable = "neon")]
            unsafe fn of_four($a: float32x4_t, $b: float32x4_t) -> float32x4_t {
                $of_four
            }
        }
    };
}

pairwise!(Sum, |a, b| a + b, vaddq_f32(a, b));
pairwise!(Difference, |a, b| a - b, vsubq_f32(a, b));
pairwise!(Product, |a, b| a * b, vmulq_f32(a, b));
pairwise!(Quotient, |a, b| a / b, vdivq_f32(a, b));
pairwise!(Greater, |a, b| if a > b { a } else { b }, vbslq_f32(vcgtq_f32(a, b), a, b));
pairwise!(Lesser, |a, b| if a < b { a } else { b }, vbslq_f32(vcltq_f32(a, b), a, b));
pairwise!(
    FiniteOr,
    |a, b| if a.is_finite() { a } else { b },
    vbslq_f32(vcaltq_f32(a, vdupq_n_f32(f32::INFINITY)), a, b)
);

/// Whether lanes are computed by hand.
pub(crate) const BY_HAND: bool = cfg!(target_arch = "aarch64");

/// Lanes that are whole vectors.
const fn in_vectors(lanes: usize) -> usize {
    if BY_HAND { lanes / 4 * 4 } else { 0 }
}

/// The operation on each pair of lanes.
#[cfg(not(target_arch = "aarch64"))]
#[inline(always)]
pub(crate) fn lanewise<O: Pairwise, const L: usize>(mut a: [f32; L], b: [f32; L]) -> [f32; L] {
    for (a, b) in a.iter_mut().zip(b) {
        *a = O::of(*a, b);
    }
    a
}

/// The operation on each pair of lanes.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
pub(crate) fn lanewise<O: Pairwise, const L: usize>(mut a: [f32; L], b: [f32; L]) -> [f32; L] {
    for (a, b) in a.as_chunks_mut::<4>().0.iter_mut().zip(b.as_chunks::<4>().0) {
        // SAFETY: NEON is part of the architecture.
        unsafe { store(O::of_four(load(a), load(b)), a) }
    }
    for lane in const { in_vectors(L) }..L {
        a[lane] = O::of(a[lane], b[lane]);
    }
    a
}

/// `x` in lanes where `a < b`, `y` elsewhere.
#[inline(always)]
pub(crate) fn where_less<const L: usize>(a: [f32; L], b: [f32; L], mut x: [f32; L], y: [f32; L]) -> [f32; L] {
    #[cfg(target_arch = "aarch64")]
    for (vector, x) in x.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        let of = |lanes: &[f32; L]| lanes.as_chunks::<4>().0[vector];
        // SAFETY: NEON is part of the architecture.
        unsafe { store(vbslq_f32(vcltq_f32(load(&of(&a)), load(&of(&b))), load(x), load(&of(&y))), x) }
    }
    let done = const { in_vectors(L) };
    for (i, lane) in x[done..].iter_mut().enumerate() {
        *lane = if a[done + i] < b[done + i] { *lane } else { y[done + i] };
    }
    x
}

#[cfg(target_arch = "aarch64")]
#[inline]
#[target_feature(enable = "neon")]
fn load(numbers: &[f32; 4]) -> float32x4_t {
    // SAFETY: the array has the four numbers that are read.
    unsafe { vld1q_f32(numbers.as_ptr()) }
}

#[cfg(target_arch = "aarch64")]
#[inline]
#[target_feature(enable = "neon")]
fn store(vector: float32x4_t, numbers: &mut [f32; 4]) {
    // SAFETY: the array has the four numbers that are written.
    unsafe { vst1q_f32(numbers.as_mut_ptr(), vector) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ODD: [f32; 9] = [0.0, -0.0, 1.5, -2.25, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, 3e38];

    /// Every pair of odd numbers, seven lanes at a time: a vector and three more.
    fn pairs() -> impl Iterator<Item = ([f32; 7], [f32; 7])> {
        (0..ODD.len()).flat_map(|i| (0..ODD.len()).map(move |j| (i, j))).map(|(i, j)| {
            (std::array::from_fn(|lane| ODD[(i + lane) % 9]), std::array::from_fn(|lane| ODD[(j + 2 * lane) % 9]))
        })
    }

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
    }

    fn check<O: Pairwise>() {
        for (a, b) in pairs() {
            let all = lanewise::<O, 7>(a, b);
            assert!((0..7).all(|lane| same(all[lane], O::of(a[lane], b[lane]))), "{a:?} {b:?} {all:?}");
        }
    }

    #[test]
    fn lanewise_operations_equal_their_scalar_formulas() {
        check::<Sum>();
        check::<Difference>();
        check::<Product>();
        check::<Quotient>();
        check::<Greater>();
        check::<Lesser>();
        check::<FiniteOr>();
    }

    #[test]
    fn lanes_are_chosen_by_comparison() {
        for (a, b) in pairs() {
            let (x, y) = ([1.0; 7], [2.0; 7]);
            let chosen = where_less(a, b, x, y);
            assert!((0..7).all(|lane| chosen[lane] == if a[lane] < b[lane] { 1.0 } else { 2.0 }), "{a:?} {b:?}");
        }
    }
}
