//! The arrays of numpy's `.npz` files: zip archives of `.npy` files, stored or deflated.

use std::io::Read;
use std::path::Path;

use flate2::CrcReader;
use flate2::read::DeflateDecoder;
use kvant_container::onnx::Bytes;
use kvant_container::{ZipEntry, ZipError, zip_entries};

use crate::error::SampleError;
use crate::stored::{Stored, entry, map};

/// All arrays of an archive. Stored ones are mapped, deflated ones are inflated as they are read.
pub(crate) fn open(path: &Path) -> Result<Vec<Stored>, SampleError> {
    let bytes = map(path)?;
    let entries = zip_entries(&bytes).map_err(|problem| match problem {
        ZipError::NoDirectory => SampleError::invalid(path, "not an .npz file, or truncated"),
        other => SampleError::invalid(path, other.to_string()),
    })?;
    entries.into_iter().map(|entry| array(path, &bytes, entry)).collect()
}

fn array(path: &Path, bytes: &Bytes, found: ZipEntry) -> Result<Stored, SampleError> {
    let place = entry(path, &found.name);
    let Some(name) = found.name.strip_suffix(".npy") else {
        return Err(SampleError::unsupported(place, "an entry that is not an .npy file"));
    };
    let name = name.to_owned();
    if found.encrypted {
        return Err(SampleError::unsupported(place, "an encrypted entry"));
    }
    let range = found.contents(bytes).ok_or_else(|| SampleError::invalid(&place, "contents beyond the file"))?;
    let contents = bytes.slice(range);
    let damaged = || SampleError::invalid(&place, "its checksum is not that of its contents: the file is damaged");
    match found.method {
        0 if checksum(&mut &contents[..]).ok() != Some(found.checksum) => Err(damaged()),
        0 => Stored::npy(place, name, contents),
        8 => {
            let made = Stored::deflated_npy(place.clone(), name, contents.clone(), found.size)?;
            // As many bytes as the header has, which is no more than a compressed file of this size can have.
            match checksum(&mut DeflateDecoder::new(&contents[..]).take(found.size)) {
                Ok(sum) if sum == found.checksum => Ok(made),
                Ok(_) => Err(damaged()),
                Err(cause) => Err(SampleError::invalid(&place, format!("broken compressed data: {cause}"))),
            }
        }
        other => Err(SampleError::unsupported(place, format!("compression method {other}"))),
    }
}

/// The CRC-32 of everything that is read.
fn checksum(contents: &mut dyn Read) -> std::io::Result<u32> {
    let mut reader = CrcReader::new(contents);
    std::io::copy(&mut reader, &mut std::io::sink())?;
    Ok(reader.crc().sum())
}
