//! A loop over bands of values on all threads of rayon's pool. Its body is called through a pointer: most work is compiled for each grid of codes,
//! and would carry rayon's machinery with it each time.

use rayon::prelude::*;

/// What `of` returns for each band of `band` values, by its number; the last one may be shorter.
pub(in crate::rounding) fn map_bands<V: Send, T: Send>(
    values: &mut [V],
    band: usize,
    of: &(dyn Fn(usize, &mut [V]) -> T + Sync),
) -> Vec<T> {
    values.par_chunks_mut(band.max(1)).enumerate().map(|(number, values)| of(number, values)).collect()
}
