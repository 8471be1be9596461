//! Plans a checkpoint: what would become of every tensor, and what that would cost.

use super::fate::{TensorSummary, fates};
use super::outputs::Outputs;
use super::planning::{self, Planned};
use crate::error::Error;
use crate::events::Reporter;
use crate::job::{Format, Job};
use crate::json::path as path_json;
use crate::memory::PeakMemory;
use crate::{calibration, gguf, memory, quality, remote};
use kvant_checkpoint::engine::Share;
use kvant_checkpoint::finite;
use kvant_checkpoint::gguf::GgufPlan;
use kvant_checkpoint::plan::{CalibrationCost, CalibrationSize, Plan, PlannedLayer};
use kvant_container::Checkpoint;
use kvant_formats::format::OutputFormat;
use kvant_weights::activation_point::PlannedActivationPoint;
use serde_json::{Value, json};

/// The largest tensor that a plan reads: norms, biases and most embeddings, in a second or two.
const READ_BY_PLANS: u64 = 2 << 30;

/// Plans a job, and notes where this machine may lack memory for it.
///
/// # Errors
/// Whatever [`run`](super::quantize::run) would refuse.
pub fn plan(job: &Job, reporter: &Reporter<'_>) -> Result<CheckpointPlan, Error> {
    let outputs = job.sinks.output.as_deref().map(|output| Outputs::of(job, output));
    let planned = planning::outline(job, &gguf::file_name(outputs.as_ref().and_then(Outputs::file)))?;
    planned.preflight(job)?;
    // Of a model elsewhere headers alone are read.
    if !job.sinks.commit.no_verify && !planned.checkpoint.is_supplied() {
        finite::check_small(&planned.plan, &planned.checkpoint, READ_BY_PLANS)?;
    }
    planned.check_data(job, reporter)?;
    if let Some(outputs) = &outputs {
        outputs.check(&planned)?;
    }
    quality::preflight(job, &planned.checkpoint)?;
    reporter.notes(planned.note.iter());
    let (outputs, mut warnings) = (outputs_of(job, &planned), planned.warnings(job));
    warnings.extend(planned.file.iter().flat_map(|file| file.departures.clone()));
    let Planned { checkpoint, plan, file, .. } = planned;
    let cost = Cost::of(job, &plan);
    cost.note_shortage(reporter);
    let file = file.filter(|_| job.sinks.formats.len() == 1);
    Ok(CheckpointPlan {
        checkpoint,
        plan,
        file,
        outputs,
        cost,
        warnings,
        is_graph: job.sinks.formats == [Format::Onnx],
        shares: Vec::new(),
    })
}

/// Every output, that of which the others are made first. A checkpoint that is removed at the end is none.
fn outputs_of(job: &Job, planned: &Planned) -> Vec<PlannedOutput> {
    let first = job.sinks.keeps_checkpoint().then(|| PlannedOutput::of(&planned.plan));
    let file = planned.file.as_ref().map(|file| PlannedOutput {
        format: OutputFormat::Gguf.name(),
        bytes: file.layout.total_size(),
        bits_per_weight: file.bits_per_weight(),
        is_estimate: false,
        loaders: file.loaders(),
    });
    let graph = job.sinks.wants_graph().then(|| PlannedOutput {
        format: Format::ONNX,
        is_estimate: true,
        loaders: vec!["onnxruntime"],
        ..PlannedOutput::of(&planned.plan)
    });
    let others = planned.others.iter().map(PlannedOutput::of);
    first.into_iter().chain(others).chain(file).chain(graph).collect()
}

/// One of the outputs of a plan.
pub struct PlannedOutput {
    /// Its format.
    pub format: &'static str,
    /// Bytes of its tensors; of a graph those of the checkpoint from which it is written, which are about as many.
    pub bytes: u64,
    /// Average bits per weight of quantized weights.
    pub bits_per_weight: f64,
    /// Whether `bytes` is an estimate.
    pub is_estimate: bool,
    /// Its loaders.
    pub loaders: Vec<&'static str>,
}

impl PlannedOutput {
    fn of(plan: &Plan) -> PlannedOutput {
        PlannedOutput {
            format: plan.format().name(),
            bytes: plan.layout().total_size(),
            bits_per_weight: plan.bits_per_weight(),
            is_estimate: false,
            loaders: plan.loaders(),
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "format": self.format,
            "output_bytes": self.bytes,
            "is_estimate": self.is_estimate,
            "bits_per_weight": self.bits_per_weight,
            "loaders": self.loaders,
        })
    }
}

/// The plan of quantizing a checkpoint.
pub struct CheckpointPlan {
    /// The source.
    pub checkpoint: Checkpoint,
    /// The checkpoint to make.
    pub plan: Plan,
    /// The GGUF file to write from its codes, if only that is requested.
    pub file: Option<GgufPlan>,
    /// Every output: one for each format.
    pub outputs: Vec<PlannedOutput>,
    /// The cost of the run.
    pub cost: Cost,
    /// What verification of the output will warn of.
    pub warnings: Vec<String>,
    /// Whether the output is an ONNX graph, for which the checkpoint is intermediate.
    pub is_graph: bool,
    /// The work of each of several workers, if asked for.
    pub shares: Vec<Share>,
}

/// The cost of running a plan.
pub struct Cost {
    /// Threads to work with.
    pub threads: usize,
    /// The amount of calibration data, if there is enough.
    pub size: CalibrationSize,
    /// The cost of calibration and algorithms; `None` without any.
    pub estimate: Option<CalibrationCost>,
    /// Whether the run needs data but none were given.
    pub lacks_data: bool,
}

impl Cost {
    /// The cost of a job with this plan.
    pub(crate) fn of(job: &Job, plan: &Plan) -> Cost {
        let mut size = calibration::size(job, plan.longest());
        if plan.reads_pairs() {
            // The decoder's tokens, and that with which it begins.
            size.length = size.length.saturating_mul(2).saturating_add(1);
        }
        let threads = job.limits.threads();
        let estimate = plan.calibration_cost(size, threads).filter(|_| plan.runs_data());
        Cost { threads, size, estimate, lacks_data: job.data.files.is_empty() && plan.runs_data() }
    }

    /// Notes that this machine may have too little memory.
    pub(crate) fn note_shortage(&self, reporter: &Reporter<'_>) {
        let needed = self.estimate.as_ref().map(|cost| cost.peak_memory);
        reporter.notes(needed.and_then(|needed| memory::shortage(needed, memory::available())));
    }
}

impl CheckpointPlan {
    /// The action on each tensor of the source.
    pub fn fates(&self) -> Vec<TensorSummary<'_>> {
        fates(&self.plan, &self.checkpoint)
    }

    /// The name of the output format.
    pub fn format(&self) -> &'static str {
        if self.is_graph { Format::ONNX } else { self.plan.format().name() }
    }

    /// Bytes of memory that a run takes at most.
    pub fn peak_memory(&self) -> u64 {
        let Cost { threads, size, estimate, .. } = &self.cost;
        let of_weights = match estimate {
            Some(cost) => cost.peak_memory,
            None if self.plan.runs_data() => self.plan.observing_memory(*size, *threads),
            None => self.plan.peak_memory(*threads),
        };
        let of_file = self.file.as_ref().map_or(0, |file| file.peak_memory(*threads));
        // A graph is written from memory, in which its constants are there in up to three forms.
        let of_graph = if self.is_graph { 3 * self.plan.layout().total_size() } else { 0 };
        of_weights.saturating_add(of_graph).max(of_file).saturating_add(memory::PROGRAM)
    }

    /// The same, with the threads.
    pub(crate) fn memory(&self) -> PeakMemory {
        PeakMemory { bytes: self.peak_memory(), threads: self.cost.threads }
    }

    /// The plan as JSON, without its tensors.
    pub(crate) fn to_json(&self) -> Value {
        match &self.file {
            Some(file) => self.file_json(file),
            None => self.checkpoint_json(),
        }
    }

    /// The file, with the recipe and the cost of its codes.
    fn file_json(&self, file: &GgufPlan) -> Value {
        let mut object = gguf::plan::to_json(file, &self.checkpoint, self.memory());
        object["recipe"] = json!(self.plan.recipe());
        object["calibration"] = json!(self.cost.estimate);
        object["notices"] = json!(self.plan.notices().iter().chain(file.remarks()).collect::<Vec<_>>());
        object
    }

    fn checkpoint_json(&self) -> Value {
        let plan = &self.plan;
        json!({
            "model": path_json(self.checkpoint.path()),
            "architecture": plan.architecture(),
            "family": plan.family(),
            "recipe": plan.recipe(),
            "format": self.format(),
            "loaders": if self.is_graph { vec!["onnxruntime"] } else { plan.loaders() },
            "source_bytes": plan.source_bytes(),
            "output_bytes": plan.layout().total_size(),
            "is_estimate": self.is_graph,
            "outputs": self.outputs.iter().map(PlannedOutput::to_json).collect::<Vec<_>>(),
            "download_bytes": remote::download_bytes(&self.checkpoint),
            "files": plan.layout().shards().len(),
            "quantized_layers": plan.layers().len(),
            "quantized_parameters": plan.quantized_parameters(),
            "bits_per_weight": plan.bits_per_weight(),
            "sites": plan.sites().iter().map(site_json).collect::<Vec<_>>(),
            "threads": self.cost.threads,
            "peak_memory": self.peak_memory(),
            "calibration": self.cost.estimate,
            "needs_data": self.cost.lacks_data,
            "notices": plan.notices(),
            "workers": self.shares.iter().enumerate().map(|(worker, share)| share_json(worker, share)).collect::<Vec<_>>(),
        })
    }

    /// Each tensor of the source, or of the file, as JSON.
    pub(crate) fn tensors_json(&self) -> Vec<Value> {
        if let Some(file) = &self.file {
            return gguf::plan::tensors_json(file).collect();
        }
        self.fates().iter().map(|fate| self.fate_json(fate)).collect()
    }

    fn fate_json(&self, fate: &TensorSummary<'_>) -> Value {
        let layer = |layer: &&PlannedLayer| {
            json!({
                "name": layer.name, "role": layer.role, "rows": layer.rows, "columns": layer.columns,
                "scheme": layer.scheme, "shares_scale": layer.shares_scale,
            })
        };
        let layout = self.plan.layout();
        let output = |tensor: &usize| {
            let (declaration, place) = (&layout.declarations()[*tensor], &layout.places()[*tensor]);
            json!({
                "name": declaration.name, "dtype": declaration.dtype.to_string(), "shape": declaration.shape,
                "bytes": place.len, "file": layout.shards()[place.shard].file_name(),
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
}

fn share_json(worker: usize, share: &Share) -> Value {
    json!({
        "worker": worker,
        "jobs": share.jobs.len(),
        "source_bytes": share.source_bytes,
        "part_bytes": share.output_bytes,
    })
}

/// A point whose activations are observed.
fn site_json(planned: &PlannedActivationPoint) -> Value {
    json!({ "site": planned.site, "scheme": planned.scheme, "features": planned.features })
}
