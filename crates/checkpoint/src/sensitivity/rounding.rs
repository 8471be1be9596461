//! Weights rounded to nearest, as the engine does band by band.

use kvant_numeric::kernel::Range;
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::rounding::{RoundingError, Rtn, TensorContext};
use kvant_quant::scheme::TensorScheme;
use kvant_weights::weight::{Band, BandAxis, WeightMatrix, bands};
use rayon::prelude::*;

/// Elements that one thread reads at a time.
const STRIP: usize = 256 << 10;

/// How a layer is rounded.
pub(super) struct LayerRounding {
    pub(super) scheme: TensorScheme,
    pub(super) context: TensorContext,
    /// Rows that share a scale.
    pub(super) tile_rows: usize,
    /// Whether the whole tensor is searched together.
    pub(super) is_whole: bool,
}

/// The codes of a weight.
pub(super) fn rounded(rounding: &LayerRounding, matrix: &WeightMatrix<'_>) -> Result<QuantTensor, RoundingError> {
    let isa = Isa::best();
    let rtn = Rtn::new(rounding.scheme, rounding.context)?.on(isa);
    let axis = if rounding.is_whole { BandAxis::Whole } else { BandAxis::Rows };
    let bands = bands(matrix.rows, matrix.columns, axis, rounding.tile_rows, STRIP);
    let round = |values: &mut Vec<f32>, band: &Band| {
        values.clear();
        matrix.read(isa, band, values);
        rtn.round(values, band.rows.len(), band.columns.len())
    };
    let parts: Vec<_> = bands.par_iter().map_init(Vec::new, round).collect::<Result<_, _>>()?;
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap_or_else(|| rtn.empty(matrix.columns));
    parts.try_for_each(|part| whole.append_rows(part))?;
    Ok(whole)
}

/// The range of all of a weight.
pub(super) fn range(matrix: &WeightMatrix<'_>) -> Range {
    let bands = bands(matrix.rows, matrix.columns, BandAxis::Rows, 1, STRIP);
    let ranges: Vec<Range> = bands.par_iter().map(|band| matrix.range(Isa::best(), band)).collect();
    ranges.into_iter().fold(Range::EMPTY, Range::join)
}
