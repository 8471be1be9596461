//! Images in the text of a decoder: the tower of the model, which runs as the encoder that it is, what makes rows of the decoder's stream of
//! its hidden states, and the rows that the decoder keeps of the images of its data. How texts name images is in [`kvant_data::images`].

mod projector;
mod rows;
mod run;

use super::Decoder;
use super::error::ForwardError;
use super::quantizers::Quantizers;
use super::tensors::Tensors;
use kvant_container::Checkpoint;
use kvant_formats::import;
use kvant_model::vision::{ImageReading, TowerRows};
use kvant_weights::weight::ImportedTensor;
use projector::ProjectorLayers;
pub(super) use rows::ImageRows;
use serde_json::Value;

/// The key of the tower's configuration.
const SECTION: &str = "vision_config";

/// The tower of a model of text and images, with what makes rows of the decoder's stream.
#[derive(Clone, Debug)]
pub struct VisionTower<'a> {
    reading: &'static ImageReading,
    /// The tower.
    encoder: Decoder<'a>,
    /// Blocks behind which hidden states count, where they are not the last ones.
    layers: Option<Vec<usize>>,
    /// Whether the first row is left out.
    drops_first: bool,
    projector: ProjectorLayers,
    /// Those of the projector's inputs.
    quantizers: Quantizers,
    /// Rows of an image.
    rows: usize,
}

impl<'a> VisionTower<'a> {
    /// The tower of a checkpoint, of floats or quantized. Reads headers and config.json.
    ///
    /// # Errors
    ///
    /// [`ForwardError::Unsupported`] for models of text and for those whose tower is not computed; errors for anything missing or
    /// inconsistent.
    pub fn open(checkpoint: &'a Checkpoint) -> Result<VisionTower<'a>, ForwardError> {
        let config = checkpoint.config()?.ok_or(ForwardError::NoConfig)?;
        let Some(reading) = ImageReading::of(&config) else { return Err(unread(&config)) };
        let import = import::open(checkpoint)?;
        let all = Tensors::new(import.tensors().to_vec());
        let prefix = prefix_of(import.tensors(), reading.tower)?;
        let of_tower = |tensor: &ImportedTensor<'a>| {
            let name = tensor.meta.name.strip_prefix(&prefix)?.to_owned();
            let mut tensor = tensor.clone();
            tensor.meta.name = name;
            Some(tensor)
        };
        let tensors = Tensors::new(import.tensors().iter().filter_map(of_tower).collect());
        let section = config.get(SECTION).cloned().unwrap_or_default();
        let encoder = Decoder::of_tower(&section, tensors, &import, &prefix)?;
        let images = encoder.blueprint.images.as_ref();
        let images = images.ok_or_else(|| ForwardError::unsupported(format!("a tower like {}", reading.name)))?;
        let blocks = encoder.blueprint.blocks.len();
        let layers = layers_of(reading.rows, &config, blocks)?;
        if layers.as_ref().is_some_and(|layers| layers.contains(&blocks)) && encoder.blueprint.final_norm.is_some() {
            // Versions of transformers differ in whether these are behind the norm.
            return Err(ForwardError::unsupported(
                "hidden states behind the last block of a tower whose last norm follows",
            ));
        }
        let drops_first = drops_first(reading.rows, &config)?;
        let found = images.tokens() - usize::from(drops_first);
        let width = encoder.hidden() * layers.as_ref().map_or(1, Vec::len);
        let projector = ProjectorLayers::new(reading, &config, &all, (found, width), images.grid())?;
        let rows = projector.rows(found);
        let quantizers = Quantizers::of_layers(&import, projector.layers())?;
        Ok(VisionTower { reading, encoder, layers, drops_first, projector, quantizers, rows })
    }

    /// How the model reads images.
    pub fn reading(&self) -> &'static ImageReading {
        self.reading
    }

    /// Channels, height and width of an image.
    pub fn shape(&self) -> [usize; 3] {
        self.encoder.image_shape().unwrap_or_default()
    }

    /// Rows of an image.
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// The error for a model whose tower is not run.
fn unread(config: &Value) -> ForwardError {
    let name = config.get("model_type").and_then(Value::as_str).unwrap_or("this model");
    match config.get(SECTION).is_some_and(Value::is_object) {
        true => ForwardError::unsupported(format!("the tower for images of {name}")),
        false => ForwardError::unsupported(format!("images in {name}, which has no tower for them")),
    }
}

/// What stands before the names of the tower's tensors.
fn prefix_of(tensors: &[ImportedTensor<'_>], tower: &str) -> Result<String, ForwardError> {
    let of_name = |name: &str| {
        let parts: Vec<&str> = name.split('.').collect();
        let at = parts.iter().position(|part| *part == tower)?;
        Some(format!("{}.", parts[..=at].join(".")))
    };
    let found = tensors.iter().find_map(|tensor| of_name(&tensor.meta.name));
    found.ok_or_else(|| ForwardError::missing("the model", format!("tower `{tower}`")))
}

/// The numbers of blocks behind which hidden states count; `None` for the last hidden states.
fn layers_of(rule: TowerRows, config: &Value, blocks: usize) -> Result<Option<Vec<usize>>, ForwardError> {
    let TowerRows::Listed { layers, default, .. } = rule else { return Ok(None) };
    let wrong = || ForwardError::unsupported(format!("`{layers}` of config.json in a tower of {blocks} blocks"));
    let place = |number: i64| {
        let place = if number < 0 { number + blocks as i64 + 1 } else { number };
        usize::try_from(place).ok().filter(|place| *place <= blocks).ok_or_else(wrong)
    };
    let stated = match config.get(layers) {
        None | Some(Value::Null) => vec![default],
        Some(Value::Array(list)) if !list.is_empty() => {
            list.iter().map(Value::as_i64).collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(number) => vec![number.as_i64().ok_or_else(wrong)?],
    };
    stated.into_iter().map(place).collect::<Result<Vec<usize>, _>>().map(Some)
}

/// Whether the first row of each image is left out.
fn drops_first(rule: TowerRows, config: &Value) -> Result<bool, ForwardError> {
    let TowerRows::Listed { strategy, .. } = rule else { return Ok(false) };
    match config.get(strategy).map(Value::as_str) {
        None | Some(Some("default")) => Ok(true),
        Some(Some("full")) => Ok(false),
        Some(other) => Err(ForwardError::unsupported(format!("`{strategy}` {other:?} of config.json"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_model::vision::ImageReading;
    use serde_json::json;

    #[test]
    fn layers_count_from_both_ends() {
        let rule = ImageReading::all().iter().find(|row| row.name == "llava").unwrap().rows;
        let of = |config: Value| layers_of(rule, &config, 4);
        assert_eq!(of(json!({})).unwrap(), Some(vec![3]));
        assert_eq!(of(json!({"vision_feature_layer": 0})).unwrap(), Some(vec![0]));
        assert_eq!(of(json!({"vision_feature_layer": [-1, 2]})).unwrap(), Some(vec![4, 2]));
        for wrong in [json!(5), json!(-6), json!("last"), json!([]), json!([1.5])] {
            assert!(of(json!({ "vision_feature_layer": wrong })).is_err());
        }
        assert!(drops_first(rule, &json!({})).unwrap());
        assert!(!drops_first(rule, &json!({"vision_feature_select_strategy": "full"})).unwrap());
        assert!(drops_first(rule, &json!({"vision_feature_select_strategy": "cls"})).is_err());
    }
}
