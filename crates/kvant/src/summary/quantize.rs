//! Reports of quantizations in words.

use super::{Remark, Section, layers, pipeline, quantize_graph, with_loaders};
use crate::checkpoint::outputs::Output;
use crate::checkpoint::quantize::CheckpointReport;
use crate::checkpoint::worker::PartReport;
use crate::gguf::quantize::GgufReport;
use crate::loading;
use crate::report::Report;
use crate::text::counts::{self, Line};
use crate::text::size;
use kvant_checkpoint::learned_rotation::RotationReport;
use kvant_formats::format::OutputFormat;
use kvant_quant::scheme::EVALUATION_ONLY;
use serde_json::Value;

impl Report {
    /// The losses of layers, where algorithms ran.
    pub fn losses(&self) -> Vec<Section> {
        match self {
            Report::Checkpoint(report) => report.blocks.as_ref().map(layers::sections).unwrap_or_default(),
            Report::Gguf(_) | Report::Graph(_) | Report::Pipeline(_) | Report::Part(_) => Vec::new(),
        }
    }

    /// Remarks on the result, in the order in which they are read.
    pub fn remarks(&self) -> Vec<Remark> {
        match self {
            Report::Checkpoint(report) => report.warnings().into_iter().map(Remark::Warning).collect(),
            Report::Gguf(_) | Report::Part(_) => Vec::new(),
            Report::Graph(report) => quantize_graph::remarks(report),
            Report::Pipeline(report) => pipeline::remarks(report),
        }
    }

    /// The outputs in sections; those of graphs are among the remarks.
    pub fn sections(&self) -> Vec<Section> {
        match self {
            Report::Checkpoint(report) => checkpoint(report),
            Report::Gguf(report) => vec![gguf(report)],
            Report::Graph(_) => Vec::new(),
            Report::Pipeline(report) => pipeline::report_sections(report),
            Report::Part(report) => vec![part(report)],
        }
    }
}

fn part(report: &PartReport) -> Section {
    let lines = [
        ("worker", report.worker.to_string()),
        ("work", counts::number(report.done.jobs, "unit")),
        counts::sizes(report.share.source_bytes, report.share.output_bytes),
        ("time", size::duration(report.time)),
        ("waiting for", waiting_for(&report.missing)),
    ];
    Section::Lines(lines.into_iter().collect())
}

/// The most workers that are named.
const NAMED: usize = 8;

fn waiting_for(missing: &[usize]) -> String {
    let named = missing.iter().take(NAMED).map(usize::to_string).collect::<Vec<_>>().join(", ");
    match missing.len() {
        0 => "nobody: another process completes the output".to_owned(),
        1 => format!("worker {named}"),
        2..=NAMED => format!("workers {named}"),
        all => format!("workers {named} and {} more", all - NAMED),
    }
}

fn checkpoint(report: &CheckpointReport) -> Vec<Section> {
    let head = [counts::layers(&report.plan)];
    let is_evaluated = report.plan.layers().iter().any(|layer| layer.scheme.weight.is_for_evaluation_only());
    let tail = [("time", size::duration(report.time))].into_iter();
    let tail = tail.chain(is_evaluated.then(|| ("use", format!("{EVALUATION_ONLY} but as floats"))));
    let tail = tail.chain(report.rotation.as_ref().map(rotation_line));
    let tail = tail.chain(report.measured.as_ref().map(quality_line));
    if report.delivered.also.is_empty() {
        let made = &report.delivered.main;
        let lines = head.into_iter().chain(output_lines(report, made)).chain(tail).chain(bare(made));
        return vec![with_loaders(lines, &made.loaders, &made.path)];
    }
    let outputs = report.delivered.all().map(|made| {
        let lines = [("format", made.format.to_owned())].into_iter().chain(output_lines(report, made));
        with_loaders(lines.chain(bare(made)), &made.loaders, &made.path)
    });
    let head = Section::Lines(head.into_iter().chain(tail).collect());
    std::iter::once(head).chain(outputs).collect()
}

/// The parts that differ between outputs.
fn output_lines(report: &CheckpointReport, made: &Output) -> [Line; 2] {
    [counts::sizes(report.plan.source_bytes(), made.bytes), counts::bits(made.bits_per_weight, "layers")]
}

/// The remark that no runtime loads an output, if so.
fn bare(made: &Output) -> Option<Line> {
    (made.format == OutputFormat::TENSORS.name()).then(|| ("load it with", loading::NO_RUNTIME.to_owned()))
}

fn gguf(report: &GgufReport) -> Section {
    let plan = &report.plan;
    let (title, tensors) = counts::tensors(plan);
    let lines = [
        (title, format!("{tensors} (the ftype is {})", plan.recipe.ftype())),
        counts::sizes(plan.source_bytes, plan.layout.total_size()),
        counts::bits(plan.bits_per_weight(), "tensors"),
        ("time", size::duration(report.time)),
    ];
    let lines = lines.into_iter().chain(report.measured.as_ref().map(quality_line));
    with_loaders(lines, &plan.loaders(), &report.output)
}

/// What learning a rotation has gained.
fn rotation_line(report: &RotationReport) -> Line {
    let RotationReport { steps, loss_before, loss_after, held_out, .. } = report;
    let data = if *held_out { "held-out data" } else { "the calibration data" };
    let text = format!(
        "KL divergence of the rounded model {loss_before:.5} before and {loss_after:.5} nats after {steps} steps, on {data}"
    );
    ("rotation", text)
}

/// The distance of a result from its source.
fn quality_line(measured: &Value) -> Line {
    let number = |key: &str| measured[key].as_f64().unwrap_or(f64::NAN);
    let text = format!(
        "KL divergence {:.6} nats, perplexity {:.4} (source: {:.4}, {:+.2} %)",
        number("kl_mean"),
        number("perplexity"),
        number("reference_perplexity"),
        number("perplexity_increase_percent"),
    );
    ("vs. source", text)
}
