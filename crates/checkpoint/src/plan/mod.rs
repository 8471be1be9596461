//! What will happen: every tensor of the source has its line, every tensor of the output its place. Pure: made from
//! headers, config.json and the recipe, never from weights. Invalid requests are refused while it is made.

mod activation_points;
mod algorithms;
mod attention;
mod biases;
mod blocks;
mod build;
mod calibrated;
mod config;
mod convert;
mod cost;
mod decisions;
mod declared;
mod draft;
mod error;
mod experts;
mod fingerprint;
mod float_share;
mod keep;
mod layer;
mod layer_drafts;
mod misfits;
mod names;
mod quantization_config;
mod recognised;
mod shaped;
mod size_of_kind;
mod source;
mod statistics;
mod tensor;

pub use attention::PlannedAttention;
pub(crate) use biases::bias_shape;
pub use blocks::{BlockWork, PlannedBlock, PlannedStage};
pub use calibrated::{CalibratedPlan, PlanOnData};
pub use cost::{CalibrationCost, CalibrationSize};
pub(crate) use cost::{HELD_OUT_ROWS, SEARCH_ROWS, SEARCH_TOKENS};
pub use error::{AlgorithmProblem, PlanError};
pub(crate) use fingerprint::{source_bytes, source_text};
use kvant_model::network::DroppedTensor;
use kvant_weights::activation_point::{ActivationPoint, PlannedActivationPoint};
pub use layer::{LayerOutput, PackedUse, PlannedLayer, ScalesOfSource, SourceStorage, SourceWeight};
pub(crate) use names::without_codes;
pub use size_of_kind::SizeOfKind;
pub use tensor::{KeptTensor, TensorAction};

use crate::recipe::Recipe;
use kvant_container::Layout;
use kvant_formats::format::OutputFormat;
use kvant_formats::loader_rules::{LoaderRefusal, ModelTraits, ShardShape, loaders_of, refusals_of};
use kvant_quant::scheme::LayerScheme;
use kvant_weights::parts::ParameterPart;
use kvant_weights::weight::{Band, RotatedWeights};
use serde_json::Value;
use statistics::TakenStatistics;
use std::collections::{BTreeMap, HashSet};

/// A plan: everything that a run needs besides the weights and what is found in data. With the latter it is a [`CalibratedPlan`].
#[derive(Debug)]
pub struct Plan {
    recipe: Recipe,
    family: Option<&'static str>,
    architecture: String,
    format: OutputFormat,
    layers: Vec<PlannedLayer>,
    blocks: Vec<PlannedBlock>,
    outside: Vec<LayerId>,
    attention: Vec<PlannedAttention>,
    sites: Vec<PlannedActivationPoint>,
    parameter_tensors: Vec<ParameterTensor>,
    kept: Vec<KeptTensor>,
    dropped: Vec<DroppedTensor>,
    layout: Layout,
    config: Option<Value>,
    longest: Option<usize>,
    reads_pairs: bool,
    traits: ModelTraits,
    notices: Vec<String>,
    float_share: Option<String>,
    taken: TakenStatistics,
    source_bytes: u64,
    fingerprint: String,
}

/// What it says; nothing changes it afterwards.
impl Plan {
    /// The resolved request of the user.
    pub fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    /// The family's name; `None` for an architecture that Kvant has no description of.
    pub fn family(&self) -> Option<&'static str> {
        self.family
    }

    /// The first of config.json's `architectures`, or its `model_type`.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// The on-disk convention.
    pub fn format(&self) -> OutputFormat {
        self.format
    }

    /// The layers to quantize, in the order of the source.
    pub fn layers(&self) -> &[PlannedLayer] {
        &self.layers
    }

    /// A layer to quantize.
    pub fn layer(&self, id: LayerId) -> &PlannedLayer {
        &self.layers[id.0]
    }

    /// A tensor that is carried over.
    pub fn kept_tensor(&self, id: KeptId) -> &KeptTensor {
        &self.kept[id.0]
    }

    /// All blocks of the decoder, where algorithms need calibration; else none.
    pub fn blocks(&self) -> &[PlannedBlock] {
        &self.blocks
    }

    /// The layers that no block has where algorithms need calibration: they are rounded to nearest.
    pub fn outside(&self) -> &[LayerId] {
        &self.outside
    }

    /// The blocks whose attention is quantized.
    pub fn attention(&self) -> &[PlannedAttention] {
        &self.attention
    }

    /// The places whose activations calibration must observe.
    pub fn sites(&self) -> &[PlannedActivationPoint] {
        &self.sites
    }

    /// The tensors that hold what calibration finds.
    pub fn parameter_tensors(&self) -> &[ParameterTensor] {
        &self.parameter_tensors
    }

    /// The tensors that are carried over.
    pub fn kept(&self) -> &[KeptTensor] {
        &self.kept
    }

    /// The biases that are rounded.
    pub fn rounded_biases(&self) -> impl Iterator<Item = &KeptTensor> {
        self.kept.iter().filter(|kept| matches!(kept.action, TensorAction::Round { .. }))
    }

    /// The tensors that are not.
    pub fn dropped(&self) -> &[DroppedTensor] {
        &self.dropped
    }

    /// Names, types, shapes and places of the output's tensors.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The output's config.json, where the source has one.
    pub fn config(&self) -> Option<&Value> {
        self.config.as_ref()
    }

    /// The longest context that config.json states, in tokens.
    pub fn longest(&self) -> Option<usize> {
        self.longest
    }

    /// Returns whether both stacks of an encoder-decoder read each sequence.
    pub fn reads_pairs(&self) -> bool {
        self.reads_pairs
    }

    /// Known problems of loaders.
    pub fn traits(&self) -> &ModelTraits {
        &self.traits
    }

    /// Notices for the user.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The weights that stay in float by default, if more than a tenth; the first of the notices.
    pub fn float_share(&self) -> Option<&str> {
        self.float_share.as_deref()
    }

    /// Bytes of all tensors of the source.
    pub fn source_bytes(&self) -> u64 {
        self.source_bytes
    }

    /// Identifies source, recipe and output layout.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }
}

/// A tensor of the output that holds parameters of activations.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterTensor {
    /// What it holds of which place.
    pub part: ParameterPart,
    /// The index among the declarations.
    pub tensor: usize,
}

/// A layer of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LayerId(usize);

impl LayerId {
    /// Its place among [`Plan::layers`].
    pub fn index(self) -> usize {
        self.0
    }
}

/// A tensor of a plan that is carried over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeptId(usize);

/// A unit of work that is recorded when it is done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// Layers that share a scale of the tensor, or one layer.
    Layers(Vec<LayerId>),
    /// A tensor that is carried over.
    Keep(KeptId),
    /// All of [`Plan::parameter_tensors`].
    Parameters,
}

impl Plan {
    /// The units of work, in the order of the source's files, so that reading is sequential.
    pub fn jobs(&self) -> Vec<Job> {
        let mut jobs: Vec<(usize, Job)> = Vec::new();
        let mut shared: BTreeMap<usize, usize> = BTreeMap::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let place = layer.shares_scale.and_then(|group| shared.get(&group).copied());
            match place.map(|place| &mut jobs[place].1) {
                Some(Job::Layers(members)) => members.push(LayerId(index)),
                _ => {
                    layer.shares_scale.map(|group| shared.insert(group, jobs.len()));
                    jobs.push((layer.source.position, Job::Layers(vec![LayerId(index)])));
                }
            }
        }
        jobs.extend(self.kept.iter().enumerate().map(|(index, kept)| (kept.position, Job::Keep(KeptId(index)))));
        jobs.sort_by_key(|(position, _)| *position);
        let parameters = (!self.parameter_tensors.is_empty()).then_some(Job::Parameters);
        jobs.into_iter().map(|(_, job)| job).chain(parameters).collect()
    }

    /// The tensors that a unit of work writes, as indices among the declarations. Layers that are matrices of one tensor share it.
    pub fn tensors_of(&self, job: &Job) -> Vec<usize> {
        match job {
            Job::Layers(layers) => layers.iter().flat_map(|layer| self.layer(*layer).output.tensors()).collect(),
            Job::Keep(kept) => self.kept_tensor(*kept).tensors().collect(),
            Job::Parameters => self.parameter_tensors.iter().map(|tensor| tensor.tensor).collect(),
        }
    }

    /// The bytes of the source that a unit of work reads.
    pub fn source_bytes_of(&self, job: &Job) -> u64 {
        match job {
            Job::Layers(layers) => layers.iter().map(|layer| self.layer(*layer).source_bytes()).sum(),
            Job::Keep(kept) => self.kept_tensor(*kept).action.source_bytes(),
            Job::Parameters => 0,
        }
    }

    /// Whether calibration must find something, or algorithms run on blocks, before the rest of the plan can be carried out.
    pub fn needs_calibration(&self) -> bool {
        !self.sites.is_empty() || !self.blocks.is_empty()
    }

    /// Returns whether weights are read that are quantized in the source.
    pub fn reads_codes(&self) -> bool {
        let packed = |layer: &PlannedLayer| matches!(layer.source.storage, SourceStorage::Packed { .. });
        let widened = |kept: &KeptTensor| matches!(kept.action, TensorAction::Dequantize { .. });
        self.layers.iter().any(packed) || self.kept.iter().any(widened)
    }

    /// Weights of the layers that are quantized.
    pub fn quantized_parameters(&self) -> u64 {
        self.layers.iter().map(|layer| (layer.rows * layer.columns) as u64).sum()
    }

    /// Bits that a quantized weight takes on average, scales and zero points included; of values as floats, those of any element.
    pub fn bits_per_weight(&self) -> f64 {
        if self.layers.is_empty() {
            let declared = self.layout.declarations().iter();
            let elements: usize = declared.map(|declaration| declaration.shape.iter().product::<usize>()).sum();
            return self.layout.total_size() as f64 * 8.0 / elements.max(1) as f64;
        }
        let bytes: u64 = self.layers.iter().map(|layer| layer.output_bytes(&self.layout)).sum();
        bytes as f64 * 8.0 / (self.quantized_parameters().max(1)) as f64
    }

    /// What takes the room in the output, the most first; without scales of activations and of the cache.
    pub fn sizes(&self) -> Vec<SizeOfKind> {
        let of_layers = self.layers.iter().map(|layer| (layer.role, true, layer.output_bytes(&self.layout)));
        let of_kept = self.kept.iter().map(|kept| {
            let places = &self.layout.places()[kept.tensors()];
            (kept.role.unwrap_or(kept.reason), false, places.iter().map(|place| place.len).sum())
        });
        SizeOfKind::of(of_layers.chain(of_kept))
    }

    /// Returns whether experts that loaders find as one tensor are written one by one.
    pub fn splits_experts(&self) -> bool {
        self.traits.fused_experts
    }

    /// The loaders known to load the result.
    pub fn loaders(&self) -> Vec<&'static str> {
        loaders_of(self.format, &self.traits, self.shapes())
    }

    /// The refusals of all loaders of the format, if none of them takes the result.
    pub fn loader_refusals(&self) -> Vec<LoaderRefusal> {
        refusals_of(self.format, &self.traits, self.shapes())
    }

    /// The distinct schemes and sizes of layers, in the order of the first of each.
    fn shapes(&self) -> impl Iterator<Item = (LayerScheme, ShardShape)> {
        let shape = |layer: &PlannedLayer| {
            let PlannedLayer { rows, columns, fused_rows, .. } = *layer;
            (layer.scheme, ShardShape { rows, columns, fused_rows, is_cut: false })
        };
        let mut seen = HashSet::new();
        self.layers.iter().map(shape).filter(move |shape| seen.insert(*shape))
    }

    /// An upper bound of the private memory of a run with so many threads, in bytes.
    pub fn peak_memory(&self, threads: usize) -> u64 {
        let of_rounding = |layer: &PlannedLayer| match self.whole_rounding(layer) {
            Some(rounding) if !layer.is_recoded() => {
                let weights = layer.rows as u64 * layer.columns as u64;
                5 * weights + rounding.peak_bytes(layer.columns, layer.rows)
            }
            _ => 0,
        };
        let largest = self.layers.iter().map(|layer| layer.band_bytes().max(of_rounding(layer))).max().unwrap_or(0);
        const PROGRAM: u64 = 24 << 20;
        PROGRAM + self.rotated_bytes(threads) + largest * threads as u64
    }

    /// Bytes of rotated weights that are kept in memory, and of those that threads are making.
    fn rotated_bytes(&self, threads: usize) -> u64 {
        let bytes = |layer: &PlannedLayer| layer.rows as u64 * layer.columns as u64 * size_of::<f32>() as u64;
        let largest = self.layers.iter().map(bytes).max().unwrap_or(0);
        let kept = |_| largest * (RotatedWeights::KEPT + threads) as u64;
        self.recipe.algorithms().rotation.map_or(0, kept) + self.learned_rotation_bytes()
    }

    /// The bands in which a weight is worked on: all of it where a rounding wants to see it whole.
    pub(crate) fn bands(&self, layer: &PlannedLayer) -> Vec<Band> {
        match self.whole_rounding(layer) {
            Some(_) if !layer.is_recoded() => vec![Band { rows: 0..layer.rows, columns: 0..layer.columns }],
            _ => layer.bands(),
        }
    }
}
