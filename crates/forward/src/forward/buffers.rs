//! Reusable buffers of activations. Those of a block are as large as those of the block before, and memory
//! that is new to the process costs more than the data written to it.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Buffers that nobody uses for now.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<f32>>>);

impl Buffers {
    /// A buffer of at least this size, with arbitrary contents; empty if none is large enough.
    pub(super) fn take(&self, elements: usize) -> Vec<f32> {
        let mut free = self.free();
        let fitting = |buffer: &&(usize, usize)| buffer.1 >= elements;
        let sizes: Vec<(usize, usize)> = free.iter().map(Vec::capacity).enumerate().collect();
        let least = sizes.iter().filter(fitting).min_by_key(|(_, capacity)| *capacity);
        least.map(|(index, _)| free.swap_remove(*index)).unwrap_or_default()
    }

    /// A buffer of this size, with arbitrary contents.
    pub(super) fn of_size(&self, elements: usize) -> Vec<f32> {
        let mut buffer = self.take(elements);
        buffer.resize(elements, 0.0);
        buffer
    }

    /// A copy of these elements.
    pub(super) fn copy(&self, elements: &[f32]) -> Vec<f32> {
        let mut copy = self.take(elements.len());
        copy.clear();
        copy.extend_from_slice(elements);
        copy
    }

    /// Takes back a buffer that is no longer used.
    pub(super) fn give(&self, buffer: Vec<f32>) {
        let mut free = self.free();
        if buffer.capacity() >= LEAST && free.len() < MOST {
            free.push(buffer);
        }
    }

    /// Gives all memory back.
    pub(super) fn clear(&self) {
        *self.free() = Vec::new();
    }

    fn free(&self) -> MutexGuard<'_, Vec<Vec<f32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Smaller ones cost little.
const LEAST: usize = 32 << 10;

/// More are not in use at a time.
const MOST: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn smallest_fitting_buffer_is_taken() {
        let buffers = Buffers::default();
        [4, 1, 2].into_iter().for_each(|size| buffers.give(vec![size as f32; size * LEAST]));
        buffers.give(vec![0.0; LEAST - 1]);
        assert_eq!(buffers.take(LEAST + 1)[0], 2.0);
        assert_eq!(buffers.copy(&[7.0; 3]), [7.0; 3]);
        assert_eq!(buffers.take(2)[0], 4.0);
        assert!(buffers.take(1).is_empty());
        assert_eq!(buffers.of_size(3), [0.0; 3]);
        buffers.give(vec![1.0; LEAST + 2]);
        assert_eq!(buffers.of_size(LEAST), vec![1.0; LEAST]);
        buffers.give(vec![0.0; LEAST]);
        buffers.clear();
        assert!(buffers.take(1).is_empty());
    }
}
