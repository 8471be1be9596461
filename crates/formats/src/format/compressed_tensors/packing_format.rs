//! The names that compressed-tensors gives to its layouts, and which scheme is stored in which.

use super::args::Args;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{FloatScale, LayerScheme, TensorScheme};
use kvant_weights::parts::CannotHold;

/// A layout of compressed-tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Integers of 2 to 8 bits as dense streams of words; activations in floats.
    PackQuantized,
    /// Integers in bytes; activations quantized.
    IntQuantized,
    /// fp8 with float scales; activations quantized.
    FloatQuantized,
    /// fp8 with float scales; activations in floats.
    NaiveQuantized,
    /// NVFP4.
    Nvfp4Pack,
    /// MXFP4.
    Mxfp4Pack,
    /// MXFP6 e2m3.
    Mxfp6Pack,
    /// MXFP8 e4m3.
    Mxfp8,
}

impl Format {
    /// Every layout.
    pub const ALL: &[Format] = &[
        Format::PackQuantized,
        Format::IntQuantized,
        Format::FloatQuantized,
        Format::NaiveQuantized,
        Format::Nvfp4Pack,
        Format::Mxfp4Pack,
        Format::Mxfp6Pack,
        Format::Mxfp8,
    ];

    /// The name in config.json.
    pub fn name(self) -> &'static str {
        match self {
            Format::PackQuantized => "pack-quantized",
            Format::IntQuantized => "int-quantized",
            Format::FloatQuantized => "float-quantized",
            Format::NaiveQuantized => "naive-quantized",
            Format::Nvfp4Pack => "nvfp4-pack-quantized",
            Format::Mxfp4Pack => "mxfp4-pack-quantized",
            Format::Mxfp6Pack => "mxfp6-pack-quantized",
            Format::Mxfp8 => "mxfp8-quantized",
        }
    }
}

/// The layout in which compressed-tensors stores a layer; the same that it would choose itself.
///
/// # Errors
/// [`CannotHold`] where there is none, or cannot describe the inputs.
pub fn format_of(scheme: &LayerScheme) -> Result<Format, CannotHold> {
    Args::of_weight(scheme.weight)?;
    scheme.input.map(Args::of_input).transpose()?;
    scheme.output.map(Args::of_input).transpose()?;
    match (scheme.weight, scheme.input.or(scheme.output)) {
        (TensorScheme::Int(_), None) => Ok(Format::PackQuantized),
        (TensorScheme::Int(_), Some(_)) => Ok(Format::IntQuantized),
        (TensorScheme::Float(float), input) => Ok(match (float.scale, float.format) {
            (FloatScale::Plain(_), _) if input.is_none() => Format::NaiveQuantized,
            (FloatScale::Plain(_), _) => Format::FloatQuantized,
            (FloatScale::E8m0(_), MiniFloat::E2M1) => Format::Mxfp4Pack,
            (FloatScale::E8m0(_), MiniFloat::E2M3) => Format::Mxfp6Pack,
            (FloatScale::E8m0(_), _) => Format::Mxfp8,
            (FloatScale::E4m3WithGlobal | FloatScale::E5m3 | FloatScale::E5m3WithGlobal, _) => Format::Nvfp4Pack,
        }),
        (other, _) => Err(super::args::no_words(other)),
    }
}
