//! The request to convert a model.

use super::{Limits, Sinks, Source, SourceKind};
use crate::error::{Error, ErrorKind};
use crate::text::shown;
use kvant_formats::transcode::{ConversionTarget, FloatType};

/// A conversion of a quantized model, without loss where the target holds its codes.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// The source.
    pub source: Source,
    /// The target.
    pub to: ConvertTo,
    /// The type of floats; `None` is the one that config.json states. For plain floats only.
    pub dtype: Option<FloatType>,
    /// Whether weights that the target does not hold exactly are requantized to its nearest scheme.
    pub requantize: bool,
    /// Whether quantized activations are left in float. For graphs only.
    pub weights_only: bool,
    /// The output; its formats are ignored.
    pub sinks: Sinks,
    /// Resources.
    pub limits: Limits,
}

/// The target of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTo {
    /// A checkpoint.
    Checkpoint(ConversionTarget),
    /// An ONNX graph.
    Onnx,
    /// A GGUF file.
    Gguf,
}

impl Conversion {
    /// A conversion with defaults for everything but the source and the target.
    pub fn new(source: Source, to: ConvertTo) -> Conversion {
        Conversion {
            source,
            to,
            dtype: None,
            requantize: false,
            weights_only: false,
            sinks: Sinks::default(),
            limits: Limits::default(),
        }
    }

    /// A graph has no other layout to go to.
    pub(crate) fn refuse_graph(&self) -> Result<(), Error> {
        if self.source.kind() != SourceKind::Graph {
            return Ok(());
        }
        let message = format!("{} is an ONNX graph, which is not converted", shown(&self.source.model));
        let hint = "quantize it with `kvant quantize`; convert the checkpoint that it was made of";
        Err(Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint.to_owned())))
    }

    /// Refuses the setting that only graphs have.
    pub(crate) fn refuse_weights_only(&self) -> Result<(), Error> {
        if !self.weights_only {
            return Ok(());
        }
        let error = Error::new(ErrorKind::Usage, "‹weights-only› applies only to ‹to› onnx");
        Err(error.with_hint(Some("leave it out: other formats keep what the source says of activations".to_owned())))
    }

    /// Refuses settings that mean nothing where the output is a graph or a GGUF file.
    pub(crate) fn refuse_of_checkpoints(&self) -> Result<(), Error> {
        let given = [
            (self.dtype.is_some(), "‹dtype›", "‹to› float"),
            (!self.source.adapters.is_empty(), "‹lora›", "‹to› float"),
            (self.to == ConvertTo::Onnx && self.sinks.max_shard_size.is_some(), "‹max-shard-size›", "other targets"),
        ];
        let Some((_, setting, meant)) = given.into_iter().find(|(given, ..)| *given) else { return Ok(()) };
        let error = Error::new(ErrorKind::Usage, format!("{setting} applies only to {meant}"));
        Err(error.with_hint(Some(
            "leave it out: a graph or a GGUF file is written in the types of the source, and a graph as one file"
                .to_owned(),
        )))
    }
}
