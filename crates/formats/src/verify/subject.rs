//! What is checked, gathered once: a checkpoint, its configuration, the model that it is, and what it holds of it.

use super::statement::QuantConfig;
use crate::import::survey::{StoredWeight, Survey, survey};
use crate::import::{StoredActivations, StoredAttention};
use crate::loader_rules::Sharding;
use crate::loader_rules::{
    Attention, ExpertSchemes, LayerFacts, ModelFacts, RotationFacts, Scale, Sharing, finds_whole_experts,
    has_bare_towers, sharing_of,
};
use kvant_container::Checkpoint;
use kvant_model::family::{self, Role};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{LayerKind, Linear, Network, Place, Reason, modality_part};
use kvant_weights::parts::ScaleEncoding;
use serde_json::Value;
use std::collections::{HashMap, HashSet};

/// Everything that checks look at.
#[derive(Debug)]
pub(crate) struct CheckpointView<'a> {
    pub checkpoint: &'a Checkpoint,
    /// config.json as it is; `None` where there is none or it cannot be parsed.
    pub json: Option<Value>,
    /// Why config.json cannot be read.
    pub config_error: Option<String>,
    pub config: ModelConfig,
    pub network: Network,
    pub survey: Survey<'a>,
    pub statement: Option<QuantConfig>,
    pub sharding: Sharding,
    /// Where the weights of the survey stand, by module.
    weights: HashMap<String, usize>,
    failed: HashSet<String>,
}

impl<'a> CheckpointView<'a> {
    /// Returns whether it is a model of a family that reads images or sounds in place of tokens.
    pub fn reads_no_tokens(&self) -> bool {
        let encoder = self.network.family().and_then(|family| family.encoder);
        encoder.is_some_and(|encoder| encoder.images.is_some() || encoder.sounds.is_some() && encoder.decoder.is_none())
    }

    pub fn new(checkpoint: &'a Checkpoint) -> CheckpointView<'a> {
        let (json, error) = match checkpoint.config() {
            Ok(json) => (json, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let read = json.as_ref().map(ModelConfig::from_json).transpose();
        let (config, unread) = match read {
            Ok(config) => (config.unwrap_or_default(), None),
            Err(error) => (ModelConfig::default(), Some(error.to_string())),
        };
        let survey = survey(checkpoint, json.as_ref());
        let network = Network::recognise(&config, &survey.tensors);
        let sharding = Sharding::new(&config, &network, &survey.weights);
        let weights = survey.weights.iter().enumerate().map(|(at, weight)| (weight.module.clone(), at)).collect();
        let failed = survey.problems.iter().map(|problem| problem.module.clone()).collect();
        let statement = QuantConfig::find(checkpoint, json.as_ref());
        let config_error = error.or(unread);
        CheckpointView { checkpoint, json, config_error, config, network, survey, statement, sharding, weights, failed }
    }

    /// The quantized weight of a module.
    pub fn weight(&self, module: &str) -> Option<&StoredWeight<'a>> {
        self.weights.get(module).map(|at| &self.survey.weights[*at])
    }

    /// Returns whether the weight of a module could not be understood.
    pub fn is_unread(&self, module: &str) -> bool {
        self.failed.contains(module)
    }

    /// The linear layers whose weights are floats.
    pub fn float_linears(&self) -> impl Iterator<Item = &Linear> {
        let linears = self.network.linears().iter();
        linears.filter(|linear| self.weight(&linear.module).is_none() && !self.is_unread(&linear.module))
    }

    /// `quant_method`, or `float`.
    pub fn method(&self) -> &str {
        let quantized = !self.survey.weights.is_empty() || !self.survey.problems.is_empty();
        match &self.statement {
            Some(statement) => &statement.method,
            // fp8 weights with scales, without a word of them in config.json.
            None if quantized => "fp8",
            None => "float",
        }
    }

    /// What is known of the quantized layers.
    pub fn layers(&self) -> Vec<(&str, LayerFacts)> {
        let activations: HashMap<&str, &StoredActivations> =
            self.survey.activations.iter().map(|(module, found)| (module.as_str(), found)).collect();
        let facts = self.survey.weights.iter().map(|weight| {
            let found = activations.get(weight.module.as_str());
            let (input, output) = (found.and_then(|f| f.input.as_ref()), found.and_then(|f| f.output.as_ref()));
            // Keys and values on their way into the cache are no outputs of a layer to engines.
            let makes_cache = ["k_proj", "v_proj"].iter().any(|name| weight.module.ends_with(name));
            let output = output.filter(|_| !makes_cache);
            (weight.module.as_str(), self.facts(weight).with_activations(input, output))
        });
        facts.collect()
    }

    /// How a weight is quantized.
    pub fn facts(&self, weight: &StoredWeight<'_>) -> LayerFacts {
        let stated = weight.granularity.map(|granularity| sharing_of(Some(granularity)));
        let stated = stated.or_else(|| self.stated_block(weight));
        let (sharing, group, block) = stated.unwrap_or_else(|| sharing(weight));
        let symmetric = self.statement.as_ref().is_some_and(|stated| stated.is_symmetric(&weight.module));
        LayerFacts {
            element: weight.element.clone(),
            scale: scale(weight),
            sharing,
            group,
            block,
            zero_points: weight.zero_points && !symmetric,
            input: None,
            input_group: None,
            output: false,
            act_order: weight.is_reordered,
            scale_name: scale_name(weight),
        }
    }

    /// Blocks of the size that config.json states, which may be as large as the layer, or larger.
    fn stated_block(&self, weight: &StoredWeight<'_>) -> Option<Shared> {
        let block = crate::format::stated_block(&self.statement.as_ref()?.config)?;
        (weight.tile == block).then_some((Sharing::Block, None, Some(block)))
    }

    /// The quantized layers of towers beside the language model.
    fn tower_weights(&self) -> impl Iterator<Item = &str> {
        let has_towers = self.network.places().contains(&Place::Other(Reason::Modality));
        let modules = self.survey.weights.iter().map(|weight| weight.module.as_str());
        modules.filter(move |module| has_towers && modality_part(module).is_some())
    }

    /// Returns whether layers of towers are quantized in several ways, or some of them are floats.
    fn has_uneven_towers(&self) -> bool {
        let layers = self.network.shaped_layers(&self.survey.tensors);
        let towers = layers.iter().filter(|layer| layer.kind == LayerKind::Tower);
        let mut facts = towers.map(|layer| self.weight(&layer.module).map(|weight| self.facts(weight)));
        let first = facts.next();
        facts.any(|other| Some(other) != first)
    }

    /// The model's properties that cause problems in loaders.
    pub fn model_facts(&self) -> ModelFacts {
        let experts = || self.network.linears().iter().filter(|linear| linear.expert.is_some());
        let fused = !self.network.experts().is_empty();
        let is_float = |dtype: &str| matches!(dtype, "F32" | "F16");
        let floats = || self.survey.plain.iter().map(|(_, view)| view.dtype().to_string());
        let family = family::built_in(&self.config);
        ModelFacts {
            described: family.is_some(),
            family: family.map(|family| family.name),
            wrapper: family::wrapper(&self.config).map(str::to_owned),
            untied_section: self.config.is_untied_by_section,
            separate_head: !self.network.is_tied(),
            quantized_head: self
                .network
                .head()
                .is_some_and(|head| self.weight(&self.network.linear(head).module).is_some()),
            lacks_model_type: self.json.is_some() && self.config.model_types.is_empty(),
            foreign_class: family::conflict(&self.config).is_some(),
            foreign_names: self.network.has_foreign_names(),
            component: self.config.is_component,
            experts: fused || experts().next().is_some(),
            fused_experts: experts().next().is_some() && finds_whole_experts(&self.network),
            quantized_routers: self
                .network
                .linears()
                .iter()
                .any(|linear| linear.role == Role::Router && self.weight(&linear.module).is_some()),
            kept_experts: experts().any(|expert| self.weight(&expert.module).is_none()),
            kept_shared_experts: self.float_linears().any(|linear| linear.is_shared_expert()),
            whole_experts: self.network.experts().iter().any(|experts| self.weight(&experts.module).is_none()),
            expert_schemes: self.expert_schemes(),
            other_modalities: self.network.places().contains(&Place::Other(Reason::Modality)),
            quantized_towers: self.tower_weights().next().is_some(),
            uneven_towers: self.has_uneven_towers(),
            packed_towers: self
                .tower_weights()
                .any(|module| self.checkpoint.tensor(&format!("{module}.weight")).is_none()),
            bf16: !floats().any(|dtype| is_float(&dtype)),
            float32: floats().any(|dtype| dtype == "F32"),
            listed_siblings: self.has_listed_siblings(),
            dense_blocks: self.network.has_dense_blocks(),
            mixed_windows: self.config.has_mixed_windows(),
            kept_layers: self.float_linears().any(|linear| !linear.role.is_kept_by_default()),
            grouped_heads: self.config.has_grouped_heads(),
            mlp_ratio: self.config.mlp_ratio(),
            stated: self.config.stated().clone(),
            bare_towers: has_bare_towers(self.survey.tensors.iter().map(|tensor| tensor.name.as_str())),
            attention: Attention::of(self.attention_schemes()),
            probabilities: self.survey.attention.iter().any(|(_, found)| found.probabilities.is_some()),
            rotations: self.rotations(),
            ..ModelFacts::default()
        }
    }

    /// What is rotated while the model runs.
    fn rotations(&self) -> RotationFacts {
        let linears: HashMap<&str, &Linear> =
            self.network.linears().iter().map(|linear| (linear.module.as_str(), linear)).collect();
        self.survey.rotations.iter().fold(RotationFacts::default(), |facts, (module, rotation)| {
            let linear = linears.get(module.as_str());
            let is_expert = linear.is_some_and(|linear| linear.expert.is_some());
            let has_bias = linear.is_some_and(|linear| linear.bias.is_some());
            facts.with_layer(rotation.size, [is_expert, has_bias, !rotation.is_sylvester])
        })
    }

    /// Returns whether layers that engines fuse must be listed by name.
    fn has_listed_siblings(&self) -> bool {
        let facts: HashMap<&str, LayerFacts> = self.layers().into_iter().collect();
        let alone = |linear: &&Linear| linear.expert.is_none();
        let members = self.network.siblings().iter().flat_map(|group| &group.members);
        let mut fused = members.map(|member| self.network.linear(*member)).filter(alone).peekable();
        let layers = self.network.linears().iter().filter(alone);
        let mut schemes = layers.filter_map(|linear| facts.get(linear.module.as_str()));
        let first = schemes.next();
        let several = schemes.any(|other| Some(other) != first);
        fused.peek().is_some() && (several || fused.any(|linear| self.weight(&linear.module).is_none()))
    }

    /// How the schemes of experts differ.
    fn expert_schemes(&self) -> ExpertSchemes {
        let facts: HashMap<&str, LayerFacts> = self.layers().into_iter().collect();
        let of_expert = |expert: &Linear| {
            let facts = facts.get(expert.module.as_str())?.clone();
            let is_stated = self.weight(&expert.module)?.granularity.is_some();
            Some(if is_stated { facts } else { facts.with_channels_as_groups() })
        };
        let experts = self.network.linears().iter().filter(|linear| linear.expert.is_some());
        let experts = experts.map(|expert| (expert.block, of_expert(expert)));
        // Those of one tensor have one scheme; beside experts that were split they are floats.
        let whole = self.network.experts().iter().filter(|experts| self.weight(&experts.module).is_none());
        ExpertSchemes::of(experts.chain(whole.map(|experts| (Some(experts.block), None))))
    }

    fn attention_schemes(&self) -> Vec<kvant_quant::scheme::ActivationScheme> {
        let of_attention = self.survey.attention.iter().flat_map(|(_, found)| {
            let StoredAttention { query, key, value, probabilities } = found;
            [query, key, value, probabilities].into_iter().flatten().map(|stored| stored.scheme)
        });
        let of_outputs = self
            .survey
            .activations
            .iter()
            .filter(|(module, _)| ["q_proj", "k_proj", "v_proj"].iter().any(|name| module.ends_with(name)));
        let of_outputs = of_outputs.filter_map(|(_, found)| Some(found.output.as_ref()?.scheme));
        of_attention.chain(of_outputs).collect()
    }
}

fn scale(weight: &StoredWeight<'_>) -> Scale {
    match (weight.scales, weight.global_scale) {
        _ if weight.two_stages => Scale::TwoStage,
        (Some(ScaleEncoding::E8m0), _) => Scale::PowerOfTwo,
        (Some(ScaleEncoding::E4m3), _) => Scale::E4m3WithGlobal,
        (Some(ScaleEncoding::E5m3), true) => Scale::E5m3WithGlobal,
        (Some(ScaleEncoding::E5m3), false) => Scale::E5m3,
        _ => Scale::Plain,
    }
}

/// Which weights share a scale, the size of a group, and that of a block.
type Shared = (Sharing, Option<usize>, Option<(usize, usize)>);

fn sharing(weight: &StoredWeight<'_>) -> Shared {
    let (rows, columns) = weight.tile;
    match (rows >= weight.rows, columns >= weight.columns) {
        // A block may be larger than the layer.
        (true, true) if weight.tile == (weight.rows, weight.columns) => (Sharing::Tensor, None, None),
        (_, true) if rows == 1 => (Sharing::Channel, None, None),
        (true, _) if columns == 1 => (Sharing::InputChannel, None, None),
        _ if rows == 1 => (Sharing::Group, Some(columns), None),
        _ if columns == 1 => (Sharing::RowGroup, Some(rows), None),
        _ => (Sharing::Block, None, Some(weight.tile)),
    }
}

/// The last part of the name of the tensor of scales.
fn scale_name(weight: &StoredWeight<'_>) -> Option<String> {
    use kvant_weights::parts::Content;
    let scales = weight.parts.iter().find(|(content, _)| matches!(content, Content::Scales { .. }));
    scales.and_then(|(_, view)| view.name().rsplit('.').next().map(str::to_owned))
}
