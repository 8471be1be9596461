//! GPTQ: weights are rounded column after column, each making up for the errors of those before it on the calibration data.
//!
//! The arithmetic is that of the other flow, [`kvant_quant::rounding::Gptq`]. Here a layer becomes the product it is computed by:
//! convolutions by the patches of their inputs, each group with a Hessian of its own. All calibration samples count. Scales and
//! zero points stay those that the weight's method found.
//! Source: Frantar et al., GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers, arXiv 2210.17323.

use std::num::NonZeroU32;

use kvant_numeric::format::Int;
use kvant_quant::hessian::{Hessian, HessianError};
use kvant_quant::observer::ObserverRef;
use kvant_quant::rounding::{ColumnOrder, Damping, Gptq, Groups, RoundingError};
use kvant_quant::scheme::{Axis, Granularity, IntScheme, ScaleType, TensorScheme, ZeroPoint};
use kvant_quant::{Codes, QuantParts, QuantTensor};

use super::captured::Captured;
use super::layer::{Layer, Rounded, Rounding};
use super::unfold::Unfolding;
use crate::algorithm_settings::GptqSettings;
use crate::element::Element;
use crate::error::AlgorithmError;

impl GptqSettings {
    fn core(&self) -> Gptq {
        let order = if self.activation_order { ColumnOrder::Activation } else { ColumnOrder::Stored(Groups::Static) };
        Gptq { damping: Damping::OfMeanDiagonal(f64::from(self.damping)), order, ..Gptq::GPTQ }
    }
}

impl Rounding for GptqSettings {
    fn round(&self, layer: &Layer, captured: &Captured<'_>) -> Result<Rounded, AlgorithmError> {
        let mut codes = layer.grid.nearest(&layer.weight);
        let Some(unfolding) = Unfolding::of(&layer.node, &layer.shape) else {
            return Ok(Rounded { codes, bias: None });
        };
        use HessianError::{NoData, NotFinite, NotPositiveDefinite};
        for (group, hessian) in hessians(layer, &unfolding, captured)?.into_iter().enumerate() {
            captured.go_on()?;
            match self.group(layer, &unfolding, group, &hessian) {
                Ok(Some(rounded)) => put(&rounded, layer, &unfolding, group, &mut codes),
                // Nothing came by, or what tells nothing: the nearest codes are as good as any.
                Ok(None) | Err(RoundingError::Hessian(NoData | NotFinite | NotPositiveDefinite { .. })) => {}
                Err(error) => {
                    let problem = error.to_string();
                    return Err(AlgorithmError::Layer { layer: layer.name().to_owned(), problem });
                }
            }
        }
        Ok(Rounded { codes, bias: None })
    }
}

impl GptqSettings {
    /// Rounds the rows of a group. `None` where the grid is not one of rows.
    fn group(
        &self,
        layer: &Layer,
        unfolding: &Unfolding,
        group: usize,
        hessian: &Hessian,
    ) -> Result<Option<QuantTensor>, RoundingError> {
        let Some(grid) = grid(layer, unfolding, group)? else { return Ok(None) };
        let (rows, columns) = (unfolding.rows, unfolding.columns);
        let at = |i: usize| layer.weight[unfolding.place(group, i / columns, i % columns)];
        let weights: Vec<f32> = (0..rows * columns).map(at).collect();
        let feedback = self.core().prepare(hessian)?;
        Ok(Some(feedback.round_on(&weights, grid)?.tensor))
    }
}

/// Sums of the products of each group's inputs over all samples.
fn hessians(layer: &Layer, unfolding: &Unfolding, captured: &Captured<'_>) -> Result<Vec<Hessian>, AlgorithmError> {
    let mut hessians = vec![Hessian::new(unfolding.columns); unfolding.groups];
    for sample in 0..captured.len() {
        captured.go_on()?;
        let pair = captured.pair(sample)?;
        let seen = unfolding.seen(&layer.node, pair.input.shape(), pair.output.shape());
        let Some(seen) = seen else { continue };
        for (group, hessian) in hessians.iter_mut().enumerate() {
            if let Some(rows) = unfolding.inputs(&pair.input, &seen, group) {
                hessian.add(&rows);
            }
        }
    }
    Ok(hessians)
}

/// The scales and zero points of a group's matrix, with codes that do not count.
fn grid(layer: &Layer, unfolding: &Unfolding, group: usize) -> Result<Option<QuantTensor>, RoundingError> {
    let (rows, columns) = (unfolding.rows, unfolding.columns);
    let at = |row: usize, column: usize| layer.grid.affine(unfolding.place(group, row, column));
    let block = layer.grid.block().and_then(|block| NonZeroU32::new(u32::try_from(block).ok()?));
    let (granularity, parameters): (_, Vec<_>) = match (block, layer.grid.axis) {
        (Some(block), _) => {
            let starts = || (0..columns).step_by(block.get() as usize);
            let all = (0..rows).flat_map(|row| starts().map(move |column| (row, column)));
            let granularity = Granularity::Block { rows: NonZeroU32::MIN, columns: block };
            (granularity, all.map(|(row, column)| at(row, column)).collect())
        }
        (None, None) => (Granularity::Tensor, vec![at(0, 0)]),
        (None, Some(_)) => (Granularity::Channel(Axis::Rows), (0..rows).map(|row| at(row, 0)).collect()),
    };
    let Some(format) = format(layer.grid.element) else { return Ok(None) };
    let zero_point = ZeroPoint::Integer;
    let scheme = IntScheme { format, granularity, scale: ScaleType::F32, zero_point, observer: ObserverRef::MIN_MAX };
    let count = rows * columns;
    let codes = if format.bits() > 8 { Codes::Wide(vec![0; count]) } else { Codes::Bytes(vec![0; count]) };
    let scales = parameters.iter().map(|affine| affine.scale).collect();
    let zero_points = parameters.iter().map(|affine| affine.zero_point as f64).collect();
    let parts = QuantParts { codes, scales, zero_points, tensor_scale: None };
    Ok(Some(QuantTensor::new(TensorScheme::Int(scheme), rows, columns, parts)?))
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

/// Puts the codes of a group where they lie in the weight. The code below the symmetric ones becomes its neighbour.
fn put(rounded: &QuantTensor, layer: &Layer, unfolding: &Unfolding, group: usize, codes: &mut [i32]) {
    let (rows, columns) = rounded.shape();
    let (signed, range) = (layer.grid.element.is_signed(), layer.grid.codes);
    for i in 0..rows * columns {
        let code = rounded.codes().integer(i, signed).clamp(range.min, range.max);
        codes[unfolding.place(group, i / columns, i % columns)] = code as i32;
    }
}
