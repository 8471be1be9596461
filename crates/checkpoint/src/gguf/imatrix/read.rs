//! Reading llama.cpp's importance matrices: GGUF files with `general.type = imatrix`, and the older `.dat`.

use super::{ImatrixError, Importance, InputSums, Provenance, legacy};
use kvant_container::MappedFile;
use kvant_container::gguf::{self, GgufFile, GgufTensor, TensorType, Value, begins_as_gguf, describes_imatrix};
use std::collections::BTreeMap;
use std::path::Path;

/// The ends of tensors' names.
pub(super) const SQUARES: &str = ".in_sum2";
pub(super) const COUNTS: &str = ".counts";

/// Reads a file of either kind.
///
/// # Errors
/// [`ImatrixError`]: system errors, and *invalid* for other files.
pub fn read(path: &Path) -> Result<Importance, ImatrixError> {
    let map = MappedFile::open(path)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let (sums, provenance) = match begins_as_gguf(&map) {
        true => of_gguf(path)?,
        false => legacy::parse(&map).map_err(|reason| damaged(path, reason))?,
    };
    Ok(Importance::of_sums(&sums, Provenance { file: name, ..provenance }))
}

/// Returns whether a path is an importance matrix, in either format.
pub fn is_imatrix(path: &Path) -> bool {
    let is_legacy = || MappedFile::open(path).is_ok_and(|map| !begins_as_gguf(&map) && legacy::parse(&map).is_ok());
    gguf::is_imatrix(path) || is_legacy()
}

fn damaged(path: &Path, reason: impl Into<String>) -> ImatrixError {
    ImatrixError::Damaged { file: path.to_path_buf(), reason: reason.into() }
}

fn of_gguf(path: &Path) -> Result<(BTreeMap<String, InputSums>, Provenance), ImatrixError> {
    let file = GgufFile::open(path)?;
    if !describes_imatrix(file.metadata()) {
        return Err(damaged(path, "it is a GGUF file, but not an importance matrix"));
    }
    let mut sums = BTreeMap::new();
    for tensor in file.tensors() {
        let Some(name) = tensor.name().strip_suffix(SQUARES) else { continue };
        let counts = file.tensor(&format!("{name}{COUNTS}"));
        let entry = counts.and_then(|counts| entry(tensor, counts));
        let entry = entry
            .ok_or_else(|| damaged(path, format!("the sums of `{}` have no counts that fit", name.escape_debug())))?;
        sums.insert(name.to_owned(), entry);
    }
    Ok((sums, provenance(&file)))
}

/// Sums `[matrices, columns]` with counts `[matrices, 1]`.
fn entry(squares: GgufTensor<'_>, counts: GgufTensor<'_>) -> Option<InputSums> {
    let columns = squares.shape().last().copied().filter(|columns| *columns > 0)?;
    let (sums, counts) = (floats(squares)?, floats(counts)?);
    let sound = |value: &f32| value.is_finite() && *value >= 0.0;
    let fits = sums.len() == columns * counts.len() && sums.iter().chain(&counts).all(sound);
    fits.then(|| InputSums {
        columns,
        squares: sums.into_iter().map(f64::from).collect(),
        counts: counts.into_iter().map(|count| count as u64).collect(),
    })
}

fn floats(tensor: GgufTensor<'_>) -> Option<Vec<f32>> {
    let float = |bytes: &[u8]| Some(f32::from_le_bytes(bytes.try_into().ok()?));
    (tensor.kind() == TensorType::F32).then(|| tensor.bytes().chunks_exact(4).filter_map(float).collect())
}

fn provenance(file: &GgufFile) -> Provenance {
    let number = |key: &str| file.metadata().get(key).and_then(Value::as_u64).and_then(|n| u32::try_from(n).ok());
    let datasets = file.metadata().get("imatrix.datasets").and_then(Value::as_array).and_then(|array| array.strings());
    Provenance {
        file: None,
        datasets: datasets.unwrap_or_default().iter().map(ToString::to_string).collect(),
        chunks: number("imatrix.chunk_count").unwrap_or(0),
        chunk_size: number("imatrix.chunk_size").unwrap_or(0),
    }
}
