//! What loads a format of which scheme, as plans tell it. The rules are those by which finished checkpoints are judged:
//! see [`crate::verify`].

use super::judge::newer_refusal;
use super::{
    ExpertSchemes, FLOAT_METHOD, LayerFacts, Loader, ModelFacts, RotationFacts, ShardShape, file_refusal,
    loaders as known_loaders, refusal, size_refusal,
};
use crate::format::OutputFormat;
use kvant_quant::scheme::{AttentionScheme, LayerScheme, Rotary};
use serde_json::Value;
use std::collections::BTreeMap;

/// Properties of a model that affect loaders for every scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelTraits {
    /// The name of the architecture's built-in description; of those without one it is not known which modules loaders take for linear
    /// layers, whatever a file describes.
    pub family: Option<&'static str>,
    /// config.json has no `model_type`, by which loaders find the class of a model.
    pub lacks_model_type: bool,
    /// The `model_type` of a model around the language model, if that is of another family.
    pub wrapper: Option<String>,
    /// config.json ties the head of the whole model, and not that of the language model in it.
    pub untied_section: bool,
    /// The head is another tensor than the embeddings.
    pub separate_head: bool,
    /// The head is quantized.
    pub quantized_head: bool,
    /// `architectures` of config.json names a class of another model than `model_type`.
    pub foreign_class: bool,
    /// Its tensors have other names than those of the architecture that config.json names.
    pub foreign_names: bool,
    /// It is a component of a diffusers pipeline: config.json names a class of that library.
    pub component: bool,
    /// There are vision towers or the like beside the language model.
    pub other_modalities: bool,
    /// There is a mixture of experts.
    pub experts: bool,
    /// The output has experts one by one, and loaders of the architecture find one tensor of all where they are quantized.
    pub fused_experts: bool,
    /// Some experts are kept.
    pub kept_experts: bool,
    /// Experts that see every token stay floats.
    pub kept_shared_experts: bool,
    /// Some blocks of a mixture have no experts.
    pub dense_blocks: bool,
    /// Layers that choose experts are quantized.
    pub quantized_routers: bool,
    /// Convolutions or embeddings are codes.
    pub shaped_codes: bool,
    /// Biases are codes.
    pub quantized_biases: bool,
    /// Biases are codes with a scale for each value.
    pub channel_biases: bool,
    /// Whether layers of towers for images or sound are codes.
    pub quantized_towers: bool,
    /// Whether their codes have another name than the weight.
    pub packed_towers: bool,
    /// Whether layers of towers have several schemes, or some of them are floats.
    pub uneven_towers: bool,
    /// Some experts stay floats in one tensor for all.
    pub whole_experts: bool,
    /// How the schemes of experts differ.
    pub expert_schemes: ExpertSchemes,
    /// All weights are stored as bf16 (or fp8).
    pub bf16: bool,
    /// Some floats of the output have 32 bits.
    pub float32: bool,
    /// Layers that engines fuse must be listed by name: some are kept, or there are several schemes.
    pub listed_siblings: bool,
    /// Some layers have windows of attention, and others have not.
    pub mixed_windows: bool,
    /// A tower for pictures is stored without the name of the model inside of it.
    pub bare_towers: bool,
    /// Layers stay floats that are quantized by default.
    pub kept_layers: bool,
    /// Several query heads share a key/value head.
    pub grouped_heads: bool,
    /// Width of the feed-forward network as a multiple of the hidden size, if it is one in every block.
    pub mlp_ratio: Option<usize>,
    /// What config.json states, by key.
    pub stated: BTreeMap<String, Value>,
    /// The quantization of attention.
    pub attention: AttentionScheme,
    /// What is rotated while the model runs.
    pub rotations: RotationFacts,
}

/// The loaders of plain floats.
const OF_FLOATS: &str = "all loaders of float models";

/// The loaders of plain floats of an architecture that is not known.
const OF_ARCHITECTURE: &str = "loaders of float models that have its architecture";

/// The loader of a component of a pipeline with plain floats.
const OF_FLOAT_COMPONENTS: &str = "diffusers AutoModel";

/// A language model that no loader stumbles over.
const DENSE: ModelTraits = ModelTraits {
    family: Some("llama"),
    lacks_model_type: false,
    wrapper: None,
    untied_section: false,
    separate_head: false,
    quantized_head: false,
    foreign_class: false,
    foreign_names: false,
    component: false,
    other_modalities: false,
    experts: false,
    fused_experts: false,
    kept_experts: false,
    kept_shared_experts: false,
    dense_blocks: false,
    quantized_routers: false,
    shaped_codes: false,
    quantized_biases: false,
    channel_biases: false,
    quantized_towers: false,
    packed_towers: false,
    uneven_towers: false,
    whole_experts: false,
    expert_schemes: ExpertSchemes::Alike,
    bf16: true,
    float32: false,
    listed_siblings: false,
    mixed_windows: false,
    bare_towers: false,
    kept_layers: false,
    grouped_heads: false,
    mlp_ratio: None,
    stated: BTreeMap::new(),
    attention: AttentionScheme { rotary: Rotary::Before, key_value: None, query: None, probabilities: None },
    rotations: RotationFacts { inputs: false, experts: false, biases: false, others: false, channels: 0 },
};

/// A layer of sizes that fit.
const WHOLE: ShardShape = ShardShape { rows: 256, columns: 256, fused_rows: Some(256), is_cut: false };

impl OutputFormat {
    /// What loads it, schemes permitting: `Plan::loaders` of `kvant_checkpoint::plan` tells which takes a given plan.
    pub fn loaders(self) -> Vec<&'static str> {
        match self.method() {
            Some(method) => {
                known_loaders().iter().filter_map(|loader| loader.of_method(method)).map(|(name, _)| name).collect()
            }
            None => vec![OF_FLOATS],
        }
    }

    /// What loads a dense language model in bf16 whose layers have this scheme, and sizes that fit.
    pub fn loaders_of(self, scheme: LayerScheme) -> Vec<&'static str> {
        loaders(self, &DENSE, [(scheme, WHOLE)].into_iter())
    }
}

/// The loaders that are known to take all of a model's layers. Of architectures without a description nothing is known
/// but that plain floats load as before.
pub fn loaders(
    format: OutputFormat,
    model: &ModelTraits,
    layers: impl Iterator<Item = (LayerScheme, ShardShape)>,
) -> Vec<&'static str> {
    let Some(method) = method(format, model) else {
        return match (model.component, model.lacks_model_type) {
            (true, _) => vec![OF_FLOAT_COMPONENTS],
            (false, true) => Vec::new(),
            (false, false) if model.family.is_none() => vec![OF_ARCHITECTURE],
            (false, false) => vec![OF_FLOATS],
        };
    };
    let opinions = opinions(format, method, model, layers).into_iter();
    opinions.filter(|opinion| opinion.is_known && opinion.refusal.is_none()).map(|opinion| opinion.loader).collect()
}

/// The name of a format in the rules. Plain floats are judged by them only where experts were split: elsewhere they load wherever the
/// source does.
fn method(format: OutputFormat, model: &ModelTraits) -> Option<&'static str> {
    format.method().or(model.fused_experts.then_some(FLOAT_METHOD))
}

/// A loader that does not take a model, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderRefusal {
    /// The name of the loader.
    pub loader: &'static str,
    /// The first of its reasons.
    pub reason: String,
}

/// The refusals of all loaders that read the format, if none is known to take the model: those that were not tried with it count as such.
/// Of models without a description it is not known what loaders make of them, and neither of those with names of their own, unless
/// config.json contradicts itself too.
pub fn refusals(
    format: OutputFormat,
    model: &ModelTraits,
    layers: impl Iterator<Item = (LayerScheme, ShardShape)>,
) -> Vec<LoaderRefusal> {
    let is_described = model.family.is_some() && (model.foreign_class || !model.foreign_names);
    let is_judged = is_described || model.component || model.shaped_codes;
    let Some(method) = method(format, model).filter(|_| is_judged) else { return Vec::new() };
    let refusal = |Opinion { loader, is_known, refusal }: Opinion| {
        let untried = || (!is_known).then(|| "not tried with this architecture".to_owned());
        Some(LoaderRefusal { loader, reason: refusal.or_else(untried)? })
    };
    opinions(format, method, model, layers).into_iter().map(refusal).collect::<Option<_>>().unwrap_or_default()
}

/// What the rules of a loader that reads a format say of a model.
struct Opinion {
    loader: &'static str,
    /// Whether it is known which models of the architecture it loads.
    is_known: bool,
    refusal: Option<String>,
}

fn opinions(
    format: OutputFormat,
    method: &'static str,
    model: &ModelTraits,
    layers: impl Iterator<Item = (LayerScheme, ShardShape)>,
) -> Vec<Opinion> {
    // Quantized queries are stored as outputs of their layers.
    let has_outputs = model.attention.query.is_some();
    let facts_of = |scheme: LayerScheme| {
        let layer = LayerFacts::of_scheme(scheme).stored_in(format);
        LayerFacts { output: layer.output || has_outputs, ..layer }
    };
    let layers: Vec<(LayerFacts, ShardShape)> = layers.map(|(scheme, extent)| (facts_of(scheme), extent)).collect();
    let facts = ModelFacts::of_traits(model).with_layers(layers.iter().map(|(layer, _)| layer));
    let of_layer = |layout, (layer, extent): &(LayerFacts, ShardShape)| {
        refusal(layout, layer, &facts).or_else(|| size_refusal(layout, layer, *extent))
    };
    let opinion = |loader: &'static Loader| {
        let (name, layout) = loader.of_method(method)?;
        let of_model = loader.model_refusals(&facts).next().map(|(_, reason)| reason.to_owned());
        let of_floats = || file_refusal(layout, &facts).filter(|_| method == FLOAT_METHOD);
        let of_shaped = || layout.shaped.clone().filter(|_| model.shaped_codes);
        let of_biases = || {
            let of_channels = || layout.channel_biases.clone().filter(|_| model.channel_biases);
            layout.biases.clone().filter(|_| model.quantized_biases).or_else(of_channels)
        };
        let refusal = of_model
            .or_else(of_floats)
            .or_else(of_shaped)
            .or_else(of_biases)
            .or_else(|| layers.iter().find_map(|layer| of_layer(layout, layer)));
        let newer = layers.iter().find_map(|(layer, _)| newer_refusal(layout, layer, &facts));
        let name = newer.map_or(name, |newer| newer.name.as_str());
        Some(Opinion { loader: name, is_known: loader.knows(&facts), refusal })
    };
    // Those of components have no opinion on the floats of a model.
    let is_asked = |loader: &&Loader| method != FLOAT_METHOD || loader.takes_components() == model.component;
    known_loaders().iter().filter(is_asked).filter_map(opinion).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_quant::scheme::{KvCacheScheme, MinScale};

    fn mixture() -> ModelTraits {
        ModelTraits { experts: true, ..DENSE }
    }

    fn found(format: OutputFormat, text: &str, model: ModelTraits) -> Vec<&'static str> {
        loaders(format, &model, [(text.parse().unwrap(), WHOLE)].into_iter())
    }

    #[test]
    fn what_no_loader_reads_is_refused_whatever_the_architecture() {
        let shaped = ModelTraits { family: None, shaped_codes: true, ..DENSE };
        let layers = || [("int8:channel".parse().unwrap(), WHOLE)].into_iter();
        let found = refusals(OutputFormat::QUARK, &shaped, layers());
        assert!(!found.is_empty() && found.iter().all(|refusal| refusal.reason.contains("convolutions")), "{found:?}");
        assert!(refusals(OutputFormat::QUARK, &ModelTraits { shaped_codes: false, ..shaped }, layers()).is_empty());
        let torchao = OutputFormat::Checkpoint(crate::format::FormatHandle::TORCHAO);
        assert!(!found_in(torchao, DENSE).is_empty());
        assert!(found_in(torchao, ModelTraits { other_modalities: true, ..DENSE }).is_empty());
    }

    fn found_in(format: OutputFormat, model: ModelTraits) -> Vec<&'static str> {
        found(format, "int8:channel", model)
    }

    #[test]
    fn several_schemes_count_where_loaders_find_one() {
        let fp8 = "e4m3:channel+e4m3:channel!dynamic";
        let loads = |loader: &str, format, model: &ModelTraits, schemes: [&str; 2]| {
            let layers = schemes.into_iter().map(|scheme| (scheme.parse().unwrap(), WHOLE));
            loaders(format, model, layers).contains(&loader)
        };
        let of = |family| ModelTraits { family: Some(family), ..DENSE };
        for (loader, format, model, second) in [
            ("vLLM", OutputFormat::GPTQ, of("nemotron_h"), "int8:g128"),
            ("vLLM", OutputFormat::COMPRESSED_TENSORS, of("falcon_h1"), "int8:channel"),
            ("SGLang", OutputFormat::GPTQ, of("gpt_neox"), "int8:g128"),
            ("SGLang", OutputFormat::COMPRESSED_TENSORS, mixture(), fp8),
        ] {
            assert!(loads(loader, format, &model, ["int4:g128", "int4:g128"]), "{loader} {model:?}");
            assert!(!loads(loader, format, &model, ["int4:g128", second]), "{loader} {model:?}");
        }
        assert!(loads("SGLang", OutputFormat::COMPRESSED_TENSORS, &mixture(), ["int4:g128", "int8:channel"]));
    }

    #[test]
    fn models_around_a_language_model_count() {
        let within = |wrapper: &str| ModelTraits { wrapper: Some(wrapper.into()), other_modalities: true, ..DENSE };
        let packed = |model| found(OutputFormat::COMPRESSED_TENSORS, "int4:g128", model);
        assert!(packed(within("mistral3")).contains(&"SGLang"));
        assert!(!packed(within("internvl")).contains(&"SGLang") && packed(within("internvl")).contains(&"vLLM"));
        assert!(!packed(within("never_tried")).contains(&"SGLang"));
        assert!(!packed(ModelTraits { untied_section: true, ..within("mistral3") }).contains(&"SGLang"));
        let mlx = OutputFormat::Checkpoint(crate::format::FormatHandle::MLX);
        assert_eq!(found(mlx, "int4:g64", within("llava")), ["mlx-lm"]);
        assert!(found(mlx, "int4:g64", within("internvl")).is_empty());
    }

    #[test]
    fn caches_count_where_transformers_reads_no_scales_of_them() {
        let fp8 = KvCacheScheme { scheme: "e4m3:tensor!static".parse().unwrap(), min_scale: MinScale::default() };
        let cached = |family| {
            let attention = AttentionScheme { key_value: Some(fp8), ..DENSE.attention };
            let model = ModelTraits { family: Some(family), attention, ..DENSE };
            found(OutputFormat::COMPRESSED_TENSORS, "e4m3:tensor+e4m3:tensor!static", model)
        };
        let transformers = "transformers with compressed-tensors";
        assert!(cached("llama").contains(&transformers));
        assert!(!cached("opt").contains(&transformers) && !cached("gpt_neox").contains(&transformers));
    }

    #[test]
    fn models_that_newer_versions_refuse_name_the_version_that_loads_them() {
        let gated = |value: Option<bool>| {
            let stated = value.map(|value| ("use_swiglu_ffn".to_owned(), Value::Bool(value)));
            let model = ModelTraits { family: Some("dinov2"), stated: stated.into_iter().collect(), ..DENSE };
            found(OutputFormat::COMPRESSED_TENSORS, "e4m3:channel+e4m3:channel!dynamic", model)
        };
        assert_eq!(gated(None), ["transformers 5.16 with compressed-tensors"]);
        assert_eq!(gated(Some(false)), ["transformers 5.16 with compressed-tensors"]);
        assert_eq!(gated(Some(true)), ["transformers with compressed-tensors"]);
        let vit = ModelTraits { family: Some("vit"), ..DENSE };
        assert_eq!(
            found(OutputFormat::COMPRESSED_TENSORS, "e4m3:channel+e4m3:channel!dynamic", vit),
            ["transformers with compressed-tensors"]
        );
    }

    #[test]
    fn shard_sizes_count_as_for_finished_checkpoints() {
        let fp8 = |extent: ShardShape| {
            let scheme = "e4m3:b128x128+e4m3:g128!dynamic".parse().unwrap();
            loaders(OutputFormat::COMPRESSED_TENSORS, &DENSE, [(scheme, extent)].into_iter())
        };
        assert_eq!(fp8(WHOLE), ["transformers with compressed-tensors", "vLLM", "SGLang"]);
        assert_eq!(
            fp8(ShardShape { rows: 32, fused_rows: Some(32), ..WHOLE }),
            ["transformers with compressed-tensors"]
        );
        // Stored with its siblings, as Phi-3 has them.
        let narrow = ShardShape { rows: 1024, fused_rows: Some(64), ..WHOLE };
        assert_eq!(fp8(narrow), ["transformers with compressed-tensors"]);
        assert_eq!(fp8(ShardShape { rows: 32, fused_rows: None, ..WHOLE }), fp8(WHOLE));
        assert!(fp8(ShardShape { columns: 200, fused_rows: None, ..WHOLE }).is_empty());
    }

    #[test]
    fn every_preset_loads_somewhere_except_the_unreadable_one() {
        for preset in kvant_quant::scheme::PRESETS {
            let scheme = preset.scheme().unwrap();
            let format = match preset.dialect {
                kvant_quant::scheme::Dialect::Quark => OutputFormat::QUARK,
                kvant_quant::scheme::Dialect::CompressedTensors => OutputFormat::COMPRESSED_TENSORS,
            };
            let nobody = preset.name.starts_with("amdfp4_global");
            assert_eq!(loaders(format, &DENSE, [(scheme, WHOLE)].into_iter()).is_empty(), nobody, "{}", preset.name);
        }
    }

    #[test]
    fn engines_read_fp8_caches_but_no_quantized_outputs() {
        let cached = |text: &str| {
            let key_value = Some(KvCacheScheme { scheme: text.parse().unwrap(), min_scale: MinScale::default() });
            ModelTraits { attention: AttentionScheme { key_value, ..AttentionScheme::default() }, ..DENSE }
        };
        let fp8 = found(OutputFormat::QUARK, "e4m3:tensor+e4m3:tensor!static", cached("e4m3:tensor!static"));
        assert_eq!(fp8, found(OutputFormat::QUARK, "e4m3:tensor+e4m3:tensor!static", DENSE));
        let int8 = found(OutputFormat::QUARK, "e4m3:tensor+e4m3:tensor!static", cached("int8:tensor!static"));
        assert_eq!(int8, ["amd-quark", "transformers with amd-quark"]);
        let output = found(OutputFormat::QUARK, "e4m3:tensor+e4m3:tensor!static+e4m3:tensor!static", DENSE);
        assert_eq!(output, ["amd-quark", "transformers with amd-quark"]);
        let query = Some("e4m3:tensor!static".parse().unwrap());
        let queries = ModelTraits { attention: AttentionScheme { query, ..AttentionScheme::default() }, ..DENSE };
        assert_eq!(found(OutputFormat::QUARK, "e4m3:tensor+e4m3:tensor!static", queries.clone()), output);
        let with_tower = ModelTraits { other_modalities: true, ..queries };
        let layers = [("e4m3:tensor+e4m3:tensor!static".parse().unwrap(), WHOLE)].into_iter();
        assert!(refusals(OutputFormat::QUARK, &with_tower, layers).iter().any(|refused| refused.loader == "vLLM"));
    }

    #[test]
    fn towers_without_the_name_of_their_model_are_distinguished_from_published_ones() {
        let is_bare = |tensor: &str| crate::loader_rules::has_bare_towers([tensor].into_iter());
        assert!(is_bare("model.vision_tower.embeddings.patch_embedding.weight"));
        assert!(!is_bare("vision_tower.vision_model.embeddings.patch_embedding.weight"));
        assert!(!is_bare("model.layers.0.mlp.up_proj.weight"));
    }

    #[test]
    fn silently_wrong_loaders_are_not_listed() {
        let quark = |text, model| found(OutputFormat::QUARK, text, model);
        assert!(!quark("e2m1:g16:e4m3:f32", DENSE).contains(&"transformers with amd-quark"));
        assert!(!quark("int4:g128", mixture()).contains(&"transformers with amd-quark"));
        assert!(quark("int4:g128", DENSE).contains(&"transformers with amd-quark"));
        assert!(!quark("int3:channel", DENSE).contains(&"amd-quark"));
        assert!(quark("int4:g128", ModelTraits { family: None, ..DENSE }).is_empty());
        let packed = |text, model| found(OutputFormat::COMPRESSED_TENSORS, text, model);
        assert_eq!(packed("e2m1:g16:e4m3:f32", mixture()), ["vLLM", "SGLang"]);
        assert_eq!(packed("e2m1:g32:e8m0", ModelTraits { bf16: false, ..DENSE }), ["vLLM"]);
        assert_eq!(packed("int4:g128", ModelTraits { kept_experts: true, ..mixture() }), ["vLLM", "SGLang"]);
        let differing = |expert_schemes| ModelTraits { expert_schemes, ..mixture() };
        assert!(packed("int4:g128", differing(ExpertSchemes::Mixed)).is_empty());
        assert_eq!(packed("int4:g128", differing(ExpertSchemes::ByBlock)), ["vLLM", "SGLang"]);
        assert_eq!(found(OutputFormat::GPTQ, "int4:g128", differing(ExpertSchemes::ByBlock)), ["vLLM"]);
        let of_family = |family| ModelTraits { family: Some(family), ..DENSE };
        assert!(packed("int4:g128", of_family("mamba")).is_empty());
        assert_eq!(
            packed("e4m3:channel+e4m3:channel!dynamic", of_family("mamba")),
            ["transformers with compressed-tensors"]
        );
        // Nobody tried.
        assert!(!packed("int4:g128", of_family("axk1")).contains(&"vLLM"));
        let fused = ModelTraits { family: Some("gpt_oss"), fused_experts: true, ..mixture() };
        assert!(packed("int4:g128", fused.clone()).is_empty());
        assert_eq!(quark("e2m1:g32:e8m0", fused.clone()), ["amd-quark"]);
        // Its class finds experts one by one too.
        let latent = ModelTraits { family: Some("mistral4"), ..fused };
        assert_eq!(packed("e4m3:channel+e4m3:channel!dynamic", latent), ["vLLM"]);
        let whole = ModelTraits { whole_experts: true, ..mixture() };
        assert_eq!(packed("int4:g128", whole), ["transformers with compressed-tensors"]);
        let windows = ModelTraits { mixed_windows: true, ..of_family("qwen2") };
        assert_eq!(packed("int4:g128", windows), ["transformers with compressed-tensors", "SGLang"]);
        let dense = ModelTraits { dense_blocks: true, experts: true, ..of_family("qwen3_moe") };
        assert!(
            !packed("int4:g128", dense.clone()).contains(&"SGLang") && packed("int4:g128", dense).contains(&"vLLM")
        );
        let tower = ModelTraits { bare_towers: true, other_modalities: true, ..of_family("gemma3") };
        assert!(["vLLM", "SGLang"].iter().all(|loader| !packed("int4:g128", tower.clone()).contains(loader)));
        assert!(packed("int4:g128", ModelTraits { bare_towers: false, ..tower }).contains(&"vLLM"));
        let states =
            |keys: &[(&str, Value)]| keys.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        let stating = |family, keys: &[_]| ModelTraits { stated: states(keys), ..of_family(family) };
        assert!(!packed("int4:g128", stating("deepseek_v2", &[("moe_layer_freq", 1.into())])).contains(&"SGLang"));
        assert!(
            packed(
                "int4:g128",
                stating("deepseek_v2", &[("moe_layer_freq", 1.into()), ("scoring_func", "softmax".into())])
            )
            .contains(&"SGLang")
        );
        assert!(!packed("int4:g128", stating("llama", &[("mlp_bias", true.into())])).contains(&"SGLang"));
        assert!(packed("int4:g128", stating("llama", &[("mlp_bias", false.into())])).contains(&"SGLang"));
        let pattern = |value: Value| packed("int4:g128", stating("exaone4", &[("sliding_window_pattern", value)]));
        assert!(!pattern(4.into()).contains(&"SGLang") && pattern("LLLG".into()).contains(&"SGLang"));
        assert!(!packed("int4:g128", stating("stablelm", &[("qk_layernorm", true.into())])).contains(&"vLLM"));
        let kept = ModelTraits { kept_layers: true, ..of_family("opt") };
        assert!(!packed("e4m3:channel+e4m3:channel!dynamic", kept).contains(&"SGLang"));
        let siblings = ModelTraits { listed_siblings: true, ..of_family("gptj") };
        assert!(!packed("e4m3:channel+e4m3:channel!dynamic", siblings).contains(&"vLLM"));
        let phi = ModelTraits { mlp_ratio: Some(4), ..of_family("phi") };
        assert!(packed("int4:g128", phi.clone()).contains(&"SGLang"));
        assert!(!packed("int4:g128", ModelTraits { mlp_ratio: Some(2), ..phi.clone() }).contains(&"SGLang"));
        assert!(!packed("int4:g128", ModelTraits { grouped_heads: true, ..phi }).contains(&"SGLang"));
        let shared = ModelTraits { experts: true, ..of_family("glm4_moe_lite") };
        let fp8 = "e4m3:channel+e4m3:channel!dynamic";
        assert!(quark(fp8, shared.clone()).contains(&"SGLang"));
        assert!(!quark(fp8, ModelTraits { kept_shared_experts: true, ..shared }).contains(&"SGLang"));
        for (family, format) in
            [("bloom", OutputFormat::GPTQ), ("glm4", OutputFormat::GPTQ), ("bloom", OutputFormat::AWQ)]
        {
            assert!(!found(format, "uint4:g128", of_family(family)).contains(&"vLLM"), "{family} in {format}");
        }
        let listed = ModelTraits { listed_siblings: true, ..DENSE };
        assert_eq!(packed("int4:g128", listed), ["transformers with compressed-tensors", "vLLM"]);
        let biased = ModelTraits { family: Some("opt"), float32: true, bf16: false, ..DENSE };
        assert_eq!(packed("int4:g128", biased), ["transformers with compressed-tensors", "vLLM"]);
        let mixtral = ModelTraits { family: Some("mixtral"), ..mixture() };
        assert!(
            quark("e2m1:g32:e8m0", mixture()).contains(&"vLLM") && !quark("e2m1:g32:e8m0", mixtral).contains(&"vLLM")
        );
        assert_eq!(packed("int4:g32+e4m3:channel!dynamic", DENSE), ["transformers with compressed-tensors"]);
        assert_eq!(packed("e2m3:g32:e8m0", DENSE), ["transformers with compressed-tensors"]);
        assert_eq!(found(OutputFormat::GPTQ, "int4:g128", DENSE), ["transformers with gptqmodel", "vLLM", "SGLang"]);
        assert!(!found(OutputFormat::FP8, "e4m3:tensor", DENSE).contains(&"transformers"));
        assert_eq!(found(OutputFormat::PlainFloats, "mx9", ModelTraits { family: None, ..mixture() }).len(), 1);
    }
}
