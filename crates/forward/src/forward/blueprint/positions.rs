//! How positions enter attention besides rotary embeddings: biases on scores, and a factor on queries. Computes numbers of single
//! positions; where they are applied is in `attention.rs`.

use super::{Sources, rules};
use crate::forward::error::ForwardError;
use kvant_model::family::{Alibi, Positions, QueryScale};
use kvant_numeric::linalg::Precision;

/// Biases on scores: see [`Alibi`].
#[derive(Clone, Debug, PartialEq)]
pub struct ScoreBiases {
    /// The slope of each query head.
    slopes: Vec<f32>,
    /// The precision of slopes, positions and biases.
    precision: Precision,
    /// The factor on biases.
    factor: f32,
}

impl ScoreBiases {
    fn new(alibi: Alibi, heads: usize, scale: f32) -> ScoreBiases {
        let precision = if alibi.rounded { Precision::Bf16 } else { Precision::F32 };
        let slopes = slopes(heads).into_iter().map(|slope| precision.round(slope)).collect();
        ScoreBiases { slopes, precision, factor: if alibi.scaled { scale } else { 1.0 } }
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

impl Sources<'_, '_> {
    /// The positions of the model.
    pub(super) fn positions_rule(&self) -> Positions {
        self.family.math.positions.resolve(self.config)
    }

    /// The biases on scores, where the model has them.
    pub(super) fn score_biases(&self, heads: usize, scale: f32) -> Result<Option<ScoreBiases>, ForwardError> {
        let Positions::Alibi(alibi) = self.positions_rule() else { return Ok(None) };
        // transformers computes with 8 whatever config.json states, and other engines with what it states.
        let stated = self.config.attention_number("alibi_bias_max")?.filter(|stated| *stated != f64::from(LARGEST));
        match stated {
            None => Ok(Some(ScoreBiases::new(alibi, heads, scale))),
            Some(stated) => Err(ForwardError::unsupported(format!("`alibi_bias_max` of {stated}, not {LARGEST}"))),
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
    fn rounded_biases_have_rounded_positions() {
        let alibi = Alibi { rounded: true, scaled: true };
        let biases = ScoreBiases::new(alibi, 1, 256.0).of(300);
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
