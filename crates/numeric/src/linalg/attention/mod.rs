//! Attention of one head without its scores in memory (arXiv 2205.14135): blocks of queries meet blocks of keys, and
//! a running softmax joins what they give. Not the projections around it, nor the sharing of heads among threads.
//!
//! Everything is transposed: scores have keys in rows and queries in columns, so that the softmax of sixteen
//! queries runs in the lanes of a vector.

mod bias;
mod lanes;
mod mask;
mod softmax;
mod tiles;

use super::matmul::{Matrix, MatrixMut};
use super::precision::Precision;
use crate::simd::{Isa, SIDE, Tile, TileUnit};
pub use bias::ScoreBias;
use lanes::Lanes;
use mask::Seen;
use softmax::Softmax;
use std::ops::Range;
use tiles::{PackedKeys, Tiled};

/// Queries that are attended for at a time, and keys of a band: two tiles.
pub const QUERIES: usize = 2 * SIDE;
/// Keys of a band.
const BAND: usize = QUERIES;
/// Bands between two looks at the running softmax.
const BANDS: usize = 4;

/// 32 rows and 32 columns of `f32` as tiles: `[row / 16][column / 16]`.
type Square = [[Tile; 2]; 2];

/// The parameters of a head's weights besides queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionRule<'a> {
    /// The factor on `q k^T`.
    pub scale: f32,
    /// `c` of the soft-cap `c tanh(s / c)` on scores.
    pub cap: Option<f32>,
    /// How many positions a query sees, its own included and later ones aside; `None` for all up to it.
    pub window: Option<usize>,
    /// How many positions behind its own a query sees: none where attention is causal.
    pub ahead: usize,
    /// The position behind the last one that the query at each position sees, which never decreases, in place of `ahead`; empty where
    /// that counts.
    pub ends: &'a [usize],
    /// Positions of a chunk: a query sees its own chunk, from its first position on; `None` where there are no chunks.
    pub chunk: Option<usize>,
    /// A further score, which takes its share and has no value.
    pub sink: Option<f32>,
    /// What is added to scores, after scale and soft-cap.
    pub bias: ScoreBias<'a>,
}

/// The keys and values of one head over a sequence, in the form that products with them take.
#[derive(Debug)]
pub struct KeysValues<'a> {
    form: Form<'a>,
    count: usize,
    value_width: usize,
    precision: Precision,
}

#[derive(Debug)]
enum Form<'a> {
    /// As they are.
    Rows(Lanes<'a>),
    /// In tiles of bfloat16.
    Packed(TileUnit, PackedKeys),
}

/// Buffers that are used again from call to call.
#[derive(Debug, Default)]
pub struct AttentionBuffers {
    /// Queries, packed.
    queries: Vec<[Tile; 2]>,
    /// Scores, then weights, of some bands.
    scores: Vec<Square>,
    /// Sums of weighted values: value components in rows.
    sums: Vec<Square>,
}

impl<'a> KeysValues<'a> {
    /// Position `i` has row `i` of both. In bfloat16, where the CPU multiplies tiles, they are packed into such.
    ///
    /// # Panics
    ///
    /// If there are not as many values as keys, or rows are not contiguous.
    pub fn new(keys: Matrix<'a>, values: Matrix<'a>, precision: Precision) -> KeysValues<'a> {
        assert!(keys.rows == values.rows, "{} keys have {} values", keys.rows, values.rows);
        assert!(keys.column_step == 1 && values.column_step == 1, "rows are not contiguous");
        let form = match (precision, TileUnit::get()) {
            (Precision::Bf16, Some(unit)) => Form::Packed(unit, PackedKeys::new(unit, keys, values)),
            _ => Form::Rows(Lanes::new(keys, values)),
        };
        KeysValues { form, count: keys.rows, value_width: values.columns, precision }
    }

    /// `softmax(scale q k^T) v` for at most [`QUERIES`] queries, the first of which has position `first`. In bfloat16 the
    /// weights and the result are rounded to it; scores and sums are `f32`.
    ///
    /// # Panics
    ///
    /// If the shapes do not match, or there are more queries.
    pub fn attend(
        &self,
        isa: Isa,
        queries: Matrix<'_>,
        first: usize,
        rule: AttentionRule<'_>,
        out: MatrixMut<'_>,
        buffers: &mut AttentionBuffers,
    ) {
        let fits = queries.rows <= QUERIES && queries.column_step == 1;
        assert!(fits && out.rows == queries.rows && out.columns == self.value_width, "shapes do not match");
        let task = AttentionTask { isa, queries, keys: self.count, first, rule, precision: self.precision };
        match &self.form {
            Form::Rows(lanes) => task.run(&lanes.on(isa), out, buffers),
            Form::Packed(unit, keys) => {
                unit.with_tiles(|tiles| task.run(&Tiled { unit: *unit, tiles, keys }, out, buffers));
            }
        }
    }
}

/// The two products of attention, on bands of 32 keys.
trait Products {
    /// The queries in the form that [`Products::scores`] takes; fewer than 32 are filled up.
    fn pack(&self, queries: Matrix<'_>, out: &mut Vec<[Tile; 2]>);

    /// `k q^T` of a band.
    fn scores(&self, queries: &[[Tile; 2]], band: usize, out: &mut Square);

    /// Adds `v^T w` of some bands to the sums.
    fn accumulate(&self, bands: Range<usize>, weights: &[Square], sums: &mut [Square]);

    /// Exchanges rows and columns of a tile.
    fn turn(&self, tile: &mut Tile);
}

/// Some queries of one head.
struct AttentionTask<'a> {
    isa: Isa,
    queries: Matrix<'a>,
    /// How many keys there are.
    keys: usize,
    first: usize,
    rule: AttentionRule<'a>,
    precision: Precision,
}

impl AttentionTask<'_> {
    fn run(&self, products: &impl Products, out: MatrixMut<'_>, buffers: &mut AttentionBuffers) {
        let AttentionBuffers { queries, scores, sums } = buffers;
        products.pack(self.queries, queries);
        scores.resize(BANDS, [[Tile::ZERO; 2]; 2]);
        sums.clear();
        sums.resize(out.columns.div_ceil(BAND), [[Tile::ZERO; 2]; 2]);
        let mut softmax = Softmax::new(self.isa, self.rule, self.precision);
        let AttentionRule { window, ahead, ends, chunk, .. } = self.rule;
        let seen = Seen { first: self.first, keys: self.keys, window, ahead, ends, chunk };
        let bands = seen.bands(self.queries.rows);
        for start in bands.clone().step_by(BANDS) {
            let bands = start..(start + BANDS).min(bands.end);
            let weights = &mut scores[..bands.len()];
            for (band, scores) in bands.clone().zip(weights.iter_mut()) {
                products.scores(queries, band, scores);
            }
            softmax.weigh(seen, start, weights, sums);
            products.accumulate(bands, weights, sums);
        }
        softmax.divide(sums);
        self.write(products, sums, out);
    }

    fn write(&self, products: &impl Products, sums: &mut [Square], out: MatrixMut<'_>) {
        sums.iter_mut().flatten().flatten().for_each(|tile| products.turn(tile));
        for (index, row) in out.data.chunks_mut(out.row_step.max(1)).take(out.rows).enumerate() {
            let (group, line) = (index / SIDE, index % SIDE);
            let tiles = sums.iter().flatten().map(|pair| &pair[group].0[line]);
            for (values, words) in row[..out.columns].chunks_mut(SIDE).zip(tiles) {
                values.iter_mut().zip(words).for_each(|(value, word)| *value = f32::from_bits(*word));
            }
        }
    }
}

#[cfg(test)]
mod tests;
