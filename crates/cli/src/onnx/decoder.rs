//! `kvant convert MODEL --to onnx` and `kvant quantize MODEL --format onnx`: a decoder as an ONNX graph.

use super::opening;
use super::quantize::{check_output, model_size, no_output};
use super::staged::Staged;
use super::verify::accept;
use crate::args::{ConvertArgs, FinishArgs, RunArgs};
use crate::commands::convert::refuse_for_one_file;
use crate::delivery::claim;
use crate::failure::{Failure, Kind};
use crate::outputs::full_path;
use crate::printer::Printer;
use crate::{counts, interrupt, model, size};
use kvant_container::directory_of;
use kvant_container::onnx::{ExternalData, Spill, sync_written};
use kvant_llm::forward::Decoder;
use kvant_llm::onnx::{Exported, check, export};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Writes the graph.
///
/// # Errors
/// What has no graph, before anything is written; then what the system or the weights say.
pub fn run(args: &ConvertArgs, printer: &Printer) -> Result<(), Failure> {
    refuse_for_one_file(args)?;
    if args.requantize {
        let failure = Failure::new(Kind::Usage, "--requantize does not apply to --to onnx");
        return Err(failure.with_hint(Some("leave it out: codes and values are taken over as they are".to_owned())));
    }
    let begun = Instant::now();
    if let Some(output) = &args.output {
        check_output(output, args.finish.overwrite)?;
    }
    let checkpoint = model::open(&args.model)?;
    let decoder = Decoder::open(&checkpoint)?;
    check(&decoder, args.weights_only)?;
    if args.dry_run {
        printer.summary("a graph of this decoder, which is not written");
        return if printer.is_json() { printer.json("convert", &object(None, None)) } else { Ok(()) };
    }
    let output = args.output.as_deref().ok_or_else(no_output)?;
    let (cancelled, weights_only) = (interrupt::flag(), args.weights_only);
    let _claim = claim(output, &args.typed, args.finish)?;
    let task = Task { output, finish: args.finish, run: &args.run, weights_only, cancelled: &cancelled };
    let graph = task.make(&decoder, printer)?;
    let (nodes, bytes, seconds) = (graph.nodes, graph.bytes, begun.elapsed());
    printer.summary(&format!("{}, {}, {}", counts::number(nodes, "node"), size::bytes(bytes), size::duration(seconds)));
    let output = full_path(output).display().to_string();
    match printer.is_json() {
        true => printer.json("convert", &object(Some(&output), Some((&graph, seconds)))),
        false => printer.data(&output),
    }
}

/// What was done; of a graph that is not written, nothing is known but its format.
fn object(output: Option<&str>, made: Option<(&Graph, Duration)>) -> Value {
    json!({
        "output": output,
        "format": "onnx",
        "output_bytes": made.map(|(graph, _)| graph.bytes),
        "nodes": made.map(|(graph, _)| graph.nodes),
        "layers_stored_as_floats": made.map(|(graph, _)| &graph.widened),
        "seconds": made.map(|(_, time)| time.as_secs_f64()),
    })
}

/// How a graph is written.
pub struct Task<'a> {
    /// The file.
    pub output: &'a Path,
    /// How it gets its name.
    pub finish: FinishArgs,
    /// How to run it.
    pub run: &'a RunArgs,
    /// Whether activations stay in float.
    pub weights_only: bool,
    /// Set when the user wants it to stop.
    pub cancelled: &'a Arc<AtomicBool>,
}

/// What was written.
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
    /// What has no graph, and a graph that does not pass verification, before anything is written; then what the system says.
    pub fn make(&self, decoder: &Decoder<'_>, printer: &Printer) -> Result<Graph, Failure> {
        let directory = directory_of(self.output);
        let spill = Spill::new(directory)?.cancelled_by(self.cancelled.clone());
        let made = model::pool(self.run)?.install(|| export(decoder, Some(&spill), self.weights_only))?;
        notes(&made, self.weights_only, printer);
        let opens = !self.finish.no_verify && accept(&made.model, self.output)?;
        let nodes = made.model.graph.node.len();
        let staged = Staged::write(made.model, self.output, ExternalData::Auto, self.cancelled)?;
        if opens {
            opening::accept(staged.path(), None, self.cancelled)?;
        }
        check_output(self.output, self.finish.overwrite)?;
        staged.persist(self.output)?;
        if self.finish.sync {
            sync_written(self.output)?;
        }
        Ok(Graph { nodes, bytes: model_size(self.output), widened: made.widened })
    }
}

fn notes(made: &Exported, weights_only: bool, printer: &Printer) {
    if let Some(first) = made.widened.first() {
        let count = made.widened.len();
        printer.note(&format!(
            "stored as the floats that they stand for, since no ONNX operator has their codes: {} ({first} ...)",
            counts::number(count, "quantized layer")
        ));
    }
    if made.float_activations || weights_only {
        printer.note("activations stay in float: the graph holds the quantized weights alone");
    }
}
