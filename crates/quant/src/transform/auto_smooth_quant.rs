//! AutoSmoothQuant, AMD Quark's search for SmoothQuant's scales: those under which quantized weights *and* inputs change a
//! block's outputs least.

use super::algorithm::{Needs, Transform, TransformRow};
use super::awq::RATIOS;
use super::problem::{Measure, PairError, PairProblem, PairScales, search};
use super::{Candidate, Candidates, Loss, TransformError};
use crate::options::{self, OptionRow, Settings, Values};
use serde::{Deserialize, Serialize};

/// AutoSmoothQuant with its settings.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AutoSmoothQuant {
    /// The number of exponents tried.
    pub ratios: u32,
    /// The distance of outputs from those of the float model.
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

const OPTIONS: &[OptionRow] = &[
    RATIOS,
    OptionRow {
        name: "loss",
        values: Values { text: "mse, mae or rmse", accepts: |text| Loss::named(text).is_some() },
        about: "the distance of outputs from those of the float model",
    },
];

/// The row.
pub(super) fn row() -> TransformRow {
    let about = "smoothquant by the exponent that changes the quantized block's outputs least";
    TransformRow::of(AutoSmoothQuant::DEFAULTS, OPTIONS, about)
}

impl Transform for AutoSmoothQuant {
    fn name(&self) -> &str {
        "autosmoothquant"
    }

    fn settings(&self) -> Settings {
        options::shown(self)
    }

    fn needs(&self) -> Needs {
        Needs::MaximaAndRuns
    }

    fn trials(&self) -> u32 {
        self.ratios
    }

    fn measure(&self) -> Measure {
        Measure { loss: self.loss, with_inputs: true }
    }

    fn find(&self, pair: &mut dyn PairProblem) -> Result<PairScales, PairError> {
        let maxima = pair.inputs().abs_max();
        let limited = self.candidates(&maxima)?.map(|candidate| {
            let scales = pair.within_rows(candidate.scales)?;
            Ok(Candidate { scales, ..candidate })
        });
        let candidates: Vec<Candidate> = limited.collect::<Result<_, PairError>>()?;
        search(pair, candidates, self.measure())
    }

    fn quark_name(&self) -> Option<&'static str> {
        Some("autosmoothquant")
    }
}
