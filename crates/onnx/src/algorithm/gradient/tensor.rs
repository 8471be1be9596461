//! Tensors of floats on a tape, and the positions that broadcasting reads.

use crate::data::Array;

/// A tensor of floats, row-major.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::algorithm) struct Tensor {
    /// The sizes of its axes.
    pub shape: Vec<usize>,
    /// Its values.
    pub values: Vec<f32>,
}

/// What an operator reads at one of its inputs.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    /// Floats.
    Floats { shape: &'a [usize], values: &'a [f32] },
    /// Integers, or values of another type.
    Other(&'a Array<'static>),
    /// Nothing: the input is left out.
    Absent,
}

impl Tensor {
    /// The tensor, lent.
    pub(super) fn input(&self) -> Input<'_> {
        Input::Floats { shape: &self.shape, values: &self.values }
    }
}

impl<'a> Input<'a> {
    /// An array, lent.
    pub fn of(array: &'a Array<'static>) -> Input<'a> {
        match array.f32s() {
            Some(values) => Input::Floats { shape: array.shape(), values },
            None => Input::Other(array),
        }
    }

    /// Shape and values of floats.
    pub fn floats(self) -> Option<(&'a [usize], &'a [f32])> {
        match self {
            Input::Floats { shape, values } => Some((shape, values)),
            Input::Other(_) | Input::Absent => None,
        }
    }

    /// Returns whether the input is left out.
    pub fn is_absent(self) -> bool {
        matches!(self, Input::Absent)
    }
}

/// Which element of each of several tensors an element of their common shape reads.
pub(super) struct Broadcast {
    /// The common shape.
    pub shape: Vec<usize>,
    /// For each tensor the distance of neighbours along each axis; 0 where it has one for all.
    strides: Vec<Vec<usize>>,
}

impl Broadcast {
    /// Of tensors of these shapes; `None` where they have no common one.
    pub fn new(shapes: &[&[usize]]) -> Option<Broadcast> {
        let rank = shapes.iter().map(|shape| shape.len()).max()?;
        let mut shape = vec![1; rank];
        for own in shapes {
            for (common, &size) in shape[rank - own.len()..].iter_mut().zip(*own) {
                match (*common, size) {
                    (1, size) => *common = size,
                    (common, size) if size == common || size == 1 => {}
                    _ => return None,
                }
            }
        }
        let strides = shapes.iter().map(|own| strides(own, rank)).collect();
        Some(Broadcast { shape, strides })
    }

    /// For each element of the common shape, in order, the positions in all tensors.
    pub fn for_each(&self, mut visit: impl FnMut(usize, &[usize])) {
        let count: usize = self.shape.iter().product();
        let mut place = vec![0; self.shape.len()];
        let mut positions = vec![0; self.strides.len()];
        for element in 0..count {
            visit(element, &positions);
            for axis in (0..self.shape.len()).rev() {
                place[axis] += 1;
                let wraps = place[axis] == self.shape[axis];
                for (position, strides) in positions.iter_mut().zip(&self.strides) {
                    *position += strides[axis];
                    if wraps {
                        *position -= strides[axis] * self.shape[axis];
                    }
                }
                if !wraps {
                    break;
                }
                place[axis] = 0;
            }
        }
    }
}

/// Distances of neighbours along the last `rank` axes of a shape.
fn strides(shape: &[usize], rank: usize) -> Vec<usize> {
    let mut strides = vec![0; rank];
    let mut distance = 1;
    for (axis, &size) in shape.iter().enumerate().rev() {
        strides[rank - shape.len() + axis] = if size == 1 { 0 } else { distance };
        distance *= size;
    }
    strides
}

/// An axis that may be counted from the end.
pub(super) fn axis_of(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    usize::try_from(if axis < 0 { axis + rank } else { axis }).ok().filter(|&axis| (axis as i64) < rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcast_positions_follow_the_common_shape() {
        let broadcast = Broadcast::new(&[&[2, 1, 3], &[4, 1]]).unwrap();
        assert_eq!(broadcast.shape, [2, 4, 3]);
        let mut seen = Vec::new();
        broadcast.for_each(|_, positions| seen.push((positions[0], positions[1])));
        let expected = |i: usize| (i / 12 * 3 + i % 3, i / 3 % 4);
        assert_eq!(seen, (0..24).map(expected).collect::<Vec<_>>());
        assert!(Broadcast::new(&[&[2], &[3]]).is_none());
    }
}
