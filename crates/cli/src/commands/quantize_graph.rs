//! `kvant quantize model.onnx`: what became of a graph, and how good it is.

use crate::printer::Printer;
use kvant::text::{counts, printable, size};
use kvant::{GraphReport, Measured, Origin, Quality};
use kvant_onnx::algorithm::LayerGain;
use kvant_onnx::evaluation::{Remedy, TensorReport as EvaluatedTensor};
use kvant_onnx::report::TensorReport;
use kvant_onnx::verify::SATURATION_HINT;
use std::collections::BTreeMap;

/// Outputs that are printed; the report has all of them.
const SHOWN: usize = 8;

/// Prints what became of a graph.
pub fn show(made: &GraphReport, printer: &Printer) {
    let report = &made.report;
    for (name, count) in &report.limited {
        printer.detail(&format!("`{}`: {} limited", printable(name), counts::number(count, "value")));
    }
    if !report.limited.is_empty() {
        let values: usize = report.limited.iter().map(|(_, count)| count).sum();
        printer.note(&format!(
            "{values} values of {} constants are beyond the 16-bit type's range and limited to it; --verbose names them",
            report.limited.len()
        ));
    }
    if let [first, ..] = &report.not_numbers[..] {
        let (count, first) = (report.not_numbers.len(), printable(first));
        let count = counts::number(count, "tensor");
        printer.note(&format!("the float model computes NaN in {count}, `{first}` for one, on these data"));
    }
    tell_methods(&report.tensors, printer);
    tell_gains(&report.gains, printer);
    for (name, reason) in &report.left_in_float {
        printer.detail(&format!("`{}` stays in float: {reason}", printable(name)));
    }
    if !report.left_in_float.is_empty() {
        let left = match report.left_in_float.len() {
            1 => "1 tensor or node stays".to_owned(),
            count => format!("{count} tensors or nodes stay"),
        };
        printer.note(&format!("{left} in float; --verbose lists names and reasons"));
    }
    for name in &report.wide_biases {
        printer.detail(&format!("`{}`: int16 codes with a scale of their own", printable(name)));
    }
    if !report.wide_biases.is_empty() {
        let biases = match report.wide_biases.len() {
            1 => "1 bias does".to_owned(),
            count => format!("{count} biases do"),
        };
        printer.note(&format!(
            "{biases} not fit int32 codes with the scale of the product: stored as int16; --verbose lists names"
        ));
    }
    if let Some(saturation) = &report.saturation {
        printer.note(&format!("{saturation}: {SATURATION_HINT}"));
    }
    let samples = counts::number(report.samples, "sample");
    let engine = made.engine.as_ref().map_or_else(String::new, |engine| format!(", {samples} on {engine}"));
    printer.summary(&format!(
        "{}; {} to {}{engine}; {:.1} s",
        report.counts,
        size::bytes(made.source_bytes),
        size::bytes(made.output_bytes),
        made.seconds,
    ));
    match &made.quality {
        Measured::Done(quality) => show_quality(quality, printer),
        Measured::Not(reason) => printer.note(&format!("the quality of the result was not measured: {reason}")),
    }
}

/// What algorithms gained: each layer for those who ask, the number of better ones for all.
fn tell_gains(gains: &[LayerGain], printer: &Printer) {
    let decibels = |sqnr: Option<f64>| sqnr.map_or_else(|| "exact".to_owned(), |sqnr| format!("{sqnr:.1} dB"));
    for gain in gains {
        let (before, after) = (decibels(gain.sqnr_before), decibels(gain.sqnr_after));
        printer.detail(&format!("`{}` ({}): {before} to {after}", printable(&gain.layer), gain.operator));
    }
    let better = gains.iter().filter(|gain| gain.loss_after < gain.loss_before).count();
    if !gains.is_empty() {
        let layers = counts::number(gains.len(), "layer");
        printer.note(&format!("the error of {better} of {layers} fell; --verbose lists each"));
    }
}

/// Which calibration methods were taken where they were to be found: of each tensor for those who ask, their numbers for all.
fn tell_methods(tensors: &[TensorReport], printer: &Printer) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (tensor, method) in tensors.iter().filter_map(|tensor| Some((tensor, tensor.method?))) {
        *counts.entry(method).or_default() += 1;
        printer.detail(&format!("`{}`: range by {method}", printable(&tensor.name)));
    }
    if !counts.is_empty() {
        let counts: Vec<String> = counts.iter().map(|(method, count)| format!("{count} by {method}")).collect();
        printer.note(&format!("ranges found by the method that loses least: {}", counts.join(", ")));
    }
}

fn show_quality(quality: &Quality, printer: &Printer) {
    let same = quality.top1_agreement.map(|share| format!("; the same top class in {:.1} %", share * 100.0));
    printer.summary(&format!(
        "measured on {}, with {}{}:",
        samples_of(quality),
        printable(&quality.engine),
        same.unwrap_or_default()
    ));
    for output in quality.outputs.iter().take(SHOWN) {
        printer.summary(&format!("  {}", spelled(output)));
    }
    if quality.outputs.len() > SHOWN {
        printer.summary(&format!("  and {} further outputs; --json has them all", quality.outputs.len() - SHOWN));
    }
    if let Some(problem) = quality.optimized_fails.as_ref().filter(|_| !quality.is_useless) {
        printer.warning(&format!("onnxruntime does not run it with its graph optimizations: {problem}"));
    }
    for warning in quality.warnings.iter().take(SHOWN) {
        printer.warning(warning);
    }
    if !quality.worst_tensors.is_empty() {
        let worst: Vec<String> =
            quality.worst_tensors.iter().map(|t| format!("`{}` {:.1} dB", t.name, t.sqnr_db)).collect();
        printer.warning(&format!("the most damaged tensors: {}; `kvant eval` shows more", worst.join(", ")));
    }
    if !quality.suggestions.is_empty() {
        printer.warning("what may help, the cheapest first:");
        for Remedy { option, about } in &quality.suggestions {
            printer.message(&format!("  {option}: {about}"));
        }
    }
}

/// An output with its numbers.
fn spelled(output: &EvaluatedTensor) -> String {
    let name = printable(&output.name);
    match output.sqnr_db == f64::INFINITY {
        true => format!("output `{name}`: exact"),
        false => {
            let better = output.much_better_db().map(|db| format!(" ({db:.2} dB without graph optimizations)"));
            let better = better.unwrap_or_default();
            format!("output `{name}`: SQNR {:.2} dB{better}, cosine {:.6}", output.sqnr_db, output.cosine)
        }
    }
}
/// How many samples a graph was measured on, and which.
fn samples_of(quality: &Quality) -> String {
    let count = quality.samples;
    match quality.samples_from {
        Origin::HeldOut => counts::number(count, "held-out sample"),
        Origin::Calibration => format!("{} of calibration (no others available)", counts::number(count, "sample")),
        Origin::Given => counts::number(count, "sample"),
    }
}
