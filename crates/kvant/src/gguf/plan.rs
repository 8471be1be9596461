//! Plans a GGUF file: what would become of every tensor.

use super::{check_output_name, check_room, note_data, plan_for};
use crate::delivery::{check_output, preflight};
use crate::error::Error;
use crate::events::Reporter;
use crate::job::Job;
use crate::json::path as path_json;
use crate::memory::{self, PeakMemory};
use crate::{calibration, quality};
use kvant_checkpoint::finite;
use kvant_checkpoint::gguf::plan::PlannedTensor;
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe};
use kvant_container::Checkpoint;
use kvant_forward::forward::Decoder;
use serde_json::{Value, json};

/// Plans a job.
///
/// # Errors
/// Whatever [`run`](super::quantize::run) would refuse.
pub fn plan(job: &Job, recipe: GgufRecipe, reporter: &Reporter<'_>) -> Result<GgufFilePlan, Error> {
    note_data(job, &recipe, reporter);
    let (checkpoint, plan) = plan_for(job, recipe)?;
    preflight(&plan, &checkpoint, job.sinks.commit)?;
    if !job.sinks.commit.no_verify {
        finite::check_vectors(&checkpoint)?;
    }
    if let Some(output) = &job.sinks.output {
        check_output_name(output, plan.recipe.max_size(), "‹format›")?;
    }
    check_output(&plan, &job.source.model, &job.sinks)?;
    check_room(&plan, &job.sinks)?;
    quality::preflight(job, &checkpoint)?;
    let threads = job.limits.threads();
    let bytes = match plan.recipe.needs_importance() {
        true => plan.measuring_memory(calibration::size(job, Decoder::open(&checkpoint)?.longest()), threads),
        false => plan.peak_memory(threads),
    };
    Ok(GgufFilePlan { checkpoint, plan, memory: PeakMemory { bytes: bytes + memory::PROGRAM, threads } })
}

/// The plan of writing a GGUF file.
pub struct GgufFilePlan {
    /// The source.
    pub checkpoint: Checkpoint,
    /// The file to make.
    pub plan: GgufPlan,
    /// What the run takes.
    pub memory: PeakMemory,
}

/// The plan of a file as JSON, without its tensors. Recipe, cost and notices may be those of the codes from which it is written.
pub fn to_json(plan: &GgufPlan, checkpoint: &Checkpoint, memory: PeakMemory) -> Value {
    json!({
        "model": path_json(checkpoint.path()),
        "family": plan.family,
        "architecture": plan.architecture,
        "recipe": plan.recipe,
        "format": "gguf",
        "loaders": plan.loaders(),
        "source_bytes": plan.source_bytes,
        "output_bytes": plan.layout.total_size(),
        "quantized_layers": plan.quantized(),
        "bits_per_weight": plan.bits_per_weight(),
        "threads": memory.threads,
        "peak_memory": memory.bytes,
        "metadata": plan.metadata.entries().len(),
        "dropped": plan.dropped.iter().map(|t| json!({"name": t.name, "reason": t.reason})).collect::<Vec<_>>(),
        "calibration": Value::Null,
        "notices": plan.remarks().collect::<Vec<_>>(),
    })
}

/// Each tensor of a file as JSON.
pub fn tensors_json(plan: &GgufPlan) -> impl Iterator<Item = Value> {
    plan.tensors.iter().zip(plan.layout.places()).map(|(tensor, place)| tensor_json(plan, tensor, place.len))
}

fn tensor_json(plan: &GgufPlan, tensor: &PlannedTensor, bytes: u64) -> Value {
    json!({
        "name": tensor.name,
        "dtype": tensor.kind.name(),
        "shape": tensor.shape,
        "bytes": bytes,
        "reason": tensor.reason.text(),
        "sources": plan.sources_of(tensor),
    })
}
