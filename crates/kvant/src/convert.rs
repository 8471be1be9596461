//! Converting a quantized model to another format.

use crate::cancel::CancelToken;
use crate::checkpoint::{self, CheckpointConversion};
use crate::ending::{Stopped, concluded};
use crate::error::Error;
use crate::events::{Events, Reporter};
use crate::gguf::{self, GgufConversion};
use crate::job::{Conversion, ConvertTo};
use crate::onnx::{self, GraphConversion};
use crate::paths::{self, MODEL, Paths, refuse_missing};
use serde_json::Value;

/// The result of a conversion, real or planned.
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
    /// Converts the model. An interrupted run resumes when the same conversion runs again.
    ///
    /// # Errors
    /// Conversions that the target does not support, before anything is written; then errors of the weights or the system.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<ConversionReport, Error> {
        let stopped = if self.to == ConvertTo::Onnx { Stopped::StartsOver } else { Stopped::Resumes };
        concluded(|| stopped, || self.carry_out(&Reporter::new(events, cancel), true))
    }

    /// Checks the conversion and writes nothing.
    ///
    /// # Errors
    /// The requests that [`run`](Self::run) refuses before its work.
    pub fn plan(&self, events: &mut dyn Events) -> Result<ConversionReport, Error> {
        self.carry_out(&Reporter::new(events, &CancelToken::new()), false)
    }

    fn carry_out(&self, reporter: &Reporter<'_>, writes: bool) -> Result<ConversionReport, Error> {
        let mut conversion = self.clone();
        conversion.sinks.output = paths::follow(conversion.sinks.output)?;
        check_paths(&conversion, writes)?;
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
}

/// Checks the paths of a conversion. If it `writes`, whether the output can be written is tried.
fn check_paths(conversion: &Conversion, writes: bool) -> Result<(), Error> {
    let mut paths = Paths::new(conversion.sinks.commit.overwrite, writes);
    paths.reads_model(&conversion.source.model);
    paths.reads_adapters(&conversion.source.adapters);
    paths.writes_model(conversion.sinks.output.as_deref());
    let adapters = conversion.source.adapters.iter().map(|path| ("‹lora›", path.as_path()));
    refuse_missing(std::iter::once((MODEL, conversion.source.model.as_path())).chain(adapters))?;
    paths.check()
}
