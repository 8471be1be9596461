//! How far the values of every tile reach. Not scales, which follow from it.

use super::{Groups, RoundingError, Rtn, Strip};
use crate::rounding::tiles::Tiles;
use crate::scheme::{IntScheme, ZeroPoint};
use kvant_numeric::kernel::{Range, element_abs_max, element_ranges};

impl Rtn {
    pub(super) fn tensor_amax(&self, amaxes: &[f32]) -> f32 {
        self.context.range.map_or_else(|| amaxes.iter().copied().fold(0.0, f32::max), Range::abs_max)
    }

    /// The largest magnitude of every tile.
    pub(super) fn find_abs_maxima(
        &self,
        strip: Strip<'_>,
        tiles: &Tiles,
        groups: &mut Groups,
    ) -> Result<(), RoundingError> {
        let amaxes = &mut groups.amaxes;
        amaxes.clear();
        amaxes.resize(tiles.count, 0.0);
        let mut row = Vec::new();
        for run in tiles.runs(strip.elements.len()) {
            let elements = strip.elements.slice(run.elements);
            if tiles.rows == 1 {
                element_abs_max(self.isa, elements, tiles.columns, &mut amaxes[run.scales]);
                continue;
            }
            row.resize(run.scales.len(), 0.0f32);
            element_abs_max(self.isa, elements, tiles.columns, &mut row);
            // Of two magnitudes as bits, so that NaN stays.
            let joined = amaxes[run.scales].iter_mut().zip(&row);
            joined.for_each(|(amax, new)| *amax = f32::from_bits(amax.to_bits().max(new.to_bits())));
        }
        if amaxes.iter().any(|amax| !amax.is_finite()) {
            return Err(RoundingError::NotFinite);
        }
        if let (Some(range), true) = (self.context.range, tiles.whole_tensor) {
            amaxes.fill(range.abs_max());
        }
        Ok(())
    }

    /// The range of every tile; for symmetric schemes the range from minus to plus the largest magnitude, which is enough.
    pub(super) fn find_ranges(
        &self,
        scheme: IntScheme,
        strip: Strip<'_>,
        tiles: &Tiles,
        groups: &mut Groups,
    ) -> Result<(), RoundingError> {
        if scheme.zero_point == ZeroPoint::Zero {
            self.find_abs_maxima(strip, tiles, groups)?;
            groups.ranges.clear();
            groups.ranges.extend(groups.amaxes.iter().map(|amax| Range { min: -amax, max: *amax }));
            return Ok(());
        }
        let ranges = &mut groups.ranges;
        ranges.clear();
        ranges.resize(tiles.count, Range::EMPTY);
        let mut row = Vec::new();
        for run in tiles.runs(strip.elements.len()) {
            row.resize(run.scales.len(), Range::EMPTY);
            element_ranges(self.isa, strip.elements.slice(run.elements), tiles.columns, &mut row);
            if row.iter().any(|range| !(range.min.is_finite() && range.max.is_finite())) {
                return Err(RoundingError::NotFinite);
            }
            ranges[run.scales].iter_mut().zip(&row).for_each(|(range, new)| *range = range.join(*new));
        }
        if let (Some(range), true) = (self.context.range, tiles.whole_tensor) {
            ranges.fill(range);
        }
        Ok(())
    }
}
