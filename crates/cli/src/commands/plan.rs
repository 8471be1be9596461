//! `kvant plan`: what would become of every tensor.

use crate::args::{CalibrationArgs, FinishArgs, Format, PlanArgs, RecipeArgs, RunArgs};
use crate::calibration::{self, options};
use crate::failure::Failure;
use crate::fate::{Fate, fates};
use crate::model::Planned;
use crate::outputs::Outputs;
use crate::pattern;
use crate::printer::Printer;
use crate::table::{Align, Table};
use crate::{counts, gguf, json_lines, memory, model, onnx, size};
use kvant_container::Checkpoint;
use kvant_llm::calibration::data::Options;
use kvant_llm::export::Export;
use kvant_llm::plan::{CalibrationCost, CalibrationSize, Plan, PlannedSite};
use serde_json::{Value, json};

/// Plans and prints the plan.
///
/// # Errors
/// Whatever `kvant quantize` would refuse.
pub fn run(mut args: PlanArgs, printer: &Printer) -> Result<(), Failure> {
    model::complete(&mut args.recipe)?;
    let args = &args;
    if onnx::is_graph(&args.recipe.model) {
        return onnx::plan::show(&args.recipe, &args.run, printer);
    }
    if let Some(recipe) = gguf::recipe(&args.recipe)? {
        return gguf::plan::run(args, recipe, printer);
    }
    let finish = FinishArgs { overwrite: args.overwrite, restart: false, sync: false, no_verify: false };
    let outputs = args.output.as_deref().map(|output| Outputs::of(&args.recipe, finish, &args.run, output));
    let planned = model::outline(&args.recipe, &gguf::file_name(outputs.as_ref().and_then(Outputs::file)))?;
    planned.foresee()?;
    if let Some(outputs) = &outputs {
        outputs.check(&planned)?;
    }
    let view = View { all: args.all, ..View::usual(&args.run, &args.recipe.calibration) };
    show(&planned, &args.recipe, &view, printer)
}

/// How a plan is shown.
pub struct View<'a> {
    /// A line for every tensor.
    pub all: bool,
    /// How many threads would work.
    pub threads: usize,
    /// The data that algorithms would see.
    pub calibration: &'a CalibrationArgs,
    /// Whether what is made is a graph of the checkpoint, which alone is not kept.
    pub is_graph: bool,
}

impl View<'_> {
    /// The usual view.
    pub fn usual<'a>(run: &RunArgs, calibration: &'a CalibrationArgs) -> View<'a> {
        View { all: false, threads: model::threads(run), calibration, is_graph: false }
    }

    /// How much data there will be, unless they run out.
    fn size(&self, plan: &Plan) -> CalibrationSize {
        let options = options(self.calibration, plan.longest);
        let (sequences, length) = (options.samples as u64, options.sequence_length as u64);
        let held_out = Options::tenth(options.samples) as u64;
        let (memory, tokenizing) = (self.calibration.max_memory.0, options.tokenizer_memory());
        CalibrationSize {
            sequences,
            held_out,
            length,
            memory,
            tokenizing,
            precision: self.calibration.precision.of_pass(),
        }
    }

    /// Whether the run needs data of which none are named.
    fn lacks_data(&self, plan: &Plan) -> bool {
        self.calibration.calib.is_empty() && (plan.needs_calibration() || !plan.blocks.is_empty())
    }

    /// Tells where this machine may have too little memory for the algorithms.
    pub fn note_shortage(&self, plan: &Plan, printer: &Printer) {
        let shortage = self.cost(plan).and_then(|cost| memory::shortage(cost.peak_memory, memory::available()));
        shortage.iter().for_each(|shortage| printer.note(shortage));
    }

    /// What running algorithms takes.
    pub fn cost(&self, plan: &Plan) -> Option<CalibrationCost> {
        plan.calibration_cost(self.size(plan), self.threads)
    }
}

/// Prints what was planned: the checkpoint, or the file of its codes where that alone is asked for.
///
/// # Errors
/// Data that cannot be what they should; when stdout cannot be written.
pub fn show(planned: &Planned, recipe: &RecipeArgs, view: &View<'_>, printer: &Printer) -> Result<(), Failure> {
    let Planned { checkpoint, plan, file } = planned;
    calibration::check(&recipe.calibration, plan.longest)?;
    view.note_shortage(plan, printer);
    let view = &View { is_graph: recipe.format == [Format::Onnx], ..*view };
    match file.as_ref().filter(|_| recipe.format.len() == 1) {
        Some(file) => {
            if view.lacks_data(plan) {
                printer.note(&format!("the run needs {NEEDS_DATA}"));
            }
            let codes = Some(Codes { plan, view });
            let view = gguf::plan::View { plan: file, codes, all: view.all, threads: view.threads };
            gguf::plan::show(&view, checkpoint, printer)
        }
        None => show_checkpoint(plan, checkpoint, view, printer),
    }
}

/// The plan of codes that a file is made of.
pub struct Codes<'a> {
    /// The plan.
    pub plan: &'a Plan,
    view: &'a View<'a>,
}

impl Codes<'_> {
    /// What running algorithms takes, in lines and as a value.
    pub fn cost(&self) -> (Vec<(&'static str, String)>, Option<CalibrationCost>) {
        let cost = self.view.cost(self.plan);
        let lines = cost.as_ref().map(|cost| cost_lines(self.plan, self.view, cost).to_vec());
        (lines.unwrap_or_default(), cost)
    }
}

fn show_checkpoint(plan: &Plan, checkpoint: &Checkpoint, view: &View<'_>, printer: &Printer) -> Result<(), Failure> {
    let fates = fates(plan, checkpoint);
    if printer.is_json() {
        return printer.data(&json_text(plan, checkpoint, &fates, view));
    }
    let table = table(plan, &fates, view.all).render(printer.width());
    printer.data(&format!("{}\n\n{table}\n\n{}", title(plan, view), totals(plan, view)))?;
    // What stays in floats stands at the top already.
    let notes = plan.notices.iter().filter(|notice| Some(*notice) != plan.float_share.as_ref());
    notes.for_each(|notice| printer.note(notice));
    Ok(())
}

/// The model, the scheme and the export in a line, and in another what stays in floats where that is much.
fn title(plan: &Plan, view: &View<'_>) -> String {
    let family = plan.family.map_or("no family that is known".to_owned(), |family| format!("family {family}"));
    let share = plan.float_share.as_ref().map(|share| format!("\n{share}")).unwrap_or_default();
    let (scheme, export) = (plan.recipe.scheme_name(), format_of(plan, view));
    format!("{} ({family}) to {scheme}, export {export}{share}", plan.architecture)
}

/// The name of the format that is made.
fn format_of(plan: &Plan, view: &View<'_>) -> &'static str {
    if view.is_graph { Format::Onnx.name() } else { plan.export.row().name }
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

fn totals(plan: &Plan, view: &View<'_>) -> String {
    let cost = view.cost(plan);
    let memory = match &cost {
        Some(cost) => format!("about {} at most, {} threads", size::bytes(cost.peak_memory), view.threads),
        None => format!("{} at most with {} threads", size::bytes(plan.peak_memory(view.threads)), view.threads),
    };
    let needs = view.lacks_data(plan).then(|| ("needs", NEEDS_DATA.to_owned()));
    let lines = [
        counts::layers(plan),
        match view.is_graph {
            // Weights are most of it, and take about as much room in both.
            true => counts::about_sizes(plan.source_bytes, plan.layout.total_size()),
            false => counts::sizes(plan.source_bytes, plan.layout.total_size()),
        },
        counts::bits(plan.bits_per_weight(), "layers"),
        ("memory", memory),
        ("loads with", loaders(plan, view)),
    ];
    let attention = plan.recipe.attention_words();
    let observed = format!("{} places of activations are observed", plan.sites.len());
    let more = [
        needs,
        (!attention.is_empty()).then(|| ("attention", attention.join(", "))),
        (!plan.sites.is_empty()).then_some(("calibration", observed)),
    ];
    let costs = cost.map(|cost| cost_lines(plan, view, &cost)).into_iter().flatten();
    let all = lines.into_iter().chain(more.into_iter().flatten()).chain(costs);
    all.map(|(name, value)| format!("{name:<15}  {value}")).collect::<Vec<_>>().join("\n")
}

/// What is said of a plan without data.
const NEEDS_DATA: &str = "calibration data, which the run is given with --calib FILE";

/// What algorithms take, estimated.
fn cost_lines(plan: &Plan, view: &View<'_>, cost: &CalibrationCost) -> [(&'static str, String); 4] {
    let CalibrationSize { sequences, length, .. } = view.size(plan);
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
    [("algorithms", plan.recipe.algorithms().to_string()), ("calibration", data), ("arithmetic", work), ("disk", disk)]
}

fn loaders(plan: &Plan, view: &View<'_>) -> String {
    if view.is_graph {
        return "ONNX Runtime".to_owned();
    }
    if plan.export == Export::Tensors {
        return "no runtime, as a model: codes and scales of single tensors, described in their files".to_owned();
    }
    let loaders = plan.loaders();
    if loaders.is_empty() { "no known loader".to_owned() } else { loaders.join(", ") }
}

/// One object, with a line for every tensor.
fn json_text(plan: &Plan, checkpoint: &Checkpoint, fates: &[Fate<'_>], view: &View<'_>) -> String {
    let cost = view.cost(plan);
    let head = json!({
        "model": checkpoint.path().display().to_string(),
        "architecture": plan.architecture,
        "family": plan.family,
        "recipe": plan.recipe,
        "format": format_of(plan, view),
        "loaders": if view.is_graph { vec!["onnxruntime"] } else { plan.loaders() },
        "source_bytes": plan.source_bytes,
        "output_bytes": plan.layout.total_size(),
        "files": plan.layout.shards().len(),
        "quantized_layers": plan.layers.len(),
        "quantized_parameters": plan.quantized_parameters(),
        "bits_per_weight": plan.bits_per_weight(),
        "sites": plan.sites.iter().map(site).collect::<Vec<_>>(),
        "threads": view.threads,
        "peak_memory": cost.map_or_else(|| plan.peak_memory(view.threads), |cost| cost.peak_memory),
        "calibration": cost,
        "needs_data": view.lacks_data(plan),
        "notices": plan.notices,
    });
    json_lines::object("plan", &head, "tensors", fates.iter().map(|fate| json_of(plan, fate)))
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
