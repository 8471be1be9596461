//! What the recurrent mixers of all kinds have: small tensors that belong to no linear layer, and a convolution.

use super::Sources;
use super::parts::Parts;
use crate::forward::error::ForwardError;
use crate::forward::tensors::Vector;
use kvant_model::family::{Activation, Recurrent, RecurrentParameter};

/// A causal depthwise convolution.
#[derive(Clone, Debug)]
pub struct ConvolutionLayer {
    /// The weight, `[channels, kernel]`; of parts of the channels one after the other.
    pub weight: Vec<Vector>,
    /// The bias of each channel.
    pub bias: Option<Vector>,
    /// Tokens that it sees, the last included.
    pub kernel: usize,
}

impl ConvolutionLayer {
    /// Its small tensors.
    pub fn vectors(&self) -> impl Iterator<Item = &Vector> {
        self.weight.iter().chain(&self.bias)
    }

    /// Elements that it keeps of a sequence: the tokens that it still sees.
    pub fn state_elements(&self) -> usize {
        let elements: usize = self.weight.iter().map(|weight| weight.length).sum();
        (self.kernel - 1) * (elements / self.kernel)
    }
}

impl<'a> Sources<'_, 'a> {
    /// A tensor of the recurrent mixer of block `index`, which must be there.
    pub(super) fn recurrent_parameter(
        &self,
        parts: &Parts<'_, '_, 'a>,
        (index, recurrent): (usize, &Recurrent),
        (which, length): (RecurrentParameter, usize),
    ) -> Result<Vector, ForwardError> {
        let path = recurrent.parameter(which).unwrap_or_default();
        let named = self.parameter(index, &format!("{path}.weight"), length)?;
        let found = named.map_or_else(|| self.parameter(index, path, length), |named| Ok(Some(named)))?;
        found.ok_or_else(|| ForwardError::missing(parts.place(), format!("tensor `{path}`")))
    }

    /// The convolution of the recurrent mixer of block `index`.
    pub(super) fn convolution(
        &self,
        parts: &Parts<'_, '_, 'a>,
        (index, recurrent): (usize, &Recurrent),
        (channels, kernel): (usize, usize),
    ) -> Result<ConvolutionLayer, ForwardError> {
        let too_large = || ForwardError::unsupported("convolutions beyond all sizes");
        let elements = channels.checked_mul(kernel).ok_or_else(too_large)?;
        let which = RecurrentParameter::Convolution;
        let weight = match recurrent.parameter(which) {
            Some(_) => vec![self.recurrent_parameter(parts, (index, recurrent), (which, elements))?],
            None => self.convolutions(parts, (index, recurrent), elements)?,
        };
        let path = format!("{}.bias", recurrent.parameter(which).unwrap_or_default());
        let bias = self.parameter(index, &path, channels)?;
        match bias.is_some() == recurrent.has_convolution_bias(self.config) {
            true => Ok(ConvolutionLayer { weight, bias, kernel }),
            false if bias.is_none() => Err(ForwardError::missing(parts.place(), format!("tensor `{path}`"))),
            false => Err(ForwardError::unsupported(format!("`{path}`, which config.json rules out"))),
        }
    }

    /// The weights of the convolution of a gated delta net in three tensors, of so many elements together. transformers saves equal parts,
    /// wherever queries end.
    fn convolutions(
        &self,
        parts: &Parts<'_, '_, 'a>,
        (index, recurrent): (usize, &Recurrent),
        elements: usize,
    ) -> Result<Vec<Vector>, ForwardError> {
        use RecurrentParameter::{KeyConvolution, QueryConvolution, ValueConvolution};
        let weight = |which: RecurrentParameter| {
            let path = recurrent.parameter(which).unwrap_or_default();
            let found = self.sized_parameter(index, &format!("{path}.weight"), None)?;
            found.ok_or_else(|| ForwardError::missing(parts.place(), format!("tensor `{path}`")))
        };
        let weights = [QueryConvolution, KeyConvolution, ValueConvolution].map(weight);
        let weights = weights.into_iter().collect::<Result<Vec<Vector>, ForwardError>>()?;
        match weights.iter().map(|weight| weight.length).sum::<usize>() == elements {
            true => Ok(weights),
            false => Err(ForwardError::missing(parts.place(), format!("convolution of {elements} elements"))),
        }
    }

    /// The activation behind the convolution of a recurrent mixer.
    pub(super) fn convolution_activation(&self) -> Activation {
        self.config.text("mamba_hidden_act").map_or_else(|| self.activation(), Activation::from_config_name)
    }
}
