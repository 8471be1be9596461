//! The Mamba 2 mixer of one block.

use super::parts::Parts;
use super::recurrent::ConvolutionLayer;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{Activation, Mamba2Norm, NormSite, Part, Recurrent, RecurrentParameter, Role};
use kvant_model::model_config::MambaConfig;

/// A Mamba 2 mixer; see [`kvant_model::family::RecurrentMixer::Mamba2`].
#[derive(Clone, Debug)]
pub struct Mamba2Layer {
    /// The layer that reads the hidden state, and gives the gate, what passes the convolution, and the step of each head.
    pub input: Projection,
    /// The convolution.
    pub convolution: ConvolutionLayer,
    /// The activation behind it.
    pub activation: Activation,
    /// `A_log`, one for each head.
    pub decay_log: Vector,
    /// `dt_bias`, one for each head.
    pub step_bias: Vector,
    /// `D`, one for each head.
    pub skip: Vector,
    /// The norm at the gate.
    pub norm: Option<NormLayer>,
    /// Equal parts of the heads' outputs that it normalises each.
    pub norm_parts: usize,
    /// Whether the gate is behind the norm.
    pub gate_last: bool,
    /// The factors on what the first layer gives: the gate, `x`, `b`, `c` and the steps.
    pub factors: [f32; 5],
    /// The sizes.
    pub sizes: MambaConfig,
    /// The output projection.
    pub output: Projection,
}

impl Mamba2Layer {
    /// Its small tensors.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> {
        self.convolution.vectors().chain([&self.decay_log, &self.step_bias, &self.skip])
    }

    /// Elements that it keeps of a sequence: the states of all heads, and the tokens that its convolution still sees.
    pub fn state_elements(&self) -> usize {
        let MambaConfig { heads, head_dim, state, .. } = self.sizes;
        heads * head_dim * state + self.convolution.state_elements()
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn mamba2(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        recurrent: &Recurrent,
        norm: Mamba2Norm,
    ) -> Result<Mamba2Layer, ForwardError> {
        let sizes = self.need(self.config.mamba, "mamba_n_heads")?;
        let MambaConfig { heads, groups, kernel, .. } = sizes;
        if !heads.is_multiple_of(groups) {
            return Err(ForwardError::unsupported(format!("{heads} heads in {groups} groups")));
        }
        let (hidden, counts) = (self.hidden()?, sizes.inner().zip(sizes.channels()).zip(sizes.rows()));
        let ((inner, channels), rows) =
            counts.ok_or_else(|| ForwardError::unsupported("state-space layers beyond all sizes"))?;
        let parameter = |which| self.recurrent_parameter(parts, (index, recurrent), (which, heads));
        let has_norm = norm != Mamba2Norm::PerGroupIfAny || self.config.flag_or("mamba_rms_norm", false);
        let gate_last = norm == Mamba2Norm::PerGroupIfAny && self.config.flag_or("mamba_norm_before_gate", true);
        let factor = |which| self.listed_multiplier("ssm_multipliers", which);
        Ok(Mamba2Layer {
            input: parts.sized(Role::RecurrentInputGate, rows, hidden)?,
            convolution: self.convolution(parts, (index, recurrent), (channels, kernel))?,
            activation: self.convolution_activation(),
            decay_log: parameter(RecurrentParameter::DecayLog)?,
            step_bias: parameter(RecurrentParameter::StepBias)?,
            skip: parameter(RecurrentParameter::Skip)?,
            norm: if has_norm { Some(self.norm_at_gate(parts, inner)?) } else { None },
            norm_parts: if norm == Mamba2Norm::AllHeads { 1 } else { groups },
            gate_last,
            factors: [factor(0)?, factor(1)?, factor(2)?, factor(3)?, factor(4)?],
            sizes,
            output: parts.output(Part::Recurrent, hidden, inner)?,
        })
    }

    fn norm_at_gate(&self, parts: &Parts<'_, '_, 'a>, inner: usize) -> Result<NormLayer, ForwardError> {
        let norm = parts.norm(NormSite::RecurrentOutput)?;
        let norm = norm.filter(|norm| norm.weight.iter().map(|weight| weight.length).sum::<usize>() == inner);
        norm.ok_or_else(|| ForwardError::missing(parts.place(), format!("norm of {inner} elements at its gate")))
    }
}
