//! Turning a tile with NEON, in squares of four words.
#![allow(unsafe_code)]

use super::{SIDE, Tile};
use std::arch::aarch64::*;

/// Exchanges rows and columns, that is words of a row.
#[target_feature(enable = "neon")]
pub(super) fn transpose(tile: &mut Tile) {
    let before = *tile;
    for row in (0..SIDE).step_by(4) {
        for column in (0..SIDE).step_by(4) {
            // SAFETY: there are four words from each of these on.
            let r = [0, 1, 2, 3].map(|i| unsafe { vld1q_u32(before.0[row + i].as_ptr().add(column)) });
            let pairs =
                [vtrn1q_u32(r[0], r[1]), vtrn2q_u32(r[0], r[1]), vtrn1q_u32(r[2], r[3]), vtrn2q_u32(r[2], r[3])]
                    .map(|pair| vreinterpretq_u64_u32(pair));
            let turned = [
                vtrn1q_u64(pairs[0], pairs[2]),
                vtrn1q_u64(pairs[1], pairs[3]),
                vtrn2q_u64(pairs[0], pairs[2]),
                vtrn2q_u64(pairs[1], pairs[3]),
            ];
            for (i, words) in turned.into_iter().enumerate() {
                // SAFETY: as above, written.
                unsafe { vst1q_u32(tile.0[column + i].as_mut_ptr().add(row), vreinterpretq_u32_u64(words)) }
            }
        }
    }
}
