//! Determines why a tensor outside all layers is copied, from its name, its type and neighbouring tensors.

use std::collections::HashSet;

use super::names::{is_buffer, is_quantization_parameter, modality_part, parse_index};
use super::{Reason, TensorMeta};
use crate::model_config::ModelConfig;

/// Facts that follow from all tensors of a checkpoint together.
#[derive(Debug, Default)]
pub(super) struct Surroundings {
    /// Modules that have scales or other parameters of quantization.
    scaled: HashSet<String>,
    /// Whether names that speak of vision or audio mean the whole model, not a tower beside a language model.
    one_modality: bool,
}

impl Surroundings {
    pub(super) fn of(config: &ModelConfig, tensors: &[TensorMeta]) -> Surroundings {
        let parameters = tensors.iter().filter(|tensor| is_quantization_parameter(&tensor.name));
        let modules = parameters.filter_map(|tensor| tensor.name.rsplit_once('.'));
        let scaled = modules.map(|(module, _)| module.strip_suffix(".weight").unwrap_or(module).to_owned()).collect();
        Surroundings { scaled, one_modality: !has_text_model(config, tensors) }
    }

    /// The reason that a tensor outside all descriptions is copied.
    pub(super) fn reason(&self, tensor: &TensorMeta) -> Reason {
        let name = &tensor.name;
        if is_buffer(tensor) {
            Reason::Buffer
        } else if !self.one_modality && modality_part(name).is_some() {
            Reason::Modality
        } else if name.split('.').any(|part| part == "mtp") {
            Reason::ExtraLayer
        } else if is_quantization_parameter(name) || self.has_codes(tensor) {
            Reason::Quantized
        } else if !tensor.is_float() {
            Reason::Buffer
        } else {
            Reason::Unrecognised
        }
    }

    /// Whether integers are codes: matrices named like weights are, and tensors with scales beside them. Tables of indices and counters
    /// are not.
    fn has_codes(&self, tensor: &TensorMeta) -> bool {
        let is_index = matches!(tensor.dtype.as_str(), "I64" | "U64" | "I16" | "U16" | "BOOL");
        let module = tensor.name.rsplit_once('.').map_or(tensor.name.as_str(), |(module, _)| module);
        let is_weight = tensor.name.ends_with(".weight") && tensor.shape.len() >= 2;
        !tensor.is_float() && !is_index && (is_weight || self.scaled.contains(module))
    }
}

/// Whether there is a language model, beside which other modalities are kept as they are: config.json states a vocabulary, or there
/// is an embedding of tokens, and blocks outside of what speaks of other modalities.
fn has_text_model(config: &ModelConfig, tensors: &[TensorMeta]) -> bool {
    let in_block = |name: &str| name.split('.').any(|part| parse_index(part).is_some());
    let text = || tensors.iter().filter(|tensor| modality_part(&tensor.name).is_none());
    let tokens = |tensor: &TensorMeta| tensor.name.split('.').any(|part| matches!(part, "embed_tokens" | "wte"));
    let reads_tokens = config.vocab_size.is_some() || text().any(tokens);
    reads_tokens && text().any(|tensor| tensor.shape.len() >= 2 && in_block(&tensor.name))
}
