//! Going through a tensor in blocks along one axis.

use rayon::prelude::*;

/// Calls `change` with the values of each block of `size` along `axis` (the last of an axis may be shorter), and puts what it
/// made of them back. Blocks do not depend on each other, so the number of threads changes nothing.
pub(super) fn each_block(
    shape: &[usize],
    axis: i64,
    size: usize,
    values: &mut [f32],
    change: impl Fn(&mut [f32]) + Sync,
) {
    let Some(axis) = position(shape.len(), axis) else { return };
    let length = shape[axis].max(1);
    let inner: usize = shape[axis + 1..].iter().product::<usize>().max(1);
    let size = size.max(1);
    values.par_chunks_mut(length * inner).for_each(|outer| {
        outer.par_chunks_mut(size * inner).for_each(|rows| strided(rows, inner, &change));
    });
}

/// The blocks that lie beside each other in rows of `inner` values.
fn strided(rows: &mut [f32], inner: usize, change: &impl Fn(&mut [f32])) {
    if inner == 1 {
        return change(rows);
    }
    let mut block = vec![0.0; rows.len() / inner];
    for place in 0..inner {
        for (value, row) in block.iter_mut().zip(rows.chunks_exact(inner)) {
            *value = row[place];
        }
        change(&mut block);
        for (value, row) in block.iter().zip(rows.chunks_exact_mut(inner)) {
            row[place] = *value;
        }
    }
}

/// The axis counted from the front. Tensors of one axis have only that one, whatever was asked for.
fn position(rank: usize, axis: i64) -> Option<usize> {
    if rank == 1 {
        return Some(0);
    }
    let axis = if axis < 0 { axis + rank as i64 } else { axis };
    usize::try_from(axis).ok().filter(|&axis| axis < rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each value becomes the sum of its block.
    fn sums(shape: &[usize], axis: i64, size: usize) -> Vec<f32> {
        let mut values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|v| v as f32).collect();
        each_block(shape, axis, size, &mut values, |block| {
            let sum = block.iter().sum();
            block.fill(sum);
        });
        values
    }

    #[test]
    fn blocks_run_along_the_axis() {
        assert_eq!(sums(&[2, 3], 1, 2), [1.0, 1.0, 2.0, 7.0, 7.0, 5.0]);
        assert_eq!(sums(&[2, 3], -2, 2), [3.0, 5.0, 7.0, 3.0, 5.0, 7.0]);
        assert_eq!(sums(&[1, 3, 2], 1, 2), [2.0, 4.0, 2.0, 4.0, 4.0, 5.0]);
        assert_eq!(sums(&[3], 1, 2), [1.0, 1.0, 2.0]);
        assert_eq!(sums(&[], 1, 2), [0.0]);
    }
}
