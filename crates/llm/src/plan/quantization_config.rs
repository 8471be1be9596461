//! The `quantization_config` that a plan's config.json gets: that of the export, in place of what the source said of itself.

use crate::config_json::quark::AttentionModules;
use crate::config_json::{awq, compressed_tensors, fake, fp8, gptq, mxfp4, quark, tensors};
use crate::export::{CannotHold, Export};
use crate::recipe::Recipe;
use kvant_quant::scheme::LayerScheme;
use serde_json::{Map, Value};

/// What of a model a configuration describes.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// The quantized modules.
    pub layers: &'a [(String, LayerScheme)],
    /// The linear modules that stay as they are.
    pub exclude: &'a [String],
    /// The quantized modules whose names in a model that transformers has loaded differ, under those names.
    pub aliases: &'a [(String, LayerScheme)],
    /// The modules that make queries, keys and values.
    pub attention: &'a AttentionModules,
    /// Whether input channels are grouped otherwise than as they stand.
    pub ordered: bool,
}

/// A model's config.json with the `quantization_config` that the export wants, in place of what the source said of itself.
/// Plain floats ([`Export::Fake`]) get none, so that they load wherever the source does.
///
/// # Errors
/// [`CannotHold`] for schemes that the export has no words for.
pub fn with_quantization(
    mut config: Value,
    export: Export,
    recipe: &Recipe,
    described: &Described<'_>,
) -> Result<Value, CannotHold> {
    let quantization = quantization_config(export, recipe, described)?;
    forget_quantization(&mut config);
    if let (Some(fields), Some(quantization)) = (config.as_object_mut(), quantization) {
        fields.insert("quantization_config".to_owned(), quantization);
    }
    Ok(config)
}

/// What an export says of itself.
fn quantization_config(
    export: Export,
    recipe: &Recipe,
    described: &Described<'_>,
) -> Result<Option<Value>, CannotHold> {
    let &Described { attention, ordered, .. } = described;
    let (layers, aliases) = (borrowed(described.layers), borrowed(described.aliases));
    let exclude: Vec<&str> = described.exclude.iter().map(String::as_str).collect();
    let quantization = match export {
        Export::Quark => {
            let order = recipe.nibble_order();
            let mut config = quark::quantization_config(&layers, &exclude, order, quark::WeightFormat::Real)?;
            quark::describe_attention(&mut config, &recipe.attention(), attention, &layers)?;
            config["algo_config"] = quark::algo_config(recipe.algorithms());
            config
        }
        Export::CompressedTensors => {
            let mut config = compressed_tensors::quantization_config(&layers, &exclude, &aliases, ordered)?;
            if let Some(cache) = recipe.attention().key_value {
                config["kv_cache_scheme"] = compressed_tensors::kv_cache_scheme(cache.scheme)?;
            }
            config
        }
        Export::Awq => awq::quantization_config(&layers, &exclude)?,
        Export::Gptq => gptq::quantization_config(&layers, &exclude, "gptq", ordered)?,
        Export::GptqV2 => gptq::quantization_config(&layers, &exclude, "gptq_v2", ordered)?,
        Export::Fp8 => fp8::quantization_config(&layers, &exclude)?,
        Export::Mxfp4 => mxfp4::quantization_config(&exclude),
        Export::Tensors => tensors::reference(),
        Export::Fake => return Ok(None),
        Export::Gguf => return Err(CannotHold::gguf()),
    };
    Ok(Some(quantization))
}

fn borrowed(layers: &[(String, LayerScheme)]) -> Vec<(&str, LayerScheme)> {
    layers.iter().map(|(name, scheme)| (name.as_str(), *scheme)).collect()
}

/// A model's config.json that says that its weights are floats of a type (`bfloat16`), and nothing of quantization.
pub(crate) fn without_quantization(mut config: Value, dtype: &str) -> Value {
    forget_quantization(&mut config);
    if let Some(fields) = config.as_object_mut() {
        let key = if fields.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        fields.insert(key.to_owned(), Value::from(dtype));
    }
    config
}

/// Whether an export has words for a layer of this scheme.
///
/// # Errors
/// [`CannotHold`] where it has none.
pub(crate) fn can_say(export: Export, recipe: &Recipe, module: &str, scheme: LayerScheme) -> Result<(), CannotHold> {
    let described = Described {
        layers: &[(module.to_owned(), scheme)],
        exclude: &[],
        aliases: &[],
        attention: &AttentionModules::default(),
        ordered: false,
    };
    quantization_config(export, recipe, &described).map(|_| ())
}

/// Removes what a source says of its own quantization, which holds no longer; multimodal models may say it of a part.
fn forget_quantization(config: &mut Value) {
    let forget = |fields: &mut Map<String, Value>| {
        fields.shift_remove("quantization_config");
        fields.shift_remove("compression_config");
        fields.shift_remove(fake::FAKE_QUANTIZATION);
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
        let (exclude, attention) = (["lm_head".to_owned()], AttentionModules::default());
        let described =
            Described { layers: &layers, exclude: &exclude, aliases: &[], attention: &attention, ordered: false };
        with_quantization(config, recipe.export(), &recipe, &described).unwrap()
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
