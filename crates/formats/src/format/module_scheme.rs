//! How the tensors of one module are quantized, as a configuration says.

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
