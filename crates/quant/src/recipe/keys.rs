//! The keys of a recipe file: their names, other spellings, and the models to which they apply.

use std::fmt;

/// A kind of model that a recipe is applied to. GGUF files count as checkpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelKind {
    /// A Hugging Face checkpoint or a GGUF file.
    Checkpoint,
    /// An ONNX graph.
    Graph,
}

impl fmt::Display for ModelKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ModelKind::Checkpoint => "checkpoints and GGUF files",
            ModelKind::Graph => "ONNX graphs",
        })
    }
}

/// A key of recipe files.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Other spellings that are read.
    pub aliases: &'static [&'static str],
    /// The only kind of model that it applies to; `None` is all.
    only: Option<ModelKind>,
}

impl Key {
    /// Returns whether it has a meaning for this kind of model.
    pub fn applies_to(&self, kind: ModelKind) -> bool {
        self.only.is_none_or(|only| only == kind)
    }

    /// The models that it applies to, in words.
    pub(super) fn models(&self) -> String {
        self.only.map_or_else(|| "all models".to_owned(), |only| only.to_string())
    }

    /// The key of this name or spelling; hyphens count as underscores.
    pub(super) fn find(text: &str) -> Option<&'static Key> {
        let text = text.replace('-', "_");
        KEYS.iter().find(|key| key.name == text || key.aliases.contains(&text.as_str()))
    }

    /// The name that is most like a text, if one is like it at all.
    pub(super) fn nearest(text: &str) -> Option<&'static str> {
        nearest(text, KEYS.iter().flat_map(|key| key.aliases.iter().chain([&key.name])).copied())
    }
}

/// The name that is most like a text, if one is like it at all.
pub(super) fn nearest<'n>(text: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let text: String = text.chars().take(64).collect::<String>().to_lowercase().replace('-', "_");
    let rated = names.map(|name| (strsim::normalized_damerau_levenshtein(&text, name), name));
    let best = rated.fold((0.0, ""), |best, next| if next.0 > best.0 { next } else { best });
    (best.0 >= 0.6).then_some(best.1)
}

const fn all(name: &'static str, aliases: &'static [&'static str]) -> Key {
    Key { name, aliases, only: None }
}

const fn checkpoint(name: &'static str) -> Key {
    Key { name, aliases: &[], only: Some(ModelKind::Checkpoint) }
}

const fn graph(name: &'static str, aliases: &'static [&'static str]) -> Key {
    Key { name, aliases, only: Some(ModelKind::Graph) }
}

/// Every key, in the order in which they are written.
pub const KEYS: &[Key] = &[
    all("version", &[]),
    all("scheme", &["preset"]),
    all("weights_only", &[]),
    all("scales", &[]),
    all("algorithm", &[]),
    all("exclude", &[]),
    all("bias", &[]),
    checkpoint("format"),
    checkpoint("also"),
    checkpoint("pack_method"),
    checkpoint("keep_defaults"),
    checkpoint("layer_types"),
    checkpoint("statistics"),
    checkpoint("kv_cache"),
    checkpoint("kv_cache_post_rope"),
    checkpoint("min_kv_scale"),
    checkpoint("queries"),
    checkpoint("probabilities"),
    checkpoint("max_shard_size"),
    checkpoint("seed"),
    checkpoint("requantize"),
    graph("activation", &[]),
    graph("weight", &[]),
    graph("symmetric", &[]),
    graph("per_channel", &[]),
    graph("per_channel_activations", &[]),
    graph("reduce_range", &[]),
    graph("calibration_method", &[]),
    graph("weight_method", &[]),
    graph("percentile", &[]),
    graph("op_domain", &["form"]),
    graph("graph_format", &["layout"]),
    graph("io_dtype", &["boundary"]),
    graph("op_types", &[]),
    graph("more_op_types", &[]),
    graph("exclude_op_types", &[]),
    graph("nodes", &[]),
    graph("exclude_subgraph", &[]),
    graph("enable_pass", &[]),
    graph("disable_pass", &[]),
    all("override", &[]),
];
