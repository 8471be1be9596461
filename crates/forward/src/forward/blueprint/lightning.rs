//! The lightning attention of one block.

use super::parts::Parts;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{Activation, NormSite, Part, Recurrent, RecurrentParameter, Role};

/// Lightning attention; see [`kvant_model::family::RecurrentMixer::Lightning`].
#[derive(Clone, Debug)]
pub struct LightningLayer {
    /// The layer that gives a query, a key and a value of each head.
    pub input: Projection,
    /// The layer that gives the gates.
    pub gate: Projection,
    /// What queries, keys and values pass.
    pub activation: Activation,
    /// The rate of decay of each head.
    pub rates: DecayRates,
    /// The norm over all heads.
    pub norm: NormLayer,
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub width: usize,
    /// The output projection.
    pub output: Projection,
}

/// The rates at which the states of heads decay.
#[derive(Clone, Debug, PartialEq)]
pub enum DecayRates {
    /// Those of the checkpoint.
    Stored(Vector),
    /// Those that follow from the numbers of heads and blocks.
    Computed(Vec<f32>),
}

impl LightningLayer {
    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        vec![&self.input, &self.gate, &self.output]
    }

    /// Its small tensors.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> {
        let stored = match &self.rates {
            DecayRates::Stored(rates) => Some(rates),
            DecayRates::Computed(_) => None,
        };
        stored.into_iter()
    }

    /// Elements that it keeps of a sequence: the states of all heads.
    pub fn state_elements(&self) -> usize {
        self.heads * self.width * self.width
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn lightning(
        &self,
        parts: &Parts<'_, '_, 'a>,
        (index, recurrent): (usize, &Recurrent),
        eps: f64,
    ) -> Result<LightningLayer, ForwardError> {
        let heads = self.need(self.config.num_heads, "num_attention_heads")?;
        let width = self.need(self.config.head_dim(), "head_dim")?;
        let too_large = || ForwardError::unsupported("heads of linear attention beyond all sizes");
        let inner = heads.checked_mul(width).ok_or_else(too_large)?;
        let rows = inner.checked_mul(3).ok_or_else(too_large)?;
        let hidden = self.hidden()?;
        let norm = parts.norm(NormSite::RecurrentOutput)?;
        let norm = norm.filter(|norm| norm.weight.iter().map(|weight| weight.length).sum::<usize>() == inner);
        let norm = norm.ok_or_else(|| ForwardError::missing(parts.place(), format!("norm of {inner} elements")))?;
        Ok(LightningLayer {
            input: parts.sized(Role::RecurrentInput, rows, hidden)?,
            gate: parts.sized(Role::RecurrentGate, inner, hidden)?,
            activation: self.activation(),
            rates: self.decay_rates((index, recurrent), heads)?,
            norm: NormLayer { eps: eps as f32, ..norm },
            heads,
            width,
            output: parts.output(Part::Recurrent, hidden, inner)?,
        })
    }

    fn decay_rates(&self, (index, recurrent): (usize, &Recurrent), heads: usize) -> Result<DecayRates, ForwardError> {
        let path = recurrent.parameter(RecurrentParameter::DecayRate);
        let stored = path.map(|path| self.parameter(index, path, heads)).transpose()?.flatten();
        Ok(match stored {
            Some(rates) => DecayRates::Stored(rates),
            None => DecayRates::Computed(decay_rates(heads, (index, self.network.blocks().len()))),
        })
    }
}

/// The rates of the heads of block `index` of `blocks`.
fn decay_rates(heads: usize, (index, blocks): (usize, usize)) -> Vec<f32> {
    const SMALL: f64 = 1e-5;
    let of_block = 1.0 - index as f64 / (blocks as f64 - 1.0 + SMALL) + SMALL;
    (1..=heads).map(|head| ((-8.0 * head as f64 / heads as f64).exp2() * of_block) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_fall_with_heads_and_blocks() {
        let first = decay_rates(4, (0, 3));
        assert_eq!(first.len(), 4);
        assert!((first[0] - 0.25).abs() < 1e-5 && (first[3] - 2f32.powi(-8)).abs() < 1e-6, "{first:?}");
        let second = decay_rates(4, (1, 3));
        assert!((second[0] - 0.125).abs() < 1e-5, "{second:?}");
        // The states of the last block hardly decay.
        assert!(decay_rates(4, (2, 3)).iter().all(|rate| *rate > 0.0 && *rate < 1e-5));
    }
}
