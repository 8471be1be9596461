//! How far a run has come, beside the unfinished output: `name.partial.blocks/`. What it claims is checked before it is
//! believed. Not the tensors, which the journal records.

use super::report::BlockwiseReport;
use super::streams::{StreamFile, StreamShape};
use crate::calibration::Statistics;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The activations and what is known after some blocks.
#[derive(Debug)]
pub struct State {
    dir: PathBuf,
    key: String,
    shape: StreamShape,
    /// The activations that the next block reads.
    pub current: StreamFile,
    /// What was found so far.
    pub found: Found,
}

/// What the blocks so far have given besides tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Blocks that are done.
    pub blocks: usize,
    /// Of activations that static scales are for.
    pub statistics: Statistics,
    /// Layer by layer.
    pub report: BlockwiseReport,
    /// Jobs of the plan that wrote what transforms have changed of tensors that are carried over.
    pub changed: Vec<usize>,
}

/// What the file says.
#[derive(Serialize, Deserialize)]
struct Stored<T> {
    /// The plan, the data and how they are run.
    key: String,
    /// Which of the two files holds the activations, and the hash of its bytes.
    file: usize,
    hash: u64,
    found: T,
}

impl State {
    /// The directory of the output `target`.
    pub fn directory(target: &Path) -> PathBuf {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".partial.blocks");
        target.with_file_name(name)
    }

    /// What an earlier run with this key has left in files of this shape, if it is whole.
    pub fn resume(target: &Path, key: &str, shape: &StreamShape) -> Option<State> {
        let dir = Self::directory(target);
        let stored: Stored<Found> = serde_json::from_slice(&fs::read(dir.join(STATE)).ok()?).ok()?;
        let current = StreamFile::open(dir.join(FILES.get(stored.file)?).as_path(), shape)?;
        let whole = stored.key == key && current.hash().ok()? == stored.hash;
        let found = stored.found;
        whole.then(|| State { dir, key: key.to_owned(), shape: shape.clone(), current, found })
    }

    /// A state before the first block; the activations are still to be written.
    ///
    /// # Errors
    /// The system's; no room on the disk.
    pub fn begin(target: &Path, key: &str, shape: &StreamShape, none: Statistics) -> io::Result<State> {
        let dir = Self::directory(target);
        remove_dir(&dir)?;
        fs::create_dir_all(&dir)?;
        let current = StreamFile::create(&dir.join(FILES[0]), shape)?;
        let found = Found { statistics: none, ..Found::default() };
        Ok(State { dir, key: key.to_owned(), shape: shape.clone(), current, found })
    }

    /// A file for the activations after the next block.
    ///
    /// # Errors
    /// The system's; no room on the disk.
    pub fn next(&self) -> io::Result<StreamFile> {
        StreamFile::create(&self.dir.join(FILES[1 - self.file()]), &self.shape)
    }

    fn file(&self) -> usize {
        usize::from(self.current.path().ends_with(FILES[1]))
    }

    /// A block is done: its activations are whole in `next`, and this was found. What an interrupted run goes on from.
    ///
    /// # Errors
    /// The system's.
    pub fn commit(&mut self, next: StreamFile, found: Found) -> io::Result<()> {
        let hash = next.hash()?;
        let before = std::mem::replace(&mut self.current, next);
        self.found = found;
        let stored = Stored { key: self.key.clone(), file: self.file(), hash, found: &self.found };
        let unfinished = self.dir.join("state.unfinished");
        fs::write(&unfinished, serde_json::to_vec(&stored)?)?;
        fs::rename(&unfinished, self.dir.join(STATE))?;
        before.remove()
    }

    /// Removes what was kept beside an output that is whole, if anything.
    ///
    /// # Errors
    /// The system's.
    pub fn remove(target: &Path) -> io::Result<()> {
        remove_dir(&Self::directory(target))
    }
}

const STATE: &str = "state.json";
const FILES: [&str; 2] = ["streams.0", "streams.1"];

fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::linalg::Precision;

    #[test]
    fn what_is_committed_is_resumed_unless_it_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("model");
        let shape = StreamShape { sizes: vec![5, 3], lanes: 1, precision: Precision::F32 };
        let mut state = State::begin(&target, "key", &shape, Statistics::default()).unwrap();
        state.current.write(0, 0, &[1.0; 5]).unwrap();
        assert!(State::resume(&target, "key", &shape).is_none());
        for blocks in 1..4 {
            let next = state.next().unwrap();
            next.write(0, 0, &[blocks as f32; 5]).unwrap();
            let found = Found { blocks, ..Found::default() };
            state.commit(next, found.clone()).unwrap();
            let resumed = State::resume(&target, "key", &shape).unwrap();
            assert_eq!(resumed.found, found);
            assert_eq!(resumed.current.read(0, 0).unwrap(), [blocks as f32; 5]);
        }
        assert!(State::resume(&target, "other key", &shape).is_none());
        assert!(State::resume(&target, "key", &StreamShape { sizes: vec![5, 4], ..shape.clone() }).is_none());
        state.current.write(0, 1, &[9.0; 3]).unwrap();
        assert!(State::resume(&target, "key", &shape).is_none());
        State::remove(&target).unwrap();
        State::remove(&target).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
