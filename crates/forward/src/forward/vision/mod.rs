//! Images in the text of a decoder: the tower of the model, which runs as the encoder that it is, what makes rows of the decoder's stream of
//! its hidden states, and the rows that the decoder keeps of the images of its data. How texts name images is in [`kvant_data::images`].

mod axes;
mod projector;
mod rows;
mod run;

use super::Decoder;
use super::error::ForwardError;
use super::patches::PatchOrder;
use super::quantizers::Quantizers;
use super::tensors::Tensors;
use axes::TurningAxes;
use kvant_container::Checkpoint;
use kvant_data::images::PatchSizes;
use kvant_formats::import;
use kvant_model::model_config::ModelConfig;
use kvant_model::vision::{FurtherRows, ImageReading, Projector, TowerRows};
use kvant_weights::weight::ImportedTensor;
use projector::{EncoderRows, ProjectorLayers, ProjectorSources};
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
    /// What makes further rows, each with the number of blocks behind which it reads.
    further: Vec<(usize, ProjectorLayers)>,
    /// How tokens turn by their place in an image.
    axes: Option<TurningAxes>,
    /// Those of the projector's inputs.
    quantizers: Quantizers,
    /// Images that it reads.
    images: TowerImages,
}

/// The images that a tower reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerImages {
    /// Those of one size.
    Equal {
        /// Channels, height and width.
        shape: [usize; 3],
        /// Rows that it makes of an image.
        rows: usize,
    },
    /// Those of any size.
    AnySize(PatchSizes),
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
        let beside = modules_beside(reading);
        let of_tower = |tensor: &ImportedTensor<'a>| {
            let name = tensor.meta.name.strip_prefix(&prefix)?.to_owned();
            if beside.contains(&name.split('.').next().unwrap_or_default()) {
                return None;
            }
            let mut tensor = tensor.clone();
            tensor.meta.name = name;
            Some(tensor)
        };
        let tensors = Tensors::new(import.tensors().iter().filter_map(of_tower).collect());
        let section = config.get(SECTION).cloned().unwrap_or_default();
        let section = reading.described.map_or_else(|| section.clone(), |described| described.config(&section));
        let family = reading.described.and_then(|described| described.family());
        let encoder = Decoder::of_tower(&section, family, tensors, &import, &prefix)?;
        let blocks = encoder.blueprint.blocks.len();
        let layers = layers_of(reading.rows, &config, blocks)?;
        if layers.as_ref().is_some_and(|layers| layers.contains(&blocks)) && encoder.blueprint.final_norm.is_some() {
            // Versions of transformers differ in whether these are behind the norm.
            return Err(ForwardError::unsupported(
                "hidden states behind the last block of a tower whose last norm follows",
            ));
        }
        let drops_first = drops_first(reading.rows, &config)?;
        let width = encoder.hidden() * layers.as_ref().map_or(1, Vec::len);
        let of_projector = ProjectorSources { reading, config: &config, tensors: &all, width };
        let (projector, images) = match (&encoder.blueprint.images, &encoder.blueprint.grids) {
            (Some(images), _) => {
                let found = images.tokens() - usize::from(drops_first);
                let projector = ProjectorLayers::new(of_projector, EncoderRows::Equal(found, images.grid()))?;
                let rows = projector.rows(found);
                (projector, TowerImages::Equal { shape: images.shape, rows })
            }
            (None, Some(grids)) => {
                let sizes = PatchSizes { patch: grids.patch, square: grids.order.square, frames: grids.frames };
                let projector = ProjectorLayers::new(of_projector, EncoderRows::Grid(grids.order))?;
                (projector, TowerImages::AnySize(sizes))
            }
            (None, None) => return Err(ForwardError::unsupported(format!("a tower like {}", reading.name))),
        };
        let further = match (reading.further, &encoder.blueprint.grids) {
            (Some(rule), Some(grids)) => further_layers(of_projector, rule, (blocks, grids.order))?,
            _ => Vec::new(),
        };
        let layers_read = projector.layers().into_iter().chain(further.iter().flat_map(|(_, layers)| layers.layers()));
        let quantizers = Quantizers::of_layers(&import, layers_read)?;
        let axes = reading.positions.map(|rule| TurningAxes::new(rule, &config)).transpose()?;
        Ok(VisionTower { reading, encoder, layers, drops_first, projector, further, axes, quantizers, images })
    }

    /// How the model reads images.
    pub fn reading(&self) -> &'static ImageReading {
        self.reading
    }

    /// The images that it reads.
    pub fn images(&self) -> TowerImages {
        self.images
    }
}

/// Modules in that of the tower which are none of it: what makes rows of the decoder's stream.
fn modules_beside(reading: &ImageReading) -> Vec<&'static str> {
    let Projector::Merged { norm, .. } = reading.projector else { return Vec::new() };
    norm.split('.').next().into_iter().chain(reading.further.map(|rule| rule.projector)).collect()
}

/// What makes further rows, by the blocks of the tower behind which they read. The language model has a block for each.
fn further_layers(
    sources: ProjectorSources<'_, '_>,
    rule: FurtherRows,
    (blocks, order): (usize, PatchOrder),
) -> Result<Vec<(usize, ProjectorLayers)>, ForwardError> {
    let key = rule.layers;
    let wrong = || ForwardError::unsupported(format!("`{key}` of config.json in a tower of {blocks} blocks"));
    let listed: Vec<usize> = match sources.config.get(SECTION).and_then(|section| section.get(key)) {
        None | Some(Value::Null) => rule.default.to_vec(),
        Some(Value::Array(list)) => {
            let number = |value: &Value| usize::try_from(value.as_u64()?).ok();
            list.iter().map(number).collect::<Option<_>>().ok_or_else(wrong)?
        }
        Some(_) => return Err(wrong()),
    };
    // Rows join behind blocks in the order in which the tower comes to theirs.
    if !listed.is_sorted_by(|a, b| a < b) || listed.iter().any(|block| *block >= blocks) {
        return Err(wrong());
    }
    let language = ModelConfig::from_json(sources.config)?.num_layers.unwrap_or(0);
    if listed.len() > language {
        let further = format!("{} further rows of an image in a language model of {language} blocks", listed.len());
        return Err(ForwardError::unsupported(further));
    }
    let layers =
        |(index, block): (usize, &usize)| Ok((block + 1, ProjectorLayers::further(sources, (rule, index), order)?));
    listed.iter().enumerate().map(layers).collect()
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
