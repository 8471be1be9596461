//! On-disk conventions for quantized checkpoints: which tensors a layer becomes, what config.json says, who loads it. One
//! file an export and a line in [`EXPORTS`]. The bytes are made by one packer for all.

mod activations;
mod awq;
pub(crate) mod compressed_tensors;
mod encoding;
mod fake;
mod fp8;
mod gptq;
mod mxfp4;
mod packer;
mod packing;
mod part;
mod quark;
mod tensors;

pub use activations::{ActivationSpec, AttentionSpec, Owner, ParameterContent, ParameterPart, Side};
pub(crate) use compressed_tensors::parts_as as compressed_tensors_parts;
pub(crate) use encoding::encode;
pub(crate) use packer::KEPT_BYTES;
pub use packer::{BandCodes, Coded, Packer, Piece, Whole};
pub use part::{Content, Packing, Part, ScaleEncoding, band_axis};
pub(crate) use quark::code_layout as quark_code_layout;

use kvant_container::Dtype;
use kvant_numeric::kernel::Source;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{
    Axis, EVALUATION_ONLY, FloatScale, FloatScheme, Granularity, IntScheme, LayerScheme, ScaleType, TensorScheme,
    ZeroPoint,
};
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
    /// AWQ's gemm layout.
    Awq,
    /// GPTQ's first layout, with zero points less 1.
    Gptq,
    /// GPTQ's second layout.
    #[serde(rename = "gptq_v2")]
    GptqV2,
    /// fp8 with a scale for the tensor or for blocks, as vLLM and DeepSeek have it.
    Fp8,
    /// MXFP4 experts as gpt-oss is published.
    Mxfp4,
    /// Floats that lie on the grid of the codes, in the source's type: loads wherever the source loads.
    Fake,
    /// Codes and scales of tensors that no config.json makes a model of, described in the metadata of their files.
    Tensors,
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
    /// The type that plain scales of weights have, where the export leaves no choice.
    pub scale: Option<ScaleType>,
}

/// Every export.
pub const EXPORTS: &[ExportRow] = &[
    ExportRow { name: "quark", export: Export::Quark, about: "AMD Quark's layout (quant_method quark)", scale: None },
    ExportRow {
        name: "compressed-tensors",
        export: Export::CompressedTensors,
        about: "compressed-tensors, as llm-compressor writes it",
        scale: None,
    },
    ExportRow {
        name: "awq",
        export: Export::Awq,
        about: "AWQ's gemm layout: 4-bit weights with zero points",
        scale: Some(ScaleType::F16),
    },
    ExportRow {
        name: "gptq",
        export: Export::Gptq,
        about: "GPTQ's layout, as GPTQModel writes it: weights of 2, 4 or 8 bits",
        scale: Some(ScaleType::F16),
    },
    ExportRow {
        name: "gptq_v2",
        export: Export::GptqV2,
        about: "GPTQ's second layout, whose zero points are stored as they are: 3 bits too",
        scale: Some(ScaleType::F16),
    },
    ExportRow {
        name: "fp8",
        export: Export::Fp8,
        about: "fp8 with a scale for the tensor or for blocks, as vLLM and DeepSeek have it",
        scale: Some(ScaleType::F32),
    },
    ExportRow {
        name: "mxfp4",
        export: Export::Mxfp4,
        about: "MXFP4 experts as gpt-oss is published; other tensors are kept",
        scale: None,
    },
    ExportRow {
        name: "fake",
        export: Export::Fake,
        about: "fake quantization: floats on the grid of the codes, and for `kvant eval` how activations are quantized",
        scale: None,
    },
    ExportRow {
        name: "tensors",
        export: Export::Tensors,
        about: "codes and scales of files without a config.json, described in their metadata: no runtime loads them as a model",
        scale: None,
    },
    ExportRow {
        name: "gguf",
        export: Export::Gguf,
        about: "one file for llama.cpp: its own schemes (Q4_K_M ...), or codes that its blocks hold (int4:g32 ...)",
        scale: Some(ScaleType::F16),
    },
];

/// The `quant_method` of [`Export::Tensors`].
pub(crate) const TENSORS_METHOD: &str = "kvant-tensors";

impl Export {
    /// The row of the table.
    pub fn row(self) -> &'static ExportRow {
        let row = EXPORTS.iter().find(|row| row.export == self);
        row.unwrap_or(&EXPORTS[0])
    }

    /// Whether checkpoints are converted to it: plain floats have a name of their own there, and GGUF files a plan of
    /// their own.
    pub(crate) fn is_target(self) -> bool {
        !matches!(self, Export::Fake | Export::Gguf | Export::Tensors)
    }

    /// Whether it says how weights are quantized, or what model they are, in config.json alone.
    pub(crate) fn needs_config(self) -> bool {
        !matches!(self, Export::Fake | Export::Tensors)
    }

    /// Its `quant_method` in config.json, or what stands for it in the rules of loaders; `None` for plain floats.
    pub(crate) fn method(self) -> Option<&'static str> {
        match self {
            Export::Quark => Some("quark"),
            Export::CompressedTensors => Some("compressed-tensors"),
            Export::Awq => Some("awq"),
            Export::Gptq | Export::GptqV2 => Some("gptq"),
            Export::Fp8 => Some("fp8"),
            Export::Mxfp4 => Some("mxfp4"),
            Export::Gguf => Some("gguf"),
            Export::Tensors => Some(TENSORS_METHOD),
            Export::Fake => None,
        }
    }

    /// The tensors that a layer becomes; none for [`Export::Fake`], which keeps the source's.
    ///
    /// # Errors
    /// [`CannotHold`] where the convention has no place for the scheme or the shape.
    pub fn parts(self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        let weight = layer.scheme.weight;
        if weight.is_for_evaluation_only() && !matches!(self, Export::Fake | Export::Gguf) {
            return Err(CannotHold::new(format!("`{weight}` is {EVALUATION_ONLY}"), "use ‹format› fake"));
        }
        match self {
            Export::Quark => quark::parts(layer),
            Export::CompressedTensors => compressed_tensors::parts(layer),
            Export::Awq => awq::parts(layer),
            Export::Gptq => gptq::parts(gptq::Version::One, layer),
            Export::GptqV2 => gptq::parts(gptq::Version::Two, layer),
            Export::Fp8 => fp8::parts(layer),
            Export::Mxfp4 => mxfp4::parts(layer),
            Export::Fake => fake::parts(layer),
            Export::Tensors => tensors::parts(layer),
            Export::Gguf => Err(CannotHold::gguf()),
        }
    }

    /// The scheme that is quantized to where this one is asked for: scales that would have the model's type get the
    /// export's, before codes are made, so that codes fit the scales that are stored.
    pub fn fitted(self, scheme: LayerScheme) -> LayerScheme {
        let Some(scale) = self.row().scale else { return scheme };
        let weight = match scheme.weight {
            TensorScheme::Int(int) if int.scale == ScaleType::Model => TensorScheme::Int(IntScheme { scale, ..int }),
            TensorScheme::Float(float) if float.scale == FloatScale::Plain(ScaleType::Model) => {
                TensorScheme::Float(FloatScheme { scale: FloatScale::Plain(scale), ..float })
            }
            other => other,
        };
        LayerScheme { weight, ..scheme }
    }

    /// Whether there is a place for the groups of input channels that are not grouped as they stand.
    pub fn holds_order(self) -> bool {
        matches!(self, Export::CompressedTensors | Export::Gptq | Export::GptqV2)
    }

    /// Whether the layout can say that activations are quantized; plain floats say it to evaluation alone.
    pub fn holds_activations(self) -> bool {
        matches!(self, Export::Quark | Export::CompressedTensors | Export::Fp8 | Export::Fake | Export::Tensors)
    }

    /// Whether only experts that are one tensor are quantized, and all else is kept.
    pub fn is_for_fused_experts(self) -> bool {
        self == Export::Mxfp4
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
    /// The tensor of all experts that it is one matrix of in the source.
    pub fused: Option<Fused<'a>>,
    /// Whether input channels may be grouped otherwise than as they stand.
    pub ordered: bool,
}

/// A tensor of all experts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fused<'a> {
    /// Its name in the output.
    pub module: &'a str,
    /// The number of experts.
    pub count: usize,
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
        CannotHold::new(
            "GGUF has its own types",
            "name one of them, e.g. ‹scheme› Q4_K_M (`kvant list schemes`), or give ‹format› gguf at the command line for codes that \
             its blocks hold",
        )
    }

    pub(crate) fn new(reason: impl Into<String>, hint: impl Into<String>) -> CannotHold {
        CannotHold { reason: reason.into(), hint: hint.into() }
    }
}

impl<'a> LayerSpec<'a> {
    /// A layer of its own whose weight alone is quantized.
    pub fn weight_only(
        name: &'a str,
        (rows, columns): (usize, usize),
        scheme: TensorScheme,
        order: NibbleOrder,
    ) -> LayerSpec<'a> {
        let scheme = LayerScheme::weight_only(scheme);
        LayerSpec { name, rows, columns, scheme, source: Source::F32, order, fused: None, ordered: false }
    }

    /// The integers of a layout of `whom` that has groups along the input channels, scales in binary16, and float
    /// activations.
    fn grouped_int(&self, whom: &str, what: &str) -> Result<IntScheme, CannotHold> {
        if self.scheme.input.is_some() || self.scheme.output.is_some() {
            let reason = format!("{whom} quantizes weights alone, not `{}`", self.scheme);
            return Err(CannotHold::new(reason, "leave activations out with ‹weights-only›"));
        }
        let refuse = |hint: &str| CannotHold::new(format!("{whom} has no `{}`", self.scheme.weight), hint);
        let TensorScheme::Int(int) = self.scheme.weight else { return Err(refuse(&format!("use {what}"))) };
        let grouped = matches!(
            int.granularity,
            Granularity::Group { axis: Axis::Columns, .. } | Granularity::Channel(Axis::Rows)
        );
        match (grouped, int.zero_point, self.encoding(int.scale)) {
            (false, ..) => Err(refuse("use groups along the input channels (g128), or `channel`")),
            (_, ZeroPoint::Float, _) => Err(refuse("use integer zero points (`:zp`)")),
            (_, _, ScaleEncoding::F16) => Ok(int),
            _ => Err(refuse("its scales are in binary16: use `:f16`, or leave the type out")),
        }
    }

    /// Rows and columns of the matrix of scales.
    fn scale_shape(&self) -> Result<(usize, usize), CannotHold> {
        let granularity = self.scheme.weight.granularity().unwrap_or(Granularity::Tensor);
        let shape = granularity.scale_shape(self.rows, self.columns);
        shape.map_err(|problem| CannotHold::new(problem.to_string(), problem.hint()))
    }

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
