//! Plans a graph: what would become of every tensor.

use super::outputs::{GraphOutputs, layout, refuse_repeated};
use super::quantize::{check_room, refuse_unrunnable, refuse_unusable_limits};
use super::ranges::{SavedRanges, UsedRanges};
use super::{data, read, recipe};
use crate::delivery::check_runs;
use crate::error::Error;
use crate::job::{Job, Sinks};
use kvant_container::unfinished::Claim;
use kvant_onnx::calibration::sessions;
use kvant_onnx::cost::Cost;
use kvant_onnx::count::Counts;
use kvant_onnx::quantize::{Prepared, prepare};
use kvant_onnx::recipe::Layout;
use kvant_onnx::settings::Resolved;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Plans a job.
///
/// # Errors
/// Whatever [`run`](super::quantize::run) would refuse before it reads data.
pub fn plan(job: &Job) -> Result<GraphPlan, Error> {
    let outputs = job.sinks.output.is_some().then(|| GraphOutputs::of(job)).transpose()?;
    if let Some(outputs) = &outputs {
        check_outputs(outputs, &job.sinks)?;
    }
    let Resolved { recipe, passes } = recipe::recipe(job)?;
    refuse_repeated(&job.sinks.graph_formats)?;
    refuse_unusable_limits(job)?;
    let saved = SavedRanges::of(job)?;
    let source = read(&job.source.model)?;
    let prepared = prepare(source.clone(), recipe, &passes, None)?;
    job.sinks.graph_formats.iter().try_for_each(|format| prepared.check_layout(layout(*format)))?;
    refuse_unrunnable(job, &prepared)?;
    saved.map_or(Ok(()), |saved| saved.check(&prepared))?;
    let found = match prepared.needs_data() {
        true => data::check(job, &prepared.model.graph)?,
        false => 0,
    };
    job.limits.pool()?.install(|| prepared.check_weights())?;
    if let Some(outputs) = &outputs {
        check_room(job, &source, outputs, &prepared, found)?;
    }
    let samples = job.data.num_samples;
    let cost = Cost::of(&prepared, sessions(Some(job.limits.threads())).min(samples));
    let lacks_data = job.data.files.is_empty() && prepared.needs_data();
    Ok(GraphPlan { model: job.source.model.clone(), prepared, cost, samples, lacks_data })
}

/// Refuses outputs that a run would refuse. Names that a killed run had given are taken back by the next run.
fn check_outputs(outputs: &GraphOutputs, sinks: &Sinks) -> Result<(), Error> {
    check_runs([outputs.named.as_path()], &sinks.settings, sinks.commit)?;
    if Claim::is_half_placed(&outputs.named) { Ok(()) } else { outputs.check(sinks) }
}

/// The plan of quantizing a graph.
pub struct GraphPlan {
    /// The source.
    pub model: PathBuf,
    /// The graph with its passes run and its pairs placed.
    pub prepared: Prepared,
    /// The cost of the run.
    pub cost: Cost,
    /// Calibration samples, if available.
    pub samples: usize,
    /// Whether the run needs data and none are given.
    pub lacks_data: bool,
}

impl GraphPlan {
    /// One line for each quantized tensor: role, name, type, what its scale is of.
    pub fn rows(&self) -> Vec<[String; 4]> {
        let placement = &self.prepared.placement;
        let activations = placement.activations.iter().map(|(name, a)| {
            let channels = a.channels.map_or_else(String::new, |c| format!(", per channel of axis {}", c.axis));
            let is_given = a.range.is_some() || !a.given.is_empty();
            let method = if is_given { "given".to_owned() } else { a.scheme.method.to_string() };
            let own = || format!("{method}{channels}");
            let scale = a.provider.as_ref().map_or_else(own, |p| format!("that of {p}"));
            ["activation".to_owned(), name.clone(), a.scheme.element.to_string(), scale]
        });
        let whole = match self.prepared.recipe.layout {
            Layout::MatMulNBits { block, .. } => format!("per block of {block}"),
            _ => "per tensor".to_owned(),
        };
        let weights = placement.weights.iter().map(|(name, w)| {
            let scale = w.axis.map_or_else(|| whole.clone(), |axis| format!("per channel of axis {axis}"));
            let scale = if w.given.is_empty() { scale } else { format!("given, {scale}") };
            ["weight".to_owned(), name.clone(), w.scheme.element.to_string(), scale]
        });
        let biases = placement.biases.iter().map(|(name, b)| {
            ["bias".to_owned(), name.clone(), b.element.to_string(), format!("{} times {}", b.input, b.weight)]
        });
        activations.chain(weights).chain(biases).collect()
    }

    /// The file of ranges that takes the place of data.
    pub fn ranges(&self) -> Option<UsedRanges> {
        UsedRanges::of(&self.prepared)
    }

    pub(crate) fn to_json(&self) -> Value {
        let prepared = &self.prepared;
        let counts = Counts::of(prepared);
        let tensors = self
            .rows()
            .into_iter()
            .map(|[role, name, element, scale]| json!({"role": role, "name": name, "dtype": element, "scale": scale}));
        let skipped = prepared.placement.skipped.iter().map(|s| json!({"node": s.node, "reason": s.reason}));
        let passes =
            prepared.passes.iter().filter(|(_, n)| *n > 0).map(|(name, n)| json!({"pass": name, "rewrites": n}));
        let mut object = json!({
            "model": self.model.display().to_string(),
            "format": "onnx",
            "nodes": counts.nodes,
            "quantized_nodes": counts.quantized_nodes,
            "quantized_tensors": counts.quantized_tensors,
            "is_estimate": prepared.is_estimate(),
            "needs_data": self.lacks_data,
            "cost": self.cost,
            "passes": passes.collect::<Vec<_>>(),
            "notices": prepared.notices(),
            "tensors": tensors.collect::<Vec<_>>(),
            "left_in_float": skipped.collect::<Vec<_>>(),
        });
        if let Some(ranges) = self.ranges() {
            object["ranges"] = json!(ranges);
        }
        object
    }
}
