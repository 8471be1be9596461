//! Kernels on aarch64 by hand, where the compiler's vectors take more instructions than needed: it narrows 32-bit lanes to bytes step by step,
//! does not know the conversions of binary16, and looks tables up one number at a time. The safe loops of [`crate::kernel`] say what is
//! computed and take what is left over.
#![allow(unsafe_code)]

mod float;
mod fp4;
mod halves;
mod int;
mod values;

use super::isa::{Isa, Level};
use crate::element_loop::{Element, ElementLoop, FloatCodes, IntCodes, StoredFloat};
use std::arch::aarch64::*;

/// Elements of a block: the bytes of a vector.
const BLOCK: usize = 16;

/// The choice of kernels by hand: every aarch64 processor has NEON.
#[derive(Clone, Copy)]
pub(crate) struct Neon(());

impl Isa {
    /// Kernels by hand, where this is their level.
    pub(crate) fn neon(self) -> Option<Neon> {
        (self.level() == Level::Neon).then_some(Neon(()))
    }
}

/// A loop over groups of elements that was written by hand.
pub(crate) struct ByHand<L> {
    body: L,
}

impl Neon {
    /// Whether there are loops by hand for groups of this size: one block at least.
    pub(crate) fn takes(self, group: usize) -> bool {
        group >= BLOCK
    }

    /// The loop by hand, for groups that it [takes](Self::takes).
    pub(crate) fn by_hand<L>(self, body: L) -> ByHand<L> {
        ByHand { body }
    }
}

impl ElementLoop for ByHand<IntCodes<'_>> {
    fn run<E: Element>(self, elements: &[E::Stored]) {
        // SAFETY: NEON is part of the architecture.
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

/// Elements in blocks and the codes that they become, group by group.
struct Groups<'a, E: Element> {
    elements: &'a [E::Stored],
    codes: &'a mut [u8],
    group: usize,
}

impl<E: Element> Groups<'_, E> {
    /// Runs `blocks` on the whole blocks of every group, and `rest` on what is left of it, both with the group's number. Groups of the usual
    /// sizes have a loop of their own, in which the compiler knows their length.
    #[inline(always)]
    fn each(
        mut self,
        blocks: impl Fn(usize, &[[E::Stored; BLOCK]], &mut [[u8; BLOCK]]),
        rest: impl Fn(usize, &[E::Stored], &mut [u8]),
    ) {
        let done = match self.group {
            16 => self.whole::<1>(&blocks),
            32 => self.whole::<2>(&blocks),
            128 => self.whole::<8>(&blocks),
            _ => 0,
        };
        let (elements, codes) = (&self.elements[done * self.group..], &mut self.codes[done * self.group..]);
        let groups = elements.chunks(self.group).zip(codes.chunks_mut(self.group));
        for (index, (elements, codes)) in (done..).zip(groups) {
            let (element_blocks, tail) = elements.as_chunks();
            let (code_blocks, tail_codes) = codes.as_chunks_mut();
            blocks(index, element_blocks, code_blocks);
            if !tail.is_empty() {
                rest(index, tail, tail_codes);
            }
        }
    }

    /// Whole groups of `N` blocks, whose number is returned.
    #[inline(always)]
    fn whole<const N: usize>(&mut self, blocks: &impl Fn(usize, &[[E::Stored; BLOCK]], &mut [[u8; BLOCK]])) -> usize {
        let groups = self.elements.as_chunks::<BLOCK>().0.as_chunks::<N>().0;
        let codes = self.codes.as_chunks_mut::<BLOCK>().0.as_chunks_mut::<N>().0;
        for (index, (elements, codes)) in groups.iter().zip(&mut *codes).enumerate() {
            blocks(index, elements, codes);
        }
        groups.len().min(codes.len())
    }
}

/// Widens a block of finite elements.
#[inline]
#[target_feature(enable = "neon")]
fn widened<E: Element>(block: &[E::Stored; BLOCK]) -> [float32x4_t; 4] {
    match E::FLOAT {
        StoredFloat::Single => singles::<E>(block).map(|bits| vreinterpretq_f32_u32(bits)),
        StoredFloat::Half => {
            let [low, high] = words::<E>(block).map(|words| vreinterpretq_f16_u16(words));
            let of = |half: float16x8_t| [vcvt_f32_f16(vget_low_f16(half)), vcvt_high_f32_f16(half)];
            let ([a, b], [c, d]) = (of(low), of(high));
            [a, b, c, d]
        }
        StoredFloat::Brain => {
            let zero = vdupq_n_u16(0);
            // The upper half of each number.
            let of = |words| [vzip1q_u16(zero, words), vzip2q_u16(zero, words)].map(|bits| vreinterpretq_f32_u16(bits));
            let [low, high] = words::<E>(block);
            let ([a, b], [c, d]) = (of(low), of(high));
            [a, b, c, d]
        }
    }
}

/// The byte of each element that has its sign.
#[inline]
#[target_feature(enable = "neon")]
fn sign_bytes<E: Element>(block: &[E::Stored; BLOCK]) -> uint8x16_t {
    let [low, high] = match E::FLOAT {
        StoredFloat::Single => {
            let [a, b, c, d] = singles::<E>(block).map(|bits| vreinterpretq_u16_u32(bits));
            [vuzp2q_u16(a, b), vuzp2q_u16(c, d)]
        }
        StoredFloat::Half | StoredFloat::Brain => words::<E>(block),
    };
    vuzp2q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high))
}

/// The bit patterns of 32-bit elements.
#[inline]
#[target_feature(enable = "neon")]
fn singles<E: Element>(block: &[E::Stored; BLOCK]) -> [uint32x4_t; 4] {
    const { assert!(E::FLOAT as u8 != StoredFloat::Single as u8 || size_of::<E::Stored>() == 4) }
    let bytes = block.as_ptr().cast::<u8>();
    // SAFETY: the block has 64 bytes, 16 from each of these on.
    unsafe { [0, 16, 32, 48].map(|at| vreinterpretq_u32_u8(vld1q_u8(bytes.add(at)))) }
}

/// The bit patterns of 16-bit elements.
#[inline]
#[target_feature(enable = "neon")]
fn words<E: Element>(block: &[E::Stored; BLOCK]) -> [uint16x8_t; 2] {
    const { assert!(E::FLOAT as u8 == StoredFloat::Single as u8 || size_of::<E::Stored>() == 2) }
    let bytes = block.as_ptr().cast::<u8>();
    // SAFETY: the block has at least 32 bytes, 16 from each of these on.
    unsafe { [0, 16].map(|at| vreinterpretq_u16_u8(vld1q_u8(bytes.add(at)))) }
}

/// The lowest bytes of 16 words, in their order.
#[inline]
#[target_feature(enable = "neon")]
fn low_bytes([a, b, c, d]: [uint32x4_t; 4]) -> uint8x16_t {
    let halves = |a, b| vreinterpretq_u8_u16(vuzp1q_u16(vreinterpretq_u16_u32(a), vreinterpretq_u16_u32(b)));
    vuzp1q_u8(halves(a, b), halves(c, d))
}

#[inline]
#[target_feature(enable = "neon")]
fn store(vector: uint8x16_t, codes: &mut [u8; BLOCK]) {
    // SAFETY: the array has the 16 bytes that are written.
    unsafe { vst1q_u8(codes.as_mut_ptr(), vector) }
}
