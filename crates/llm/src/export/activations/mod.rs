//! Where exports keep the scales and zero points of activations: data, like the parts of layers. Not how they are found.

mod compressed_tensors;
mod fp8;
mod part;
mod quark;

pub use part::{ParameterContent, ParameterPart};

use super::{CannotHold, Export};
use crate::activation_point::Site;
use kvant_container::Dtype;
use kvant_numeric::Format;
use kvant_numeric::format::Int;
use kvant_numeric::kernel::Source;
use kvant_quant::scheme::{ActivationScheme, AttentionScheme, IntScheme};

/// Which activations of a layer are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The input.
    Input,
    /// The output.
    Output,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Input => "input",
            Side::Output => "output",
        }
    }
}

/// What an export must know of quantized activations.
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
    pub source: Source,
    /// Where their parameters are found.
    pub site: &'a Site,
}

/// Queries, keys or values: the layer that makes them, by its name in the output, and where their parameters are found.
#[derive(Clone, Debug)]
pub struct Owner {
    /// The layer.
    pub name: String,
    /// The place.
    pub site: Site,
}

/// What an export must know of quantized attention.
#[derive(Clone, Debug)]
pub struct AttentionSpec {
    /// The name of the attention module in the output.
    pub module: String,
    /// How it is quantized.
    pub scheme: AttentionScheme,
    /// Keys and values; the same owner where one layer makes both.
    pub key_value: Option<[Owner; 2]>,
    /// Queries.
    pub query: Option<Owner>,
    /// The softmax.
    pub probabilities: Option<Site>,
    /// The type of the model there.
    pub source: Source,
}

impl Export {
    /// The tensors with the static parameters of a layer's activations; none where scales are dynamic, and for [`Export::Fake`],
    /// which keeps them in config.json.
    ///
    /// # Errors
    /// [`CannotHold`] where the convention has no place for the scheme.
    pub fn activation_parts(self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        match self {
            _ if !spec.scheme.needs_calibration() => Ok(vec![]),
            Export::Quark | Export::Tensors => quark::activation_parts(spec),
            Export::CompressedTensors => compressed_tensors::activation_parts(spec),
            Export::Fp8 => fp8::activation_parts(spec),
            Export::Awq | Export::Gptq | Export::GptqV2 | Export::Mxfp4 => Err(self.no_activations()),
            Export::Fake => Ok(vec![]),
            Export::Gguf => Err(CannotHold::gguf()),
        }
    }

    /// The tensors with the static parameters of a block's attention.
    ///
    /// # Errors
    /// [`CannotHold`] where the convention has no place for the scheme.
    pub fn attention_parts(self, spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        match self {
            Export::Quark => quark::attention_parts(spec),
            Export::Tensors => Err(CannotHold::new(
                "the format tensors describes single weights, not attention",
                "leave ‹kv-cache› and ‹attention› out, or put config.json beside the weights for another format",
            )),
            Export::CompressedTensors => compressed_tensors::attention_parts(spec),
            Export::Fp8 => fp8::attention_parts(spec),
            Export::Awq | Export::Gptq | Export::GptqV2 | Export::Mxfp4 => Err(self.no_activations()),
            Export::Fake => Ok(vec![]),
            Export::Gguf => Err(CannotHold::gguf()),
        }
    }

    fn no_activations(self) -> CannotHold {
        let reason = format!("{self} quantizes weights alone");
        CannotHold::new(
            reason,
            "leave activations out with ‹weights-only›, or use ‹format› quark or compressed-tensors",
        )
    }
}

/// The type of stored zero points; `None` for integers that no layout stores them of.
fn zero_point_type(scheme: IntScheme) -> Option<Dtype> {
    match Format::Int(scheme.format) {
        Format::Int(Int::INT8) => Some(Dtype::I8),
        Format::Int(Int::UINT8) => Some(Dtype::U8),
        _ => None,
    }
}
