//! The output's config.json: the source's with another `quantization_config`.

use super::error::PlanError;
use super::layer::PlannedLayer;
use crate::config_json::{compressed_tensors, quark};
use crate::export::{CannotHold, Export};
use crate::recipe::Recipe;
use kvant_quant::scheme::LayerScheme;
use serde_json::Value;

/// The source's config.json as the output's.
///
/// # Errors
/// [`PlanError::Export`] for a scheme that the convention has no words for.
pub(super) fn quantized(
    mut config: Value,
    export: Export,
    recipe: &Recipe,
    layers: &[PlannedLayer],
    exclude: &[String],
) -> Result<Value, PlanError> {
    let schemes: Vec<(&str, LayerScheme)> = layers.iter().map(|layer| (layer.name.as_str(), layer.scheme)).collect();
    let exclude: Vec<&str> = exclude.iter().map(String::as_str).collect();
    let section = section(export, recipe, &schemes, &exclude);
    let section = section.map_err(|problem| unnamed(problem, layers))?;
    if let Value::Object(config) = &mut config {
        // The source's own stands either at the top or beside the language model's keys.
        config.remove("quantization_config");
        if let Some(Value::Object(text)) = config.get_mut("text_config") {
            text.remove("quantization_config");
        }
        section.map(|section| config.insert("quantization_config".to_owned(), section));
    }
    Ok(config)
}

fn section(
    export: Export,
    recipe: &Recipe,
    schemes: &[(&str, LayerScheme)],
    exclude: &[&str],
) -> Result<Option<Value>, CannotHold> {
    match export {
        Export::Quark => {
            let order = recipe.nibble_order();
            quark::quantization_config(schemes, exclude, order, quark::WeightFormat::Real).map(Some)
        }
        Export::CompressedTensors => compressed_tensors::quantization_config(schemes, exclude).map(Some),
        // A model of plain floats needs no loader's help, and gets none.
        Export::Fake => Ok(None),
    }
}

/// The first layer stands for the configuration as a whole.
fn unnamed(problem: CannotHold, layers: &[PlannedLayer]) -> PlanError {
    match layers.first() {
        Some(layer) => PlanError::Export { layer: layer.name.clone(), scheme: layer.scheme, problem },
        None => PlanError::Nothing { reason: problem.reason },
    }
}
