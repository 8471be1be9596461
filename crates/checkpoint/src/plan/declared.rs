//! The third stage of a plan: the output's tensors are declared, and layers, kept tensors and places know theirs by number. What is
//! said of the whole is derived from here, and the plan made.

use super::activation_points::{Kin, SiteDraft};
use super::attention::AttentionDrafts;
use super::build::architecture;
use super::draft::{Draft, DraftedLayer, OutputDraft};
use super::error::PlanError;
use super::fingerprint::{fingerprint, source_bytes};
use super::layer::stored_type;
use super::layer_drafts::LayerDrafts;
use super::quantization_config::without_quantization;
use super::recognised::Recognised;
use super::{
    DroppedTensor, KeptTensor, LayerOutput, ParameterTensor, Plan, PlannedActivationPoint, PlannedAttention,
    PlannedLayer, TensorAction, names,
};
use kvant_container::{Checkpoint, Dtype, Layout, TensorDeclaration, TensorView, WeightFiles};
use kvant_formats::format::forget_metadata;
use kvant_formats::format::plain_floats::FakeQuantization;
use kvant_formats::format::tensors::{DescribedLayer, METADATA_KEY, description};
use kvant_formats::loader_rules::{ExpertSchemes, ModelTraits, RotationFacts, finds_whole_experts, has_bare_towers};
use kvant_formats::transcode::FloatType;
use kvant_model::family::{self, Role};
use kvant_model::network::{LayerKind, Linear, Place, Reason};
use kvant_quant::scheme::{Granularity, LayerScheme, TensorScheme};
use kvant_weights::parts::{ParameterPart, Part};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A source whose output's tensors are declared.
pub(super) struct Declared<'a> {
    pub(super) source: Recognised<'a>,
    pub(super) layers: Vec<PlannedLayer>,
    pub(super) attention: Vec<PlannedAttention>,
    pub(super) sites: Vec<PlannedActivationPoint>,
    pub(super) parameter_tensors: Vec<ParameterTensor>,
    pub(super) kept: Vec<KeptTensor>,
    pub(super) dropped: Vec<DroppedTensor>,
    pub(super) declarations: Vec<TensorDeclaration>,
    /// Modules that loaders must not expect quantized.
    pub(super) excluded: Vec<String>,
    /// Whether input channels of layers whose codes are taken over are grouped otherwise than as they stand.
    pub(super) act_order: bool,
    /// Notices for the user, besides those of every plan.
    pub(super) notices: Vec<String>,
}

/// What the output's config.json says of the weights.
pub(super) enum StatedAs {
    /// How they are quantized.
    Quantized,
    /// That they are floats of a type, and how activations are quantized where that is kept.
    Floats { float: FloatType, fake: Option<FakeQuantization> },
}

/// Numbers for tensors of the output, and for places that stand in for one another.
#[derive(Default)]
struct Numbering {
    declarations: Vec<TensorDeclaration>,
    /// The first tensor of those that several matrices share, by its name.
    shared: BTreeMap<String, usize>,
    scale_group: BTreeMap<Kin, usize>,
    parameter_tensors: Vec<ParameterTensor>,
    sites: Vec<PlannedActivationPoint>,
}

impl Numbering {
    fn declare(&mut self, name: String, dtype: Dtype, shape: Vec<usize>) -> usize {
        self.declarations.push(TensorDeclaration::new(name, dtype, shape));
        self.declarations.len() - 1
    }

    /// Declares tensors one after the other, and says where the first is.
    fn declare_all(&mut self, parts: &[Part]) -> usize {
        let first = self.declarations.len();
        self.declarations
            .extend(parts.iter().map(|p| TensorDeclaration::new(p.name.clone(), p.dtype, p.shape.clone())));
        first
    }

    /// The first tensor of a layer, which is declared if no other matrix of the weight has declared it.
    fn tensors_of(&mut self, drafted: &DraftedLayer) -> usize {
        let name = match &drafted.output {
            OutputDraft::Parts { parts, slice: (_, 1) } => return self.declare_all(parts),
            OutputDraft::Parts { parts, .. } => parts.first().map(|part| part.name.clone()).unwrap_or_default(),
            OutputDraft::Values { .. } => drafted.layer.source.tensor.clone(),
        };
        if let Some(first) = self.shared.get(&name) {
            return *first;
        }
        let first = match &drafted.output {
            OutputDraft::Parts { parts, .. } => self.declare_all(parts),
            OutputDraft::Values { dtype, shape, .. } => self.declare(name.clone(), *dtype, shape.clone()),
        };
        self.shared.insert(name, first);
        first
    }

    fn parameters(&mut self, parts: Vec<ParameterPart>) {
        for part in parts {
            let tensor = self.declare(part.name.clone(), part.dtype, part.shape.clone());
            self.parameter_tensors.push(ParameterTensor { part, tensor });
        }
    }

    fn site(&mut self, draft: SiteDraft) {
        let SiteDraft { site, scheme, arithmetic, features, scale_group, shares, min_scale } = draft;
        let next = self.scale_group.len();
        let scale_group = scale_group.map(|scale_group| *self.scale_group.entry(scale_group).or_insert(next));
        self.sites.push(PlannedActivationPoint { site, scheme, arithmetic, features, scale_group, shares, min_scale });
    }
}

impl<'a> Declared<'a> {
    /// Declares the output's tensors in the order of the drafts.
    pub(super) fn new(source: Recognised<'a>, drafts: LayerDrafts) -> Declared<'a> {
        let LayerDrafts { layers: of_layers, attention, rest, act_order, notices } = drafts;
        let AttentionDrafts { blocks, parts, sites } = attention;
        let mut numbering = Numbering::default();
        let (mut layers, mut kept, mut dropped, mut excluded) = (vec![], vec![], vec![], vec![]);
        let mut place = |numbering: &mut Numbering, draft: Draft| match draft {
            Draft::Layer(drafted) => {
                let first = numbering.tensors_of(&drafted);
                let (layer, activations) = drafted.declared(first);
                for activation in activations {
                    numbering.parameters(activation.parts);
                    activation.site.into_iter().for_each(|site| numbering.site(site));
                }
                layers.push(layer);
            }
            Draft::Kept(draft) => {
                let tensor = match &draft.action {
                    TensorAction::Round { parts, .. } if !parts.is_empty() => numbering.declare_all(parts),
                    _ => numbering.declare(draft.name.clone(), draft.dtype, draft.shape.clone()),
                };
                excluded.extend(draft.module.clone());
                kept.push(draft.declared(&source, tensor));
            }
            Draft::Dropped(draft) => dropped.push(draft.named(&source)),
        };
        of_layers.into_iter().for_each(|draft| place(&mut numbering, draft));
        numbering.parameters(parts);
        sites.into_iter().for_each(|site| numbering.site(site));
        rest.into_iter().for_each(|draft| place(&mut numbering, draft));
        let Numbering { declarations, parameter_tensors, sites, .. } = numbering;
        Declared {
            source,
            layers,
            attention: blocks,
            sites,
            parameter_tensors,
            kept,
            dropped,
            declarations,
            excluded,
            act_order,
            notices,
        }
    }

    /// The layers with codes, for the metadata of files.
    fn described(&self) -> impl Iterator<Item = DescribedLayer<'_>> {
        self.layers.iter().filter_map(|layer| {
            let LayerOutput::Parts { parts, .. } = &layer.output else { return None };
            let (shape, scheme) = ((layer.rows, layer.columns), layer.scheme);
            let dtype = stored_type(layer.source.dtype);
            Some(DescribedLayer { name: &layer.name, shape, scheme, parts, dtype })
        })
    }

    /// What the output's format says of tensors in the metadata of files.
    fn metadata_of_format(&self) -> BTreeMap<String, String> {
        let Some(format) = self.source.format.checkpoint() else { return BTreeMap::new() };
        let layers: Vec<DescribedLayer<'_>> = self.described().collect();
        let parts: BTreeSet<&str> =
            layers.iter().flat_map(|layer| layer.parts).map(|part| part.name.as_str()).collect();
        let names = self.declarations.iter().map(|declaration| declaration.name.as_str());
        let others: Vec<&str> = names.filter(|name| !parts.contains(name)).collect();
        format.metadata(&layers, &others)
    }

    /// Known problems of loaders.
    fn traits(&self, has_config: bool) -> ModelTraits {
        let expert = |linear: &Linear| linear.expert.is_some();
        let quantized: BTreeSet<usize> = self.layers.iter().map(|layer| layer.source.position).collect();
        let is_quantized = |tensor: usize| quantized.contains(&self.source.tensors[tensor].position);
        let kept = |linear: &&Linear| expert(linear) && !is_quantized(linear.weight);
        let kept_shared = |linear: &Linear| linear.is_shared_expert() && !is_quantized(linear.weight);
        let stays_float = |linear: &Linear| !is_quantized(linear.weight) && !linear.role.is_kept_by_default();
        let fused = !self.source.network.experts().is_empty();
        ModelTraits {
            family: family::built_in(&self.source.config).map(|family| family.name),
            wrapper: family::wrapper(&self.source.config).map(str::to_owned),
            untied_section: self.source.config.is_untied_by_section,
            separate_head: !self.source.network.is_tied(),
            quantized_head: self
                .source
                .network
                .head()
                .is_some_and(|head| is_quantized(self.source.network.linear(head).weight)),
            lacks_model_type: has_config && self.source.config.model_types.is_empty(),
            foreign_class: family::conflict(&self.source.config).is_some(),
            foreign_names: self.source.network.has_foreign_names(),
            component: self.source.config.is_component,
            other_modalities: self.source.network.places().contains(&Place::Other(Reason::Modality)),
            experts: fused || self.source.network.linears().iter().any(expert),
            fused_experts: self.has_split_experts() && finds_whole_experts(&self.source.network),
            expert_schemes: self.expert_schemes(),
            whole_experts: self.source.network.experts().iter().any(|experts| !is_quantized(experts.weight())),
            quantized_routers: self.layers.iter().any(|layer| layer.role == Role::Router.name()),
            shaped_codes: self.has_shaped_codes(),
            quantized_biases: self.coded_biases().next().is_some(),
            channel_biases: self.coded_biases().any(|(_, scheme)| scheme.granularity() != Some(Granularity::Tensor)),
            quantized_towers: self.has_codes_of(|kind| kind == LayerKind::Tower),
            packed_towers: self.has_packed_towers(),
            uneven_towers: self.has_uneven_towers(),
            kept_experts: self.source.network.linears().iter().any(|linear| kept(&linear)),
            kept_shared_experts: self.source.network.linears().iter().any(kept_shared),
            attention: self.source.recipe.attention(),
            rotations: self.rotations(),
            float32: self.kept.iter().any(|kept| self.declarations[kept.tensor].dtype == Dtype::F32),
            listed_siblings: self.has_listed_siblings(&is_quantized),
            dense_blocks: self.source.network.has_dense_blocks(),
            mixed_windows: self.source.config.has_mixed_windows(),
            kept_layers: self.source.network.linears().iter().any(stays_float),
            grouped_heads: self.source.config.has_grouped_heads(),
            mlp_ratio: self.source.config.mlp_ratio(),
            stated: self.source.config.stated().clone(),
            bare_towers: has_bare_towers(self.source.tensors.iter().map(|tensor| tensor.name.as_str())),
            bf16: self.layers.iter().all(|layer| stored_type(layer.source.dtype) == Dtype::BF16),
        }
    }

    /// What is rotated while the model runs.
    fn rotations(&self) -> RotationFacts {
        let biased: BTreeSet<&str> =
            self.declarations.iter().filter_map(|declaration| declaration.name.strip_suffix(".bias")).collect();
        let linears = self.source.network.linears().iter().filter(|linear| linear.expert.is_some());
        let experts: BTreeSet<&str> = linears.map(|linear| linear.module.as_str()).collect();
        let rotated = self.layers.iter().filter_map(|layer| Some((layer, self.source.input_rotation(layer)?)));
        rotated.fold(RotationFacts::default(), |facts, (layer, rotation)| {
            let is_expert = layer.source.expert.is_some() || experts.contains(layer.module.as_str());
            facts.with_layer(rotation.size, [is_expert, biased.contains(layer.name.as_str()), false])
        })
    }

    /// The modules whose biases are codes, with their schemes.
    pub(super) fn coded_biases(&self) -> impl Iterator<Item = (String, TensorScheme)> {
        self.kept.iter().filter_map(|kept| match &kept.action {
            TensorAction::Round { scheme, parts, .. } if !parts.is_empty() => {
                let name = &self.declarations[kept.tensor].name;
                Some((name.strip_suffix(".bias").unwrap_or(name).to_owned(), *scheme))
            }
            _ => None,
        })
    }

    /// Returns whether convolutions or embeddings are codes.
    fn has_shaped_codes(&self) -> bool {
        self.has_codes_of(|kind| kind != LayerKind::Tower)
    }

    /// Returns whether layers of some kinds are codes.
    fn has_codes_of(&self, is_meant: impl Fn(LayerKind) -> bool) -> bool {
        let meant = self.source.shaped.iter().filter(|layer| is_meant(layer.kind));
        let meant: BTreeSet<usize> = meant.map(|layer| self.source.tensors[layer.weight].position).collect();
        let are_codes = |layer: &PlannedLayer| matches!(layer.output, LayerOutput::Parts { .. });
        self.layers.iter().any(|layer| are_codes(layer) && meant.contains(&layer.source.position))
    }

    /// Returns whether layers of towers have several schemes, or some of them are floats.
    fn has_uneven_towers(&self) -> bool {
        let schemes: BTreeMap<usize, LayerScheme> =
            self.layers.iter().map(|layer| (layer.source.position, layer.scheme)).collect();
        let towers = self.source.shaped.iter().filter(|layer| layer.kind == LayerKind::Tower);
        let mut found = towers.map(|layer| schemes.get(&self.source.tensors[layer.weight].position));
        let first = found.next();
        found.any(|other| Some(other) != first)
    }

    /// Returns whether layers of towers are codes under another name than that of the weight.
    fn has_packed_towers(&self) -> bool {
        let is_packed = |layer: &PlannedLayer| match &layer.output {
            LayerOutput::Parts { parts, .. } => !parts.iter().any(|part| part.name.ends_with(".weight")),
            _ => false,
        };
        self.layers.iter().any(|layer| layer.role == LayerKind::Tower.name() && is_packed(layer))
    }

    /// Returns whether layers that engines fuse must be listed by name.
    fn has_listed_siblings(&self, is_quantized: &dyn Fn(usize) -> bool) -> bool {
        let network = &self.source.network;
        let members = network.siblings().iter().flat_map(|group| &group.members).map(|member| network.linear(*member));
        let mut fused = members.filter(|linear| linear.expert.is_none()).peekable();
        let of_experts = network.linears().iter().filter(|linear| linear.expert.is_some()).map(|linear| linear.weight);
        let of_experts = of_experts.chain(network.experts().iter().map(|experts| experts.weight()));
        let of_experts: BTreeSet<usize> = of_experts.map(|tensor| self.source.tensors[tensor].position).collect();
        let mut schemes = self.layers.iter().filter(|layer| !of_experts.contains(&layer.source.position));
        let first = schemes.next().map(|layer| layer.scheme);
        let several = schemes.any(|layer| Some(layer.scheme) != first);
        fused.peek().is_some() && (several || fused.any(|linear| !is_quantized(linear.weight)))
    }

    /// Returns whether the output has experts one by one: as the source has them, or split.
    fn has_split_experts(&self) -> bool {
        let network = &self.source.network;
        let split = |layer: &PlannedLayer| {
            let is_part = matches!(&layer.output, LayerOutput::Parts { slice: (_, 1), .. });
            is_part && layer.source.expert.is_some()
        };
        network.linears().iter().any(|linear| linear.expert.is_some()) || self.layers.iter().any(split)
    }

    /// How the schemes of experts differ.
    fn expert_schemes(&self) -> ExpertSchemes {
        let network = &self.source.network;
        let separate = network.linears().iter().filter(|linear| linear.expert.is_some());
        let separate = separate.map(|linear| (linear.weight, linear.block));
        let fused = network.experts().iter().map(|experts| (experts.weight(), Some(experts.block)));
        let position = |tensor: usize| self.source.tensors[tensor].position;
        let blocks: BTreeMap<usize, Option<usize>> =
            separate.chain(fused).map(|(tensor, block)| (position(tensor), block)).collect();
        let quantized = self.layers.iter().filter_map(|layer| {
            let block = blocks.get(&layer.source.position)?;
            Some((layer.source.position, (*block, Some(layer.scheme))))
        });
        let quantized: Vec<(usize, _)> = quantized.collect();
        let seen: BTreeSet<usize> = quantized.iter().map(|(position, _)| *position).collect();
        let kept = blocks.iter().filter(|(position, _)| !seen.contains(position)).map(|(_, block)| (*block, None));
        ExpertSchemes::of(quantized.into_iter().map(|(_, expert)| expert).chain(kept))
    }

    /// The plan, which nothing changes afterwards.
    pub(super) fn plan(
        self,
        checkpoint: &Checkpoint,
        json: Option<Value>,
        stated: StatedAs,
    ) -> Result<Plan, PlanError> {
        let (exclude, traits, float_share) = (self.exclude_list(), self.traits(json.is_some()), self.float_share());
        let blocks = if self.runs_blocks() { self.blocks() } else { Vec::new() };
        self.source.refuse_float_rotations(&self.layers)?;
        self.check_algorithms(checkpoint, &blocks)?;
        let taken = self.take_statistics()?;
        let outside = self.outside(&blocks);
        let of_format = self.metadata_of_format();
        let is_described = (self.source.format.describes_in_metadata() || json.is_none()) && of_format.is_empty();
        let config = json.map(|json| self.quantized_config(json, &exclude)).transpose()?;
        let mut metadata: BTreeMap<String, String> = checkpoint.metadata();
        forget_metadata(&mut metadata);
        metadata.extend(of_format);
        metadata.extend(is_described.then(|| (METADATA_KEY.to_owned(), description(self.described()).to_string())));
        metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
        let dropped = self.dropped.into_iter().chain(parts_of_codes(checkpoint, &self.source)).collect();
        let of_rotations = self.source.rotation_notice();
        let Recognised { tensors, network, shaped, config: model, recipe, format, .. } = self.source;
        let files = if model.is_component { WeightFiles::Diffusion } else { WeightFiles::Model };
        let max_shard_size = if format.capabilities().one_file { u64::MAX } else { recipe.max_shard_size() };
        let layout = Layout::new(self.declarations, max_shard_size, metadata);
        let layout = layout.map_err(kvant_container::Error::from)?.with_files(files);
        let fingerprint = fingerprint(checkpoint, &recipe, &layout, config.as_ref(), &self.layers);
        let stored: Vec<String> = tensors.iter().map(|tensor| tensor.stored_name()).collect();
        names::refuse_idle_rules(&network, &shaped, &recipe, stored.iter().map(String::as_str))?;
        let of_plan = names::notices(&network, &recipe, &self.layers, &layout, &outside, checkpoint);
        let of_loaders = names::unknown_loaders(&network, &model, format);
        let departures = format.checkpoint().map_or(Ok(Vec::new()), |format| format.departures(&model, &network));
        let departures = departures.map_err(|problem| {
            let (layer, scheme) = self
                .layers
                .first()
                .map_or_else(Default::default, |layer| (layer.name.clone(), layer.scheme.to_string()));
            PlanError::CannotHold { layer, scheme, problem }
        })?;
        let notices = float_share
            .iter()
            .cloned()
            .chain(self.notices)
            .chain(taken.notices.iter().cloned())
            .chain(of_plan)
            .chain(of_loaders)
            .chain(of_rotations)
            .chain(departures)
            .collect();
        Ok(Plan {
            traits,
            notices,
            float_share,
            taken,
            family: network.family().map(|family| family.name),
            architecture: architecture(&model),
            longest: model.max_positions,
            reads_pairs: network.family().is_some_and(|family| family.decoder_stack().is_some()),
            format,
            layers: self.layers,
            blocks,
            outside,
            attention: self.attention,
            sites: self.sites,
            parameter_tensors: self.parameter_tensors,
            kept: self.kept,
            dropped,
            source_bytes: source_bytes(checkpoint),
            recipe,
            layout,
            config: config.map(|config| stated.of(config)),
            fingerprint,
        })
    }
}

impl StatedAs {
    fn of(self, config: Value) -> Value {
        let StatedAs::Floats { float, fake } = self else { return config };
        let mut config = without_quantization(config, float.config_name());
        if let Some(fake) = fake {
            fake.insert_into(&mut config);
        }
        config
    }
}

/// The tensors that codes, scales and zero points were in have no successors.
fn parts_of_codes(checkpoint: &Checkpoint, source: &Recognised<'_>) -> Vec<DroppedTensor> {
    let known: BTreeSet<usize> = source.tensors.iter().map(|tensor| tensor.position).collect();
    let parts = checkpoint.tensors().enumerate().filter(|(position, _)| !known.contains(position));
    let part = |(_, view): (usize, TensorView<'_>)| DroppedTensor {
        name: view.name().to_owned(),
        reason: "part of a quantized weight, or parameters of activations",
    };
    parts.map(part).collect()
}
