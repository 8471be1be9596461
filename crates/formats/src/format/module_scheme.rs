//! The schemes of one module's tensors in a configuration.

use kvant_quant::scheme::{ActivationScheme, TensorScheme};

/// The schemes of a module that is already quantized in a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ModuleScheme {
    /// The weight.
    pub weight: Option<TensorScheme>,
    /// The bias.
    pub bias: Option<TensorScheme>,
    /// The input activations.
    pub input: Option<ActivationScheme>,
    /// The output activations.
    pub output: Option<ActivationScheme>,
}
