//! `kvant plan` where the output is a GGUF file: what would become of every tensor.

use super::{note_data, plan_for};
use crate::args::PlanArgs;
use crate::commands::plan::Codes;
use crate::failure::Failure;
use crate::outputs::{OutputKind, check_name};
use crate::printer::Printer;
use crate::table::{Align, Table};
use crate::{counts, json_lines, model, pattern, size};
use kvant_container::Checkpoint;
use kvant_llm::engine::{Deliverable, Output};
use kvant_llm::gguf::plan::PlannedTensor;
use kvant_llm::gguf::{GgufPlan, GgufRecipe};
use serde_json::{Value, json};

/// Plans and prints the plan.
///
/// # Errors
/// Whatever `kvant quantize` would refuse.
pub fn run(args: &PlanArgs, recipe: GgufRecipe, printer: &Printer) -> Result<(), Failure> {
    note_data(&args.recipe, &recipe, printer);
    let (checkpoint, plan) = plan_for(&args.recipe, recipe, args.output.as_deref())?;
    plan.foresee(&checkpoint)?;
    if let Some(output) = &args.output {
        check_name(output, OutputKind::Gguf, "--format")?;
        Output::check(&plan, &args.recipe.model, output, args.overwrite)?;
    }
    let view = View { plan: &plan, codes: None, all: args.all, threads: model::threads(&args.run) };
    show(&view, &checkpoint, printer)
}

/// How a plan is shown.
pub struct View<'a> {
    /// The plan.
    pub plan: &'a GgufPlan,
    /// That of the codes, where the file is made of codes that are still to be made.
    pub codes: Option<Codes<'a>>,
    /// A line for every tensor.
    pub all: bool,
    /// How many threads would work.
    pub threads: usize,
}

impl View<'_> {
    /// What is asked for, in a word.
    fn scheme(&self) -> String {
        self.codes.as_ref().map_or_else(|| self.plan.recipe.mix().to_string(), |codes| codes.plan.recipe.scheme_name())
    }

    /// Words to the user about the codes and about the file.
    fn notices(&self) -> impl Iterator<Item = &String> {
        self.codes.iter().flat_map(|codes| &codes.plan.notices).chain(&self.plan.notices)
    }
}

/// Prints a plan.
///
/// # Errors
/// When stdout cannot be written.
pub fn show(view: &View<'_>, checkpoint: &Checkpoint, printer: &Printer) -> Result<(), Failure> {
    if printer.is_json() {
        return printer.data(&json_text(view, checkpoint));
    }
    let plan = view.plan;
    let table = if view.all { table_of_all(plan) } else { table_of_groups(plan) };
    let family = plan.family.unwrap_or("unknown");
    let title = format!("family {family} to {}, export gguf ({})", view.scheme(), plan.architecture);
    printer.data(&format!("{title}\n\n{}\n\n{}", table.render(printer.width()), totals(view)))?;
    view.notices().for_each(|notice| printer.note(notice));
    Ok(())
}

/// Each tensor with its bytes, and the tensors of the source that are left out.
fn rows(plan: &GgufPlan) -> impl Iterator<Item = (String, [String; 4], u64)> {
    let made = plan.tensors.iter().zip(plan.layout.places()).map(|(tensor, place)| {
        let key =
            [source_text(plan, tensor), size::shape(&tensor.shape), tensor.kind.to_string(), tensor.reason.text()];
        (tensor.name.clone(), key, place.len)
    });
    let dropped = plan.dropped.iter().map(|tensor| {
        let key = [tensor.name.clone(), String::new(), "left out".to_owned(), tensor.reason.to_owned()];
        ("-".to_owned(), key, 0)
    });
    made.chain(dropped)
}

/// What a tensor is made of: the first of its tensors in the source, and how many more there are.
fn source_text(plan: &GgufPlan, tensor: &PlannedTensor) -> String {
    match plan.sources_of(tensor).as_slice() {
        [] => "config.json".to_owned(),
        [one] => (*one).to_owned(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    }
}

fn table_of_all(plan: &GgufPlan) -> Table {
    use Align::{Left, Right};
    let titles = [("tensor", Left), ("from", Left), ("shape", Left), ("type", Left), ("why", Left), ("bytes", Right)];
    let mut table = Table::new(&titles);
    for (name, [from, shape, kind, why], bytes) in rows(plan) {
        table.push([name, from, shape, kind, why, size::bytes(bytes)]);
    }
    table
}

fn table_of_groups(plan: &GgufPlan) -> Table {
    use Align::{Left, Right};
    let titles = [("tensors", Left), ("n", Right), ("shape", Left), ("type", Left), ("why", Left), ("bytes", Right)];
    let mut table = Table::new(&titles);
    let item = |(name, [from, shape, kind, why], bytes): (String, [String; 4], u64)| {
        let name = if name == "-" { from } else { name };
        (name, [shape, kind, why], bytes)
    };
    for group in pattern::group(rows(plan).map(item)) {
        let [shape, kind, why] = &group.key;
        table.push([&group.to_string(), &group.count.to_string(), shape, kind, why, &size::bytes(group.bytes)]);
    }
    table
}

fn totals(view: &View<'_>) -> String {
    let View { plan, threads, .. } = *view;
    let (title, tensors) = counts::tensors(plan);
    let lines = [
        (title, format!("{tensors}; {} of the source left out", plan.dropped.len())),
        counts::sizes(plan.source_bytes, plan.layout.file_len()),
        counts::bits(plan.bits_per_weight(), "tensors"),
        ("memory", format!("{} at most with {threads} threads", size::bytes(plan.peak_memory(threads)))),
        ("loads with", plan.loaders().join(", ")),
    ];
    let costs = view.codes.as_ref().map(|codes| codes.cost().0).unwrap_or_default();
    lines.iter().chain(&costs).map(|(name, value)| format!("{name:<15}  {value}")).collect::<Vec<_>>().join("\n")
}

/// One object, with a line for every tensor.
fn json_text(view: &View<'_>, checkpoint: &Checkpoint) -> String {
    let View { plan, threads, .. } = *view;
    let recipe = view.codes.as_ref().map_or_else(|| json!(plan.recipe), |codes| json!(codes.plan.recipe));
    let head = json!({
        "model": checkpoint.path().display().to_string(),
        "family": plan.family,
        "architecture": plan.architecture,
        "recipe": recipe,
        "format": "gguf",
        "loaders": plan.loaders(),
        "source_bytes": plan.source_bytes,
        "output_bytes": plan.layout.file_len(),
        "quantized_layers": plan.quantized(),
        "bits_per_weight": plan.bits_per_weight(),
        "threads": threads,
        "peak_memory": plan.peak_memory(threads),
        "metadata": plan.metadata.entries().len(),
        "dropped": plan.dropped.iter().map(|t| json!({"name": t.name, "reason": t.reason})).collect::<Vec<_>>(),
        "calibration": view.codes.as_ref().and_then(|codes| codes.cost().1),
        "notices": view.notices().collect::<Vec<_>>(),
    });
    let tensors = plan.tensors.iter().zip(plan.layout.places());
    json_lines::object("plan", &head, "tensors", tensors.map(|(tensor, place)| json_of(plan, tensor, place.len)))
}

fn json_of(plan: &GgufPlan, tensor: &PlannedTensor, bytes: u64) -> Value {
    json!({
        "name": tensor.name,
        "dtype": tensor.kind.name(),
        "shape": tensor.shape,
        "bytes": bytes,
        "reason": tensor.reason.text(),
        "sources": plan.sources_of(tensor),
    })
}
