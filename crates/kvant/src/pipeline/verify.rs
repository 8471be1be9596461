//! Checks a pipeline: every component with weights as a checkpoint of its own, and that the others are there.

use crate::error::Error;
use crate::findings::failing;
use crate::json::path as path_json;
use crate::text::shown;
use kvant_container::Pipeline;
use kvant_formats::verify::{Options, Report, verify};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The findings of a pipeline.
pub struct PipelineVerdict {
    /// The pipeline.
    pub path: PathBuf,
    /// The findings of each component.
    pub components: Vec<(String, Report)>,
    /// Components that `model_index.json` names and that have no folder.
    pub missing: Vec<String>,
}

/// Checks a pipeline.
///
/// # Errors
/// Errors of reading it.
pub(crate) fn run(model: &Path, options: &Options) -> Result<PipelineVerdict, Error> {
    let pipeline = Pipeline::open(model)?;
    let components = pipeline.components.iter().map(|component| {
        let report = verify(&model.join(&component.name), options)?;
        Ok((component.name.clone(), report))
    });
    let components = components.collect::<Result<_, Error>>()?;
    Ok(PipelineVerdict { path: model.to_owned(), components, missing: pipeline.missing })
}

impl PipelineVerdict {
    /// Returns whether all components are there and pass.
    pub fn passes(&self) -> bool {
        self.missing.is_empty() && self.components.iter().all(|(_, report)| report.passes())
    }

    pub(crate) fn problem(&self) -> String {
        if let Some(missing) = self.missing.first() {
            return format!("{}: model_index.json names `{missing}`, which has no folder", shown(&self.path));
        }
        let failed = self.components.iter().find(|(_, report)| !report.passes());
        failed.map_or_else(String::new, |(name, report)| {
            failing(&shown(&self.path.join(name)).to_string(), &report.findings)
        })
    }

    pub(crate) fn to_json(&self) -> Value {
        let component = |(name, report): &(String, Report)| {
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
            "missing": self.missing,
        })
    }
}
