//! Plans in words.

use super::{Section, plan_gguf, plan_graph};
use super::{pattern, pipeline};
use crate::checkpoint::fate::TensorSummary;
use crate::checkpoint::plan::{CheckpointPlan, Cost};
use crate::job::Format;
use crate::remote;
use crate::run::Plan;
use crate::text::counts::{self, Line};
use crate::text::{Align, Table, size};
use kvant_checkpoint::engine::Share;
use kvant_checkpoint::plan::{CalibrationSize, Plan as CheckpointLayers};
use kvant_formats::format::OutputFormat;
use kvant_quant::counts::number;
use std::time::Duration;

impl Plan {
    /// The plan in sections; `all` lists each tensor instead of one for those that differ only in numbers.
    pub fn sections(&self, all: bool) -> Vec<Section> {
        match self {
            Plan::Graph(plan) => plan_graph::sections(plan),
            Plan::Pipeline(plan) => pipeline::plan_sections(plan),
            Plan::Gguf(plan) => plan_gguf::sections(&plan.plan, None, plan.memory, all),
            Plan::Checkpoint(planned) => match &planned.file {
                Some(file) => plan_gguf::sections(file, Some(planned), planned.memory(), all),
                None => checkpoint(planned, all),
            },
        }
    }

    /// Notices about the plan.
    pub fn notices(&self) -> Vec<String> {
        match self {
            Plan::Graph(plan) => plan.prepared.notices().iter().map(ToString::to_string).collect(),
            Plan::Gguf(plan) => plan.plan.notices.clone(),
            Plan::Pipeline(plan) => plan.all_notices().cloned().collect(),
            Plan::Checkpoint(planned) => match &planned.file {
                Some(file) => {
                    let needs = planned.cost.lacks_data.then(|| format!("the run needs {NEEDS_DATA}"));
                    needs.into_iter().chain(planned.plan.notices().iter().chain(&file.notices).cloned()).collect()
                }
                // The share that stays in floats is at the top already.
                None => {
                    let share = planned.plan.float_share();
                    planned.plan.notices().iter().filter(|notice| Some(notice.as_str()) != share).cloned().collect()
                }
            },
        }
    }
}

fn checkpoint(planned: &CheckpointPlan, all: bool) -> Vec<Section> {
    let table = table(&planned.plan, &planned.fates(), all);
    let mut sections = vec![Section::Text(title(planned)), Section::Table(table), Section::Lines(totals(planned))];
    if planned.outputs.len() > 1 {
        sections.push(Section::Table(table_of_outputs(planned)));
    }
    if !planned.shares.is_empty() {
        sections.push(Section::Table(table_of_workers(&planned.shares)));
    }
    sections
}

/// The rate of a worker in estimates, in bytes of source and output together a second: that of a modest network file system.
const RATE: f64 = 200e6;

fn table_of_workers(shares: &[Share]) -> Table {
    use Align::Right;
    let titles = ["worker", "units of work", "reads", "writes", "time at 200 MB/s"].map(|title| (title, Right));
    let mut table = Table::new(&titles);
    for (worker, share) in shares.iter().enumerate() {
        let (source, output) = (share.source_bytes, share.output_bytes);
        let time = Duration::from_secs_f64((source + output) as f64 / RATE);
        let jobs = share.jobs.len().to_string();
        table.push([worker.to_string(), jobs, size::bytes(source), size::bytes(output), size::duration(time)]);
    }
    table
}

/// The outputs, where there are several formats.
fn table_of_outputs(planned: &CheckpointPlan) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("format", Left), ("size", Right), ("loads with", Left)]);
    for output in &planned.outputs {
        let about = if output.format == Format::ONNX { "about " } else { "" };
        let bytes = size::bytes(output.bytes);
        let loaders = match output.loaders.as_slice() {
            _ if output.format == OutputFormat::TENSORS.name() => "no runtime, as a model".to_owned(),
            [] => "no known loader".to_owned(),
            loaders => loaders.join(", "),
        };
        table.push([output.format.to_owned(), format!("{about}{bytes}"), loaders]);
    }
    table
}

/// A line with the model, the scheme and the format, and one about large shares that stay in floats.
fn title(planned: &CheckpointPlan) -> String {
    let plan = &planned.plan;
    let family = plan.family().map_or("no family that is known".to_owned(), |family| format!("family {family}"));
    let share = plan.float_share().map(|share| format!("\n{share}")).unwrap_or_default();
    let (scheme, format) = (plan.recipe().scheme_name(), planned.format());
    format!("{} ({family}) to {scheme}, format {format}{share}", plan.architecture())
}

fn table(plan: &CheckpointLayers, fates: &[TensorSummary<'_>], all: bool) -> Table {
    if all { table_of_all(plan, fates) } else { table_of_groups(plan, fates) }
}

fn table_of_all(plan: &CheckpointLayers, fates: &[TensorSummary<'_>]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("tensor", Left), ("source", Left), ("becomes", Left), ("bytes", Right)]);
    for fate in fates {
        let bytes = size::bytes(fate.output_bytes(plan));
        table.push([fate.source.name().to_owned(), shape_of(fate), fate.becomes(), bytes]);
    }
    table
}

fn table_of_groups(plan: &CheckpointLayers, fates: &[TensorSummary<'_>]) -> Table {
    use Align::{Left, Right};
    let mut table =
        Table::new(&[("tensors", Left), ("n", Right), ("source", Left), ("becomes", Left), ("bytes", Right)]);
    let item = |fate: &TensorSummary<'_>| {
        (fate.source.name().to_owned(), (shape_of(fate), fate.becomes()), fate.output_bytes(plan))
    };
    for group in pattern::group(fates.iter().map(item)) {
        let (source, becomes) = &group.key;
        table.push([&group.to_string(), &group.count.to_string(), source, becomes, &size::bytes(group.bytes)]);
    }
    table
}

/// Type and shape of the source: `BF16 384x128`.
fn shape_of(fate: &TensorSummary<'_>) -> String {
    format!("{} {}", fate.source.dtype(), size::shape(fate.source.shape()))
}

fn totals(planned: &CheckpointPlan) -> Vec<Line> {
    let CheckpointPlan { plan, cost, .. } = planned;
    let (peak, threads) = (size::bytes(planned.peak_memory()), number(cost.threads, "thread"));
    let memory = match &cost.estimate {
        Some(_) => format!("about {peak} at most, {threads}"),
        None => format!("{peak} at most with {threads}"),
    };
    let download = remote::download_bytes(&planned.checkpoint);
    let download = download.map(|bytes| ("download", format!("{}, which is not kept", size::bytes(bytes))));
    let needs = cost.lacks_data.then(|| ("needs", NEEDS_DATA.to_owned()));
    let lines = [
        counts::layers(plan),
        match planned.is_graph {
            // Weights are most of it, and take about as much room in both.
            true => counts::about_sizes(plan.source_bytes(), plan.layout().total_size()),
            false => counts::sizes(plan.source_bytes(), plan.layout().total_size()),
        },
        counts::bits(plan.bits_per_weight(), "layers"),
        ("memory", memory),
        ("loads with", loaders(planned)),
    ];
    let attention = plan.recipe().attention_words();
    let observed = format!("{} activation points are observed", plan.sites().len());
    let more = [
        download,
        needs,
        (!attention.is_empty()).then(|| ("attention", attention.join(", "))),
        (!plan.sites().is_empty()).then_some(("calibration", observed)),
    ];
    lines.into_iter().chain(more.into_iter().flatten()).chain(cost_lines(planned)).collect()
}

/// The need of a plan without data.
const NEEDS_DATA: &str = "calibration data: add ‹calib› FILE";

/// The estimated cost of algorithms; empty without any.
pub(super) fn cost_lines(planned: &CheckpointPlan) -> Vec<Line> {
    let Cost { size: CalibrationSize { sequences, length, .. }, estimate: Some(cost), .. } = &planned.cost else {
        return Vec::new();
    };
    let data = format!(
        "{}: {} of {length}, if there are as many",
        number(cost.tokens, "token"),
        number(*sequences, "sequence")
    );
    let shares = [
        ("runs of blocks", cost.passes),
        ("trials of scales", cost.search),
        ("Hessians", cost.hessians),
        ("factors and codes", cost.rounding),
        ("tuning of blocks", cost.tuning),
        ("learning a rotation", cost.rotation),
    ];
    let share = |(name, operations): &(&str, f64)| format!("{name} {:.0} %", 100.0 * operations / cost.operations());
    let shares: Vec<String> = shares.iter().filter(|(_, operations)| *operations > 0.0).map(share).collect();
    let work = format!("about {}: {}", size::operations(cost.operations()), shares.join(", "));
    let disk = format!("about {} next to the output during the run", size::bytes(cost.disk));
    let algorithms = planned.plan.recipe().algorithms().to_string();
    vec![("algorithms", algorithms), ("calibration", data), ("arithmetic", work), ("disk", disk)]
}

fn loaders(planned: &CheckpointPlan) -> String {
    let plan = &planned.plan;
    if planned.is_graph {
        return "ONNX Runtime".to_owned();
    }
    if plan.format() == OutputFormat::TENSORS {
        return "no runtime, as a model: codes and scales of single tensors, described in their files".to_owned();
    }
    let loaders = plan.loaders();
    if loaders.is_empty() { "no known loader".to_owned() } else { loaders.join(", ") }
}
