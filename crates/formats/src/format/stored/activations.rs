//! The quantized activations of a checkpoint: inputs and outputs of layers, and attention's
//! queries, keys, values and probabilities. Not the computation.

use super::catalog::ModuleTensors;
use super::scalars;
use kvant_container::{Dtype, TensorView};
use kvant_quant::activation::StaticParameters;
use kvant_quant::scheme::{ActivationScheme, TensorScheme, Timing};
use kvant_weights::import_error::ImportError;

/// The quantization of an activation.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredActivation {
    /// The scheme.
    pub scheme: ActivationScheme,
    /// Calibrated parameters; `None` if nothing is stored.
    pub parameters: Option<StaticParameters>,
}

/// The quantized activations of a linear layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredActivations {
    /// Its input.
    pub input: Option<StoredActivation>,
    /// Its output. Keys and values that are quantized before the rotary embedding are outputs of their layers.
    pub output: Option<StoredActivation>,
}

/// The quantized activations of attention: after the rotary embedding, and keys and values as they enter the cache.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredAttention {
    /// Queries.
    pub query: Option<StoredActivation>,
    /// Keys.
    pub key: Option<StoredActivation>,
    /// Values.
    pub value: Option<StoredActivation>,
    /// The output of the softmax.
    pub probabilities: Option<StoredActivation>,
}

impl StoredActivations {
    /// Returns whether nothing is quantized.
    pub fn is_empty(&self) -> bool {
        *self == StoredActivations::default()
    }
}

impl StoredAttention {
    /// Returns whether nothing is quantized.
    pub fn is_empty(&self) -> bool {
        *self == StoredAttention::default()
    }

    /// The union of both.
    pub(crate) fn or(self, other: StoredAttention) -> StoredAttention {
        StoredAttention {
            query: self.query.or(other.query),
            key: self.key.or(other.key),
            value: self.value.or(other.value),
            probabilities: self.probabilities.or(other.probabilities),
        }
    }
}

/// In which tensors of a module the parameters of an activation are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ParameterNames {
    pub scale: &'static str,
    pub zero_point: &'static str,
    /// The global scale of dynamic block scales.
    pub global_scale: GlobalScaleName,
}

/// A tensor with the scale of scales.
#[derive(Clone, Copy, Debug)]
pub(crate) enum GlobalScaleName {
    /// Holds what block scales are multiplied by.
    Multiplier(&'static str),
    /// Holds their divisor.
    Divisor(&'static str),
}

impl ParameterNames {
    /// The tensors of these names.
    pub const fn new(scale: &'static str, zero_point: &'static str, global_scale: GlobalScaleName) -> ParameterNames {
        ParameterNames { scale, zero_point, global_scale }
    }

    /// An activation of this scheme whose parameters are in these tensors.
    pub fn read(
        self,
        module: &ModuleTensors<'_, '_>,
        scheme: ActivationScheme,
    ) -> Result<StoredActivation, ImportError> {
        let is_self_scaled = matches!(scheme.scheme, TensorScheme::Block(_) | TensorScheme::Cast(_));
        let parameters = match scheme.timing {
            Timing::Dynamic => None,
            _ if is_self_scaled => None,
            Timing::Local => Some(self.global_scale.read(module)?),
            Timing::Static => Some(self.read_static(module, scheme.scheme)?),
        };
        Ok(StoredActivation { scheme, parameters })
    }

    fn read_static(
        self,
        module: &ModuleTensors<'_, '_>,
        scheme: TensorScheme,
    ) -> Result<StaticParameters, ImportError> {
        let view = need(module, self.scale)?;
        let scales = positive(view)?;
        let mut zero_points = module.tensor(self.zero_point).map(zero_points).transpose()?.unwrap_or_default();
        if !zero_points.is_empty() && zero_points.len() != scales.len() {
            let reason = format!("has {} zero points for {} scales", zero_points.len(), scales.len());
            return Err(ImportError::invalid(module.tensor_name(self.zero_point), reason));
        }
        // Files of symmetric schemes may still have zero points.
        let is_asymmetric = matches!(scheme, TensorScheme::Int(int) if int.has_zero_points());
        if !is_asymmetric && zero_points.iter().all(|point| *point == 0.0) {
            zero_points.clear();
        }
        Ok(StaticParameters { scales, zero_points })
    }
}

impl GlobalScaleName {
    fn read(self, module: &ModuleTensors<'_, '_>) -> Result<StaticParameters, ImportError> {
        let scale = match self {
            GlobalScaleName::Multiplier(suffix) => one_scale(need(module, suffix)?)?,
            GlobalScaleName::Divisor(suffix) => 1.0 / one_scale(need(module, suffix)?)?,
        };
        Ok(StaticParameters { scales: vec![scale], zero_points: Vec::new() })
    }
}

fn need<'a>(module: &ModuleTensors<'_, 'a>, suffix: &str) -> Result<TensorView<'a>, ImportError> {
    let missing = || ImportError::missing(module.tensor_name(suffix), "the static quantization of activations");
    module.tensor(suffix).ok_or_else(missing)
}

/// The one scale of a tensor.
fn one_scale(view: TensorView<'_>) -> Result<f32, ImportError> {
    match positive(view)?.as_slice() {
        [scale] => Ok(*scale),
        scales => Err(ImportError::invalid(view.name(), format!("has {} scales; one was expected", scales.len()))),
    }
}

fn positive(view: TensorView<'_>) -> Result<Vec<f32>, ImportError> {
    let scales = scalars::floats(view)?;
    match scales.iter().find(|scale| **scale <= 0.0) {
        Some(scale) => Err(ImportError::invalid(view.name(), format!("a scale is {scale}"))),
        None if scales.is_empty() => Err(ImportError::invalid(view.name(), "is empty")),
        None => Ok(scales),
    }
}

fn zero_points(view: TensorView<'_>) -> Result<Vec<f32>, ImportError> {
    match view.dtype() {
        Dtype::F32 | Dtype::F16 | Dtype::BF16 => scalars::floats(view),
        _ => Ok(scalars::integers(view)?.into_iter().map(|point| point as f32).collect()),
    }
}
