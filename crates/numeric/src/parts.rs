//! Vectors that threads make part by part. Their memory is not cleared beforehand, which one thread would do.
#![allow(unsafe_code)]

use rayon::prelude::*;
use std::ops::Range;

/// A vector of `length` elements in parts of `size`, the last of which may be shorter, and what `make` returns beside each, in order.
/// `make` is given the positions of a part in the vector, and makes it in its state, of which there is one for each run of parts. All
/// threads of the current rayon pool take part.
///
/// # Errors
/// One of those of `make`.
///
/// # Panics
/// If a part has more or fewer elements than positions.
pub fn in_parts<T: Copy + Send + Sync, S, R: Send, E: Send>(
    length: usize,
    size: usize,
    state: impl Fn() -> S + Sync + Send,
    make: impl for<'s> Fn(&'s mut S, Range<usize>) -> Result<(&'s [T], R), E> + Sync + Send,
) -> Result<(Vec<T>, Vec<R>), E> {
    let size = size.max(1);
    let mut elements = Vec::with_capacity(length);
    let places = elements.spare_capacity_mut()[..length].par_chunks_mut(size).enumerate();
    let results = places.map_init(state, |state, (index, place)| {
        let (part, result) = make(state, index * size..index * size + place.len())?;
        place.write_copy_of_slice(part);
        Ok(result)
    });
    let results = results.collect::<Result<Vec<R>, E>>()?;
    // SAFETY: `length` is within the capacity. The places cover it, and without an error each of them was written as a whole.
    unsafe { elements.set_len(length) };
    Ok((elements, results))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_the_whole_in_order() {
        for (length, size) in [(0, 4), (1, 4), (4, 4), (10, 4), (1000, 1), (5, 0)] {
            let (elements, firsts) = in_parts(length, size, Vec::new, |buffer, positions| {
                buffer.clear();
                buffer.extend(positions.clone());
                Ok::<_, ()>((buffer, positions.start))
            })
            .unwrap();
            assert_eq!(elements, (0..length).collect::<Vec<_>>());
            assert_eq!(firsts, (0..length).step_by(size.max(1)).collect::<Vec<_>>());
        }
    }

    #[test]
    fn an_error_of_a_part_is_that_of_the_whole() {
        let made = in_parts(
            64,
            8,
            || [1u8; 8],
            |part, positions| match positions.start {
                24 => Err("three"),
                _ => Ok((part.as_slice(), ())),
            },
        );
        assert_eq!(made, Err("three"));
    }
}
