//! What becomes of each component of a pipeline: which are quantized, and how.

use crate::error::{Error, ErrorKind};
use crate::job::{GivenStatistics, Job};
use crate::text::shown;
use kvant_checkpoint::recipe::OverrideText;
use kvant_container::{Checkpoint, Pipeline, PipelineComponent, TensorFile};

/// A component and what becomes of it.
#[derive(Debug)]
pub(super) struct Choice {
    pub component: PipelineComponent,
    /// Its weights and other files.
    pub checkpoint: Checkpoint,
    /// Bytes of its tensors.
    pub bytes: u64,
    pub fate: Fate,
}

/// What becomes of a component.
#[derive(Debug)]
pub(super) enum Fate {
    /// It is quantized by this job, whose output is not named yet.
    Quantized(Box<Job>),
    /// It is copied, for this reason.
    Kept(String),
}

/// The value of ‹component› that keeps a component.
const KEEP: &str = "keep";

/// The least share of the pipeline's weights that a component has which is quantized without being named.
const LARGE: f64 = 0.1;

/// Parts of the names of classes that are kept unless they are named: they turn latents into images, or judge images.
const SENSITIVE: &[&str] = &["Autoencoder", "VAE", "VQModel", "SafetyChecker"];

/// Decides on every component.
///
/// # Errors
/// Names in the job that are those of no component; components that cannot be opened.
pub(super) fn choose(job: &Job, pipeline: &Pipeline) -> Result<Vec<Choice>, Error> {
    let names: Vec<&str> = pipeline.components.iter().map(|component| component.name.as_str()).collect();
    for OverrideText { layers: name, .. } in &job.recipe.components {
        refuse_unknown(name, &names)?;
    }
    for pattern in &job.recipe.exclude {
        refuse_outside(pattern, &names, "‹exclude›")?;
    }
    for pattern in &job.recipe.overrides {
        refuse_outside(&pattern.layers, &names, "‹override›")?;
    }
    let mut opened = Vec::new();
    for component in &pipeline.components {
        let checkpoint = crate::job::open_whole(&pipeline.path.join(&component.name))?;
        if let Some(misfit) = super::misfit(component, &checkpoint).filter(|_| !job.sinks.commit.no_verify) {
            let hint = "download the component again: diffusers does not load it as it is";
            return Err(Error::new(ErrorKind::Invalid, misfit).with_hint(Some(hint.to_owned())));
        }
        let bytes = checkpoint.tensors().map(|tensor| tensor.byte_len()).sum();
        opened.push((component, checkpoint, bytes));
    }
    let all: u64 = opened.iter().map(|(.., bytes)| *bytes).sum();
    let choices = opened.into_iter().map(|(component, checkpoint, bytes)| {
        let fate = fate(job, component, bytes as f64 / all.max(1) as f64);
        Choice { component: component.clone(), checkpoint, bytes, fate }
    });
    Ok(choices.collect())
}

fn fate(job: &Job, component: &PipelineComponent, share: f64) -> Fate {
    let named = job.recipe.components.iter().rev().find(|named| named.layers == component.name);
    let class = component.class.as_str();
    let scheme = match named {
        Some(named) if named.scheme == KEEP => return Fate::Kept("as asked".to_owned()),
        Some(named) => Some(named.scheme.clone()),
        None if job.recipe.scheme.is_none() && job.recipe.file.is_none() => {
            return Fate::Kept("not named with ‹component›".to_owned());
        }
        None if SENSITIVE.iter().any(|part| class.contains(part)) => {
            return Fate::Kept(format!("quantizing {class} costs quality and saves little"));
        }
        None if share < LARGE => return Fate::Kept("less than a tenth of the weights".to_owned()),
        None => job.recipe.scheme.clone(),
    };
    let mut of_component = job.clone();
    of_component.source.model = job.source.model.join(&component.name);
    of_component.sinks.output = None;
    // The whole is discarded before, and replaced after.
    (of_component.sinks.commit.restart, of_component.sinks.commit.overwrite) = (false, false);
    let recipe = &mut of_component.recipe;
    recipe.scheme = scheme;
    recipe.statistics = job.recipe.statistics.as_ref().and_then(|given| statistics_of(given, &component.name));
    recipe.components.clear();
    let inside = |pattern: &str| pattern_inside(pattern, &component.name).map(str::to_owned);
    recipe.exclude = job.recipe.exclude.iter().filter_map(|pattern| inside(pattern)).collect();
    let inside = |named: &OverrideText| Some(OverrideText { layers: inside(&named.layers)?, ..named.clone() });
    recipe.overrides = job.recipe.overrides.iter().filter_map(inside).collect();
    Fate::Quantized(Box::new(of_component))
}

/// The statistics of a component, from its own file or the file of the whole pipeline; `None` if neither has any.
fn statistics_of(given: &GivenStatistics, component: &str) -> Option<GivenStatistics> {
    if given.path.is_dir() {
        let path = given.path.join(format!("{component}.safetensors"));
        return path.exists().then(|| GivenStatistics::of_file(path));
    }
    let of_component = GivenStatistics { component: Some(component.to_owned()), ..given.clone() };
    // A file that cannot be read is for the plan of the component to say.
    let is_named = |file: TensorFile| file.tensors().any(|tensor| pattern_inside(tensor.name(), component).is_some());
    TensorFile::open(&given.path).map_or(true, is_named).then_some(of_component)
}

fn refuse_unknown(name: &str, names: &[&str]) -> Result<(), Error> {
    if names.contains(&name) {
        return Ok(());
    }
    let message = format!("the pipeline has no component `{}` with weights", shown(name.as_ref()));
    let hint = format!("name one of {} with ‹component›", names.join(", "));
    Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint)))
}

/// What a pattern of layer names says of the layers of a component; `None` where it does not begin with the component's name.
pub(super) fn pattern_inside<'p>(pattern: &'p str, component: &str) -> Option<&'p str> {
    pattern.strip_prefix(component)?.strip_prefix('.')
}

/// Refuses a pattern that begins with the name of no component.
fn refuse_outside(pattern: &str, names: &[&str], setting: &str) -> Result<(), Error> {
    if names.iter().any(|name| pattern_inside(pattern, name).is_some()) {
        return Ok(());
    }
    let message = format!("{setting} `{}` names no component", shown(pattern.as_ref()));
    let example = names.first().unwrap_or(&"transformer");
    let hint = format!("begin the pattern with a component and a dot, e.g. '{example}.*.ff.*'");
    Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint)))
}
