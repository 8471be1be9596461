//! The range of a whole weight, which schemes with a scale for all of it need before a band is rounded.

use kvant_numeric::kernel::Range;
use kvant_numeric::simd::Isa;
use kvant_weights::weight::{BandAxis, WeightMatrix, bands};
use rayon::prelude::*;

/// Elements that one thread reads at a time.
const STRIP: usize = 256 << 10;

/// The range of all of a weight.
pub(super) fn range_of(matrix: &WeightMatrix<'_>) -> Range {
    let bands = bands(matrix.rows, matrix.columns, BandAxis::Rows, 1, STRIP);
    let ranges: Vec<Range> = bands.par_iter().map(|band| matrix.range(Isa::best(), band)).collect();
    ranges.into_iter().fold(Range::EMPTY, Range::join)
}
