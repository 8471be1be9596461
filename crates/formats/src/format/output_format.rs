//! Everything that a quantized model is written as: a checkpoint of some format, plain floats, or a GGUF file.

use super::{Capabilities, FormatHandle, UnknownFormat};
use crate::experts::ExpertsForm;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{LayerScheme, ScaleType};
use kvant_weights::parts::{ActivationSpec, AttentionSpec, CannotHold, LayerSpec, ParameterPart, Part};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The format of a quantized model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutputFormat {
    /// Codes and scales in a checkpoint.
    Checkpoint(FormatHandle),
    /// Floats on the grid of the codes, under the source's names and in its type: they load wherever the source does.
    PlainFloats,
    /// One file with blocks of llama.cpp's types. `kvant_checkpoint::gguf` plans it.
    Gguf,
}

/// For plain floats, config.json describes quantized activations for evaluation only.
const PLAIN_FLOATS: Capabilities = Capabilities {
    needs_config: false,
    one_file: false,
    is_conversion_target: false,
    activations: true,
    ..Capabilities::of_method("", &[])
};

const GGUF: Capabilities =
    Capabilities { is_conversion_target: false, scale: Some(ScaleType::F16), ..Capabilities::of_method("gguf", &[]) };

impl OutputFormat {
    /// [`FormatHandle::QUARK`].
    pub const QUARK: OutputFormat = OutputFormat::Checkpoint(FormatHandle::QUARK);
    /// [`FormatHandle::COMPRESSED_TENSORS`].
    pub const COMPRESSED_TENSORS: OutputFormat = OutputFormat::Checkpoint(FormatHandle::COMPRESSED_TENSORS);
    /// [`FormatHandle::AWQ`].
    pub const AWQ: OutputFormat = OutputFormat::Checkpoint(FormatHandle::AWQ);
    /// [`FormatHandle::GPTQ`].
    pub const GPTQ: OutputFormat = OutputFormat::Checkpoint(FormatHandle::GPTQ);
    /// [`FormatHandle::GPTQ_V2`].
    pub const GPTQ_V2: OutputFormat = OutputFormat::Checkpoint(FormatHandle::GPTQ_V2);
    /// [`FormatHandle::FP8`].
    pub const FP8: OutputFormat = OutputFormat::Checkpoint(FormatHandle::FP8);
    /// [`FormatHandle::MXFP4`].
    pub const MXFP4: OutputFormat = OutputFormat::Checkpoint(FormatHandle::MXFP4);
    /// [`FormatHandle::TENSORS`].
    pub const TENSORS: OutputFormat = OutputFormat::Checkpoint(FormatHandle::TENSORS);

    /// Everything that is written: the checkpoint formats, registered ones among them, plain floats, and GGUF.
    pub fn all() -> impl Iterator<Item = OutputFormat> {
        FormatHandle::written().map(OutputFormat::Checkpoint).chain([OutputFormat::PlainFloats, OutputFormat::Gguf])
    }

    /// The checkpoint format, if it is one.
    pub fn checkpoint(self) -> Option<FormatHandle> {
        match self {
            OutputFormat::Checkpoint(format) => Some(format),
            OutputFormat::PlainFloats | OutputFormat::Gguf => None,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            OutputFormat::Checkpoint(format) => format.name(),
            OutputFormat::PlainFloats => "fake",
            OutputFormat::Gguf => "gguf",
        }
    }

    /// One line for lists.
    pub fn about(self) -> &'static str {
        match self {
            OutputFormat::Checkpoint(format) => format.about(),
            OutputFormat::PlainFloats => {
                "fake quantization: floats on the grid of the codes, and for `kvant eval` how activations are quantized"
            }
            OutputFormat::Gguf => {
                "one file for llama.cpp: its own schemes (Q4_K_M ...), or codes that its blocks hold (int4:g32 ...)"
            }
        }
    }

    /// Its capabilities.
    pub fn capabilities(self) -> Capabilities {
        match self {
            OutputFormat::Checkpoint(format) => format.capabilities(),
            OutputFormat::PlainFloats => PLAIN_FLOATS,
            OutputFormat::Gguf => GGUF,
        }
    }

    /// Its name in loader rules; `None` for plain floats.
    pub(crate) fn method(self) -> Option<&'static str> {
        if self == OutputFormat::PlainFloats { None } else { Some(self.capabilities().method) }
    }

    /// Returns whether weights are described in the metadata of their files, which no runtime reads.
    pub fn describes_in_metadata(self) -> bool {
        self.checkpoint().is_some_and(|format| !format.capabilities().needs_config)
    }

    /// The form in which it holds the experts of a model whose checkpoint has them in one tensor.
    pub fn experts_form(self) -> ExpertsForm {
        match self {
            OutputFormat::Checkpoint(format) if !format.capabilities().fused_experts_only => ExpertsForm::Separate,
            _ => ExpertsForm::OfClass,
        }
    }

    /// The scheme used when this one is requested: see [`Capabilities::fitted`].
    pub fn fitted(self, scheme: LayerScheme) -> LayerScheme {
        self.capabilities().fitted(scheme)
    }

    /// The tensors that a layer becomes; none for plain floats, which keep the source's.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme or the shape.
    pub fn parts(self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        match self {
            OutputFormat::Checkpoint(format) => format.parts(layer),
            OutputFormat::PlainFloats => Ok(Vec::new()),
            OutputFormat::Gguf => Err(gguf_has_its_own()),
        }
    }

    /// The tensors that a quantized bias becomes; none for plain floats, which keep the source's.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    pub fn bias_parts(self, bias: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        match self {
            OutputFormat::Checkpoint(format) => format.bias_parts(bias),
            OutputFormat::PlainFloats => Ok(Vec::new()),
            OutputFormat::Gguf => Err(CannotHold::new(
                "GGUF files have biases as floats",
                "leave ‹bias› out, or use ‹format› quark or fake",
            )),
        }
    }

    /// Returns whether it has a place for layers of this scheme, of sizes that suit every scheme.
    pub fn holds(self, scheme: LayerScheme) -> bool {
        let scheme = self.fitted(scheme);
        let whole = LayerSpec::weight_only("layer", (256, 256), scheme.weight, NibbleOrder::default());
        self.parts(&LayerSpec { scheme, ..whole }).is_ok()
    }

    /// The tensors with the static parameters of a layer's activations; none where scales are dynamic, and for plain floats, which
    /// have them in config.json.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    pub fn activation_parts(self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        match self {
            OutputFormat::Checkpoint(format) => format.activation_parts(spec),
            OutputFormat::PlainFloats => Ok(Vec::new()),
            OutputFormat::Gguf if !spec.scheme.needs_calibration() => Ok(Vec::new()),
            OutputFormat::Gguf => Err(gguf_has_its_own()),
        }
    }

    /// The tensors with the static parameters of a block's attention.
    ///
    /// # Errors
    /// [`CannotHold`] where the format has no place for the scheme.
    pub fn attention_parts(self, spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        match self {
            OutputFormat::Checkpoint(format) => format.attention_parts(spec),
            OutputFormat::PlainFloats => Ok(Vec::new()),
            OutputFormat::Gguf => Err(gguf_has_its_own()),
        }
    }
}

/// The error that this plan does not write checkpoint schemes into GGUF files.
pub fn gguf_has_its_own() -> CannotHold {
    CannotHold::new(
        "GGUF has its own types",
        "name one of them, e.g. ‹scheme› Q4_K_M (`kvant list schemes`), or give ‹format› gguf at the command line for codes that \
         its blocks hold",
    )
}

impl From<FormatHandle> for OutputFormat {
    fn from(format: FormatHandle) -> OutputFormat {
        OutputFormat::Checkpoint(format)
    }
}

impl fmt::Display for OutputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for OutputFormat {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<OutputFormat, UnknownFormat> {
        let found = OutputFormat::all().find(|format| format.name() == text);
        found.ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}

impl Serialize for OutputFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for OutputFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OutputFormat, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(|_| {
            let names: Vec<String> = OutputFormat::all().map(|format| format!("`{format}`")).collect();
            D::Error::custom(format!("unknown variant `{name}`, expected one of {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_names_round_trip() {
        for format in OutputFormat::all() {
            assert_eq!(format.name().parse(), Ok(format));
            assert_eq!(serde_json::from_value::<OutputFormat>(serde_json::json!(format.name())).unwrap(), format);
        }
        assert!("modelopt".parse::<OutputFormat>().is_err(), "it is read only");
    }
}
