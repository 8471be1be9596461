//! Observation of activations batch by batch, outside of a run.

use super::matrix::Matrix;
use super::of_activation;
use crate::error::{Error, ErrorKind};
use kvant_numeric::ComputeDType;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::{ActivationStatistic, StaticParameters};
use kvant_quant::scheme::{ActivationScheme, SchemeError, TensorScheme, Timing};

/// What an observer keeps of the batches that it has seen: as much as its parameters need, whatever their number.
#[derive(Clone, Debug)]
pub struct TensorObserver {
    scheme: TensorScheme,
    statistic: ActivationStatistic,
    /// The precision of the first batch.
    arithmetic: Option<ComputeDType>,
}

impl TensorObserver {
    /// An observer of activations of a scheme, whose part for the observer says which: `int8:tensor:percentile99.9`.
    ///
    /// # Errors
    /// *Usage* for what is no scheme, *unsupported* for schemes that store nothing.
    pub fn new(scheme: &str) -> Result<TensorObserver, Error> {
        let tensor = scheme.split_once('!').map_or(scheme, |(tensor, _)| tensor);
        let tensor: TensorScheme = tensor.parse().map_err(|error: SchemeError| {
            Error::new(ErrorKind::Usage, error.to_string()).with_hint(Some(error.hint().to_owned()))
        })?;
        let timing = match tensor {
            TensorScheme::Float(float) if float.scale.has_global_scale() => Timing::Local,
            _ => Timing::Static,
        };
        let statistic = ActivationStatistic::new(ActivationScheme { scheme: tensor, timing });
        let statistic = statistic.map_err(|error| of_activation(&error))?;
        Ok(TensorObserver { scheme: tensor, statistic, arithmetic: None })
    }

    /// Its scheme.
    pub fn scheme(&self) -> TensorScheme {
        self.scheme
    }

    /// Takes a batch in: rows are tokens, columns features. NaN and infinities are left out and counted.
    pub fn update(&mut self, batch: &Matrix<'_>) {
        self.arithmetic.get_or_insert(batch.dtype().arithmetic());
        self.statistic.update(Isa::best(), &batch.values(), batch.shape().1);
    }

    /// The least and the greatest value of all batches; `None` before the first.
    pub fn range(&self) -> Option<(f32, f32)> {
        self.statistic.range().map(|range| (range.min, range.max))
    }

    /// Values that were NaN or infinite.
    pub fn not_finite(&self) -> u64 {
        self.statistic.not_finite()
    }

    /// The parameters that cover what was seen.
    ///
    /// # Errors
    /// *Usage* before the first finite value.
    pub fn parameters(&self) -> Result<StaticParameters, Error> {
        let arithmetic = self.arithmetic.unwrap_or(ComputeDType::F32);
        self.statistic.parameters(self.scheme, arithmetic).ok_or_else(|| {
            let error = Error::new(ErrorKind::Usage, "the observer has seen no finite value");
            error.with_hint(Some("update it with a batch first".to_owned()))
        })
    }
}
