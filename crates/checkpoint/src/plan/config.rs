//! The configuration's view of a plan: the unquantized modules, and the schemes of the others.

use super::declared::Declared;
use super::error::PlanError;
use super::quantization_config::{Described, with_quantization};
use super::{ActivationPoint, PlannedAttention, PlannedLayer, names};
use kvant_formats::format::ModuleScheme;
use kvant_formats::format::plain_floats::FakeQuantization;
use kvant_formats::format::quark::AttentionModules;
use kvant_formats::format::{ExcludedNames, OutputFormat};
use kvant_formats::loader_names::LoaderNames;
use kvant_model::network::{Place, Reason, modality_part};
use kvant_quant::scheme::{ActivationScheme, LayerScheme};
use serde_json::Value;
use std::collections::BTreeSet;

impl Declared<'_> {
    /// Modules that are not quantized, for the configuration, since loaders do not infer them: under their names on disk
    /// and under those that transformers gives them in memory.
    pub(super) fn exclude_list(&self) -> Vec<String> {
        let quantized = self.quantized_modules();
        let kept = self.source.network.kept_modules().into_iter().filter(|module| !quantized.contains(module));
        let heads = self.heads(&quantized);
        let on_disk = self.excluded.iter().map(String::as_str).chain(kept).chain(heads.iter().map(String::as_str));
        let patterns = self.modality_patterns();
        // Beside other modalities transformers takes the head out of the language model: `language_model.lm_head` is `lm_head`.
        let bare = |module: &str| {
            let last = module.rsplit('.').next().filter(|last| names::USUAL_HEADS.contains(last));
            last.filter(|_| !patterns.is_empty()).map(str::to_owned)
        };
        let loader = LoaderNames::of(&self.source.config);
        let both = on_disk.flat_map(|module| {
            let names = [module.to_owned(), self.source.in_memory_name(module)].into_iter();
            names.chain(bare(module)).chain(loader.of_module(module))
        });
        let all: BTreeSet<String> = both.chain(patterns.iter().cloned()).collect();
        all.into_iter().collect()
    }

    /// The modules of the source whose weights are quantized.
    fn quantized_modules(&self) -> BTreeSet<&str> {
        let weights = self.layers.iter().map(|layer| layer.source.tensor.as_str());
        weights.map(|name| name.strip_suffix(".weight").unwrap_or(name)).collect()
    }

    /// Heads that the checkpoint has no tensor for, or whose part is not known.
    fn heads(&self, quantized: &BTreeSet<&str>) -> Vec<String> {
        let embeddings = self
            .source
            .tensors
            .iter()
            .zip(self.source.network.places())
            .filter(|(_, place)| matches!(place, Place::Embedding | Place::LayerInputs));
        let embeddings: Vec<&str> =
            embeddings.filter_map(|(tensor, _)| tensor.name().strip_suffix(".weight")).collect();
        // Beside other modalities the head may stand within the language model, as the embedding does.
        let has_modalities = self.source.network.places().contains(&Place::Other(Reason::Modality));
        let models = embeddings.iter().filter_map(|name| name.split_once('.')).filter(|_| has_modalities);
        let models: BTreeSet<String> = models.map(|(model, _)| format!("{model}.")).collect();
        if self.source.network.family().is_some() {
            let head = names::head(&self.source.network);
            let tied = models.iter().map(|model| format!("{model}{head}")).chain([head.to_owned()]);
            return if self.source.network.is_tied() { tied.collect() } else { Vec::new() };
        }
        let usual = |within: &str| names::USUAL_HEADS.map(|head| format!("{within}{head}"));
        let heads = models.iter().flat_map(|model| usual(model)).chain(usual(""));
        let all = embeddings.iter().map(|name| (*name).to_owned()).chain(heads).chain(self.tied_modules());
        all.filter(|module| !self.reaches(module, quantized)).collect()
    }

    /// Modules that have a bias and no weight, outside of blocks, and their decoders: heads whose weight is the embedding's.
    fn tied_modules(&self) -> Vec<String> {
        let names: BTreeSet<&str> = self.source.tensors.iter().map(|tensor| tensor.name()).collect();
        let modules = self.source.tensors.iter().filter_map(|tensor| tensor.name().strip_suffix(".bias"));
        let in_block = |module: &str| module.split('.').any(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        let tied = modules.filter(|module| !in_block(module) && !names.contains(format!("{module}.weight").as_str()));
        tied.flat_map(|module| [module.to_owned(), format!("{module}.decoder")]).collect()
    }

    /// Returns whether an entry of the list would name a quantized module too.
    fn reaches(&self, entry: &str, quantized: &BTreeSet<&str>) -> bool {
        let by_part = self.source.format.capabilities().excluded_names == ExcludedNames::Parts;
        quantized.contains(entry) || (by_part && quantized.iter().any(|module| module.contains(entry)))
    }

    /// Patterns for vision towers and the like, whose prefixes differ between disk and memory.
    fn modality_patterns(&self) -> BTreeSet<String> {
        let others = self.source.tensors.iter().zip(self.source.network.places());
        let others = others.filter(|(_, place)| **place == Place::Other(Reason::Modality));
        let parts = others.filter_map(|(tensor, _)| modality_part(tensor.name()));
        // Where layers of a tower are quantized, the others are listed one by one.
        let quantized: BTreeSet<&str> =
            self.quantized_modules().into_iter().flat_map(|module| module.split('.')).collect();
        let parts = parts.filter(|part| !quantized.contains(part));
        let names = self.source.format.capabilities().excluded_names;
        let pattern = |part: &str| match names {
            ExcludedNames::Expressions => format!("re:.*{part}\\..*"),
            ExcludedNames::Parts => part.to_owned(),
            ExcludedNames::Globs => format!("*{part}.*"),
        };
        parts.map(pattern).collect()
    }

    /// The source's config.json as the output's.
    pub(super) fn quantized_config(&self, json: Value, exclude: &[String]) -> Result<Value, PlanError> {
        let layers: Vec<_> = self.layers.iter().map(|layer| (layer.name.clone(), layer.scheme)).collect();
        let first = self.layers.first().map(|first| (first.name.clone(), first.scheme.to_string()));
        let error = |problem| {
            let (layer, scheme) = first.unwrap_or_default();
            PlanError::CannotHold { layer, scheme, problem }
        };
        let loader = LoaderNames::of(&self.source.config);
        let renamed = self
            .layers
            .iter()
            .flat_map(|layer| loader.of_module(&layer.module).into_iter().map(|name| (name, layer.scheme)));
        let aliases: Vec<_> = renamed.collect();
        let biases: Vec<_> = self.coded_biases().collect();
        let attention = self.source.network.family().map(AttentionModules::of).unwrap_or_default();
        let rotated = self.layers.iter().filter_map(|layer| Some((layer, self.source.input_rotation(layer)?)));
        let names = |layer: &PlannedLayer| {
            let renamed = loader.of_module(&layer.module);
            std::iter::once(layer.name.clone()).chain(renamed).collect::<Vec<_>>()
        };
        let input_rotations: Vec<_> =
            rotated.flat_map(|(layer, rotation)| names(layer).into_iter().map(move |name| (name, rotation))).collect();
        let described = Described {
            layers: &layers,
            biases: &biases,
            exclude,
            aliases: &aliases,
            attention: &attention,
            act_order: self.act_order,
            input_rotations: &input_rotations,
        };
        let mut config = with_quantization(json, self.source.format, &self.source.recipe, &described).map_err(error)?;
        if let Some(fake) =
            (self.source.format == OutputFormat::PlainFloats).then(|| self.fake_quantization()).flatten()
        {
            fake.insert_into(&mut config);
        }
        Ok(config)
    }

    /// How the layers and the attention of a fake-quantized checkpoint quantize activations, by the names in its files.
    fn fake_quantization(&self) -> Option<FakeQuantization> {
        let scheme = |scheme: LayerScheme| ModuleScheme {
            weight: Some(scheme.weight),
            bias: None,
            input: scheme.input,
            output: scheme.output,
        };
        let layers: Vec<(&str, ModuleScheme)> =
            self.layers.iter().map(|layer| (layer.module.as_str(), scheme(layer.scheme))).collect();
        let names: Vec<&str> = layers.iter().map(|(name, _)| *name).collect();
        FakeQuantization::new(&layers, &self.source.modules_besides(&names), &self.sites_of_attention())
    }

    fn sites_of_attention(&self) -> Vec<(ActivationPoint, ActivationScheme)> {
        let scheme = self.source.recipe.attention();
        let of_block = |block: &PlannedAttention| {
            let cache = scheme.key_value.map(|cache| cache.scheme);
            let keys = block.key_value.iter().flatten().zip(std::iter::repeat(cache));
            let others = [(&block.query, scheme.query), (&block.probabilities, scheme.probabilities)];
            let others = others.into_iter().filter_map(|(site, scheme)| Some((site.as_ref()?, scheme)));
            let all = keys.chain(others).filter_map(|(site, scheme)| Some((site.clone(), scheme?)));
            all.collect::<Vec<_>>()
        };
        self.attention.iter().flat_map(of_block).collect()
    }
}
