//! Converts a layer of a graph to a [`LayerProblem`] for the roundings of [`kvant_quant::rounding`], and their choice to
//! codes.
//!
//! Roundings that need inputs and float outputs see the layer whole, as a product of its weight with patches of its input. Others
//! see the rows of a matrix: convolutions by the patches of their inputs, each group with its own Hessian. All calibration
//! samples count. Scales and zero points stay those that the weight's method found.

use std::num::NonZeroU32;

use kvant_numeric::format::Int;
use kvant_quant::hessian::{Hessian, HessianError};
use kvant_quant::observer::ObserverRef;
use kvant_quant::reconstruction::{ActivationFunction, Shape};
use kvant_quant::rounding::{
    AnyRounding, Grid, LayerError, LayerProblem, Needs, RoundedLayer, RoundingError, SharedInputs,
};
use kvant_quant::scheme::{Axis, Granularity, IntScheme, ScaleType, SchemeError, TensorScheme, ZeroPoint};
use kvant_quant::{Codes, QuantParts, QuantTensor};

use super::form::{Form, Kind};
use super::im2col::Unfolding;
use super::layer::{Layer, Rounded};
use super::layer_io::{LayerIo, Pair};
use super::samples::PatchedSamples;
use super::target::bias_factor;
use crate::element::Element;
use crate::error::AlgorithmError;
use crate::quantization::Affine;

/// Chooses the codes of a layer. Where a rounding has nothing to go by, they are the nearest.
pub(super) fn round(rounding: &AnyRounding, layer: &Layer, captured: &LayerIo<'_>) -> Result<Rounded, AlgorithmError> {
    match rounding.needs() {
        Needs::Outputs => round_whole(rounding, layer, captured),
        Needs::Nothing | Needs::Hessian | Needs::InputMismatch => round_by_groups(rounding, layer, captured),
    }
}

/// Returns whether a rounding needs the float model's inputs of a layer.
pub(super) fn reads_float_inputs(rounding: &AnyRounding) -> bool {
    rounding.mixes_inputs() || rounding.needs() == Needs::InputMismatch
}

fn round_whole(rounding: &AnyRounding, layer: &Layer, captured: &LayerIo<'_>) -> Result<Rounded, AlgorithmError> {
    let nearest = || Rounded { codes: layer.grid.nearest(&layer.weight), bias: None };
    let Some(form) = Form::of(layer) else { return Ok(nearest()) };
    let shape = form.shape;
    let matrix =
        Matrix { layer, rows: shape.outputs, columns: shape.features, place: &|row, column| form.place(row, column) };
    let Some(parameters) = matrix.parameters()? else { return Ok(nearest()) };
    if rounding.refuses(&parameters.scheme()).is_some() {
        return Ok(nearest());
    }
    let Some(mut samples) = PatchedSamples::new(&form, layer, captured)? else { return Ok(nearest()) };
    let factor = bias_factor(&layer.node);
    let bias: Option<Vec<f32>> = layer.bias.as_ref().map(|bias| bias.iter().map(|b| b * factor).collect());
    let mut problem = LayerProblem {
        layer: layer.name(),
        shape,
        weight: &form.rows(&layer.weight),
        grid: matrix.grid(&parameters),
        bias: bias.as_deref(),
        function: &layer.function,
        inputs: None,
        samples: Some(&mut samples),
        cancelled: captured.cancelled,
    };
    let Some(rounded) = usable(layer, rounding.round(&mut problem))? else { return Ok(nearest()) };
    let mut codes = vec![0; layer.weight.len()];
    matrix.put(&rounded.tensor, &mut codes);
    // What a layer multiplies by nothing cannot be trained.
    let unscaled = |bias: Vec<f32>| (factor != 0.0).then(|| bias.iter().map(|b| b / factor).collect());
    Ok(Rounded { codes, bias: rounded.bias.and_then(unscaled) })
}

fn round_by_groups(rounding: &AnyRounding, layer: &Layer, captured: &LayerIo<'_>) -> Result<Rounded, AlgorithmError> {
    let mut codes = layer.grid.nearest(&layer.weight);
    let Some(unfolding) = Unfolding::of(&layer.node, &layer.shape) else {
        return Ok(Rounded { codes, bias: None });
    };
    let inputs = match rounding.needs() {
        Needs::Nothing => (0..unfolding.groups).map(|_| None).collect(),
        needs => hessians(layer, &unfolding, captured, needs == Needs::InputMismatch)?,
    };
    let (rows, columns) = (unfolding.rows, unfolding.columns);
    for (group, inputs) in inputs.into_iter().enumerate() {
        captured.check_cancelled()?;
        let inputs = inputs.map(SharedInputs::new);
        let matrix = Matrix { layer, rows, columns, place: &|row, column| unfolding.place(group, row, column) };
        let Some(parameters) = matrix.parameters()? else { continue };
        if rounding.refuses(&parameters.scheme()).is_some() {
            continue;
        }
        let prepared = inputs.as_ref().map_or(Ok(()), |inputs| rounding.prepare(inputs));
        let mut problem = LayerProblem {
            layer: layer.name(),
            shape: Shape { groups: 1, outputs: rows, features: columns },
            weight: &matrix.weight(),
            grid: matrix.grid(&parameters),
            bias: None,
            function: &ActivationFunction::None,
            inputs: inputs.as_ref(),
            samples: None,
            cancelled: captured.cancelled,
        };
        let prepared = prepared.map_err(|problem| RoundingError::from(problem).into());
        if let Some(rounded) = usable(layer, prepared.and_then(|()| rounding.round(&mut problem)))? {
            matrix.put(&rounded.tensor, &mut codes);
        }
    }
    Ok(Rounded { codes, bias: None })
}

/// The choice; `None` without usable inputs: the nearest codes are as good as any then.
fn usable(layer: &Layer, chosen: Result<RoundedLayer, LayerError>) -> Result<Option<RoundedLayer>, AlgorithmError> {
    use HessianError::{NoData, NotFinite, NotPositiveDefinite};
    let error = match chosen {
        Ok(rounded) => return Ok(Some(rounded)),
        Err(LayerError::Rounding(RoundingError::Hessian(NoData | NotFinite | NotPositiveDefinite { .. }))) => {
            return Ok(None);
        }
        Err(LayerError::Cancelled) => return Err(AlgorithmError::Cancelled),
        Err(LayerError::Sample(error)) => match error.downcast::<AlgorithmError>() {
            Ok(error) => return Err(*error),
            Err(error) => LayerError::Sample(error),
        },
        Err(error) => error,
    };
    Err(AlgorithmError::Layer { layer: layer.name().to_owned(), problem: error.to_string() })
}

/// Sums of the products of each group's inputs over all samples; with the mismatch to the float model, if
/// `mismatch` is set.
fn hessians(
    layer: &Layer,
    unfolding: &Unfolding,
    captured: &LayerIo<'_>,
    mismatch: bool,
) -> Result<Vec<Option<Hessian>>, AlgorithmError> {
    let empty = if mismatch { Hessian::with_mismatch } else { Hessian::new };
    let mut hessians = vec![empty(unfolding.columns); unfolding.groups];
    for sample in 0..captured.len() {
        captured.check_cancelled()?;
        let Pair { input, output } = captured.pair(sample)?;
        let Some(seen) = unfolding.seen(&layer.node, input.shape(), output.shape()) else { continue };
        // The inputs of the model are the same in both, and are not kept twice.
        let float = if mismatch { captured.float_input(sample)? } else { None };
        let float = float.filter(|float| float.shape() == input.shape());
        for (group, hessian) in hessians.iter_mut().enumerate() {
            let Some(rows) = unfolding.inputs(&input, &seen, group) else { continue };
            match float.as_ref().and_then(|float| unfolding.inputs(float, &seen, group)) {
                Some(mut floats) => hessian.add_with_float(&rows, &mut floats),
                None => hessian.add(&rows),
            }
        }
    }
    Ok(hessians.into_iter().map(Some).collect())
}

/// Some elements of a layer's weight as a matrix of outputs and inputs.
struct Matrix<'a> {
    layer: &'a Layer,
    rows: usize,
    columns: usize,
    /// The position of an element in the weight.
    place: &'a dyn Fn(usize, usize) -> usize,
}

impl Matrix<'_> {
    fn weight(&self) -> Vec<f32> {
        let at = |i: usize| self.layer.weight[(self.place)(i / self.columns, i % self.columns)];
        (0..self.rows * self.columns).map(at).collect()
    }

    fn grid<'g>(&self, parameters: &'g QuantTensor) -> Grid<'g> {
        Grid::Fixed { parameters, codes: (self.layer.grid.codes.min, self.layer.grid.codes.max) }
    }

    /// Scales and zero points, with unused codes. `None` for non-integer types, and if the scales are not
    /// those of rows.
    fn parameters(&self) -> Result<Option<QuantTensor>, AlgorithmError> {
        let (rows, columns, grid) = (self.rows, self.columns, &self.layer.grid);
        let at = |row: usize, column: usize| grid.affine((self.place)(row, column));
        let block = grid.block().and_then(|block| NonZeroU32::new(u32::try_from(block).ok()?));
        let (granularity, parameters): (_, Vec<_>) = match (block, grid.axis) {
            (Some(block), _) => {
                let starts = || (0..columns).step_by(block.get() as usize);
                let all = (0..rows).flat_map(|row| starts().map(move |column| (row, column)));
                let granularity = Granularity::Block { rows: NonZeroU32::MIN, columns: block };
                (granularity, all.map(|(row, column)| at(row, column)).collect())
            }
            (None, None) => (Granularity::Tensor, vec![at(0, 0)]),
            (None, Some(_)) => {
                let is_of_row = |row: usize| (0..columns).all(|column| at(row, column) == at(row, 0));
                if !(0..rows).all(is_of_row) {
                    return Ok(None);
                }
                (Granularity::Channel(Axis::Rows), (0..rows).map(|row| at(row, 0)).collect())
            }
        };
        let Some(format) = format(grid.element) else { return Ok(None) };
        let zero_point = ZeroPoint::Integer;
        let scheme =
            IntScheme { format, granularity, scale: ScaleType::F32, zero_point, observer: ObserverRef::MIN_MAX };
        let count = rows * columns;
        let codes = if format.bits() > 8 { Codes::Wide(vec![0; count]) } else { Codes::Bytes(vec![0; count]) };
        let scales = parameters.iter().map(|affine| affine.scale).collect();
        let zero_points = parameters.iter().map(|affine| affine.zero_point as f64).collect();
        let parts = QuantParts { codes, scales, zero_points, global_scale: None };
        let made = QuantTensor::new(TensorScheme::Int(scheme), rows, columns, parts);
        let wrong = |problem: SchemeError| {
            let (layer, problem) = (self.layer.name().to_owned(), problem.to_string());
            AlgorithmError::Layer { layer, problem }
        };
        made.map(Some).map_err(wrong)
    }

    /// Puts codes at their positions in the weight. The code below the symmetric ones becomes its neighbour.
    fn put(&self, rounded: &QuantTensor, codes: &mut [i32]) {
        let (signed, range) = (self.layer.grid.element.is_signed(), self.layer.grid.codes);
        for i in 0..self.rows * self.columns {
            let code = rounded.codes().integer(i, signed).clamp(range.min, range.max);
            codes[(self.place)(i / self.columns, i % self.columns)] = code as i32;
        }
    }
}

/// The weight of a layer as a matrix of outputs and inputs, with scales and zero points.
pub(super) struct RowMatrix {
    form: Form,
    parameters: QuantTensor,
}

impl RowMatrix {
    /// That of a layer; `None` for normalizations, for types that are no integers, and where scales are not those of rows.
    pub fn of(layer: &Layer) -> Result<Option<RowMatrix>, AlgorithmError> {
        let form = Form::of(layer).filter(|form| !matches!(form.kind, Kind::Normalization(_)));
        let Some(form) = form else { return Ok(None) };
        let place = |row: usize, column: usize| form.place(row, column);
        let matrix = Matrix { layer, rows: form.shape.outputs, columns: form.shape.features, place: &place };
        let parameters = matrix.parameters()?;
        Ok(parameters.map(|parameters| RowMatrix { form, parameters }))
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.form.shape.outputs, self.form.shape.features)
    }

    /// A weight as it is stored, row by row.
    pub fn rows(&self, stored: &[f32]) -> Vec<f32> {
        self.form.rows(stored)
    }

    /// The weight with codes as they are stored.
    pub fn tensor(&self, codes: &[i32]) -> QuantTensor {
        let (rows, columns) = self.shape();
        let code = |i: usize| i64::from(codes[self.form.place(i / columns, i % columns)]);
        self.parameters.with_integers((0..rows * columns).map(code).collect())
    }

    /// The codes of a tensor as the layer's weight is stored, and the parameters of its grid.
    pub fn stored(&self, tensor: &QuantTensor, layer: &Layer) -> (Vec<i32>, Vec<Affine>) {
        let (rows, columns) = self.shape();
        let place = |row: usize, column: usize| self.form.place(row, column);
        let mut codes = vec![0; layer.weight.len()];
        Matrix { layer, rows, columns, place: &place }.put(tensor, &mut codes);
        let mut parameters = layer.grid.parameters.clone();
        for (i, affine) in tensor.affines().enumerate() {
            parameters[layer.grid.position(place(i / columns, i % columns))].scale = affine.scale;
        }
        (codes, parameters)
    }
}

fn format(element: Element) -> Option<Int> {
    Some(match element {
        Element::Int4 => Int::INT4,
        Element::UInt4 => Int::UINT4,
        Element::Int8 => Int::INT8,
        Element::UInt8 => Int::UINT8,
        Element::Int16 => Int::INT16,
        Element::UInt16 => Int::UINT16,
        _ => return None,
    })
}
