//! Models that are not on this machine: opened for as long as a request works on them, and what is refused of them.

use crate::cancel::CancelToken;
use crate::ending::{Stopped, concluded};
use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::job::Job;
use crate::settings::first_given;
use crate::text::{shown, size};
use kvant_checkpoint::plan::Plan;
use kvant_container::{Checkpoint, Remedy};
use std::path::{Path, PathBuf};

/// A model that a request reads: on this machine, or elsewhere for as long as this lives.
pub struct OpenedModel {
    /// The path to open it with.
    pub path: PathBuf,
    #[cfg(feature = "remote")]
    _remote: Option<kvant_remote::RemoteModel>,
}

/// Finds a model. `output` is what a run makes of it, if it makes anything.
///
/// # Errors
/// Those of the network and the server.
#[cfg(feature = "remote")]
pub fn open(model: &Path, output: Option<&Path>, cancel: &CancelToken) -> Result<OpenedModel, Error> {
    use kvant_remote::Opened;
    if !kvant_remote::is_remote(model) {
        return Ok(OpenedModel { path: model.to_owned(), _remote: None });
    }
    let place = || std::env::temp_dir().join(model.to_string_lossy().replace(['/', '\\', ':'], "_"));
    let output = output.map_or_else(place, Path::to_owned);
    let opened = kvant_remote::open(model, &output, cancel.flag()).map_err(|error| {
        let error = Error::from(error);
        match kvant_remote::is_url(model) || error.kind == ErrorKind::Interrupted {
            true => error,
            // It may be a path with a mistake.
            false => Error {
                message: format!(
                    "{}: there is no such folder, and no such model could be read from the Hugging Face Hub: {}",
                    shown(model),
                    error.message
                ),
                ..error
            },
        }
    })?;
    Ok(match opened {
        Opened::Local(path) => OpenedModel { path, _remote: None },
        Opened::Remote(remote) => OpenedModel { path: remote.path().to_owned(), _remote: Some(remote) },
    })
}

/// Finds a model.
///
/// # Errors
/// Where it is not on this machine: this build does not read others.
#[cfg(not(feature = "remote"))]
pub fn open(model: &Path, _: Option<&Path>, _: &CancelToken) -> Result<OpenedModel, Error> {
    match model.to_str().is_some_and(|text| text.contains("://")) {
        true => Err(not_here(model)),
        false => Ok(OpenedModel { path: model.to_owned() }),
    }
}

/// The error for a model that is not on this machine, where a request does not read such; `None` for others.
pub fn refusal(model: &Path) -> Option<Error> {
    #[cfg(feature = "remote")]
    let is_elsewhere = kvant_remote::is_url(model);
    #[cfg(not(feature = "remote"))]
    let is_elsewhere = model.to_str().is_some_and(|text| text.contains("://"));
    is_elsewhere.then(|| not_here(model))
}

fn not_here(model: &Path) -> Error {
    // Whatever stands before an @ may be a password.
    let text = model.to_string_lossy();
    let name = match text.split_once("://") {
        Some((scheme, rest)) if scheme != "hf" => {
            format!("{scheme}://{}", rest.rsplit_once('@').map_or(rest, |(_, rest)| rest))
        }
        _ => text.into_owned(),
    };
    let name = name.split('?').next().unwrap_or_default();
    let message = format!("{}: a model that is not on this machine is not read here", shown(Path::new(name)));
    let hint = "download it first, e.g. `hf download ORG/NAME --local-dir DIR`, and name the folder";
    Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint.to_owned()))
}

/// Returns whether a path that a model was opened with stands for one elsewhere.
pub fn is_elsewhere(path: &Path) -> bool {
    kvant_container::supply::shown_name(path).is_some()
}

/// Looks at a model; what was read of one elsewhere whose bytes could not be fetched is an error.
///
/// # Errors
/// Those of `work`, and of the network.
pub fn looked_at<T>(model: &Path, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    match is_elsewhere(model) {
        true => concluded(|| Stopped::StartsOver, work),
        false => work(),
    }
}

/// Refuses what would read a model elsewhere more than once, or in another order than its files have.
///
/// # Errors
/// Names the setting.
pub fn refuse_settings(job: &Job) -> Result<(), Error> {
    let quality = &job.limits.quality;
    let given = [
        (!job.data.files.is_empty(), "‹calib›"),
        (!job.source.adapters.is_empty(), "‹lora›"),
        (quality.eval.is_some(), "‹eval›"),
        (quality.max_kl.is_some(), "‹max-kl›"),
        (quality.max_perplexity_increase.is_some(), "‹max-perplexity-increase›"),
        (job.sinks.wants_graph(), "‹format› onnx"),
        (job.sinks.wants_gguf(), "‹format› gguf"),
    ];
    first_given(&given).map_or(Ok(()), |setting| Err(refused(&job.source.model, setting)))
}

/// The same of what only the plan shows.
///
/// # Errors
/// Names what reads the model more than once.
pub fn refuse_plan(checkpoint: &Checkpoint, plan: &Plan) -> Result<(), Error> {
    let needs = [
        (plan.runs_data(), "calibration"),
        (plan.recipe().algorithms().rotation.is_some(), "a rotation"),
        (plan.reads_codes(), "a source that is quantized already"),
    ];
    match needs.iter().find(|(needed, _)| *needed) {
        Some((_, what)) => Err(refused(checkpoint.path(), what)),
        None => Ok(()),
    }
}

/// The error for what needs a model whole that is elsewhere.
pub fn refused(model: &Path, what: &str) -> Error {
    let message = format!("{what} needs the whole model on this machine, and {} is not", shown(model));
    let hint = "download the model first, e.g. `hf download ORG/NAME --local-dir DIR`, and name the folder; what needs no data, such as \
                ‹scheme› int4_wo_128, is quantized while it is downloaded";
    Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint.to_owned()))
}

/// Bytes that a run downloads for a plan, headers not counted; `None` for a model on this machine.
pub fn download_bytes(checkpoint: &Checkpoint) -> Option<u64> {
    checkpoint.is_supplied().then(|| checkpoint.tensors().map(|tensor| tensor.byte_len()).sum())
}

/// The largest kept tensor whose values are looked at before the work. Of a model elsewhere they are norms and biases, which stay on this
/// machine until they are copied; verification looks at the others.
pub fn looked_at_ahead(checkpoint: &Checkpoint) -> u64 {
    if checkpoint.is_supplied() { 1 << 20 } else { u64::MAX }
}

/// Notes how many bytes a run downloads, and refuses more than the job allows without a yes.
///
/// # Errors
/// Too much to download.
pub fn allow_download(job: &Job, checkpoint: &Checkpoint, bytes: u64, reporter: &Reporter<'_>) -> Result<(), Error> {
    if !checkpoint.is_supplied() {
        return Ok(());
    }
    let (name, shown_size) = (shown(checkpoint.path()), size::bytes(bytes));
    if job.limits.max_download.is_some_and(|most| bytes > most.0) {
        let message = format!("{shown_size} would be downloaded from {name}");
        let yes = Remedy::setting("yes", "go ahead with ‹yes›");
        return Err(Error::new(ErrorKind::Usage, message).with_remedies(vec![yes]));
    }
    reporter.note(&format!("{shown_size} of weights are downloaded from {name} as they are quantized, and not kept"));
    Ok(())
}
