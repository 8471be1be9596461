//! Making a plan: from a checkpoint's headers, its config.json and a recipe.

use super::error::PlanError;
use super::fingerprint::{fingerprint, source_bytes};
use super::layer::LayerDraft;
use super::sites::Origin;
use super::source::SourceTensor;
use super::{
    DroppedTensor, KeptTensor, LayerOutput, ParameterTensor, Plan, PlannedAttention, PlannedLayer, PlannedSite, names,
};
use crate::recipe::{Decision, Recipe};
use kvant_container::{Checkpoint, Dtype, Layout, TensorDeclaration};
use kvant_formats::format::tensors::{DescribedLayer, METADATA_KEY, description};
use kvant_formats::format::{ModuleNames, OutputFormat, plain_floats};
use kvant_formats::import::{self, Import};
use kvant_formats::loader_rules::ModelTraits;
use kvant_formats::transcode::FloatType;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Linear, Network, Notice, Place, Reason, TensorMeta, in_memory_module, on_disk_module};
use kvant_numeric::kernel::Source;
use kvant_quant::scheme::{Cast, LayerScheme, SchemeError, TensorScheme};
use kvant_weights::parts::{Fused, LayerSpec, Part};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

impl Plan {
    /// Plans what a recipe makes of a checkpoint.
    ///
    /// # Errors
    /// Whatever can be refused: see [`PlanError`].
    pub fn new(checkpoint: &Checkpoint, recipe: Recipe) -> Result<Plan, PlanError> {
        let json = checkpoint.config()?;
        let config = json.as_ref().map_or_else(|| Ok(ModelConfig::default()), ModelConfig::from_json)?;
        let recipe = if json.is_some() { recipe } else { without_config(recipe)? };
        let merges = !checkpoint.adapters().is_empty();
        let import = match recipe.requantizes() || merges || checkpoint.gguf().is_some() {
            true => Some(import::open(checkpoint)?),
            false => None,
        };
        let tensors = match &import {
            Some(import) => imported(checkpoint, import, &config),
            None => SourceTensor::plain(checkpoint),
        };
        if !recipe.requantizes() && (merges || checkpoint.gguf().is_some()) {
            refuse_codes(&tensors, if merges { None } else { Some("gguf") })?;
        }
        let fake = plain_floats::is_fake_quantized(json.as_ref()) && !recipe.requantizes();
        let mut builder = Builder { import, ..Builder::new(tensors, config, recipe)? };
        if fake {
            return Err(builder.already_fake());
        }
        builder.plan_linears()?;
        builder.plan_experts()?;
        builder.settle_codes()?;
        builder.plan_attention()?;
        builder.keep_the_rest()?;
        builder.drop_parts(checkpoint);
        builder.check()?;
        builder.finish(checkpoint, json)
    }
}

/// The recipe for tensors that no config.json makes a model of.
fn without_config(recipe: Recipe) -> Result<Recipe, PlanError> {
    let recipe = recipe.without_config();
    refuse_without_config(recipe.format())?;
    Ok(recipe)
}

/// Refuses formats that say in config.json how weights are quantized, where there is none.
pub(super) fn refuse_without_config(format: OutputFormat) -> Result<(), PlanError> {
    if format.capabilities().needs_config { Err(PlanError::NeedsConfig { format: format.to_string() }) } else { Ok(()) }
}

/// The tensors of a checkpoint that may be quantized, as floats.
fn imported<'a>(checkpoint: &'a Checkpoint, import: &Import<'a>, config: &ModelConfig) -> Vec<SourceTensor<'a>> {
    SourceTensor::imported(checkpoint, import.tensors().to_vec(), float_type(config).dtype())
}

/// Blocks of a GGUF file, and codes beside which adapters are merged, are quantized again only where that is accepted.
fn refuse_codes(tensors: &[SourceTensor<'_>], method: Option<&str>) -> Result<(), PlanError> {
    let mut quantized = tensors.iter().filter(|tensor| tensor.has_codes());
    let Some(first) = quantized.next() else { return Ok(()) };
    let (first, tensors) = (first.name().to_owned(), 1 + quantized.count());
    Err(PlanError::AlreadyQuantized { tensors, first, method: method.map(str::to_owned) })
}

/// The type of a model's floats, as config.json states it.
pub(super) fn float_type(config: &ModelConfig) -> FloatType {
    config.dtype.as_deref().and_then(FloatType::of_config).unwrap_or(FloatType::Bf16)
}

fn refuse_quantized(network: &Network, config: &ModelConfig) -> Result<(), PlanError> {
    let found = network.notices().iter().find_map(|notice| match notice {
        Notice::AlreadyQuantized { tensors, first } => Some((*tensors, first.clone())),
        _ => None,
    });
    let method = config.quantization.as_ref().and_then(|q| q.get("quant_method")?.as_str().map(str::to_owned));
    found.map_or(Ok(()), |(tensors, first)| Err(PlanError::AlreadyQuantized { tensors, first, method }))
}

/// A plan in the making.
pub(super) struct Builder<'a> {
    pub(super) tensors: Vec<SourceTensor<'a>>,
    pub(super) network: Network,
    pub(super) config: ModelConfig,
    pub(super) recipe: Recipe,
    pub(super) format: OutputFormat,
    pub(super) layers: Vec<PlannedLayer>,
    pub(super) attention: Vec<PlannedAttention>,
    pub(super) sites: Vec<PlannedSite>,
    pub(super) parameter_tensors: Vec<ParameterTensor>,
    /// The numbers of places that stand in for one another, by what they have in common.
    pub(super) kin: BTreeMap<String, usize>,
    pub(super) kept: Vec<KeptTensor>,
    pub(super) dropped: Vec<DroppedTensor>,
    pub(super) declarations: Vec<TensorDeclaration>,
    /// Modules that loaders must not expect quantized.
    pub(super) excluded: Vec<String>,
    /// Layers whose shapes do not fit their schemes.
    misfits: Vec<(String, LayerScheme, SchemeError)>,
    /// Modules that stay in floats because they cannot be what the rest becomes, and why.
    pub(super) odd: BTreeMap<String, &'static str>,
    /// Positions of tensors that have found their place.
    pub(super) taken: BTreeSet<usize>,
    /// Whether input channels of layers whose codes are taken over are grouped otherwise than as they stand.
    pub(super) ordered: bool,
    /// The source as it is quantized, where its values are quantized anew.
    pub(super) import: Option<Import<'a>>,
    /// Excluded layers that keep their codes.
    pub(super) kept_codes: Vec<String>,
    /// Excluded weights whose codes have no place, and why.
    pub(super) lost_codes: Vec<(String, String)>,
    /// What the user should know, besides what every plan tells.
    pub(super) notices: Vec<String>,
}

impl<'a> Builder<'a> {
    /// Nothing planned yet.
    pub(super) fn new(
        tensors: Vec<SourceTensor<'a>>,
        config: ModelConfig,
        recipe: Recipe,
    ) -> Result<Builder<'a>, PlanError> {
        let metas: Vec<TensorMeta> = tensors.iter().map(SourceTensor::meta).collect();
        let network = Network::recognise(&config, &metas);
        refuse_quantized(&network, &config)?;
        Ok(Builder {
            format: recipe.format(),
            tensors,
            network,
            config,
            recipe,
            layers: vec![],
            attention: vec![],
            sites: vec![],
            parameter_tensors: vec![],
            kin: BTreeMap::new(),
            kept: vec![],
            dropped: vec![],
            declarations: vec![],
            excluded: vec![],
            misfits: vec![],
            odd: BTreeMap::new(),
            taken: BTreeSet::new(),
            ordered: false,
            import: None,
            kept_codes: vec![],
            lost_codes: vec![],
            notices: vec![],
        })
    }
}

/// Why a layer stays that the family keeps.
const KEPT_BY_DEFAULT: &str = "kept by default";

impl Builder<'_> {
    /// That the source's weights lie on the grid of other codes.
    fn already_fake(&self) -> PlanError {
        let linears = || self.network.linears().iter().filter(|linear| !linear.kept);
        let first = linears().next().map(|linear| linear.module.clone()).unwrap_or_default();
        PlanError::AlreadyQuantized { tensors: linears().count(), first, method: Some("fake".to_owned()) }
    }

    /// The scheme of a module, or why it is kept.
    pub(super) fn decide(&self, module: &str, family_keeps: bool) -> Result<LayerScheme, &'static str> {
        let scheme = match self.recipe.decide(module) {
            Decision::Excluded => Err("excluded"),
            Decision::Override(scheme) => Ok(scheme),
            Decision::Default(_) if family_keeps && self.recipe.keep_defaults() => Err(KEPT_BY_DEFAULT),
            Decision::Default(scheme) => self.odd.get(module).map_or(Ok(scheme), |reason| Err(*reason)),
        };
        scheme.map(|scheme| self.recipe.fitted(scheme))
    }

    /// A module's name in the output.
    pub(super) fn output_name(&self, module: &str) -> String {
        match self.network.family() {
            Some(family) if self.format.capabilities().module_names == ModuleNames::OnDisk => {
                on_disk_module(family, module)
            }
            _ => self.in_memory_name(module),
        }
    }

    /// A module's name in a model that transformers has loaded.
    pub(super) fn in_memory_name(&self, module: &str) -> String {
        self.network.family().map_or_else(|| module.to_owned(), |family| in_memory_module(family, module))
    }

    fn plan_linears(&mut self) -> Result<(), PlanError> {
        self.set_odd_layers_aside()?;
        let linears = self.network.linears().to_vec();
        self.check_siblings(&linears)?;
        for linear in &linears {
            match self.decide(&linear.module, linear.kept) {
                Ok(_) if self.format.capabilities().fused_experts_only => {
                    self.keep_linear(linear, "no tensor of all experts")?
                }
                Ok(scheme) => self.plan_linear(linear, scheme)?,
                Err(reason) if self.keep_codes(linear, reason)? => {}
                Err(reason) => self.keep_linear(linear, reason)?,
            }
        }
        Ok(())
    }

    /// Layers that loaders fuse into one must have one scheme, or be kept together.
    fn check_siblings(&self, linears: &[Linear]) -> Result<(), PlanError> {
        if self.format == OutputFormat::PlainFloats {
            return Ok(());
        }
        for group in self.network.siblings() {
            let text = |linear: &Linear| {
                let scheme = self.decide(&linear.module, linear.kept);
                scheme.map_or_else(|_| "kept".to_owned(), |scheme| scheme.to_string())
            };
            let members: Vec<&Linear> = group.members.iter().map(|id| self.network.linear(*id)).collect();
            debug_assert!(members.iter().all(|member| linears.contains(member)));
            let first = text(members[0]);
            if let Some(other) = members.iter().find(|member| text(member) != first) {
                let (name, scheme) = (other.module.clone(), text(other));
                return Err(PlanError::Siblings {
                    first: members[0].module.clone(),
                    first_scheme: first,
                    second: name,
                    second_scheme: scheme,
                });
            }
        }
        Ok(())
    }

    fn plan_linear(&mut self, linear: &Linear, scheme: LayerScheme) -> Result<(), PlanError> {
        let (rows, columns) = (linear.out_features, linear.in_features);
        if rows == 0 || columns == 0 {
            return self.keep_linear(linear, "empty");
        }
        let layer = self.draft(linear, scheme)?;
        self.take(linear.weight);
        if let Some(scale) = self.scale_of(linear) {
            self.drop_tensor(scale, "scales of a weight that is requantized");
        }
        let shape = self.tensors[linear.weight].shape().to_vec();
        self.add_layer(layer, &Origin::of_linear(linear), shape)
    }

    /// Declares a layer's tensors.
    pub(super) fn add_layer(
        &mut self,
        layer: LayerDraft,
        origin: &Origin,
        source_shape: Vec<usize>,
    ) -> Result<(), PlanError> {
        if !self.check_layer(&layer) {
            return Ok(());
        }
        let output = if self.format == OutputFormat::PlainFloats {
            let dtype = values_type(layer.scheme.weight, layer.source.dtype);
            let tensor = self.declare(layer.source.tensor.clone(), dtype, source_shape);
            LayerOutput::Values { tensor, offset: 0, dtype }
        } else {
            self.declare_parts(&layer)?
        };
        self.plan_activations(&layer, origin)?;
        self.layers.push(layer.with_output(output));
        Ok(())
    }

    /// Notes a layer whose shape does not fit, so that all such can be named together.
    pub(super) fn check_layer(&mut self, layer: &LayerDraft) -> bool {
        let fits = layer.scheme.weight.check_shape(layer.rows, layer.columns);
        fits.map_err(|problem| self.misfits.push((layer.name.clone(), layer.scheme, problem))).is_ok()
    }

    /// Declares the tensors of a layer of its own.
    fn declare_parts(&mut self, layer: &LayerDraft) -> Result<LayerOutput, PlanError> {
        let parts = self.parts(layer, None)?;
        let first = self.declare_all(&parts);
        Ok(LayerOutput::Parts { parts, first, slice: (0, 1) })
    }

    /// The tensors of a layer.
    pub(super) fn parts(&self, layer: &LayerDraft, fused: Option<Fused<'_>>) -> Result<Vec<Part>, PlanError> {
        let problem =
            |problem| PlanError::CannotHold { layer: layer.name.clone(), scheme: layer.scheme.to_string(), problem };
        if layer.source.input_major && layer.source.expert.is_none() {
            return Err(problem(names::no_linear_module()));
        }
        let spec = LayerSpec {
            name: &layer.name,
            rows: layer.rows,
            columns: layer.columns,
            scheme: layer.scheme,
            source: layer.source.dtype,
            order: self.recipe.nibble_order(),
            fused,
            ordered: self.ordered,
        };
        self.format.parts(&spec).map_err(problem)
    }

    /// Declares tensors one after the other, and says where the first is.
    pub(super) fn declare_all(&mut self, parts: &[Part]) -> usize {
        let first = self.declarations.len();
        self.declarations
            .extend(parts.iter().map(|p| TensorDeclaration::new(p.name.clone(), p.dtype, p.shape.clone())));
        first
    }

    pub(super) fn declare(&mut self, name: String, dtype: Dtype, shape: Vec<usize>) -> usize {
        self.declarations.push(TensorDeclaration::new(name, dtype, shape));
        self.declarations.len() - 1
    }

    pub(super) fn take(&mut self, position: usize) {
        self.taken.insert(position);
    }

    fn check(&mut self) -> Result<(), PlanError> {
        if !self.misfits.is_empty() {
            let (layer, scheme, problem) = self.misfits.remove(0);
            let others = self.misfits.drain(..).map(|(layer, ..)| layer).collect();
            return Err(PlanError::Shape { layer, scheme: scheme.to_string(), problem, others });
        }
        self.refuse_tied_head()?;
        if !self.layers.is_empty() {
            return Ok(());
        }
        let (reason, hint) = self.nothing_left();
        Err(PlanError::Nothing { reason, hint })
    }

    /// Refuses to quantize a head that is stored, and that no loader reads: config.json says that it is the embedding.
    fn refuse_tied_head(&self) -> Result<(), PlanError> {
        let head = self.network.head().filter(|_| self.network.is_tied()).map(|head| self.network.linear(head));
        match head.filter(|head| self.layers.iter().any(|layer| layer.module == head.module)) {
            Some(head) => Err(PlanError::TiedHead { layer: head.module.clone() }),
            None => Ok(()),
        }
    }

    /// Why no layer is quantized, and the way out of just that.
    fn nothing_left(&self) -> (&'static str, &'static str) {
        if self.network.linears().is_empty() && self.network.experts().is_empty() {
            let hint = "look at the tensors with `kvant inspect`: weights of linear layers are matrices of floats";
            return ("no linear layers are found in the checkpoint", hint);
        }
        if self.format.capabilities().fused_experts_only && self.network.experts().is_empty() {
            let reason = "there are no experts in one tensor, which are all that this format quantizes";
            return (reason, "choose another format (`kvant list formats`)");
        }
        let mut linears = self.network.linears().iter().map(|linear| self.decide(&linear.module, linear.kept));
        let kept_experts = self.recipe.keep_defaults() && self.network.experts().iter().any(|experts| experts.kept);
        let kept = linears.any(|decided| decided == Err(KEPT_BY_DEFAULT)) || kept_experts;
        match kept {
            false => {
                ("the recipe excludes every linear layer", "leave out an ‹exclude›, or an ‹override› that keeps layers")
            }
            true => (
                "every linear layer is excluded or kept by default",
                "‹no-keep-defaults› quantizes layers that are kept by default, ‹override› gives some of them a scheme",
            ),
        }
    }

    /// The layers with codes, for the metadata of files.
    fn described(&self) -> impl Iterator<Item = DescribedLayer<'_>> {
        self.layers.iter().filter_map(|layer| {
            let LayerOutput::Parts { parts, .. } = &layer.output else { return None };
            let (shape, scheme) = ((layer.rows, layer.columns), layer.scheme);
            Some(DescribedLayer { name: &layer.name, shape, scheme, parts })
        })
    }

    /// What loaders stumble over.
    fn traits(&self) -> ModelTraits {
        let expert = |linear: &Linear| linear.expert.is_some();
        let quantized: BTreeSet<usize> = self.layers.iter().map(|layer| layer.source.position).collect();
        let kept = |linear: &&Linear| expert(linear) && !quantized.contains(&self.tensors[linear.weight].position);
        let fused = !self.network.experts().is_empty();
        ModelTraits {
            family: self.network.family().map(|family| family.name),
            other_modalities: self.network.places().contains(&Place::Other(Reason::Modality)),
            experts: fused || self.network.linears().iter().any(expert),
            fused_experts: fused,
            kept_experts: self.network.linears().iter().any(|linear| kept(&linear)),
            attention: self.recipe.attention(),
            bf16: self.layers.iter().all(|layer| stored_type(layer.source.dtype) == Dtype::BF16),
        }
    }

    pub(super) fn finish(self, checkpoint: &Checkpoint, json: Option<Value>) -> Result<Plan, PlanError> {
        let (exclude, traits, float_share) = (self.exclude_list(), self.traits(), self.float_share());
        let blocks = if self.recipe.algorithms().need_data() { self.blocks() } else { Vec::new() };
        self.check_algorithms(checkpoint, &blocks)?;
        let outside = self.outside(&blocks);
        let is_described = self.format.describes_in_metadata() || json.is_none();
        let config = json.map(|json| self.quantized_config(json, &exclude)).transpose()?;
        let mut metadata: BTreeMap<String, String> = checkpoint.metadata();
        metadata.remove(METADATA_KEY);
        metadata.extend(is_described.then(|| (METADATA_KEY.to_owned(), description(self.described()).to_string())));
        metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
        let layout = Layout::new(self.declarations, self.recipe.max_shard_size(), metadata)
            .map_err(kvant_container::Error::from)?;
        let fingerprint = fingerprint(checkpoint, &self.recipe, &layout, config.as_ref(), &self.layers);
        let stored: Vec<String> = self.tensors.iter().map(|tensor| tensor.stored_name()).collect();
        names::refuse_idle_rules(&self.network, &self.recipe, stored.iter().map(String::as_str))?;
        let of_plan = names::notices(&self.network, &self.recipe, &self.layers, &outside, checkpoint);
        let notices = float_share.iter().cloned().chain(self.notices).chain(of_plan).collect();
        Ok(Plan {
            traits,
            notices,
            float_share,
            family: self.network.family().map(|family| family.name),
            architecture: architecture(&self.config),
            longest: self.config.max_positions,
            format: self.format,
            layers: self.layers,
            blocks,
            outside,
            attention: self.attention,
            sites: self.sites,
            parameter_tensors: self.parameter_tensors,
            kept: self.kept,
            dropped: self.dropped,
            source_bytes: source_bytes(checkpoint),
            recipe: self.recipe,
            layout,
            config,
            fingerprint,
        })
    }
}

/// Whether block scales stand under one of the tensor, which fused layers share.
pub(super) fn has_tensor_scale(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Float(float) if float.scale.has_tensor_scale())
}

/// The type in which simulated values are stored: that of the source, or of the cast.
pub(super) fn values_type(scheme: TensorScheme, source: Source) -> Dtype {
    match scheme {
        TensorScheme::Cast(Cast::F16) => Dtype::F16,
        TensorScheme::Cast(Cast::Bf16) => Dtype::BF16,
        _ => stored_type(source),
    }
}

/// The type in which floats of the source are stored; fp8 is widened.
pub(super) fn stored_type(source: Source) -> Dtype {
    match source {
        Source::F32 => Dtype::F32,
        Source::F16 => Dtype::F16,
        Source::Bf16 | Source::E4m3 | Source::E5m2 => Dtype::BF16,
    }
}

pub(super) fn architecture(config: &ModelConfig) -> String {
    let name = config.architectures.first().or(config.model_types.first());
    name.cloned().unwrap_or_else(|| "unknown".to_owned())
}
