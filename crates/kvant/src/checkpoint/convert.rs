//! Converts a quantized checkpoint to another checkpoint format.

use crate::card::{CardRequest, CardSource, CardedPlan, Made};
use crate::delivery::{Delivery, check_output, claim, preflight, refuse_measured_change};
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::Conversion as Request;
use crate::job::{self, Limits, Sinks};
use crate::json::path as path_json;
use crate::loading::{self, refuse_unloadable};
use crate::paths::{OutputKind, check_name};
use crate::text::shown;
use kvant_checkpoint::conversion::{LayerError, measure};
use kvant_checkpoint::engine::{self, Claim, Committed, Done};
use kvant_checkpoint::plan::{CalibratedPlan, Plan};
use kvant_checkpoint::recipe::MAX_SHARD_SIZE;
use kvant_container::{Checkpoint, Remedy};
use kvant_formats::transcode::{Conversion, ConversionTarget};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Converts a checkpoint, or checks that this is possible if nothing is to be written.
///
/// # Errors
/// Conversions that the target does not support, before anything is written; then errors of the system or the weights.
pub fn run(
    request: &Request,
    target: ConversionTarget,
    reporter: &Reporter<'_>,
    writes: bool,
) -> Result<CheckpointConversion, Error> {
    let (sinks, limits) = (&request.sinks, &request.limits);
    sinks.output.as_deref().map_or(Ok(()), |output| check_name(output, OutputKind::Directory, "‹to›"))?;
    let begun = Instant::now();
    if !request.source.adapters.is_empty() && !matches!(target, ConversionTarget::Float(_)) {
        let error = Error::new(ErrorKind::Usage, "‹lora› applies only to ‹to› float");
        let hint = "an adapter changes values, so the codes no longer match: quantize the model with ‹lora›";
        return Err(error.with_hint(Some(hint.to_owned())));
    }
    let checkpoint = request.source.open()?;
    let conversion = conversion(request, target)?;
    let refuse_unloadable = |plan: &Plan| match sinks.commit.no_verify {
        true => Ok(()),
        false => refuse_unloadable(plan, || match target {
            ConversionTarget::Float(_) => Remedy::text("take the model that it was quantized from"),
            _ => Remedy::UseFormat(
                "choose another target with ‹to›, or take the model that it was quantized from".to_owned(),
            ),
        }),
    };
    let plan = Plan::convert(&checkpoint, &conversion).map_err(|error| {
        // To accept a loss would be idle where no loader takes the result.
        let accepted = (!conversion.requantize).then_some(Conversion { requantize: true, ..conversion });
        let accepted = accepted.and_then(|conversion| Plan::convert(&checkpoint, &conversion).ok());
        accepted.and_then(|plan| refuse_unloadable(&plan).err()).unwrap_or_else(|| error.into())
    })?;
    preflight(&plan, &checkpoint, sinks.commit)?;
    refuse_unloadable(&plan)?;
    check_output(&plan, &request.source.model, sinks)?;
    reporter.notes(plan.notices());
    let planned = CheckpointConversion {
        target,
        output: None,
        intended: sinks.output.clone(),
        done: Done::default(),
        errors: Vec::new(),
        time: None,
        plan,
    };
    let Some(output) = sinks.output.as_deref().filter(|_| writes) else { return Ok(planned) };
    let copied = [(output, checkpoint.extra_bytes()?)];
    engine::Output::check_room(&[(&planned.plan, output)], &[], &copied)?;
    reporter.started();
    let (card, note) = CardSource::read(&request.source.model, &checkpoint)?;
    // Cards of others are copied: they are of the model, and true of any format of it.
    let card = card.filter(CardSource::is_own);
    reporter.notes(note.filter(|_| card.is_some()));
    let card = card.as_ref().map(|source| CardRequest { source, made: Made::Converted });
    let claim = claim(output, &sinks.settings, sinks.commit)?;
    let work = ConversionWork { checkpoint: &checkpoint, source: &request.source.model, sinks, limits, card };
    let (output, done) = work.carry_out(&planned.plan, claim, reporter)?;
    let output = output.commit()?;
    let errors = match request.requantize {
        true => {
            let made = job::open(&output)?;
            let errors = limits.pool()?.install(|| measure(&planned.plan, &checkpoint, &made))?;
            refuse_measured_change(&checkpoint, &output)?;
            errors
        }
        false => Vec::new(),
    };
    Ok(CheckpointConversion { output: Some(output), done, errors, time: Some(begun.elapsed()), ..planned })
}

fn conversion(request: &Request, target: ConversionTarget) -> Result<Conversion, Error> {
    request.refuse_weights_only()?;
    if request.requantize && matches!(target, ConversionTarget::Float(_)) {
        let error = Error::new(ErrorKind::Usage, "‹requantize› does not apply to ‹to› float");
        return Err(error.with_hint(Some("leave it out: floats hold every value of the source".to_owned())));
    }
    let target = match (target, request.dtype) {
        (ConversionTarget::Float(_), dtype) => ConversionTarget::Float(dtype),
        (target, None) => target,
        (_, Some(_)) => {
            let error = Error::new(ErrorKind::Usage, "‹dtype› applies only to ‹to› float");
            return Err(error.with_remedies(vec![
                Remedy::text("leave it out"),
                Remedy::setting_to("to", "float", "convert ‹to› float"),
            ]));
        }
    };
    let max_shard_size = request.sinks.max_shard_size.unwrap_or(MAX_SHARD_SIZE).0;
    Ok(Conversion { target, requantize: request.requantize, max_shard_size })
}

/// The result of converting a checkpoint, real or planned.
pub struct CheckpointConversion {
    /// The requested format.
    pub target: ConversionTarget,
    /// The plan.
    pub plan: CalibratedPlan,
    /// The output; `None` where nothing was written.
    pub output: Option<PathBuf>,
    /// The requested path.
    pub intended: Option<PathBuf>,
    /// The number of jobs, and those done by an interrupted run.
    pub done: Done,
    /// The errors of layers that were requantized.
    pub errors: Vec<LayerError>,
    /// The duration of the run; `None` if nothing was written.
    pub time: Option<Duration>,
}

impl CheckpointConversion {
    /// The number of layers that keep their codes.
    pub fn kept_codes(&self) -> usize {
        self.plan.layers().iter().filter(|layer| layer.is_recoded()).count()
    }

    /// The number of requantized layers.
    pub fn requantized(&self) -> usize {
        self.plan.layers().len() - self.kept_codes()
    }

    /// The path of the output.
    pub fn place(&self) -> &Path {
        self.output.as_deref().or(self.intended.as_deref()).unwrap_or_else(|| Path::new("OUT"))
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({
            "output": self.output.as_ref().map(|path| path_json(path)),
            "format": self.target.to_string(),
            "architecture": self.plan.architecture(),
            "layers": self.kept_codes(),
            "layers_quantized_anew": self.requantized(),
            "errors": self.errors,
            "kept_tensors": self.plan.kept().len(),
            "source_bytes": self.plan.source_bytes(),
            "output_bytes": self.plan.layout().total_size(),
            "seconds": self.time.map(|time| time.as_secs_f64()),
            "jobs": self.done.jobs,
            "resumed_jobs": self.done.resumed,
            "loading": loading::json(&self.plan.loaders(), self.place()),
            "notices": self.plan.notices(),
        })
    }
}

/// A conversion of a checkpoint that was just made.
pub struct Further<'a> {
    /// The target.
    pub target: ConversionTarget,
    /// The most bytes of a file.
    pub max_shard_size: u64,
    /// The way it is written.
    pub sinks: &'a Sinks,
    /// Resources.
    pub limits: &'a Limits,
    /// The card of the result, if it gets one.
    pub(crate) card: Option<CardRequest<'a>>,
}

/// Converts a checkpoint that was just written. Weights that the target does not hold exactly are requantized to the nearest scheme, with a note.
///
/// # Errors
/// As [`run`].
pub fn make(
    source: &Path,
    target: &Path,
    further: &Further<'_>,
    reporter: &Reporter<'_>,
) -> Result<(Committed, CalibratedPlan), Error> {
    let Further { sinks, limits, max_shard_size, card, .. } = *further;
    let checkpoint = job::open(source)?;
    let conversion = Conversion { target: further.target, requantize: true, max_shard_size };
    let plan = Plan::convert(&checkpoint, &conversion)?;
    reporter.notes(plan.notices());
    let claim = claim(target, &sinks.settings, sinks.commit)?;
    let work = ConversionWork { checkpoint: &checkpoint, source, sinks, limits, card };
    let (placed, _) = work.carry_out(&plan, claim, reporter)?;
    if plan.layers().iter().any(|layer| !layer.is_recoded()) {
        let made = job::open(placed.path())?;
        let errors = limits.pool()?.install(|| measure(&plan, &checkpoint, &made))?;
        if let Some(worst) = worst(&errors) {
            let shown = shown(target);
            reporter.note(&format!("{shown}: values were requantized for it: {}", said(worst)));
        }
    }
    Ok((placed, plan))
}

/// Inputs of a run besides its plan.
struct ConversionWork<'a> {
    checkpoint: &'a Checkpoint,
    source: &'a Path,
    sinks: &'a Sinks,
    limits: &'a Limits,
    card: Option<CardRequest<'a>>,
}

impl ConversionWork<'_> {
    fn carry_out(
        &self,
        plan: &CalibratedPlan,
        claim: Claim,
        reporter: &Reporter<'_>,
    ) -> Result<(Committed, Done), Error> {
        let ConversionWork { checkpoint, source, .. } = *self;
        let carded = CardedPlan::new(plan, self.card);
        let delivery = Delivery { plan: &carded, checkpoint, source, commit: self.sinks.commit };
        delivery.make(claim, plan.jobs().len(), |output| {
            let progress = reporter.stage(Stage::Writing, Unit::Bytes);
            engine::run(plan, checkpoint, output, self.limits.threads(), reporter.cancel().flag(), &progress)
        })
    }
}

/// The layer with the largest relative error, if any.
pub fn worst(errors: &[LayerError]) -> Option<&LayerError> {
    errors.iter().max_by(|a, b| a.relative.total_cmp(&b.relative)).filter(|error| error.relative > 0.0)
}

/// It in words.
pub fn said(worst: &LayerError) -> String {
    format!("relative RMS {:.3e}, at most {:.3e} ({})", worst.relative, worst.max, worst.layer)
}
