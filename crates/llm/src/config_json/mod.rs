//! What exported checkpoints say of themselves: the `quantization_config` of config.json, written and read. Not the
//! tensors beside it: see [`crate::export`].

pub mod compressed_tensors;
mod pattern;
pub mod quark;
mod selector;

pub use pattern::Pattern;

use crate::export::{CannotHold, Export};
use crate::recipe::Recipe;
use compressed_tensors::Targets;
use kvant_quant::scheme::{ActivationScheme, LayerScheme, TensorScheme};
use quark::AttentionModules;
use serde_json::{Map, Value};

/// What a checkpoint says of the tensors of a module that is quantized already.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ModuleScheme {
    /// The weight.
    pub weight: Option<TensorScheme>,
    /// The input activations.
    pub input: Option<ActivationScheme>,
    /// The output activations.
    pub output: Option<ActivationScheme>,
}

/// A model's config.json with the `quantization_config` that the export wants, in place of what the source said of itself.
/// Plain floats ([`Export::Fake`]) get none, so that they load wherever the source does.
///
/// `layers` are the quantized modules, `exclude` the linear modules that stay as they are, `targets` how
/// compressed-tensors shall name the former, `attention` the modules that make queries, keys and values.
///
/// # Errors
/// [`CannotHold`] for schemes that the export has no words for.
pub fn with_quantization(
    mut config: Value,
    export: Export,
    recipe: &Recipe,
    layers: &[(String, LayerScheme)],
    exclude: &[String],
    targets: Targets,
    attention: &AttentionModules,
) -> Result<Value, CannotHold> {
    let layers: Vec<(&str, LayerScheme)> = layers.iter().map(|(name, scheme)| (name.as_str(), *scheme)).collect();
    let exclude: Vec<&str> = exclude.iter().map(String::as_str).collect();
    let quantization = match export {
        Export::Quark => {
            let order = recipe.nibble_order();
            let mut config = quark::quantization_config(&layers, &exclude, order, quark::WeightFormat::Real)?;
            quark::describe_attention(&mut config, &recipe.attention(), attention, &layers)?;
            config["algo_config"] = quark::algo_config(recipe.algorithms());
            Some(config)
        }
        Export::CompressedTensors => {
            let mut config = compressed_tensors::quantization_config(&layers, &exclude, targets)?;
            if let Some(cache) = recipe.attention().key_value {
                config["kv_cache_scheme"] = compressed_tensors::kv_cache_scheme(cache.scheme)?;
            }
            Some(config)
        }
        Export::Fake => None,
        Export::Gguf => return Err(CannotHold::gguf()),
    };
    forget_quantization(&mut config);
    if let (Some(fields), Some(quantization)) = (config.as_object_mut(), quantization) {
        fields.insert("quantization_config".to_owned(), quantization);
    }
    Ok(config)
}

/// Removes what a source says of its own quantization, which holds no longer; multimodal models may say it of a part.
fn forget_quantization(config: &mut Value) {
    let forget = |fields: &mut Map<String, Value>| {
        fields.shift_remove("quantization_config");
        fields.shift_remove("compression_config");
    };
    if let Some(fields) = config.as_object_mut() {
        forget(fields);
        fields.values_mut().filter_map(Value::as_object_mut).for_each(forget);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::Settings;
    use serde_json::json;

    fn quantized(format: &str) -> Value {
        let settings = json!({"version": 1, "scheme": "int4_wo_128", "format": format, "pack_method": "order"});
        let settings = Settings::from_json("recipe.json", &settings.to_string()).unwrap();
        let recipe = Recipe::resolve(&Settings::default(), &settings).unwrap();
        let config = json!({
            "model_type": "llama",
            "quantization_config": {"quant_method": "fp8"},
            "text_config": {"quantization_config": {}, "hidden_size": 8},
            "vocab_size": 5,
        });
        let layers = [("model.fc".to_owned(), "int4:g128".parse().unwrap())];
        with_quantization(
            config,
            recipe.export(),
            &recipe,
            &layers,
            &["lm_head".to_owned()],
            Targets::Class,
            &AttentionModules::default(),
        )
        .unwrap()
    }

    #[test]
    fn the_export_decides_what_is_said() {
        let config = quantized("quark");
        assert_eq!(config["quantization_config"]["quant_method"], "quark");
        assert_eq!(config["quantization_config"]["export"]["pack_method"], "order");
        assert_eq!(config["quantization_config"]["exclude"], json!(["lm_head"]));
        assert_eq!(quantized("compressed-tensors")["quantization_config"]["ignore"], json!(["lm_head"]));
    }

    #[test]
    fn what_the_source_said_is_gone_and_the_rest_is_as_it_was() {
        let config = json!({"model_type": "llama", "text_config": {"hidden_size": 8}, "vocab_size": 5});
        assert_eq!(quantized("fake"), config);
    }
}
