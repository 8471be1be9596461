//! Any bytes as what `torch.save` writes, beside the config.json of a small model: looked at and planned without executing anything, or
//! refused with a reason.

use crate::settle;
use kvant::{Job, inspect};
use std::path::Path;

/// See above.
pub fn run(input: &[u8]) {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/nano_llama");
    let place = tempfile::tempdir().unwrap();
    std::fs::copy(model.join("config.json"), place.path().join("config.json")).unwrap();
    std::fs::write(place.path().join("pytorch_model.bin"), input).unwrap();
    settle(inspect(place.path()));
    let mut job = Job::new(place.path());
    job.recipe.scheme = Some("int4:g32".to_owned());
    settle(job.plan(&mut ()));
}
