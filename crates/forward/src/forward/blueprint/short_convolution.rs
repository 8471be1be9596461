//! The short convolution of one block.

use super::Sources;
use super::parts::Parts;
use super::recurrent::ConvolutionLayer;
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::{Part, Recurrent, Role};

/// A short convolution; see [`kvant_model::family::RecurrentMixer::ShortConvolution`].
#[derive(Clone, Debug)]
pub struct ShortConvolutionLayer {
    /// The layer that reads the hidden state, and gives two gates, then what passes the convolution.
    pub input: Projection,
    /// The convolution.
    pub convolution: ConvolutionLayer,
    /// The output projection.
    pub output: Projection,
}

impl<'a> Sources<'_, 'a> {
    pub(super) fn short_convolution(
        &self,
        parts: &Parts<'_, '_, 'a>,
        index: usize,
        recurrent: &Recurrent,
    ) -> Result<ShortConvolutionLayer, ForwardError> {
        const KERNEL: &str = "conv_L_cache";
        let hidden = self.hidden()?;
        let kernel = self.config.number(KERNEL)?.map(|kernel| kernel as usize).filter(|kernel| *kernel > 0);
        let kernel = self.need(kernel, KERNEL)?;
        Ok(ShortConvolutionLayer {
            input: parts.sized(Role::RecurrentInput, 3 * hidden, hidden)?,
            convolution: self.convolution(parts, (index, recurrent), (hidden, kernel))?,
            output: parts.output(Part::Recurrent, hidden, hidden)?,
        })
    }
}
