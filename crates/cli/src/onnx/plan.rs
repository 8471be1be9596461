//! `kvant plan model.onnx`: what would become of every tensor.

use super::{read, recipe};
use crate::args::{RecipeArgs, RunArgs};
use crate::escape::printable;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::table::{Align, Table};
use crate::{counts, model, size};
use kvant_onnx::calibration::sessions;
use kvant_onnx::cost::Cost;
use kvant_onnx::count::{ConstantBytes, Counts};
use kvant_onnx::placement::Skipped;
use kvant_onnx::quantize::{Prepared, prepare};
use kvant_onnx::settings::Resolved;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Plans and prints the plan.
///
/// # Errors
/// Whatever `kvant quantize` would refuse before it reads data.
pub fn show(args: &RecipeArgs, run: &RunArgs, printer: &Printer) -> Result<(), Failure> {
    let Resolved { recipe, passes } = recipe::recipe(args)?;
    let prepared = prepare(read(&args.model)?, recipe, &passes, None)?;
    let samples = args.calibration.num_samples;
    let cost = Cost::of(&prepared, sessions(Some(model::threads(run))).min(samples));
    match printer.is_json() {
        true => printer.json("plan", &object(&args.model, &prepared, &cost))?,
        false => {
            let totals = totals(&cost, samples, prepared.is_estimate());
            printer.data(&format!("{}\n{totals}", text(&prepared, printer.width())))?;
        }
    }
    prepared.notices().iter().for_each(|notice| printer.note(notice));
    Ok(())
}

/// Sizes, and what calibration takes, estimated.
fn totals(cost: &Cost, samples: usize, is_estimate: bool) -> String {
    let ConstantBytes { source_bytes: before, output_bytes: after } = cost.constants;
    let about = if is_estimate { "about " } else { "" };
    let (from, to) = (size::bytes(before), size::bytes(after));
    let size = format!("constants: {from} to {about}{to}, {}", size::ratio(before, after));
    if cost.observed == 0 {
        return size;
    }
    let work = cost.multiplications.map(|n| 2.0 * n as f64 * samples as f64);
    let work = work.map_or_else(|| "unknown, shapes are open".to_owned(), |n| format!("about {}", size::operations(n)));
    let memory = cost.memory.map_or_else(|| "unknown".to_owned(), |bytes| format!("about {}", size::bytes(bytes)));
    format!(
        "{size}\ncalibration on {}, if there are as many: arithmetic {work}, memory {memory}",
        counts::number(samples, "sample")
    )
}

/// One line for each quantized tensor: role, name, type, what its scale is of.
fn rows(prepared: &Prepared) -> Vec<[String; 4]> {
    let placement = &prepared.placement;
    let activations = placement.activations.iter().map(|(name, a)| {
        let channels = a.channels.map_or_else(String::new, |c| format!(", per channel of axis {}", c.axis));
        let own = || format!("{}{channels}", a.scheme.method);
        let scale = a.provider.as_ref().map_or_else(own, |p| format!("that of {p}"));
        ["activation".to_owned(), name.clone(), a.scheme.element.to_string(), scale]
    });
    let weights = placement.weights.iter().map(|(name, w)| {
        let scale = w.axis.map_or_else(|| "per tensor".to_owned(), |axis| format!("per channel of axis {axis}"));
        ["weight".to_owned(), name.clone(), w.scheme.element.to_string(), scale]
    });
    let biases = placement.biases.iter().map(|(name, b)| {
        ["bias".to_owned(), name.clone(), b.element.to_string(), format!("{} times {}", b.input, b.weight)]
    });
    activations.chain(weights).chain(biases).collect()
}

fn object(model: &Path, prepared: &Prepared, cost: &Cost) -> Value {
    let counts = Counts::of(prepared);
    let tensors = rows(prepared)
        .into_iter()
        .map(|[role, name, element, scale]| json!({"role": role, "name": name, "dtype": element, "scale": scale}));
    let skipped = prepared.placement.skipped.iter().map(|s| json!({"node": s.node, "reason": s.reason}));
    let passes = prepared.passes.iter().filter(|(_, n)| *n > 0).map(|(name, n)| json!({"pass": name, "rewrites": n}));
    json!({
        "model": model.display().to_string(),
        "format": "onnx",
        "nodes": counts.nodes,
        "quantized_nodes": counts.quantized_nodes,
        "quantized_tensors": counts.quantized_tensors,
        "is_estimate": prepared.is_estimate(),
        "needs_data": prepared.needs_data(),
        "cost": cost,
        "passes": passes.collect::<Vec<_>>(),
        "notices": prepared.notices(),
        "tensors": tensors.collect::<Vec<_>>(),
        "left_in_float": skipped.collect::<Vec<_>>(),
    })
}

/// How many nodes stay in float although a recipe means them, by the reason.
fn left_in_float(skipped: &[Skipped]) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    skipped.iter().for_each(|skipped| reasons.entry(skipped.reason).or_default().push(&skipped.node));
    let line = |(reason, nodes): (&str, Vec<&str>)| {
        let first = printable(nodes.first().copied().unwrap_or_default());
        format!("\n{} left in float, `{first}` for one: {reason}", counts::number(nodes.len(), "node"))
    };
    reasons.into_iter().map(line).collect()
}

fn text(prepared: &Prepared, width: usize) -> String {
    let mut table = Table::new(&["role", "tensor", "type", "scale"].map(|title| (title, Align::Left)));
    for row in rows(prepared) {
        table.push(row.map(|cell| printable(&cell).to_string()));
    }
    let passes: Vec<String> = prepared.passes.iter().filter(|(_, n)| *n > 0).map(|(p, n)| format!("{p} {n}")).collect();
    let passes = if passes.is_empty() { "none".to_owned() } else { passes.join(", ") };
    let left = left_in_float(&prepared.placement.skipped);
    let about = if prepared.is_estimate() { "about " } else { "" };
    format!(
        "{}\n\n{about}{}, {} to observe on data\nrewrites: {passes}{left}",
        table.render(width),
        Counts::of(prepared),
        prepared.observation().tensors().len(),
    )
}
