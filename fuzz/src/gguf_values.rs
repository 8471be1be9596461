//! Any bytes as a GGUF file, with its values: looked at, verified and quantized again, or refused with a reason.

use crate::settle;
use kvant::{CancelToken, Job, Verification, inspect};

/// See above.
pub fn run(input: &[u8]) {
    let place = tempfile::tempdir().unwrap();
    let source = place.path().join("source.gguf");
    std::fs::write(&source, input).unwrap();
    settle(inspect(&source));
    settle(Verification::new(&source).run());
    let mut job = Job::new(&source);
    job.recipe.scheme = Some("Q8_0".to_owned());
    job.recipe.requantize = true;
    job.limits.threads = Some(1);
    job.sinks.output = Some(place.path().join("output.gguf"));
    settle(job.run(&mut (), &CancelToken::new()));
}
