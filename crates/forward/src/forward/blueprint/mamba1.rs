//! The Mamba mixer of one block.

use super::parts::Parts;
use super::recurrent::ConvolutionLayer;
use super::{NormLayer, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{Projection, Vector};
use kvant_model::family::{Activation, Mamba1Norms, NormKind, NormSite, Part, Recurrent, RecurrentParameter, Role};
use kvant_model::model_config::Mamba1Config;

/// A Mamba mixer; see [`kvant_model::family::RecurrentMixer::Mamba1`].
#[derive(Clone, Debug)]
pub struct Mamba1Layer {
    /// The layer that reads the hidden state, and gives what passes the convolution, then the gate.
    pub input: Projection,
    /// The convolution.
    pub convolution: ConvolutionLayer,
    /// The activation behind it.
    pub activation: Activation,
    /// The layer that reads what the convolution gives, and gives the latent of the steps, what is written and what is read.
    pub choice: Projection,
    /// The norms of these three.
    pub norms: Option<[NormLayer; 3]>,
    /// The layer that gives the step of each channel from their latent.
    pub step: Projection,
    /// `A_log`, `[channels, size of the state]`.
    pub decay_log: Vector,
    /// `D`, one for each channel.
    pub skip: Vector,
    /// The sizes.
    pub sizes: Mamba1Config,
    /// The output projection.
    pub output: Projection,
}

impl Mamba1Layer {
    /// All its linear layers.
    pub fn layers(&self) -> Vec<&Projection> {
        vec![&self.input, &self.choice, &self.step, &self.output]
    }

    /// Its small tensors.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> {
        self.convolution.vectors().chain([&self.decay_log, &self.skip])
    }

    /// Elements that it keeps of a sequence: the states of all channels, and the tokens that its convolution still sees.
    pub fn state_elements(&self) -> usize {
        self.sizes.inner * self.sizes.state + self.convolution.state_elements()
    }
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn mamba1(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        recurrent: &Recurrent,
        norms: Mamba1Norms,
    ) -> Result<Mamba1Layer, ForwardError> {
        let sizes = self.need(self.config.mamba1, "mamba_d_state")?;
        let Mamba1Config { inner, state, rank, kernel } = sizes;
        let too_large = || ForwardError::unsupported("state-space layers beyond all sizes");
        let (rows, states) = (sizes.rows().ok_or_else(too_large)?, inner.checked_mul(state).ok_or_else(too_large)?);
        let chosen = sizes.chosen().ok_or_else(too_large)?;
        let parameter = |which, length| self.recurrent_parameter(parts, (index, recurrent), (which, length));
        Ok(Mamba1Layer {
            input: parts.sized(Role::RecurrentInputGate, rows, self.hidden()?)?,
            convolution: self.convolution(parts, (index, recurrent), (inner, kernel))?,
            activation: self.convolution_activation(),
            choice: parts.sized(Role::RecurrentChoice, chosen, inner)?,
            norms: self.mamba1_norms(parts, norms, [rank, state, state])?,
            step: parts.sized(Role::RecurrentStep, inner, rank)?,
            decay_log: parameter(RecurrentParameter::DecayLog, states)?,
            skip: parameter(RecurrentParameter::Skip, inner)?,
            sizes,
            output: parts.output(Part::Recurrent, self.hidden()?, inner)?,
        })
    }

    /// The norms of the steps' latent, of what is written and of what is read.
    fn mamba1_norms(
        &self,
        parts: &Parts<'_, '_, 'a>,
        norms: Mamba1Norms,
        widths: [usize; 3],
    ) -> Result<Option<[NormLayer; 3]>, ForwardError> {
        let plain = |eps: f64| NormLayer { kind: NormKind::Rms, weight: Vec::new(), bias: Vec::new(), eps: eps as f32 };
        let stored = |site: NormSite, width: usize| {
            let norm = parts.listed_norm(site)?;
            let norm = norm.filter(|norm| norm.weight.iter().map(|weight| weight.length).sum::<usize>() == width);
            norm.ok_or_else(|| ForwardError::missing(parts.place(), format!("norm of {width} elements in its mixer")))
        };
        let sites = [NormSite::RecurrentStep, NormSite::RecurrentWrites, NormSite::RecurrentReads];
        Ok(match norms {
            Mamba1Norms::None => None,
            Mamba1Norms::Plain => {
                let norm = plain(self.config.number("mixer_rms_eps")?.unwrap_or(1e-6));
                Some([norm.clone(), norm.clone(), norm])
            }
            Mamba1Norms::Weighted => {
                let [step, writes, reads] = [0, 1, 2].map(|which| stored(sites[which], widths[which]));
                Some([step?, writes?, reads?])
            }
        })
    }
}
