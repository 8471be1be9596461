//! Any bytes as a recipe for a small model: the first byte chooses the name of the file. It is planned, or refused with a reason.

use crate::settle;
use kvant::Job;
use std::path::Path;

const NAMES: [&str; 4] = ["recipe.toml", "config.json", "recipe.yaml", "quantization_config.json"];

/// See above.
pub fn run(input: &[u8]) {
    let Some((&choice, text)) = input.split_first() else { return };
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join(NAMES[choice as usize % NAMES.len()]);
    std::fs::write(&file, text).unwrap();
    let mut job = Job::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/nano_llama"));
    job.recipe.file = Some(file);
    settle(job.plan(&mut ()));
}
