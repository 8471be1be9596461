//! What exported checkpoints say of themselves: the `quantization_config` of config.json, written and read. Not the
//! tensors beside it: see [`crate::export`].

pub mod awq;
pub mod compressed_tensors;
pub(crate) mod fake;
pub mod fp8;
pub mod gptq;
mod grouped;
pub mod mxfp4;
mod pattern;
pub mod quark;
mod selector;
pub mod tensors;

pub use pattern::Pattern;

use kvant_quant::scheme::{ActivationScheme, TensorScheme};

/// What a checkpoint says of the tensors of a module that is quantized already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModuleScheme {
    /// The weight.
    pub weight: Option<TensorScheme>,
    /// The input activations.
    pub input: Option<ActivationScheme>,
    /// The output activations.
    pub output: Option<ActivationScheme>,
}
