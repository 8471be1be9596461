//! Quantizes a checkpoint: plans, checks, works, and delivers every output.

use super::outputs::{Delivered, Output as Made, Outputs};
use super::plan::Cost;
use super::planning::{self, Planned};
use super::{warnings, worker};
use crate::calibration::{Calibrated, Calibration, LearnedOnData, clear_away};
use crate::card::{CardRequest, CardSource, CardedPlan, Made as CardMade};
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::{self, Job};
use crate::json::path as path_json;
use crate::quality::Gate;
use crate::text::counts;
use crate::text::{shell_word, shown};
use crate::{delivery, gguf, loading, paths, remote};
use kvant_checkpoint::activation_histograms::{PointHistogram, input_schemes};
use kvant_checkpoint::blockwise::BlockwiseReport;
use kvant_checkpoint::engine::{self, Claim, Committed, Done, EngineError, Output, OutputPlan, Start};
use kvant_checkpoint::finite;
use kvant_checkpoint::learned_rotation::RotationReport;
use kvant_checkpoint::plan::{CalibratedPlan, Plan};
use kvant_checkpoint::weight_histograms::{WeightHistogram, weight_histograms};
use kvant_container::Checkpoint;
use kvant_data::calibration::Options;
use kvant_formats::format::OutputFormat;
use kvant_forward::forward::Decoder;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Quantizes a checkpoint.
///
/// # Errors
/// Whatever can be refused, before anything is written; then what the system or the weights say.
pub fn run(job: &Job, reporter: &Reporter<'_>) -> Result<Box<CheckpointReport>, Error> {
    let begun = Instant::now();
    let output = job.sinks.output.as_deref().ok_or_else(paths::no_directory)?;
    let outputs = Outputs::of(job, output);
    let planned = planning::plan(job, &gguf::file_name(outputs.file()))?;
    planned.preflight(job)?;
    let calibrates = planned.plan.runs_data();
    planned.check_data(job, reporter)?;
    outputs.check(&planned)?;
    let Planned { checkpoint, plan, file, note, .. } = planned;
    reporter.notes(note);
    reporter.notes(plan.notices());
    let chosen = file.filter(|file| file.recipe.has_algorithms());
    reporter.notes(chosen.and_then(|file| file.note_of_nearest(&file.types_of_modules())));
    Cost::of(job, &plan).note_shortage(reporter);
    let card = outputs.card_source(&checkpoint, reporter)?;
    reporter.started();
    let target = outputs.checkpoint();
    remote::allow_download(job, &checkpoint, plan.source_bytes(), reporter)?;
    if !job.sinks.commit.no_verify || calibrates {
        finite::check_small(&plan, &checkpoint, remote::looked_at_ahead(&checkpoint))?;
    }
    let claim = outputs.claim()?;
    let gate = Gate::open(job, &checkpoint, target, calibrates, reporter)?;
    let (rotated, learned) = with_learned_rotation(job, &checkpoint, &plan, target, reporter)?.unzip();
    let checkpoint = rotated.as_ref().unwrap_or(&checkpoint);
    let rotation = learned.as_ref().map(|learned| learned.report.clone());
    let calibration = Calibration { job, checkpoint, target };
    let run = Run {
        job,
        target,
        outputs: &outputs,
        checkpoint,
        calibration,
        gate: gate.as_ref(),
        card: card.as_ref(),
        reporter,
    };
    let work = match plan.blocks().is_empty() {
        true => run.band_by_band(plan, learned, claim),
        false => run.block_by_block(plan, learned, claim),
    };
    let keeps_all_values = !job.sinks.wants_gguf() && !job.sinks.wants_graph();
    let work = work.map_err(|error| if keeps_all_values { error } else { error.without_keeping_layers() });
    let QuantizeWork { plan, output, done, blocks, activations } = work?;
    let shows_weights = job.sinks.page.is_some() && !checkpoint.is_supplied();
    let weights = shows_weights.then_some(()).and_then(|()| {
        // The result is complete: it is not lost because its report lacks a part.
        let found = histograms(job, &plan, checkpoint, output.path());
        found.map_err(|error| reporter.note(&format!("the report does not show weights: {}", error.message))).ok()
    });
    let recipe = recipe_json(&plan);
    let card = card.as_ref().map(|source| card_of(job, source, &recipe, &plan));
    let delivered = outputs.deliver(&plan, output, card, reporter)?;
    let measured = gate.and_then(|gate| gate.measured());
    let time = begun.elapsed();
    Ok(Box::new(CheckpointReport { plan, delivered, done, blocks, rotation, measured, weights, activations, time }))
}

/// The source of a plan, rotated by what is learned of its rotation, with the data; `None` where nothing is to be learned.
fn with_learned_rotation(
    job: &Job,
    checkpoint: &Checkpoint,
    plan: &Plan,
    target: &Path,
    reporter: &Reporter<'_>,
) -> Result<Option<(Checkpoint, LearnedOnData)>, Error> {
    let Some(rotate) = plan.recipe().algorithms().learned_rotation() else { return Ok(None) };
    let calibration = Calibration { job, checkpoint, target };
    let (learned, on_data) = calibration.learn_rotation(plan, rotate, reporter)?;
    Ok(Some((planning::learned_source(job, plan, rotate, &learned.rotations)?, on_data)))
}

/// The most layers that a report shows the weights of.
const SHOWN_WEIGHTS: usize = 256;

/// The weights of layers before and after, for a report.
fn histograms(job: &Job, plan: &Plan, source: &Checkpoint, made: &Path) -> Result<Vec<WeightHistogram>, Error> {
    let output = job::open(made)?;
    Ok(job.limits.pool()?.install(|| weight_histograms(plan, source, &output, SHOWN_WEIGHTS))?)
}

/// The card of each output of a job. Plans of outputs that an earlier run has made have no record: their cards are written.
fn card_of<'a>(job: &'a Job, source: &'a CardSource, recipe: &'a Value, plan: &'a CalibratedPlan) -> CardRequest<'a> {
    CardRequest { source, made: CardMade::Quantized { job, recipe, record: plan.record() } }
}

/// The recipe for cards. Rules of other tools' recipes for layers that the model does not have are left out: in a recipe of Kvant they would
/// be mistakes.
fn recipe_json(plan: &Plan) -> Value {
    // Serializing plain strings, numbers and lists does not fail.
    let mut recipe = serde_json::to_value(plan.recipe()).unwrap_or_default();
    let kept = plan.kept().iter().map(|kept| kept.source.strip_suffix(".weight").unwrap_or(&kept.source));
    let layers = plan.layers().iter().flat_map(|layer| [layer.module.as_str(), layer.name.as_str()]);
    let idle = plan.recipe().idle_rules(layers.chain(kept));
    if let Some(rules) = recipe["override"].as_array_mut() {
        rules.retain(|rule| !idle.iter().any(|idle| rule["layers"] == idle.layers.pattern()));
    }
    recipe
}

/// Writing the checkpoint that all outputs are converted from.
struct QuantizeWork {
    plan: CalibratedPlan,
    output: Committed,
    done: Done,
    /// Results of layers that depended on data.
    blocks: Option<BlockwiseReport>,
    /// Activations, if there is a report for people to show them.
    activations: Option<Vec<PointHistogram>>,
}

/// Inputs of a run besides its plan.
struct Run<'a, 'e> {
    job: &'a Job,
    target: &'a Path,
    outputs: &'a Outputs<'a>,
    checkpoint: &'a Checkpoint,
    calibration: Calibration<'a>,
    gate: Option<&'a Gate<'a>>,
    card: Option<&'a CardSource>,
    reporter: &'a Reporter<'e>,
}

impl Run<'_, '_> {
    /// Rounds to nearest; where activations have static scales, those are found before.
    fn band_by_band(&self, plan: Plan, learned: Option<LearnedOnData>, claim: Claim) -> Result<QuantizeWork, Error> {
        let calibrated = match (plan.needs_calibration(), learned) {
            (true, _) if !plan.runs_data() => self.calibration.complete_from_file(plan, self.reporter)?.into(),
            (true, learned) => self.calibration.complete(plan, learned, self.reporter)?,
            (false, Some(learned)) => self.calibration.plan_with_rotation(plan, &learned)?.into(),
            (false, None) => plan.without_calibration()?.into(),
        };
        let output = match self.begin(&calibrated.plan, claim)? {
            Start::Working(output) => output,
            Start::Finished(output) => return self.finished(calibrated, output),
        };
        self.rest(calibrated, *output)
    }

    /// Runs the recipe's algorithms block by block, then the remaining work.
    fn block_by_block(&self, plan: Plan, learned: Option<LearnedOnData>, claim: Claim) -> Result<QuantizeWork, Error> {
        let mut decoder = Decoder::open_any(self.checkpoint)?;
        let held_out = Options::tenth(self.job.data.num_samples);
        let (loaded, rotation) = self.calibration.load_again(&mut decoder, held_out, learned, self.reporter)?;
        let plan = self.calibration.plan_for(plan, &loaded);
        let output = match self.begin(&plan, claim)? {
            Start::Working(output) => output,
            Start::Finished(output) => return self.finished(plan.finished().into(), output),
        };
        let made = self.calibration.quantize_blocks(&decoder, &loaded, plan, &output, rotation.as_ref(), self.reporter);
        match made {
            Ok(calibrated) => self.rest(calibrated, *output),
            Err(error) => {
                // No rerun could finish with such a model; but zeros from lost bytes are not the model's.
                if error.kind == ErrorKind::Invalid && self.reporter.refuse_lost().is_ok() {
                    output.discard()?;
                    clear_away(self.target)?;
                }
                Err(error)
            }
        }
    }

    fn begin(&self, plan: &dyn OutputPlan, claim: Claim) -> Result<Start, Error> {
        self.outputs.check_others(plan)?;
        let start = Output::begin_claimed(plan, &self.job.source.model, claim, self.job.sinks.commit.overwrite)?;
        if let Start::Working(output) = &start {
            worker::note_parts(output, self.reporter);
        }
        Ok(start)
    }

    fn finished(&self, calibrated: Calibrated, output: Committed) -> Result<QuantizeWork, Error> {
        let Calibrated { plan, blocks, activations } = calibrated;
        let output = output.verify(&plan, self.outputs.settling().acceptance)?;
        let output = output.keep_if(&plan.form(), |made| self.judge(made))?;
        clear_away(self.target)?;
        let jobs = plan.jobs().len();
        Ok(QuantizeWork { plan, output, done: Done { jobs, resumed: jobs }, blocks, activations })
    }

    fn judge(&self, made: &Path) -> Result<(), Error> {
        self.gate.map_or(Ok(()), |gate| gate.judge(made, self.reporter))
    }

    /// Does the remaining work of a plan, and commits the output.
    fn rest(&self, calibrated: Calibrated, output: Output) -> Result<QuantizeWork, Error> {
        let Calibrated { plan, blocks, activations } = calibrated;
        let threads = self.job.limits.threads();
        self.reporter.detail(&format!(
            "{} in {} of work, {threads} threads",
            counts::number(plan.layers().len(), "layer"),
            counts::number(plan.jobs().len(), "unit")
        ));
        let progress = self.reporter.stage(Stage::Writing, Unit::Bytes).of_rest(blocks.is_some());
        let run = engine::run(&plan, self.checkpoint, &output, threads, self.reporter.cancel().flag(), &progress);
        drop(progress);
        let gone = run.as_ref().is_err_and(EngineError::is_final);
        let recipe = recipe_json(&plan);
        let carded = CardedPlan::new(&plan, self.card.map(|source| card_of(self.job, source, &recipe, &plan)));
        let judge = |made: &Path| {
            self.judge(made)?;
            let measured = self.gate.and_then(Gate::measured);
            Ok(measured.map_or(Ok(()), |measured| carded.add_quality(made, &measured))?)
        };
        let settled = delivery::settle_if(output, run, (&carded, self.checkpoint), self.outputs.settling(), judge);
        if gone || settled.is_ok() {
            clear_away(self.target)?;
        }
        let (output, done) = settled?;
        Ok(QuantizeWork { plan, output, done, blocks, activations })
    }
}

/// The result of quantizing a checkpoint.
pub struct CheckpointReport {
    /// The plan of the checkpoint that all outputs are converted from.
    pub plan: CalibratedPlan,
    /// The outputs.
    pub delivered: Delivered,
    /// The number of jobs, and those done by an interrupted run.
    pub done: Done,
    /// The results of algorithms, layer by layer.
    pub blocks: Option<BlockwiseReport>,
    /// How its rotation was learned, if it was.
    pub rotation: Option<RotationReport>,
    /// The measured distance of the output from its source, if any.
    pub measured: Option<Value>,
    /// The weights of layers before and after, if there is a report for people to show them.
    pub weights: Option<Vec<WeightHistogram>>,
    /// Activations with the ranges of their scales, if there is a report for people to show them and data were run.
    pub activations: Option<Vec<PointHistogram>>,
    /// The duration of the run.
    pub time: Duration,
}

impl CheckpointReport {
    /// Warnings about the result: layers with too little data, what verification found, and outputs that no known loader reads.
    pub fn warnings(&self) -> Vec<String> {
        let is_bare = |made: &Made| made.format == OutputFormat::TENSORS.name();
        let is_unloadable = |made: &&Made| self.plan.family().is_some() && made.loaders.is_empty() && !is_bare(made);
        let unloadable = self.delivered.all().filter(is_unloadable).map(|made| {
            format!("no known loader takes {}: `kvant verify {}` says why", shown(&made.path), shell_word(&made.path))
        });
        let of_layers = self.blocks.iter().flat_map(|blocks| warnings::warnings(&self.plan, blocks));
        of_layers.chain(warnings::of_verification(&self.delivered)).chain(unloadable).collect()
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        let made = &self.delivered.main;
        json!({
            "output": path_json(&made.path),
            "also": self.delivered.also.iter().map(|made| path_json(&made.path)).collect::<Vec<_>>(),
            "outputs": self.delivered.all().map(output_json).collect::<Vec<_>>(),
            "format": made.format,
            "recipe": self.plan.recipe(),
            "architecture": self.plan.architecture(),
            "family": self.plan.family(),
            "quantized_layers": self.plan.layers().len(),
            "kept_tensors": self.plan.kept().len(),
            "source_bytes": self.plan.source_bytes(),
            "output_bytes": made.bytes,
            "bits_per_weight": made.bits_per_weight,
            "sizes": self.plan.sizes(),
            "seconds": self.time.as_secs_f64(),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&made.loaders, &made.path),
            "notices": self.plan.notices(),
            "calibration": self.plan.record(),
            "evaluation": self.measured,
            "weights": self.weights,
            "activations": self.activations,
            "input_schemes": input_schemes(&self.plan),
        })
    }
}

/// One of the outputs.
fn output_json(made: &Made) -> Value {
    json!({
        "output": path_json(&made.path),
        "format": made.format,
        "output_bytes": made.bytes,
        "bits_per_weight": made.bits_per_weight,
        "loading": loading::json(&made.loaders, &made.path),
    })
}
