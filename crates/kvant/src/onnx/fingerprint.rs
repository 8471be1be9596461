//! Everything that determines the results of a graph's expensive stages: a run that differs in any of it does not resume from another's.

use super::text::Home;
use crate::job::{Data, Job};
use kvant_container::onnx::external_files;
use kvant_container::unfinished::state_of;
use kvant_onnx::settings::Resolved;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// A hash of the version, the recipe, the data and how they are read, the engine, and what the files are like.
pub fn fingerprint(job: &Job, resolved: &Resolved) -> String {
    let (data, engine) = (&job.data, &job.limits.engine);
    let mut text = format!(
        "{} {resolved:?} {:?} {:?} {:?} {} {:?} {:?} {:?}\n",
        env!("CARGO_PKG_VERSION"),
        job.sinks.graph_formats,
        data.files.len(),
        data.preprocess,
        data.num_samples,
        data.seed,
        engine.choice,
        engine.library,
    );
    // Of text, the sequences.
    let tokenizer = Home::of(&[&job.source.model], None).tokenizer(&[&job.source.model]).ok();
    let tokenizer = tokenizer.and_then(|directory| state_of(&directory.join("tokenizer.json")).ok());
    let Data { seq_len, packing, column, shuffle, shares, .. } = data;
    let sequences = format!("{seq_len:?} {packing:?} {column:?} {shuffle} {shares:?} {tokenizer:?}\n");
    text.push_str(&sequences);
    let external = external_files(&job.source.model).unwrap_or_default();
    let files = std::iter::once(job.source.model.as_path()).chain(external.iter().map(|file| file.as_path()));
    for file in files.chain(data.files.iter().map(|file| file.as_path())) {
        // Random data have no file.
        text.push_str(&state_of(file).unwrap_or_else(|_| named(file)));
        text.push('\n');
    }
    format!("{:032x}", xxh3_128(text.as_bytes()))
}

fn named(file: &Path) -> String {
    file.to_string_lossy().into_owned()
}
