//! The activations between two blocks, on disk: two files of which one is read and the other written, so that a run that
//! is killed finds the last whole one. Not what a pass keeps within a block.

use kvant_container::positioned;
use kvant_forward::float_file::{self, PIECE};
use kvant_numeric::linalg::Precision;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// The shape of a file of activations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamShape {
    /// Elements of each chunk.
    pub sizes: Vec<usize>,
    /// The quantized stream, and the float stream if an algorithm compares the two.
    pub streams: usize,
    /// In which the elements are, and are kept.
    pub precision: Precision,
}

impl StreamShape {
    /// Bytes of so many lanes of some chunks.
    fn bytes(&self, sizes: &[usize], streams: usize) -> u64 {
        let elements: u64 = sizes.iter().map(|size| *size as u64).sum();
        elements * streams as u64 * float_file::size(self.precision) as u64
    }

    /// Bytes of all.
    fn len(&self) -> u64 {
        self.bytes(&self.sizes, self.streams)
    }

    fn offset(&self, lane: usize, chunk: usize) -> u64 {
        self.bytes(&self.sizes, lane) + self.bytes(&self.sizes[..chunk], 1)
    }
}

/// Rows of activations of several chunks of sequences, in one or more lanes.
#[derive(Debug)]
pub struct StreamFile {
    path: PathBuf,
    file: File,
    shape: StreamShape,
}

impl StreamFile {
    /// A new file.
    ///
    /// # Errors
    /// The system's; no room on the disk.
    pub fn create(path: &Path, shape: &StreamShape) -> io::Result<StreamFile> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        positioned::reserve(&file, shape.len())?;
        Ok(StreamFile { path: path.to_owned(), file, shape: shape.clone() })
    }

    /// The same in a file of `dir` that has no name and goes with the process.
    ///
    /// # Errors
    /// The system's; no room on the disk.
    pub fn temporary(dir: &Path, shape: StreamShape) -> io::Result<StreamFile> {
        let file = tempfile::tempfile_in(dir)?;
        positioned::reserve(&file, shape.len())?;
        Ok(StreamFile { path: dir.to_owned(), file, shape })
    }

    /// A file that an earlier run has left, if it is as long as it should be.
    pub fn open(path: &Path, shape: &StreamShape) -> Option<StreamFile> {
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        let length = file.metadata().ok()?.len();
        (length == shape.len()).then(|| StreamFile { path: path.to_owned(), file, shape: shape.clone() })
    }

    /// Elements of a chunk.
    pub fn elements(&self, chunk: usize) -> usize {
        self.shape.sizes[chunk]
    }

    /// The rows of a chunk, in the memory of `buffer`.
    ///
    /// # Errors
    /// System errors.
    pub fn read(&self, lane: usize, chunk: usize, buffer: Vec<f32>) -> io::Result<Vec<f32>> {
        let shape = &self.shape;
        float_file::read(&self.file, shape.precision, shape.offset(lane, chunk), self.elements(chunk), buffer)
    }

    /// Keeps the rows of a chunk.
    ///
    /// # Errors
    /// System errors.
    pub fn write(&self, lane: usize, chunk: usize, data: &[f32]) -> io::Result<()> {
        float_file::write(&self.file, self.shape.precision, self.shape.offset(lane, chunk), data)
    }

    /// A hash of all bytes.
    ///
    /// # Errors
    /// System errors.
    pub fn hash(&self) -> io::Result<u64> {
        let (mut hasher, mut bytes) = (Xxh3::new(), vec![0; 4 * PIECE]);
        let (mut offset, length) = (0, self.shape.len());
        while offset < length {
            let part = bytes.len().min(usize::try_from(length - offset).unwrap_or(usize::MAX));
            positioned::read_exact_at(&self.file, &mut bytes[..part], offset)?;
            hasher.update(&bytes[..part]);
            offset += part as u64;
        }
        Ok(hasher.digest())
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the file go, and its bytes with it.
    ///
    /// # Errors
    /// System errors.
    pub fn remove(self) -> io::Result<()> {
        drop(self.file);
        fs::remove_file(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stream_keeps_every_chunk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("streams");
        for precision in [Precision::F32, Precision::Bf16] {
            check(&path, StreamShape { sizes: vec![1000, PIECE + 7, 3], streams: 2, precision });
        }
    }

    fn check(path: &Path, shape: StreamShape) {
        let stream = StreamFile::create(path, &shape).unwrap();
        let number = |i: usize| shape.precision.round((i % 97) as f32 / 7.0);
        let data = |lane: usize, chunk: usize| {
            (0..shape.sizes[chunk]).map(|i| number(i + 7 * lane + chunk)).collect::<Vec<_>>()
        };
        for (lane, chunk) in (0..2).flat_map(|lane| (0..3).map(move |chunk| (lane, chunk))) {
            stream.write(lane, chunk, &data(lane, chunk)).unwrap();
        }
        let hash = stream.hash().unwrap();
        let again = StreamFile::open(path, &shape).unwrap();
        for (lane, chunk) in (0..2).flat_map(|lane| (0..3).map(move |chunk| (lane, chunk))) {
            assert_eq!(again.read(lane, chunk, Vec::new()).unwrap(), data(lane, chunk));
        }
        assert_eq!(again.hash().unwrap(), hash);
        again.write(1, 2, &[0.0; 3]).unwrap();
        assert_ne!(again.hash().unwrap(), hash);
        assert!(StreamFile::open(path, &StreamShape { streams: 1, ..shape }).is_none());
        again.remove().unwrap();
        assert!(!path.exists());
    }
}
