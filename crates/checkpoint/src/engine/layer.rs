//! Quantizing the layers of one job: range of the tensor where it is needed, then band by band round, pack and write.

use super::packed::recode_layer;
use super::{Engine, EngineError, file_of};
use crate::plan::{LayerId, LayerOutput, PlannedLayer, ScalesOfSource, SourceStorage};
use kvant_container::unfinished::Written;
use kvant_container::{Dtype, TensorView};
use kvant_numeric::kernel::{Elements, FloatDType, Range};
use kvant_numeric::pack::transpose;
use kvant_quant::fake::fake_quantize;
use kvant_quant::reconstruction::{ActivationFunction, Shape};
use kvant_quant::rounding::{
    AnyRounding, Grid, LayerError, LayerProblem, RoundingError, Rtn, Scratch, TensorContext, Weights,
};
use kvant_quant::scheme::ScaleType;
use kvant_quant::{Parameters, QuantTensor};
use kvant_weights::parts::{Coded, Content, Packer, Part, Piece, ScaleEncoding, Whole, encode};
use kvant_weights::weight::{Band, WeightMatrix};
use kvant_weights::weight::{CodeMatrix, PackedMatrix};
use rayon::prelude::*;
use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

thread_local! {
    /// The buffers of rounding, kept from band to band.
    static SCRATCH: RefCell<(Scratch, Vec<f32>)> = RefCell::default();
    /// The buffers of packing.
    static PACKER: RefCell<Packer> = RefCell::default();
}

/// Quantizes layers that share a global scale (or one layer), and returns the written parts.
pub(super) fn quantize_layers(engine: &Engine<'_>, ids: &[LayerId]) -> Result<Vec<Written>, EngineError> {
    let layers: Vec<&PlannedLayer> = ids.iter().map(|layer| engine.plan.layer(*layer)).collect();
    if let [layer] = layers.as_slice()
        && layer.is_recoded()
    {
        return recode_layer(engine, layer);
    }
    let matrices = layers.iter().map(|layer| engine.layer_matrix(layer)).collect::<Result<Vec<_>, _>>()?;
    let mut range = None;
    for (layer, matrix) in layers.iter().zip(&matrices) {
        if layer.scheme.weight.needs_tensor_range() {
            let tensor = engine.tensor_range(layer, matrix)?;
            range = Some(range.map_or(tensor, |range: Range| range.join(tensor)));
        }
    }
    let mut written = Vec::new();
    for ((layer, matrix), id) in layers.iter().zip(&matrices).zip(ids) {
        let task = LayerTask {
            engine,
            layer,
            matrix,
            importance: engine.plan.importance(*id),
            context: TensorContext { arithmetic: layer.source.dtype.arithmetic(), range },
        };
        let bands = engine.plan.bands(layer);
        let pieces = bands.par_iter().map(|band| task.band(band)).collect::<Result<Vec<_>, _>>()?;
        written.extend(pieces.into_iter().flatten());
        engine.release(layer)?;
    }
    Ok(written)
}

/// [`Range::join`] drops NaN, as `f32::min` does.
fn nan_keeping_join(a: Range, b: Range) -> Range {
    let broken = [a.min, a.max, b.min, b.max].iter().any(|v| v.is_nan());
    if broken { Range { min: f32::NAN, max: f32::NAN } } else { a.join(b) }
}

/// Locates the first non-finite value.
fn not_finite(engine: &Engine<'_>, layer: &PlannedLayer, matrix: &WeightMatrix<'_>) -> String {
    let find = |band: &Band| {
        let mut values = Vec::new();
        matrix.read(engine.isa, band, &mut values);
        let index = values.iter().position(|v| !v.is_finite())?;
        let (row, column) = (index / band.columns.len(), index % band.columns.len());
        Some((values[index], band.rows.start + row, band.columns.start + column))
    };
    match layer.bands().iter().find_map(find) {
        Some((value, row, column)) => format!("the weight of output {row}, input {column} is {value}"),
        None => "a weight is NaN or infinite".to_owned(),
    }
}

struct LayerTask<'a> {
    engine: &'a Engine<'a>,
    layer: &'a PlannedLayer,
    matrix: &'a WeightMatrix<'a>,
    /// How much errors in each column count; `None` where all count the same.
    importance: Option<Vec<f32>>,
    context: TensorContext,
}

impl LayerTask<'_> {
    fn band(&self, band: &Band) -> Result<Vec<Written>, EngineError> {
        self.engine.check_cancelled()?;
        match &self.layer.output {
            LayerOutput::Parts { parts, .. } => {
                let whole = (self.layer.rows, self.layer.columns).into();
                self.engine.write_parts(self.layer, parts, (&self.round(band)?).into(), band, &whole)
            }
            LayerOutput::Values { tensor, offset, dtype } => {
                let values = self.values(band)?;
                self.engine.check_values(self.layer, &values, *dtype)?;
                let piece = stored_values(self.layer, band, values, *offset, *dtype);
                Ok(vec![self.engine.write(*tensor, &piece)?])
            }
        }
    }

    /// The band's codes by the recipe's rounding. Codes that depend on layer inputs are chosen block by block instead:
    /// the engine only processes layers outside of the blocks, which are rounded to nearest.
    fn round(&self, band: &Band) -> Result<QuantTensor, EngineError> {
        match self.engine.plan.whole_rounding(self.layer) {
            Some(rounding) => self.round_by(rounding, band),
            None => self.round_to_nearest(band),
        }
    }

    fn round_by(&self, rounding: &AnyRounding, band: &Band) -> Result<QuantTensor, EngineError> {
        let mut values = Vec::new();
        self.matrix.read(self.engine.isa, band, &mut values);
        let inputs = self.engine.plan.given_inputs(self.layer)?;
        let mut problem = LayerProblem {
            layer: &self.layer.name,
            shape: Shape { groups: 1, outputs: band.rows.len(), features: band.columns.len() },
            weight: &values,
            grid: Grid::Scheme { scheme: self.layer.scheme.weight, context: self.context, from: &values },
            bias: None,
            function: &ActivationFunction::None,
            inputs: inputs.as_ref(),
            samples: None,
            cancelled: self.engine.cancelled,
        };
        let rounded = rounding.round(&mut problem).map_err(|error| match &error {
            LayerError::Rounding(RoundingError::Hessian(problem)) => {
                let refused = self.engine.plan.refused_hessian(self.layer, problem).map(EngineError::Statistics);
                refused.unwrap_or_else(|| self.engine.layer_error(self.layer, self.matrix, rounding.name(), error))
            }
            _ => self.engine.layer_error(self.layer, self.matrix, rounding.name(), error),
        })?;
        Ok(rounded.tensor)
    }

    /// The band's nearest codes: from the mapped bytes where they are plain, else from widened values.
    fn round_to_nearest(&self, band: &Band) -> Result<QuantTensor, EngineError> {
        let rtn = Rtn::new(self.layer.scheme.weight, self.context).map_err(|e| self.error(e))?;
        let rtn = rtn.on(self.engine.isa);
        let mut tensor = rtn.empty(band.columns.len());
        let rounded = SCRATCH.with_borrow_mut(|(scratch, values)| match self.matrix.elements() {
            Some(elements) => {
                let weights = self.weighed(Weights::new(elements, self.matrix.columns), 0..self.matrix.columns);
                rtn.round_onto(weights.rows(band.rows.clone()).columns(band.columns.clone()), scratch, &mut tensor)
            }
            None => {
                values.clear();
                self.matrix.read(self.engine.isa, band, values);
                let weights = Weights::new(Elements::Values(values), band.columns.len());
                rtn.round_onto(self.weighed(weights, band.columns.clone()), scratch, &mut tensor)
            }
        });
        rounded.map(|()| tensor).map_err(|e| self.error(e))
    }

    /// Weights of some columns, whose errors count as much as the layer's inputs there.
    fn weighed<'w>(&'w self, weights: Weights<'w>, columns: std::ops::Range<usize>) -> Weights<'w> {
        let importance = self.importance.as_ref().and_then(|importance| importance.get(columns));
        importance.map_or(weights, |importance| weights.weighed_by(importance))
    }

    /// The band's values on the grid of the codes.
    fn values(&self, band: &Band) -> Result<Vec<f32>, EngineError> {
        if let Some(rounding) = self.engine.plan.whole_rounding(self.layer) {
            return Ok(self.round_by(rounding, band)?.dequantize());
        }
        if self.importance.is_some() {
            return Ok(self.round_to_nearest(band)?.dequantize());
        }
        let (rows, columns) = (band.rows.len(), band.columns.len());
        let mut values = Vec::new();
        self.matrix.read(self.engine.isa, band, &mut values);
        fake_quantize(self.layer.scheme.weight, self.context, self.layer.source.dtype, &values, rows, columns)
            .map_err(|e| self.error(e))
    }

    fn error(&self, error: RoundingError) -> EngineError {
        self.engine.rounding_error(self.layer, self.matrix, error)
    }
}

/// A band's values as they are stored.
fn stored_values(layer: &PlannedLayer, band: &Band, mut values: Vec<f32>, offset: u64, dtype: Dtype) -> Piece<'static> {
    let mut start = band.rows.start * layer.columns;
    if layer.source.is_transposed {
        let mut turned = vec![0.0; values.len()];
        transpose(&values, band.rows.len(), band.columns.len(), &mut turned);
        values = turned;
        start = band.columns.start * layer.rows;
    }
    let size = dtype.bitsize() / 8;
    let bytes = Cow::Owned(encode(ScaleEncoding::of_floats(dtype), &values));
    Piece { offset: offset + (start * size) as u64, bytes }
}

impl Engine<'_> {
    /// Writes a layer that was rounded as a whole.
    pub(crate) fn write_layer(&self, layer: &PlannedLayer, tensor: &QuantTensor) -> Result<Vec<Written>, EngineError> {
        let whole = Band { rows: 0..layer.rows, columns: 0..layer.columns };
        match &layer.output {
            LayerOutput::Parts { parts, .. } => {
                self.write_parts(layer, parts, tensor.into(), &whole, &(layer.rows, layer.columns).into())
            }
            LayerOutput::Values { tensor: place, offset, dtype } => {
                let values = tensor.dequantize();
                self.check_values(layer, &values, *dtype)?;
                let piece = stored_values(layer, &whole, values, *offset, *dtype);
                Ok(vec![self.write(*place, &piece)?])
            }
        }
    }

    /// Writes what a band contributes to a layer's tensors.
    pub(super) fn write_parts(
        &self,
        layer: &PlannedLayer,
        parts: &[Part],
        coded: Coded<'_>,
        band: &Band,
        whole: &Whole<'_>,
    ) -> Result<Vec<Written>, EngineError> {
        self.check_scales(layer, parts, &coded.parameters)?;
        PACKER.with_borrow_mut(|packer| {
            let mut written = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                if let Some(piece) = packer.pack(self.isa, part, coded, band, whole) {
                    written.push(self.write_part(layer, index, &piece)?);
                }
            }
            packer.trim();
            Ok(written)
        })
    }

    /// Writes into one of a layer's tensors, or its part of one that holds the matrices of several.
    fn write_part(&self, layer: &PlannedLayer, index: usize, piece: &Piece<'_>) -> Result<Written, EngineError> {
        let LayerOutput::Parts { first, slice, .. } = &layer.output else {
            return Err(EngineError::TensorVanished(layer.name.clone()));
        };
        let tensor = first + index;
        let length = self.plan.layout().places().get(tensor).map_or(0, |place| place.len);
        let start = length / slice.1.max(1) as u64 * slice.0 as u64;
        self.write_bytes(tensor, start + piece.offset, &piece.bytes)
    }

    /// Refuses scales beyond binary16: codes would have other values.
    fn check_scales(&self, layer: &PlannedLayer, parts: &[Part], tensor: &Parameters<'_>) -> Result<(), EngineError> {
        let is_half = |part: &Part| matches!(part.content, Content::Scales { encoding: ScaleEncoding::F16, .. });
        let fits = |scale: &f32| scale.abs() <= f32::from(half::f16::MAX);
        let found = parts.iter().any(is_half).then(|| tensor.scales().iter().find(|scale| !fits(scale))).flatten();
        found.map_or(Ok(()), |scale| Err(self.scale_error(layer, *scale, half::f16::MAX.into())))
    }

    /// Refuses values that would be stored as infinity.
    fn check_values(&self, layer: &PlannedLayer, values: &[f32], dtype: Dtype) -> Result<(), EngineError> {
        // Values half a step or more beyond the largest number of a type are rounded to infinity.
        let (kind, first_beyond) = match dtype {
            Dtype::F16 => ("F16", 65_520.0),
            Dtype::BF16 => ("BF16", 3.396_177_5e38),
            _ => ("its type", f32::INFINITY),
        };
        let magnitude = values.iter().map(|value| value.to_bits() & 0x7fff_ffff).max().map_or(0.0, f32::from_bits);
        if magnitude < first_beyond {
            return Ok(());
        }
        let (tensor, file) = self.source_of(layer);
        let reason = match magnitude.is_finite() {
            true => format!("what its values are rounded to reaches {magnitude:e}, beyond what {kind} holds"),
            false => format!("`{}` does not hold the largest of its values", layer.scheme.weight),
        };
        let way_out =
            format!("choose a scheme of a wider type, or leave the layer as it is with ‹exclude› '{}'", layer.name);
        Err(EngineError::TooLarge { tensor, file, reason, way_out })
    }

    /// A tensor of the source.
    pub(super) fn tensor(&self, name: &str) -> Result<TensorView<'_>, EngineError> {
        self.checkpoint.tensor(name).ok_or_else(|| EngineError::TensorVanished(name.to_owned()))
    }

    /// The weight of a layer in the source.
    pub(crate) fn layer_matrix(&self, layer: &PlannedLayer) -> Result<WeightMatrix<'_>, EngineError> {
        let source = &layer.source;
        let shape = (layer.rows, layer.columns);
        let scales = match &source.storage {
            SourceStorage::Packed { .. } => {
                let matrix = self.packed(&source.tensor, source.expert.unwrap_or(0))?;
                return Ok(WeightMatrix::packed(Arc::clone(matrix)));
            }
            SourceStorage::Scaled(scales) => Some(scales),
            SourceStorage::Plain => None,
        };
        self.matrix(&source.tensor, source.dtype, shape, source.expert, source.is_transposed, scales)
    }

    /// Gives the pages of a layer's weight back to the system.
    fn release(&self, layer: &PlannedLayer) -> Result<(), EngineError> {
        let source = &layer.source;
        if let SourceStorage::Packed { .. } = source.storage {
            self.packed(&source.tensor, source.expert.unwrap_or(0))?.release();
            return Ok(());
        }
        let length = layer.rows * layer.columns * source.dtype.size();
        let start = source.expert.unwrap_or(0) * length;
        self.tensor(&source.tensor)?.release_part(start..start + length);
        Ok(())
    }

    /// A matrix of the source: of a 2-D tensor, or one of a 3-D tensor's.
    pub(super) fn matrix(
        &self,
        tensor: &str,
        source: FloatDType,
        (rows, columns): (usize, usize),
        expert: Option<usize>,
        is_transposed: bool,
        scales: Option<&ScalesOfSource>,
    ) -> Result<WeightMatrix<'_>, EngineError> {
        let length = rows * columns * source.size();
        let start = expert.unwrap_or(0) * length;
        let bytes = self.tensor(tensor)?.part(start..start + length);
        let bytes = bytes.ok_or_else(|| EngineError::TensorVanished(tensor.to_owned()))?;
        let Some(scales) = scales else {
            return Ok(WeightMatrix::plain(bytes, source, (rows, columns), is_transposed));
        };
        let scales_view = self.tensor(&scales.tensor)?;
        let matrix = CodeMatrix::fp8((bytes, source), (rows, columns), is_transposed, scales_view, scales.block);
        matrix
            .map(|matrix| WeightMatrix::packed(Arc::new(PackedMatrix::Apart(matrix))))
            .ok_or_else(|| EngineError::TensorVanished(tensor.to_owned()))
    }

    /// The range of a weight, all of which must be finite.
    pub(crate) fn tensor_range(&self, layer: &PlannedLayer, matrix: &WeightMatrix<'_>) -> Result<Range, EngineError> {
        let ranges = layer.bands().par_iter().map(|band| matrix.range(self.isa, band)).collect::<Vec<_>>();
        let range = ranges.into_iter().fold(Range::EMPTY, nan_keeping_join);
        if range.min.is_finite() && range.max.is_finite() {
            return Ok(range);
        }
        Err(self.weight_error(layer, not_finite(self, layer, matrix)))
    }

    /// The error of rounding a weight; for a non-finite value, with its position.
    pub(crate) fn rounding_error(
        &self,
        layer: &PlannedLayer,
        matrix: &WeightMatrix<'_>,
        error: RoundingError,
    ) -> EngineError {
        let reason = match error {
            RoundingError::NotFinite => not_finite(self, layer, matrix),
            RoundingError::ScaleTooLarge { scale, largest } => return self.scale_error(layer, scale, largest),
            other => other.to_string(),
        };
        self.weight_error(layer, reason)
    }

    /// The error of a rounding.
    pub(crate) fn layer_error(
        &self,
        layer: &PlannedLayer,
        matrix: &WeightMatrix<'_>,
        algorithm: &str,
        error: LayerError,
    ) -> EngineError {
        match error {
            LayerError::Rounding(problem) => self.rounding_error(layer, matrix, problem),
            LayerError::Cancelled => EngineError::Cancelled,
            LayerError::Sample(_) | LayerError::Other(_) => EngineError::Rounding {
                algorithm: algorithm.to_owned(),
                layer: layer.name.clone(),
                reason: error.to_string(),
            },
        }
    }

    /// The error for a layer that needs a scale beyond the type of its scales.
    pub(crate) fn scale_error(&self, layer: &PlannedLayer, scale: f32, largest: f32) -> EngineError {
        if !scale.is_finite() {
            return self.weight_error(layer, format!("a scale of its values is {scale:e}"));
        }
        let is_half = largest == f32::from(half::f16::MAX);
        let kind = if is_half { "f16" } else { "the type of scales" };
        let reason = format!("its values need a scale of {scale:e}, and {kind} holds {largest} at most");
        let wider = match self.plan.format() {
            _ if !is_half => None,
            format if format.capabilities().scale == Some(ScaleType::F16) => {
                Some("store scales in a wider type, with ‹format› quark or compressed-tensors".to_owned())
            }
            _ => Some("choose a scheme whose scales have a wider type, without `:f16`".to_owned()),
        };
        let excluded = (!self.plan.recipe().is_conversion()).then(|| {
            format!(
                "leave the layer as it is, and with it those that loaders fuse with it (q, k and v; gate and up): \
                 ‹exclude› '{}'",
                layer.name
            )
        });
        let ways: Vec<String> = wider.into_iter().chain(excluded).collect();
        let (tensor, file) = self.source_of(layer);
        EngineError::TooLarge { tensor, file, reason, way_out: ways.join("; or ") }
    }

    /// The source tensor of a layer, and its file.
    fn source_of(&self, layer: &PlannedLayer) -> (String, String) {
        let tensor = layer.source.tensor.clone();
        let part = self.packed(&tensor, 0).ok().and_then(|packed| packed.tensor_name());
        let file = file_of(self.checkpoint, &tensor, part);
        (tensor, file)
    }

    pub(crate) fn weight_error(&self, layer: &PlannedLayer, reason: String) -> EngineError {
        let (tensor, file) = self.source_of(layer);
        let excludable = (!self.plan.recipe().is_conversion()).then(|| layer.name.clone());
        EngineError::Weight { tensor, excludable, file, reason }
    }
}
