//! The token mixer of one block: attention, or a recurrent mixer in its place.

use super::Sources;
use super::attention::AttentionLayer;
use super::gated_delta::GatedDeltaLayer;
use super::parts::Parts;
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::RecurrentMixer;

/// What mixes the tokens of a sequence.
#[derive(Clone, Debug)]
pub enum TokenMixer {
    /// Attention.
    Attention(Box<AttentionLayer>),
    /// A gated delta net.
    GatedDelta(Box<GatedDeltaLayer>),
}

impl TokenMixer {
    /// The attention, where it is that.
    pub fn attention(&self) -> Option<&AttentionLayer> {
        match self {
            TokenMixer::Attention(layer) => Some(layer),
            TokenMixer::GatedDelta(_) => None,
        }
    }

    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        match self {
            TokenMixer::Attention(layer) => layer.layers(),
            TokenMixer::GatedDelta(layer) => layer.layers(),
        }
    }

    /// The layer that reads what its heads give.
    pub fn output(&self) -> &Projection {
        match self {
            TokenMixer::Attention(layer) => &layer.output,
            TokenMixer::GatedDelta(layer) => &layer.output,
        }
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn mixer(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<TokenMixer, ForwardError> {
        let recurrent = self.family.recurrent.filter(|recurrent| recurrent.is_in_block(self.config, index));
        Ok(match recurrent {
            None => TokenMixer::Attention(Box::new(self.attention(parts, index)?)),
            Some(recurrent) => match recurrent.mixer {
                RecurrentMixer::GatedDelta => {
                    TokenMixer::GatedDelta(Box::new(self.gated_delta(parts, index, &recurrent)?))
                }
            },
        })
    }
}
