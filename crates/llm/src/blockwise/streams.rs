//! The activations between two blocks, on disk: two files of which one is read and the other written, so that a run that
//! is killed finds the last whole one. Not what a pass keeps within a block.

use crate::float_file::{self, PIECE};
use kvant_container::positioned;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3;

/// Rows of activations of several chunks of sequences, in one or more lanes: that of the quantized model, and that of the
/// float model where an algorithm compares the two.
#[derive(Debug)]
pub struct StreamFile {
    path: PathBuf,
    file: File,
    /// Elements of each chunk.
    sizes: Vec<usize>,
    lanes: usize,
}

impl StreamFile {
    /// A new file with room for `lanes` times chunks of so many elements.
    ///
    /// # Errors
    /// The system's; no room on the disk.
    pub fn create(path: &Path, sizes: &[usize], lanes: usize) -> io::Result<StreamFile> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path)?;
        let stream = StreamFile { path: path.to_owned(), file, sizes: sizes.to_vec(), lanes };
        positioned::reserve(&stream.file, stream.len())?;
        Ok(stream)
    }

    /// A file that an earlier run has left, if it is as long as it should be.
    pub fn open(path: &Path, sizes: &[usize], lanes: usize) -> Option<StreamFile> {
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        let stream = StreamFile { path: path.to_owned(), file, sizes: sizes.to_vec(), lanes };
        let length = stream.file.metadata().ok()?.len();
        (length == stream.len()).then_some(stream)
    }

    /// Bytes of all lanes.
    fn len(&self) -> u64 {
        bytes_of(&self.sizes, self.lanes)
    }

    fn offset(&self, lane: usize, chunk: usize) -> u64 {
        bytes_of(&self.sizes, lane) + bytes_of(&self.sizes[..chunk], 1)
    }

    /// The rows of a chunk.
    ///
    /// # Errors
    /// The system's.
    pub fn read(&self, lane: usize, chunk: usize) -> io::Result<Vec<f32>> {
        float_file::read(&self.file, self.offset(lane, chunk), self.sizes[chunk])
    }

    /// Keeps the rows of a chunk.
    ///
    /// # Errors
    /// The system's.
    pub fn write(&self, lane: usize, chunk: usize, data: &[f32]) -> io::Result<()> {
        float_file::write(&self.file, self.offset(lane, chunk), data)
    }

    /// A hash of all bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn hash(&self) -> io::Result<u64> {
        let (mut hasher, mut bytes) = (Xxh3::new(), vec![0; 4 * PIECE]);
        let (mut offset, length) = (0, self.len());
        while offset < length {
            let part = bytes.len().min(usize::try_from(length - offset).unwrap_or(usize::MAX));
            positioned::read_exact_at(&self.file, &mut bytes[..part], offset)?;
            hasher.update(&bytes[..part]);
            offset += part as u64;
        }
        Ok(hasher.digest())
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Lets the file go, and its bytes with it.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(self) -> io::Result<()> {
        drop(self.file);
        fs::remove_file(&self.path)
    }
}

/// Bytes of `lanes` lanes of chunks of so many elements.
pub fn bytes_of(sizes: &[usize], lanes: usize) -> u64 {
    sizes.iter().map(|size| *size as u64 * 4).sum::<u64>() * lanes as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_keeps_every_chunk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("streams");
        let sizes = [1000, PIECE + 7, 3];
        let stream = StreamFile::create(&path, &sizes, 2).unwrap();
        let data =
            |lane: usize, chunk: usize| (0..sizes[chunk]).map(|i| (i + 7 * lane + chunk) as f32).collect::<Vec<_>>();
        for (lane, chunk) in (0..2).flat_map(|lane| (0..3).map(move |chunk| (lane, chunk))) {
            stream.write(lane, chunk, &data(lane, chunk)).unwrap();
        }
        let hash = stream.hash().unwrap();
        let again = StreamFile::open(&path, &sizes, 2).unwrap();
        for (lane, chunk) in (0..2).flat_map(|lane| (0..3).map(move |chunk| (lane, chunk))) {
            assert_eq!(again.read(lane, chunk).unwrap(), data(lane, chunk));
        }
        assert_eq!(again.hash().unwrap(), hash);
        again.write(1, 2, &[0.0; 3]).unwrap();
        assert_ne!(again.hash().unwrap(), hash);
        assert!(StreamFile::open(&path, &sizes, 1).is_none());
        again.remove().unwrap();
        assert!(!path.exists());
    }
}
