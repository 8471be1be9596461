//! From a job to the plan of a checkpoint, and of the file that is written from it.

use crate::calibration;
use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use crate::gguf;
use crate::job::{Format, GivenStatistics, Job, SourceKind};
use crate::loading::refuse_unloadable;
use crate::{quality, remote, resolve};
use kvant_checkpoint::engine::OutputPlan;
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe};
use kvant_checkpoint::plan::{Plan, PlanError};
use kvant_checkpoint::recipe::{NamedScheme, Recipe, Settings};
use kvant_container::{Checkpoint, Remedy};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::rotation::LearnedRotations;
use kvant_formats::verify::inherited_warnings;
use kvant_formats::{rotated, separate_head};
use kvant_forward::forward::Decoder;
use kvant_onnx::preset::Preset;
use kvant_quant::rotation::Rotate;

/// Applies what the recipe file says of the flow: a format other than a checkpoint, and a file of statistics, count as if the job itself
/// had named them.
///
/// # Errors
/// If the file cannot be read.
pub fn complete(job: &mut Job) -> Result<(), Error> {
    let Some(path) = job.recipe.file.as_ref().filter(|_| job.source.kind() != SourceKind::Graph) else { return Ok(()) };
    let names_nothing = job.sinks.formats.is_empty();
    if !names_nothing && job.recipe.statistics.is_some() {
        return Ok(());
    }
    let file = Settings::read(path)?;
    if names_nothing && file.format == Some(OutputFormat::Gguf) {
        job.sinks.formats.push(Format::Model(OutputFormat::Gguf));
    }
    if job.recipe.statistics.is_none() {
        job.recipe.statistics = file.statistics.map(GivenStatistics::of_file);
    }
    Ok(())
}

/// The plan of a job for a checkpoint.
pub struct Planned {
    /// The source.
    pub checkpoint: Checkpoint,
    /// The checkpoint to write.
    pub plan: Plan,
    /// The checkpoints in further formats, converted from it.
    pub others: Vec<Plan>,
    /// The GGUF file to write from its codes, if one is requested.
    pub file: Option<GgufPlan>,
    /// What is said of the chosen format.
    pub note: Option<String>,
}

impl Planned {
    /// One checkpoint, and nothing else.
    fn of(checkpoint: Checkpoint, plan: Plan) -> Planned {
        Planned { checkpoint, plan, others: Vec::new(), file: None, note: None }
    }

    /// Refuses output that would not pass verification, unless `job` skips it.
    ///
    /// # Errors
    /// Problems of the source or its name; outputs that no known loader takes.
    pub fn preflight(&self, job: &Job) -> Result<(), Error> {
        if self.checkpoint.is_supplied() {
            remote::refuse_plan(&self.checkpoint, &self.plan)?;
        }
        self.plan.check_hessians()?;
        if job.sinks.commit.no_verify {
            return Ok(());
        }
        self.plan.preflight(&self.checkpoint)?;
        self.file.as_ref().map_or(Ok(()), |file| file.preflight(&self.checkpoint))?;
        let kept = job.sinks.keeps_checkpoint().then_some(&self.plan);
        kept.into_iter().chain(&self.others).try_for_each(|plan| refuse_unloadable(plan, || way_to_load(job)))
    }

    /// The warnings of verification that the source has already, for a checkpoint that is kept.
    pub fn warnings(&self, job: &Job) -> Vec<String> {
        if job.sinks.commit.no_verify || !job.sinks.keeps_checkpoint() {
            return Vec::new();
        }
        let found = inherited_warnings(&self.checkpoint);
        found.iter().map(|found| format!("{}: {}", found.place, found.reason)).collect()
    }

    /// Refuses calibration data that the run could not use, without reading them, and says where it does not need any.
    ///
    /// # Errors
    /// Those of loading the data, where they are needed.
    pub fn check_data(&self, job: &Job, reporter: &Reporter<'_>) -> Result<(), Error> {
        let (calibrates, measures) = (self.plan.runs_data(), quality::measures_on_calibration_data(job));
        if job.recipe.statistics.is_some() && !self.plan.takes_statistics() {
            reporter.warning("statistics ignored: this recipe has no static scales to find and no scales to search");
        }
        if calibrates || measures {
            // The room on disks depends on the length of sequences.
            calibration::check_for(&self.checkpoint, job, self.plan.longest())?;
        }
        if calibrates || job.data.files.is_empty() {
            return Ok(());
        }
        match measures {
            true => reporter.note("this recipe does not need calibration data: the result is measured on them"),
            false => reporter.warning("calibration data ignored: this recipe does not need any"),
        }
        Ok(())
    }
}

/// Plans a job; `file` is the name of a GGUF file.
///
/// # Errors
/// Whatever can be refused before weights are read.
pub fn plan(job: &Job, file: &str) -> Result<Planned, Error> {
    let calibrated = !job.data.files.is_empty();
    plan_with(job, file, calibrated).or_else(|error| {
        if !calibrated {
            // To ask for data would be idle where they would not help.
            outline(job, file)?.preflight(job)?;
        }
        Err(error)
    })
}

/// The same for looking at alone: calibration data may come later.
///
/// # Errors
/// As [`plan`].
pub fn outline(job: &Job, file: &str) -> Result<Planned, Error> {
    plan_with(job, file, true)
}

fn plan_with(job: &Job, file: &str, calibrated: bool) -> Result<Planned, Error> {
    let repeated = job.sinks.formats.iter().enumerate().find(|(at, format)| job.sinks.formats[..*at].contains(format));
    if let Some((_, format)) = repeated {
        let failure = Error::new(ErrorKind::Usage, format!("‹format› {} is given twice", format.name()));
        return Err(failure.with_hint(Some("name every format once".to_owned())));
    }
    resolve::refuse_checkpoint_settings(job)?;
    if let Some(recipe) = gguf::recipe_of_blocks(job)? {
        return plan_blocks(job, recipe, file, calibrated);
    }
    if job.sinks.wants_gguf() {
        gguf::refuse_biases(job)?;
    }
    let planned = plan_for_all(job, calibrated)?;
    let (checkpoint, plan) = (&planned.checkpoint, &planned.plan);
    resolve::refuse_idle_propagation(job, !plan.blocks().is_empty())?;
    let file = job.sinks.wants_gguf().then(|| GgufPlan::of_codes(checkpoint, plan, file)).transpose()?;
    if job.sinks.wants_graph() {
        check_graph(checkpoint, plan)?;
    }
    if job.recipe.statistics.is_some() {
        refuse_data_beside_statistics(job, plan)?;
    }
    if plan.runs_data() {
        // The headers show whether the model runs here.
        Decoder::open_any(checkpoint)?;
    }
    Ok(Planned { file, ..planned })
}

/// Refuses calibration data beside statistics, and algorithms that run them through the model: scales would have two origins.
fn refuse_data_beside_statistics(job: &Job, plan: &Plan) -> Result<(), Error> {
    let algorithms = plan.recipe().algorithms();
    if algorithms.rotation.is_some() {
        let message = "‹statistics› is of the channels of the model as it is, and `rotate` mixes them";
        let failure = Error::new(ErrorKind::Usage, message);
        return Err(failure.with_remedies(vec![Remedy::leave_out("statistics"), Remedy::leave_out("algorithm")]));
    }
    if !plan.blocks().is_empty() {
        let failure = Error::new(
            ErrorKind::Usage,
            format!("{algorithms}: it runs data through the model, and ‹statistics› takes their place"),
        );
        return Err(failure.with_remedies(vec![
            Remedy::setting("calib", "give data with ‹calib› in place of ‹statistics›"),
            Remedy::leave_out("algorithm"),
        ]));
    }
    if job.data.files.is_empty() || quality::measures_on_calibration_data(job) {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Usage, "‹statistics› and ‹calib› exclude each other");
    Err(failure.with_hint(Some("read the statistics of inputs from a file, or measure them".to_owned())))
}

/// The first of the formats with codes that a known loader would take, and its plan.
fn loadable(job: &Job, calibrated: bool) -> Option<(Checkpoint, Plan)> {
    let stores_codes = |format: &OutputFormat| matches!(format, OutputFormat::Checkpoint(_));
    let mut planned =
        OutputFormat::all().filter(stores_codes).filter_map(|format| plan_for(job, Some(format), &[], calibrated).ok());
    planned.find(|(_, plan)| !plan.loaders().is_empty())
}

/// The advice for a result that no known loader takes.
fn way_to_load(job: &Job) -> Remedy {
    Remedy::UseFormat(match loadable(job, true) {
        Some((_, plan)) => {
            format!("use ‹format› {}, which loads in {}", plan.format().name(), plan.loaders().join(", "))
        }
        None if job.sinks.formats == [Format::Model(OutputFormat::PlainFloats)] => {
            "quantize the model that it was made from".to_owned()
        }
        None => "use ‹format› fake, whose floats load wherever the source loads".to_owned(),
    })
}

/// The plan of a file whose codes algorithms choose, and of the checkpoint that holds its blocks before.
fn plan_blocks(job: &Job, recipe: GgufRecipe, file: &str, calibrated: bool) -> Result<Planned, Error> {
    let checkpoint = job.source.open_for(OutputFormat::Gguf, recipe.algorithms().rotation)?;
    let mut file = GgufPlan::new(&checkpoint, recipe, file)?;
    let types = file.types_of_modules();
    if types.is_empty() {
        let (mix, algorithms) = (file.recipe.ftype(), file.recipe.algorithms());
        let reason = format!("{algorithms}: no layer of {mix} has codes that algorithms choose");
        let hint = "use another type, e.g. ‹scheme› Q4_K_M or Q4_0, or leave ‹algorithm› out";
        return Err(Error::new(ErrorKind::Unsupported, reason).with_hint(Some(hint.to_owned())));
    }
    file.notices.extend(file.note_of_nearest(&types));
    let plan = Plan::new(&checkpoint, file.recipe.of_layers(types).with_calibration(calibrated))?;
    if !plan.blocks().is_empty() {
        Decoder::open(&checkpoint)?;
    }
    Ok(Planned { file: Some(file), ..Planned::of(checkpoint, plan) })
}

/// Refuses what a graph of the quantized decoder would not hold: rules of the model, weights and quantized activations.
fn check_graph(checkpoint: &Checkpoint, plan: &Plan) -> Result<(), Error> {
    let layers = plan.layers().iter().map(|layer| (layer.name.as_str(), layer.scheme));
    kvant_checkpoint::onnx::check_schemes(layers, &plan.recipe().attention())?;
    let other = || Remedy::UseFormat("choose another ‹format›: only decoders are written as ONNX graphs".to_owned());
    let decoder = Decoder::open(checkpoint).map_err(|error| Error::not_run(error, other()))?;
    Ok(kvant_checkpoint::onnx::check(&decoder, true)?)
}

/// The plan for the first of the formats that are checkpoints, and those for the others.
fn plan_for_all(job: &Job, calibrated: bool) -> Result<Planned, Error> {
    let formats = job.sinks.checkpoints();
    if formats == [OutputFormat::PlainFloats] && (job.sinks.wants_gguf() || job.sinks.wants_graph()) {
        let failure = Error::new(ErrorKind::Usage, "‹format› fake has no codes, of which the other formats are made");
        return Err(failure.with_hint(Some("write it in a separate run, or add a format that stores codes".to_owned())));
    }
    let file = job.sinks.wants_gguf().then_some(OutputFormat::Gguf);
    let [first, others @ ..] = formats.as_slice() else {
        return plan_in_default_format(job, file.as_slice(), calibrated);
    };
    let all = || formats.iter().copied().chain(file);
    // Conversions that a further format does not support are refused now, not after the first is written.
    let further = |format: &OutputFormat| {
        let also: Vec<_> = all().filter(|other| other != format).collect();
        plan_for(job, Some(*format), &also, calibrated).map(|(_, plan)| plan)
    };
    let others: Vec<Plan> = others.iter().map(further).collect::<Result<_, Error>>()?;
    let (checkpoint, plan) = plan_for(job, Some(*first), &all().skip(1).collect::<Vec<_>>(), calibrated)?;
    if others.iter().any(|other: &Plan| other.format() == OutputFormat::PlainFloats) && plan.splits_experts() {
        let message = format!(
            "‹format› fake would be converted from ‹format› {first}, whose experts are separate layers: no loader of floats finds those"
        );
        let failure = Error::new(ErrorKind::Unsupported, message);
        return Err(failure.with_hint(Some("write ‹format› fake in a separate run".to_owned())));
    }
    Ok(Planned { others, ..Planned::of(checkpoint, plan) })
}

/// The plan in the format that the recipe's schemes come from. Where no known loader takes that, and neither the job nor its recipe file
/// names a format, one that loads is chosen.
fn plan_in_default_format(job: &Job, also: &[OutputFormat], calibrated: bool) -> Result<Planned, Error> {
    let (checkpoint, plan) = plan_for(job, None, also, calibrated)?;
    let is_open = job.sinks.formats.is_empty() && !job.sinks.commit.no_verify;
    if !is_open || plan.loader_refusals().is_empty() || resolve::settings(job, None, &[])?.1.format.is_some() {
        return Ok(Planned::of(checkpoint, plan));
    }
    let Some((checkpoint, other)) = loadable(job, calibrated) else { return Ok(Planned::of(checkpoint, plan)) };
    let (chosen, default) = (other.format().name(), plan.format().name());
    let note = format!("the format is {chosen}: no known loader takes this model in the format {default}");
    Ok(Planned { note: Some(note), ..Planned::of(checkpoint, other) })
}

/// The plan for one of the formats; the others, to which the result is converted, decide on scales too.
fn plan_for(
    job: &Job,
    format: Option<OutputFormat>,
    also: &[OutputFormat],
    calibrated: bool,
) -> Result<(Checkpoint, Plan), Error> {
    resolve::refuse_graph_settings(job)?;
    let statistics = resolve::statistics(job)?;
    let recipe = recipe(job, format, also)?.with_calibration(calibrated).with_statistics(statistics);
    refuse_online_rotation(job, &recipe)?;
    let checkpoint = rotated::open(open_source(job, &recipe)?, recipe.algorithms().rotation)?;
    let plan = Plan::new(&checkpoint, recipe).map_err(|error| match error {
        // The intermediate checkpoint of a file or a graph is nothing that the user has asked for.
        PlanError::ExcludedCodes { layers, reason, .. } if !job.sinks.keeps_checkpoint() => {
            let target = job.sinks.formats.first().map_or("", |format| format.name());
            PlanError::ExcludedCodes { layers, format: target.to_owned(), reason, formats: Vec::new() }
        }
        error => error,
    })?;
    Ok((checkpoint, plan))
}

/// Refuses rotations that loaders compute for files and graphs that are made of the checkpoint, and have no place for them.
fn refuse_online_rotation(job: &Job, recipe: &Recipe) -> Result<(), Error> {
    let is_online = recipe.algorithms().rotation.is_some_and(|rotate| rotate.down);
    if !is_online || !(job.sinks.wants_gguf() || job.sinks.wants_graph()) {
        return Ok(());
    }
    let message = "with `rotate:down=on` loaders rotate inputs while the model runs, which GGUF files and ONNX graphs have no place for";
    let formats = FormatHandle::of_rotations().join(" or ");
    let hint = format!("leave down=on out, or use ‹format› {formats} alone");
    Err(Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint)))
}

/// The source as a recipe reads it, before it is rotated.
fn open_source(job: &Job, recipe: &Recipe) -> Result<Checkpoint, Error> {
    Ok(separate_head::open(job.source.open_in(recipe.format())?, |head| {
        recipe.asks_for(head.module, head.network.linears().iter().map(|linear| linear.module.as_str()))
    })?)
}

/// The source of a plan, rotated by learned matrices.
///
/// # Errors
/// Those of opening it.
pub fn learned_source(job: &Job, plan: &Plan, rotate: Rotate, learned: &LearnedRotations) -> Result<Checkpoint, Error> {
    Ok(rotated::open_learned(open_source(job, plan.recipe())?, rotate, learned)?)
}

fn recipe(job: &Job, format: Option<OutputFormat>, also: &[OutputFormat]) -> Result<Recipe, Error> {
    let (line, file) = resolve::settings(job, format, also)?;
    Recipe::resolve(&line, &file).map_err(|error| preset_of_graphs(job).unwrap_or_else(|| error.into()))
}

/// The reason that a scheme is refused, if it is the name of a preset and nothing else.
fn preset_of_graphs(job: &Job) -> Option<Error> {
    let name = job.recipe.scheme.as_deref().filter(|name| NamedScheme::find("", name).is_err())?;
    Preset::resolve(name).ok()??;
    let problem = format!("‹scheme›: `{name}` is a preset for ONNX graphs, and the model is a checkpoint");
    let hint = "use a scheme, e.g. W8A8 (`kvant list schemes`); ‹format› onnx writes a graph with it";
    Some(Error::new(ErrorKind::Usage, problem).with_hint(Some(hint.to_owned())))
}
