//! Quantization of single tensors in memory: what a run does to each weight and activation of a model, for callers that hold them
//! themselves. Not models, which are [`Job`](crate::Job)s.
//!
//! ```
//! use kvant::tensor::{Matrix, QuantizedMatrix};
//!
//! let weights: Vec<u8> = (0..4 * 64).flat_map(|i| ((i as f32) / 100.0).sin().to_le_bytes()).collect();
//! let matrix = Matrix::new("F32", &weights, 4, 64)?;
//! let quantized = QuantizedMatrix::nearest(&matrix, &"int4:g32".parse()?)?;
//! assert_eq!(quantized.scale_shape(), (4, 2));
//! let packed = quantized.packed("compressed-tensors", "proj")?;
//! assert_eq!((packed[0].name.as_str(), packed[0].bytes.len()), ("proj.weight_packed", 4 * 64 / 2));
//! # Ok::<(), kvant::Error>(())
//! ```

mod fake;
mod graph;
mod layers;
mod matrix;
mod observer;
mod packed;
mod quantized;
mod rounding;
mod scheme;
mod smoothing;
mod stored;

pub use fake::fake_quantize;
pub use graph::{GraphObserver, GraphProduct, GraphScheme, ProductScales};
pub use kvant_numeric::kernel::FloatDType;
pub use kvant_onnx::quantization::{Affine as GraphAffine, ScaleKind};
pub use kvant_quant::Codes;
pub use kvant_quant::activation::StaticParameters;
pub use kvant_quant::graph_grid::{position, power_of_two};
pub use layers::{
    LayerActivations, algorithms_json, layer_scheme, packed_activations, quantization_config, scheme_json,
};
pub use matrix::Matrix;
pub use observer::TensorObserver;
pub use packed::PackedTensor;
pub use quantized::QuantizedMatrix;
pub use rounding::{InputSums, RoundedMatrix, round};
pub use scheme::WeightScheme;
pub use smoothing::{InputStatistics, SmoothingPair, clipped, smoothing_scales};
pub use stored::StoredModel;

use crate::error::{Error, ErrorKind};
use kvant_quant::activation::ActivationError;
use kvant_quant::rounding::RoundingError;
use kvant_quant::scheme::SchemeError;

/// What rounding says of a tensor that has no name.
fn of_rounding(error: RoundingError) -> Error {
    let (kind, hint) = match &error {
        RoundingError::Scheme(SchemeError::GroupDoesNotDivide { .. }) => {
            let hint =
                "use groups of a size that divides it, or a scale for each channel as in int4:channel and e4m3:channel";
            (ErrorKind::Invalid, hint)
        }
        RoundingError::Scheme(problem) => (ErrorKind::Invalid, problem.hint()),
        RoundingError::NoCodes(_) => (ErrorKind::Unsupported, "fake-quantize it, which needs no codes"),
        RoundingError::NotFinite => (ErrorKind::Invalid, "replace such values first: no code represents them"),
        RoundingError::ScaleTooLarge { .. } => {
            (ErrorKind::Unsupported, "use a scheme whose scales have a wider type, such as f32")
        }
        RoundingError::Hessian(problem) => (ErrorKind::Invalid, problem.hint()),
    };
    Error::new(kind, format!("the tensor cannot be quantized: {error}")).with_hint(Some(hint.to_owned()))
}

/// The same of activations.
fn of_activation(error: &ActivationError) -> Error {
    let kind = if error.is_unsupported() { ErrorKind::Unsupported } else { ErrorKind::Invalid };
    let hint = match error {
        ActivationError::Count { .. } | ActivationError::Value(..) => "give the parameters that an observer found",
        _ => error.hint(),
    };
    Error::new(kind, error.to_string()).with_hint(Some(hint.to_owned()))
}

#[cfg(test)]
mod tests;
