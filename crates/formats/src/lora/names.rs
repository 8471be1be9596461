//! Names of an adapter's tensors: which module each belongs to and what it is of it.

/// The role of an adapter's tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// `lora_A`: rank x input channels.
    Right,
    /// `lora_B`: output channels x rank.
    Left,
    /// `lora_embedding_A`: rank x rows of the embedding.
    EmbeddingLeft,
    /// `lora_embedding_B`: width x rank.
    EmbeddingRight,
    /// A whole tensor, by the last part of its name: `weight`, `bias`.
    Whole(String),
    /// Something else of adapters, by its name.
    Other(String),
}

/// In what PEFT wraps models.
const PREFIX: &str = "base_model.model.";

/// The module that a tensor belongs to, and what it is of it; `None` for names that no adapter has.
pub(super) fn parse(name: &str) -> Option<(String, Part)> {
    let name = name.strip_prefix(PREFIX)?;
    let parts: Vec<&str> = name.split('.').collect();
    let at = parts.iter().position(|part| part.starts_with("lora_"));
    if let Some(at) = at {
        let module = parts[..at].join(".");
        // `.weight`, or the name of the adapter before it, or alone for embeddings.
        let rest = &parts[at + 1..];
        let ends_well = rest.len() <= 2 && rest.iter().skip(1).all(|part| *part == "weight");
        let is_weight = ends_well && rest.last().is_none_or(|last| *last != "bias");
        let part = match parts[at] {
            "lora_A" if is_weight => Part::Right,
            "lora_B" if is_weight => Part::Left,
            "lora_embedding_A" if is_weight => Part::EmbeddingLeft,
            "lora_embedding_B" if is_weight => Part::EmbeddingRight,
            other => Part::Other(other.to_owned()),
        };
        return Some((module, part));
    }
    let (leaf, module) = parts.split_last()?;
    // Copies of modules are called `modules_to_save` and the name of the adapter, or what they were before they were wrapped.
    let module: &[&str] = match module {
        [module @ .., "modules_to_save", _] => module,
        [module @ .., "base_layer" | "original_module"] => module,
        module => module,
    };
    Some((module.join("."), Part::Whole((*leaf).to_owned())))
}

/// Returns whether a tensor is a factor of a product.
pub(super) fn is_factor(name: &str) -> bool {
    matches!(parse(name), Some((_, Part::Left | Part::Right | Part::EmbeddingLeft | Part::EmbeddingRight)))
}

/// Returns whether it is the left one, of which every product has one.
pub(super) fn is_left_factor(name: &str) -> bool {
    matches!(parse(name), Some((_, Part::Left | Part::EmbeddingLeft)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peft_tensor_names_are_parsed() {
        let cases = [
            ("base_model.model.a.b.lora_A.weight", "a.b", Part::Right),
            ("base_model.model.a.b.lora_B.default.weight", "a.b", Part::Left),
            ("base_model.model.e.lora_embedding_A", "e", Part::EmbeddingLeft),
            ("base_model.model.e.lora_embedding_B.default", "e", Part::EmbeddingRight),
            ("base_model.model.lm_head.weight", "lm_head", Part::Whole("weight".to_owned())),
            ("base_model.model.score.modules_to_save.default.weight", "score", Part::Whole("weight".to_owned())),
            ("base_model.model.a.q.base_layer.bias", "a.q", Part::Whole("bias".to_owned())),
            ("base_model.model.a.lora_B.bias", "a", Part::Other("lora_B".to_owned())),
            ("base_model.model.a.lora_magnitude_vector.weight", "a", Part::Other("lora_magnitude_vector".to_owned())),
        ];
        for (name, module, part) in cases {
            assert_eq!(parse(name), Some((module.to_owned(), part)), "{name}");
        }
        assert_eq!(parse("lora_unet_down.lora_up.weight"), None);
    }
}
