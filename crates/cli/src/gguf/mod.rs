//! GGUF files at the command line: what the commands do when one is to be written or looked at.

pub mod convert;
pub mod inspect;
pub mod plan;
pub mod quantize;

use crate::args::{RecipeArgs, RunArgs, first_given};
use crate::calibration;
use crate::delivery::Delivery;
use crate::failure::{Failure, Kind};
use crate::model;
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use kvant_container::Checkpoint;
use kvant_llm::engine::{Claim, Done, Output, Placed};
use kvant_llm::export::Export;
use kvant_llm::forward::Decoder;
use kvant_llm::gguf::run::run as carry_out;
use kvant_llm::gguf::{GgufPlan, GgufRecipe, imatrix, restore};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The name of a file that is planned and not written.
const UNNAMED: &str = "model.gguf";

/// The recipe for a GGUF file, where the arguments ask for one.
///
/// # Errors
/// Whatever is wrong with the recipe, or with the file of importance.
pub fn recipe(args: &RecipeArgs) -> Result<Option<GgufRecipe>, Failure> {
    let asked = if args.wants_gguf() { Some(Export::Gguf) } else { args.checkpoints().first().copied() };
    let (line, file) = model::settings(args, asked, &[])?;
    let Some(recipe) = GgufRecipe::of(&line, &file)? else {
        return match args.gguf.given() {
            None => Ok(None),
            Some(option) => Err(Failure::new(Kind::Usage, format!("{option} applies only to GGUF files"))
                .with_hint(Some("leave it out, or name one of their schemes, e.g. --scheme Q4_K_M".to_owned()))),
        };
    };
    model::refuse_onnx(args)?;
    if args.format.len() > 1 || args.wants_graph() {
        let mix = recipe.mix();
        let failure =
            Failure::new(Kind::Usage, format!("--scheme {mix} is of GGUF alone, and other formats are asked for"));
        let hint = "use a scheme whose codes all of them hold, e.g. int4:g32, or write the file in a run of its own";
        return Err(failure.with_hint(Some(hint.to_owned())));
    }
    if let (Some(option), false) = (ignored(args), recipe.needs_importance()) {
        let failure = Failure::new(Kind::Usage, format!("{option} has a meaning with --algorithm imatrix only"));
        return Err(failure.with_hint(Some("add --algorithm imatrix, or leave it out".to_owned())));
    }
    let Some(path) = &args.gguf.imatrix else { return Ok(Some(recipe)) };
    if recipe.needs_importance() {
        let failure = Failure::new(Kind::Usage, "--imatrix and --algorithm imatrix exclude each other");
        return Err(failure.with_hint(Some("read the importance of inputs from a file, or measure it".to_owned())));
    }
    Ok(Some(recipe.with_importance(Arc::new(imatrix::read(path)?))))
}

/// An option that only a measurement reads.
fn ignored(args: &RecipeArgs) -> Option<&'static str> {
    let given = [(args.gguf.save_imatrix.is_some(), "--save-imatrix"), (!args.calibration.calib.is_empty(), "--calib")];
    first_given(&given)
}

/// A checkpoint, or a file of which another one is made.
///
/// # Errors
/// Whatever is wrong with the files.
fn open(path: &Path) -> Result<Checkpoint, Failure> {
    match model::claims_gguf(path) {
        true => Ok(restore::open_any(path)?),
        false => model::open(path),
    }
}

/// A checkpoint, and the plan for a file of it.
///
/// # Errors
/// Whatever can be refused before weights are read.
fn plan_for(args: &RecipeArgs, recipe: GgufRecipe, output: Option<&Path>) -> Result<(Checkpoint, GgufPlan), Failure> {
    let checkpoint = kvant_llm::adapter::open(open(&args.model)?, &args.lora)?;
    let plan = GgufPlan::new(&checkpoint, recipe, &file_name(output))?;
    if plan.recipe.needs_importance() {
        calibration::check(&args.calibration, Decoder::open(&checkpoint)?.longest())?;
    }
    Ok((checkpoint, plan))
}

/// Whether the run needs calibration data of which none are named.
fn lacks_data(args: &RecipeArgs, recipe: &GgufRecipe) -> bool {
    recipe.needs_importance() && args.calibration.calib.is_empty()
}

/// Refuses a run that needs calibration data, without any.
///
/// # Errors
/// See above.
fn check_data(args: &RecipeArgs, recipe: &GgufRecipe) -> Result<(), Failure> {
    if !lacks_data(args, recipe) {
        return Ok(());
    }
    let failure = Failure::new(Kind::Usage, "imatrix: needs calibration data, and none is given");
    let hint = "give a text with --calib FILE, or a file of llama.cpp's with --imatrix";
    Err(failure.with_hint(Some(hint.to_owned())))
}

/// Says of a plan that the run will need data.
fn note_data(args: &RecipeArgs, recipe: &GgufRecipe, printer: &Printer) {
    if lacks_data(args, recipe) {
        printer
            .note("the run needs calibration data: a text with --calib FILE, or a file of llama.cpp's with --imatrix");
    }
}

/// Carries out a plan.
///
/// # Errors
/// What the system or the weights say.
pub fn work(
    delivery: &Delivery<'_, GgufPlan>,
    claim: Claim,
    run: &RunArgs,
    cancelled: &AtomicBool,
    printer: &Printer,
) -> Result<(Placed, Done), Failure> {
    work_if(delivery, claim, run, cancelled, printer, |_| Ok(()))
}

/// The same where `gate` accepts the file.
///
/// # Errors
/// As [`work`], and those of the gate.
pub fn work_if(
    delivery: &Delivery<'_, GgufPlan>,
    claim: Claim,
    run: &RunArgs,
    cancelled: &AtomicBool,
    printer: &Printer,
    gate: impl FnOnce(&Path) -> Result<(), Failure>,
) -> Result<(Placed, Done), Failure> {
    let Delivery { plan, checkpoint, .. } = *delivery;
    let work = |output: &Output| {
        let progress = Progress::new(printer, Unit::Weights);
        carry_out(plan, checkpoint, output, model::threads(run), cancelled, &progress)
    };
    delivery.make_if(claim, plan.tensors.len(), work, gate)
}

/// The name of a file, which its parts have too.
pub fn file_name(output: Option<&Path>) -> String {
    let name = output.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| UNNAMED.to_owned())
}
