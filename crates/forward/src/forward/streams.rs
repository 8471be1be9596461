//! The residual streams of many sequences between two blocks: in memory up to a budget, beyond it in a temporary file
//! that has no name and goes with the process.

use super::error::ForwardError;
use crate::float_file::{read, write};
use kvant_numeric::linalg::Precision;
use std::fs::File;

/// Buffers of rows, by number.
#[derive(Debug)]
pub struct Streams {
    places: Vec<StreamPlace>,
    file: Option<File>,
}

/// The storage of a buffer.
#[derive(Debug)]
enum StreamPlace {
    Memory(Vec<f32>),
    /// Elements from this byte of the file on.
    File(u64, usize),
}

impl Streams {
    /// Buffers of these numbers of elements; the first that fit into `budget` bytes stay in memory.
    ///
    /// # Errors
    ///
    /// The system's, if there is no room for a temporary file.
    pub fn new(elements: &[usize], budget: u64) -> Result<Streams, ForwardError> {
        let (mut held, mut spilled) = (0, 0);
        let mut places = Vec::with_capacity(elements.len());
        for elements in elements {
            let bytes = *elements as u64 * 4;
            if held + bytes <= budget {
                held += bytes;
                places.push(StreamPlace::Memory(Vec::new()));
            } else {
                places.push(StreamPlace::File(spilled, *elements));
                spilled += bytes;
            }
        }
        let file = (spilled > 0).then(|| temporary(spilled)).transpose().map_err(ForwardError::Spill)?;
        Ok(Streams { places, file })
    }

    /// Keeps a buffer of the length that was announced.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn put(&mut self, index: usize, data: Vec<f32>) -> Result<(), ForwardError> {
        match (&mut self.places[index], &self.file) {
            (StreamPlace::File(start, _), Some(file)) => {
                write(file, Precision::F32, *start, &data).map_err(ForwardError::Spill)
            }
            (place, _) => {
                *place = StreamPlace::Memory(data);
                Ok(())
            }
        }
    }

    /// A copy of a buffer.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn copy(&self, index: usize) -> Result<Vec<f32>, ForwardError> {
        match (&self.places[index], &self.file) {
            (StreamPlace::File(start, elements), Some(file)) => {
                read(file, Precision::F32, *start, *elements, Vec::new()).map_err(ForwardError::Spill)
            }
            (StreamPlace::Memory(data), _) => Ok(data.clone()),
            (StreamPlace::File(..), None) => Ok(Vec::new()),
        }
    }

    /// Takes a buffer out, to be put back.
    ///
    /// # Errors
    ///
    /// System errors.
    pub fn take(&mut self, index: usize) -> Result<Vec<f32>, ForwardError> {
        match (&mut self.places[index], &self.file) {
            (StreamPlace::File(start, elements), Some(file)) => {
                read(file, Precision::F32, *start, *elements, Vec::new()).map_err(ForwardError::Spill)
            }
            (StreamPlace::Memory(data), _) => Ok(std::mem::take(data)),
            (StreamPlace::File(..), None) => Ok(Vec::new()),
        }
    }
}

/// Fails now, and not after hours, where the bytes cannot be had.
fn temporary(bytes: u64) -> std::io::Result<File> {
    let file = tempfile::tempfile()?;
    file.set_len(bytes)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::float_file::PIECE;

    #[test]
    fn streams_read_back_within_and_beyond_the_budget() {
        let sizes = [1000, PIECE + 7, 3, 2 * PIECE];
        for budget in [0, 4012, u64::MAX] {
            let mut streams = Streams::new(&sizes, budget).unwrap();
            for (index, size) in sizes.iter().enumerate() {
                streams.put(index, (0..*size).map(|i| (i + index) as f32).collect()).unwrap();
            }
            for _ in 0..2 {
                for (index, size) in sizes.iter().enumerate() {
                    let data = streams.take(index).unwrap();
                    assert!(data.len() == *size && data.iter().enumerate().all(|(i, x)| *x == (i + index) as f32));
                    streams.put(index, data).unwrap();
                }
            }
        }
        let length = |budget| Streams::new(&sizes, budget).unwrap().file.map(|file| file.metadata().unwrap().len());
        assert_eq!((length(u64::MAX), length(4012)), (None, Some(4 * (3 * PIECE as u64 + 7))));
    }
}
