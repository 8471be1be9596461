//! The products of attention in tiles of bfloat16.

use super::{BAND, BANDS, Products, Square};
use crate::arithmetic::round_to_bf16;
use crate::linalg::matmul::Matrix;
use crate::linalg::tiled::{Terms, pack_values};
use crate::simd::{Isa, Loop, SIDE, Start, Tile, TileUnit, Tiles, dispatch};
use std::ops::Range;

/// Keys and transposed values of one head, both as left operands.
#[derive(Debug)]
pub(super) struct PackedKeys {
    /// `[band][step]`, a key in each row.
    keys: Vec<[Tile; 2]>,
    /// Steps of 32 components in a key.
    key_steps: usize,
    /// `[32 components][band]`, a component of the values of 32 keys in each row.
    values: Vec<[Tile; 2]>,
    bands: usize,
}

impl PackedKeys {
    /// Rows that do not fill a band are followed by zeros.
    pub(super) fn new(unit: TileUnit, keys: Matrix<'_>, values: Matrix<'_>) -> PackedKeys {
        let (bands, key_steps) = (keys.rows.div_ceil(BAND), steps(keys.columns));
        let mut packed = vec![[Tile::ZERO; 2]; bands * key_steps];
        for (band, pairs) in packed.chunks_mut(key_steps).enumerate() {
            let rows = band * BAND..keys.rows.min((band + 1) * BAND);
            pack_values(keys, rows, Terms::Rounded, pairs);
        }
        let mut turned = vec![[Tile::ZERO; 2]; bands * steps(values.columns)];
        for (part, pairs) in turned.chunks_mut(bands.max(1)).enumerate() {
            let columns = part * BAND..values.columns.min((part + 1) * BAND);
            dispatch(Isa::best(), Interleave { values, columns, pairs });
            pairs.iter_mut().flatten().for_each(|tile| unit.transpose(tile));
        }
        PackedKeys { keys: packed, key_steps, values: turned, bands }
    }
}

/// Steps of 32 in depth.
fn steps(columns: usize) -> usize {
    columns.div_ceil(BAND).max(1)
}

/// Puts values of neighbouring keys side by side: `[band][component / 16]`, in row `k` the pairs of keys `2k` and `2k + 1`.
struct Interleave<'a> {
    values: Matrix<'a>,
    columns: Range<usize>,
    pairs: &'a mut [[Tile; 2]],
}

impl Loop for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Interleave { values, columns, pairs } = self;
        for key in 0..values.rows {
            let row = &values.data[key * values.row_step..][columns.clone()];
            let (line, shift) = (key % BAND / 2, 16 * (key % 2));
            for (words, tile) in row.chunks(SIDE).zip(&mut pairs[key / BAND]) {
                for (word, value) in tile.0[line].iter_mut().zip(words) {
                    *word |= (round_to_bf16(*value).to_bits() >> 16) << shift;
                }
            }
        }
    }
}

/// Products in the tile registers of this thread.
pub(super) struct Tiled<'t> {
    pub(super) unit: TileUnit,
    pub(super) tiles: &'t Tiles,
    pub(super) keys: &'t PackedKeys,
}

impl Products for Tiled<'_> {
    fn pack(&self, queries: Matrix<'_>, out: &mut Vec<[Tile; 2]>) {
        out.resize(steps(queries.columns), [Tile::ZERO; 2]);
        pack_values(queries, 0..queries.rows, Terms::Rounded, out);
        out.iter_mut().flatten().for_each(|tile| self.unit.transpose(tile));
    }

    fn scores(&self, queries: &[[Tile; 2]], band: usize, out: &mut Square) {
        let keys = &self.keys.keys[band * self.keys.key_steps..][..self.keys.key_steps];
        self.tiles.multiply(keys, queries, Start::Zero, out);
    }

    fn accumulate(&self, bands: Range<usize>, weights: &[Square], sums: &mut [Square]) {
        let mut pairs = [[Tile::ZERO; 2]; BANDS];
        let pairs = &mut pairs[..weights.len()];
        dispatch(Isa::best(), Halve { weights, pairs });
        for (values, sums) in self.keys.values.chunks(self.keys.bands.max(1)).zip(sums) {
            self.tiles.multiply(&values[bands.clone()], pairs, Start::Sums, sums);
        }
    }

    fn turn(&self, tile: &mut Tile) {
        self.unit.transpose(tile);
    }
}

/// Weights, which are bfloat16, as right operands.
struct Halve<'a> {
    weights: &'a [Square],
    pairs: &'a mut [[Tile; 2]],
}

impl Loop for Halve<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (square, pair) in self.weights.iter().zip(self.pairs) {
            for (group, out) in pair.iter_mut().enumerate() {
                for (line, words) in out.0.iter_mut().enumerate() {
                    let tile = &square[line / (SIDE / 2)][group].0;
                    let (even, odd) = (&tile[2 * line % SIDE], &tile[2 * line % SIDE + 1]);
                    *words = std::array::from_fn(|i| even[i] >> 16 | odd[i] & 0xFFFF_0000);
                }
            }
        }
    }
}
