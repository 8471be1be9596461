//! Writing GGUF files.

pub mod convert;
pub mod plan;
pub mod quantize;

pub use convert::GgufConversion;
pub use plan::GgufFilePlan;

use crate::calibration;
use crate::delivery::Delivery;
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::{self, Job, Limits, Sinks, SourceKind};
use crate::paths::{OutputKind, check_name};
use crate::settings::first_given;
use crate::text::shown;
use crate::{quality, resolve};
use kvant_checkpoint::engine::{Claim, Committed, Done, Output};
use kvant_checkpoint::gguf::run::run as carry_out;
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe, imatrix};
use kvant_checkpoint::recipe::BiasSchemes;
use kvant_container::unfinished::{Paths, Room};
use kvant_container::{Checkpoint, Remedy};
use kvant_formats::format::OutputFormat;
use kvant_forward::forward::Decoder;
use kvant_gguf::model::restore;
use std::path::Path;
use std::sync::Arc;

/// The name of a file that is planned and not written.
pub(crate) const UNNAMED: &str = "model.gguf";

/// Reports the notices of a plan as notes, and its departures as warnings.
pub(crate) fn tell(plan: &GgufPlan, reporter: &Reporter<'_>) {
    reporter.notes(&plan.notices);
    plan.departures.iter().for_each(|departure| reporter.warning(departure));
}

/// Refuses quantized biases, which GGUF files have no place for; names the setting, or the file that asks for them.
///
/// # Errors
/// *Usage*; if the file cannot be read.
pub fn refuse_biases(job: &Job) -> Result<(), Error> {
    let (line, file) = resolve::settings(job, None, &[])?;
    if !BiasSchemes::are_asked(&line, &file) {
        return Ok(());
    }
    Err(match &job.recipe.file {
        Some(file) if job.recipe.bias.is_none() => {
            let message =
                format!("`bias` in {} does not apply to GGUF files, which have biases as floats", shown(file));
            Error::new(ErrorKind::Usage, message)
                .with_remedies(vec![Remedy::text("remove `bias` from the recipe, in tables of `layer_types` too")])
        }
        _ => Error::new(ErrorKind::Usage, "‹bias› does not apply to GGUF files, which have biases as floats")
            .with_remedies(vec![Remedy::leave_out("bias")]),
    })
}

/// The recipe for a GGUF file, if the job requests one.
///
/// # Errors
/// Errors of the recipe or the imatrix file.
pub fn recipe(job: &Job) -> Result<Option<GgufRecipe>, Error> {
    let asked =
        if job.sinks.wants_gguf() { Some(OutputFormat::Gguf) } else { job.sinks.checkpoints().first().copied() };
    let (line, file) = resolve::settings(job, asked, &[])?;
    let Some(recipe) = GgufRecipe::of(&line, &file)? else {
        return match resolve::gguf_setting(job) {
            None => Ok(None),
            Some(option) => Err(foreign_setting(job, option)),
        };
    };
    if job.recipe.statistics.is_some() {
        let failure = Error::new(ErrorKind::Usage, "‹statistics› does not apply to the schemes of GGUF files");
        let imatrix = Remedy::setting("imatrix", "weigh errors by an importance matrix with ‹imatrix›");
        return Err(failure.with_remedies(vec![Remedy::leave_out("statistics"), imatrix]));
    }
    refuse_biases(job)?;
    resolve::refuse_graph_settings(job)?;
    resolve::refuse_idle_propagation(job, recipe.has_algorithms())?;
    if job.sinks.formats.len() > 1 || job.sinks.wants_graph() {
        let mix = recipe.ftype();
        let failure = Error::new(
            ErrorKind::Usage,
            format!("‹scheme› {mix} applies only to GGUF, but other formats are requested"),
        );
        let hint = "use a scheme that all of them can store, e.g. int4:g32, or write the file in a separate run";
        return Err(failure.with_hint(Some(hint.to_owned())));
    }
    if let (Some(option), Some(_)) = (resolve::gguf_setting(job), recipe.algorithms().rotation) {
        let failure = Error::new(
            ErrorKind::Usage,
            format!("{option} is of the channels of the model as it is, and `rotate` mixes them"),
        );
        let hint = "leave it out: ‹algorithm› rotate,imatrix measures the importance in the rotated model";
        return Err(failure.with_hint(Some(hint.to_owned())));
    }
    if recipe.has_algorithms() {
        refuse_importance(job)?;
        refuse_parts(&recipe)?;
    } else if let (Some(option), false) = (ignored(job), recipe.needs_importance()) {
        let failure = Error::new(ErrorKind::Usage, format!("{option} has a meaning with ‹algorithm› imatrix only"));
        return Err(failure.with_remedies(vec![
            Remedy::setting_to("algorithm", "imatrix", "add ‹algorithm› imatrix"),
            Remedy::text("leave it out"),
        ]));
    }
    let Some(path) = &job.recipe.imatrix else { return Ok(Some(recipe)) };
    if recipe.needs_importance() {
        let failure = Error::new(ErrorKind::Usage, "‹imatrix› and ‹algorithm› imatrix exclude each other");
        return Err(failure.with_hint(Some("read the importance of inputs from a file, or measure it".to_owned())));
    }
    Ok(Some(recipe.with_importance(Arc::new(imatrix::read(path)?))))
}

/// Algorithms that choose codes find the importance of inputs themselves, as the inputs of the quantized model.
fn refuse_importance(job: &Job) -> Result<(), Error> {
    let Some(option) = resolve::gguf_setting(job) else { return Ok(()) };
    let failure = Error::new(ErrorKind::Usage, format!("{option} has no use with algorithms that choose codes"));
    Err(failure.with_hint(Some("leave it out: they weigh errors by the inputs of the calibration data".to_owned())))
}

/// Algorithms that choose codes work on a checkpoint, of which one file is made.
fn refuse_parts(recipe: &GgufRecipe) -> Result<(), Error> {
    if recipe.max_size().is_none() {
        return Ok(());
    }
    let message = "‹max-shard-size› does not apply to GGUF files whose codes algorithms choose: each is one file";
    let split = Remedy::command("convert FILE ‹to› gguf ‹max-shard-size› SIZE", "splits it");
    Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![Remedy::leave_out("max-shard-size"), split]))
}

/// The recipe of a file whose codes are chosen by algorithms, which work on a checkpoint.
///
/// # Errors
/// As [`recipe`].
pub fn recipe_of_blocks(job: &Job) -> Result<Option<GgufRecipe>, Error> {
    if !job.sinks.wants_gguf() {
        return Ok(None);
    }
    Ok(recipe(job)?.filter(GgufRecipe::has_algorithms))
}

/// The error for a setting of GGUF files with a scheme that is none of theirs.
fn foreign_setting(job: &Job, option: &str) -> Error {
    let scope = if job.sinks.wants_gguf() { "the schemes of GGUF files" } else { "GGUF files" };
    let scheme = match job.sinks.save_imatrix {
        Some(_) => "name one of their schemes and measure the importance, e.g. ‹scheme› Q4_K_M ‹algorithm› imatrix",
        None => "name one of their schemes, e.g. ‹scheme› Q4_K_M",
    };
    Error::new(ErrorKind::Usage, format!("{option} applies only to {scope}"))
        .with_remedies(vec![Remedy::text("leave it out"), Remedy::UseScheme(scheme.to_owned())])
}

/// A setting that only a measurement reads.
fn ignored(job: &Job) -> Option<&'static str> {
    let measures = quality::measures_on_calibration_data(job);
    let given =
        [(job.sinks.save_imatrix.is_some(), "‹save-imatrix›"), (!job.data.files.is_empty() && !measures, "‹calib›")];
    first_given(&given)
}

/// A checkpoint, or a file of which another one is made.
///
/// # Errors
/// Errors of the files.
fn open(path: &Path) -> Result<Checkpoint, Error> {
    match SourceKind::of(path) {
        SourceKind::Gguf => Ok(restore::open_any(path)?),
        _ => job::open_whole(path),
    }
}

/// A checkpoint, and the plan for a file of it.
///
/// # Errors
/// Whatever can be refused before weights are read.
pub(crate) fn plan_for(job: &Job, recipe: GgufRecipe) -> Result<(Checkpoint, GgufPlan), Error> {
    job.source.refuse_adapters_of_gguf()?;
    let checkpoint = kvant_formats::adapter::open(open(&job.source.model)?, &job.source.adapters)?;
    let checkpoint = kvant_formats::rotated::open(checkpoint, recipe.algorithms().rotation)?;
    let plan = planned(&checkpoint, recipe, job.sinks.output.as_deref())?;
    if plan.recipe.needs_importance() {
        calibration::check_for(&checkpoint, job, Decoder::open(&checkpoint)?.longest())?;
    }
    Ok((checkpoint, plan))
}

/// The plan of a file, or of a directory of files where the recipe limits their size.
///
/// # Errors
/// As [`GgufPlan::new`]; more files than the format counts.
fn planned(checkpoint: &Checkpoint, recipe: GgufRecipe, output: Option<&Path>) -> Result<GgufPlan, Error> {
    let (name, max_size) = (file_name(output), recipe.max_size());
    in_parts(GgufPlan::new(checkpoint, recipe, &name)?, &name, max_size)
}

/// The plan of a directory of files, if their size is limited.
///
/// # Errors
/// More files than the format counts.
fn in_parts(plan: GgufPlan, name: &str, max_size: Option<u64>) -> Result<GgufPlan, Error> {
    let Some(max_size) = max_size else { return Ok(plan) };
    Ok(plan.in_parts(name.strip_suffix(".gguf").unwrap_or(name), max_size)?)
}

/// Refuses a name of another kind: files of a limited size are in a directory. `option` is `‹format›` or `‹to›`.
///
/// # Errors
/// *Usage*, with the name.
fn check_output_name(output: &Path, max_size: Option<u64>, option: &str) -> Result<(), Error> {
    let is_file_name = output.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
    match max_size {
        None => check_name(output, OutputKind::Gguf, option),
        Some(_) if is_file_name => {
            let message =
                format!("‹max-shard-size› writes a directory of files, and {} is named as a file", shown(output));
            let hint = "choose a name without .gguf, which the names of the files begin with";
            Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned())))
        }
        Some(_) => check_name(output, OutputKind::Directory, option),
    }
}

/// Returns whether the run needs calibration data but none were given.
fn lacks_data(job: &Job, recipe: &GgufRecipe) -> bool {
    recipe.needs_importance() && job.data.files.is_empty()
}

/// Refuses a run that needs calibration data, without any.
///
/// # Errors
/// See above.
fn check_data(job: &Job, recipe: &GgufRecipe) -> Result<(), Error> {
    if !lacks_data(job, recipe) {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Usage, "imatrix: needs calibration data, and none is given");
    let file = Remedy::setting("imatrix", "a file of llama.cpp's with ‹imatrix›");
    Err(failure.with_remedies(vec![Remedy::GiveCalibrationData, file]))
}

/// Says of a plan that the run will need data.
fn note_data(job: &Job, recipe: &GgufRecipe, reporter: &Reporter<'_>) {
    if lacks_data(job, recipe) {
        reporter
            .note("the run needs calibration data: a text with ‹calib› FILE, or a file of llama.cpp's with ‹imatrix›");
    }
}

/// Refuses a file and its imatrix, four bytes for each input of a weight, where their disks have no room for both.
fn check_room(plan: &GgufPlan, sinks: &Sinks) -> Result<(), Error> {
    let (Some(target), Some(imatrix)) = (&sinks.output, &sinks.save_imatrix) else { return Ok(()) };
    let weights = plan.tensors.iter().filter(|tensor| tensor.is_weight());
    let inputs: u64 = weights.map(|tensor| (tensor.columns() * tensor.modules.len()) as u64).sum();
    let mut room = Room::default();
    room.output(&Paths::of(target)?, plan.layout.total_size());
    room.output(&Paths::of(imatrix)?, size_of::<f32>() as u64 * inputs);
    Ok(room.check()?)
}

/// Carries out a plan.
///
/// # Errors
/// Errors of the system or the weights.
pub fn work(
    delivery: &Delivery<'_, GgufPlan>,
    claim: Claim,
    limits: &Limits,
    reporter: &Reporter<'_>,
) -> Result<(Committed, Done), Error> {
    work_if(delivery, claim, limits, reporter, |_| Ok(()))
}

/// The same where `gate` accepts the file.
///
/// # Errors
/// As [`work`], and those of the gate.
pub fn work_if(
    delivery: &Delivery<'_, GgufPlan>,
    claim: Claim,
    limits: &Limits,
    reporter: &Reporter<'_>,
    gate: impl FnOnce(&Path) -> Result<(), Error>,
) -> Result<(Committed, Done), Error> {
    let Delivery { plan, checkpoint, .. } = *delivery;
    let work = |output: &Output| {
        let progress = reporter.stage(Stage::Writing, Unit::Weights);
        carry_out(plan, checkpoint, output, limits.threads(), reporter.cancel().flag(), &progress)
    };
    delivery.make_if(claim, plan.tensors.len(), work, gate)
}

/// The name of a file, which its parts have too.
pub fn file_name(output: Option<&Path>) -> String {
    let name = output.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| UNNAMED.to_owned())
}
