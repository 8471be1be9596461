//! Arrays whose first index runs fastest (column-major, as Fortran and `numpy.asfortranarray` have them), read in row-major order.

/// `count` elements from the `start`-th in row-major order of an array whose bytes are column-major; `None` beyond its end. The
/// element at `(i0, i1, ...)` is number `i0 + n0 (i1 + n1 (...))` of the bytes.
pub(crate) fn row_major(bytes: &[u8], size: usize, shape: &[usize], start: usize, count: usize) -> Option<Vec<u8>> {
    let mut index = unraveled(start, shape);
    let mut gathered = Vec::with_capacity(count.checked_mul(size)?.min(bytes.len()));
    for _ in 0..count {
        let number = index.iter().zip(shape).rev().fold(0, |number, (at, length)| number * length + at);
        let at = number.checked_mul(size)?;
        gathered.extend_from_slice(bytes.get(at..at.checked_add(size)?)?);
        advance(&mut index, shape);
    }
    Some(gathered)
}

/// The indices of an element by its number in row-major order.
fn unraveled(number: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = number;
    let mut index: Vec<usize> = shape
        .iter()
        .rev()
        .map(|&length| {
            let at = rest % length.max(1);
            rest /= length.max(1);
            at
        })
        .collect();
    index.reverse();
    index
}

/// The indices of the next element in row-major order; those of the first behind the last.
fn advance(index: &mut [usize], shape: &[usize]) {
    for (at, length) in index.iter_mut().zip(shape).rev() {
        *at += 1;
        if *at < *length {
            return;
        }
        *at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fortran_order_elements_are_read_by_rows() {
        // [[0, 1, 2], [3, 4, 5]] and a cube of 2 by 3 by 2, column by column.
        let matrix = [0u8, 3, 1, 4, 2, 5];
        assert_eq!(row_major(&matrix, 1, &[2, 3], 0, 6).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert_eq!(row_major(&matrix, 1, &[2, 3], 2, 3).unwrap(), [2, 3, 4]);
        let cube = [0u8, 6, 2, 8, 4, 10, 1, 7, 3, 9, 5, 11];
        assert_eq!(row_major(&cube, 1, &[2, 3, 2], 0, 12).unwrap(), (0..12).collect::<Vec<u8>>());
        assert_eq!(row_major(&[0, 0, 2, 2, 1, 1, 3, 3], 2, &[2, 2], 1, 2).unwrap(), [1, 1, 2, 2]);
        assert_eq!(row_major(&matrix[..5], 1, &[2, 3], 0, 6), None);
        assert_eq!(row_major(&[], 4, &[0, 3], 0, 0), Some(Vec::new()));
    }
}
