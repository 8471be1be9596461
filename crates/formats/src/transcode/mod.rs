//! Conversion between layouts: which form of stored codes a target holds, and whether it holds scales and zero points without
//! loss. Decisions, made from headers, scales and zero points; the doing is the engine's, as for every plan.

mod exact;
mod forms;
mod nearest;

pub use exact::{Loss, loss_of_parameter, loss_of_scales, loss_of_tensor_scale};
pub use forms::forms;
pub use nearest::nearest;

use crate::format::{FormatHandle, OutputFormat};
use kvant_container::Dtype;
use std::fmt;
use std::str::FromStr;

/// What a checkpoint is converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConversionTarget {
    /// Plain floats; in the type that config.json states where none is given.
    Float(Option<FloatType>),
    /// The same floats in the type of config.json, with what the source says of activations: `--format fake` beside other formats.
    Fake,
    /// A layout with codes.
    Codes(FormatHandle),
}

/// A type of plain floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FloatType {
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    F16,
    /// IEEE binary32.
    F32,
}

impl FloatType {
    /// The names on the command line, and in config.json.
    pub const ALL: &[(&str, &str, FloatType)] = &[
        ("bf16", "bfloat16", FloatType::Bf16),
        ("f16", "float16", FloatType::F16),
        ("f32", "float32", FloatType::F32),
    ];

    /// The element type in files.
    pub fn dtype(self) -> Dtype {
        match self {
            FloatType::Bf16 => Dtype::BF16,
            FloatType::F16 => Dtype::F16,
            FloatType::F32 => Dtype::F32,
        }
    }

    /// The name in config.json.
    pub fn config_name(self) -> &'static str {
        Self::ALL.iter().find(|(_, _, ty)| *ty == self).map_or("float32", |(_, name, _)| name)
    }

    /// The type of this name in config.json.
    pub fn of_config(name: &str) -> Option<FloatType> {
        Self::ALL.iter().find(|(_, config, _)| *config == name).map(|(.., ty)| *ty)
    }
}

/// A user's options for a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conversion {
    /// The layout.
    pub target: ConversionTarget,
    /// Whether values may change where the target does not hold the codes.
    pub requantize: bool,
    /// The most bytes of a file of the output.
    pub max_shard_size: u64,
}

impl Conversion {
    /// Returns whether quantized activations are left out: where loss is accepted, in a layout of weights alone.
    pub fn leaves_activations(&self) -> bool {
        matches!(self.target, ConversionTarget::Codes(format) if self.requantize && !format.capabilities().activations)
    }
}

/// The name is none of a target's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown target `{0}`")]
pub struct UnknownTarget(pub String);

impl ConversionTarget {
    /// Every name on the command line.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FormatHandle::written().filter(is_target).map(FormatHandle::name).chain([FLOAT])
    }
}

const FLOAT: &str = "float";

fn is_target(format: &FormatHandle) -> bool {
    format.capabilities().is_conversion_target
}

impl fmt::Display for ConversionTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConversionTarget::Float(_) => f.write_str(FLOAT),
            ConversionTarget::Fake => OutputFormat::PlainFloats.fmt(f),
            ConversionTarget::Codes(format) => format.fmt(f),
        }
    }
}

impl FromStr for ConversionTarget {
    type Err = UnknownTarget;

    fn from_str(text: &str) -> Result<ConversionTarget, UnknownTarget> {
        let format = || text.parse::<FormatHandle>().ok().filter(is_target);
        match text {
            FLOAT => Ok(ConversionTarget::Float(None)),
            _ => format().map(ConversionTarget::Codes).ok_or_else(|| UnknownTarget(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conversion_target_names_round_trip() {
        for name in ConversionTarget::names() {
            assert_eq!(name.parse::<ConversionTarget>().unwrap().to_string(), name);
        }
        assert!("fake".parse::<ConversionTarget>().is_err() && "gguf2".parse::<ConversionTarget>().is_err());
    }
}
