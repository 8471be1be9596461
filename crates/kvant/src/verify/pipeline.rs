//! Verifies a pipeline: each component with weights is verified like a checkpoint, and every component must have its files.

use super::CheckpointVerdict;
use crate::error::Error;
use crate::json::path as path_json;
use crate::pipeline::quantize::LOADER;
use crate::pipeline::{Misnamed, flaws, misfit};
use crate::text::shown;
use kvant_container::{Checkpoint, Pipeline};
use kvant_formats::verify::{Options, loaders, verify};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The findings of a pipeline.
pub struct PipelineVerdict {
    /// The pipeline.
    pub path: PathBuf,
    /// The findings of each component.
    pub components: Vec<(String, CheckpointVerdict)>,
    /// Why diffusers does not load it, whatever its weights are: a sentence for each file or component.
    pub flaws: Vec<String>,
}

/// Checks a pipeline. Components of transformers are loaded by that library, also where diffusers is asked about.
///
/// # Errors
/// Errors of reading it.
pub(crate) fn run(model: &Path, options: &Options) -> Result<PipelineVerdict, Error> {
    let pipeline = Pipeline::open(model)?;
    let components = pipeline.components.iter().map(|component| {
        let other = || loaders().iter().find(|loader| loader.id == component.library).map(|loader| loader.id.as_str());
        let loader = if options.loader == Some(LOADER) { other() } else { options.loader };
        let mut report = verify(&model.join(&component.name), &Options { loader, ..*options })?;
        // Tokenizers are components of their own.
        report.findings.retain(|finding| finding.place != "tokenizer.json");
        let verdict = CheckpointVerdict::of(report, loader, options.tensor_parallel);
        Ok((component.name.clone(), verdict))
    });
    let components = components.collect::<Result<_, Error>>()?;
    let of_components = pipeline.components.iter().flat_map(|component| {
        // A component that cannot be opened is reported by its own findings.
        let checkpoint = Checkpoint::open(&model.join(&component.name)).ok();
        let files = checkpoint.as_ref().and_then(|checkpoint| checkpoint.all_files().ok());
        let misnamed = files.and_then(|files| Misnamed::find(component, &files)).map(|found| found.problem);
        misnamed.into_iter().chain(checkpoint.and_then(|checkpoint| misfit(component, &checkpoint)))
    });
    let flaws = flaws(&pipeline).into_iter().chain(of_components).collect();
    Ok(PipelineVerdict { path: model.to_owned(), components, flaws })
}

impl PipelineVerdict {
    /// Returns whether all components are whole and pass.
    pub fn passes(&self) -> bool {
        self.flaws.is_empty() && self.components.iter().all(|(_, verdict)| verdict.report.passes())
    }

    pub(crate) fn problem(&self) -> String {
        let failed = || self.components.iter().find(|(_, verdict)| !verdict.report.passes());
        let flaw = self.flaws.first().map(|flaw| format!("{}: {flaw}", shown(&self.path)));
        flaw.or_else(|| Some(failed()?.1.problem())).unwrap_or_default()
    }

    pub(crate) fn to_json(&self) -> Value {
        let component = |(name, verdict): &(String, CheckpointVerdict)| {
            let report = &verdict.report;
            json!({
                "name": name,
                "passes": report.passes(),
                "method": report.method,
                "tensors": report.tensors,
                "quantized_layers": report.quantized_layers,
                "findings": report.findings,
                "loaders": report.verdicts,
            })
        };
        json!({
            "model": path_json(&self.path),
            "passes": self.passes(),
            "components": self.components.iter().map(component).collect::<Vec<_>>(),
            "flaws": self.flaws,
        })
    }
}
