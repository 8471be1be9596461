//! Quantization that is controlled by accuracy: recipes are tried until a graph loses little enough, as a metric of the user's, labels or the
//! float graph's classes say.

mod attempt;
mod command;
mod gate;
mod recipes;
mod search;

pub use attempt::AccuracyReport;
pub(super) use search::search;

use super::data::is_text;
use crate::error::{Error, ErrorKind};
use crate::job::Job;
use crate::settings::first_given;
use command::MetricCommand;
use gate::{no_samples, no_text};
use kvant_container::Remedy;
use kvant_container::unfinished::state_of;

/// The preset that ‹auto› starts from where none is named: its types are those of ONNX Runtime's fast kernels.
const PRESET: &str = "U8S8_AAWS";
/// A drop of top-1 from here on is meant in percent, and given as a share.
const MEANT_IN_PERCENT: f64 = 0.5;

/// Returns whether several recipes are tried for a graph.
pub fn is_asked(job: &Job) -> bool {
    job.recipe.graph.auto || job.limits.quality.max_drop.is_some()
}

/// Names the preset that ‹auto› starts from, where neither the job nor its recipe names one.
pub fn complete(job: &mut Job) {
    if job.recipe.graph.auto && job.recipe.scheme.is_none() && job.recipe.file.is_none() {
        job.recipe.scheme = Some(PRESET.to_owned());
    }
}

/// Refuses settings of accuracy that have no effect, or nothing to be measured on.
///
/// # Errors
/// Names the setting.
pub fn check(job: &Job) -> Result<(), Error> {
    let quality = &job.limits.quality;
    let refused =
        |message: String, remedies: Vec<Remedy>| Err(Error::new(ErrorKind::Usage, message).with_remedies(remedies));
    let Some(max_drop) = quality.max_drop else {
        let idle = [
            (quality.metric.is_some(), "‹metric›"),
            (quality.labels.is_some(), "‹labels›"),
            (quality.eval.is_some(), "‹eval›"),
        ];
        if let Some(setting) = first_given(&idle) {
            let way = Remedy::setting("max-drop", "say how much may be lost with ‹max-drop›, or leave it out");
            return refused(format!("{setting} of an ONNX graph has no effect without ‹max-drop›"), vec![way]);
        }
        if job.recipe.graph.auto && quality.min_sqnr.is_none() {
            let limits = ["max-drop", "min-sqnr"];
            let ways = limits.map(|limit| Remedy::setting(limit, format!("give one with ‹{limit}›")));
            return refused("‹auto› tries recipes until a limit holds, and none is given".to_owned(), ways.into());
        }
        return Ok(());
    };
    if let Some(metric) = &quality.metric {
        MetricCommand::new(metric)?;
        let idle = [(quality.labels.is_some(), "‹labels›"), (quality.eval.is_some(), "‹eval›")];
        return match first_given(&idle) {
            Some(setting) => {
                let way = Remedy::text("leave one of them out: the command chooses its own data");
                refused(format!("‹metric› and {setting} exclude each other"), vec![way])
            }
            None => Ok(()),
        };
    }
    if max_drop >= MEANT_IN_PERCENT {
        let way = Remedy::setting("max-drop", "0.01 is one percentage point");
        return refused(
            format!("‹max-drop› {max_drop} is a share of samples, and allows to lose half of them"),
            vec![way],
        );
    }
    if quality.labels.is_some() && quality.eval.is_none() {
        let way = Remedy::setting("eval", "name the samples that they belong to with ‹eval›");
        return refused("‹labels› are those of ‹eval›, which is not given".to_owned(), vec![way]);
    }
    match &quality.eval {
        Some(eval) if is_text(eval) => Err(no_text()),
        None if job.data.files.is_empty() => Err(no_samples()),
        None if job.data.files.iter().all(|file| is_text(file)) => Err(no_text()),
        _ => Ok(()),
    }
}

/// What else decides which recipe is taken, in addition to the fingerprint of the first.
pub(super) fn fingerprint(job: &Job) -> String {
    let quality = &job.limits.quality;
    let eval = quality.eval.as_deref().map(|path| state_of(path).unwrap_or_default());
    let limits = (quality.max_drop, quality.min_sqnr);
    format!(" {} {limits:?} {:?} {:?} {eval:?}", job.recipe.graph.auto, quality.metric, quality.labels)
}
