//! The gated delta net of one block: how queries, keys, values, gates and rates are projected, and its small tensors.

use super::parts::Parts;
use super::recurrent::ConvolutionLayer;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{Activation, NormSite, Part, Recurrent, RecurrentMixer, RecurrentParameter, Role};
use kvant_model::model_config::DeltaConfig;

/// A gated delta net; see [`kvant_model::family::RecurrentMixer::GatedDelta`] and [`kvant_model::family::RecurrentMixer::ChannelDelta`].
#[derive(Clone, Debug)]
pub struct GatedDeltaLayer {
    /// The layers that read the hidden state.
    pub inputs: DeltaInputs,
    /// The convolution.
    pub convolution: ConvolutionLayer,
    /// `A_log`, one for each value head.
    pub decay_log: Vector,
    /// `dt_bias`, one for each value head, or each channel of keys.
    pub step_bias: Vector,
    /// The least `g` of the decays `exp(g)`, where they are bounded.
    pub bound: Option<f32>,
    /// The factor on how strongly heads write.
    pub strength: f32,
    /// The activation behind the convolution.
    pub activation: Activation,
    /// The norm of each head's output.
    pub norm: NormLayer,
    /// The sizes.
    pub sizes: DeltaConfig,
    /// The output projection.
    pub output: Projection,
}

/// The layers that read the hidden state.
#[derive(Clone, Debug)]
pub enum DeltaInputs {
    /// Six layers: queries, keys, values, and the others of [`DeltaInputs::Separate`].
    Single(Box<[Projection; 6]>),
    /// Four layers: all queries, then all keys, then all values in one; the gates on the output; how strongly each value head writes; the
    /// step of each value head's decay.
    Separate(Box<[Projection; 4]>),
    /// Two layers, whose rows are those of one key head after the other: a query, a key, and the values and then the gates of its value
    /// heads; and the strengths, then the steps of these.
    ByKeyHead(Box<[Projection; 2]>),
    /// Layers of a net whose channels have a decay each.
    ByChannel(Box<ChannelDeltaInputs>),
}

/// The layers of a net whose channels have a decay each.
#[derive(Clone, Debug)]
pub struct ChannelDeltaInputs {
    /// Queries, keys and values.
    pub mixed: [Projection; 3],
    /// How strongly each head writes.
    pub strength: Projection,
    /// The steps of decays.
    pub decay: LatentOrNot,
    /// The gates on the output.
    pub gate: LatentOrNot,
}

/// A layer, or two with a latent between them.
#[derive(Clone, Debug)]
pub struct LatentOrNot {
    /// The layer that reads the hidden state.
    pub first: Projection,
    /// That which reads the latent.
    pub second: Option<Projection>,
}

impl DeltaInputs {
    /// Those that read the hidden state.
    pub fn first(&self) -> Vec<&Projection> {
        match self {
            DeltaInputs::Single(layers) => layers.iter().collect(),
            DeltaInputs::Separate(layers) => layers.iter().collect(),
            DeltaInputs::ByKeyHead(layers) => layers.iter().collect(),
            DeltaInputs::ByChannel(layers) => {
                layers.mixed.iter().chain([&layers.strength, &layers.decay.first, &layers.gate.first]).collect()
            }
        }
    }

    /// All of them.
    pub fn layers(&self) -> Vec<&Projection> {
        let behind_latents = match self {
            DeltaInputs::ByChannel(layers) => layers.decay.second.iter().chain(&layers.gate.second).collect(),
            DeltaInputs::Single(_) | DeltaInputs::Separate(_) | DeltaInputs::ByKeyHead(_) => Vec::new(),
        };
        self.first().into_iter().chain(behind_latents).collect()
    }

    /// Returns whether each channel of keys has a separate decay.
    pub fn by_channel(&self) -> bool {
        matches!(self, DeltaInputs::ByChannel(_))
    }
}

impl GatedDeltaLayer {
    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        let mut layers = self.inputs.layers();
        layers.push(&self.output);
        layers
    }

    /// Elements that it keeps of a sequence: the states of all value heads, and the tokens that its convolution still sees.
    pub fn state_elements(&self) -> usize {
        let DeltaConfig { value_heads, key_dim, value_dim, .. } = self.sizes;
        value_heads * key_dim * value_dim + self.convolution.state_elements()
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn gated_delta(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        recurrent: &Recurrent,
    ) -> Result<GatedDeltaLayer, ForwardError> {
        let sizes = self.need(self.config.delta, "linear_num_key_heads")?;
        if !sizes.value_heads.is_multiple_of(sizes.key_heads) {
            let heads = format!("{} value heads on {} key heads", sizes.value_heads, sizes.key_heads);
            return Err(ForwardError::unsupported(heads));
        }
        let too_large = || ForwardError::unsupported("heads of linear attention beyond all sizes");
        let (values, channels) = (sizes.values().ok_or_else(too_large)?, sizes.channels().ok_or_else(too_large)?);
        let parameter = |which: RecurrentParameter, length: usize| {
            self.recurrent_parameter(parts, (index, recurrent), (which, length))
        };
        let norm = parts.listed_norm(NormSite::RecurrentOutput)?;
        let norm =
            norm.ok_or_else(|| ForwardError::missing(parts.place(), "norm of the output of linear attention"))?;
        if norm.weight.iter().map(|weight| weight.length).sum::<usize>() != sizes.value_dim {
            let expected = format!("norm of {} elements, the width of a value head", sizes.value_dim);
            return Err(ForwardError::missing(parts.place(), expected));
        }
        let (doubled, eps) = match recurrent.mixer {
            RecurrentMixer::GatedDelta { doubled_if, eps } => (doubled_if, eps),
            _ => (None, None),
        };
        let inputs = self.delta_inputs(parts, recurrent, &sizes, (channels, values))?;
        let steps = if inputs.by_channel() { sizes.keys().ok_or_else(too_large)? } else { sizes.value_heads };
        let doubles = doubled.is_some_and(|(key, default)| self.config.flag_or(key, default));
        Ok(GatedDeltaLayer {
            inputs,
            convolution: self.convolution(parts, (index, recurrent), (channels, sizes.kernel))?,
            decay_log: parameter(RecurrentParameter::DecayLog, sizes.value_heads)?,
            step_bias: parameter(RecurrentParameter::StepBias, steps)?,
            bound: self.decay_bound(recurrent)?,
            strength: if doubles { 2.0 } else { 1.0 },
            activation: self.activation(),
            norm: NormLayer { eps: eps.map_or(norm.eps, |eps| eps as f32), ..norm },
            sizes,
            output: parts.output(Part::Recurrent, self.hidden()?, values)?,
        })
    }

    /// The least `g` of the decays of a net.
    fn decay_bound(&self, recurrent: &Recurrent) -> Result<Option<f32>, ForwardError> {
        match recurrent.mixer {
            RecurrentMixer::ChannelDelta { is_bounded: true } if self.config.flag_or("kda_safe_gate", true) => {
                Ok(Some(self.config.number("kda_lower_bound")?.unwrap_or(-5.0) as f32))
            }
            _ => Ok(None),
        }
    }

    fn delta_inputs(
        &self,
        parts: &Parts<'_, '_, 'a>,
        recurrent: &Recurrent,
        sizes: &DeltaConfig,
        (channels, values): (usize, usize),
    ) -> Result<DeltaInputs, ForwardError> {
        let (hidden, heads) = (self.hidden()?, sizes.value_heads);
        if matches!(recurrent.mixer, RecurrentMixer::ChannelDelta { .. }) {
            return self.channel_delta_inputs(parts, sizes, (channels, values));
        }
        if parts.find(|linear| linear.role == Role::RecurrentInputGate).is_some() {
            return Ok(DeltaInputs::ByKeyHead(Box::new([
                parts.sized(Role::RecurrentInputGate, channels + values, hidden)?,
                parts.sized(Role::RecurrentRates, 2 * heads, hidden)?,
            ])));
        }
        if parts.find(|linear| linear.role == Role::RecurrentQuery).is_some() {
            let keys = (channels - values) / 2;
            return Ok(DeltaInputs::Single(Box::new([
                parts.sized(Role::RecurrentQuery, keys, hidden)?,
                parts.sized(Role::RecurrentKey, keys, hidden)?,
                parts.sized(Role::RecurrentValue, values, hidden)?,
                parts.sized(Role::RecurrentGate, values, hidden)?,
                parts.sized(Role::RecurrentStrength, heads, hidden)?,
                parts.sized(Role::RecurrentDecay, heads, hidden)?,
            ])));
        }
        Ok(DeltaInputs::Separate(Box::new([
            parts.sized(Role::RecurrentInput, channels, hidden)?,
            parts.sized(Role::RecurrentGate, values, hidden)?,
            parts.sized(Role::RecurrentStrength, heads, hidden)?,
            parts.sized(Role::RecurrentDecay, heads, hidden)?,
        ])))
    }

    /// The layers of a net whose channels have a decay each; latents, where there are some, are as wide as a value.
    fn channel_delta_inputs(
        &self,
        parts: &Parts<'_, '_, 'a>,
        sizes: &DeltaConfig,
        (channels, values): (usize, usize),
    ) -> Result<DeltaInputs, ForwardError> {
        let (hidden, keys, latent) = (self.hidden()?, (channels - values) / 2, sizes.value_dim);
        if sizes.key_heads != sizes.value_heads {
            let heads = format!("{} value heads on {} key heads", sizes.value_heads, sizes.key_heads);
            return Err(ForwardError::unsupported(format!("decays of channels in {heads}")));
        }
        Ok(DeltaInputs::ByChannel(Box::new(ChannelDeltaInputs {
            mixed: [
                parts.sized(Role::RecurrentQuery, keys, hidden)?,
                parts.sized(Role::RecurrentKey, keys, hidden)?,
                parts.sized(Role::RecurrentValue, values, hidden)?,
            ],
            strength: parts.sized(Role::RecurrentStrength, sizes.value_heads, hidden)?,
            decay: match parts.find(|linear| linear.role == Role::RecurrentSteps) {
                Some(_) => LatentOrNot { first: parts.sized(Role::RecurrentSteps, keys, hidden)?, second: None },
                None => LatentOrNot {
                    first: parts.sized(Role::RecurrentDecayDown, latent, hidden)?,
                    second: Some(parts.sized(Role::RecurrentDecayUp, keys, latent)?),
                },
            },
            gate: match parts.find(|linear| linear.role == Role::RecurrentGate) {
                Some(_) => LatentOrNot { first: parts.sized(Role::RecurrentGate, values, hidden)?, second: None },
                None => LatentOrNot {
                    first: parts.sized(Role::RecurrentGateDown, latent, hidden)?,
                    second: Some(parts.sized(Role::RecurrentGateUp, values, latent)?),
                },
            },
        })))
    }
}
