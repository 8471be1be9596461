//! `kvant convert MODEL --to onnx`: a decoder as an ONNX graph.

use super::quantize::{check_output, model_size, no_output};
use crate::args::ConvertArgs;
use crate::failure::{Failure, Kind};
use crate::printer::Printer;
use crate::{interrupt, model, size};
use kvant_container::onnx::{ExternalData, Spill, write_unless};
use kvant_llm::forward::Decoder;
use kvant_llm::onnx::{Exported, export};
use serde_json::json;
use std::path::Path;
use std::time::Instant;

/// Writes the graph.
///
/// # Errors
/// What has no graph, before anything is written; then what the system or the weights say.
pub fn run(args: &ConvertArgs, printer: &Printer) -> Result<(), Failure> {
    if args.dtype.is_some() || args.requantize {
        let failure = Failure::new(Kind::Usage, "--dtype and --requantize have no meaning for --to onnx");
        return Err(failure.with_hint(Some("leave them out: codes and values are taken over as they are".to_owned())));
    }
    let begun = Instant::now();
    if let Some(output) = &args.output {
        check_output(output, &args.model, args.overwrite)?;
    }
    let checkpoint = model::open(&args.model)?;
    let decoder = Decoder::open(&checkpoint)?;
    if args.dry_run {
        printer.summary("a graph of this decoder, which is not written");
        return Ok(());
    }
    let output = args.output.as_deref().ok_or_else(no_output)?;
    let directory = output.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cancelled = interrupt::flag();
    let spill = Spill::new(directory)?.cancelled_by(cancelled.clone());
    let made = model::pool(&args.run)?.install(|| export(&decoder, Some(&spill)))?;
    notes(&made, printer);
    let (nodes, widened) = (made.model.graph.node.len(), made.widened);
    write_unless(made.model, output, ExternalData::Auto, &cancelled)?;
    let (bytes, seconds) = (model_size(output), begun.elapsed());
    printer.summary(&format!("{nodes} nodes, {}, {}", size::bytes(bytes), size::duration(seconds)));
    let output = output.display().to_string();
    match printer.is_json() {
        true => printer.json(&json!({
            "output": output,
            "target": "onnx",
            "output_bytes": bytes,
            "nodes": nodes,
            "layers_stored_as_floats": widened,
            "seconds": seconds.as_secs_f64(),
        })),
        false => printer.data(&output),
    }
}

fn notes(made: &Exported, printer: &Printer) {
    if let Some(first) = made.widened.first() {
        let count = made.widened.len();
        printer.note(&format!(
            "{count} quantized layers ({first} ...) are stored as the floats that they stand for: no ONNX operator has their codes"
        ));
    }
    if made.float_activations {
        printer.note("activations stay in float: the graph holds the quantized weights alone");
    }
}
