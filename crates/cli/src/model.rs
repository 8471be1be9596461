//! From arguments to a plan: which flow an input takes, and the recipe that file and options make together.

use crate::args::{Format, RecipeArgs, RunArgs};
use crate::failure::{Failure, Kind};
use crate::onnx;
use kvant_container::Checkpoint;
use kvant_llm::engine::Deliverable;
use kvant_llm::export::Export;
use kvant_llm::forward::Decoder;
use kvant_llm::gguf::GgufPlan;
use kvant_llm::plan::Plan;
use kvant_llm::recipe::{Recipe, Settings};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Opens a checkpoint of safetensors, or a GGUF file as one.
///
/// # Errors
/// Whatever is wrong with the files.
pub fn open(path: &Path) -> Result<Checkpoint, Failure> {
    if claims_gguf(path) {
        return Ok(kvant_llm::gguf::restore::open(path)?);
    }
    Ok(Checkpoint::open(path)?)
}

/// The same with LoRA adapters, which are merged into the weights as these are read.
///
/// # Errors
/// Whatever is wrong with the files, or an adapter that does not fit the model.
pub fn open_with(path: &Path, adapters: &[PathBuf]) -> Result<Checkpoint, Failure> {
    Ok(kvant_llm::adapter::open(open(path)?, adapters)?)
}

/// Whether a file is one of GGUF, or says so by its name: what is wrong with it is told by who reads such files.
pub fn claims_gguf(path: &Path) -> bool {
    let named = || path.is_file() && path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"));
    kvant_container::gguf::is_gguf(path) || named()
}

/// Takes over the format of the recipe file where that decides which flow it is: one that is no checkpoint counts as if it had been
/// given at the command line.
///
/// # Errors
/// Where the file cannot be read.
pub fn complete(args: &mut RecipeArgs) -> Result<(), Failure> {
    let Some(path) = args.recipe.as_ref().filter(|_| args.format.is_empty()) else { return Ok(()) };
    if !onnx::is_graph(&args.model) && Settings::read(path)?.format == Some(Export::Gguf) {
        args.format.push(Format::Export(Export::Gguf));
    }
    Ok(())
}

/// What arguments make of a checkpoint.
pub struct Planned {
    /// The source.
    pub checkpoint: Checkpoint,
    /// The checkpoint that is made of it.
    pub plan: Plan,
    /// The GGUF file that is made of its codes, where one is asked for.
    pub file: Option<GgufPlan>,
}

impl Planned {
    /// Refuses what would not pass verification.
    ///
    /// # Errors
    /// What is wrong with the source or its name.
    pub fn foresee(&self) -> Result<(), Failure> {
        self.plan.foresee(&self.checkpoint)?;
        Ok(self.file.as_ref().map_or(Ok(()), |file| file.foresee(&self.checkpoint))?)
    }
}

/// Plans what arguments ask for; `file` is the name of a GGUF file.
///
/// # Errors
/// Whatever can be refused before weights are read.
pub fn plan(args: &RecipeArgs, file: &str) -> Result<Planned, Failure> {
    plan_with(args, file, !args.calibration.calib.is_empty())
}

/// The same for looking at alone: calibration data may come later.
///
/// # Errors
/// As [`plan`].
pub fn outline(args: &RecipeArgs, file: &str) -> Result<Planned, Failure> {
    plan_with(args, file, true)
}

fn plan_with(args: &RecipeArgs, file: &str, calibrated: bool) -> Result<Planned, Failure> {
    let repeated = args.format.iter().enumerate().find(|(at, format)| args.format[..*at].contains(format));
    if let Some((_, format)) = repeated {
        let failure = Failure::new(Kind::Usage, format!("--format {} is given twice", format.name()));
        return Err(failure.with_hint(Some("name every format once".to_owned())));
    }
    let (checkpoint, plan) = plan_for_all(args, calibrated)?;
    let file = args.wants_gguf().then(|| GgufPlan::of_codes(&checkpoint, &plan, file)).transpose()?;
    if args.wants_graph() {
        check_graph(&checkpoint, &plan)?;
    }
    if plan.needs_calibration() || !plan.blocks.is_empty() {
        // Whether the model runs here is told by its headers.
        Decoder::open(&checkpoint)?;
    }
    Ok(Planned { checkpoint, plan, file })
}

/// Refuses what a graph of the quantized decoder would not hold: rules of the model, weights and quantized activations.
fn check_graph(checkpoint: &Checkpoint, plan: &Plan) -> Result<(), Failure> {
    let layers = plan.layers.iter().map(|layer| (layer.name.as_str(), layer.scheme));
    kvant_llm::onnx::check_schemes(layers, &plan.recipe.attention())?;
    Ok(kvant_llm::onnx::check(&Decoder::open(checkpoint)?, true)?)
}

/// The plan for the first of the formats that are checkpoints.
fn plan_for_all(args: &RecipeArgs, calibrated: bool) -> Result<(Checkpoint, Plan), Failure> {
    let exports = args.checkpoints();
    if exports == [Export::Fake] && (args.wants_gguf() || args.wants_graph()) {
        let failure = Failure::new(Kind::Usage, "--format fake has no codes, of which the other formats are made");
        return Err(failure.with_hint(Some("write it in a run of its own, or name a format of codes too".to_owned())));
    }
    let file = args.wants_gguf().then_some(Export::Gguf);
    let [first, others @ ..] = exports.as_slice() else { return plan_for(args, None, file.as_slice(), calibrated) };
    let all = || exports.iter().copied().chain(file);
    // What another format does not hold is refused now, not when the first is made.
    for export in others {
        plan_for(args, Some(*export), &all().filter(|other| other != export).collect::<Vec<_>>(), calibrated)?;
    }
    plan_for(args, Some(*first), &all().skip(1).collect::<Vec<_>>(), calibrated)
}

/// The plan for one of the formats; the others, to which the result is converted, decide on scales too.
fn plan_for(
    args: &RecipeArgs,
    export: Option<Export>,
    also: &[Export],
    calibrated: bool,
) -> Result<(Checkpoint, Plan), Failure> {
    refuse_onnx(args)?;
    let recipe = recipe(args, export, also)?.with_calibration(calibrated);
    let checkpoint = open_with(&args.model, &args.lora)?;
    let plan = Plan::new(&checkpoint, recipe)?;
    Ok((checkpoint, plan))
}

/// Refuses options that only ONNX graphs have.
///
/// # Errors
/// The first that was given.
pub fn refuse_onnx(args: &RecipeArgs) -> Result<(), Failure> {
    let Some(option) = args.onnx.given() else { return Ok(()) };
    let failure = Failure::new(Kind::Usage, format!("{option} applies only to ONNX graphs"));
    Err(failure.with_hint(Some("leave it out, or name an .onnx file".to_owned())))
}

fn recipe(args: &RecipeArgs, export: Option<Export>, also: &[Export]) -> Result<Recipe, Failure> {
    let (line, file) = settings(args, export, also)?;
    Ok(Recipe::resolve(&line, &file)?)
}

/// What command line and recipe file say, each for itself, of one of the formats that were asked for.
///
/// # Errors
/// Where the file cannot be read.
pub fn settings(args: &RecipeArgs, export: Option<Export>, also: &[Export]) -> Result<(Settings, Settings), Failure> {
    let file = match &args.recipe {
        // Formats at the command line take the place of that in the file.
        Some(path) if args.format.is_empty() => Settings::read(path)?,
        Some(path) => Settings { format: None, also: Vec::new(), ..Settings::read(path)? },
        None => Settings::default(),
    };
    let line = Settings {
        scheme: args.scheme.clone(),
        format: export,
        also: also.to_vec(),
        pack_method: args.pack_method,
        exclude: args.exclude.clone(),
        overrides: args.overrides.clone(),
        keep_defaults: args.no_keep_defaults.then_some(false),
        weights_only: args.weights_only.then_some(true),
        kv_cache: args.kv_cache.clone(),
        kv_cache_post_rope: args.kv_cache_post_rope.then_some(true),
        min_kv_scale: args.min_kv_scale,
        queries: args.attention.clone(),
        probabilities: args.attention.clone(),
        max_shard_size: args.max_shard_size,
        requantize: args.requantize.then_some(true),
        ..Settings::default()
    };
    Ok((line.with_algorithms(&args.algorithm)?, file))
}

/// How many threads to work with.
pub fn threads(args: &RunArgs) -> usize {
    let processors = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    args.threads.map_or_else(processors, usize::from)
}

/// The threads to work with.
///
/// # Errors
/// Where the system has none to give.
pub fn pool(args: &RunArgs) -> Result<rayon::ThreadPool, Failure> {
    // Work that threads of an engine hand on goes to the global pool, which must be no larger. It may be there already.
    let _ = rayon::ThreadPoolBuilder::new().num_threads(threads(args)).build_global();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads(args)).build();
    pool.map_err(|error| Failure::system(format!("cannot start threads: {error}")))
}
