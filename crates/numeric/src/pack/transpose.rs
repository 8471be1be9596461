//! Transposition of small elements, in blocks that stay in the cache.

/// Elements of a block's side: two blocks of 32-bit elements fit the first-level cache with room to spare.
const BLOCK: usize = 32;

/// Writes the transpose of a row-major `rows x columns` matrix: `out[c * rows + r] = matrix[r * columns + c]`.
/// Both slices have `rows * columns` elements.
pub fn transpose<T: Copy>(matrix: &[T], rows: usize, columns: usize, out: &mut [T]) {
    assert_eq!((matrix.len(), out.len()), (rows * columns, rows * columns), "slices of {rows} x {columns}");
    for top in (0..rows).step_by(BLOCK) {
        for left in (0..columns).step_by(BLOCK) {
            let bottom = (top + BLOCK).min(rows);
            for column in left..(left + BLOCK).min(columns) {
                let out = &mut out[column * rows + top..column * rows + bottom];
                for (row, out) in (top..bottom).zip(out) {
                    *out = matrix[row * columns + column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_sizes() {
        for (rows, columns) in [(0, 5), (1, 7), (33, 65), (100, 3), (64, 64)] {
            let matrix: Vec<u32> = (0..(rows * columns) as u32).collect();
            let mut out = vec![0; matrix.len()];
            transpose(&matrix, rows, columns, &mut out);
            for row in 0..rows {
                for column in 0..columns {
                    assert_eq!(out[column * rows + row], matrix[row * columns + column]);
                }
            }
        }
    }
}
