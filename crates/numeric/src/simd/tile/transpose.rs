//! Turning a tile with AVX-512, which every CPU that multiplies tiles has.
#![allow(unsafe_code)]

use super::Tile;
use std::arch::x86_64::*;

/// Exchanges rows and columns, that is words of a row.
#[target_feature(enable = "avx512f")]
pub(super) fn transpose(tile: &mut Tile) {
    let rows = tile.0.each_ref();
    // SAFETY: every row has the 64 bytes that are read, aligned.
    let rows = rows.map(|row| unsafe { _mm512_load_si512(row.as_ptr().cast()) });
    let turned = quarters(blocks(quads(pairs(rows))));
    for (row, vector) in tile.0.iter_mut().zip(turned) {
        // SAFETY: as above, written.
        unsafe { _mm512_store_si512(row.as_mut_ptr().cast(), vector) }
    }
}

/// Interleaves words of neighbouring rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn pairs(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut out = r;
    for i in 0..8 {
        out[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        out[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    out
}

/// Interleaves pairs of words of rows two apart: each quarter of a vector now has a column of four rows.
#[inline]
#[target_feature(enable = "avx512f")]
fn quads(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut out = r;
    for i in 0..4 {
        for j in 0..2 {
            out[4 * i + 2 * j] = _mm512_unpacklo_epi64(r[4 * i + j], r[4 * i + j + 2]);
            out[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(r[4 * i + j], r[4 * i + j + 2]);
        }
    }
    out
}

/// Joins quarters of rows four apart.
#[inline]
#[target_feature(enable = "avx512f")]
fn blocks(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut out = r;
    for i in 0..2 {
        for j in 0..4 {
            out[8 * i + j] = _mm512_shuffle_i32x4::<0x88>(r[8 * i + j], r[8 * i + j + 4]);
            out[8 * i + j + 4] = _mm512_shuffle_i32x4::<0xDD>(r[8 * i + j], r[8 * i + j + 4]);
        }
    }
    out
}

/// Joins quarters of rows eight apart.
#[inline]
#[target_feature(enable = "avx512f")]
fn quarters(r: [__m512i; 16]) -> [__m512i; 16] {
    let mut out = r;
    for j in 0..8 {
        out[j] = _mm512_shuffle_i32x4::<0x88>(r[j], r[8 + j]);
        out[j + 8] = _mm512_shuffle_i32x4::<0xDD>(r[j], r[8 + j]);
    }
    out
}
