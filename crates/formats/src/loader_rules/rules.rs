//! The table of loaders in `loader_rules.toml`, and its conditions. Not their evaluation.

use super::facts::{Attention, ExpertSchemes, GgufFacts, LayerFacts, ModelFacts, Scale, Sharing, When};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashSet;
use std::sync::LazyLock;

static RULES: LazyLock<Rules> = LazyLock::new(|| parse(TEXT).unwrap_or_default());

const TEXT: &str = include_str!("loader_rules.toml");

fn parse(text: &str) -> Result<Rules, toml::de::Error> {
    toml::from_str(text)
}

/// Every loader that is known, in the order of the table.
pub fn loaders() -> &'static [Loader] {
    &RULES.loader
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rules {
    loader: Vec<Loader>,
}

/// A program that loads models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Loader {
    /// Its name in `--for`.
    pub id: String,
    /// Its name in tables.
    pub name: String,
    /// The version that the rules were read from.
    pub version: String,
    /// The source of the rules.
    pub source: String,
    /// Models that are refused, whatever the layout.
    #[serde(default)]
    refuse: Vec<ModelRefusal>,
    /// Families that it was not tried with, or could not be: whether it loads them is not known.
    #[serde(default)]
    untried: Vec<String>,
    /// The models around a language model of another family, such as `llava`, that it was tried with; empty where others are known too.
    #[serde(default, rename = "tried-wrappers")]
    tried_wrappers: Vec<String>,
    /// Whether it loads components of diffusers pipelines, of any architecture.
    #[serde(default)]
    components: bool,
    /// Whether it takes any model in its layouts, since nothing else is written so.
    #[serde(default, rename = "any-model")]
    any_model: bool,
    /// Its input.
    pub layout: Vec<Layout>,
}

impl Loader {
    /// Its name in plans as loader of a layout, and the rules; `None` if it does not read the layout.
    pub(crate) fn of_method(&self, method: &str) -> Option<(&str, &Layout)> {
        let layout = self.layout.iter().find(|layout| layout.method == method)?;
        Some((layout.name.as_deref().unwrap_or(&self.name), layout))
    }

    /// Returns whether it is known which models of this architecture it loads.
    pub(crate) fn knows(&self, model: &ModelFacts) -> bool {
        let is_untried = self.untried.iter().any(|family| Some(family.as_str()) == model.family)
            || !self.tried_wrappers.is_empty()
                && model.wrapper.as_ref().is_some_and(|wrapper| !self.tried_wrappers.contains(wrapper));
        if self.any_model {
            return true;
        }
        if model.component { self.components } else { model.described && !model.foreign_names && !is_untried }
    }

    /// Returns whether it loads components of diffusers pipelines.
    pub(crate) fn takes_components(&self) -> bool {
        self.components
    }

    /// The places and reasons of a model that is refused, whatever its layers are.
    pub(crate) fn model_refusals<'s>(&'s self, model: &'s ModelFacts) -> impl Iterator<Item = (&'s str, &'s str)> {
        let holding = self.refuse.iter().filter(|refusal| refusal.when.holds_for_model(model));
        holding.map(|refusal| (refusal.place.as_str(), refusal.reason.as_str()))
    }

    /// The reasons to refuse layers and models in a layout, each once.
    pub fn refusals<'s>(&'s self, layout: &'s Layout) -> Vec<&'s str> {
        // The rules are about checkpoints, and not about GGUF files.
        let of_models = self.refuse.iter().filter(|_| layout.method != "gguf").map(|refusal| refusal.reason.as_str());
        let limits = layout.limit.iter().filter(|limit| limit.hard).map(|limit| limit.reason.as_str());
        let newer = layout.newer.iter().map(|refusal| refusal.reason.as_str());
        let of_layout = layout.refuse.iter().map(|refusal| refusal.reason.as_str()).chain(newer).chain(limits);
        let mut known = HashSet::new();
        of_models.chain(of_layout).filter(|reason| known.insert(*reason)).collect()
    }
}

/// A layout that a loader reads.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Layout {
    /// `quant_method` of config.json; `float` without one, `gguf` and `onnx` for such files.
    pub method: String,
    /// The name of the loader of this layout in plans.
    #[serde(default)]
    pub(super) name: Option<String>,
    /// Packages that must be installed with the loader.
    #[serde(default)]
    pub needs: Option<String>,
    /// The schemes that are taken, in words.
    #[serde(default)]
    pub knows: Option<String>,
    /// A layer must be one of these; empty where every layer will do.
    #[serde(default)]
    pub(super) take: Vec<Condition>,
    /// A layer or a model must be none of these.
    #[serde(default)]
    pub(super) refuse: Vec<Refusal>,
    /// What newer versions refuse.
    #[serde(default)]
    pub(super) newer: Vec<NewerRefusal>,
    /// Why convolutions and embeddings whose weights are codes are refused.
    #[serde(default)]
    pub(super) shaped: Option<String>,
    /// Why biases that are codes are refused.
    #[serde(default)]
    pub(super) biases: Option<String>,
    /// Why biases that are codes with a scale for each value are refused.
    #[serde(default)]
    pub(super) channel_biases: Option<String>,
    /// Whether routers and heads must be listed as not quantized.
    #[serde(default)]
    pub(super) names_routers: bool,
    /// Whether models are not split over devices in which inputs are rotated.
    #[serde(default)]
    pub(super) whole_rotations: bool,
    /// Sizes of shards.
    #[serde(default)]
    pub(crate) limit: Vec<Limit>,
}

/// A condition under which a layer or a model is refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Refusal {
    pub when: Condition,
    pub reason: String,
}

/// A condition under which a newer version than that of the rules refuses a layer or a model.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NewerRefusal {
    pub when: Condition,
    /// The name of the loader in plans of such models, with the version that loads them.
    pub name: String,
    /// The reason, with the version that refuses.
    pub reason: String,
}

/// A condition under which a model is refused in every layout.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelRefusal {
    when: Condition,
    /// What of the model is to blame.
    place: String,
    reason: String,
}

/// Sizes of the shards of a weight.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Limit {
    when: Condition,
    /// Of what the output channels of a shard must be a multiple.
    #[serde(default)]
    pub out_multiple: Option<usize>,
    /// Of what its input channels must be.
    #[serde(default)]
    pub in_multiple: Option<usize>,
    /// Whether blocks must divide the output channels of a shard.
    #[serde(default)]
    pub out_block: bool,
    /// Whether they must divide its input channels.
    #[serde(default)]
    pub in_block: bool,
    /// Whether groups of inputs must divide its input channels.
    #[serde(default)]
    pub in_group: bool,
    /// Whether the loader refuses other sizes; else it is slow with them.
    #[serde(default = "yes")]
    pub hard: bool,
    pub reason: String,
}

fn yes() -> bool {
    true
}

impl Limit {
    /// Returns whether it is for this layer.
    pub fn is_for(&self, layer: &LayerFacts) -> bool {
        self.when.holds_for_layer(layer)
    }
}

/// All that is given must hold.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub(super) struct Condition {
    weight: Vec<String>,
    scale: Vec<Scale>,
    sharing: Vec<Sharing>,
    group: Vec<usize>,
    input: Vec<String>,
    timing: Vec<When>,
    scale_name: Vec<String>,
    zero_points: Option<bool>,
    has_input: Option<bool>,
    output: Option<bool>,
    act_order: Option<bool>,
    attention: Vec<Attention>,
    family: Vec<String>,
    family_other_than: Vec<String>,
    wrapper: Vec<String>,
    wrapper_other_than: Vec<String>,
    untied_section: Option<bool>,
    separate_head: Option<bool>,
    quantized_head: Option<bool>,
    experts: Option<bool>,
    fused_experts: Option<bool>,
    kept_experts: Option<bool>,
    kept_shared_experts: Option<bool>,
    dense_blocks: Option<bool>,
    quantized_routers: Option<bool>,
    whole_experts: Option<bool>,
    mixed_experts: Option<bool>,
    experts_by_block: Option<bool>,
    model_type: Option<bool>,
    foreign_class: Option<bool>,
    foreign_names: Option<bool>,
    component: Option<bool>,
    other_modalities: Option<bool>,
    quantized_towers: Option<bool>,
    packed_towers: Option<bool>,
    uneven_towers: Option<bool>,
    bf16: Option<bool>,
    float32: Option<bool>,
    listed_siblings: Option<bool>,
    mixed_windows: Option<bool>,
    bare_towers: Option<bool>,
    kept_layers: Option<bool>,
    grouped_heads: Option<bool>,
    mlp_ratio_other_than: Option<usize>,
    several_schemes: Option<bool>,
    several_kinds: Option<bool>,
    lacks: Vec<String>,
    sets: Vec<String>,
    unset: Vec<String>,
    numbers: Vec<String>,
    probabilities: Option<bool>,
    rotated_inputs: Option<bool>,
    rotated_experts: Option<bool>,
    rotated_biases: Option<bool>,
    other_rotations: Option<bool>,
    rotates_over: Option<usize>,
    architecture: Vec<String>,
    scaled_rope: Option<bool>,
    gguf_name: Option<bool>,
    gguf_parts: Option<bool>,
    has: Vec<String>,
    states: Option<Stated>,
}

/// A number that a GGUF file states, and it is not this one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Stated {
    key: String,
    other_than: f64,
}

impl Stated {
    /// The largest difference, as a share of the number, that storing it in 32 bits makes.
    const ROUNDED: f64 = 1e-6;

    fn holds(&self, file: &GgufFacts) -> bool {
        let differs = |found: f64| (found - self.other_than).abs() > Self::ROUNDED * self.other_than.abs();
        file.numbers.get(&self.key).copied().is_some_and(differs)
    }
}

impl Condition {
    /// Returns whether it holds for a layer of a model.
    pub fn holds(&self, layer: &LayerFacts, model: &ModelFacts) -> bool {
        self.holds_for_layer(layer) && self.holds_for_model(model)
    }

    fn holds_for_layer(&self, layer: &LayerFacts) -> bool {
        let input = layer.input.as_ref();
        one_of(&self.weight, Some(&layer.element))
            && one_of(&self.scale, Some(&layer.scale))
            && one_of(&self.sharing, Some(&layer.sharing))
            && one_of(&self.group, layer.group.as_ref())
            && one_of(&self.input, input.map(|(element, _)| element))
            && one_of(&self.timing, input.map(|(_, timing)| timing))
            && one_of(&self.scale_name, layer.scale_name.as_ref())
            && is(self.zero_points, layer.zero_points)
            && is(self.has_input, input.is_some())
            && is(self.output, layer.output)
            && is(self.act_order, layer.act_order)
    }

    /// What of a model it is about, if it says nothing of layers.
    pub fn part_of_model(&self) -> Option<&'static str> {
        let lists = self.weight.is_empty()
            && self.scale.is_empty()
            && self.sharing.is_empty()
            && self.group.is_empty()
            && self.input.is_empty()
            && self.timing.is_empty()
            && self.scale_name.is_empty();
        let flags = [self.zero_points, self.has_input, self.output, self.act_order];
        let kept = [self.kept_experts, self.kept_shared_experts, self.whole_experts, self.quantized_routers];
        let kept = kept.into_iter().chain([self.rotated_experts]).collect::<Vec<_>>();
        let experts = [self.experts, self.fused_experts, self.mixed_experts, self.experts_by_block];
        let part = if experts.iter().chain(&kept).any(|holds| *holds == Some(true)) { "experts" } else { "model" };
        (lists && flags.iter().all(Option::is_none)).then_some(part)
    }

    /// Returns whether what it says of a model holds.
    pub fn holds_for_model(&self, model: &ModelFacts) -> bool {
        let (architecture, family) = (model.architecture.map(str::to_owned), model.family.map(str::to_owned));
        one_of(&self.attention, Some(&model.attention))
            && one_of(&self.family, family.as_ref())
            && (self.family_other_than.is_empty()
                || family.as_ref().is_some_and(|family| !self.family_other_than.contains(family)))
            && one_of(&self.wrapper, model.wrapper.as_ref())
            && (self.wrapper_other_than.is_empty()
                || model.wrapper.as_ref().is_some_and(|wrapper| !self.wrapper_other_than.contains(wrapper)))
            && is(self.untied_section, model.untied_section)
            && is(self.separate_head, model.separate_head)
            && is(self.quantized_head, model.quantized_head)
            && one_of(&self.architecture, architecture.as_ref())
            && (self.has.is_empty() || self.has.iter().any(|tensor| model.file.tensors.contains(tensor)))
            && self.states.as_ref().is_none_or(|stated| stated.holds(&model.file))
            && is(self.scaled_rope, model.scaled_rope)
            && is(self.gguf_name, model.file.is_named)
            && is(self.gguf_parts, model.file.is_part)
            && is(self.experts, model.experts)
            && is(self.fused_experts, model.fused_experts)
            && is(self.kept_experts, model.kept_experts)
            && is(self.kept_shared_experts, model.kept_shared_experts)
            && is(self.dense_blocks, model.dense_blocks)
            && is(self.quantized_routers, model.quantized_routers)
            && is(self.whole_experts, model.whole_experts)
            && is(self.mixed_experts, model.expert_schemes == ExpertSchemes::Mixed)
            && is(self.experts_by_block, model.expert_schemes == ExpertSchemes::ByBlock)
            && is(self.model_type, !model.lacks_model_type)
            && is(self.foreign_class, model.foreign_class)
            && is(self.foreign_names, model.foreign_names)
            && is(self.component, model.component)
            && is(self.other_modalities, model.other_modalities)
            && is(self.quantized_towers, model.quantized_towers)
            && is(self.packed_towers, model.packed_towers)
            && is(self.uneven_towers, model.uneven_towers)
            && is(self.bf16, model.bf16)
            && is(self.float32, model.float32)
            && is(self.listed_siblings, model.listed_siblings)
            && is(self.mixed_windows, model.mixed_windows)
            && is(self.bare_towers, model.bare_towers)
            && is(self.kept_layers, model.kept_layers)
            && is(self.grouped_heads, model.grouped_heads)
            && self.mlp_ratio_other_than.is_none_or(|ratio| model.mlp_ratio != Some(ratio))
            && is(self.several_schemes, model.several_schemes)
            && is(self.several_kinds, model.several_kinds)
            && (self.lacks.is_empty() || self.lacks.iter().any(|key| !model.stated.contains_key(key)))
            && self.sets.iter().all(|key| model.stated.get(key) == Some(&Value::Bool(true)))
            && self.unset.iter().all(|key| model.stated.get(key) != Some(&Value::Bool(true)))
            && self.numbers.iter().all(|key| model.stated.get(key).is_some_and(Value::is_number))
            && is(self.probabilities, model.probabilities)
            && is(self.rotated_inputs, model.rotations.inputs)
            && is(self.rotated_experts, model.rotations.experts)
            && is(self.rotated_biases, model.rotations.biases)
            && is(self.other_rotations, model.rotations.others)
            && self.rotates_over.is_none_or(|most| model.rotations.channels > most)
    }
}

/// Returns whether a value is among the requested ones; an empty list accepts any.
fn one_of<T: PartialEq>(wanted: &[T], found: Option<&T>) -> bool {
    wanted.is_empty() || found.is_some_and(|found| wanted.contains(found))
}

fn is(wanted: Option<bool>, found: bool) -> bool {
    wanted.is_none_or(|wanted| wanted == found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::DType;

    #[test]
    fn loader_rules_are_consistent() {
        let rules = parse(TEXT).unwrap();
        let ids: HashSet<&str> = rules.loader.iter().map(|loader| loader.id.as_str()).collect();
        assert_eq!(ids.len(), rules.loader.len());
        for loader in &rules.loader {
            assert!(!loader.version.is_empty() && !loader.source.is_empty(), "{}", loader.id);
            let methods: HashSet<&str> = loader.layout.iter().map(|layout| layout.method.as_str()).collect();
            assert_eq!(methods.len(), loader.layout.len(), "{}", loader.id);
            for layout in &loader.layout {
                // The message of a refused value must list the accepted ones.
                assert!(layout.take.is_empty() || layout.knows.is_some(), "{} {}", loader.id, layout.method);
            }
        }
    }

    #[test]
    fn reasons_of_several_rules_are_listed_once() {
        for (loader, layout) in
            loaders().iter().flat_map(|loader| loader.layout.iter().map(move |layout| (loader, layout)))
        {
            let reasons = loader.refusals(layout);
            let once: HashSet<&str> = reasons.iter().copied().collect();
            assert_eq!(once.len(), reasons.len(), "{} {}", loader.id, layout.method);
            assert!(layout.refuse.iter().all(|refusal| once.contains(refusal.reason.as_str())));
        }
    }

    #[test]
    fn format_names_in_rules_are_known() {
        let rules = parse(TEXT).unwrap();
        let layouts = rules.loader.iter().flat_map(|loader| &loader.layout);
        let conditions = layouts.flat_map(|layout| {
            let refused = layout.refuse.iter().map(|refusal| &refusal.when);
            refused.chain(&layout.take).chain(layout.limit.iter().map(|limit| &limit.when))
        });
        // GPTQ has formats that no scheme of Kvant covers.
        let is_known = |name: &String| name == "uint3" || name.parse::<DType>().is_ok();
        for condition in conditions {
            assert!(condition.weight.iter().chain(&condition.input).all(is_known), "{condition:?}");
        }
    }

    #[test]
    fn families_in_rules_are_described() {
        let rules = parse(TEXT).unwrap();
        let layouts = rules.loader.iter().flat_map(|loader| &loader.layout);
        let of_layouts = layouts.flat_map(|layout| {
            let newer = layout.newer.iter().map(|refusal| &refusal.when);
            layout.refuse.iter().map(|refusal| &refusal.when).chain(newer).flat_map(|when| &when.family)
        });
        let of_models = rules.loader.iter().flat_map(|loader| &loader.refuse).flat_map(|refusal| &refusal.when.family);
        let untried = rules.loader.iter().flat_map(|loader| &loader.untried);
        let names: Vec<&String> = of_layouts.chain(of_models).chain(untried).collect();
        assert!(
            !names.is_empty() && names.iter().all(|name| kvant_model::family::by_name(name).is_some()),
            "{names:?}"
        );
    }

    #[test]
    fn misspelt_rule_conditions_are_refused() {
        let text = |condition: &str| {
            format!(
                "[[loader]]\nid='x'\nname='x'\nversion='1'\nsource='y'\n[[loader.layout]]\nmethod='m'\ntake=[{{ {condition} }}]"
            )
        };
        assert!(parse(&text("weight = ['int4'], has-input = false")).is_ok());
        assert!(parse(&text("weights = ['int4']")).is_err());
        assert!(parse(&text("sharing = ['rows']")).is_err());
    }
}
