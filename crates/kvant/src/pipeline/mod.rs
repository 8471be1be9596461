//! Diffusers pipelines: the components that are quantized are checkpoints of their own, made one after the other, and all files of the
//! pipeline go into one output.

mod choice;
pub mod plan;
pub mod quantize;

pub use plan::{PipelinePlan, PlannedComponent};
pub use quantize::PipelineReport;

use crate::text::shown;
use kvant_container::{Checkpoint, Pipeline, PipelineComponent, WeightFiles};
use quantize::LOADER;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Why diffusers does not load a pipeline, whatever its weights are: a sentence for each file or component.
pub(crate) fn flaws(pipeline: &Pipeline) -> Vec<String> {
    let empty = pipeline.is_empty.then(|| "model_index.json names no component".to_owned());
    let missing = pipeline.missing.iter().map(|(name, lack)| format!("model_index.json names `{name}`, and {lack}"));
    let damaged = pipeline.damaged.iter().map(|(file, problem)| format!("{}: {problem}", shown(file)));
    empty.into_iter().chain(missing).chain(damaged).collect()
}

/// Sizes in the config.json of components, the weights that show them, and the axis.
const SHOWN_SIZES: [(&str, &str, usize); 5] = [
    ("in_channels", "conv_in.weight", 1),
    ("out_channels", "conv_out.weight", 0),
    ("in_channels", "x_embedder.weight", 1),
    ("in_channels", "pos_embed.proj.weight", 1),
    ("in_channels", "patch_embedding.weight", 1),
];

/// Why diffusers does not load one of its components, according to its config.json; `None` if no reason is known.
pub(crate) fn misfit(component: &PipelineComponent, checkpoint: &Checkpoint) -> Option<String> {
    let config = checkpoint.config().ok().flatten().filter(|_| component.library == LOADER)?;
    let PipelineComponent { name, class, .. } = component;
    let stated = config.get("_class_name").and_then(Value::as_str).unwrap_or(class);
    if stated != class {
        let stated = shown(stated.as_ref());
        return Some(format!(
            "{name}: its config.json is of the class `{stated}`, and model_index.json names `{class}`"
        ));
    }
    SHOWN_SIZES.iter().find_map(|&(key, weight, axis)| {
        let stated = config.get(key)?.as_u64()?;
        let found = *checkpoint.tensor(weight)?.shape().get(axis)? as u64;
        let differs =
            || format!("{name}: `{weight}` has {found} {}; {key} of its config.json is {stated}", channels(axis));
        (found != stated).then(differs)
    })
}

fn channels(axis: usize) -> &'static str {
    if axis == 0 { "output channels" } else { "input channels" }
}

/// Weights of a component under a name that its library does not look for.
pub(crate) struct Misnamed {
    /// What is wrong, in words.
    pub problem: String,
    /// The name that the library looks for.
    pub expected: String,
}

impl Misnamed {
    /// Of a component with these files; `None` where its library finds the weights.
    pub fn find(component: &PipelineComponent, files: &[PathBuf]) -> Option<Misnamed> {
        let expected = match component.library.as_str() {
            LOADER => WeightFiles::Diffusion,
            "transformers" => WeightFiles::Model,
            _ => return None,
        };
        let whole = expected.whole();
        let is_found = files.iter().any(|file| file == Path::new(&whole) || file == Path::new(&expected.index()));
        let named = files.iter().find(|file| file.extension().is_some_and(|extension| extension == "safetensors"));
        let named = named.filter(|_| !is_found)?;
        let (name, library) = (&component.name, &component.library);
        let problem = format!("{name}: {} is not a name that {library} looks for", shown(named));
        Some(Misnamed { problem, expected: whole })
    }
}
