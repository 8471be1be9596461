//! What decides the tensors with static parameters of activations. Not how the parameters are found.

use crate::activation_point::ActivationPoint;
use kvant_numeric::kernel::FloatDType;
use kvant_quant::scheme::{ActivationScheme, AttentionScheme};

/// Which activations of a layer are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The input.
    Input,
    /// The output.
    Output,
}

impl Side {
    /// `input` or `output`.
    pub fn name(self) -> &'static str {
        match self {
            Side::Input => "input",
            Side::Output => "output",
        }
    }
}

/// What a checkpoint format must know of quantized activations.
#[derive(Clone, Copy, Debug)]
pub struct ActivationSpec<'a> {
    /// The layer's name in the output.
    pub name: &'a str,
    /// Its input or its output.
    pub side: Side,
    /// How they are quantized.
    pub scheme: ActivationScheme,
    /// Features of a row.
    pub features: usize,
    /// The type of the model there.
    pub source: FloatDType,
    /// Where their parameters are found.
    pub site: &'a ActivationPoint,
}

/// Queries, keys or values: the layer that makes them, by its name in the output, and where their parameters are found.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The layer.
    pub name: String,
    /// The place.
    pub site: ActivationPoint,
}

/// What a checkpoint format must know of quantized attention.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// The name of the attention module in the output.
    pub module: String,
    /// The recipe.
    pub scheme: AttentionScheme,
    /// Keys and values; the same owner where one layer makes both.
    pub key_value: Option<[Owner; 2]>,
    /// Queries.
    pub query: Option<Owner>,
    /// The softmax.
    pub probabilities: Option<ActivationPoint>,
    /// The type of the model there.
    pub source: FloatDType,
}
