//! Tensors of samples that are kept between runs: in memory up to a budget, in a temporary file beyond it.

use std::collections::HashMap;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use kvant_container::positioned::{read_exact_at, write_all_at};

use crate::data::Array;

/// Tensors by name and sample.
pub(crate) struct TensorStore {
    budget: u64,
    directory: PathBuf,
    held: Mutex<Held>,
}

#[derive(Default)]
struct Held {
    entries: HashMap<(String, usize), StoreEntry>,
    /// Bytes in memory.
    bytes: u64,
    /// Floats beyond the budget. It has no name, and is gone when it is closed.
    file: Option<Arc<File>>,
    end: u64,
    /// Places of the file that are free again: offset and bytes.
    free: Vec<(u64, u64)>,
}

enum StoreEntry {
    Memory(Arc<Array<'static>>),
    File { shape: Vec<usize>, offset: u64 },
}

/// Bytes of an array's values, counted as if they were floats or integers of 64 bits.
fn bytes(array: &Array<'_>) -> u64 {
    array.len() as u64 * if array.f32s().is_some() { 4 } else { 8 }
}

impl TensorStore {
    /// An empty store. The file, if needed, is created in `directory`.
    pub fn new(budget: u64, directory: PathBuf) -> Self {
        Self { budget, directory, held: Mutex::default() }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an array.
    ///
    /// # Errors
    /// The file cannot be made or written.
    pub fn put(&self, name: &str, sample: usize, array: Array<'static>) -> std::io::Result<()> {
        let mut held = self.held();
        let size = bytes(&array);
        // Integers are few: only floats go to the file.
        let entry = match array.f32s().filter(|_| held.bytes + size > self.budget) {
            Some(values) => {
                let offset = held.write(bytemuck::cast_slice(values), &self.directory)?;
                StoreEntry::File { shape: array.shape().to_vec(), offset }
            }
            None => {
                held.bytes += size;
                StoreEntry::Memory(Arc::new(array))
            }
        };
        held.entries.insert((name.to_owned(), sample), entry);
        Ok(())
    }

    /// A stored array; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn get(&self, name: &str, sample: usize) -> std::io::Result<Option<Arc<Array<'static>>>> {
        let held = self.held();
        let (shape, offset) = match held.entries.get(&(name.to_owned(), sample)) {
            None => return Ok(None),
            Some(StoreEntry::Memory(array)) => return Ok(Some(array.clone())),
            Some(StoreEntry::File { shape, offset }) => (shape.clone(), *offset),
        };
        let file = held.file.clone();
        // Sessions read side by side.
        drop(held);
        let mut values = vec![0f32; shape.iter().product()];
        if let Some(file) = file {
            read_exact_at(&file, bytemuck::cast_slice_mut(&mut values), offset)?;
        }
        Ok(Array::of(shape, values).map(Arc::new))
    }

    /// Drops a tensor of all samples.
    pub fn remove(&self, name: &str, samples: usize) {
        let mut held = self.held();
        for sample in 0..samples {
            match held.entries.remove(&(name.to_owned(), sample)) {
                Some(StoreEntry::Memory(array)) => held.bytes -= bytes(&array),
                Some(StoreEntry::File { shape, offset }) => {
                    held.free.push((offset, shape.iter().product::<usize>() as u64 * 4));
                }
                None => {}
            }
        }
    }
}

impl Held {
    fn write(&mut self, bytes: &[u8], directory: &std::path::Path) -> std::io::Result<u64> {
        let size = bytes.len() as u64;
        let offset = self.place(size);
        let file = match &mut self.file {
            Some(file) => file,
            None => self.file.insert(Arc::new(tempfile::tempfile_in(directory)?)),
        };
        write_all_at(file, bytes, offset)?;
        Ok(offset)
    }

    /// A free place of so many bytes: one that was used before, or the end.
    fn place(&mut self, size: u64) -> u64 {
        if let Some(found) = self.free.iter().position(|(_, free)| *free >= size) {
            let (offset, free) = self.free.swap_remove(found);
            if free > size {
                self.free.push((offset + size, free - size));
            }
            return offset;
        }
        self.end += size;
        self.end - size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn array(first: f32) -> Array<'static> {
        Array::of(vec![2, 2], vec![first, 2.0, 3.0, 4.0]).unwrap()
    }

    #[test]
    fn values_beyond_the_budget_come_back_from_a_reused_file() {
        let store = TensorStore::new(16, std::env::temp_dir());
        (0..3).for_each(|sample| store.put("a", sample, array(sample as f32)).unwrap());
        store.put("b", 0, array(9.0)).unwrap();
        (0..3).for_each(|sample| assert_eq!(*store.get("a", sample).unwrap().unwrap(), array(sample as f32)));
        store.remove("a", 3);
        assert!(store.get("a", 2).unwrap().is_none());
        store.put("c", 0, array(5.0)).unwrap();
        store.put("c", 1, array(6.0)).unwrap();
        assert_eq!((*store.get("c", 1).unwrap().unwrap()).clone(), array(6.0));
        assert_eq!((*store.get("b", 0).unwrap().unwrap()).clone(), array(9.0));
        assert_eq!(store.held().end, 48);
    }
}
