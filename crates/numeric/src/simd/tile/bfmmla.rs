//! Products of tiles with the instruction of ARM's bfloat16 extension that multiplies two rows with two columns of four numbers
//! (BFMMLA: server processors since Neoverse V1 and N2, Apple's since the M2).
#![allow(unsafe_code)]

use super::{SIDE, Start, Tile, terms};
use crate::simd::Isa;
use crate::simd::isa::is_switched_off;
use std::arch::aarch64::*;
use std::arch::asm;
use std::sync::OnceLock;

/// Pairs of rows, and of columns, whose sums are in registers: half of the 32 that there are.
const PAIRS: usize = 4;

/// Steps that are summed one after the other before they are added to the sums: an error of so many roundings, and of so many sums,
/// is far less than of all in one row.
const CHAIN: usize = 8;

/// The proof that the CPU has the instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Vectors(());

impl Vectors {
    /// The proof, if there is one. Found once.
    pub(super) fn get() -> Option<Vectors> {
        static FOUND: OnceLock<bool> = OnceLock::new();
        let is_there = || Isa::best().neon().is_some() && std::arch::is_aarch64_feature_detected!("bf16");
        let found = FOUND.get_or_init(|| !is_switched_off("KVANT_DISABLE_ARM_BF16") && is_there());
        found.then_some(Vectors(()))
    }

    /// See [`Tiles::multiply`](super::Tiles::multiply).
    pub(super) fn multiply(self, a: &[[Tile; 2]], b: &[[Tile; 2]], start: Start, sums: &mut [[Tile; 2]; 2]) {
        let terms = terms(a.len(), b.len()).max(1);
        if start == Start::Zero {
            *sums = [[Tile::ZERO; 2]; 2];
        }
        // What all rows read of one chain stays in the first-level cache.
        for (a, b) in a.chunks(CHAIN * terms).zip(b.chunks(CHAIN)) {
            for (row_tile, sums) in sums.iter_mut().enumerate() {
                for (column_tile, sums) in sums.iter_mut().enumerate() {
                    for place in 0..4 {
                        let (first_row, first_column) = (place / 2 * 2 * PAIRS, place % 2 * 2 * PAIRS);
                        let square = Square { row_tile, column_tile, first_row, first_column };
                        // SAFETY: a value of `Vectors` exists only where the CPU has the instruction.
                        unsafe { square.add_chain(a, terms, b, sums) }
                    }
                }
            }
        }
    }
}

/// Eight rows and eight columns of a product.
#[derive(Clone, Copy)]
struct Square {
    /// Which tile of each pair of the left operand, and of the right one.
    row_tile: usize,
    column_tile: usize,
    /// Where in them.
    first_row: usize,
    first_column: usize,
}

impl Square {
    #[target_feature(enable = "neon,bf16")]
    fn add_chain(self, a: &[[Tile; 2]], terms: usize, b: &[[Tile; 2]], sums: &mut Tile) {
        let totals = self.chain(a, terms, b);
        for (pair, totals) in totals.into_iter().enumerate() {
            // Each vector has two columns of two rows.
            let halves = totals.map(|total| vreinterpretq_f64_f32(total));
            let rows = [
                [vzip1q_f64(halves[0], halves[1]), vzip1q_f64(halves[2], halves[3])],
                [vzip2q_f64(halves[0], halves[1]), vzip2q_f64(halves[2], halves[3])],
            ];
            for (row, parts) in sums.0[self.first_row + 2 * pair..].iter_mut().zip(rows) {
                let quarters = row[self.first_column..].as_chunks_mut::<4>().0;
                for (quarter, part) in quarters.iter_mut().zip(parts) {
                    let sum = vaddq_f32(vreinterpretq_f32_u32(load(quarter)), vreinterpretq_f32_f64(part));
                    // SAFETY: the quarter has the 16 bytes that are written.
                    unsafe { vst1q_u32(quarter.as_mut_ptr(), vreinterpretq_u32_f32(sum)) }
                }
            }
        }
    }

    /// The sums of a few steps.
    #[inline]
    #[target_feature(enable = "neon,bf16")]
    fn chain(self, a: &[[Tile; 2]], terms: usize, b: &[[Tile; 2]]) -> [[float32x4_t; PAIRS]; PAIRS] {
        let mut totals = [[vdupq_n_f32(0.0); PAIRS]; PAIRS];
        for (a, b) in a.chunks_exact(terms).zip(b) {
            let b = &b[self.column_tile];
            for a in a {
                let rows = &a[self.row_tile].0.as_chunks::<{ 2 * PAIRS }>().0[self.first_row / (2 * PAIRS)];
                // Four words are eight numbers in depth.
                for quarter in 0..SIDE / 4 {
                    let words = |row: usize| vreinterpretq_u64_u32(load(&rows[row].as_chunks().0[quarter]));
                    let left: [[uint64x2_t; 2]; PAIRS] = std::array::from_fn(|pair| {
                        let (upper, lower) = (words(2 * pair), words(2 * pair + 1));
                        [vzip1q_u64(upper, lower), vzip2q_u64(upper, lower)]
                    });
                    for half in 0..2 {
                        let right = self.right(b, 4 * quarter + 2 * half);
                        for (totals, left) in totals.iter_mut().zip(left) {
                            for (total, right) in totals.iter_mut().zip(right) {
                                *total = bfmmla(*total, vreinterpretq_u32_u64(left[half]), right);
                            }
                        }
                    }
                }
            }
        }
        totals
    }

    /// Four numbers in depth, from row `row` of the tile on, of each pair of columns, column by column.
    #[inline]
    #[target_feature(enable = "neon")]
    fn right(self, b: &Tile, row: usize) -> [uint32x4_t; PAIRS] {
        let quarter = |row: usize, index: usize| load(&b.0[row][self.first_column..].as_chunks().0[index]);
        let (upper, lower) = ([quarter(row, 0), quarter(row, 1)], [quarter(row + 1, 0), quarter(row + 1, 1)]);
        [
            vzip1q_u32(upper[0], lower[0]),
            vzip2q_u32(upper[0], lower[0]),
            vzip1q_u32(upper[1], lower[1]),
            vzip2q_u32(upper[1], lower[1]),
        ]
    }
}

#[inline]
#[target_feature(enable = "neon")]
fn load(words: &[u32; 4]) -> uint32x4_t {
    // SAFETY: the array has the 16 bytes that are read.
    unsafe { vld1q_u32(words.as_ptr()) }
}

/// Adds the products of two rows of four bfloat16 with two columns of them. Rust has no stable name for the instruction.
#[inline]
#[target_feature(enable = "neon,bf16")]
fn bfmmla(mut sums: float32x4_t, rows: uint32x4_t, columns: uint32x4_t) -> float32x4_t {
    // SAFETY: the function has the feature of the instruction, which touches nothing but its registers.
    unsafe {
        asm!(
            "bfmmla {sums:v}.4s, {rows:v}.8h, {columns:v}.8h",
            sums = inout(vreg) sums,
            rows = in(vreg) rows,
            columns = in(vreg) columns,
            options(pure, nomem, nostack, preserves_flags)
        );
    }
    sums
}
