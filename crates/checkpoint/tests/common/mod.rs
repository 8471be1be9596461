//! One command's worth of library calls, on small checkpoints made by tests.
#![allow(dead_code, clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use kvant_checkpoint::engine::{self, Done, EngineError, Output, Silent, Start};
use kvant_checkpoint::plan::{Plan, PlanError};
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Durability};
use std::path::Path;
use std::sync::atomic::AtomicBool;

#[path = "../../../formats/tests/common/mod.rs"]
mod small;

pub use small::{Tensor, encoded, files, llama, llama_config, weight, write};

/// Settings with a scheme.
pub fn scheme(text: &str) -> Settings {
    Settings { scheme: Some(text.to_owned()), ..Settings::default() }
}

/// The plan for a checkpoint.
pub fn plan(source: &Path, settings: &Settings) -> Result<Plan, PlanError> {
    let recipe = Recipe::resolve(settings, &Settings::default()).unwrap();
    Plan::new(&Checkpoint::open(source).unwrap(), recipe)
}

/// Quantizes a checkpoint with a number of threads.
pub fn quantize(source: &Path, target: &Path, settings: &Settings, threads: usize) -> Result<Done, EngineError> {
    let checkpoint = Checkpoint::open(source).unwrap();
    let plan = plan(source, settings).unwrap().without_calibration().unwrap();
    let output = match Output::begin(&plan, source, target, false)? {
        Start::Working(output) => output,
        Start::Finished(_) => return Ok(Done::default()),
    };
    let done = engine::run(&plan, &checkpoint, &output, threads, &AtomicBool::new(false), &Silent)?;
    output.finish(&plan, &checkpoint, Durability::Process)?;
    Ok(done)
}
