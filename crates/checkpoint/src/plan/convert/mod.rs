//! Planning a conversion: every weight that is quantized in the source gets the form of its codes that the target holds, or is
//! refused, or, where loss is accepted, requantized. Other tensors are copied.

mod coded;
mod excluded;
mod fake;
mod fit;
mod siblings;
mod together;

pub(super) use self::excluded::ExcludedCodes;

use self::coded::CodedLayer;
use self::fit::{Fit, Fitted};
use self::siblings::CommonSchemes;
use super::activation_points::LayerOrigin;
use super::attention::AttentionDrafts;
use super::build::{float_type, refuse_without_config};
use super::declared::{Declared, StatedAs};
use super::draft::{self, Draft, Drafts};
use super::error::PlanError;
use super::layer::{LayerDraft, has_global_scale};
use super::layer_drafts::LayerDrafts;
use super::recognised::Recognised;
use super::source::SourceTensor;
use super::{ActivationPoint, CalibratedPlan, PackedUse, ParameterTensor, Plan, SourceStorage};
use crate::recipe::Recipe;
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::OutputFormat;
use kvant_formats::import::{self, Import, StoredActivation};
use kvant_formats::loader_rules::fused_rows;
use kvant_formats::transcode::{Conversion, ConversionTarget, FloatType, loss_of_parameter};
use kvant_model::family::{ExpertStorage, Orientation, Role};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{ExpertsStorage, FusedExperts, Linear, expert_module};
use kvant_numeric::simd::Isa;
use kvant_quant::activation::StaticParameters;
use kvant_quant::counts::number;
use kvant_quant::scheme::{AttentionScheme, KvCacheScheme, LayerScheme, MinScale, Rotary, TensorScheme};
use kvant_weights::activation_point::Parameters;
use kvant_weights::parts::{Fused, ScaleEncoding};
use kvant_weights::weight::PackedMatrix;
use std::collections::{BTreeMap, HashMap};

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
        let refused = match Plan::converted(checkpoint, conversion) {
            Err(PlanError::Conversion { tensor, target, reason, hint }) if hint == ACCEPT => (tensor, target, reason),
            other => return other,
        };
        // Another weight may have no place even where loss is accepted.
        let requantizing = Conversion { requantize: true, ..*conversion };
        let hint = way_out(Plan::converted(checkpoint, &requantizing).is_err()).to_owned();
        let (tensor, target, reason) = refused;
        Err(PlanError::Conversion { tensor, target, reason, hint })
    }

    fn converted(checkpoint: &Checkpoint, conversion: &Conversion) -> Result<CalibratedPlan, PlanError> {
        let json = checkpoint.config()?;
        let config = json.as_ref().map_or_else(|| Ok(ModelConfig::default()), ModelConfig::from_json)?;
        if let (ConversionTarget::Codes(format), None) = (conversion.target, &json) {
            refuse_without_config(format.into())?;
        }
        let import = import::open(checkpoint)?;
        let float = match conversion.target {
            ConversionTarget::Float(Some(float)) => float,
            _ => float_type(&config),
        };
        let stated = match conversion.target {
            ConversionTarget::Float(stated) => stated.map(FloatType::dtype),
            _ => None,
        };
        let mut tensors = SourceTensor::imported(checkpoint, import.tensors().to_vec(), float.dtype());
        // A type that is asked for is that of all floats.
        for tensor in tensors.iter_mut().filter(|tensor| tensor.packed().is_some()) {
            tensor.dtype = stated.unwrap_or(tensor.dtype);
        }
        // A GGUF file of floats has another layout all the same, and a model with adapters other weights.
        let is_changed = checkpoint.gguf().is_some() || checkpoint.changes_weights();
        let is_converted =
            is_changed && matches!(conversion.target, ConversionTarget::Float(_) | ConversionTarget::Fake);
        let coded = StoredDefaults::of(&tensors);
        let cast = match conversion.target {
            ConversionTarget::Float(_) if coded.is_none() && !is_changed && json.is_some() => {
                let cast = stated.filter(|float| holds_other_floats(&tensors, *float));
                Some(cast.ok_or(PlanError::FloatsAlready)?)
            }
            _ => None,
        };
        let nothing = if json.is_some() { PlanError::NotQuantized } else { PlanError::Unsaid };
        let is_converted = is_converted || cast.is_some();
        let defaults = coded.or(is_converted.then_some(StoredDefaults::NONE)).ok_or(nothing)?;
        let (format, attention) = match conversion.target {
            ConversionTarget::Float(_) | ConversionTarget::Fake => {
                (OutputFormat::PlainFloats, AttentionScheme::default())
            }
            ConversionTarget::Codes(format) if conversion.leaves_activations() => {
                (format.into(), AttentionScheme::default())
            }
            ConversionTarget::Codes(format) => (format.into(), stored_attention(&import)),
        };
        let recipe = Recipe::carrying(format, attention, conversion.max_shard_size);
        let source = Recognised::new(tensors, config, recipe)?.with_rotations(&import)?;
        let drafts = match (conversion.target, cast) {
            (_, Some(cast)) => source.cast(cast),
            (ConversionTarget::Float(_) | ConversionTarget::Fake, None) => {
                let is_rounded = coded.is_some() && stated.is_none() && float != FloatType::F32;
                let has_choice = matches!(conversion.target, ConversionTarget::Float(_));
                source.widened(stated, is_rounded.then_some(float), has_choice)
            }
            (ConversionTarget::Codes(_), None) => {
                let natural = |matrix: &PackedMatrix<'_>| defaults.scheme_of(matrix).or_else(|| matrix.like());
                let common = source.common_schemes(natural);
                let act_order = defaults.act_order && format.capabilities().act_order;
                let widens = checkpoint.gguf().is_some();
                source.converted(&Task {
                    import: &import,
                    defaults,
                    common,
                    reference: None,
                    conversion: *conversion,
                    widens,
                    act_order,
                })?
            }
        };
        let stated = match conversion.target {
            ConversionTarget::Codes(_) => StatedAs::Quantized,
            ConversionTarget::Float(_) => StatedAs::Floats { float, fake: None },
            ConversionTarget::Fake => {
                StatedAs::Floats { float, fake: source.stored_fake_quantization(&import, defaults) }
            }
        };
        let declared = Declared::new(source, drafts);
        let parameters = declared.stored_parameters(&import, conversion)?;
        let plan = declared.plan(checkpoint, json, stated).map_err(|error| match error {
            // The problem's own hint is for quantizing.
            PlanError::CannotHold { layer, problem, .. } => PlanError::Conversion {
                tensor: layer,
                target: format.to_string(),
                reason: problem.reason,
                hint: way_out(conversion.requantize).to_owned(),
            },
            other => other,
        })?;
        // Nothing is left for calibration to find: parameters are those of the source.
        match plan.sites.is_empty() && plan.parameter_tensors.is_empty() {
            true => plan.without_calibration(),
            false => plan.calibrated(parameters, None),
        }
    }
}

/// Returns whether any tensor has plain floats of another type.
fn holds_other_floats(tensors: &[SourceTensor<'_>], float: Dtype) -> bool {
    tensors.iter().any(|tensor| tensor.dtype() != float && ScaleEncoding::of_float(tensor.dtype()).is_some())
}

/// The common properties of all weights of the source.
#[derive(Clone, Copy)]
struct StoredDefaults {
    /// Rows and columns that share a scale in most of them.
    tile: Option<(usize, usize)>,
    /// Whether zero has the middle code in all integers.
    symmetric: bool,
    /// Whether any are grouped otherwise than as they stand.
    act_order: bool,
}

impl StoredDefaults {
    /// Of weights that are not quantized.
    const NONE: StoredDefaults = StoredDefaults { tile: None, symmetric: true, act_order: false };

    /// The codes of a matrix; `None` if no scheme describes them.
    fn scheme_of(&self, matrix: &PackedMatrix<'_>) -> Option<TensorScheme> {
        matrix.scheme(self.symmetric, self.tile)
    }

    /// `None` where nothing is quantized.
    fn of(tensors: &[SourceTensor<'_>]) -> Option<StoredDefaults> {
        let packed = || tensors.iter().filter_map(SourceTensor::packed).flatten();
        let matrices = || packed().filter(|matrix| !matrix.is_float());
        matrices().next()?;
        let mut counts: HashMap<(usize, usize), usize> = HashMap::new();
        for tile in matrices().filter_map(|matrix| matrix.cut()) {
            *counts.entry(tile).or_default() += 1;
        }
        let isa = Isa::best();
        Some(StoredDefaults {
            tile: counts.into_iter().max_by_key(|(tile, count)| (*count, *tile)).map(|(tile, _)| tile),
            symmetric: matrices().filter(|matrix| matrix.is_integer()).all(|matrix| matrix.is_symmetric(isa)),
            act_order: matrices().any(|matrix| matrix.groups().is_some()),
        })
    }
}

/// The source and target of a conversion.
#[derive(Clone)]
struct Task<'c, 'a> {
    import: &'c Import<'a>,
    defaults: StoredDefaults,
    /// Schemes of layers that engines fuse, if they differ.
    common: CommonSchemes,
    /// A layer that the configuration must state together with every other, where that decides what they become.
    reference: Option<(String, LayerScheme)>,
    conversion: Conversion,
    /// Whether codes of embedding and head become floats.
    widens: bool,
    /// Whether input channels of layers whose codes are taken over are grouped otherwise than as they stand.
    act_order: bool,
}

impl Recognised<'_> {
    /// Plain floats in another type.
    fn cast(&self, float: Dtype) -> LayerDrafts {
        let is_rounded = |tensor: &SourceTensor<'_>| tensor.dtype() == Dtype::F32 || float == Dtype::F16;
        let cast = (0..self.tensors.len()).filter(|tensor| self.is_cast(*tensor, float));
        let rounded = cast.filter(|tensor| float != Dtype::F32 && is_rounded(&self.tensors[*tensor])).count();
        let rounding = (rounded > 0).then(|| {
            format!("values of {} are rounded; ‹dtype› f32 keeps all their digits", number(rounded, "tensor"))
        });
        LayerDrafts {
            layers: Vec::new(),
            attention: AttentionDrafts::default(),
            rest: self.cast_all(float),
            act_order: false,
            notices: rounding.into_iter().collect(),
        }
    }

    /// All values as floats, where one is stated in that type; `rounded` is the type of those that codes lose digits in, and `has_choice` says that another can be asked for.
    fn widened(&self, stated: Option<Dtype>, rounded: Option<FloatType>, has_choice: bool) -> LayerDrafts {
        let all = || (0..self.tensors.len()).collect::<Vec<usize>>();
        let rounding = rounded.map(|float| {
            let name = float.config_name();
            let way = if has_choice { "; ‹dtype› f32 keeps all their digits" } else { "" };
            format!("values are rounded to {name}{way}")
        });
        LayerDrafts {
            layers: Vec::new(),
            attention: AttentionDrafts::default(),
            rest: stated.map_or_else(|| self.keep_all(&all()), |float| self.cast_all(float)),
            act_order: false,
            notices: self.parted_experts().into_iter().chain(rounding).collect(),
        }
    }

    /// Says that experts stay apart which the family's class has in one tensor, and does not find.
    fn parted_experts(&self) -> Option<String> {
        let first = self.network.family().and_then(|family| family.moe?.experts.first());
        let is_parted = self.network.linears().iter().any(|linear| linear.expert.is_some());
        (is_parted && first.is_some_and(|layout| layout.storage != ExpertStorage::Separate)).then(|| {
            "experts stay apart, as codes had them, and transformers looks for one tensor of all: Kvant reads them, \
             transformers initializes them at random"
                .to_owned()
        })
    }

    /// The codes of all layers in the form that the target holds.
    fn converted(&self, task: &Task<'_, '_>) -> Result<LayerDrafts, PlanError> {
        let layers = self.convert_layers(task)?;
        let Drafts { drafts, mut notices, .. } = self.stated_together(task, layers)?;
        self.check_fused(&drafts, task.conversion.requantize)?;
        notices.extend(self.losses(task, &drafts));
        let attention = self.attention(&drafts)?;
        let rest = draft::without_place(self, &drafts);
        let with_codes = rest.iter().map(|tensor| &self.tensors[*tensor]).find(|tensor| tensor.has_codes());
        if let Some(tensor) = with_codes.filter(|_| !task.widens) {
            return Err(self.refusal(&tensor.name, "it is not a linear layer", "convert ‹to› float"));
        }
        let rest = self.keep_all(&rest);
        Ok(LayerDrafts { layers: drafts, attention, rest, act_order: task.act_order, notices })
    }

    /// Layers and experts, each in the form that the target holds.
    fn convert_layers(&self, task: &Task<'_, '_>) -> Result<Drafts, PlanError> {
        let linears = self.network.linears();
        let mut fitted = linears.iter().map(|linear| self.fit_linear(task, linear)).collect::<Result<Vec<_>, _>>()?;
        if task.conversion.requantize {
            self.agree(task, &mut fitted);
        }
        let of_linears = linears.iter().zip(fitted).map(|(linear, fitted)| match fitted {
            Some(fitted) => self.convert_linear(task, linear, fitted),
            None => self.keep_linear(linear, "not quantized in the source").map(Drafts::from),
        });
        let of_experts = self.network.experts().iter().map(|experts| self.convert_experts(task, experts));
        Drafts::join(of_linears.chain(of_experts))?.without_misfits(self)
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
    ) -> Result<(CodedLayer, &'t PackedMatrix<'t>), PlanError> {
        let tensor = &self.tensors[linear.weight];
        let Some([matrix]) = tensor.packed() else {
            return Err(self.refusal(&tensor.name, "it is several matrices", way_out(task.conversion.requantize)));
        };
        // GGUF files have the matrices of a Conv1D as those of linear layers, which no class of the model has.
        let is_turned = (matrix.rows(), matrix.columns()) != (linear.out_features, linear.in_features);
        if is_turned || linear.orientation == Orientation::InOut {
            let reason = "it is stored as [in, out] in the float model (a Conv1D), whose codes no loader reads";
            return Err(self.refusal(&tensor.name, reason, "convert ‹to› float"));
        }
        let stored = task.import.activations(&linear.module).filter(|_| !task.conversion.leaves_activations());
        let scheme = |activation: Option<&StoredActivation>| activation.map(|activation| activation.scheme);
        let (input, output) =
            (scheme(stored.and_then(|s| s.input.as_ref())), scheme(stored.and_then(|s| s.output.as_ref())));
        let layer = CodedLayer {
            name: self.output_name(&linear.module),
            module: linear.module.clone(),
            role: linear.role.name(),
            rows: matrix.rows(),
            columns: matrix.columns(),
            input,
            output,
            tensor: tensor.name.clone(),
            position: tensor.position,
            expert: None,
            dtype: self.source_type(linear.weight)?,
            bytes: matrix.stored_bytes(),
            fused_rows: fused_rows(linear, &self.config),
        };
        Ok((layer, matrix))
    }

    fn convert_linear(&self, task: &Task<'_, '_>, linear: &Linear, fitted: Fitted) -> Result<Drafts, PlanError> {
        let Fitted { layer, fit } = fitted;
        let shares = fit.packed_use == PackedUse::Values && has_global_scale(fit.scheme.weight);
        let shares_scale = linear.siblings.filter(|_| shares).map(|group| group.index());
        let layer = LayerDraft { shares_scale, ..layer.draft(fit.scheme, fit.packed_use) };
        let notices = change_of_values(&layer, fit).into_iter().collect();
        let drafts = self.layer(linear.weight, layer, &LayerOrigin::of_linear(linear), task.act_order)?;
        Ok(Drafts { notices, ..drafts })
    }

    fn convert_experts(&self, task: &Task<'_, '_>, experts: &FusedExperts) -> Result<Drafts, PlanError> {
        let ExpertsStorage::Float { weight } = experts.storage else { return Ok(Drafts::default()) };
        let tensor = &self.tensors[weight];
        let Some(matrices) = tensor.packed().filter(|_| tensor.has_codes()) else {
            return Ok(Drafts::from(vec![self.keep_experts(experts, weight, "not quantized in the source")]));
        };
        let of_all = self.output_name(&experts.module);
        let fused =
            self.format.capabilities().fused_experts_only.then_some(Fused { module: &of_all, count: matrices.len() });
        let dtype = self.source_type(weight)?;
        let layers = matrices.iter().enumerate().map(|(expert, matrix)| {
            let origin = LayerOrigin::of_expert(experts, expert_module(&experts.module, expert));
            let layer = CodedLayer {
                name: self.output_name(&origin.module),
                module: origin.module.clone(),
                role: experts.role.name(),
                rows: matrix.rows(),
                columns: matrix.columns(),
                input: None,
                output: None,
                tensor: tensor.name.clone(),
                position: tensor.position,
                expert: Some(expert),
                dtype,
                bytes: matrix.stored_bytes(),
                fused_rows: matches!(experts.role, Role::Gate | Role::Up).then_some(matrix.rows()),
            };
            let fit = self.fit(task, matrix, &layer, fused)?;
            let layer = layer.draft(fit.scheme, fit.packed_use);
            let notices = change_of_values(&layer, fit).into_iter().collect();
            let drafts = match fused {
                Some(_) => self.fused_parts(weight, layer, experts, task.act_order)?,
                None => self.layer(weight, layer, &origin, task.act_order)?,
            };
            Ok(Drafts { notices, ..drafts })
        });
        let biases = experts.bias.filter(|_| fused.is_none()).map(|bias| Ok(self.split_bias(experts, bias)));
        Drafts::join(layers.chain(biases))
    }

    /// Says which layers are requantized, those of a scheme together, and whether activations are left out.
    fn losses(&self, task: &Task<'_, '_>, drafts: &[Draft]) -> Vec<String> {
        let layers = draft::layers(drafts).map(|drafted| &drafted.layer);
        let mut anew: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for layer in layers.clone() {
            if matches!(layer.source.storage, SourceStorage::Packed { packed_use: PackedUse::Values, .. }) {
                anew.entry(layer.scheme.weight.to_string()).or_default().push(&layer.name);
            }
        }
        let line = |(scheme, names): (String, Vec<&str>)| match names.as_slice() {
            [one] => format!("`{one}` is requantized to `{scheme}`"),
            all => format!("{} layers are requantized to `{scheme}`: {}", all.len(), some_of(all, SHOWN)),
        };
        let has_activations = |layer: &LayerDraft| {
            task.import
                .activations(&layer.module)
                .is_some_and(|stored| stored.input.is_some() || stored.output.is_some())
        };
        let left_out = (task.conversion.leaves_activations() && layers.clone().any(has_activations))
            .then(|| "the source quantizes activations, which this layout does not: they stay in float".to_owned());
        anew.into_iter().map(line).chain(left_out).collect()
    }
}

/// A word to the user where codes are taken over and values change all the same.
fn change_of_values(layer: &LayerDraft, fit: Fit) -> Option<String> {
    let loss = fit.loss.filter(|_| fit.packed_use == PackedUse::Codes)?;
    Some(format!("`{}`: {}", layer.name, loss.reason))
}

impl Declared<'_> {
    /// The source's quantization of activations, at all activation points of the plan.
    fn stored_parameters(&self, import: &Import<'_>, conversion: &Conversion) -> Result<Parameters, PlanError> {
        let mut found = Vec::new();
        for ParameterTensor { part, .. } in &self.parameter_tensors {
            let Some(parameters) = parameters_of(import, &part.site) else { continue };
            if let (Some(loss), false) = (loss_of_parameter(part, &parameters), conversion.requantize) {
                return Err(self.source.refusal(&part.name, loss.reason, ACCEPT));
            }
            found.push((part.site.clone(), parameters));
        }
        Ok(Parameters::new(found))
    }
}

/// The alternative.
fn way_out(requantize: bool) -> &'static str {
    if requantize { FLOATS } else { ACCEPT }
}

/// The most names in a message.
const SHOWN: usize = 3;

/// The first `most` of some names, and how many more there are.
pub(super) fn some_of<N: AsRef<str>>(names: &[N], most: usize) -> String {
    let first = names.iter().take(most).map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(most) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn parameters_of(import: &Import<'_>, site: &ActivationPoint) -> Option<StaticParameters> {
    let module = |module: &str| import.activations(module);
    let stored = match site {
        ActivationPoint::Input(name) => module(name)?.input.as_ref(),
        ActivationPoint::Output(name) => module(name)?.output.as_ref(),
        ActivationPoint::Key(block) => import.attention(*block)?.key.as_ref(),
        ActivationPoint::Value(block) => import.attention(*block)?.value.as_ref(),
        ActivationPoint::Query(block) => import.attention(*block)?.query.as_ref(),
        ActivationPoint::Probabilities(block) => import.attention(*block)?.probabilities.as_ref(),
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
