//! A checkpoint looked at module by module, so that one that is wrong does not hide the others: what [`super::open`] checks,
//! as a list. For those who judge a checkpoint; who wants its values opens it.

use super::{columns_of, is_parameter, is_rotation};
use crate::format::plain_floats;
use crate::format::stored::scalars::integers;
use crate::format::stored::{
    Catalog, CodeType, ModuleReader, ModuleTensors, ModuleWeight, StoredActivations, StoredAttention, WeightLayout,
    found_encoding,
};
use kvant_container::{Checkpoint, TensorView};
use kvant_model::network::TensorMeta;
use kvant_numeric::DType;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{Granularity, TensorScheme};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{Content, ScaleEncoding};
use serde_json::Value;
use std::collections::HashSet;

/// The contents of a quantized checkpoint, and their defects.
#[derive(Debug, Default)]
pub(crate) struct Survey<'a> {
    /// The tensors as if nothing were quantized, in the order of the checkpoint.
    pub tensors: Vec<TensorMeta>,
    /// The weights that are codes and scales.
    pub weights: Vec<StoredWeight<'a>>,
    /// The convolutions whose weights are codes, with their scales.
    pub convolutions: Vec<(String, TensorView<'a>)>,
    /// The modules whose weights are floats of their codes. All tensors of these are also in `plain`.
    pub rounded: Vec<String>,
    /// The biases that are codes, by module, with their scales.
    pub biases: Vec<(String, TensorView<'a>)>,
    /// The tensors that are stored as they are.
    pub plain: Vec<(String, TensorView<'a>)>,
    /// The tensors that describe activations.
    pub parameters: Vec<(String, TensorView<'a>)>,
    /// The described activations of each module.
    pub activations: Vec<(String, StoredActivations)>,
    /// The modules whose inputs are rotated while the model runs, with the channels that each matrix mixes and whether it is Sylvester's.
    pub rotations: Vec<(String, StoredRotation)>,
    /// Modules that quantize what attention works on.
    pub attention: Vec<(String, StoredAttention)>,
    /// Unsupported parts, with the module.
    pub problems: Vec<Problem>,
}

/// A rotation of a layer's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredRotation {
    /// The channels that it mixes.
    pub size: usize,
    /// Whether it is the matrix that engines compute by themselves.
    pub is_sylvester: bool,
}

/// The subject of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProblemKind {
    /// The `quantization_config` as a whole.
    Configuration,
    /// The storage of a weight.
    Weight,
    /// Static parameters of inputs and outputs, and rotations of inputs.
    Activations,
    /// Scales of the cache and of attention.
    Attention,
}

/// Something that could not be understood.
#[derive(Debug)]
pub(crate) struct Problem {
    pub subject: ProblemKind,
    /// The module; empty for the configuration.
    pub module: String,
    pub error: ImportError,
}

/// A weight that is codes and scales.
#[derive(Clone, Debug)]
pub(crate) struct StoredWeight<'a> {
    pub module: String,
    /// Output and input channels.
    pub rows: usize,
    pub columns: usize,
    /// The format of codes, as formats are spelled.
    pub element: String,
    /// The float that they are, if they are.
    pub float: Option<MiniFloat>,
    /// Bits of a code.
    pub bits: u32,
    /// Rows and columns that share a scale.
    pub tile: (usize, usize),
    /// The granularity of scales according to config.json, if stated for the layer.
    pub granularity: Option<Granularity>,
    /// Whether the tensor's scale multiplies values of a first stage, not scales.
    pub two_stages: bool,
    /// Whether zero points may differ from that of a symmetric type.
    pub zero_points: bool,
    /// The storage of scales; `None` if unknown.
    pub scales: Option<ScaleEncoding>,
    /// Whether there is a scale of the whole tensor over them.
    pub global_scale: bool,
    /// Matrices in each tensor: the experts.
    pub matrices: usize,
    /// Whether GPTQ's first version took 1 away from zero points.
    pub less_one: bool,
    /// The tensors.
    pub parts: Vec<(Content, TensorView<'a>)>,
    /// The tensor with the group of every input channel.
    pub groups: Option<TensorView<'a>>,
    /// Whether its groups are not runs of input channels.
    pub is_reordered: bool,
}

impl StoredWeight<'_> {
    /// The number of scales along the input channels.
    pub fn groups_across(&self) -> usize {
        self.columns.div_ceil(self.tile.1.max(1))
    }
}

/// Looks at everything. `config` is the checkpoint's config.json.
pub(crate) fn survey<'a>(checkpoint: &'a Checkpoint, config: Option<&Value>) -> Survey<'a> {
    let catalog = Catalog::new(checkpoint);
    let mut surveyor = Surveyor { catalog: &catalog, survey: Survey::default(), taken: HashSet::new() };
    match super::method_of(checkpoint, config) {
        Ok(method) => surveyor.modules(&*method),
        Err(error) => surveyor.problem(ProblemKind::Configuration, "", error),
    }
    surveyor.rest();
    if let Err(error) = plain_floats::activations(config, surveyor.survey.tensors.iter()) {
        surveyor.problem(ProblemKind::Activations, "", error);
    }
    surveyor.survey
}

struct Surveyor<'c, 'a> {
    catalog: &'c Catalog<'a>,
    survey: Survey<'a>,
    /// Names of tensors that belong to a weight, and modules whose weight could not be read.
    taken: HashSet<String>,
}

impl<'a> Surveyor<'_, 'a> {
    fn modules(&mut self, method: &dyn ModuleReader) {
        let mut seen = HashSet::new();
        let names: Vec<&str> = self.catalog.tensors().iter().map(|(name, _)| module_of(name)).collect();
        for name in names.into_iter().filter(|name| seen.insert(*name)) {
            let module = self.catalog.module(name);
            self.activations(method, &module);
            match method.bias(&module) {
                Ok(bias) => bias.into_iter().for_each(|bias| self.bias(&module, bias)),
                Err(error) => self.problem(ProblemKind::Weight, name, error),
            }
            if let (Some(scheme), Some(codes)) = (method.convolution(&module), module.tensor("weight")) {
                self.convolution(&module, scheme, codes);
                continue;
            }
            if method.rounded(&module).is_some() {
                self.survey.rounded.push(name.to_owned());
                continue;
            }
            let mut columns = columns_of(&module);
            match method.weights(&module) {
                Ok(weights) => {
                    let first = weights.first().and_then(|weight| weight.matrices.first());
                    columns = first.map(|layout| layout.columns).or(columns);
                    weights.into_iter().for_each(|weight| self.weight(&module, weight));
                }
                Err(error) => {
                    self.take_all(&module);
                    self.survey.tensors.extend(unread_weight(&module));
                    self.problem(ProblemKind::Weight, name, error);
                }
            }
            self.rotation(method, &module, columns);
        }
        let names = self.catalog.tensors().iter().map(|(name, _)| name);
        self.taken
            .extend(names.filter(|name| is_rotation(suffix_of(name)) || method.describes_transform(name)).cloned());
    }

    /// How the inputs of a layer are rotated while the model runs.
    fn rotation(&mut self, method: &dyn ModuleReader, module: &ModuleTensors<'_, 'a>, columns: Option<usize>) {
        match columns.map_or(Ok(None), |columns| method.input_rotation(module, columns)) {
            Ok(None) => {}
            Ok(Some(rotation)) => {
                let found = StoredRotation { size: rotation.channels(), is_sylvester: rotation.is_sylvester() };
                self.survey.rotations.push((module.name.to_owned(), found));
            }
            Err(error) => self.problem(ProblemKind::Activations, module.name, error),
        }
    }

    fn problem(&mut self, subject: ProblemKind, module: &str, error: ImportError) {
        self.survey.problems.push(Problem { subject, module: module.to_owned(), error });
    }

    fn activations(&mut self, method: &dyn ModuleReader, module: &ModuleTensors<'_, 'a>) {
        match method.activations(module) {
            Ok(found) if found.is_empty() => {}
            Ok(found) => self.survey.activations.push((module.name.to_owned(), found)),
            Err(error) => self.problem(ProblemKind::Activations, module.name, error),
        }
        match method.attention(module) {
            Ok(found) if found.is_empty() => {}
            Ok(found) => self.survey.attention.push((module.name.to_owned(), found)),
            Err(error) => self.problem(ProblemKind::Attention, module.name, error),
        }
    }

    fn take_all(&mut self, module: &ModuleTensors<'_, 'a>) {
        let names = module.suffixes().map(|suffix| module.tensor_name(suffix));
        self.taken.extend(names.filter(|name| !name.ends_with(".bias")));
    }

    fn weight(&mut self, module: &ModuleTensors<'_, 'a>, weight: ModuleWeight) {
        let (name, matrices) = (weight.name, weight.matrices.len());
        self.survey.tensors.push(TensorMeta::new(name.as_str(), weight.shape, "F32"));
        let Some(layout) = weight.matrices.into_iter().next() else { return };
        self.taken.extend(layout.parts.iter().map(|part| part.name.clone()).chain(layout.groups.clone()));
        if let Err(error) = layout.bind(self.catalog) {
            self.problem(ProblemKind::Weight, module.name, error);
        }
        let stored = self.stored(name.strip_suffix(".weight").unwrap_or(&name), &layout, matrices);
        self.survey.weights.push(stored);
    }

    /// A bias that is codes.
    fn bias(&mut self, module: &ModuleTensors<'_, 'a>, bias: ModuleWeight) {
        self.survey.tensors.push(TensorMeta::new(bias.name.as_str(), bias.shape, "F32"));
        for layout in bias.matrices {
            self.taken.extend(layout.parts.iter().map(|part| part.name.clone()));
            if let Err(error) = layout.bind(self.catalog) {
                self.problem(ProblemKind::Weight, module.name, error);
            }
        }
        let scales = module.tensor("bias_scale").map(|scales| (module.name.to_owned(), scales));
        self.survey.biases.extend(scales);
    }

    /// Codes with the shape of the weight.
    fn convolution(&mut self, module: &ModuleTensors<'_, 'a>, scheme: TensorScheme, codes: TensorView<'a>) {
        self.survey.tensors.push(TensorMeta::new(codes.name(), codes.shape(), "F32"));
        let parts = ["weight", "weight_scale", "weight_zero_point"];
        self.taken.extend(parts.map(|part| module.tensor_name(part)));
        match convolution_scales(module, scheme, codes) {
            Ok(scales) => self.survey.convolutions.push((module.name.to_owned(), scales)),
            Err(error) => self.problem(ProblemKind::Weight, module.name, error),
        }
    }

    fn stored(&self, module: &str, layout: &WeightLayout, matrices: usize) -> StoredWeight<'a> {
        let parts = layout.parts.iter().filter_map(|part| Some((part.content, self.catalog.tensor(&part.name)?)));
        let parts: Vec<_> = parts.map(with_found_encoding).collect();
        let has = |wanted: fn(&Content) -> bool| layout.parts.iter().any(|part| wanted(&part.content));
        let scales = parts.iter().find_map(|(content, _)| match content {
            Content::Scales { encoding, .. } => Some(*encoding),
            _ => None,
        });
        let groups = layout.groups.as_ref().and_then(|name| self.catalog.tensor(name));
        StoredWeight {
            module: module.to_owned(),
            rows: layout.rows,
            columns: layout.columns,
            element: spelling(layout.element),
            float: float(layout.element),
            bits: bits(layout.element),
            tile: layout.tile,
            granularity: layout.scheme.and_then(|scheme| scheme.granularity()),
            two_stages: layout.two_stages,
            zero_points: has(|content| matches!(content, Content::ZeroPoints { .. } | Content::Biases { .. }))
                && !layout.zero_points_optional,
            scales,
            global_scale: has(|content| matches!(content, Content::GlobalScale | Content::GlobalScaleReciprocal)),
            matrices,
            less_one: has(|content| matches!(content, Content::ZeroPoints { less_one: true, .. })),
            parts,
            is_reordered: groups.is_some_and(|view| is_reordered(view, layout.tile.1)),
            groups,
        }
    }

    /// The tensors that belong to no weight.
    fn rest(&mut self) {
        for (name, view) in self.catalog.tensors().iter().filter(|(name, _)| !self.taken.contains(name)) {
            if is_parameter(suffix_of(name)) {
                self.survey.parameters.push((name.clone(), *view));
            } else {
                self.survey.tensors.push(TensorMeta::new(name.as_str(), view.shape(), view.dtype().to_string()));
                self.survey.plain.push((name.clone(), *view));
            }
        }
    }
}

/// The scales of codes with the shape of a convolution's weight.
///
/// # Errors
/// *Invalid* where codes are not of a byte, or parameters neither one nor one for each channel.
fn convolution_scales<'a>(
    module: &ModuleTensors<'_, 'a>,
    scheme: TensorScheme,
    codes: TensorView<'a>,
) -> Result<TensorView<'a>, ImportError> {
    if scheme.format().bits() != 8 || codes.dtype().bitsize() != 8 {
        return Err(ImportError::invalid(
            codes.name(),
            format!("{} codes of {scheme} in a convolution", codes.dtype()),
        ));
    }
    let scales = module.need("weight_scale")?;
    // Output channels are the first axis, or of transposed convolutions the second.
    let channels: Vec<usize> = codes.shape().iter().take(2).copied().collect();
    for view in [Some(scales), module.tensor("weight_zero_point")].into_iter().flatten() {
        let count = view.shape().iter().product::<usize>();
        let fits = match scheme.granularity() {
            Some(Granularity::Tensor) => count == 1,
            _ => channels.contains(&count),
        };
        if !fits {
            let reason = format!("shape {:?} does not fit the codes of shape {:?}", view.shape(), codes.shape());
            return Err(ImportError::invalid(view.name(), reason));
        }
    }
    Ok(scales)
}

/// Returns whether some input channel is in another group than those beside it.
fn is_reordered(groups: TensorView<'_>, size: usize) -> bool {
    let stated = integers(groups).unwrap_or_default();
    stated.iter().enumerate().any(|(column, group)| (column / size.max(1)) as i64 != *group)
}

/// The last part of the name of a tensor.
fn suffix_of(tensor: &str) -> &str {
    tensor.rsplit('.').next().unwrap_or(tensor)
}

fn module_of(tensor: &str) -> &str {
    tensor.rsplit_once('.').map_or("", |(module, _)| module)
}

/// An existing weight of unknown storage and shape.
fn unread_weight(module: &ModuleTensors<'_, '_>) -> Option<TensorMeta> {
    let suffixes = ["weight", "qweight", "weight_packed"];
    suffixes.iter().find(|suffix| module.tensor(suffix).is_some())?;
    Some(TensorMeta::new(module.tensor_name("weight"), [0, 0], "F32"))
}

fn spelling(element: CodeType) -> String {
    match element {
        CodeType::Float(format) => DType::MiniFloat(format).to_string(),
        CodeType::Integer { bits, signed } => format!("{}int{bits}", if signed { "" } else { "u" }),
    }
}

fn float(element: CodeType) -> Option<MiniFloat> {
    match element {
        CodeType::Float(format) => Some(format),
        CodeType::Integer { .. } => None,
    }
}

fn bits(element: CodeType) -> u32 {
    match element {
        CodeType::Float(format) => format.bits(),
        CodeType::Integer { bits, .. } => bits,
    }
}

/// Tools differ in the type of plain scales: the one that is there.
fn with_found_encoding<'a>((content, view): (Content, TensorView<'a>)) -> (Content, TensorView<'a>) {
    let content = match content {
        Content::Scales { encoding, transposed } => {
            Content::Scales { encoding: found_encoding(encoding, view).unwrap_or(encoding), transposed }
        }
        Content::Biases { encoding } => {
            Content::Biases { encoding: found_encoding(encoding, view).unwrap_or(encoding) }
        }
        other => other,
    };
    (content, view)
}
