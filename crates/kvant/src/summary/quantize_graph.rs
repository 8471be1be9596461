//! Reports of quantized ONNX graphs in words: what became of the graph, and how good it is.

use super::Remark;
use crate::onnx::measure::{Measured, Quality, SampleOrigin};
use crate::onnx::quantize::{GraphReport, QuantizedGraph};
use crate::text::{counts, size};
use kvant_onnx::algorithm::LayerGain;
use kvant_onnx::evaluation::{Remedy, TensorReport as EvaluatedTensor};
use kvant_onnx::report::{Report, TensorReport};
use kvant_onnx::verify::SATURATION_HINT;
use std::collections::BTreeMap;

/// Outputs that are printed; the report has all of them.
const SHOWN: usize = 8;

/// Remarks in the order in which they are read.
#[derive(Default)]
struct Remarks(Vec<Remark>);

impl Remarks {
    fn detail(&mut self, text: String) {
        self.0.push(Remark::Detail(text));
    }

    fn note(&mut self, text: String) {
        self.0.push(Remark::Note(text));
    }

    fn warning(&mut self, text: String) {
        self.0.push(Remark::Warning(text));
    }

    fn summary(&mut self, text: String) {
        self.0.push(Remark::Summary(text));
    }
}

/// Remarks on a graph and on its quality.
pub fn remarks(made: &GraphReport) -> Vec<Remark> {
    let mut remarks = Remarks::default();
    for (at, graph) in made.graphs.iter().enumerate() {
        // What is common to all formats is said once.
        if at == 0 {
            note_tensors(&graph.report, &mut remarks);
        }
        if let Some(format) = graph.format.filter(|_| made.graphs.len() > 1) {
            remarks.summary(format!("{format}:"));
        }
        note_graph(made, graph, &mut remarks);
    }
    remarks.0
}

/// Remarks on what became of tensors.
fn note_tensors(report: &Report, remarks: &mut Remarks) {
    for left in &report.not_scaled {
        remarks.detail(format!("`{}` is not scaled by {}: {}", left.tensor, left.algorithm, left.reason));
    }
    if let [first, ..] = &report.not_scaled[..] {
        let left = counts::number(report.not_scaled.len(), "tensor");
        remarks.note(format!("{left} not scaled, `{}` for one: {}; ‹verbose› lists all", first.tensor, first.reason));
    }
    for (name, count) in &report.limited {
        remarks.detail(format!("`{}`: {} limited", name, counts::number(count, "value")));
    }
    if !report.limited.is_empty() {
        let values: usize = report.limited.iter().map(|(_, count)| count).sum();
        remarks.warning(format!(
            "{} of {} beyond the 16-bit type's range and limited to it; ‹verbose› names them: use BF16_MODEL, or leave their nodes in \
             float32 with ‹exclude›",
            counts::number(values, "value"),
            if values == 1 {
                "1 constant is".to_owned()
            } else {
                format!("{} are", counts::number(report.limited.len(), "constant"))
            },
        ));
    }
    if let [(first, count), more @ ..] = &report.raised[..] {
        let others = if more.is_empty() {
            String::new()
        } else {
            format!(", as in {}", counts::number(more.len(), "more constant"))
        };
        remarks.warning(format!(
            "`{first}` has {} too small for the 16-bit type, which become its smallest{others}: use BF16_MODEL, or leave their nodes in \
             float32 with ‹exclude›",
            counts::number(count, "value"),
        ));
    }
    if let [first, ..] = &report.not_numbers[..] {
        let (count, first) = (report.not_numbers.len(), first);
        let count = counts::number(count, "tensor");
        remarks.note(format!("the float model computes NaN in {count}, `{first}` for one, on these data"));
    }
    note_methods(&report.tensors, remarks);
    note_gains(&report.gains, remarks);
    note_blocks(report, remarks);
    for (name, reason) in &report.left_in_float {
        remarks.detail(format!("`{}` stays in float: {reason}", name));
    }
    if !report.left_in_float.is_empty() {
        let left = match report.left_in_float.len() {
            1 => "1 tensor or node stays".to_owned(),
            count => format!("{count} tensors or nodes stay"),
        };
        remarks.note(format!("{left} in float; ‹verbose› lists names and reasons"));
    }
    for name in &report.wide_biases {
        remarks.detail(format!("`{}`: int16 codes with a scale of their own", name));
    }
    if !report.wide_biases.is_empty() {
        let biases = match report.wide_biases.len() {
            1 => "1 bias does".to_owned(),
            count => format!("{count} biases do"),
        };
        remarks.note(format!(
            "{biases} not fit int32 codes with the scale of the product: stored as int16; ‹verbose› lists names"
        ));
    }
}

/// Remarks on one of the graphs.
fn note_graph(made: &GraphReport, graph: &QuantizedGraph, remarks: &mut Remarks) {
    let report = &graph.report;
    if let Some(saturation) = &report.saturation {
        remarks.note(format!("{saturation}: {SATURATION_HINT}"));
    }
    let samples = counts::number(report.samples, "sample");
    let engine = made.engine.as_ref().map_or_else(String::new, |engine| format!(", {samples} on {engine}"));
    let ranges = made.ranges.as_ref().map_or_else(String::new, |ranges| format!(", {ranges}"));
    remarks.summary(format!(
        "{}; constants: {} to {}, with the graph {} to {}{engine}{ranges}; {:.1} s",
        report.counts,
        size::bytes(report.constants.source_bytes),
        size::bytes(report.constants.output_bytes),
        size::bytes(made.source_bytes),
        size::bytes(graph.bytes),
        made.seconds,
    ));
    match &graph.quality {
        Measured::Done(quality) => note_quality(quality, remarks),
        Measured::Not(reason) => remarks.note(format!("the quality of the result was not measured: {reason}")),
        Measured::Failed(reason) => remarks.warning(format!("the quality of the result was not measured: {reason}")),
    }
}

/// The gains of algorithms by layer.
fn note_gains(gains: &[LayerGain], remarks: &mut Remarks) {
    let decibels = |sqnr: Option<f64>| sqnr.map_or_else(|| "exact".to_owned(), |sqnr| format!("{sqnr:.1} dB"));
    for gain in gains {
        let (before, after) = (decibels(gain.sqnr_before), decibels(gain.sqnr_after));
        remarks.detail(format!("`{}` ({}): {before} to {after}", gain.layer, gain.operator));
    }
    let better = gains.iter().filter(|gain| gain.loss_after < gain.loss_before).count();
    if !gains.is_empty() {
        let layers = counts::number(gains.len(), "layer");
        remarks.note(format!("the error of {better} of {layers} fell; ‹verbose› lists each"));
    }
}

/// What was learned for blocks of layers.
fn note_blocks(report: &Report, remarks: &mut Remarks) {
    for block in &report.learned_blocks {
        let (before, after) = (10.0 * block.loss_before.log10(), 10.0 * block.loss_after.log10());
        remarks.detail(format!("block of `{}`: {before:.1} dB to {after:.1} dB", block.layers.join("`, `")));
    }
    let better = report.learned_blocks.iter().filter(|block| block.loss_after < block.loss_before).count();
    if !report.learned_blocks.is_empty() {
        let blocks = counts::number(report.learned_blocks.len(), "block");
        remarks.note(format!("learned rounding lowered the error of {better} of {blocks}; ‹verbose› lists each"));
    }
    for left in &report.not_learned {
        remarks.detail(format!("block of `{}`: {}", left.layers.join("`, `"), left.reason));
    }
    if let [first, ..] = &report.not_learned[..] {
        let blocks = counts::number(report.not_learned.len(), "block");
        remarks.note(format!("{blocks} could not be learned as a whole: {}; ‹verbose› lists all", first.reason));
    }
}

/// The calibration methods that `auto` chose.
fn note_methods(tensors: &[TensorReport], remarks: &mut Remarks) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (tensor, method) in tensors.iter().filter_map(|tensor| Some((tensor, tensor.method?))) {
        *counts.entry(method).or_default() += 1;
        remarks.detail(format!("`{}`: range by {method}", tensor.name));
    }
    if !counts.is_empty() {
        let counts: Vec<String> = counts.iter().map(|(method, count)| format!("{count} by {method}")).collect();
        remarks.note(format!("ranges found by the method that loses least: {}", counts.join(", ")));
    }
}

fn note_quality(quality: &Quality, remarks: &mut Remarks) {
    let same = quality.top1_agreement.map(|share| format!("; the same top class in {:.1} %", share * 100.0));
    remarks.summary(format!(
        "measured on {}, with {}{}:",
        samples_of(quality),
        quality.engine,
        same.unwrap_or_default()
    ));
    for output in quality.outputs.iter().take(SHOWN) {
        remarks.summary(format!("  {}", spelled(output)));
    }
    if quality.outputs.len() > SHOWN {
        remarks.summary(format!(
            "  and {}; ‹json› lists all",
            counts::number(quality.outputs.len() - SHOWN, "further output")
        ));
    }
    if let Some(text) = &quality.text {
        remarks.summary(format!(
            "  text: perplexity {:.4}, of the float graph {:.4}; KL divergence {:.6} ± {:.6} nats; the same top token in {:.2} %; {}",
            text.perplexity,
            text.reference_perplexity,
            text.kl_mean,
            text.kl_mean_error,
            100.0 * text.top1_agreement,
            counts::number(text.tokens, "token"),
        ));
    }
    if let Some(problem) = quality.optimized_fails.as_ref().filter(|_| !quality.is_useless) {
        remarks.warning(format!("onnxruntime does not run it with its graph optimizations: {problem}"));
    }
    for warning in quality.warnings.iter().take(SHOWN) {
        remarks.warning(warning.clone());
    }
    if !quality.worst_tensors.is_empty() {
        let worst: Vec<String> = quality.worst_tensors.iter().map(damaged).collect();
        remarks.warning(format!("the most damaged tensors: {}; `kvant eval` shows more", worst.join(", ")));
    }
    if !quality.suggestions.is_empty() {
        let ways = quality.suggestions.iter().map(|Remedy { option, about }| format!("\n  {option}: {about}"));
        remarks.warning(format!("what may help, the cheapest first:{}", ways.collect::<String>()));
    }
}

/// A damaged tensor.
fn damaged(tensor: &EvaluatedTensor) -> String {
    match tensor.non_finite {
        0 => format!("`{}` {:.1} dB", tensor.name, tensor.sqnr_db),
        _ => format!("`{}` NaN or infinite", tensor.name),
    }
}

/// An output with its numbers.
fn spelled(output: &EvaluatedTensor) -> String {
    let name = &output.name;
    match output.sqnr_db {
        f64::INFINITY => format!("output `{name}`: exact"),
        sqnr if sqnr.is_nan() => format!("output `{name}`: not known"),
        _ => {
            let better = output.much_better_db().map(|db| format!(" ({db:.2} dB without graph optimizations)"));
            let better = better.unwrap_or_default();
            format!("output `{name}`: SQNR {:.2} dB{better}, cosine {:.6}", output.sqnr_db, output.cosine)
        }
    }
}
/// The number and origin of the samples that a graph was measured on.
fn samples_of(quality: &Quality) -> String {
    let count = quality.samples;
    match quality.samples_from {
        SampleOrigin::HeldOut => counts::number(count, "held-out sample"),
        SampleOrigin::Calibration => {
            format!("{} of calibration (no others available)", counts::number(count, "sample"))
        }
        SampleOrigin::Given => counts::number(count, "sample"),
    }
}
