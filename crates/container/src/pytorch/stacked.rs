//! The format before PyTorch 1.6: pickles one after the other (a number that marks it, its version, the system, the state
//! dictionary, the keys of storages), then the storages, each with its number of elements in front.

use std::collections::HashMap;

use super::Storages;
use super::pickle::{Pickle, Value};
use crate::dtype::Dtype;
use crate::error::PytorchError;
use crate::limits::MAX_HEADER_LEN;

/// The number that marks the format, little-endian: 0x1950a86a20f9469cfc6c.
const MAGIC: &[u8] = &[0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
const VERSION: i64 = 1001;

/// The state dictionary's pickle, and where its storages are.
pub(super) fn read(file: &[u8]) -> Result<(Pickle, Storages), PytorchError> {
    let mut rest = Pickles { file, at: 0 };
    let magic = rest.next()?;
    if !matches!(magic.top(), Value::Big(bytes) if bytes == MAGIC) {
        return Err(PytorchError::BarePickle);
    }
    if rest.next()?.top() != &Value::Int(VERSION) {
        return Err(PytorchError::Unknown);
    }
    let system = rest.next()?;
    if is_big_endian(&system) {
        return Err(PytorchError::BigEndian);
    }
    let state = rest.next()?;
    let keys = rest.next()?;
    let storages = storages(file, rest.at, &state, &keys)?;
    Ok((state, storages))
}

/// The pickles that follow one another in a file.
struct Pickles<'f> {
    file: &'f [u8],
    at: usize,
}

impl Pickles<'_> {
    fn next(&mut self) -> Result<Pickle, PytorchError> {
        let rest = self.file.get(self.at..).unwrap_or_default();
        // What follows a pickle does not count for its length.
        let longest = rest.len().min(MAX_HEADER_LEN as usize);
        let pickle = Pickle::read(&rest[..longest])?;
        self.at += pickle.len;
        Ok(pickle)
    }
}

fn is_big_endian(system: &Pickle) -> bool {
    let Value::Dict(pairs) = system.top() else { return false };
    pairs.iter().any(|(key, value)| {
        matches!(system.get(*key), Value::Text(key) if key == "little_endian")
            && *system.get(*value) == Value::Bool(false)
    })
}

/// Where the storages are that begin at a place of the file, in the order of their keys.
fn storages(file: &[u8], start: usize, state: &Pickle, keys: &Pickle) -> Result<Storages, PytorchError> {
    let known: HashMap<&str, Option<Dtype>> =
        state.storages().map(|storage| (storage.key.as_str(), storage.dtype)).collect();
    let Value::List(keys_in_order) = keys.top() else { return Err(PytorchError::Unknown) };
    let mut storages = Storages::new();
    let mut at = start;
    for key in keys_in_order {
        let Value::Text(key) = keys.get(*key) else { return Err(PytorchError::Unknown) };
        let unknown = || PytorchError::UnknownStorage { storage: key.clone() };
        let dtype = *known.get(key.as_str()).ok_or_else(unknown)?;
        let cut = || PytorchError::Truncated { storage: key.clone() };
        let elements = file.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let begin = at + 8;
        let len = storage_len(dtype, elements.ok_or_else(cut)?).and_then(|len| usize::try_from(len).ok());
        let end = len.and_then(|len| begin.checked_add(len)).filter(|&end| end <= file.len()).ok_or_else(cut)?;
        storages.insert(key.clone(), begin as u64..end as u64);
        at = end;
    }
    Ok(storages)
}

/// The bytes of a storage of so many elements; `None` for sizes that no file has.
fn storage_len(dtype: Option<Dtype>, elements: u64) -> Option<u64> {
    elements.checked_mul(dtype.map_or(1, |dtype| dtype.bitsize() as u64 / 8))
}
