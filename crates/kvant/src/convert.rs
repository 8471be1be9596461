//! Converting a quantized model to another format.

use crate::cancel::CancelToken;
use crate::checkpoint::{self, CheckpointConversion};
use crate::error::{Error, ErrorKind};
use crate::events::{Events, Reporter};
use crate::gguf::{self, GgufConversion};
use crate::job::{Limits, Sinks, Source, SourceKind};
use crate::onnx::{self, GraphConversion};
use crate::outputs;
use crate::text::printable;
use kvant_llm::conversion::{FloatType, LayerError, Target};
use serde_json::Value;

/// A conversion of a quantized model, without loss where the target holds its codes.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// What is converted.
    pub source: Source,
    /// What it is converted to.
    pub to: ConvertTo,
    /// The type of floats; `None` is the one that config.json states. For plain floats only.
    pub dtype: Option<FloatType>,
    /// Whether weights that the target does not hold exactly are requantized to its nearest scheme.
    pub requantize: bool,
    /// Whether quantized activations are left in float. For graphs only.
    pub weights_only: bool,
    /// What is written; its formats are ignored.
    pub sinks: Sinks,
    /// Resources.
    pub limits: Limits,
}

/// What a model is converted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvertTo {
    /// A checkpoint.
    Checkpoint(Target),
    /// An ONNX graph.
    Onnx,
    /// A GGUF file.
    Gguf,
}

/// What a conversion made or would make.
pub enum ConversionReport {
    /// A checkpoint.
    Checkpoint(Box<CheckpointConversion>),
    /// A GGUF file.
    Gguf(Box<GgufConversion>),
    /// An ONNX graph.
    Graph(Box<GraphConversion>),
}

impl ConversionReport {
    /// The report as an object of `docs/schemas/convert.schema.json`, without its `schema` key.
    pub fn to_json(&self) -> Value {
        match self {
            ConversionReport::Checkpoint(report) => report.to_json(),
            ConversionReport::Gguf(report) => report.to_json(),
            ConversionReport::Graph(report) => report.to_json(),
        }
    }
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

    /// Converts the model. An interrupted run resumes when the same conversion runs again.
    ///
    /// # Errors
    /// What the target does not hold, before anything is written; then what the weights or the system say.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<ConversionReport, Error> {
        self.carry_out(&Reporter::new(events, cancel), true)
    }

    /// Checks the conversion and writes nothing.
    ///
    /// # Errors
    /// What [`run`](Self::run) would refuse before its work.
    pub fn plan(&self, events: &mut dyn Events) -> Result<ConversionReport, Error> {
        self.carry_out(&Reporter::new(events, &CancelToken::new()), false)
    }

    fn carry_out(&self, reporter: &Reporter<'_>, writes: bool) -> Result<ConversionReport, Error> {
        let mut conversion = self.clone();
        conversion.sinks.output = outputs::follow(conversion.sinks.output)?;
        outputs::check_conversion(&conversion, writes)?;
        conversion.refuse_graph()?;
        let conversion = &conversion;
        match self.to {
            ConvertTo::Checkpoint(target) => checkpoint::convert::run(conversion, target, reporter, writes)
                .map(|report| ConversionReport::Checkpoint(Box::new(report))),
            ConvertTo::Gguf => {
                gguf::convert::run(conversion, reporter, writes).map(|report| ConversionReport::Gguf(Box::new(report)))
            }
            ConvertTo::Onnx => {
                onnx::decoder::run(conversion, reporter, writes).map(|report| ConversionReport::Graph(Box::new(report)))
            }
        }
    }

    /// A graph has no other layout to go to.
    fn refuse_graph(&self) -> Result<(), Error> {
        if self.source.kind() != SourceKind::Graph {
            return Ok(());
        }
        let model = self.source.model.to_string_lossy();
        let message = format!("{} is an ONNX graph, which is not converted", printable(&model));
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

    /// Refuses settings that mean nothing where the output is one file.
    pub(crate) fn refuse_for_one_file(&self) -> Result<(), Error> {
        let given = [
            (self.dtype.is_some(), "‹dtype›", "‹to› float"),
            (!self.source.adapters.is_empty(), "‹lora›", "‹to› float"),
            (self.sinks.max_shard_size.is_some(), "‹max-shard-size›", "checkpoints"),
        ];
        let Some((_, setting, meant)) = given.into_iter().find(|(given, ..)| *given) else { return Ok(()) };
        let error = Error::new(ErrorKind::Usage, format!("{setting} applies only to {meant}"));
        Err(error.with_hint(Some(
            "leave it out: a graph or a GGUF file is written as one, in the types of the source".to_owned(),
        )))
    }
}

/// The layer with the largest relative error, where there is any error.
pub fn worst(errors: &[LayerError]) -> Option<&LayerError> {
    errors.iter().max_by(|a, b| a.relative.total_cmp(&b.relative)).filter(|error| error.relative > 0.0)
}

/// It in words.
pub fn said(worst: &LayerError) -> String {
    format!("relative RMS {:.3e}, at most {:.3e} ({})", worst.relative, worst.max, worst.layer)
}
