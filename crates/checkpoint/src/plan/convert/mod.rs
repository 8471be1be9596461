//! Planning a conversion: every weight that is quantized in the source gets the form of its codes that the target holds, or is
//! refused, or, where loss is accepted, quantized anew. All else is carried over.

mod excluded;
mod fake;
mod fit;
mod siblings;

use self::fit::{Fit, Fitted};
use self::siblings::CommonSchemes;
use super::build::{Builder, float_type, has_tensor_scale, refuse_without_config};
use super::error::PlanError;
use super::experts::expert_storage;
use super::layer::LayerDraft;
use super::sites::Origin;
use super::source::SourceTensor;
use super::{
    CalibratedPlan, DroppedTensor, ParameterTensor, Plan, PlannedLayer, Reuse, Site, SourceStorage, SourceWeight,
};
use crate::plan::quantization_config::without_quantization;
use crate::recipe::Recipe;
use kvant_container::Checkpoint;
use kvant_formats::format::OutputFormat;
use kvant_formats::format::plain_floats::FakeQuantization;
use kvant_formats::import::{self, Import, StoredActivation};
use kvant_formats::transcode::{Conversion, FloatType, Target, loss_of_parameter};
use kvant_model::family::{ExpertStorage, Role};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{ExpertsStorage, FusedExperts, Linear, expert_module};
use kvant_numeric::simd::Isa;
use kvant_quant::activation::StaticParameters;
use kvant_quant::scheme::{AttentionScheme, KvCacheScheme, LayerScheme, MinScale, Rotary, TensorScheme};
use kvant_weights::activation_point::Parameters;
use kvant_weights::parts::Fused;
use kvant_weights::weight::PackedMatrix;
use std::collections::{BTreeMap, BTreeSet, HashMap};

const ACCEPT: &str = "accept a loss with ‹requantize›, or convert ‹to› float and quantize that";

const FLOATS: &str = "convert ‹to› float and quantize that";

/// The largest relative error of scales with which codes are still taken over, where loss is accepted: half a unit in the last
/// place of binary16.
const SMALL_LOSS: f32 = 1.0 / 2048.0;

impl Plan {
    /// Plans the conversion of a quantized checkpoint to another layout.
    ///
    /// # Errors
    /// [`PlanError::Conversion`] for what the target does not hold, [`PlanError::NotQuantized`] or [`PlanError::Unsaid`]; otherwise as
    /// [`Plan::new`].
    pub fn convert(checkpoint: &Checkpoint, conversion: &Conversion) -> Result<CalibratedPlan, PlanError> {
        let json = checkpoint.config()?;
        let config = json.as_ref().map_or_else(|| Ok(ModelConfig::default()), ModelConfig::from_json)?;
        if let (Target::Codes(format), None) = (conversion.target, &json) {
            refuse_without_config(format.into())?;
        }
        let import = import::open(checkpoint)?;
        let float = match conversion.target {
            Target::Float(Some(float)) => float,
            _ => float_type(&config),
        };
        let tensors = SourceTensor::imported(checkpoint, import.tensors().to_vec(), float.dtype());
        // A GGUF file of floats has another layout all the same, and a model with adapters other weights.
        let is_changed = checkpoint.gguf().is_some() || !checkpoint.adapters().is_empty();
        let is_converted = is_changed && matches!(conversion.target, Target::Float(_) | Target::Fake);
        let coded = Usual::of(&tensors);
        let nothing = if json.is_some() { PlanError::NotQuantized } else { PlanError::Unsaid };
        let usual = coded.or(is_converted.then_some(Usual::NONE)).ok_or(nothing)?;
        let (format, attention) = match conversion.target {
            Target::Float(_) | Target::Fake => (OutputFormat::PlainFloats, AttentionScheme::default()),
            Target::Codes(format) if conversion.leaves_activations() => (format.into(), AttentionScheme::default()),
            Target::Codes(format) => (format.into(), stored_attention(&import)),
        };
        let recipe = Recipe::carrying(format, attention, conversion.max_shard_size);
        let mut builder = Builder::new(tensors, config, recipe)?;
        match conversion.target {
            Target::Float(_) | Target::Fake => {
                builder.keep_the_rest()?;
                builder.note_parted_experts();
                if coded.is_some() && conversion.target != Target::Float(Some(float)) && float != FloatType::F32 {
                    builder.note_rounding(float);
                }
            }
            Target::Codes(_) => {
                builder.ordered = usual.ordered && format.capabilities().act_order;
                let natural = |matrix: &PackedMatrix<'_>| usual.scheme_of(matrix).or_else(|| matrix.like());
                let common = builder.common_schemes(natural);
                let widens = checkpoint.gguf().is_some();
                let task = Task { import: &import, usual, common, conversion, widens };
                builder.convert_all(&task)?;
            }
        }
        builder.drop_parts(checkpoint);
        let parameters = builder.stored_parameters(&import, conversion)?;
        let fake =
            (conversion.target == Target::Fake).then(|| builder.stored_fake_quantization(&import, usual)).flatten();
        let plan = builder.finish(checkpoint, json)?;
        let plan = match conversion.target {
            Target::Float(_) | Target::Fake => plan.into_floats(float, fake),
            Target::Codes(_) => plan,
        };
        // Nothing is left for calibration to find: parameters are those of the source.
        match plan.sites.is_empty() && plan.parameter_tensors.is_empty() {
            true => plan.without_calibration(),
            false => plan.calibrated(parameters, None),
        }
    }

    /// Says in config.json that there are floats of a type, and how activations are quantized where that is kept.
    fn into_floats(self, float: FloatType, fake: Option<FakeQuantization>) -> Plan {
        let mut config = self.config.map(|config| without_quantization(config, float.config_name()));
        if let (Some(config), Some(fake)) = (&mut config, fake) {
            fake.insert_into(config);
        }
        Plan { config, ..self }
    }
}

/// What all weights of the source have in common.
#[derive(Clone, Copy)]
struct Usual {
    /// Rows and columns that share a scale in most of them.
    tile: Option<(usize, usize)>,
    /// Whether zero has the middle code in all integers.
    symmetric: bool,
    /// Whether any are grouped otherwise than as they stand.
    ordered: bool,
}

impl Usual {
    /// Of weights that are not quantized.
    const NONE: Usual = Usual { tile: None, symmetric: true, ordered: false };

    /// What the codes of a matrix are; `None` for what no scheme describes.
    fn scheme_of(&self, matrix: &PackedMatrix<'_>) -> Option<TensorScheme> {
        matrix.scheme(self.symmetric, self.tile)
    }

    /// `None` where nothing is quantized.
    fn of(tensors: &[SourceTensor<'_>]) -> Option<Usual> {
        let packed = || tensors.iter().filter_map(SourceTensor::packed).flatten();
        let matrices = || packed().filter(|matrix| !matrix.is_float());
        matrices().next()?;
        let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
        for tile in matrices().filter_map(|matrix| matrix.cut()) {
            *counts.entry(tile).or_default() += 1;
        }
        let isa = Isa::best();
        Some(Usual {
            tile: counts.into_iter().max_by_key(|(tile, count)| (*count, *tile)).map(|(tile, _)| tile),
            symmetric: matrices().filter(|matrix| matrix.is_integer()).all(|matrix| matrix.is_symmetric(isa)),
            ordered: matrices().any(|matrix| matrix.groups().is_some()),
        })
    }
}

/// What a conversion is of and to.
struct Task<'c, 'a> {
    import: &'c Import<'a>,
    usual: Usual,
    /// What layers get that engines make one of, where they differ.
    common: CommonSchemes,
    conversion: &'c Conversion,
    /// Whether codes of embedding and head become floats.
    widens: bool,
}

impl Builder<'_> {
    /// Says that values of codes lose digits in the type of floats that config.json states.
    fn note_rounding(&mut self, float: FloatType) {
        let name = float.config_name();
        self.notices.push(format!("values are rounded to {name}; ‹dtype› f32 keeps all their digits"));
    }

    /// Says that experts stay apart which the family's class has in one tensor, and does not find.
    fn note_parted_experts(&mut self) {
        let first = self.network.family().and_then(|family| family.moe?.experts.first());
        let is_parted = self.network.linears().iter().any(|linear| linear.expert.is_some());
        if is_parted && first.is_some_and(|layout| layout.storage == ExpertStorage::Fused) {
            self.notices.push(
                "experts stay apart, as codes had them, and transformers looks for one tensor of all: Kvant reads them, \
                 transformers initializes them at random"
                    .to_owned(),
            );
        }
    }

    fn convert_all(&mut self, task: &Task<'_, '_>) -> Result<(), PlanError> {
        let linears = self.network.linears().to_vec();
        let mut fitted = linears.iter().map(|linear| self.fit_linear(task, linear)).collect::<Result<Vec<_>, _>>()?;
        if task.conversion.requantize {
            self.agree(task, &mut fitted);
        }
        for (linear, fitted) in linears.iter().zip(fitted) {
            match fitted {
                Some(Fitted { layer, fit }) => self.convert_linear(linear, layer, fit)?,
                None => self.keep_linear(linear, "not quantized in the source")?,
            }
        }
        for experts in self.network.experts().to_vec() {
            self.convert_experts(task, &experts)?;
        }
        self.check_fused(task.conversion.requantize)?;
        self.note_losses(task);
        self.plan_attention()?;
        if let Some(tensor) = self.packed_rest().filter(|_| !task.widens) {
            return Err(self.refusal(&tensor, "it is no linear layer", "convert ‹to› float"));
        }
        self.keep_the_rest()
    }

    /// A weight that is quantized and has found no place.
    fn packed_rest(&self) -> Option<String> {
        let rest = (0..self.tensors.len()).filter(|position| !self.taken.contains(position));
        rest.map(|position| &self.tensors[position]).find(|t| t.has_codes()).map(|t| t.name.clone())
    }

    fn refusal(&self, tensor: &str, reason: impl Into<String>, hint: &str) -> PlanError {
        PlanError::Conversion {
            tensor: tensor.to_owned(),
            target: self.format.to_string(),
            reason: reason.into(),
            hint: hint.to_owned(),
        }
    }

    /// A layer whose scheme is not found yet, and its only matrix.
    fn draft_of_codes<'t>(
        &'t self,
        task: &Task<'_, '_>,
        linear: &Linear,
    ) -> Result<(LayerDraft, &'t PackedMatrix<'t>), PlanError> {
        let tensor = &self.tensors[linear.weight];
        let Some([matrix]) = tensor.packed() else {
            return Err(self.refusal(&tensor.name, "it is several matrices", way_out(task.conversion.requantize)));
        };
        if (matrix.rows(), matrix.columns()) != (linear.out_features, linear.in_features) {
            return Err(self.refusal(
                &tensor.name,
                "it is stored as [in, out] in the float model",
                "convert ‹to› float",
            ));
        }
        let stored = task.import.activations(&linear.module).filter(|_| !task.conversion.leaves_activations());
        let scheme = |activation: Option<&StoredActivation>| activation.map(|activation| activation.scheme);
        let (input, output) =
            (scheme(stored.and_then(|s| s.input.as_ref())), scheme(stored.and_then(|s| s.output.as_ref())));
        let layer = LayerDraft {
            name: self.output_name(&linear.module),
            module: linear.module.clone(),
            role: linear.role.name(),
            rows: matrix.rows(),
            columns: matrix.columns(),
            scheme: LayerScheme { weight: PLACEHOLDER, input, output },
            source: SourceWeight {
                tensor: tensor.name.clone(),
                position: tensor.position,
                expert: None,
                input_major: false,
                dtype: self.source_type(linear.weight)?,
                storage: SourceStorage::Packed { reuse: Reuse::Codes, bytes: matrix.stored_bytes() },
            },
            shares_scale: None,
            is_fused: linear.siblings.is_some(),
        };
        Ok((layer, matrix))
    }

    fn convert_linear(&mut self, linear: &Linear, layer: LayerDraft, fit: Fit) -> Result<(), PlanError> {
        let shares = fit.reuse == Reuse::Values && has_tensor_scale(fit.scheme.weight);
        let mut layer = self.fitted(layer, fit);
        layer.shares_scale = linear.siblings.filter(|_| shares).map(|group| group.index());
        self.take(linear.weight);
        self.add_layer(layer, &Origin::of_linear(linear), Vec::new())
    }

    fn convert_experts(&mut self, task: &Task<'_, '_>, experts: &FusedExperts) -> Result<(), PlanError> {
        let ExpertsStorage::Float { weight } = experts.storage else { return Ok(()) };
        let tensor = self.tensors[weight].clone();
        let Some(matrices) = tensor.packed().filter(|_| tensor.has_codes()) else {
            self.excluded.push(experts.module.clone());
            self.copy(weight, "not quantized in the source");
            return Ok(());
        };
        self.take(weight);
        let of_all = self.output_name(&experts.module);
        let fused =
            self.format.capabilities().fused_experts_only.then_some(Fused { module: &of_all, count: matrices.len() });
        let (dtype, mut shared) = (self.source_type(weight)?, None);
        for (expert, matrix) in matrices.iter().enumerate() {
            let origin = Origin::of_expert(experts, expert_module(&experts.module, expert));
            let layer = LayerDraft {
                name: self.output_name(&origin.module),
                module: origin.module.clone(),
                role: experts.role.name(),
                rows: matrix.rows(),
                columns: matrix.columns(),
                scheme: LayerScheme::weight_only(PLACEHOLDER),
                source: SourceWeight {
                    tensor: tensor.name.clone(),
                    position: tensor.position,
                    expert: Some(expert),
                    input_major: false,
                    dtype,
                    storage: expert_storage(&tensor, expert, Reuse::Codes),
                },
                shares_scale: None,
                is_fused: matches!(experts.role, Role::Gate | Role::Up),
            };
            let fit = self.fit(task, matrix, &layer, fused)?;
            let layer = self.fitted(layer, fit);
            match fused {
                Some(_) => self.add_fused_parts(layer, experts, &mut shared)?,
                None => self.add_layer(layer, &origin, Vec::new())?,
            }
        }
        if let (Some(bias), None) = (experts.bias, fused) {
            self.split_bias(experts, bias);
        }
        Ok(())
    }

    /// The layer as it will be, with a word to the user where values change.
    fn fitted(&mut self, mut layer: LayerDraft, fit: Fit) -> LayerDraft {
        layer.scheme = fit.scheme;
        if let SourceStorage::Packed { reuse, .. } = &mut layer.source.storage {
            *reuse = fit.reuse;
        }
        if let (Reuse::Codes, Some(loss)) = (fit.reuse, fit.loss) {
            self.notices.push(format!("`{}`: {}", layer.name, loss.reason));
        }
        layer
    }

    /// Says which layers are quantized anew, those of a scheme together, and whether activations are left out.
    fn note_losses(&mut self, task: &Task<'_, '_>) {
        let mut anew: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for layer in &self.layers {
            if matches!(layer.source.storage, SourceStorage::Packed { reuse: Reuse::Values, .. }) {
                anew.entry(layer.scheme.weight.to_string()).or_default().push(&layer.name);
            }
        }
        let line = |(scheme, names): (String, Vec<&str>)| match names.as_slice() {
            [one] => format!("`{one}` is requantized to `{scheme}`"),
            all => format!("{} layers are requantized to `{scheme}`: {}", all.len(), some_of(all)),
        };
        let lines: Vec<String> = anew.into_iter().map(line).collect();
        self.notices.extend(lines);
        let has_inputs = |layer: &PlannedLayer| {
            task.import
                .activations(&layer.module)
                .is_some_and(|stored| stored.input.is_some() || stored.output.is_some())
        };
        if task.conversion.leaves_activations() && self.layers.iter().any(has_inputs) {
            let reason = "the source quantizes activations, which this layout does not: they stay in floats";
            self.notices.push(reason.to_owned());
        }
    }

    /// The tensors that codes, scales and zero points were in have no successors.
    pub(super) fn drop_parts(&mut self, checkpoint: &Checkpoint) {
        let known: BTreeSet<usize> = self.tensors.iter().map(|tensor| tensor.position).collect();
        let parts = checkpoint.tensors().enumerate().filter(|(position, _)| !known.contains(position));
        let part = |(_, view): (usize, kvant_container::TensorView<'_>)| DroppedTensor {
            name: view.name().to_owned(),
            reason: "part of a quantized weight, or parameters of activations",
        };
        self.dropped.extend(parts.map(part));
    }

    /// What the source says of activations, for all places of the plan.
    fn stored_parameters(&self, import: &Import<'_>, conversion: &Conversion) -> Result<Parameters, PlanError> {
        let mut found = Vec::new();
        for ParameterTensor { part, .. } in &self.parameter_tensors {
            let Some(parameters) = parameters_of(import, &part.site) else { continue };
            if let (Some(loss), false) = (loss_of_parameter(part, &parameters), conversion.requantize) {
                return Err(self.refusal(&part.name, loss.reason, ACCEPT));
            }
            found.push((part.site.clone(), parameters));
        }
        Ok(Parameters::new(found))
    }
}

/// What to do instead.
fn way_out(requantize: bool) -> &'static str {
    if requantize { FLOATS } else { ACCEPT }
}

/// The first names of many.
fn some_of(names: &[&str]) -> String {
    const SHOWN: usize = 3;
    let first = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(SHOWN) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Stands in a layer until its scheme is found.
const PLACEHOLDER: TensorScheme = TensorScheme::Cast(kvant_quant::scheme::Cast::Bf16);

fn parameters_of(import: &Import<'_>, site: &Site) -> Option<StaticParameters> {
    let module = |module: &str| import.activations(module);
    let stored = match site {
        Site::Input(name) => module(name)?.input.as_ref(),
        Site::Output(name) => module(name)?.output.as_ref(),
        Site::Key(block) => import.attention(*block)?.key.as_ref(),
        Site::Value(block) => import.attention(*block)?.value.as_ref(),
        Site::Query(block) => import.attention(*block)?.query.as_ref(),
        Site::Probabilities(block) => import.attention(*block)?.probabilities.as_ref(),
    };
    stored?.parameters.clone()
}

/// How attention is quantized in the blocks of the source: as in the first where it is.
fn stored_attention(import: &Import<'_>) -> AttentionScheme {
    let Some(first) = import.first_attention() else { return AttentionScheme::default() };
    let scheme = |activation: &Option<StoredActivation>| activation.as_ref().map(|activation| activation.scheme);
    let cache = scheme(&first.key).or(scheme(&first.value));
    AttentionScheme {
        rotary: Rotary::After,
        key_value: cache.map(|scheme| KvCacheScheme { scheme, min_scale: MinScale::default() }),
        query: scheme(&first.query),
        probabilities: scheme(&first.probabilities),
    }
}
