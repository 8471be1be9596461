//! AutoSmoothQuant, AMD Quark's search for SmoothQuant's scales: those under which quantized weights *and* inputs change a
//! block's outputs least.

use super::{Candidates, Loss, TransformError};

/// AutoSmoothQuant with its settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AutoSmoothQuant {
    /// How many exponents are tried.
    pub ratios: u32,
    /// How far outputs are from those of the float model.
    pub loss: Loss,
}

impl AutoSmoothQuant {
    /// As in AMD Quark: ten exponents.
    pub const DEFAULTS: AutoSmoothQuant = AutoSmoothQuant { ratios: 10, loss: Loss::Mse };

    /// The scales to try, of the [largest magnitudes](super::ChannelStatistic::abs_max) of inputs. A trial quantizes `W s`
    /// and `x / s`.
    ///
    /// # Errors
    /// A statistic that is NaN or infinite.
    pub fn candidates<'a>(&self, input_abs_max: &'a [f32]) -> Result<Candidates<'a>, TransformError> {
        Candidates::new(input_abs_max, None, self.ratios)
    }
}
