//! What the configuration says of a plan: the modules that are not quantized, and how the others are.

use super::build::Builder;
use super::error::PlanError;
use super::names;
use crate::config_json::compressed_tensors::Targets;
use crate::config_json::quark::AttentionModules;
use crate::config_json::{Described, with_quantization};
use crate::export::Export;
use crate::network::{Place, Reason, modality_part};
use serde_json::Value;
use std::collections::BTreeSet;

impl Builder<'_> {
    /// Modules that are not quantized, for the configuration, since loaders do not infer them: under their names on disk
    /// and under those that transformers gives them in memory.
    pub(super) fn exclude_list(&self) -> Vec<String> {
        let weights = self.layers.iter().map(|layer| layer.source.tensor.as_str());
        let quantized: BTreeSet<&str> = weights.map(|name| name.strip_suffix(".weight").unwrap_or(name)).collect();
        let kept = self.network.kept_modules().into_iter().filter(|module| !quantized.contains(module));
        let on_disk = self.excluded.iter().map(String::as_str).chain(kept).chain(self.heads());
        let patterns = self.modality_patterns();
        // Beside other modalities transformers takes the head out of the language model: `language_model.lm_head` is `lm_head`.
        let bare = |module: &str| {
            let last = module.rsplit('.').next().filter(|last| names::USUAL_HEADS.contains(last));
            last.filter(|_| !patterns.is_empty()).map(str::to_owned)
        };
        let both =
            on_disk.flat_map(|module| [module.to_owned(), self.in_memory_name(module)].into_iter().chain(bare(module)));
        let all: BTreeSet<String> = both.chain(patterns.iter().cloned()).collect();
        all.into_iter().collect()
    }

    /// Heads that the checkpoint has no tensor for, or whose part is not known.
    fn heads(&self) -> Vec<&str> {
        let embeddings =
            self.tensors.iter().zip(self.network.places()).filter(|(_, place)| **place == Place::Embedding);
        match self.network.family() {
            Some(_) if self.network.is_tied() => vec![names::head(&self.network)],
            Some(_) => vec![],
            None => {
                embeddings.filter_map(|(t, _)| t.name().strip_suffix(".weight")).chain(names::USUAL_HEADS).collect()
            }
        }
    }

    /// Patterns for vision towers and the like, whose prefixes differ between disk and memory.
    fn modality_patterns(&self) -> BTreeSet<String> {
        let others = self.tensors.iter().zip(self.network.places());
        let others = others.filter(|(_, place)| **place == Place::Other(Reason::Modality));
        let parts = others.filter_map(|(tensor, _)| modality_part(tensor.name()));
        let pattern = |part: &str| match self.export {
            Export::CompressedTensors | Export::Gptq | Export::GptqV2 => format!("re:.*{part}\\..*"),
            // These are looked for inside of names.
            Export::Awq | Export::Fp8 | Export::Mxfp4 => part.to_owned(),
            Export::Quark | Export::Fake | Export::Gguf => format!("*{part}.*"),
        };
        parts.map(pattern).collect()
    }

    /// The source's config.json as the output's.
    pub(super) fn quantized_config(&self, json: Value, exclude: &[String]) -> Result<Value, PlanError> {
        let layers: Vec<_> = self.layers.iter().map(|layer| (layer.name.clone(), layer.scheme)).collect();
        let first = self.layers.first().map(|first| (first.name.clone(), first.scheme.to_string()));
        let error = |problem| {
            let (layer, scheme) = first.unwrap_or_default();
            PlanError::Export { layer, scheme, problem }
        };
        let targets = if self.network.family().is_some() { Targets::Class } else { Targets::Modules };
        let attention = self.network.family().map(AttentionModules::of).unwrap_or_default();
        let described = Described { layers: &layers, exclude, targets, attention: &attention, ordered: self.ordered };
        with_quantization(json, self.export, &self.recipe, &described).map_err(error)
    }
}
