//! The `quantization_config` that a plan's config.json gets: that of the format, in place of what the source said of itself.

use crate::recipe::Recipe;
use kvant_formats::format::quark::AttentionModules;
use kvant_formats::format::{InputRotation, ModelDescription, OutputFormat, forget_config, gguf_has_its_own};
use kvant_quant::scheme::{LayerScheme, TensorScheme};
use kvant_weights::parts::CannotHold;
use serde_json::Value;

/// What of a model a plan describes in config.json.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    /// The quantized modules.
    pub layers: &'a [(String, LayerScheme)],
    /// The modules among them whose biases are codes, with the schemes of these.
    pub biases: &'a [(String, TensorScheme)],
    /// The linear modules that stay as they are.
    pub exclude: &'a [String],
    /// The quantized modules whose names in a model that transformers has loaded differ, under those names.
    pub aliases: &'a [(String, LayerScheme)],
    /// The modules that make queries, keys and values.
    pub attention: &'a AttentionModules,
    /// Whether input channels are grouped otherwise than as they stand.
    pub act_order: bool,
    /// The modules whose inputs are rotated while the model runs, under all their names.
    pub input_rotations: &'a [(String, InputRotation)],
}

/// A model's config.json with the `quantization_config` that the format wants, in place of what the source said of itself.
/// Plain floats ([`OutputFormat::PlainFloats`]) get none, so that they load wherever the source does.
///
/// # Errors
/// [`CannotHold`] for schemes that the format has no words for.
pub fn with_quantization(
    mut config: Value,
    format: OutputFormat,
    recipe: &Recipe,
    described: &Described<'_>,
) -> Result<Value, CannotHold> {
    let quantization = quantization_config(format, recipe, described)?;
    forget_quantization(&mut config);
    let key = format.checkpoint().and_then(|format| format.capabilities().key);
    if let (Some(fields), Some(quantization)) = (config.as_object_mut(), quantization) {
        if let Some(key) = key {
            // Loaders that have a key of their own take every other entry for a layer.
            let mut own = quantization.clone();
            own.as_object_mut().and_then(|own| own.shift_remove("quant_method"));
            fields.insert(key.to_owned(), own);
        }
        fields.insert("quantization_config".to_owned(), quantization);
        if let Some(format) = format.checkpoint() {
            format.complete(fields);
        }
    }
    Ok(config)
}

/// A format's description of itself; empty for plain floats.
fn quantization_config(
    format: OutputFormat,
    recipe: &Recipe,
    described: &Described<'_>,
) -> Result<Option<Value>, CannotHold> {
    let format = match format {
        OutputFormat::Checkpoint(format) => format,
        OutputFormat::PlainFloats => return Ok(None),
        OutputFormat::Gguf => return Err(gguf_has_its_own()),
    };
    let exclude: Vec<&str> = described.exclude.iter().map(String::as_str).collect();
    let model = ModelDescription {
        biases: &described.biases.iter().map(|(name, scheme)| (name.as_str(), *scheme)).collect::<Vec<_>>(),
        layers: &borrowed(described.layers),
        exclude: &exclude,
        aliases: &borrowed(described.aliases),
        attention: recipe.attention(),
        attention_modules: described.attention,
        act_order: described.act_order,
        nibble_order: recipe.nibble_order(),
        algorithms: recipe.algorithms(),
        input_rotations: &described
            .input_rotations
            .iter()
            .map(|(name, rotation)| (name.as_str(), *rotation))
            .collect::<Vec<_>>(),
    };
    format.config(&model).map(Some)
}

fn borrowed(layers: &[(String, LayerScheme)]) -> Vec<(&str, LayerScheme)> {
    layers.iter().map(|(name, scheme)| (name.as_str(), *scheme)).collect()
}

/// A model's config.json that says that its weights are floats of a type (`bfloat16`), and nothing of quantization.
pub(crate) fn without_quantization(mut config: Value, dtype: &str) -> Value {
    forget_quantization(&mut config);
    // Classes of diffusers take every key for an argument.
    if let Some(fields) = config.as_object_mut().filter(|fields| !fields.contains_key("_class_name")) {
        let key = if fields.contains_key("torch_dtype") { "torch_dtype" } else { "dtype" };
        fields.insert(key.to_owned(), Value::from(dtype));
    }
    config
}

/// Returns whether a format has words for layers of these schemes together.
///
/// # Errors
/// [`CannotHold`] where it has none.
pub(crate) fn can_say(
    format: OutputFormat,
    recipe: &Recipe,
    layers: &[(String, LayerScheme)],
) -> Result<(), CannotHold> {
    let described = Described {
        layers,
        biases: &[],
        exclude: &[],
        aliases: &[],
        attention: &AttentionModules::default(),
        act_order: false,
        input_rotations: &[],
    };
    quantization_config(format, recipe, &described).map(|_| ())
}

/// Removes what a source says of its own quantization, which holds no longer; multimodal models may say it of a part.
fn forget_quantization(config: &mut Value) {
    if let Some(fields) = config.as_object_mut() {
        forget_config(fields);
        fields.values_mut().filter_map(Value::as_object_mut).for_each(forget_config);
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
        let described = Described {
            layers: &layers,
            biases: &[],
            exclude: &exclude,
            aliases: &[],
            attention: &attention,
            act_order: false,
            input_rotations: &[],
        };
        with_quantization(config, recipe.format(), &recipe, &described).unwrap()
    }

    #[test]
    fn output_format_decides_the_quantization_config() {
        let config = quantized("quark");
        assert_eq!(config["quantization_config"]["quant_method"], "quark");
        assert_eq!(config["quantization_config"]["export"]["pack_method"], "order");
        assert_eq!(config["quantization_config"]["exclude"], json!(["lm_head"]));
        assert_eq!(quantized("compressed-tensors")["quantization_config"]["ignore"], json!(["lm_head"]));
    }

    #[test]
    fn source_quantization_config_is_removed_and_the_rest_unchanged() {
        let config = json!({"model_type": "llama", "text_config": {"hidden_size": 8}, "vocab_size": 5});
        assert_eq!(quantized("fake"), config);
    }
}
