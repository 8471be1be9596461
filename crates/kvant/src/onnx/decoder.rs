//! A decoder as an ONNX graph: converting a checkpoint to one, and the graph of a checkpoint that was just quantized.

use super::opening;
use super::quantize::{check_output, model_size, no_output};
use super::recover;
use super::staged::{Staged, made_or_left};
use super::verify::accept;
use crate::delivery::claim;
use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::job::Conversion;
use crate::job::{self, Limits, Sinks};
use crate::paths::full_path;
use crate::text::counts;
use kvant_checkpoint::engine::refuse_inherited;
use kvant_checkpoint::finite;
use kvant_checkpoint::onnx::{Exported, check, export};
use kvant_container::onnx::{ExternalData, Spill};
use kvant_container::unfinished::{Claim, Paths, Room};
use kvant_container::{Checkpoint, Remedy, directory_of};
use kvant_forward::forward::Decoder;
use kvant_onnx::decoder::state_context;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Writes the graph, or checks that this is possible.
///
/// # Errors
/// Models without a graph, before anything is written; then errors of the system or the weights.
pub fn run(request: &Conversion, reporter: &Reporter<'_>, writes: bool) -> Result<GraphConversion, Error> {
    let (sinks, limits, weights_only) = (&request.sinks, &request.limits, request.weights_only);
    request.refuse_of_checkpoints()?;
    if request.requantize {
        let error = Error::new(ErrorKind::Usage, "‹requantize› does not apply to ‹to› onnx");
        return Err(error.with_hint(Some("leave it out: codes and values are taken over as they are".to_owned())));
    }
    let begun = Instant::now();
    if writes {
        recover(sinks)?;
    }
    if let Some(output) = &sinks.output {
        check_output(output, sinks.commit.overwrite)?;
    }
    let checkpoint = job::open(&request.source.model)?;
    if !sinks.commit.no_verify {
        refuse_inherited(&checkpoint)?;
    }
    let other =
        || Remedy::UseFormat("choose another target with ‹to›: only decoders are written as ONNX graphs".to_owned());
    let decoder = Decoder::open(&checkpoint).map_err(|error| Error::not_run(error, other()))?;
    check(&decoder, weights_only)?;
    if !writes {
        return Ok(GraphConversion { made: None });
    }
    let output = sinks.output.as_deref().ok_or_else(no_output)?;
    reporter.started();
    if !sinks.commit.no_verify {
        finite::check_all(&checkpoint)?;
    }
    let claim = claim(output, &sinks.settings, sinks.commit)?;
    let graph =
        Task { checkpoint: &checkpoint, output, sinks, limits, weights_only }.make(&decoder, claim, reporter)?;
    Ok(GraphConversion { made: Some(MadeGraph { output: full_path(output), graph, time: begun.elapsed() }) })
}

/// The result of converting to a graph, real or planned.
pub struct GraphConversion {
    /// `None` where nothing was written.
    pub made: Option<MadeGraph>,
}

/// A graph that was written.
pub struct MadeGraph {
    /// Its path.
    pub output: PathBuf,
    /// The value it has.
    pub graph: Graph,
    /// The duration of the run.
    pub time: Duration,
}

impl GraphConversion {
    pub(crate) fn to_json(&self) -> Value {
        let made = self.made.as_ref();
        json!({
            "output": made.map(|made| made.output.display().to_string()),
            "format": "onnx",
            "output_bytes": made.map(|made| made.graph.bytes),
            "nodes": made.map(|made| made.graph.nodes),
            "layers_stored_as_floats": made.map(|made| &made.graph.widened),
            "seconds": made.map(|made| made.time.as_secs_f64()),
        })
    }
}

/// The options of writing a graph.
pub struct Task<'a> {
    /// The checkpoint of the decoder.
    pub checkpoint: &'a Checkpoint,
    /// The file.
    pub output: &'a Path,
    /// The way it is written.
    pub sinks: &'a Sinks,
    /// Resources.
    pub limits: &'a Limits,
    /// Whether activations stay in float.
    pub weights_only: bool,
}

/// The written output.
pub struct Graph {
    /// Its nodes.
    pub nodes: usize,
    /// The bytes of its files.
    pub bytes: u64,
    /// Quantized layers that are floats in it.
    pub widened: Vec<String>,
}

impl Task<'_> {
    /// Writes the graph of a decoder.
    ///
    /// # Errors
    /// Models without a graph, and graphs that do not pass verification, before anything is written; then system errors.
    pub fn make(&self, decoder: &Decoder<'_>, claim: Claim, reporter: &Reporter<'_>) -> Result<Graph, Error> {
        let made = self.stage(decoder, &claim, reporter);
        // Of an error, too, a file that was rewritten is the cause.
        let unchanged = reporter.refuse_lost();
        let is_sound = unchanged.is_ok();
        let ((graph, staged), claim) = made_or_left(claim, unchanged.and(made), is_sound)?;
        staged.place(claim, self.sinks.commit.sync)?;
        Ok(graph)
    }

    /// Writes it, all but its name.
    fn stage(&self, decoder: &Decoder<'_>, claim: &Claim, reporter: &Reporter<'_>) -> Result<(Graph, Staged), Error> {
        self.check_room()?;
        let directory = directory_of(self.output);
        let spill = Spill::new(directory)?.cancelled_by(reporter.cancel().flag().clone());
        let mut made = self.limits.pool()?.install(|| export(decoder, Some(&spill), self.weights_only))?;
        decoder.longest().into_iter().for_each(|tokens| state_context(&mut made.model, tokens));
        notes(&made, self.weights_only, reporter);
        let verifies = !self.sinks.commit.no_verify;
        let opens = verifies && kvant_onnx::verify::runs(&accept(&made.model, self.output)?);
        let nodes = made.model.graph.node.len();
        let mut staged = Staged::begin(claim, [self.output])?;
        let written = staged.write(made.model, self.output, ExternalData::Auto, reporter.cancel())?;
        if opens {
            opening::accept(&written, &self.limits.engine, false, reporter.cancel())?;
        }
        reporter.refuse_lost()?;
        check_output(self.output, self.sinks.commit.overwrite)?;
        Ok((Graph { nodes, bytes: model_size(&written), widened: made.widened }, staged))
    }
}

impl Task<'_> {
    /// Refuses a graph that the disk has no room for: it is about as large as its checkpoint, and so are the weights that are packed
    /// anew beside it.
    fn check_room(&self) -> Result<(), Error> {
        let bytes = self.checkpoint.tensors().map(|tensor| tensor.bytes().len() as u64).sum();
        let (paths, mut room) = (Paths::of(self.output)?, Room::default());
        room.output(&paths, bytes);
        room.weights_beside(&paths, bytes);
        Ok(room.check()?)
    }
}

fn notes(made: &Exported, weights_only: bool, reporter: &Reporter<'_>) {
    if let Some(first) = made.widened.first() {
        let count = made.widened.len();
        reporter.note(&format!(
            "stored as dequantized floats, since no ONNX operator supports their codes: {} ({first} ...)",
            counts::number(count, "quantized layer")
        ));
    }
    if made.float_activations || weights_only {
        reporter.note("activations stay in float: only the weights of the graph are quantized");
    }
}
