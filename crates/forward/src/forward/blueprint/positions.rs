//! How positions enter besides rotary embeddings and tables: biases on scores, a factor on queries, and rows of sines and cosines. Computes
//! numbers of single positions; where they are applied is in `attention.rs` and `run.rs`.

use super::{Sources, rules};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::{Alibi, Positions, QueryScale, StackBlock};
use kvant_model::network::Place;
use kvant_numeric::linalg::{Precision, ScoreBias};

/// Biases on scores.
#[derive(Clone, Debug, PartialEq)]
pub enum ScoreBiases {
    /// See [`Alibi`].
    Slopes(SlopeBiases),
    /// See [`Encoder::relative_positions`](kvant_model::family::Encoder::relative_positions).
    Distances(DistanceBiases),
}

/// What is added to scores, one head after the other.
#[derive(Clone, Debug, PartialEq)]
pub enum HeadBiases {
    /// A number for each key.
    OfKeys(Vec<f32>),
    /// A number for each distance: see [`ScoreBias::OfDistances`].
    OfDistances(Vec<f32>),
}

impl Default for HeadBiases {
    fn default() -> HeadBiases {
        HeadBiases::OfKeys(Vec::new())
    }
}

impl HeadBiases {
    /// The same, as attention takes it.
    pub fn as_score_bias(&self) -> ScoreBias<'_> {
        match self {
            HeadBiases::OfKeys(biases) => ScoreBias::OfKeys(biases),
            HeadBiases::OfDistances(biases) => ScoreBias::OfDistances(biases),
        }
    }
}

/// A learned bias for each head and bucket of distances (T5, MPNet).
#[derive(Clone, Debug, PartialEq)]
pub struct DistanceBiases {
    /// The biases, a row for each bucket.
    pub table: Projection,
    /// Which distances share a bucket.
    pub buckets: DistanceBuckets,
}

/// Buckets of distances. Of `n` buckets, the second half is for keys behind the query. In either half, the first `n / 4` distances have a
/// bucket each, and further ones share buckets whose widths grow with the logarithm, up to the farthest distance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DistanceBuckets {
    /// `n`.
    pub count: usize,
    /// The distance from which on all share a bucket.
    pub farthest: f32,
    /// Whether queries see keys behind them. Otherwise all buckets are for keys before the query.
    pub sees_ahead: bool,
}

/// Those of MPNet, and of T5 where config.json is silent.
const USUAL: DistanceBuckets = DistanceBuckets { count: 32, farthest: 128.0, sees_ahead: true };

impl DistanceBiases {
    /// The biases of every distance in sequences of `positions`, from the rows of the table.
    pub fn of(&self, table: &[f32], positions: usize) -> Vec<f32> {
        let heads = self.table.columns;
        let distances = || (0..2 * positions.max(1) - 1).map(|at| at as i64 - positions.max(1) as i64 + 1);
        (0..heads).flat_map(|head| distances().map(move |far| table[self.buckets.of(far) * heads + head])).collect()
    }
}

impl DistanceBuckets {
    /// The bucket of a key so far behind its query; before it where negative.
    fn of(self, distance: i64) -> usize {
        let half = if self.sees_ahead { self.count / 2 } else { self.count };
        let start = if distance > 0 && self.sees_ahead { half } else { 0 };
        let distance = if self.sees_ahead { distance } else { distance.min(0) };
        let (far, exact) = (distance.unsigned_abs() as usize, half / 2);
        if far < exact {
            return start + far;
        }
        let share = (far as f32 / exact as f32).ln() / (self.farthest / exact as f32).ln();
        start + (exact + (share * (half - exact) as f32) as usize).min(half - 1)
    }

    /// Returns whether each bucket has distances, so that none is computed from the logarithm of 0 or of 1 alone.
    fn is_usual(self) -> bool {
        self.count.is_multiple_of(4) && self.count >= 4 && self.farthest > (self.count / 2) as f32
    }
}

/// Biases that grow with the key's position: see [`Alibi`].
#[derive(Clone, Debug, PartialEq)]
pub struct SlopeBiases {
    /// The slope of each query head.
    slopes: Vec<f32>,
    /// The precision of slopes, positions and biases.
    precision: Precision,
    /// The factor on biases.
    factor: f32,
}

impl SlopeBiases {
    fn new(alibi: Alibi, heads: usize, scale: f32) -> SlopeBiases {
        let precision = if alibi.rounded { Precision::Bf16 } else { Precision::F32 };
        let slopes = slopes(heads).into_iter().map(|slope| precision.round(slope)).collect();
        SlopeBiases { slopes, precision, factor: if alibi.scaled { scale } else { 1.0 } }
    }

    /// The biases of the first `positions` keys for every head, one head after the other.
    pub fn of(&self, positions: usize) -> Vec<f32> {
        let round = |x| self.precision.round(x);
        let of_head = |slope: f32| (0..positions).map(move |key| self.factor * round(slope * round(key as f32)));
        self.slopes.iter().flat_map(|slope| of_head(*slope)).collect()
    }
}

/// The exponent of the least slope, negated.
const LARGEST: f32 = 8.0;

/// The slopes of [`Alibi`].
fn slopes(heads: usize) -> Vec<f32> {
    let of_power = |count: usize| (1..=count).map(move |head| (-LARGEST * head as f32 / count as f32).exp2());
    let below = 1 << heads.max(1).ilog2();
    of_power(below).chain(of_power(2 * below).step_by(2)).take(heads).collect()
}

/// The factor `1 + strength ln(1 + floor((p + offset) / length))` on queries at position `p`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueryGrowth {
    strength: f32,
    length: f32,
    offset: f32,
}

impl QueryGrowth {
    /// The factor at a position.
    pub fn at(self, position: usize) -> f32 {
        let steps = ((position as f32 + self.offset) / self.length).floor();
        1.0 + self.strength * (1.0 + steps).ln()
    }
}

/// Rows of sines and cosines that are added to embeddings: see [`Positions::Sinusoidal`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sinusoids {
    /// What is added to a position.
    offset: usize,
    /// The sum whose row is 0.
    zero: Option<usize>,
    /// Elements of a row.
    width: usize,
    /// Whether frequencies are those of [`Positions::SinusoidalOfWidth`].
    of_width: bool,
}

/// The inverse of the least frequency.
const LONGEST_WAVE: f64 = 10_000.0;

impl Sinusoids {
    /// Appends the row of a position.
    pub fn extend(&self, position: usize, rows: &mut Vec<f32>) {
        let (at, half) = (position + self.offset, self.width / 2);
        let end = rows.len() + self.width;
        if self.of_width {
            let angle = |index: usize| at as f64 / LONGEST_WAVE.powf(2.0 * index as f64 / self.width as f64);
            rows.extend((0..self.width.div_ceil(2)).map(|index| angle(index).sin() as f32));
            rows.extend((0..half).map(|index| angle(index).cos() as f32));
        } else if self.zero != Some(at) {
            let step = (LONGEST_WAVE.ln() / (half as f64 - 1.0)) as f32;
            // Frequencies and angles are f32, as the models were trained with.
            let angle = |index: usize| f64::from(at as f32 * (-(index as f32) * step).exp());
            rows.extend((0..half).map(|index| angle(index).sin() as f32));
            rows.extend((0..half).map(|index| angle(index).cos() as f32));
        }
        rows.resize(end, 0.0);
    }
}

impl Sources<'_, '_> {
    /// Positions of sines and cosines, where the model has them.
    pub(super) fn sinusoids(&self) -> Result<Option<Sinusoids>, ForwardError> {
        let (offset, padding) = match self.positions_rule() {
            Positions::SinusoidalOfWidth => {
                return Ok(Some(Sinusoids { offset: 0, zero: None, width: self.hidden()?, of_width: true }));
            }
            Positions::Sinusoidal { offset, padding } => (offset, padding),
            _ => return Ok(None),
        };
        const KEY: &str = "pad_token_id";
        let stated = self.config.number(KEY)?.map(|token| token as usize);
        let zero = if self.config.states(KEY) { stated } else { Some(padding) };
        Ok(Some(Sinusoids { offset, zero, width: self.hidden()?, of_width: false }))
    }

    /// The positions of the model.
    pub(super) fn positions_rule(&self) -> Positions {
        self.family.math.positions.resolve(self.config)
    }

    /// The biases on scores, where the model has them.
    pub(super) fn score_biases(
        &self,
        index: usize,
        heads: usize,
        scale: f32,
    ) -> Result<Option<ScoreBiases>, ForwardError> {
        if let Some(biases) = self.block_distances(index, heads)? {
            return Ok(Some(ScoreBiases::Distances(biases)));
        }
        if let Some(table) = self.relative_positions(heads)? {
            return Ok(Some(ScoreBiases::Distances(DistanceBiases { table, buckets: USUAL })));
        }
        let Positions::Alibi(alibi) = self.positions_rule() else { return Ok(None) };
        // transformers computes with 8 whatever config.json states, and other engines with what it states.
        let stated = self.config.attention_number("alibi_bias_max")?.filter(|stated| *stated != f64::from(LARGEST));
        match stated {
            None => Ok(Some(ScoreBiases::Slopes(SlopeBiases::new(alibi, heads, scale)))),
            Some(stated) => Err(ForwardError::unsupported(format!("`alibi_bias_max` of {stated}, not {LARGEST}"))),
        }
    }

    /// The biases for distances in a block, from a table of its own or of the first block.
    fn block_distances(&self, index: usize, heads: usize) -> Result<Option<DistanceBiases>, ForwardError> {
        let Some(rule) = self.family.encoder.and_then(|encoder| encoder.block_distances) else { return Ok(None) };
        let number = |key, usual| Ok::<_, ForwardError>(self.config.number(key)?.unwrap_or(usual));
        let buckets = DistanceBuckets {
            count: number("relative_attention_num_buckets", USUAL.count as f64)? as usize,
            farthest: number("relative_attention_max_distance", f64::from(USUAL.farthest))? as f32,
            sees_ahead: self.family.stack_block(self.config, index) != Some(StackBlock::SelfAttention),
        };
        if !buckets.is_usual() {
            let DistanceBuckets { count, farthest, .. } = buckets;
            return Err(ForwardError::unsupported(format!("{count} buckets of distances up to {farthest}")));
        }
        let is_decoder = self.family.stack_block(self.config, index) == Some(StackBlock::SelfAttention);
        let first = if is_decoder { self.config.num_layers.unwrap_or(0) } else { 0 };
        let block = if rule.is_in_every_block { index } else { first };
        let prefix = self.prefix_of_block(block);
        let mut both = self.tensors.meta().iter().zip(self.network.places());
        let at =
            both.position(|(tensor, place)| *place == Place::RelativePositions && tensor.name.starts_with(&prefix));
        let missing = || ForwardError::missing(format!("block {block}"), format!("table `{}`", rule.path));
        let at = at.ok_or_else(missing)?;
        let table = self.tensors.table(at)?;
        match (table.rows, table.columns) == (buckets.count, heads) {
            true => Ok(Some(DistanceBiases { table, buckets })),
            false => {
                let expected = format!("biases of {heads} heads for {} buckets", buckets.count);
                Err(self.tensors.shape_error(at, &expected))
            }
        }
    }

    /// The table of biases for distances, where the model has one.
    fn relative_positions(&self, heads: usize) -> Result<Option<Projection>, ForwardError> {
        if self.family.encoder.is_none_or(|encoder| encoder.relative_positions.is_none()) {
            return Ok(None);
        }
        let Some(at) = self.network.places().iter().position(|place| *place == Place::RelativePositions) else {
            return match self.family.encoder.and_then(|encoder| encoder.relative_positions) {
                None => Ok(None),
                Some(path) => Err(ForwardError::missing("the model", format!("table `{path}`"))),
            };
        };
        let table = self.tensors.table(at)?;
        // MPNet's class computes with 32, whatever config.json states.
        match (table.rows, table.columns) == (USUAL.count, heads) {
            true => Ok(Some(table)),
            false => Err(self.tensors.shape_error(at, &format!("biases of {heads} heads for {} buckets", USUAL.count))),
        }
    }

    /// How many later positions a token sees, in a block with this window.
    pub(super) fn ahead(&self, window: Option<usize>, part: Option<StackBlock>) -> usize {
        if part == Some(StackBlock::SelfAttention) {
            return 0;
        }
        match (self.family.encoder.filter(|encoder| !encoder.is_causal), window) {
            (None, _) => 0,
            (Some(_), None) => usize::MAX,
            (Some(_), Some(window)) => window - 1,
        }
    }

    /// The growth of queries in block `index`.
    pub(super) fn query_growth(&self, index: usize) -> Result<Option<QueryGrowth>, ForwardError> {
        match self.family.math.query_scale {
            QueryScale::One => Ok(None),
            QueryScale::RotaryParameters => {
                let rope = &self.config.rope.main;
                let strength = self.need(rope.query_beta, "rope_parameters.llama_4_scaling_beta")?;
                let length = rope.original_max_positions;
                let length = self.need(length, "rope_parameters.original_max_position_embeddings")?;
                Ok(Some(QueryGrowth { strength: strength as f32, length: length as f32, offset: 0.0 }))
            }
            QueryScale::UnturnedLayers => {
                if !self.config.flag_or("attn_temperature_tuning", true) || rules::is_turned(self, index)? {
                    return Ok(None);
                }
                let strength = self.config.number("attn_scale")?.unwrap_or(0.1) as f32;
                let length = self.config.number("floor_scale")?.unwrap_or(8192.0) as f32;
                Ok(Some(QueryGrowth { strength, length, offset: 1.0 }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_of_other_counts_come_from_two_powers_of_two() {
        assert_eq!(slopes(2), [0.0625, 0.003_906_25]);
        assert_eq!(slopes(3), [0.0625, 0.003_906_25, 0.25]);
        assert_eq!(slopes(4), [0.25, 0.0625, 0.015_625, 0.003_906_25]);
        assert_eq!(slopes(1), [0.003_906_25]);
    }

    #[test]
    fn far_distances_share_buckets() {
        // Values of transformers' MPNetEncoder.relative_position_bucket.
        let found = [-200, -127, -64, -20, -8, -7, -1, 0, 1, 7, 8, 9, 20, 64, 127, 128].map(|far| USUAL.of(far));
        assert_eq!(found, [15, 15, 14, 10, 8, 7, 1, 0, 17, 23, 24, 24, 26, 30, 31, 31]);
        // Of T5Attention._relative_position_bucket for decoders.
        let causal = DistanceBuckets { sees_ahead: false, ..USUAL };
        assert_eq!([-200, -64, -20, -16, -15, -1, 0, 3].map(|far| causal.of(far)), [31, 26, 17, 16, 15, 1, 0, 0]);
    }

    #[test]
    fn sinusoids_are_those_of_the_position_behind_the_offset() {
        let row = |zero, position| {
            let mut row = Vec::new();
            Sinusoids { offset: 2, zero, width: 5, of_width: false }.extend(position, &mut row);
            row
        };
        let close = |row: Vec<f32>, expected: [f32; 5]| row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(row(Some(1), 1), [3f32.sin(), 3e-4f32.sin(), 3f32.cos(), 3e-4f32.cos(), 0.0]));
        assert_eq!(row(Some(3), 1), [0.0; 5]);
        assert_eq!((row(Some(3), 0)[2], row(None, 1).len()), (2f64.cos() as f32, 5));
    }

    #[test]
    fn frequencies_follow_from_the_width() {
        let mut row = Vec::new();
        Sinusoids { offset: 0, zero: None, width: 4, of_width: true }.extend(3, &mut row);
        let expected = [3f32.sin(), 0.03f32.sin(), 3f32.cos(), 0.03f32.cos()];
        assert!(row.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{row:?}");
    }

    #[test]
    fn rounded_biases_have_rounded_positions() {
        let alibi = Alibi { rounded: true, scaled: true };
        let biases = SlopeBiases::new(alibi, 1, 256.0).of(300);
        // bfloat16 has no 257.
        assert_eq!((biases[255], biases[257], biases.len()), (255.0, 256.0, 300));
    }

    #[test]
    fn queries_grow_by_steps() {
        let growth = QueryGrowth { strength: 0.1, length: 16.0, offset: 0.0 };
        assert_eq!((growth.at(15), growth.at(16)), (1.0, 1.0 + 0.1 * 2f32.ln()));
        assert_eq!(QueryGrowth { offset: 1.0, ..growth }.at(15), growth.at(16));
    }
}
