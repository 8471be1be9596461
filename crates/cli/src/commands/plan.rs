//! `kvant plan`: what would become of every tensor.

use super::{plan_gguf, plan_graph};
use crate::args::PlanArgs;
use crate::printer::Printer;
use crate::progress::Console;
use crate::summary::{self, Line};
use crate::table::{Align, Table};
use crate::{interrupt, pattern};
use kvant::text::{counts, size};
use kvant::{CheckpointPlan, Cost, Error, Fate, Job, Plan as PlannedJob, json};
use kvant_llm::format::OutputFormat;
use kvant_llm::plan::{CalibrationSize, Plan};

/// Plans and prints the plan.
///
/// # Errors
/// Whatever `kvant quantize` would refuse.
pub fn run(args: PlanArgs, printer: &Printer) -> Result<(), Error> {
    let all = args.all;
    show(&Job::from(args), all, printer)
}

/// Prints the plan of a job; `all` has a line for every tensor.
///
/// # Errors
/// See [`run`].
pub fn show(job: &Job, all: bool, printer: &Printer) -> Result<(), Error> {
    interrupt::exit_on_signal();
    let planned = job.plan(&mut Console::new(printer))?;
    if let (PlannedJob::Graph(plan), true) = (&planned, printer.is_json()) {
        printer.json("plan", &planned.to_json())?;
        plan.prepared.notices().iter().for_each(|notice| printer.note(notice));
        return Ok(());
    }
    if printer.is_json() {
        return printer.data(&json::object("plan", &planned.to_json(), "tensors", planned.tensors_json().into_iter()));
    }
    match &planned {
        PlannedJob::Graph(plan) => plan_graph::show(plan, printer),
        PlannedJob::Gguf(plan) => plan_gguf::show(&plan.plan, None, plan.threads, all, printer),
        PlannedJob::Checkpoint(planned) => match &planned.file {
            Some(file) => {
                if planned.cost.lacks_data {
                    printer.note(&format!("the run needs {NEEDS_DATA}"));
                }
                plan_gguf::show(file, Some(planned), planned.cost.threads, all, printer)
            }
            None => show_checkpoint(planned, all, printer),
        },
    }
}

fn show_checkpoint(planned: &CheckpointPlan, all: bool, printer: &Printer) -> Result<(), Error> {
    let plan = &planned.plan;
    let table = table(plan, &planned.fates(), all).render(printer.width());
    printer.data(&format!("{}\n\n{table}\n\n{}", title(planned), totals(planned)))?;
    // What stays in floats stands at the top already.
    let notes = plan.notices.iter().filter(|notice| Some(*notice) != plan.float_share.as_ref());
    notes.for_each(|notice| printer.note(notice));
    Ok(())
}

/// The model, the scheme and the format in a line, and in another what stays in floats where that is much.
fn title(planned: &CheckpointPlan) -> String {
    let plan = &planned.plan;
    let family = plan.family.map_or("no family that is known".to_owned(), |family| format!("family {family}"));
    let share = plan.float_share.as_ref().map(|share| format!("\n{share}")).unwrap_or_default();
    let (scheme, format) = (plan.recipe.scheme_name(), planned.format());
    format!("{} ({family}) to {scheme}, format {format}{share}", plan.architecture)
}

fn table(plan: &Plan, fates: &[Fate<'_>], all: bool) -> Table {
    if all { table_of_all(plan, fates) } else { table_of_groups(plan, fates) }
}

fn table_of_all(plan: &Plan, fates: &[Fate<'_>]) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("tensor", Left), ("source", Left), ("becomes", Left), ("bytes", Right)]);
    for fate in fates {
        let bytes = size::bytes(fate.output_bytes(plan));
        table.push([fate.source.name().to_owned(), shape_of(fate), fate.becomes(), bytes]);
    }
    table
}

fn table_of_groups(plan: &Plan, fates: &[Fate<'_>]) -> Table {
    use Align::{Left, Right};
    let mut table =
        Table::new(&[("tensors", Left), ("n", Right), ("source", Left), ("becomes", Left), ("bytes", Right)]);
    let item =
        |fate: &Fate<'_>| (fate.source.name().to_owned(), (shape_of(fate), fate.becomes()), fate.output_bytes(plan));
    for group in pattern::group(fates.iter().map(item)) {
        let (source, becomes) = &group.key;
        table.push([&group.to_string(), &group.count.to_string(), source, becomes, &size::bytes(group.bytes)]);
    }
    table
}

/// Type and shape of the source: `BF16 384x128`.
fn shape_of(fate: &Fate<'_>) -> String {
    format!("{} {}", fate.source.dtype(), size::shape(fate.source.shape()))
}

fn totals(planned: &CheckpointPlan) -> String {
    let CheckpointPlan { plan, cost, .. } = planned;
    let (peak, threads) = (size::bytes(planned.peak_memory()), cost.threads);
    let memory = match &cost.estimate {
        Some(_) => format!("about {peak} at most, {threads} threads"),
        None => format!("{peak} at most with {threads} threads"),
    };
    let needs = cost.lacks_data.then(|| ("needs", NEEDS_DATA.to_owned()));
    let lines = [
        counts::layers(plan),
        match planned.is_graph {
            // Weights are most of it, and take about as much room in both.
            true => counts::about_sizes(plan.source_bytes, plan.layout.total_size()),
            false => counts::sizes(plan.source_bytes, plan.layout.total_size()),
        },
        counts::bits(plan.bits_per_weight(), "layers"),
        ("memory", memory),
        ("loads with", loaders(planned)),
    ];
    let attention = plan.recipe.attention_words();
    let observed = format!("{} places of activations are observed", plan.sites.len());
    let more = [
        needs,
        (!attention.is_empty()).then(|| ("attention", attention.join(", "))),
        (!plan.sites.is_empty()).then_some(("calibration", observed)),
    ];
    summary::lines(lines.into_iter().chain(more.into_iter().flatten()).chain(cost_lines(planned)))
}

/// What is said of a plan without data.
const NEEDS_DATA: &str = "calibration data, which the run is given with --calib FILE";

/// What algorithms take, estimated; nothing where there are none.
pub(super) fn cost_lines(planned: &CheckpointPlan) -> Vec<Line> {
    let Cost { size: CalibrationSize { sequences, length, .. }, estimate: Some(cost), .. } = &planned.cost else {
        return Vec::new();
    };
    let data = format!("{} tokens: {sequences} sequences of {length}, if there are as many", cost.tokens);
    let shares = [
        ("runs of blocks", cost.passes),
        ("trials of scales", cost.search),
        ("Hessians", cost.hessians),
        ("factors and codes", cost.rounding),
    ];
    let share = |(name, operations): &(&str, f64)| format!("{name} {:.0} %", 100.0 * operations / cost.operations());
    let shares: Vec<String> = shares.iter().filter(|(_, operations)| *operations > 0.0).map(share).collect();
    let work = format!("about {}: {}", size::operations(cost.operations()), shares.join(", "));
    let disk = format!("about {} beside the output while it is made", size::bytes(cost.disk));
    let algorithms = planned.plan.recipe.algorithms().to_string();
    vec![("algorithms", algorithms), ("calibration", data), ("arithmetic", work), ("disk", disk)]
}

fn loaders(planned: &CheckpointPlan) -> String {
    let plan = &planned.plan;
    if planned.is_graph {
        return "ONNX Runtime".to_owned();
    }
    if plan.format == OutputFormat::TENSORS {
        return "no runtime, as a model: codes and scales of single tensors, described in their files".to_owned();
    }
    let loaders = plan.loaders();
    if loaders.is_empty() { "no known loader".to_owned() } else { loaders.join(", ") }
}
