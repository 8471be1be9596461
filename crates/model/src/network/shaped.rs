//! Layers besides the linear ones of a model: convolutions, embeddings, and linear layers of towers for images or sound. They are quantized
//! only where a recipe asks for their kind, or for one of them by name.

use super::names::modality_part;
use super::tables::is_embedding_name;
use super::{Network, Place, Reason, Slot, TensorMeta};
use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// A kind of layer, by the name that recipes have for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LayerKind {
    /// `[out, in]`.
    Linear,
    /// `[out, in / groups, k]`.
    Conv1d,
    /// `[out, in / groups, k, k]`.
    Conv2d,
    /// `[out, in / groups, k, k, k]`.
    Conv3d,
    /// `[in, out / groups, k]`.
    ConvTranspose1d,
    /// `[in, out / groups, k, k]`.
    ConvTranspose2d,
    /// `[in, out / groups, k, k, k]`.
    ConvTranspose3d,
    /// A table of rows that are looked up, `[rows, width]`. Bags of embeddings have the same.
    Embedding,
    /// `[out, in]`, in a tower for images or sound beside a language model, or in what projects its output.
    Tower,
}

/// Fewer inputs or outputs than these make a layer of a tower too small to be worth a scale.
const FEW: usize = 8;

/// Parts of the names of speech generators, which are separate models, not towers.
const SPEAKING: [&str; 3] = ["talker", "speech", "2wav"];

/// The name of each kind, and that of its class in torch; layers of towers have no class of their own.
const NAMES: [(LayerKind, &str, &str); 9] = [
    (LayerKind::Linear, "linear", "Linear"),
    (LayerKind::Conv1d, "conv1d", "Conv1d"),
    (LayerKind::Conv2d, "conv2d", "Conv2d"),
    (LayerKind::Conv3d, "conv3d", "Conv3d"),
    (LayerKind::ConvTranspose1d, "conv_transpose1d", "ConvTranspose1d"),
    (LayerKind::ConvTranspose2d, "conv_transpose2d", "ConvTranspose2d"),
    (LayerKind::ConvTranspose3d, "conv_transpose3d", "ConvTranspose3d"),
    (LayerKind::Embedding, "embedding", "Embedding"),
    (LayerKind::Tower, "tower", ""),
];

impl LayerKind {
    /// All kinds.
    pub fn all() -> impl Iterator<Item = LayerKind> {
        NAMES.iter().map(|(kind, _, _)| *kind)
    }

    /// Its name in recipes.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(kind, _, _)| *kind == self).map_or("", |(_, name, _)| name)
    }

    /// The kind of a class of torch, such as `Conv2d`.
    pub fn of_class(class: &str) -> Option<LayerKind> {
        if class == "EmbeddingBag" {
            return Some(LayerKind::Embedding);
        }
        NAMES.iter().find(|(_, _, known)| *known == class && !class.is_empty()).map(|(kind, _, _)| *kind)
    }

    /// Returns whether the output channels are the second axis of the weight.
    pub fn is_transposed(self) -> bool {
        matches!(self, LayerKind::ConvTranspose1d | LayerKind::ConvTranspose2d | LayerKind::ConvTranspose3d)
    }

    fn convolution(dimensions: usize, is_transposed: bool) -> Option<LayerKind> {
        match (dimensions, is_transposed) {
            (1, false) => Some(LayerKind::Conv1d),
            (2, false) => Some(LayerKind::Conv2d),
            (3, false) => Some(LayerKind::Conv3d),
            (1, true) => Some(LayerKind::ConvTranspose1d),
            (2, true) => Some(LayerKind::ConvTranspose2d),
            (3, true) => Some(LayerKind::ConvTranspose3d),
            _ => None,
        }
    }
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no kind of layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownLayerKind;

impl FromStr for LayerKind {
    type Err = UnknownLayerKind;

    /// Reads its name, or that of its class in torch.
    fn from_str(text: &str) -> Result<LayerKind, UnknownLayerKind> {
        let named = NAMES.iter().find(|(_, name, _)| *name == text).map(|(kind, _, _)| *kind);
        named.or_else(|| LayerKind::of_class(text)).ok_or(UnknownLayerKind)
    }
}

impl Serialize for LayerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// A convolution, an embedding or a layer of a tower. Its weight counts as a matrix of as many rows as its first axis is long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapedLayer {
    /// Full module name: the weight's name without `.weight`.
    pub module: String,
    /// Its kind.
    pub kind: LayerKind,
    /// The weight tensor.
    pub weight: usize,
    /// The length of the weight's first axis.
    pub rows: usize,
    /// The elements of one row.
    pub columns: usize,
}

impl Network {
    /// The convolutions, embeddings and layers of towers among the tensors that the network was recognised from. Recurrent mixers'
    /// convolutions, norms and stacks of experts are none.
    pub fn shaped_layers(&self, tensors: &[TensorMeta]) -> Vec<ShapedLayer> {
        let both = tensors.iter().zip(&self.places).enumerate();
        both.filter_map(|(at, (tensor, place))| layer(at, tensor, *place, tensors)).collect()
    }
}

fn layer(at: usize, tensor: &TensorMeta, place: Place, tensors: &[TensorMeta]) -> Option<ShapedLayer> {
    let module = tensor.name.strip_suffix(".weight").filter(|_| tensor.is_float())?;
    let (rows, rest) = tensor.shape.split_first()?;
    let kind = match (place, rest.len()) {
        (Place::Embedding | Place::Positions | Place::DecoderPositions | Place::TokenTypes | Place::LayerInputs, 1) => {
            LayerKind::Embedding
        }
        (Place::Other(Reason::Modality), 1) => {
            Some(LayerKind::Tower).filter(|_| is_of_tower(module, *rows, rest[0], tensors))?
        }
        (Place::Patches(Slot::Weight), 3) => LayerKind::convolution(2, false)?,
        (Place::SoundConvolution(Slot::Weight), 2) => LayerKind::convolution(1, false)?,
        (Place::Other(Reason::NotLinear | Reason::Unrecognised | Reason::Modality), 2..=4) => {
            let is_layer = !module.split('.').any(|part| part == "experts" || part.contains("norm"));
            LayerKind::convolution(rest.len() - 1, is_transposed(module, tensor, tensors)).filter(|_| is_layer)?
        }
        _ => return None,
    };
    let columns = rest.iter().product();
    Some(ShapedLayer { module: module.to_owned(), kind, weight: at, rows: *rows, columns })
}

/// Returns whether a matrix beside the language model is the weight of a linear layer of a tower. The output projection of torch's
/// `MultiheadAttention`, which has a parameter `in_proj_weight` beside it, is none: its weight is read as a float.
fn is_of_tower(module: &str, rows: usize, columns: usize, tensors: &[TensorMeta]) -> bool {
    let fused_input = module.strip_suffix("out_proj").map(|above| format!("{above}in_proj_weight"));
    if fused_input.is_some_and(|name| tensors.iter().any(|tensor| tensor.name == name)) {
        return false;
    }
    let speaks = |part: &str| SPEAKING.iter().any(|word| part.contains(word));
    let is_table = is_embedding_name(module) || module.split('.').any(|part| part.contains("norm"));
    rows.min(columns) >= FEW && !is_table && !modality_part(module).is_some_and(speaks)
}

/// Transposed convolutions show by a bias of as many values as the second axis is long, and otherwise by their names.
fn is_transposed(module: &str, weight: &TensorMeta, tensors: &[TensorMeta]) -> bool {
    const WORDS: [&str; 5] = ["transpose", "transposed", "deconv", "upconv", "convtranspose"];
    let bias = tensors.iter().find(|tensor| tensor.name.strip_suffix(".bias") == Some(module));
    match bias.map(|bias| bias.shape.iter().product::<usize>()) {
        Some(length) if weight.shape[0] != weight.shape[1] => length == weight.shape[1],
        _ => module.split(['.', '_']).any(|word| WORDS.contains(&word.to_ascii_lowercase().as_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model_config::ModelConfig;

    fn kinds(tensors: &[(&str, &[usize])]) -> Vec<(String, LayerKind)> {
        let metas: Vec<TensorMeta> =
            tensors.iter().map(|(name, shape)| TensorMeta::new(*name, *shape, "F32")).collect();
        let network = Network::recognise(&ModelConfig::default(), &metas);
        network.shaped_layers(&metas).into_iter().map(|layer| (layer.module, layer.kind)).collect()
    }

    #[test]
    fn convolutions_and_embeddings_are_found_by_shape_and_bias() {
        let tensors: &[(&str, &[usize])] = &[
            ("stem.weight", &[16, 3, 7, 7]),
            ("stem.bias", &[16]),
            ("up.weight", &[16, 8, 2, 2]),
            ("up.bias", &[8]),
            ("decoder.conv_transpose.weight", &[16, 8, 4]),
            ("words.embedding.weight", &[100, 16]),
            ("layers.0.fc.weight", &[16, 16]),
            ("layers.0.norm.weight", &[16, 1, 1]),
            ("layers.0.mlp.experts.weight", &[4, 16, 16]),
            ("patch.weight", &[16, 3, 2, 4, 4]),
        ];
        let expected = [
            ("stem", LayerKind::Conv2d),
            ("up", LayerKind::ConvTranspose2d),
            ("decoder.conv_transpose", LayerKind::ConvTranspose1d),
            ("words.embedding", LayerKind::Embedding),
            ("patch", LayerKind::Conv3d),
        ];
        assert_eq!(kinds(tensors), expected.map(|(name, kind)| (name.to_owned(), kind)));
    }

    #[test]
    fn linear_layers_of_towers_are_found_beside_a_language_model() {
        let tensors: &[(&str, &[usize])] = &[
            ("visual.patch_embed.proj.weight", &[16, 3, 2, 4, 4]),
            ("visual.pos_embed.weight", &[64, 16]),
            ("visual.blocks.0.attn.qkv.weight", &[48, 16]),
            ("visual.blocks.0.norm1.weight", &[16]),
            ("visual.merger.mlp.0.weight", &[64, 64]),
            ("visual.head.attention.in_proj_weight", &[48, 16]),
            ("visual.head.attention.out_proj.weight", &[16, 16]),
            ("talker.model.layers.0.mlp.up_proj.weight", &[16, 16]),
            ("model.embed_tokens.weight", &[100, 16]),
            ("model.layers.0.self_attn.q_proj.weight", &[16, 16]),
        ];
        let towers = kinds(tensors).into_iter().filter(|(_, kind)| *kind == LayerKind::Tower).map(|(name, _)| name);
        assert_eq!(towers.collect::<Vec<_>>(), ["visual.blocks.0.attn.qkv", "visual.merger.mlp.0"]);
    }

    #[test]
    fn every_name_is_read_again() {
        for kind in LayerKind::all() {
            assert_eq!(kind.name().parse(), Ok(kind));
        }
        assert_eq!("ConvTranspose2d".parse(), Ok(LayerKind::ConvTranspose2d));
        assert_eq!("dense".parse::<LayerKind>(), Err(UnknownLayerKind));
    }
}
