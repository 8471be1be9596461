//! Operators that move elements and compute nothing, on bytes of any type. Each refuses results beyond a limit of bytes.

use super::Value;

/// Number of elements of a shape.
pub(super) fn product(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
}

/// Strides of a row-major shape, in elements.
pub(super) fn strides(shape: &[usize]) -> Vec<isize> {
    let mut strides = vec![1isize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(isize::try_from(shape[axis]).unwrap_or(isize::MAX));
    }
    strides
}

/// An axis counted from the end where it is negative.
pub(super) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let counted = if axis < 0 { axis.checked_add(i64::try_from(rank).ok()?)? } else { axis };
    usize::try_from(counted).ok().filter(|&a| a < rank)
}

/// The shape two shapes broadcast to.
pub(super) fn broadcast(a: &[usize], b: &[usize]) -> Option<Vec<usize>> {
    let rank = a.len().max(b.len());
    let dim = |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |at| shape[at]);
    (0..rank)
        .map(|i| match (dim(a, i), dim(b, i)) {
            (1, n) | (n, 1) => Some(n),
            (n, m) => (n == m).then_some(n),
        })
        .collect()
}

impl Value {
    /// The elements at `offset + index * strides` of every index in `shape`; positions and strides count elements.
    fn strided(&self, shape: Vec<usize>, strides: &[isize], offset: isize, limit: usize) -> Option<Self> {
        let size = self.element_size();
        let elements = product(&shape)?;
        let mut bytes = Vec::with_capacity(elements.checked_mul(size).filter(|&n| n <= limit)?);
        let mut index = vec![0usize; shape.len()];
        let mut position = offset;
        for _ in 0..elements {
            let start = usize::try_from(position).ok()?.checked_mul(size)?;
            bytes.extend_from_slice(self.bytes().get(start..start + size)?);
            for axis in (0..shape.len()).rev() {
                index[axis] += 1;
                position += strides[axis];
                if index[axis] < shape[axis] {
                    break;
                }
                position -= strides[axis] * shape[axis] as isize;
                index[axis] = 0;
            }
        }
        Self::new(self.data_type(), shape, bytes)
    }

    /// Axes in another order: output axis `i` is input axis `order[i]`.
    pub fn transposed(&self, order: &[usize]) -> Option<Self> {
        let mut sorted = order.to_vec();
        sorted.sort_unstable();
        if sorted.iter().copied().ne(0..self.shape().len()) {
            return None;
        }
        let old = strides(self.shape());
        let shape = order.iter().map(|&a| self.shape()[a]).collect();
        let new: Vec<isize> = order.iter().map(|&a| old[a]).collect();
        self.strided(shape, &new, 0, usize::MAX)
    }

    /// Repeated to a shape that the value broadcasts to.
    pub fn expanded(&self, shape: &[usize], limit: usize) -> Option<Self> {
        if broadcast(self.shape(), shape)? != shape {
            return None;
        }
        if self.shape() == shape {
            return Some(self.clone());
        }
        let new = shape.len() - self.shape().len();
        let own = strides(self.shape());
        let along = |i: usize| match i.checked_sub(new) {
            Some(axis) if self.shape()[axis] > 1 => own[axis],
            _ => 0,
        };
        let strides: Vec<isize> = (0..shape.len()).map(along).collect();
        self.strided(shape.to_vec(), &strides, 0, limit)
    }

    /// Every `step`-th element from `start` on, `count` of them, along an axis.
    pub fn sliced(&self, axis: usize, start: usize, step: isize, count: usize) -> Option<Self> {
        let mut shape = self.shape().to_vec();
        *shape.get_mut(axis)? = count;
        let mut strides = strides(self.shape());
        let offset = strides[axis].checked_mul(isize::try_from(start).ok()?)?;
        strides[axis] = if count > 1 { strides[axis].checked_mul(step)? } else { 0 };
        self.strided(shape, &strides, offset, usize::MAX)
    }

    /// The slices at `indices` along an axis; the axis becomes the shape of the indices.
    pub fn gathered(&self, axis: usize, indices: &[i64], shape: &[usize], limit: usize) -> Option<Self> {
        let length = *self.shape().get(axis)?;
        let block = product(&self.shape()[axis + 1..])?.checked_mul(self.element_size())?;
        let outer = product(&self.shape()[..axis])?;
        let size = outer.checked_mul(indices.len())?.checked_mul(block)?;
        let mut bytes = Vec::with_capacity(Some(size).filter(|&n| n <= limit)?);
        let rows = if size == 0 { 0 } else { outer };
        for row in 0..rows {
            for &index in indices {
                let at = (row * length + self::axis(index, length)?) * block;
                bytes.extend_from_slice(self.bytes().get(at..at + block)?);
            }
        }
        let shape = [&self.shape()[..axis], shape, &self.shape()[axis + 1..]].concat();
        Self::new(self.data_type(), shape, bytes)
    }

    /// For each index the element at its own place, but along an axis where the index says.
    pub fn gathered_elements(&self, axis: usize, indices: &[i64], shape: &[usize], limit: usize) -> Option<Self> {
        let size = self.element_size();
        if shape.len() != self.shape().len() || indices.len().checked_mul(size)? > limit {
            return None;
        }
        let fits = |(i, (&ours, &theirs)): (usize, (&usize, &usize))| i == axis || theirs <= ours;
        if !self.shape().iter().zip(shape).enumerate().all(fits) {
            return None;
        }
        let mut bytes = Vec::with_capacity(indices.len() * size);
        for (place, &index) in indices.iter().enumerate() {
            let mut rest = place;
            let (mut at, mut stride) = (0, 1);
            for dimension in (0..shape.len()).rev() {
                let own = rest % shape[dimension];
                rest /= shape[dimension];
                let length = self.shape()[dimension];
                at += stride * if dimension == axis { self::axis(index, length)? } else { own };
                stride *= length;
            }
            bytes.extend_from_slice(self.bytes().get(at * size..(at + 1) * size)?);
        }
        Self::new(self.data_type(), shape.to_vec(), bytes)
    }

    /// Values one after the other along an axis.
    pub fn concatenated(parts: &[&Value], axis: usize) -> Option<Self> {
        let first = parts.first()?;
        let others = |v: &Value| -> Option<(Vec<usize>, Vec<usize>)> {
            Some((v.shape().get(..axis)?.to_vec(), v.shape().get(axis + 1..)?.to_vec()))
        };
        let (before, after) = others(first)?;
        for part in parts {
            if others(part)? != (before.clone(), after.clone()) || part.data_type() != first.data_type() {
                return None;
            }
        }
        let size = parts.iter().map(|p| p.bytes().len()).sum();
        let mut bytes = Vec::with_capacity(size);
        let outer = if size == 0 { 0 } else { product(&before)? };
        for row in 0..outer {
            for part in parts {
                let block = part.bytes().len() / outer;
                bytes.extend_from_slice(&part.bytes()[row * block..(row + 1) * block]);
            }
        }
        let length = parts.iter().try_fold(0usize, |sum, p| sum.checked_add(p.shape()[axis]))?;
        let shape = [&before[..], &[length], &after].concat();
        Self::new(first.data_type(), shape, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Value {
        Value::integers(&[2, 3], &[0, 1, 2, 3, 4, 5]).unwrap()
    }

    fn parts(value: Option<Value>) -> (Vec<usize>, Vec<i64>) {
        let value = value.unwrap();
        (value.shape().to_vec(), value.as_integers().unwrap())
    }

    #[test]
    fn elements_move_as_onnx_specifies() {
        assert_eq!(parts(grid().transposed(&[1, 0])), (vec![3, 2], vec![0, 3, 1, 4, 2, 5]));
        assert_eq!(parts(grid().sliced(1, 2, -1, 3)), (vec![2, 3], vec![2, 1, 0, 5, 4, 3]));
        assert_eq!(parts(grid().gathered(1, &[-1, 0], &[2], 1000)), (vec![2, 2], vec![2, 0, 5, 3]));
        assert_eq!(parts(grid().gathered(0, &[1], &[], 1000)), (vec![3], vec![3, 4, 5]));
        assert_eq!(parts(grid().gathered_elements(1, &[2, 0, 1, -1], &[2, 2], 1000)), (vec![2, 2], vec![2, 0, 4, 5]));
        assert!(grid().gathered_elements(0, &[0; 4], &[1, 4], 1000).is_none());
        let row = Value::integers(&[1, 3], &[7, 8, 9]).unwrap();
        assert_eq!(parts(row.expanded(&[2, 3], 1000)), (vec![2, 3], vec![7, 8, 9, 7, 8, 9]));
        assert_eq!(parts(Value::concatenated(&[&grid(), &row], 0)).1, [0, 1, 2, 3, 4, 5, 7, 8, 9]);
        assert_eq!(parts(Value::concatenated(&[&grid(), &grid()], 1)).1, [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]);
    }

    #[test]
    fn invalid_shapes_and_oversized_results_are_refused() {
        assert!(grid().transposed(&[0, 0]).is_none());
        assert!(grid().gathered(1, &[3], &[1], 1000).is_none());
        assert!(grid().expanded(&[4, 3], 1000).is_none());
        let one = Value::integers(&[1], &[1]).unwrap();
        assert!(one.expanded(&[1 << 40], 1000).is_none() && one.expanded(&[usize::MAX, usize::MAX], 1000).is_none());
        assert!(Value::concatenated(&[&grid(), &one], 0).is_none());
    }
}
