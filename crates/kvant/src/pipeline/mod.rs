//! Diffusers pipelines: the components that are quantized are checkpoints of their own, made one after the other, and all files of the
//! pipeline go into one output.

mod choice;
pub mod plan;
pub mod quantize;

pub use plan::{PipelinePlan, PlannedComponent};
pub use quantize::PipelineReport;

use crate::text::shown;
use kvant_container::{Pipeline, PipelineComponent, WeightFiles};
use quantize::LOADER;
use std::path::{Path, PathBuf};

/// Why diffusers does not load a pipeline, whatever its weights are: a sentence for each file or component.
pub(crate) fn flaws(pipeline: &Pipeline) -> Vec<String> {
    let empty = pipeline.is_empty.then(|| "model_index.json names no component".to_owned());
    let missing = pipeline.missing.iter().map(|(name, lack)| format!("model_index.json names `{name}`, and {lack}"));
    let damaged = pipeline.damaged.iter().map(|(file, problem)| format!("{}: {problem}", shown(file)));
    empty.into_iter().chain(missing).chain(damaged).collect()
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
