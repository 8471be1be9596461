//! Writing a model: one protobuf file, and one file of external data beside it where asked for or needed.

use crate::directory::directory_of;
use crate::new_file::new_file_for;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use super::message::Message;
use super::proto::{DataLocation, ModelProto, StringStringEntryProto, TensorProto};
use super::read::each_tensor;
use crate::error::Error;
use crate::error::OnnxError;
use crate::positioned::sync_dir;

/// Largest model written as one file. Protobuf's own limit is 2^31 - 1; some readers stop earlier.
const LARGEST_FILE: u64 = 1_900_000_000;
/// The largest message that protobuf knows.
const LARGEST_MESSAGE: u64 = i32::MAX as u64;
/// Tensors below this size stay in the model's file: shapes and scalars are read without a second file.
const SMALLEST_EXTERNAL: usize = 1024;
/// The same where external data is asked for.
const SMALLEST_ON_REQUEST: usize = 128;
/// External tensors start at multiples of this, so that readers can map them as arrays of any element.
const ALIGNMENT: u64 = 64;
/// Large external tensors start at multiples of a page, so that readers can map each alone.
const PAGE: u64 = 4096;
/// From this size on a tensor is large.
const LARGE: u64 = 1 << 20;

/// When tensors go to a file of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExternalData {
    /// When the model would not fit one protobuf file.
    #[default]
    Auto,
    /// Always, if any tensor has 128 bytes or more.
    Always,
    /// Never; a model that does not fit is an error.
    Never,
}

/// The file of external data of a model at `path`: its name and `.data`.
pub fn external_data_path(path: &Path) -> PathBuf {
    let mut name = path.file_name().map(OsString::from).unwrap_or_default();
    name.push(".data");
    path.with_file_name(name)
}

/// The model as the bytes of one file.
pub fn serialize(model: &ModelProto) -> Result<Vec<u8>, OnnxError> {
    let mut bytes = Vec::with_capacity(usize::try_from(model.message_size()).unwrap_or(0));
    model.write_message(&mut bytes).map_err(|e| OnnxError::Protobuf(e.to_string()))?;
    Ok(bytes)
}

/// Writes the model to `path`. Files appear under their names when they are complete: data first, then the model.
///
/// A source that is mapped into the model may have the same path: its bytes live on until the model is dropped. Where the
/// model has no external data, those of a model that was there before go with it.
pub fn write(model: ModelProto, path: &Path, external: ExternalData) -> Result<(), Error> {
    write_unless(model, path, external, &AtomicBool::new(false))
}

/// The same, ending with [`Error::Cancelled`] and without the model once the flag is set.
pub fn write_unless(
    mut model: ModelProto,
    path: &Path,
    external: ExternalData,
    cancelled: &AtomicBool,
) -> Result<(), Error> {
    let size = model.message_size();
    let apart = match external {
        ExternalData::Always => true,
        ExternalData::Never if size > LARGEST_FILE => return Err(invalid(path, OnnxError::TooLargeForOneFile(size))),
        ExternalData::Never => false,
        ExternalData::Auto => size > LARGEST_FILE,
    };
    let data_path = external_data_path(path);
    let smallest = if external == ExternalData::Always { SMALLEST_ON_REQUEST } else { SMALLEST_EXTERNAL };
    let data = apart.then(|| move_out(&mut model, &data_path, smallest, cancelled)).transpose()?.flatten();
    let has_data = data.is_some();
    let file = temporary(path)?;
    let mut output = Watched::new(file.as_file(), cancelled);
    let written = match model.message_size() {
        size if size > LARGEST_MESSAGE => Err(format!("Encoded message size {size} is too large")),
        _ => model.write_message(&mut output).map_err(|e| e.to_string()),
    };
    output.check()?;
    written.map_err(|e| invalid(path, OnnxError::Protobuf(e)))?;
    output.flush().map_err(|e| Error::io("write", path, None, e))?;
    drop(output);
    data.map(|data| persist(data, &data_path)).transpose()?;
    persist(file, path)?;
    if has_data { Ok(()) } else { remove_stale(&data_path) }
}

/// Waits until a model that was written is on disk, with its external data and their names.
///
/// # Errors
/// [`Error::Io`].
pub fn sync_written(path: &Path) -> Result<(), Error> {
    let sync = |path: &Path| File::open(path)?.sync_all();
    let data = Some(external_data_path(path)).filter(|data| data.exists());
    for file in [path.to_path_buf()].iter().chain(&data) {
        sync(file).map_err(|cause| Error::io("sync", file, None, cause))?;
    }
    let directory = directory_of(path);
    sync_dir(directory).map_err(|cause| Error::io("sync", directory, None, cause))
}

/// Removes the external data of the model that was replaced.
fn remove_stale(data: &Path) -> Result<(), Error> {
    match std::fs::remove_file(data) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => Err(Error::io("remove", data, None, cause)),
        _ => Ok(()),
    }
}

/// Most bytes written without a look at the flag.
const WATCHED: usize = 16 << 20;

/// A file that is written in pieces, until a flag is set.
struct Watched<'f> {
    output: BufWriter<&'f File>,
    cancelled: &'f AtomicBool,
}

impl<'f> Watched<'f> {
    fn new(file: &'f File, cancelled: &'f AtomicBool) -> Self {
        Self { output: BufWriter::with_capacity(1 << 20, file), cancelled }
    }

    fn check(&self) -> Result<(), Error> {
        if self.cancelled.load(Ordering::Relaxed) { Err(Error::Cancelled) } else { Ok(()) }
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.check().map_err(std::io::Error::other)?;
        self.output.write(&bytes[..bytes.len().min(WATCHED)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

/// Moves the contents of tensors of `smallest` bytes or more to a new file, named by `path` when it is done; none where no tensor is
/// so large.
fn move_out(
    model: &mut ModelProto,
    path: &Path,
    smallest: usize,
    cancelled: &AtomicBool,
) -> Result<Option<tempfile::NamedTempFile>, Error> {
    let location = path.file_name().and_then(|name| name.to_str());
    let location = location.ok_or_else(|| invalid(path, OnnxError::ExternalName))?.to_owned();
    let file = temporary(path)?;
    let mut data = Data { output: Watched::new(file.as_file(), cancelled), position: 0, smallest, failed: None };
    let moved = each_tensor(model, &mut |tensor| {
        data.take(tensor, &location);
        Ok(())
    });
    moved.map_err(|problem| invalid(path, problem))?;
    data.output.check()?;
    let flushed = data.output.flush();
    match data.failed.take().map_or(flushed, Err) {
        Ok(()) => {}
        Err(cause) => return Err(Error::io("write", path, None, cause)),
    }
    let is_empty = data.position == 0;
    drop(data);
    Ok((!is_empty).then_some(file))
}

/// The file of external data as it grows.
struct Data<'f> {
    output: Watched<'f>,
    position: u64,
    /// Tensors below this size are left where they are.
    smallest: usize,
    failed: Option<std::io::Error>,
}

impl Data<'_> {
    fn take(&mut self, tensor: &mut TensorProto, location: &str) {
        let large = tensor.raw_data.as_ref().is_some_and(|raw| raw.len() >= self.smallest);
        if !large || self.failed.is_some() {
            return;
        }
        let Some(contents) = tensor.raw_data.take() else { return };
        match self.append(&contents) {
            Ok(offset) => refer(tensor, location, offset, contents.len()),
            Err(cause) => self.failed = Some(cause),
        }
    }

    fn append(&mut self, contents: &[u8]) -> std::io::Result<u64> {
        let alignment = if contents.len() as u64 >= LARGE { PAGE } else { ALIGNMENT };
        let offset = self.position.next_multiple_of(alignment);
        self.output.write_all(&vec![0; (offset - self.position) as usize])?;
        self.output.write_all(contents)?;
        self.position = offset + contents.len() as u64;
        Ok(offset)
    }
}

fn refer(tensor: &mut TensorProto, location: &str, offset: u64, length: usize) {
    let entry = |key: &str, value: String| StringStringEntryProto {
        key: Some(key.to_owned()),
        value: Some(value),
        ..StringStringEntryProto::default()
    };
    let (offset, length) = (offset.to_string(), length.to_string());
    tensor.external_data =
        vec![entry("location", location.to_owned()), entry("offset", offset), entry("length", length)];
    tensor.data_location = Some(DataLocation::EXTERNAL.into());
}

fn temporary(path: &Path) -> Result<tempfile::NamedTempFile, Error> {
    new_file_for(path).map_err(|e| Error::io("create a file in", directory_of(path), None, e))
}

fn persist(file: tempfile::NamedTempFile, path: &Path) -> Result<(), Error> {
    file.persist(path).map(drop).map_err(|e| Error::io("rename to", path, None, e.error))
}

fn invalid(path: &Path, problem: OnnxError) -> Error {
    Error::Onnx { file: path.to_path_buf(), problem }
}

#[cfg(test)]
mod tests {
    use super::super::{DataType, GraphProto, MessageField, external_files, read, tensor};
    use super::*;

    fn model() -> ModelProto {
        let weight = tensor("w", DataType::UINT8, &[4096], vec![3; 4096]);
        let graph = GraphProto { initializer: vec![weight], ..GraphProto::default() };
        ModelProto { graph: MessageField::some(graph), ..ModelProto::default() }
    }

    #[test]
    fn rewriting_removes_old_external_data() {
        let directory = tempfile::tempdir().unwrap();
        let (path, data) = (directory.path().join("m.onnx"), directory.path().join("m.onnx.data"));
        write(model(), &path, ExternalData::Always).unwrap();
        assert_eq!(external_files(&path).unwrap(), [data.clone()].into());
        assert_eq!(read(&path).unwrap(), model());
        write(model(), &path, ExternalData::Auto).unwrap();
        assert!(!data.exists() && external_files(&path).unwrap().is_empty());
        assert_eq!(read(&path).unwrap(), model());
    }

    #[test]
    fn graph_of_small_tensors_has_no_file_of_external_data() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.onnx");
        let weight = tensor("w", DataType::UINT8, &[4], vec![3; 4]);
        let graph = GraphProto { initializer: vec![weight], ..GraphProto::default() };
        let model = ModelProto { graph: MessageField::some(graph), ..ModelProto::default() };
        write(model, &path, ExternalData::Always).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn syncing_a_missing_file_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("m.onnx");
        assert!(sync_written(&path).unwrap_err().to_string().contains("cannot sync"));
        for external in [ExternalData::Always, ExternalData::Never] {
            write(model(), &path, external).unwrap();
            sync_written(&path).unwrap();
        }
    }

    #[test]
    fn cancelled_write_leaves_no_files() {
        for external in [ExternalData::Always, ExternalData::Never] {
            let directory = tempfile::tempdir().unwrap();
            let stopped = write_unless(model(), &directory.path().join("m.onnx"), external, &AtomicBool::new(true));
            assert!(matches!(stopped, Err(Error::Cancelled)));
            assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        }
    }
}
