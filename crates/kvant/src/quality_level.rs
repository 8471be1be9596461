//! Quality levels: from the level that a job asks for to the scales and algorithms that it stands for.

use crate::checkpoint::planning::outline;
use crate::error::{Error, ErrorKind};
use crate::job::{Data, Job, SourceKind};
use crate::settings::first_given;
use crate::{calibration, gguf, onnx, quality, resolve};
use kvant_checkpoint::gguf::GgufRecipe;
use kvant_checkpoint::recipe::{QualityChoice, QualityLevel, Recipe, Settings};
use kvant_container::Remedy;
use kvant_forward::forward::Decoder;
use kvant_gguf::ftype::Ftype;
use kvant_model::model_config::ModelConfig;
use kvant_quant::scheme::LayerScheme;

/// Replaces the level of a job by what it stands for, and returns what is to be said of it. Where the algorithms of a level do not run on
/// the model, the next lower one is taken.
///
/// # Errors
/// Scales or algorithms beside a level, and models that levels are not for. What else is wrong with a job is for its plan to say.
pub fn settle(job: &mut Job) -> Result<Option<String>, Error> {
    let Some(asked) = job.recipe.quality.take() else { return Ok(None) };
    match job.source.kind() {
        SourceKind::Graph => return onnx::quality_level::settle(job, asked),
        SourceKind::Pipeline => {
            let failure = Error::new(ErrorKind::Usage, "‹quality› does not apply to diffusers pipelines");
            return Err(failure.with_hint(Some("leave it out, and name algorithms with ‹algorithm›".to_owned())));
        }
        SourceKind::Checkpoint | SourceKind::Gguf => {}
    }
    let (line, file) = resolve::settings(job, job.sinks.checkpoints().first().copied(), &[])?;
    refuse_beside(job, asked, &file)?;
    // What cannot be read is for the plan to say.
    let Some(subject) = Subject::of(job, &line, &file) else { return Ok(None) };
    let choice = subject.choice(asked);
    let mut candidate = subject.with_choice(job, &choice);
    let problem = refusal(&candidate).filter(|refusal| refusal.kind == ErrorKind::Unsupported);
    let Some(problem) = problem else {
        let own = match candidate.data.num_samples.saturating_sub(job.data.num_samples) {
            0 => String::new(),
            own => format!("; the model writes {own} of {} sequences", candidate.data.num_samples),
        };
        *job = candidate;
        return Ok(Some(format!("‹quality› {asked} is {choice}{own}")));
    };
    for level in std::iter::successors(asked.lower(), |level| level.lower()) {
        let choice = subject.choice(level);
        candidate = subject.with_choice(job, &choice);
        if refusal(&candidate).is_none() {
            *job = candidate;
            let fallback = format!("‹quality› {asked} falls back to {level} for this model, {choice}");
            return Ok(Some(format!("{fallback}: {}", problem.message)));
        }
    }
    // No level is the cause: the plan says what is.
    *job = candidate;
    Ok(None)
}

/// The reason that a job is refused before weights are read, if so.
fn refusal(job: &Job) -> Option<Error> {
    match gguf::recipe(job) {
        Err(error) => Some(error),
        Ok(Some(recipe)) if !recipe.has_algorithms() => gguf::plan_for(job, recipe).err(),
        Ok(Some(_)) => outline(&job.of_gguf(), gguf::UNNAMED).err(),
        Ok(None) => outline(job, gguf::UNNAMED).err(),
    }
}

/// Refuses to carry out what a level stands for without the data that it takes.
///
/// # Errors
/// See above.
pub fn refuse_without_data(job: &Job) -> Result<(), Error> {
    // Graphs have a refusal of their own.
    let is_graph = matches!(job.source.kind(), SourceKind::Graph);
    if is_graph || job.recipe.algorithm.is_empty() || !job.data.files.is_empty() {
        return Ok(());
    }
    let failure = Error::new(
        ErrorKind::Usage,
        format!("{} needs calibration data, and none is given", job.recipe.algorithm.join(",")),
    );
    let (line, file) = resolve::settings(job, None, &[])?;
    let has_static_scales = Recipe::resolve(&line, &file).is_ok_and(|recipe| {
        recipe.schemes().any(LayerScheme::needs_calibration) || recipe.attention().needs_calibration()
    });
    let without = Remedy::setting("quality", "use ‹quality› fast, which needs none");
    let ways = [Some(Remedy::GiveCalibrationData), (!has_static_scales).then_some(without)];
    Err(failure.with_remedies(ways.into_iter().flatten().collect()))
}

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

/// A model that can write calibration data.
struct Writer {
    /// The longest sequence, if there is one.
    longest: Option<usize>,
}

impl Writer {
    /// Has the model write what data of fewer tokens lack, beside what was asked of them. Files without shares are read one after the
    /// other, which no share stands for.
    fn fill_up(&self, data: &mut Data, tokens: usize) {
        let wanted = tokens / calibration::options(data, self.longest).sequence_length.max(1);
        let asked = data.num_samples;
        let shares = if data.files.len() == 1 { vec![1.0] } else { data.shares.clone() };
        let is_text = !shares.is_empty() && data.files.iter().all(|file| !Data::is_self(file));
        if asked >= wanted || !is_text {
            return;
        }
        let sum: f64 = shares.iter().sum();
        data.shares = shares.iter().map(|share| share / sum * asked as f64).chain([(wanted - asked) as f64]).collect();
        data.files.push(Data::SELF.into());
        data.num_samples = wanted;
    }
}

/// What a level chooses for.
enum Subject {
    /// A GGUF file.
    File(Ftype),
    /// Layers of these schemes. A model that writes text says how much it reads at once.
    Layers { schemes: Vec<LayerScheme>, has_experts: bool, writer: Option<Writer> },
}

impl Subject {
    /// That of a job; `None` where its schemes or its source cannot be read.
    fn of(job: &Job, line: &Settings, file: &Settings) -> Option<Subject> {
        if let Some(recipe) = GgufRecipe::of(line, file).ok()? {
            return Some(Subject::File(recipe.ftype()));
        }
        let schemes = Recipe::resolve(line, file).ok()?.schemes().collect();
        let checkpoint = job.source.open().ok()?;
        let config = checkpoint.config().ok()?.and_then(|json| ModelConfig::from_json(&json).ok());
        let has_experts = config.is_some_and(|config| config.experts.is_some());
        let writer = Decoder::open(&checkpoint).ok().map(|decoder| Writer { longest: decoder.longest() });
        Some(Subject::Layers { schemes, has_experts, writer })
    }

    fn choice(&self, level: QualityLevel) -> QualityChoice {
        match self {
            Subject::File(ftype) => level.choose_for_file(*ftype),
            Subject::Layers { schemes, has_experts, .. } => level.choose(schemes, *has_experts),
        }
    }

    fn with_choice(&self, job: &Job, choice: &QualityChoice) -> Job {
        let mut job = job.clone();
        job.recipe.scales = choice.scales;
        job.recipe.algorithm = choice.algorithms.iter().map(|name| (*name).to_owned()).collect();
        if let (Some(tokens), Subject::Layers { writer: Some(writer), .. }) = (choice.fill_up, self) {
            writer.fill_up(&mut job.data, tokens);
        }
        // Data have no use for a file that is rounded to nearest, unless it is measured on them.
        let is_file = matches!(self, Subject::File(_));
        if is_file && choice.algorithms.is_empty() && !quality::measures_on_calibration_data(&job) {
            job.data.files.clear();
        }
        job
    }
}
