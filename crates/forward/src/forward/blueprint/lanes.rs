//! Several residual streams side by side (AltUp, arXiv 2301.13310; Gemma 3n): each block computes on one of them and updates all.

use super::parts::Parts;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{NormSite, Role};

/// What stands around the blocks.
#[derive(Clone, Debug)]
pub struct Lanes {
    /// The number of streams.
    pub count: usize,
    /// The stream that blocks compute on.
    pub active: usize,
    /// From the embeddings to each stream but the first.
    pub inputs: Vec<Projection>,
    /// From each stream but the first to what the last norm reads the mean of.
    pub outputs: Vec<Projection>,
}

/// What a block does with the streams: with `m(x) = tanh(router(norm(x) / width))` it predicts each stream `j` as
/// `p_j = h_j + sum_i P(m(h_a))_ji h_i`, computes `y` from `p_a` of the active stream `a`, and gives `p_j + (1 + C(m(y))_j) (y - p_a)`.
#[derive(Clone, Debug)]
pub struct LaneMixer {
    /// The norm of what the router reads.
    pub norm: NormLayer,
    /// The router.
    pub router: Projection,
    /// `P`.
    pub prediction: Projection,
    /// `C`.
    pub correction: Projection,
    /// The factors on the active stream, for the gate on the block's own input.
    pub output_scale: Option<Vector>,
}

/// A product of two narrow layers that reads what attention reads (LAuReL, arXiv 2411.07501): with the norm's output `n`, the stream behind
/// attention is `(x + attention(n) + n + norm(W_2 W_1 n)) / sqrt(2)`.
#[derive(Clone, Debug)]
pub struct LowRank {
    /// `W_1`.
    pub down: Projection,
    /// `W_2`.
    pub up: Projection,
    /// The norm.
    pub norm: NormLayer,
}

impl LaneMixer {
    /// All its linear layers.
    pub fn layers(&self) -> [&Projection; 3] {
        [&self.router, &self.prediction, &self.correction]
    }
}

impl<'a> Sources<'_, 'a> {
    /// The streams of the model, where it has several.
    pub(super) fn lanes(&self, trunk: &Parts<'_, '_, 'a>) -> Result<Option<Lanes>, ForwardError> {
        if !self.family.linears().any(|(role, _)| role == Role::LaneRouter) {
            return Ok(None);
        }
        let number = |key| Ok::<_, ForwardError>(self.config.number(key)?.map(|number| number as usize));
        let count = self.need(number("altup_num_inputs")?.filter(|count| *count > 0), "altup_num_inputs")?;
        let active = number("altup_active_idx")?.unwrap_or(0);
        if active >= count {
            return Err(ForwardError::unsupported(format!("`altup_active_idx` of {active} in {count} streams")));
        }
        let hidden = self.hidden()?;
        let both = [Role::LaneInput, Role::LaneOutput].map(|role| trunk.numbered(role, (count - 1, hidden)));
        let [inputs, outputs] = both;
        Ok(Some(Lanes { count, active, inputs: inputs?, outputs: outputs? }))
    }

    /// What a block does with the streams.
    pub(super) fn lane_mixer(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        lanes: &Lanes,
    ) -> Result<LaneMixer, ForwardError> {
        let (hidden, count) = (self.hidden()?, lanes.count);
        let square = count.checked_mul(count).ok_or_else(|| ForwardError::unsupported("streams beyond all sizes"))?;
        let norm = parts.listed_norm(NormSite::LaneRouter)?;
        let scales = self.config.flag_or("altup_correct_scale", true);
        let missing = |what: &str| ForwardError::missing(parts.place(), what.to_owned());
        let scale = self.parameter(index, "correct_output_scale", hidden)?;
        Ok(LaneMixer {
            norm: norm.ok_or_else(|| missing("norm of the router of its streams"))?,
            router: parts.sized(Role::LaneRouter, count, hidden)?,
            prediction: parts.sized(Role::LanePrediction, square, count)?,
            correction: parts.sized(Role::LaneCorrection, count, count)?,
            output_scale: match scales {
                true => Some(scale.ok_or_else(|| missing("factors on its active stream"))?),
                false => None,
            },
        })
    }

    /// The narrow layers beside attention.
    pub(super) fn low_rank(&self, parts: &Parts<'_, '_, 'a>) -> Result<Option<LowRank>, ForwardError> {
        const KEY: &str = "laurel_rank";
        if !self.family.linears().any(|(role, _)| role == Role::LowRankDown) {
            return Ok(None);
        }
        let rank = self.config.number(KEY)?.map(|rank| rank as usize);
        let (hidden, rank) = (self.hidden()?, self.need(rank.filter(|rank| *rank > 0), KEY)?);
        let norm = parts.listed_norm(NormSite::LowRankOutput)?;
        let missing = || ForwardError::missing(parts.place(), "norm of the layers beside its attention");
        Ok(Some(LowRank {
            down: parts.sized(Role::LowRankDown, rank, hidden)?,
            up: parts.sized(Role::LowRankUp, hidden, rank)?,
            norm: norm.ok_or_else(missing)?,
        }))
    }
}
