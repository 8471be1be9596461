//! AMD Quark's own format, as Quark 0.13 writes it and as vLLM, SGLang and transformers read it. The `quantization_config` is written by
//! [`quantization_config`] and read by [`QuarkConfig::read`] for recipes, by [`StoredQuark::read`] for checkpoints.

mod activation_parts;
mod algorithms;
mod attention;
mod document;
mod import;
mod observer;
mod parts;
mod read;
mod rotation;
mod stored;
mod tensor_spec;
mod write;

pub use algorithms::{algo_config, read_algorithms};
pub use attention::{AttentionModules, describe_attention};
pub use document::QuarkConfig;
pub(super) use import::{INPUT, OUTPUT};
pub(super) use parts::parts;
pub use stored::StoredQuark;
use write::describe_biases;
pub use write::{WeightFormat, layer_config, quantization_config};

use super::stored::ModuleReader;
use super::{Capabilities, CheckpointFormat, ModelDescription, ModuleNames};
use kvant_container::Dtype;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{ActivationSpec, AttentionSpec, CannotHold, Content, LayerSpec, ParameterPart, Part};
use serde_json::Value;

/// The format.
pub(super) struct Quark;

impl CheckpointFormat for Quark {
    fn name(&self) -> &'static str {
        "quark"
    }

    fn about(&self) -> &'static str {
        "AMD Quark's layout (quant_method quark)"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            activations: true,
            biases: true,
            nibble_orders: true,
            shaped_layers: true,
            integer_weight: true,
            module_names: ModuleNames::InMemory,
            excluded_fields: &["exclude"],
            input_rotations: true,
            ..Capabilities::of_method("quark", &["quark"])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        let rotation = layer
            .input_rotation
            .map(|size| layer.part(rotation::INPUT_ROTATION, Dtype::I8, [size, size], Content::Hadamard));
        Ok(parts(layer)?.into_iter().chain(rotation).collect())
    }

    fn bias_parts(&self, bias: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts::bias_parts(bias)
    }

    fn activation_parts(&self, spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
        activation_parts::activation_parts(spec)
    }

    fn attention_parts(&self, spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
        activation_parts::attention_parts(spec)
    }

    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        let mut config = quantization_config(model.layers, model.exclude, model.nibble_order, WeightFormat::Real)?;
        describe_biases(&mut config, model.layers, model.biases)?;
        describe_attention(&mut config, &model.attention, model.attention_modules, model.layers)?;
        config["algo_config"] = algo_config(model.algorithms);
        rotation::describe(&mut config, model.input_rotations)?;
        Ok(config)
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        import::reader(config)
    }
}
