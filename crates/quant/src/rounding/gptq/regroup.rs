//! Dynamic groups: scales that are found when a group of columns is reached. Not the weights that they are found for,
//! which the sweep has.

use super::Groups;
use crate::quant_tensor::QuantTensor;
use crate::rounding::bands::range;
use crate::rounding::{RoundingError, Rtn, TensorContext};
use kvant_numeric::kernel::Elements;
use kvant_numeric::pack::transpose;
use std::ops::Range;

/// Recomputation of scales.
#[derive(Clone, Copy)]
pub(super) struct Regroup {
    /// Columns of a group.
    pub(super) columns: usize,
    rtn: Rtn,
}

impl Regroup {
    /// `None` where scales stay what they are: with static groups, and where scales are not those of single rows or span all
    /// columns.
    pub(super) fn new(
        groups: Groups,
        weights: &[f32],
        context: TensorContext,
        tensor: &QuantTensor,
    ) -> Result<Option<Regroup>, RoundingError> {
        let (rows, columns) = tensor.shape();
        let tile = tensor.scheme().granularity().map_or((1, columns), |granularity| granularity.tile(rows, columns));
        if groups == Groups::Static || tile.0 != 1 || tile.1 >= columns {
            return Ok(None);
        }
        let scheme = tensor.scheme();
        let range = context.range.or_else(|| scheme.needs_tensor_range().then(|| range(Elements::Values(weights))));
        let rtn = Rtn::new(scheme, TensorContext { range, ..context })?;
        Ok(Some(Regroup { columns: tile.1, rtn }))
    }

    /// Returns whether the scales of a group are found at this position. Those of the first are what they are.
    pub(super) fn begins(&self, position: usize) -> bool {
        position > 0 && position.is_multiple_of(self.columns)
    }

    /// Positions cut where groups begin.
    pub(super) fn cut(&self, positions: Range<usize>) -> Vec<Range<usize>> {
        let groups = positions.start / self.columns..positions.end.div_ceil(self.columns);
        let group = |index: usize| index * self.columns..(index + 1) * self.columns;
        groups.map(group).map(|g| g.start.max(positions.start)..g.end.min(positions.end)).collect()
    }

    /// A group, of which scales and zero points matter, from weights column by column; the first `rows` of each column.
    pub(super) fn round(&self, weights: &[f32], rows: usize) -> Result<QuantTensor, RoundingError> {
        let mut by_rows = vec![0.0; weights.len()];
        transpose(weights, self.columns, weights.len() / self.columns, &mut by_rows);
        self.rtn.round(&by_rows[..rows * self.columns], rows, self.columns)
    }
}

/// Puts the scales and zero points of a group where the tensor has them, for the rows from `first` on.
pub(super) fn put_scales(tensor: &mut QuantTensor, first: usize, group: usize, part: &QuantTensor) {
    let across = tensor.scale_shape().1;
    for (row, scale) in part.scales().iter().enumerate() {
        tensor.scales[(first + row) * across + group] = *scale;
    }
    for (row, zero_point) in part.zero_points().iter().enumerate() {
        tensor.zero_points[(first + row) * across + group] = *zero_point;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::ComputeDType;

    #[test]
    fn regrouping_splits_positions_at_group_starts() {
        let rtn = Rtn::new("int4:g48".parse().unwrap(), TensorContext::new(ComputeDType::F32)).unwrap();
        let regroup = Regroup { columns: 48, rtn };
        assert_eq!(regroup.cut(0..128), [0..48, 48..96, 96..128]);
        assert_eq!(regroup.cut(128..150), [128..144, 144..150]);
        assert_eq!(regroup.cut(100..150), [100..144, 144..150]);
        assert!(!regroup.begins(0) && regroup.begins(48) && !regroup.begins(128));
    }
}
