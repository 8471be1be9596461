//! The format of the compressed-tensors library (0.20), which llm-compressor writes and vLLM, SGLang and transformers read.

mod activation_parts;
mod args;
mod config;
mod import;
mod packing_format;
mod parts;
mod read;
mod recipe;
mod transforms;

pub use config::{kv_cache_scheme, quantization_config};
pub use packing_format::{Format, format_of};
pub use read::{Group, ModuleClass, StoredCompressedTensors};
pub use recipe::{SchemeRules, check_order, is_empty, object, read_recipe, recognizes, texts};

use super::stored::ModuleReader;
use super::{Capabilities, CheckpointFormat, ExcludedNames, ModelDescription};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{ActivationSpec, AttentionSpec, CannotHold, LayerSpec, ParameterPart, Part};
use serde_json::Value;

/// The format.
pub(super) struct CompressedTensors;

impl CheckpointFormat for CompressedTensors {
    fn name(&self) -> &'static str {
        "compressed-tensors"
    }

    fn about(&self) -> &'static str {
        "compressed-tensors, as llm-compressor writes it"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            act_order: true,
            activations: true,
            unfuses_experts: true,
            excluded_names: ExcludedNames::Expressions,
            excluded_fields: &["ignore"],
            input_rotations: true,
            ..Capabilities::of_method("compressed-tensors", &["compressed-tensors"])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        let matrix = layer.input_rotation.map(|size| transforms::matrix(layer, size));
        Ok(parts::parts(layer)?.into_iter().chain(matrix).collect())
    }

    fn activation_parts(&self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        activation_parts::activation_parts(spec)
    }

    fn attention_parts(&self, spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        activation_parts::attention_parts(spec)
    }

    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        let mut config = quantization_config(model.layers, model.exclude, model.aliases, model.act_order)?;
        if let Some(cache) = model.attention.key_value {
            config["kv_cache_scheme"] = kv_cache_scheme(cache.scheme)?;
        }
        let names: Vec<&str> = model.layers.iter().chain(model.aliases).map(|(name, _)| *name).collect();
        config["transform_config"] = transforms::describe(model.input_rotations, &names, model.exclude)?;
        Ok(config)
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        import::reader(config)
    }
}
