//! The identity of a plan: a journal of another plan is not continued.

use super::PlannedLayer;
use crate::input_statistics::StatisticsProvenance;
use crate::recipe::Recipe;
use kvant_container::gguf::GgufFile;
use kvant_container::{Checkpoint, Layout};
use kvant_model::family;
use kvant_weights::activation_point::Parameters;
use serde_json::Value;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// What decides the output's bytes whatever its layout: the source's files (their headers, lengths and times), the recipe
/// and the version of Kvant.
pub(crate) fn source_text(checkpoint: &Checkpoint, recipe: &str) -> String {
    let mut text = format!("kvant {}\n{recipe}\n", env!("CARGO_PKG_VERSION"));
    // Built-in ones change with the version alone.
    family::all().iter().skip(family::FAMILIES.len()).for_each(|family| text.push_str(&format!("{family:?}\n")));
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
    for shard in checkpoint.shards() {
        let version = shard.map().supplied_identity().unwrap_or_else(|| format!("{:?}", modified(shard.path())));
        // The name alone: the same checkpoint may be called by several paths.
        text.push_str(&format!("{:?} {} {version}\n", shard.path().file_name(), shard.map().len()));
    }
    let parts = checkpoint.gguf().map(GgufFile::maps).unwrap_or_default();
    for part in parts.iter().skip(1) {
        let modified = modified(part.path());
        text.push_str(&format!("{} {modified:?}\n", part.len()));
    }
    for adapter in checkpoint.adapters() {
        let file = adapter.file();
        let modified = modified(file.path());
        text.push_str(&format!("adapter {} {} {modified:?}\n", file.map().len(), adapter.config()));
        file.tensors().for_each(|tensor| text.push_str(&format!("{} {:?}\n", tensor.name(), tensor.shape())));
    }
    text.extend(checkpoint.rewriting().map(|change| format!("{change}\n")));
    let blocks = checkpoint.gguf().into_iter().flat_map(|file| file.tensors());
    blocks.for_each(|tensor| text.push_str(&format!("{} {} {:?}\n", tensor.name(), tensor.kind(), tensor.shape())));
    for tensor in checkpoint.tensors() {
        text.push_str(&format!("{} {} {:?}\n", tensor.name(), tensor.dtype(), tensor.shape()));
    }
    text
}

/// Bytes of all tensors as they lie in the source's files.
pub(crate) fn source_bytes(checkpoint: &Checkpoint) -> u64 {
    match checkpoint.gguf() {
        Some(file) => file.tensors().map(|tensor| tensor.byte_len()).sum(),
        None => checkpoint.tensors().map(|tensor| tensor.byte_len()).sum(),
    }
}

/// A hash of all that decides the output's bytes: what decides them whatever the layout, the layout, and what is taken over of
/// the source's codes.
pub(super) fn fingerprint(
    checkpoint: &Checkpoint,
    recipe: &Recipe,
    layout: &Layout,
    config: Option<&Value>,
    layers: &[PlannedLayer],
) -> String {
    let mut text = source_text(checkpoint, &recipe.canonical());
    for shard in layout.shards() {
        text.push_str(&String::from_utf8_lossy(shard.header()));
    }
    for layer in layers.iter().filter(|layer| layer.is_recoded()) {
        text.push_str(&format!("{} {}\n", layer.name, layer.scheme));
    }
    if let Some(statistics) = recipe.statistics() {
        let StatisticsProvenance { component, xxh3_128, .. } = statistics.provenance();
        text.push_str(&format!("statistics {xxh3_128} {component:?}\n"));
    }
    text.push_str(&config.map(Value::to_string).unwrap_or_default());
    format!("{:032x}", xxh3_128(text.as_bytes()))
}

/// The fingerprint of a plan with parameters.
pub(super) fn with_parameters(plan: &str, parameters: &Parameters) -> String {
    format!("{:032x}", xxh3_128(format!("{plan} {:032x}", parameters.hash()).as_bytes()))
}

/// The fingerprint of a plan with calibration data.
pub(super) fn with_data(plan: &str, data: &str) -> String {
    format!("{:032x}", xxh3_128(format!("{plan} {data}").as_bytes()))
}
