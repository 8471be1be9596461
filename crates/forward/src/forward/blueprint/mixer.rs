//! The token mixer of one block: attention, or a recurrent mixer in its place.

use super::Sources;
use super::attention::AttentionLayer;
use super::gated_delta::GatedDeltaLayer;
use super::lightning::LightningLayer;
use super::mamba1::Mamba1Layer;
use super::mamba2::Mamba2Layer;
use super::parts::Parts;
use super::short_convolution::ShortConvolutionLayer;
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::RecurrentMixer;

/// Two mixers that read the same norm, and whose outputs are added.
#[derive(Clone, Debug)]
pub struct ParallelMixers {
    /// Attention.
    pub attention: AttentionLayer,
    /// The recurrent mixer.
    pub recurrent: Mamba2Layer,
    /// The factors on the input and the output of attention.
    pub attention_factors: [f32; 2],
    /// Those of the recurrent mixer.
    pub recurrent_factors: [f32; 2],
}

/// What mixes the tokens of a sequence.
#[derive(Clone, Debug)]
pub enum TokenMixer {
    /// Attention.
    Attention(Box<AttentionLayer>),
    /// A gated delta net.
    GatedDelta(Box<GatedDeltaLayer>),
    /// Lightning attention.
    Lightning(Box<LightningLayer>),
    /// A short convolution.
    ShortConvolution(Box<ShortConvolutionLayer>),
    /// A Mamba mixer.
    Mamba1(Box<Mamba1Layer>),
    /// A Mamba 2 mixer.
    Mamba2(Box<Mamba2Layer>),
    /// Attention and a Mamba 2 mixer side by side.
    Both(Box<ParallelMixers>),
    /// Nothing: the block has a feed-forward network only.
    Absent,
}

impl TokenMixer {
    /// The attention, where it is that.
    pub fn attention(&self) -> Option<&AttentionLayer> {
        match self {
            TokenMixer::Attention(layer) => Some(layer),
            TokenMixer::Both(both) => Some(&both.attention),
            TokenMixer::GatedDelta(_)
            | TokenMixer::Lightning(_)
            | TokenMixer::ShortConvolution(_)
            | TokenMixer::Mamba1(_)
            | TokenMixer::Mamba2(_)
            | TokenMixer::Absent => None,
        }
    }

    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        match self {
            TokenMixer::Attention(layer) => layer.layers(),
            TokenMixer::GatedDelta(layer) => layer.layers(),
            TokenMixer::Lightning(layer) => layer.layers(),
            TokenMixer::ShortConvolution(layer) => vec![&layer.input, &layer.output],
            TokenMixer::Mamba1(layer) => layer.layers(),
            TokenMixer::Mamba2(layer) => vec![&layer.input, &layer.output],
            TokenMixer::Both(both) => {
                let recurrent = [&both.recurrent.input, &both.recurrent.output];
                both.attention.layers().into_iter().chain(recurrent).collect()
            }
            TokenMixer::Absent => Vec::new(),
        }
    }

    /// Elements that it keeps of a sequence of so many tokens.
    pub fn state_elements(&self, tokens: usize) -> usize {
        match self {
            TokenMixer::Attention(layer) => layer.cache_elements(tokens),
            TokenMixer::GatedDelta(layer) => layer.state_elements(),
            TokenMixer::Lightning(layer) => layer.state_elements(),
            TokenMixer::ShortConvolution(layer) => layer.convolution.state_elements(),
            TokenMixer::Mamba1(layer) => layer.state_elements(),
            TokenMixer::Mamba2(layer) => layer.state_elements(),
            TokenMixer::Both(both) => {
                both.attention.cache_elements(tokens).saturating_add(both.recurrent.state_elements())
            }
            TokenMixer::Absent => 0,
        }
    }

    /// The layer that reads what its heads give, where there is one alone.
    pub fn output(&self) -> Option<&Projection> {
        match self {
            TokenMixer::Attention(layer) => Some(&layer.output),
            TokenMixer::GatedDelta(layer) => Some(&layer.output),
            TokenMixer::Lightning(layer) => Some(&layer.output),
            TokenMixer::ShortConvolution(layer) => Some(&layer.output),
            TokenMixer::Mamba1(layer) => Some(&layer.output),
            TokenMixer::Mamba2(layer) => Some(&layer.output),
            TokenMixer::Both(_) | TokenMixer::Absent => None,
        }
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn mixer(&self, parts: &Parts<'_, '_, 'a>, index: usize) -> Result<TokenMixer, ForwardError> {
        let branches = self.family.branches(self.config, index);
        Ok(match self.family.recurrent.filter(|_| branches.recurrent) {
            None if !branches.attention => TokenMixer::Absent,
            None => TokenMixer::Attention(Box::new(self.attention(parts, index)?)),
            Some(recurrent) => match recurrent.mixer {
                RecurrentMixer::GatedDelta { .. } | RecurrentMixer::ChannelDelta { .. } => {
                    TokenMixer::GatedDelta(Box::new(self.gated_delta(parts, index, &recurrent)?))
                }
                RecurrentMixer::Lightning { eps } => {
                    TokenMixer::Lightning(Box::new(self.lightning(parts, (index, &recurrent), eps)?))
                }
                RecurrentMixer::ShortConvolution => {
                    TokenMixer::ShortConvolution(Box::new(self.short_convolution(parts, index, &recurrent)?))
                }
                RecurrentMixer::Mamba1 { norms } => {
                    TokenMixer::Mamba1(Box::new(self.mamba1(parts, index, &recurrent, norms)?))
                }
                RecurrentMixer::Mamba2 { norm } => {
                    let layer = self.mamba2(parts, index, &recurrent, norm)?;
                    match branches.attention {
                        true => TokenMixer::Both(Box::new(self.both(self.attention(parts, index)?, layer)?)),
                        false => TokenMixer::Mamba2(Box::new(layer)),
                    }
                }
            },
        })
    }

    fn both(&self, attention: AttentionLayer, recurrent: Mamba2Layer) -> Result<ParallelMixers, ForwardError> {
        let factor = |key| self.branch_multiplier(key);
        Ok(ParallelMixers {
            attention,
            recurrent,
            attention_factors: [factor("attention_in_multiplier")?, factor("attention_out_multiplier")?],
            recurrent_factors: [factor("ssm_in_multiplier")?, factor("ssm_out_multiplier")?],
        })
    }
}
