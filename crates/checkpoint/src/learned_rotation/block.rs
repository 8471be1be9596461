//! A block with learned matrices: its weights rotated, then rounded to nearest as the plan says, and its gradients by the matrices. What is
//! rounded counts as its value: gradients pass straight through.

use super::error::LearnedRotationError;
use super::matrices::{GradientRows, GradientSums, StepMatrix, column_sums};
use crate::blockwise::nearest;
use crate::plan::{Plan, PlannedLayer};
use kvant_forward::forward::blueprint::{Block, NormLayer};
use kvant_forward::forward::gradient::{BlockVisitor, Weights};
use kvant_forward::forward::{Decoder, Projection, Vector, WeightOverrides};
use kvant_numeric::kernel::Range as ValueRange;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply};
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationQuantizer;
use kvant_quant::rotation::RotationPlace;
use kvant_quant::rounding::{RoundingError, TensorContext};
use kvant_weights::activation_point::{ActivationPoint, Parameters};
use kvant_weights::weight::{Band, WeightMatrix};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

/// Gives the values of a weight as its layer is planned to be rounded.
pub(super) type RoundWeight =
    dyn Fn(&PlannedLayer, &WeightMatrix<'_>, TensorContext) -> Result<Vec<f32>, RoundingError>;

/// The values of a weight that is rounded to nearest.
pub(super) fn to_nearest(
    layer: &PlannedLayer,
    weight: &WeightMatrix<'_>,
    context: TensorContext,
) -> Result<Vec<f32>, RoundingError> {
    let tensor = nearest(Isa::best(), layer, weight, context)?;
    Ok(WeightMatrix::quantized(Arc::new(tensor)).all_values(Isa::best()))
}

/// What decides the weights of blocks besides the matrices.
pub(super) struct RoundedModel<'r, 'a> {
    pub decoder: &'r Decoder<'a>,
    pub rounds: &'r RoundWeight,
    /// The planned layers by module.
    pub layers: HashMap<&'r str, &'r PlannedLayer>,
    /// Of inputs with static scales.
    pub parameters: Parameters,
}

/// A rotated layer of a block.
struct RotatedLayer {
    rows: usize,
    columns: usize,
    inputs: Option<RotationPlace>,
    outputs: Option<(RotationPlace, Vec<Range<usize>>)>,
    /// The weight before it was rounded; `None` where it is not.
    float: Option<Arc<Vec<f32>>>,
    /// The rotated bias; empty if there is none.
    bias: Vec<f32>,
}

/// A block as the matrices make it.
pub(super) struct RotatedBlock<'a> {
    layers: HashMap<String, RotatedLayer>,
    /// The weights of all layers, rounded where they are planned to be.
    pub weights: Weights,
    /// What else differs from the checkpoint.
    pub overlay: WeightOverrides<'a>,
    /// Biases of norms of the stream: where they are stored, and their rotated values.
    norms: Vec<(Vec<Vector>, Vec<f32>)>,
}

impl<'r, 'a> RoundedModel<'r, 'a> {
    /// Of a plan, without static scales of inputs.
    pub fn new(decoder: &'r Decoder<'a>, plan: &'r Plan, rounds: &'r RoundWeight) -> RoundedModel<'r, 'a> {
        let layers = plan.layers().iter().map(|layer| (layer.module.as_str(), layer)).collect();
        RoundedModel { decoder, rounds, layers, parameters: Parameters::default() }
    }

    /// Block `index`.
    pub fn block(
        &self,
        index: usize,
        matrices: &BTreeMap<RotationPlace, StepMatrix>,
    ) -> Result<RotatedBlock<'a>, LearnedRotationError> {
        let block = &self.decoder.blueprint().blocks[index];
        let mut made = RotatedBlock {
            layers: HashMap::new(),
            weights: Weights::new(),
            overlay: WeightOverrides::default(),
            norms: Vec::new(),
        };
        for layer in block.layers() {
            self.add(layer, matrices, &mut made);
        }
        self.round(block, &mut made)?;
        if let Some(stream) = matrices.get(&RotationPlace::Stream) {
            for norm in [&block.attention_input, &block.feed_forward_input].into_iter().flatten() {
                self.add_norm(norm, stream, &mut made);
            }
        }
        // Routers, and gates of shared experts, are computed beside the tape.
        let beside =
            block.mixture().into_iter().flat_map(|mixture| [Some(&mixture.router), mixture.shared_gate.as_ref()]);
        for layer in beside.flatten() {
            if let Some(values) = made.weights.get(&layer.module) {
                let matrix = WeightMatrix::values(Arc::new(values.clone()), layer.rows, layer.columns);
                made.overlay.set_weight(&layer.module, matrix);
            }
        }
        Ok(made)
    }

    /// The rotated weight and bias of a layer.
    fn add(&self, layer: &Projection, matrices: &BTreeMap<RotationPlace, StepMatrix>, made: &mut RotatedBlock<'a>) {
        let weight = self.decoder.weight(layer);
        let mut values = weight.all_values(Isa::best());
        let rotation = weight.rotation();
        let place = |place: RotationPlace| Some((place, matrices.get(&place)?));
        let inputs = rotation.and_then(|rotation| place(rotation.inputs.as_ref()?.place));
        if let Some((_, matrix)) = inputs {
            values = matrix.forward(&values);
        }
        let outputs = rotation.and_then(|rotation| rotation.outputs.as_ref());
        let outputs = outputs.and_then(|outputs| Some((outputs, place(outputs.by.place)?)));
        let mut bias = Vec::new();
        if let Some((outputs, (_, matrix))) = outputs {
            matrix.on_outputs(&mut values, layer.columns, &outputs.rows);
            bias = self.decoder.tensors().bias(layer).unwrap_or_default();
            if !bias.is_empty() {
                for range in &outputs.rows {
                    let rotated = matrix.forward(&bias[range.clone()]);
                    bias[range.clone()].copy_from_slice(&rotated);
                }
                made.overlay.set_bias(&layer.module, bias.clone());
            }
        }
        let outputs = outputs.map(|(outputs, (place, _))| (place, outputs.rows.clone()));
        if inputs.is_some() || outputs.is_some() {
            let inputs = inputs.map(|(place, _)| place);
            let (rows, columns) = (layer.rows, layer.columns);
            let rotated = RotatedLayer { rows, columns, inputs, outputs, float: None, bias };
            made.layers.insert(layer.module.clone(), rotated);
        }
        made.weights.insert(layer.module.clone(), values);
    }

    /// Rounds the layers of a block that are planned.
    fn round(&self, block: &Block, made: &mut RotatedBlock<'a>) -> Result<(), LearnedRotationError> {
        let fits = |layer: &&Projection| {
            let planned = self.layers.get(layer.module.as_str());
            planned.is_some_and(|planned| (planned.rows, planned.columns) == (layer.rows, layer.columns))
        };
        let planned: Vec<&PlannedLayer> = block
            .layers()
            .into_iter()
            .filter(fits)
            .filter_map(|layer| self.layers.get(layer.module.as_str()).copied())
            .collect();
        let mut floats = HashMap::new();
        for layer in &planned {
            let values = Arc::new(made.weights.remove(&layer.module).unwrap_or_default());
            floats.insert(layer.module.as_str(), WeightMatrix::values(Arc::clone(&values), layer.rows, layer.columns));
            if let Some(rotated) = made.layers.get_mut(&layer.module) {
                rotated.float = Some(values);
            }
        }
        let range = |layer: &PlannedLayer| {
            let shares = |other: &&&PlannedLayer| {
                other.module == layer.module || layer.shares_scale.is_some() && other.shares_scale == layer.shares_scale
            };
            let ranges = planned.iter().filter(shares).map(|other| whole_range(&floats[other.module.as_str()]));
            ranges.fold(ValueRange::EMPTY, ValueRange::join)
        };
        for layer in &planned {
            let range = layer.scheme.weight.needs_tensor_range().then(|| range(layer));
            let context = TensorContext { arithmetic: layer.source.dtype.arithmetic(), range };
            let values = (self.rounds)(layer, &floats[layer.module.as_str()], context);
            let wrong = |cause| LearnedRotationError::Rounding { layer: layer.name.clone(), cause };
            made.weights.insert(layer.module.clone(), values.map_err(wrong)?);
            if let Some(input) = layer.scheme.input {
                let point = ActivationPoint::Input(layer.module.clone());
                let quantizer = ActivationQuantizer::new(input, self.parameters.get(&point).cloned());
                let wrong = |cause| LearnedRotationError::Inputs { layer: layer.name.clone(), cause };
                made.overlay.set_input(&layer.module, quantizer.map_err(wrong)?);
            }
        }
        Ok(())
    }

    /// The rotated bias of a norm of the stream.
    fn add_norm(&self, norm: &NormLayer, stream: &StepMatrix, made: &mut RotatedBlock<'a>) {
        // That of a whole row is one vector.
        let [bias] = norm.bias.as_slice() else { return };
        let rotated = stream.forward(&self.decoder.tensors().values(bias));
        made.overlay.set_vector(bias, rotated.clone());
        made.norms.push((norm.bias.clone(), rotated));
    }
}

/// The range of a weight in memory.
fn whole_range(matrix: &WeightMatrix<'_>) -> ValueRange {
    matrix.range(Isa::best(), &Band { rows: 0..matrix.rows, columns: 0..matrix.columns })
}

/// Adds the gradients of a block.
pub(super) struct BlockSums<'s, 'a> {
    pub block: &'s RotatedBlock<'a>,
    pub sums: &'s mut GradientSums,
}

impl RotatedLayer {
    /// The weight that gradients are of.
    fn weight<'l>(&'l self, rounded: &'l [f32]) -> Matrix<'l> {
        let values = self.float.as_ref().map_or(rounded, |float| float.as_slice());
        Matrix::new(values, self.rows, self.columns, self.columns)
    }
}

impl BlockVisitor for BlockSums<'_, '_> {
    fn linear(&mut self, module: &str, gradient: &[f32], read: &[f32]) {
        let (Some(layer), Some(rounded)) = (self.block.layers.get(module), self.block.weights.get(module)) else {
            return;
        };
        let (rows, columns, count) = (layer.rows, layer.columns, read.len() / layer.columns);
        let weight = layer.weight(rounded);
        let gradient_rows = GradientRows { data: gradient, width: rows };
        let read_rows = GradientRows { data: read, width: columns };
        if let Some(place) = layer.inputs {
            let mut back = vec![0.0; read.len()];
            let out = Matrix::new(gradient, count, rows, rows);
            multiply(MatrixMut::new(&mut back, count, columns, columns), out, weight, 1.0, Threads::Pool);
            let back = GradientRows { data: &back, width: columns };
            self.sums.add_rows(place, [back, read_rows]);
        }
        if let Some((place, ranges)) = &layer.outputs {
            let mut out = vec![0.0; gradient.len()];
            let x = Matrix::new(read, count, columns, columns);
            multiply(MatrixMut::new(&mut out, count, rows, rows), x, weight.transposed(), 1.0, Threads::Pool);
            for row in out.chunks_exact_mut(rows).filter(|_| !layer.bias.is_empty()) {
                row.iter_mut().zip(&layer.bias).for_each(|(out, bias)| *out += bias);
            }
            self.sums.add(*place, [GradientRows { data: &out, width: rows }, gradient_rows], ranges);
        }
    }

    fn norm(&mut self, norm: &NormLayer, gradient: &[f32]) {
        let known = self.block.norms.iter().find(|(stored, _)| !stored.is_empty() && *stored == norm.bias);
        let Some((_, bias)) = known else { return };
        let width = bias.len();
        let sums = column_sums(GradientRows { data: gradient, width });
        let both = [bias, &sums].map(|data| GradientRows { data, width });
        self.sums.add_rows(RotationPlace::Stream, both);
    }
}
