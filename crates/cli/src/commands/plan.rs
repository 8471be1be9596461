//! `kvant plan`: what would become of every tensor.

use crate::args::{PlanArgs, RunArgs};
use crate::failure::Failure;
use crate::fate::{Fate, fates};
use crate::pattern;
use crate::printer::Printer;
use crate::table::{Align, Table};
use crate::{json_lines, model, size};
use kvant_container::Checkpoint;
use kvant_llm::engine::Output;
use kvant_llm::plan::{Plan, PlannedSite};
use serde_json::{Value, json};

/// Plans and prints the plan.
///
/// # Errors
/// Whatever `kvant quantize` would refuse.
pub fn run(args: &PlanArgs, printer: &Printer) -> Result<(), Failure> {
    let (checkpoint, plan) = model::plan(&args.recipe)?;
    if let Some(output) = &args.output {
        Output::check(&plan, &args.recipe.model, output, args.overwrite)?;
    }
    show(&plan, &checkpoint, &View { all: args.all, threads: model::threads(&args.run) }, printer)
}

/// How a plan is shown.
pub struct View {
    /// A line for every tensor.
    pub all: bool,
    /// How many threads would work.
    pub threads: usize,
}

impl View {
    /// The usual view.
    pub fn usual(args: &RunArgs) -> View {
        View { all: false, threads: model::threads(args) }
    }
}

/// Prints a plan.
///
/// # Errors
/// When stdout cannot be written.
pub fn show(plan: &Plan, checkpoint: &Checkpoint, view: &View, printer: &Printer) -> Result<(), Failure> {
    let fates = fates(plan, checkpoint);
    if printer.is_json() {
        return printer.data(&json_text(plan, checkpoint, &fates, view));
    }
    let table = table(plan, &fates, view.all).render();
    printer.data(&format!("{}\n\n{table}\n\n{}", title(plan), totals(plan, view)))?;
    plan.notices.iter().for_each(|notice| printer.note(notice));
    Ok(())
}

/// The model, the scheme and the export in a line.
fn title(plan: &Plan) -> String {
    let family = plan.family.map_or("no family that is known".to_owned(), |family| format!("family {family}"));
    format!("{} ({family}) to {}, export {}", plan.architecture, plan.recipe.scheme_name(), plan.export)
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

fn totals(plan: &Plan, view: &View) -> String {
    let (before, after) = (plan.source_bytes, plan.layout.total_size());
    let lines = [
        ("layers", format!("{} quantized, {} tensors kept", plan.layers.len(), plan.kept.len())),
        ("size", format!("{} to {}, {}", size::bytes(before), size::bytes(after), size::ratio(before, after))),
        ("bits per weight", format!("{:.2} in quantized layers, scales included", plan.bits_per_weight())),
        ("memory", format!("{} at most with {} threads", size::bytes(plan.peak_memory(view.threads)), view.threads)),
        ("loads with", loaders(plan)),
    ];
    let attention = plan.recipe.attention_words();
    let observed = format!("{} places of activations are observed", plan.sites.len());
    let more = [
        (!attention.is_empty()).then(|| ("attention", attention.join(", "))),
        (!plan.sites.is_empty()).then_some(("calibration", observed)),
    ];
    let all = lines.into_iter().chain(more.into_iter().flatten());
    all.map(|(name, value)| format!("{name:<15}  {value}")).collect::<Vec<_>>().join("\n")
}

fn loaders(plan: &Plan) -> String {
    let loaders = plan.loaders();
    if loaders.is_empty() { "nothing that is known of".to_owned() } else { loaders.join(", ") }
}

/// One object, with a line for every tensor.
fn json_text(plan: &Plan, checkpoint: &Checkpoint, fates: &[Fate<'_>], view: &View) -> String {
    let head = json!({
        "model": checkpoint.path().display().to_string(),
        "architecture": plan.architecture,
        "family": plan.family,
        "recipe": plan.recipe,
        "export": plan.export.row().name,
        "loaders": plan.loaders(),
        "source_bytes": plan.source_bytes,
        "output_bytes": plan.layout.total_size(),
        "files": plan.layout.shards().len(),
        "quantized_layers": plan.layers.len(),
        "quantized_parameters": plan.quantized_parameters(),
        "bits_per_weight": plan.bits_per_weight(),
        "sites": plan.sites.iter().map(site).collect::<Vec<_>>(),
        "threads": view.threads,
        "peak_memory": plan.peak_memory(view.threads),
        "notices": plan.notices,
    });
    json_lines::object(&head, "tensors", fates.iter().map(|fate| json_of(plan, fate)))
}

/// A place whose activations are observed.
fn site(planned: &PlannedSite) -> Value {
    json!({ "site": planned.site, "scheme": planned.scheme, "features": planned.features })
}

fn json_of(plan: &Plan, fate: &Fate<'_>) -> Value {
    let layer = |layer: &&kvant_llm::plan::PlannedLayer| {
        json!({
            "name": layer.name, "role": layer.role, "rows": layer.rows, "columns": layer.columns,
            "scheme": layer.scheme, "shares_scale": layer.shares_scale,
        })
    };
    let output = |tensor: &usize| {
        let (declaration, place) = (&plan.layout.declarations()[*tensor], &plan.layout.places()[*tensor]);
        json!({
            "name": declaration.name, "dtype": declaration.dtype.to_string(), "shape": declaration.shape,
            "bytes": place.len, "file": plan.layout.shards()[place.shard].file_name(),
        })
    };
    json!({
        "name": fate.source.name(),
        "dtype": fate.source.dtype().to_string(),
        "shape": fate.source.shape(),
        "bytes": fate.source.byte_len(),
        "action": fate.action,
        "reason": fate.reason,
        "layers": fate.layers.iter().map(layer).collect::<Vec<_>>(),
        "outputs": fate.outputs.iter().map(output).collect::<Vec<_>>(),
    })
}
