//! Quality levels: from the level that a job asks for to the scales and algorithms that it stands for.

use crate::checkpoint::planning::outline;
use crate::error::{Error, ErrorKind};
use crate::job::{Job, SourceKind};
use crate::resolve;
use crate::settings::first_given;
use kvant_checkpoint::gguf::GgufRecipe;
use kvant_checkpoint::recipe::{QualityChoice, QualityLevel, Recipe, Settings};
use kvant_container::Remedy;
use kvant_formats::format::OutputFormat;
use kvant_model::model_config::ModelConfig;

/// Replaces the level of a job by what it stands for, and returns what is to be said of it. Where the algorithms of a level do not run on
/// the model, the next lower one is taken.
///
/// # Errors
/// Scales or algorithms beside a level, and models that levels are not for. What else is wrong with a job is for its plan to say.
pub fn settle(job: &mut Job) -> Result<Option<String>, Error> {
    let Some(asked) = job.recipe.quality.take() else { return Ok(None) };
    if matches!(job.source.kind(), SourceKind::Graph | SourceKind::Pipeline) {
        let failure = Error::new(ErrorKind::Usage, "‹quality› applies only to language models and encoders");
        return Err(failure.with_hint(Some("leave it out, and name algorithms with ‹algorithm›".to_owned())));
    }
    let (line, file) = resolve::settings(job, job.sinks.checkpoints().first().copied(), &[])?;
    refuse_beside(job, asked, &file)?;
    let mut obstacle = None;
    let mut level = asked;
    loop {
        let Some(choice) = choice(job, level, (&line, &file)) else { return Ok(None) };
        let candidate = with_choice(job, &choice);
        let refusal = match level.lower() {
            Some(_) => outline(&of_format(&candidate, (&line, &file)), UNNAMED).err(),
            None => None,
        };
        match (refusal.filter(|refusal| refusal.kind == ErrorKind::Unsupported), level.lower()) {
            (Some(refusal), Some(lower)) => {
                obstacle.get_or_insert(refusal.message);
                level = lower;
            }
            _ => {
                *job = candidate;
                return Ok(Some(match obstacle {
                    None => format!("‹quality› {asked} is {choice}"),
                    Some(reason) => format!("‹quality› {asked} is that of {level} for this model, {choice}: {reason}"),
                }));
            }
        }
    }
}

/// Refuses to carry out what a level stands for without the data that it takes.
///
/// # Errors
/// See above.
pub fn refuse_without_data(job: &Job) -> Result<(), Error> {
    if job.recipe.algorithm.is_empty() || !job.data.files.is_empty() {
        return Ok(());
    }
    let failure = Error::new(
        ErrorKind::Usage,
        format!("{} needs calibration data, and none is given", job.recipe.algorithm.join(",")),
    );
    Err(failure.with_remedies(vec![
        Remedy::GiveCalibrationData,
        Remedy::setting("quality", "take ‹quality› fast, which needs none"),
    ]))
}

/// The name of a file that is planned and not written.
const UNNAMED: &str = "model.gguf";

/// Refuses to choose what was chosen already.
fn refuse_beside(job: &Job, level: QualityLevel, file: &Settings) -> Result<(), Error> {
    let given = [
        (!job.recipe.algorithm.is_empty(), "‹algorithm›"),
        (job.recipe.scales.is_some(), "‹scales›"),
        (job.recipe.imatrix.is_some(), "‹imatrix›"),
        (job.sinks.save_imatrix.is_some(), "‹save-imatrix›"),
        (file.algorithm.is_some(), "`algorithm` of the recipe"),
        (file.scales.is_some(), "`scales` of the recipe"),
    ];
    let Some(option) = first_given(&given) else { return Ok(()) };
    let failure = Error::new(
        ErrorKind::Usage,
        format!("‹quality› {level} chooses scales and algorithms, and {option} is given too"),
    );
    Err(failure.with_remedies(vec![Remedy::text("leave one of them out")]))
}

/// What a level stands for with the schemes of a job; `None` where these cannot be read, which the plan says.
fn choice(job: &Job, level: QualityLevel, (line, file): (&Settings, &Settings)) -> Option<QualityChoice> {
    if let Some(recipe) = GgufRecipe::of(line, file).ok()? {
        return Some(level.choose_for_file(recipe.ftype()));
    }
    let schemes: Vec<_> = Recipe::resolve(line, file).ok()?.schemes().collect();
    let config = job.source.open().ok()?.config().ok()?.and_then(|json| ModelConfig::from_json(&json).ok());
    Some(level.choose(&schemes, config.is_some_and(|config| config.experts.is_some())))
}

fn with_choice(job: &Job, choice: &QualityChoice) -> Job {
    let mut job = job.clone();
    job.recipe.scales = choice.scales;
    job.recipe.algorithm = choice.algorithms.iter().map(|name| (*name).to_owned()).collect();
    job
}

/// The job with the format that the name of its scheme asks for.
fn of_format(job: &Job, (line, file): (&Settings, &Settings)) -> Job {
    let mut job = job.clone();
    if matches!(GgufRecipe::of(line, file), Ok(Some(_))) {
        job.sinks.formats = vec![crate::job::Format::Model(OutputFormat::Gguf)];
    }
    job
}
