//! AWQ (arXiv 2306.00978): the scales under which weight-only quantization changes a block's outputs least, then limits of
//! weights.

use super::{Candidates, Clip, Loss, TransformError};

/// AWQ with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Awq {
    /// How many exponents are tried.
    pub ratios: u32,
    /// Whether scales are divided by a power of the weights' relative means too, as llm-compressor and AutoAWQ may do.
    pub duo_scaling: bool,
    /// The search of limits that follows, if any.
    pub clip: Option<Clip>,
}

impl Awq {
    /// As in AMD Quark: twenty exponents of the inputs alone, then limits.
    pub const DEFAULTS: Awq = Awq { ratios: 20, duo_scaling: false, clip: Some(Clip::DEFAULTS) };

    /// How far outputs are from those of the float model: each trial weight is `Q(W s) / s`.
    pub const LOSS: Loss = Loss::Mse;

    /// The scales to try, of the [mean magnitudes](super::ChannelStatistic::abs_mean) of inputs and the
    /// [relative means](super::WeightStatistic::relative_mean) of weights, which count with
    /// [`duo_scaling`](Self::duo_scaling) only.
    ///
    /// # Errors
    /// A statistic that is NaN or infinite, or statistics of different channels.
    pub fn candidates<'a>(
        &self,
        input_mean: &'a [f32],
        weight_mean: &'a [f32],
    ) -> Result<Candidates<'a>, TransformError> {
        Candidates::new(input_mean, self.duo_scaling.then_some(weight_mean), self.ratios)
    }
}
