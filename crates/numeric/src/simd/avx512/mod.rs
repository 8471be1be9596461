//! Codes of 64 elements at a time with AVX-512, by hand: the compiler narrows 32-bit lanes to bytes a quarter of a vector
//! at a time. The safe loops of [`crate::kernel`] say what is computed and take what is left over; not other formats or
//! instruction sets, which they serve well enough.
#![allow(unsafe_code)]

mod float;
mod fp4;
mod int;

use super::isa::{Isa, Level};
use crate::element_loop::{Element, ElementLoop, FloatCodes, IntCodes};
use std::arch::x86_64::*;

/// Elements of a block: the bytes of a vector.
const BLOCK: usize = 64;
/// Elements of a vector of `f32`.
const LANES: usize = 16;

/// The proof that the CPU has AVX-512 (F, BW, DQ and VL).
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Isa {
    /// The proof that AVX-512 may be used, where this is it.
    pub(crate) fn avx512(self) -> Option<Avx512> {
        (self.level() == Level::Avx512).then_some(Avx512(()))
    }
}

/// A loop over groups of elements that was written by hand.
pub(crate) struct ByHand<L> {
    body: L,
}

impl Avx512 {
    /// Whether there are loops by hand for groups of this size: whole vectors that divide a block, or at least a block.
    pub(crate) fn takes(self, group: usize) -> bool {
        group == LANES || group == 2 * LANES || group >= BLOCK
    }

    /// The loop by hand, for groups that it [takes](Self::takes).
    pub(crate) fn by_hand<L>(self, body: L) -> ByHand<L> {
        ByHand { body }
    }
}

impl ElementLoop for ByHand<IntCodes<'_>> {
    fn run<E: Element>(self, elements: &[E::Stored]) {
        // SAFETY: only the proof that the CPU has AVX-512 gives a `ByHand`.
        unsafe { int::codes::<E>(self.body, elements) }
    }
}

impl ElementLoop for ByHand<FloatCodes<'_>> {
    fn run<E: Element>(self, elements: &[E::Stored]) {
        // SAFETY: as above.
        unsafe {
            if fp4::takes::<E>(&self.body) {
                fp4::codes::<E>(self.body, elements);
            } else {
                float::codes_of_scaling::<E>(self.body, elements);
            }
        }
    }
}

/// Widens a vector of elements. The compiler makes one load and a shift of it.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load<E: Element>(block: &[E::Stored; BLOCK], vector: usize) -> __m512 {
    let mut values = [0.0; LANES];
    for (value, element) in values.iter_mut().zip(&block[vector * LANES..]) {
        *value = E::widen(E::bits(*element));
    }
    // SAFETY: the array has the 64 bytes that are read.
    unsafe { _mm512_loadu_ps(values.as_ptr()) }
}

/// Bytes from a block to what is read while it is worked on: callers look for the range of some kilobytes and then come
/// back for their codes, and the memory has nothing to do meanwhile.
const AHEAD: usize = 1 << 14;

/// Asks for what follows the block at a distance. Nothing need be there: a wrong guess costs a little time, no more.
#[inline(always)]
fn fetch_ahead<T>(block: &[T; BLOCK]) {
    for line in 0..size_of_val(block) / 64 {
        let address = block.as_ptr().cast::<i8>().wrapping_add(AHEAD + line * 64);
        // SAFETY: prefetching reads nothing and may be given any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address) }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn load_words(words: &[u16; BLOCK / 2]) -> __m512i {
    // SAFETY: the array has the 64 bytes that are read.
    unsafe { _mm512_loadu_si512(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn store(vector: __m512i, codes: &mut [u8; BLOCK]) {
    // SAFETY: the array has the 64 bytes that are written.
    unsafe { _mm512_storeu_si512(codes.as_mut_ptr().cast(), vector) }
}

/// Puts the bytes of four vectors that were packed lane by lane into their order.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn in_order(packed: __m512i) -> __m512i {
    let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_permutexvar_epi32(order, packed)
}

/// How a loop goes through groups: runs of whole groups, in which every `2^shift` vectors share what belongs to a group.
#[derive(Clone, Copy)]
struct Runs {
    elements: usize,
    groups: usize,
    shift: u32,
}

impl Runs {
    fn new(group: usize, elements: usize) -> Runs {
        match group {
            LANES => Runs { elements: elements.max(1), groups: elements.div_ceil(LANES).max(1), shift: 0 },
            group if group < BLOCK => {
                Runs { elements: elements.max(1), groups: elements.div_ceil(group).max(1), shift: 1 }
            }
            // All vectors of a run belong to one group.
            group => Runs { elements: group, groups: 1, shift: usize::BITS - 1 },
        }
    }

    /// The parameters of the four vectors of a block.
    #[inline(always)]
    fn four<T: Copy>(self, of_groups: &[T], block: usize) -> [T; 4] {
        let first = block * (BLOCK / LANES);
        [first, first + 1, first + 2, first + 3].map(|vector| of_groups[vector >> self.shift])
    }

    /// The groups that begin after some blocks.
    #[inline(always)]
    fn rest<T>(self, of_groups: &[T], blocks: usize) -> &[T] {
        &of_groups[(blocks * (BLOCK / LANES)) >> self.shift..]
    }
}
