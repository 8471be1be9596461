//! Transposition of small elements, in blocks that stay in the cache.

/// Elements of a block's side: rows of 32-bit elements are two cache lines, and the block fits the first-level cache many
/// times.
const BLOCK: usize = 32;

/// Writes the transpose of a row-major `rows x columns` matrix: `out[c * rows + r] = matrix[r * columns + c]`.
/// Both slices have `rows * columns` elements.
pub fn transpose<T: Copy>(matrix: &[T], rows: usize, columns: usize, out: &mut [T]) {
    assert_eq!((matrix.len(), out.len()), (rows * columns, rows * columns), "slices of {rows} x {columns}");
    transpose_part((matrix, columns), (rows, columns), (out, rows));
}

/// The same of a `rows x columns` part of a matrix, to a part of another; both are slices that begin with the part's first
/// element, and the lengths of the whole rows: `out[c * out_width + r] = matrix[r * width + c]`.
pub fn transpose_part<T: Copy>(
    (matrix, width): (&[T], usize),
    (rows, columns): (usize, usize),
    (out, out_width): (&mut [T], usize),
) {
    let Some(&any) = matrix.first() else { return };
    // Rows whose distance is a power of two fall into one set of the cache and displace each other before a second column is
    // read: whole lines of them are copied to where they do not.
    let mut block = [[any; BLOCK]; BLOCK];
    for top in (0..rows).step_by(BLOCK) {
        let height = BLOCK.min(rows - top);
        for left in (0..columns).step_by(BLOCK) {
            let wide = BLOCK.min(columns - left);
            for (row, line) in block.iter_mut().enumerate().take(height) {
                let source = &matrix[(top + row) * width + left..][..wide];
                match source.first_chunk() {
                    // A copy of a known length is a few instructions.
                    Some(whole) => *line = *whole,
                    None => line[..wide].copy_from_slice(source),
                }
            }
            for column in 0..wide {
                let start = (left + column) * out_width + top;
                let out = &mut out[start..start + height];
                out.iter_mut().zip(&block).for_each(|(out, line)| *out = line[column]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transpose_handles_odd_sizes() {
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

    #[test]
    fn transpose_part_leaves_the_rest_untouched() {
        let matrix: Vec<u32> = (0..40 * 50).collect();
        let mut out = vec![u32::MAX; 60 * 70];
        transpose_part((&matrix[2 * 50 + 3..], 50), (35, 37), (&mut out[4 * 70 + 5..], 70));
        for (i, value) in out.iter().enumerate() {
            let (column, row) = (i / 70, i % 70);
            let inside = (4..41).contains(&column) && (5..40).contains(&row);
            let expected = if inside { matrix[(row - 3) * 50 + column - 1] } else { u32::MAX };
            assert_eq!(*value, expected, "{column} {row}");
        }
    }
}
