//! Models of text and images: which tower makes rows of an image, what becomes of them before they stand among the embeddings of tokens,
//! and how a text says where. Data only: the tower is an encoder with a [family](crate::family) of its own, whose keys are those of
//! `vision_config`, and the language model is a decoder with another one.

mod gemma3;
mod llava;
mod qwen2_vl;
mod qwen3_vl;
mod towers;

pub use towers::{DescribedTower, TowerNumber};

use crate::family::{Activation, NormKind};
use serde_json::Value;

/// How a model of text and images reads an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ImageReading {
    /// Its name.
    pub name: &'static str,
    /// Values of `model_type` of whole models that read images so.
    pub model_types: &'static [&'static str],
    /// The module of the tower, alone or in other modules.
    pub tower: &'static str,
    /// Its description, where it is no family: its tensors and the projector's are then in one module.
    pub described: Option<DescribedTower>,
    /// The hidden states of the tower that count.
    pub rows: TowerRows,
    /// What becomes of them.
    pub projector: Projector,
    /// Further rows that join the stream behind the first blocks of the language model.
    pub further: Option<FurtherRows>,
    /// What stands for an image in a text.
    pub placeholder: Placeholder,
    /// The number of rows that the model's processor expects.
    pub processor_rows: ProcessorRows,
    /// How tokens of an image turn by their place in it, where they do.
    pub positions: Option<PlacePositions>,
    /// Whether tokens of an image see all of it, later ones too, where tokens of text see earlier ones only.
    pub sees_whole_images: bool,
}

/// Hidden states of a tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TowerRows {
    /// The last ones, behind the last norm.
    Last,
    /// Those behind the blocks that a key of config.json states, side by side where it is a list: 0 is before the first block, and
    /// negative numbers count from the end. Another key says whether the first row is left out (`default`) or not (`full`).
    Listed {
        /// The key of the layer or layers.
        layers: &'static str,
        /// The layer where it is silent.
        default: i64,
        /// The key of the rows.
        strategy: &'static str,
    },
}

/// What makes rows of the decoder's stream of those of a tower. Paths are those of modules, alone or in other modules.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Projector {
    /// Two linear layers with an activation between them.
    TwoLayers {
        /// The layers.
        layers: [&'static str; 2],
        /// The key of config.json that names the activation, and that where it is silent.
        activation: (&'static str, Activation),
    },
    /// Means of squares of patches, so many that an image has as many rows as a key of config.json states; a norm; a matrix
    /// `[inputs, outputs]`.
    Pooled {
        /// The key of the number of rows, and the number where it is silent.
        rows: (&'static str, usize),
        /// The module of the norm, with the small number under its root that `vision_config` states.
        norm: &'static str,
        /// Its formula.
        norm_kind: NormKind,
        /// The tensor of the matrix.
        matrix: &'static str,
    },
    /// A norm of each patch; a row of all patches of a square, one after the other; two linear layers with GELU between them.
    Merged {
        /// The module of the norm, with the small number under its root that the tower has.
        norm: &'static str,
        /// Its formula.
        norm_kind: NormKind,
        /// The layers.
        layers: [&'static str; 2],
    },
}

/// Rows that the hidden states behind single blocks of the tower make, each of all patches of a square: a norm of the row, two linear layers with
/// GELU between them. Those of the first of these blocks are added to the rows of the image behind the first block of the language model, those
/// of the second behind its second, and so on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FurtherRows {
    /// The key of `vision_config` with the numbers of the blocks.
    pub layers: &'static str,
    /// The blocks where it is silent.
    pub default: &'static [usize],
    /// The list of modules with their layers.
    pub projector: &'static str,
    /// The norm in a module.
    pub norm: &'static str,
    /// Its formula.
    pub norm_kind: NormKind,
    /// The linear layers in a module.
    pub linears: [&'static str; 2],
}

/// Rotary positions of an image in a text (multimodal RoPE, arXiv 2409.12191): a token has a time, a row and a column, by one of which each angle
/// turns. Those of text are all the position: 0, 1, 2 and so on. All tokens of an image have the next position as their time, their rows and
/// columns count from there, and text behind it follows the largest of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacePositions {
    /// The numbers of angles that turn by the time, the row and the column, where `mrope_section` does not state them.
    pub sections: [usize; 3],
    /// Whether angles take turns, until those of the rows and columns are used up and the rest turns by the time. Otherwise they stand one after
    /// the other.
    pub takes_turns: bool,
}

/// What stands for an image in a text that a chat template renders, by the keys of config.json that have the numbers of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placeholder {
    /// A token, which then stands once for each row.
    Repeated {
        /// The token.
        token: TokenKey,
    },
    /// A token that begins an image: two line ends, this token, another one for each row, one that ends the image, and two line ends take
    /// its place.
    Framed {
        /// The first token.
        begin: TokenKey,
        /// The token of the rows.
        token: TokenKey,
        /// The last one.
        end: TokenKey,
    },
}

/// How processor_config.json states the rows of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessorRows {
    /// As patches of this size and further rows, of which the first is left out (`default`) or not.
    Patches {
        /// The key of the size.
        patch: &'static str,
        /// The key of the number of further rows.
        further: &'static str,
        /// The key of the rows that are left out.
        strategy: &'static str,
    },
    /// As a number.
    Length {
        /// Its key.
        key: &'static str,
    },
    /// As squares of patches, whose sizes preprocessor_config.json states.
    Squares,
}

/// A token by the key of config.json with its number, and the number where that is silent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// Names of the key, the first of which that is there counts.
    pub keys: &'static [&'static str],
    /// The number otherwise.
    pub default: u32,
}

impl TokenKey {
    /// The number of the token; `None` where the key holds something else.
    pub fn of(&self, config: &Value) -> Option<u32> {
        match self.keys.iter().find_map(|key| config.get(key).filter(|value| !value.is_null())) {
            None => Some(self.default),
            Some(value) => u32::try_from(value.as_u64()?).ok(),
        }
    }
}

const ALL: &[ImageReading] = &[
    gemma3::READING,
    llava::READING,
    qwen2_vl::READING,
    qwen2_vl::READING_2_5,
    qwen3_vl::READING,
    qwen3_vl::READING_3_5,
];

impl ImageReading {
    /// The row of a model, by the `model_type` of the whole model; `None` for models of text and for those whose tower is not run.
    pub fn of(config: &Value) -> Option<&'static ImageReading> {
        let name = config.get("model_type")?.as_str()?;
        let has_tower = config.get("vision_config").is_some_and(Value::is_object);
        ALL.iter().find(|row| row.model_types.contains(&name)).filter(|_| has_tower)
    }

    /// All rows.
    pub fn all() -> &'static [ImageReading] {
        ALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn models_with_a_tower_are_found_by_their_type() {
        let of = |config: Value| ImageReading::of(&config).map(|row| row.name);
        assert_eq!(of(json!({"model_type": "llava", "vision_config": {}})), Some("llava"));
        assert_eq!(of(json!({"model_type": "gemma3", "vision_config": null})), None);
        assert_eq!(of(json!({"model_type": "gemma3_text"})), None);
        assert_eq!(of(json!({"model_type": "llama", "vision_config": {}})), None);
    }

    #[test]
    fn numbers_of_tokens_are_stated_or_those_of_the_class() {
        let key = TokenKey { keys: &["image_token_id", "image_token_index"], default: 7 };
        assert_eq!(key.of(&json!({"image_token_index": 5})), Some(5));
        assert_eq!(key.of(&json!({"image_token_id": null})), Some(7));
        assert_eq!(key.of(&json!({"image_token_id": "a"})), None);
    }
}
