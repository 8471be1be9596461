//! The domain of quantization: schemes, observers, parameters, quantized tensors, roundings. It knows no files and no
//! models: weights come as slices of `f32` with a shape.
//!
//! ```
//! use kvant_quant::scheme::TensorScheme;
//! use kvant_quant::rounding::{Rtn, TensorContext};
//! use kvant_numeric::ComputeDType;
//!
//! // Two rows of four weights, int4 in groups of two.
//! let weights = [0.1, -0.7, 3.0, 1.5, 0.0, 0.0, -2.0, 0.4];
//! let scheme: TensorScheme = "int4:g2".parse()?;
//! let quantized = Rtn::new(scheme, TensorContext::new(ComputeDType::F32))?.round(&weights, 2, 4)?;
//!
//! assert_eq!(quantized.scale_shape(), (2, 2));
//! let restored = quantized.dequantize();
//! assert!(weights.iter().zip(&restored).all(|(w, r)| (w - r).abs() < 0.21));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod activation;
mod affine;
pub mod algorithm;
pub mod allocation;
pub mod bias_correction;
pub mod counts;
mod dequantize;
pub mod distribution;
pub mod fake;
pub mod finding;
pub mod glob;
pub mod graph_grid;
pub mod hessian;
pub mod observer;
pub mod options;
pub mod parameters;
mod quant_tensor;
pub mod random;
pub mod recipe;
pub mod reconstruction;
pub mod registry;
pub mod rotation;
pub mod rounding;
pub mod scheme;
mod scheme_error;
pub mod transform;
pub mod tuning;

pub use affine::Affine;
pub use quant_tensor::{Codes, Parameters, QuantParts, QuantTensor};
