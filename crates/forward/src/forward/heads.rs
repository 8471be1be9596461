//! The positions of heads in the rows of a buffer, so that fused projections are used in place.

use std::ops::Range;

/// Heads in each row of a buffer: head `h` is the `width` elements from `start + h * step` on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLayout {
    /// The first element of the first head.
    pub start: usize,
    /// From one head to the next.
    pub step: usize,
    /// Elements of a head.
    pub width: usize,
    /// Number of heads.
    pub count: usize,
}

impl HeadLayout {
    /// Heads side by side from the start of a row.
    pub fn packed(count: usize, width: usize) -> HeadLayout {
        HeadLayout { start: 0, step: width, width, count }
    }

    /// The whole row as one head.
    pub fn row(width: usize) -> HeadLayout {
        HeadLayout::packed(1, width)
    }

    /// The part of each head from `start` on, `width` elements wide.
    pub fn part(self, start: usize, width: usize) -> HeadLayout {
        HeadLayout { start: self.start + start, width, ..self }
    }

    /// The heads of a row.
    pub fn of(self, row: &mut [f32]) -> impl Iterator<Item = &mut [f32]> {
        let HeadLayout { start, step, width, count } = self;
        row[start..].chunks_mut(step).take(count).map(move |head| &mut head[..width])
    }
}

/// Rows of a buffer with heads in them.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// The rows, one after the other.
    pub data: &'a [f32],
    /// Elements of a row.
    pub row_width: usize,
    /// The positions of the heads in a row.
    pub layout: HeadLayout,
}

impl<'a> Heads<'a> {
    /// Those of some rows.
    pub fn of_rows(self, rows: Range<usize>) -> Heads<'a> {
        Heads { data: &self.data[rows.start * self.row_width..rows.end * self.row_width], ..self }
    }

    /// The elements from the first of head `head` in row `row` on.
    pub fn from(&self, row: usize, head: usize) -> &'a [f32] {
        &self.data[row * self.row_width + self.layout.start + head * self.layout.step..]
    }

    /// The heads of all rows, side by side without gaps.
    pub fn gather(&self) -> Vec<f32> {
        let HeadLayout { start, step, width, count } = self.layout;
        let rows = self.data.chunks_exact(self.row_width);
        let heads = rows.flat_map(|row| (0..count).map(move |head| &row[start + head * step..][..width]));
        heads.flatten().copied().collect()
    }
}
