//! A layer of the plan: where its weight comes from, how it is quantized, what it becomes.

use kvant_container::{Dtype, Layout};
use kvant_numeric::kernel::FloatDType;
use kvant_quant::observer::ObserverRef;
use kvant_quant::scheme::{Cast, Granularity, LayerScheme, TensorScheme};
use kvant_weights::parts::{Part, band_axis};
use kvant_weights::weight::{Band, BandAxis, bands};
use std::ops::Range;

/// The origin of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceWeight {
    /// The tensor's name in the source.
    pub tensor: String,
    /// Its position among the source's tensors.
    pub position: usize,
    /// Which matrix of a 3-D tensor.
    pub expert: Option<usize>,
    /// Whether the matrix is stored as `[in, out]`.
    pub is_transposed: bool,
    /// The type of its elements.
    pub dtype: FloatDType,
    /// Its storage.
    pub storage: SourceStorage,
}

/// How a weight is stored in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceStorage {
    /// As elements of the type.
    Plain,
    /// fp8 with these scales.
    Scaled(ScalesOfSource),
    /// Codes and scales in a layout that is imported. The type is then that of the model's floats.
    Packed {
        /// What is made of them.
        packed_use: PackedUse,
        /// Their bytes.
        bytes: u64,
    },
}

/// The action on a weight that is already quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PackedUse {
    /// Its codes are taken over in the form of the layer's scheme.
    Codes,
    /// Its values are requantized.
    Values,
}

/// The scales of an fp8 weight in the source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalesOfSource {
    /// The tensor with the scales.
    pub tensor: String,
    /// Rows and columns that share one.
    pub block: (usize, usize),
}

/// The action on a layer.
#[derive(Clone, Debug, PartialEq)]
pub enum LayerOutput {
    /// The tensors of a checkpoint format, declared one after the other from `first` on.
    Parts {
        /// The tensors.
        parts: Vec<Part>,
        /// The index of the first among the declarations.
        first: usize,
        /// Which matrix of how many in each tensor.
        slice: (usize, usize),
    },
    /// Floats in the place of the source's.
    Values {
        /// The index of the tensor among the declarations.
        tensor: usize,
        /// The offset of the matrix in it, in bytes.
        offset: u64,
        /// The type of the floats.
        dtype: Dtype,
    },
}

impl LayerOutput {
    /// The tensors, as indices among the declarations.
    pub(super) fn tensors(&self) -> Range<usize> {
        match self {
            LayerOutput::Parts { parts, first, .. } => *first..first + parts.len(),
            LayerOutput::Values { tensor, .. } => *tensor..tensor + 1,
        }
    }
}

/// A linear layer to quantize, before its tensors are declared.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LayerDraft {
    pub(super) name: String,
    pub(super) module: String,
    pub(super) role: &'static str,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) scheme: LayerScheme,
    pub(super) source: SourceWeight,
    pub(super) shares_scale: Option<usize>,
    pub(super) fused_rows: Option<usize>,
}

impl LayerDraft {
    /// The layer with the tensors that it becomes.
    pub(super) fn with_output(self, output: LayerOutput) -> PlannedLayer {
        let LayerDraft { name, module, role, rows, columns, scheme, source, shares_scale, fused_rows } = self;
        PlannedLayer { name, module, role, rows, columns, scheme, source, shares_scale, fused_rows, output }
    }
}

/// A linear layer to quantize.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedLayer {
    /// The module's name in the output.
    pub name: String,
    /// Its name in the source; experts that are one tensor there are named one by one.
    pub module: String,
    /// Its effect.
    pub role: &'static str,
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// The recipe.
    pub scheme: LayerScheme,
    /// The origin of the weight.
    pub source: SourceWeight,
    /// Layers with the same number share the scale of the tensor.
    pub shares_scale: Option<usize>,
    /// The output channels of a part of the layer that engines make of it and others, or that it is; `None` of a layer alone.
    pub fused_rows: Option<usize>,
    /// What it becomes.
    pub output: LayerOutput,
}

/// Elements of a band, about: small enough for the second-level cache, large enough for long writes.
const BAND_ELEMENTS: usize = 1 << 18;

/// The same where codes are taken over, which are a byte each: longer runs of the source's rows.
const RECODED_ELEMENTS: usize = 1 << 20;

impl PlannedLayer {
    /// The bands in which the weight is worked on. They depend on the plan alone, not on threads or memory.
    pub fn bands(&self) -> Vec<Band> {
        let elements = if self.is_recoded() { RECODED_ELEMENTS } else { BAND_ELEMENTS };
        bands(self.rows, self.columns, self.band_axis(), self.band_unit(), elements)
    }

    /// Returns whether the codes of the source are taken over.
    pub fn is_recoded(&self) -> bool {
        matches!(self.source.storage, SourceStorage::Packed { packed_use: PackedUse::Codes, .. })
    }

    fn band_axis(&self) -> BandAxis {
        if self.is_searched_whole() && !self.is_recoded() {
            return BandAxis::Whole;
        }
        match &self.output {
            LayerOutput::Values { .. } if self.source.is_transposed => BandAxis::Columns,
            LayerOutput::Values { .. } => BandAxis::Rows,
            LayerOutput::Parts { parts, .. } => band_axis(parts, self.scale_shape()),
        }
    }

    /// Returns whether the range of the whole tensor is searched for, with all of it in memory.
    pub fn is_searched_whole(&self) -> bool {
        let is_searched = self.scheme.weight.observer() != ObserverRef::MIN_MAX;
        is_searched && self.scheme.weight.granularity() == Some(Granularity::Tensor)
    }

    /// The shape of the matrix of scales.
    pub fn scale_shape(&self) -> (usize, usize) {
        let granularity = self.scheme.weight.granularity();
        granularity.and_then(|g| g.scale_shape(self.rows, self.columns).ok()).unwrap_or((1, 1))
    }

    /// Its names in the source: its own, and for an expert in one tensor with others that of all.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let all = self.source.expert.map(|_| self.source.tensor.strip_suffix(".weight").unwrap_or(&self.source.tensor));
        std::iter::once(self.module.as_str()).chain(all)
    }

    /// Rows that share a scale.
    pub(crate) fn tile_rows(&self) -> usize {
        match self.scheme.weight.granularity() {
            None | Some(Granularity::Tensor) => 1,
            Some(granularity) => granularity.tile(self.rows, self.columns).0.max(1),
        }
    }

    /// Bands begin on tiles of scales, and on words of packed codes: 32 codes of any width fill whole words.
    fn band_unit(&self) -> usize {
        let (tile_rows, tile_columns) = match self.scheme.weight.granularity() {
            None | Some(Granularity::Tensor) => (1, 1),
            Some(granularity) => granularity.tile(self.rows, self.columns),
        };
        let tile = if self.band_axis() == BandAxis::Columns { tile_columns } else { tile_rows };
        least_common_multiple(tile.max(1), 32)
    }

    /// Bytes of its weight in the source.
    pub fn source_bytes(&self) -> u64 {
        match self.source.storage {
            SourceStorage::Packed { bytes, .. } => bytes,
            _ => (self.rows * self.columns * self.source.dtype.size()) as u64,
        }
    }

    /// Bytes of its tensors in the output.
    pub fn output_bytes(&self, layout: &Layout) -> u64 {
        match &self.output {
            LayerOutput::Parts { parts, first, slice } => {
                layout.places()[*first..first + parts.len()].iter().map(|p| p.len / slice.1.max(1) as u64).sum()
            }
            LayerOutput::Values { dtype, .. } => (self.rows * self.columns * dtype.bitsize() / 8) as u64,
        }
    }

    /// An upper bound of the private memory that working on one band takes: values, codes, packed codes, scales.
    pub fn band_bytes(&self) -> u64 {
        // Of codes that are taken over there are no values.
        let per_element = if self.is_recoded() { 4 } else { 12 };
        self.bands().iter().map(|band| band.len() as u64 * per_element).max().unwrap_or(0)
    }
}

/// Returns whether block scales stand under one of the tensor, which fused layers share.
pub(super) fn has_global_scale(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Float(float) if float.scale.has_global_scale())
}

/// The type in which simulated values are stored: that of the source, or of the cast.
pub(super) fn values_type(scheme: TensorScheme, source: FloatDType) -> Dtype {
    match scheme {
        TensorScheme::Cast(Cast::F16) => Dtype::F16,
        TensorScheme::Cast(Cast::Bf16) => Dtype::BF16,
        _ => stored_type(source),
    }
}

/// The type in which floats of the source are stored; fp8 is widened.
pub(super) fn stored_type(source: FloatDType) -> Dtype {
    match source {
        FloatDType::F32 => Dtype::F32,
        FloatDType::F16 => Dtype::F16,
        FloatDType::Bf16 | FloatDType::E4m3 | FloatDType::E5m2 => Dtype::BF16,
    }
}

fn least_common_multiple(a: usize, b: usize) -> usize {
    let (mut x, mut y) = (a, b);
    while y != 0 {
        (x, y) = (y, x % y);
    }
    a / x * b
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_common_multiples() {
        assert_eq!(
            (least_common_multiple(128, 32), least_common_multiple(5, 32), least_common_multiple(1, 32)),
            (128, 160, 32)
        );
    }
}
