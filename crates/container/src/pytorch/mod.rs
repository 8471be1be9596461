//! Checkpoints that `torch.save` wrote: where the tensors of a state dictionary are in the file. Nothing of it is executed; what
//! is not a tensor is an error that names it.
//!
//! Two containers: a zip archive, whose tensors are stored entries, and pickles one after the other, which PyTorch wrote before 1.6.

mod archive;
mod pickle;
mod stacked;

use std::collections::HashMap;
use std::ops::Range;

use pickle::{Pickle, Tensor, Value};

use crate::dtype::byte_len;
use crate::error::PytorchError;
use crate::limits::MAX_DIMENSIONS;
use crate::safetensors::{LFS_POINTER, TensorEntry};

/// Under which keys training tools put the state dictionary of a model.
const WRAPPERS: &[&str] = &["state_dict", "model_state_dict", "model", "module"];

/// The tensors of a file, in the order of their bytes. Several can be the same bytes.
pub(crate) fn entries(file: &[u8]) -> Result<Vec<TensorEntry>, PytorchError> {
    let (pickle, storages) = match file {
        [b'P', b'K', 3, 4, ..] => archive::read(file)?,
        [0x80, ..] => stacked::read(file)?,
        _ if file.starts_with(LFS_POINTER) => return Err(PytorchError::LfsPointer),
        _ => return Err(PytorchError::Unknown),
    };
    let mut entries: Vec<TensorEntry> =
        tensors(&pickle)?.into_iter().map(|(name, tensor)| entry(name, tensor, &storages)).collect::<Result<_, _>>()?;
    entries.sort_by_key(|entry| (entry.range().start, entry.range().end));
    Ok(entries)
}

/// Where the bytes of each storage are in the file.
type Storages = HashMap<String, Range<u64>>;

/// The state dictionary: names and tensors.
fn tensors(pickle: &Pickle) -> Result<Vec<(&str, &Tensor)>, PytorchError> {
    let Value::Dict(pairs) = pickle.top() else { return Err(PytorchError::NotADictionary) };
    let wrapped = pairs.iter().find_map(|(key, value)| match (pickle.get(*key), pickle.get(*value)) {
        (Value::Text(key), Value::Dict(inner)) if WRAPPERS.contains(&key.as_str()) => Some(inner),
        _ => None,
    });
    let mut found: HashMap<&str, usize> = HashMap::new();
    let mut tensors: Vec<(&str, &Tensor)> = Vec::new();
    for (key, value) in wrapped.unwrap_or(pairs) {
        let Value::Text(name) = pickle.get(*key) else { return Err(PytorchError::NotADictionary) };
        let Value::Tensor(tensor) = pickle.get(*value) else {
            return Err(PytorchError::NotATensor { name: name.clone() });
        };
        // The last one counts, as in Python.
        match found.get(name.as_str()) {
            Some(&at) => tensors[at].1 = tensor,
            None => {
                found.insert(name, tensors.len());
                tensors.push((name, tensor));
            }
        }
    }
    Ok(tensors)
}

/// The place of a tensor, after checking that its elements are in order and inside its storage.
fn entry(name: &str, tensor: &Tensor, storages: &Storages) -> Result<TensorEntry, PytorchError> {
    let name = name.to_owned();
    if tensor.shape.len() > MAX_DIMENSIONS {
        return Err(PytorchError::TooManyDimensions { name, dimensions: tensor.shape.len() });
    }
    let outside = || PytorchError::Outside { name: name.clone() };
    let len = byte_len(tensor.dtype, &tensor.shape).map_err(|_| outside())?;
    let Some(storage) = storages.get(&tensor.storage.key) else {
        return Err(PytorchError::NoStorage { name, storage: tensor.storage.key.clone() });
    };
    if len > 0 && !is_contiguous(tensor) {
        return Err(PytorchError::Strided { name, shape: tensor.shape.clone() });
    }
    let offset = tensor.offset.checked_mul(tensor.dtype.bitsize() as u64 / 8).ok_or_else(outside)?;
    let start = storage.start.checked_add(offset).ok_or_else(outside)?;
    let end = start.checked_add(len).filter(|&end| end <= storage.end).ok_or_else(outside)?;
    Ok(TensorEntry::new(name, tensor.dtype, tensor.shape.clone(), start..end))
}

/// Whether elements lie row by row without gaps. Steps along axes of one element mean nothing.
fn is_contiguous(tensor: &Tensor) -> bool {
    let mut expected = 1_u64;
    tensor.shape.iter().zip(&tensor.strides).rev().all(|(&size, &stride)| {
        let fits = size == 1 || stride == expected;
        expected = expected.saturating_mul(size as u64);
        fits
    })
}

#[cfg(test)]
mod tests;
