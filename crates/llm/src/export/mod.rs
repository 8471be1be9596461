//! On-disk conventions for quantized checkpoints: which tensors a layer becomes, what config.json says, who loads it. One
//! file an export and a line in [`EXPORTS`]. The bytes are made by one packer for all.

mod activations;
mod compressed_tensors;
mod fake;
mod loaders;
mod packer;
mod part;
mod quark;

pub use activations::{ActivationSpec, AttentionSpec, Owner, ParameterContent, ParameterPart, Side};
pub(crate) use compressed_tensors::parts_as as compressed_tensors_parts;
pub use loaders::ModelTraits;
pub(crate) use loaders::loaders;
pub(crate) use packer::encode;
pub use packer::{Piece, pack};
pub use part::{Content, Packing, Part, ScaleEncoding, band_axis};
pub(crate) use quark::code_layout as quark_code_layout;

use kvant_container::Dtype;
use kvant_numeric::kernel::Source;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{LayerScheme, ScaleType};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// An on-disk convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Export {
    /// AMD Quark's own layout.
    Quark,
    /// The layout of compressed-tensors, which llm-compressor writes.
    CompressedTensors,
    /// Floats that lie on the grid of the codes, in the source's type: loads wherever the source loads.
    Fake,
    /// One file with blocks of llama.cpp's types. It has a plan of its own: see [`crate::gguf`].
    Gguf,
}

/// A row of the table of exports.
pub struct ExportRow {
    /// The name in `--format`.
    pub name: &'static str,
    /// The export.
    pub export: Export,
    /// One line for `kvant list formats`.
    pub about: &'static str,
}

/// Every export.
pub const EXPORTS: &[ExportRow] = &[
    ExportRow { name: "quark", export: Export::Quark, about: "AMD Quark's layout (quant_method quark)" },
    ExportRow {
        name: "compressed-tensors",
        export: Export::CompressedTensors,
        about: "compressed-tensors, as llm-compressor writes it",
    },
    ExportRow {
        name: "fake",
        export: Export::Fake,
        about: "quantized values as plain floats, to judge a scheme without its kernels",
    },
    ExportRow {
        name: "gguf",
        export: Export::Gguf,
        about: "one file for llama.cpp, with its own schemes (Q4_K_M ...)",
    },
];

impl Export {
    /// The row of the table.
    pub fn row(self) -> &'static ExportRow {
        let row = EXPORTS.iter().find(|row| row.export == self);
        row.unwrap_or(&EXPORTS[0])
    }

    /// What loads it, schemes permitting: [`Plan::loaders`](crate::plan::Plan::loaders) tells which takes a given plan.
    pub fn loaders(self) -> Vec<&'static str> {
        loaders::of_export(self)
    }

    /// The tensors that a layer becomes; none for [`Export::Fake`], which keeps the source's.
    ///
    /// # Errors
    /// [`CannotHold`] where the convention has no place for the scheme or the shape.
    pub fn parts(self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        match self {
            Export::Quark => quark::parts(layer),
            Export::CompressedTensors => compressed_tensors::parts(layer),
            Export::Fake => fake::parts(layer),
            Export::Gguf => Err(CannotHold::gguf()),
        }
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.row().name)
    }
}

/// The name is none of the table's.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown export format `{0}`")]
pub struct UnknownExport(pub String);

impl FromStr for Export {
    type Err = UnknownExport;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let row = EXPORTS.iter().find(|row| row.name == text);
        row.map(|row| row.export).ok_or_else(|| UnknownExport(text.to_owned()))
    }
}

/// What an export must know of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpec<'a> {
    /// The module's name: tensors are called `name.weight` and so on.
    pub name: &'a str,
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// How it is quantized.
    pub scheme: LayerScheme,
    /// The type of the weights in the source.
    pub source: Source,
    /// The order of 4-bit codes in words, where the export leaves a choice.
    pub order: NibbleOrder,
}

/// An export has no place for a layer (*unsupported*).
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{reason}")]
pub struct CannotHold {
    /// Why.
    pub reason: String,
    /// The way out.
    pub hint: String,
}

impl CannotHold {
    /// That GGUF has its own schemes.
    pub(crate) fn gguf() -> CannotHold {
        CannotHold::new("GGUF has its own types", "name one of them, e.g. --scheme Q4_K_M (`kvant list schemes`)")
    }

    pub(crate) fn new(reason: impl Into<String>, hint: impl Into<String>) -> CannotHold {
        CannotHold { reason: reason.into(), hint: hint.into() }
    }
}

impl LayerSpec<'_> {
    fn part(&self, suffix: &str, dtype: Dtype, shape: impl Into<Vec<usize>>, content: Content) -> Part {
        Part { name: format!("{}.{suffix}", self.name), dtype, shape: shape.into(), content }
    }

    /// How plain scales of this type are stored.
    fn encoding(&self, scale: ScaleType) -> ScaleEncoding {
        plain_encoding(scale, self.source)
    }
}

/// How plain scales of this type are stored in a model of that type.
pub(crate) fn plain_encoding(scale: ScaleType, source: Source) -> ScaleEncoding {
    match (scale, source) {
        (ScaleType::F16, _) | (ScaleType::Model, Source::F16) => ScaleEncoding::F16,
        (ScaleType::Bf16, _) => ScaleEncoding::Bf16,
        (ScaleType::Model, Source::Bf16 | Source::E4m3 | Source::E5m2) => ScaleEncoding::Bf16,
        (ScaleType::Model, Source::F32) | (ScaleType::F32 | ScaleType::PowerOfTwo, _) => ScaleEncoding::F32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for row in EXPORTS {
            assert_eq!(row.name.parse(), Ok(row.export));
            assert_eq!(row.export.to_string(), row.name);
        }
    }
}
