//! Models of text and images: which tower makes rows of an image, what becomes of them before they stand among the embeddings of tokens,
//! and how a text says where. Data only: the tower is an encoder with a [family](crate::family) of its own, whose keys are those of
//! `vision_config`, and the language model is a decoder with another one.

mod gemma3;
mod llava;

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
    /// The hidden states of the tower that count.
    pub rows: TowerRows,
    /// What becomes of them.
    pub projector: Projector,
    /// What stands for an image in a text.
    pub placeholder: Placeholder,
    /// The number of rows that the model's processor expects.
    pub processor_rows: ProcessorRows,
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

const ALL: &[ImageReading] = &[gemma3::READING, llava::READING];

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
