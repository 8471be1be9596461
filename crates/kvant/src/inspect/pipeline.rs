//! The contents of a diffusers pipeline: its components with weights, each a checkpoint.

use super::CheckpointInspection;
use crate::error::Error;
use crate::json::path as path_json;
use crate::pipeline::flaws;
use kvant_container::{Pipeline, PipelineComponent};
use serde_json::{Value, json};
use std::path::Path;

/// Facts about a pipeline.
pub struct PipelineInspection {
    /// Its index.
    pub pipeline: Pipeline,
    /// Its components with weights.
    pub components: Vec<(PipelineComponent, CheckpointInspection)>,
}

impl PipelineInspection {
    pub(crate) fn read(model: &Path) -> Result<PipelineInspection, Error> {
        let pipeline = Pipeline::open(model)?;
        let read = |component: &PipelineComponent| {
            Ok((component.clone(), CheckpointInspection::read(&model.join(&component.name))?))
        };
        let components = pipeline.components.iter().map(read).collect::<Result<_, Error>>()?;
        Ok(PipelineInspection { pipeline, components })
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.components.iter().map(|(_, found)| found.bytes()).sum()
    }

    /// Why diffusers would not load it.
    pub fn notices(&self) -> Vec<String> {
        flaws(&self.pipeline)
    }

    pub(crate) fn to_json(&self) -> Value {
        let component = |(component, found): &(PipelineComponent, CheckpointInspection)| {
            json!({
                "name": component.name,
                "library": component.library,
                "class": component.class,
                "bytes": found.bytes(),
                "tensors": found.checkpoint.len(),
                "linear_layers": found.network.linears().len(),
                "quantization": found.quantization,
                "types": found.types_json(),
            })
        };
        json!({
            "model": path_json(&self.pipeline.path),
            "class": self.pipeline.class,
            "bytes": self.bytes(),
            "components": self.components.iter().map(component).collect::<Vec<_>>(),
            "notices": self.notices(),
        })
    }
}
