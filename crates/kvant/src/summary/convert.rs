//! Reports of conversions in words.

use super::{Section, with_loaders};
use crate::checkpoint::CheckpointConversion;
use crate::checkpoint::convert::{said, worst};
use crate::convert::ConversionReport;
use crate::gguf::GgufConversion;
use crate::onnx::decoder::GraphConversion;
use crate::text::{counts, size};
use std::path::Path;

impl ConversionReport {
    /// The report in sections.
    pub fn sections(&self) -> Vec<Section> {
        vec![match self {
            ConversionReport::Checkpoint(report) => checkpoint(report),
            ConversionReport::Gguf(report) => gguf(report),
            ConversionReport::Graph(report) => graph(report),
        }]
    }

    /// The output; `None` if nothing was written.
    pub fn output(&self) -> Option<&Path> {
        match self {
            ConversionReport::Checkpoint(report) => report.output.as_deref(),
            ConversionReport::Gguf(report) => report.output.as_deref(),
            ConversionReport::Graph(report) => report.made.as_ref().map(|made| made.output.as_path()),
        }
    }
}

fn checkpoint(report: &CheckpointConversion) -> Section {
    let (kept, requantized) = (report.kept_codes(), report.requantized());
    let mut lines = vec![("to", report.target.to_string())];
    if kept > 0 {
        lines.push(("layers", format!("{kept} with the codes that they have")));
    }
    if requantized > 0 {
        lines.push(("requantized", counts::number(requantized, "layer")));
    }
    lines.extend(worst(&report.errors).map(|worst| ("largest error", said(worst))));
    lines.push(counts::sizes(report.plan.source_bytes(), report.plan.layout().total_size()));
    lines.extend(report.time.map(|time| ("time", size::duration(time))));
    with_loaders(lines, &report.plan.loaders(), report.place())
}

fn gguf(report: &GgufConversion) -> Section {
    let requantized = report.requantized();
    let kept = format!("{} with the codes that they have", report.kept_codes());
    let mut lines = vec![("to", "gguf".to_owned()), ("tensors", kept)];
    if requantized > 0 {
        lines.push(("requantized", counts::number(requantized, "tensor")));
    }
    lines.extend(worst(&report.errors).map(|worst| ("largest error", said(worst))));
    lines.push(counts::sizes(report.plan.source_bytes, report.plan.layout.total_size()));
    lines.extend(report.time.map(|time| ("time", size::duration(time))));
    with_loaders(lines, &report.plan.loaders(), report.place())
}

fn graph(report: &GraphConversion) -> Section {
    let Some(made) = &report.made else {
        return Section::Text("the decoder becomes a graph; nothing is written".to_owned());
    };
    let nodes = counts::number(made.graph.nodes, "node");
    Section::Text(format!("{nodes}, {}, {}", size::bytes(made.graph.bytes), size::duration(made.time)))
}
