//! The zip archive that PyTorch writes since 1.6: `NAME/data.pkl` and a stored entry `NAME/data/KEY` for each storage.

use super::Storages;
use super::pickle::Pickle;
use crate::error::PytorchError;
use crate::limits::MAX_HEADER_LEN;
use crate::zip::{ZipEntry, zip_entries};

/// The pickle of an archive, and where its storages are.
pub(super) fn read(file: &[u8]) -> Result<(Pickle, Storages), PytorchError> {
    let entries = zip_entries(file).map_err(PytorchError::Zip)?;
    let Some(root) = entries.iter().find_map(|entry| entry.name.strip_suffix("/data.pkl")) else {
        return Err(PytorchError::Unknown);
    };
    let within = |name: &str| format!("{root}/{name}");
    if entries.iter().any(|entry| entry.name == within("constants.pkl")) {
        return Err(PytorchError::TorchScript);
    }
    let find = |name: &str| entries.iter().find(|entry| entry.name == within(name));
    if let Some(order) = find("byteorder")
        && stored(order, file)? != b"little"
    {
        return Err(PytorchError::BigEndian);
    }
    let data = find("data.pkl").ok_or(PytorchError::Unknown)?;
    let data = stored(data, file)?;
    if data.len() as u64 > MAX_HEADER_LEN {
        return Err(PytorchError::TooLong { len: data.len() as u64 });
    }
    let pickle = Pickle::read(data)?;
    let prefix = within("data/");
    let mut storages = Storages::new();
    for entry in &entries {
        let Some(key) = entry.name.strip_prefix(&prefix) else { continue };
        let range = place(entry, file)?;
        storages.insert(key.to_owned(), range.start as u64..range.end as u64);
    }
    Ok((pickle, storages))
}

fn stored<'f>(entry: &ZipEntry, file: &'f [u8]) -> Result<&'f [u8], PytorchError> {
    place(entry, file).map(|range| &file[range])
}

/// The range of the file that holds an uncompressed entry.
fn place(entry: &ZipEntry, file: &[u8]) -> Result<std::ops::Range<usize>, PytorchError> {
    if entry.encrypted || entry.method != 0 {
        return Err(PytorchError::Compressed { entry: entry.name.clone() });
    }
    entry.contents(file).ok_or_else(|| PytorchError::EntryOutside { entry: entry.name.clone() })
}
