//! The state of a run beside the unfinished output: `name.partial.blocks/`. It is verified before it is
//! used. Not the tensors, which the journal records.

use super::report::BlockwiseReport;
use super::streams::{StreamFile, StreamShape};
use crate::calibration::Statistics;
use kvant_container::unfinished::{blocks_beside, remove_results, remove_results_of_blocks};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The activations and results after some blocks.
#[derive(Debug)]
pub struct State<F = BlockResults> {
    dir: PathBuf,
    key: String,
    shape: StreamShape,
    /// The activations that the next block reads.
    pub current: StreamFile,
    /// The results so far.
    pub found: F,
}

/// Results of the finished blocks besides tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockResults {
    /// Blocks that are done.
    pub blocks: usize,
    /// Of activations that static scales are for.
    pub statistics: Statistics,
    /// Layer by layer.
    pub report: BlockwiseReport,
    /// Jobs of the plan that wrote copied tensors changed by transforms.
    pub changed: Vec<usize>,
}

/// The contents of the file.
#[derive(Serialize, Deserialize)]
struct StoredState<T> {
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
        blocks_beside(target)
    }

    /// Returns whether the state beside an output has another key: a run with this key replaces it.
    pub fn is_of_another(target: &Path, key: &str) -> bool {
        let bytes = fs::read(Self::directory(target).join(STATE)).unwrap_or_default();
        serde_json::from_slice::<StoredState<IgnoredAny>>(&bytes).is_ok_and(|stored| stored.key != key)
    }

    /// Removes the state beside a complete output, if any.
    ///
    /// # Errors
    /// System errors.
    pub fn remove(target: &Path) -> io::Result<()> {
        remove_results(&Self::directory(target))
    }
}

impl<F: Serialize + DeserializeOwned> State<F> {
    /// The state of an earlier run with this key and shape, if complete.
    pub fn resume(target: &Path, key: &str, shape: &StreamShape) -> Option<State<F>> {
        let dir = State::directory(target);
        let stored: StoredState<F> = serde_json::from_slice(&fs::read(dir.join(STATE)).ok()?).ok()?;
        let current = StreamFile::open(dir.join(FILES.get(stored.file)?).as_path(), shape)?;
        let whole = stored.key == key && current.hash().ok()? == stored.hash;
        let found = stored.found;
        whole.then(|| State { dir, key: key.to_owned(), shape: shape.clone(), current, found })
    }

    /// A state before the first block; the activations are still to be written.
    ///
    /// # Errors
    /// The system's; no room on the disk.
    pub fn begin(target: &Path, key: &str, shape: &StreamShape, found: F) -> io::Result<State<F>> {
        let dir = State::directory(target);
        remove_results_of_blocks(&dir)?;
        fs::create_dir_all(&dir)?;
        let current = StreamFile::create(&dir.join(FILES[0]), shape)?;
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

    /// Commits a block: its activations are complete in `next`, with these results. An interrupted run resumes from it.
    ///
    /// # Errors
    /// System errors.
    pub fn commit(&mut self, next: StreamFile, found: F) -> io::Result<()> {
        let hash = next.hash()?;
        let before = std::mem::replace(&mut self.current, next);
        self.found = found;
        let stored = StoredState { key: self.key.clone(), file: self.file(), hash, found: &self.found };
        let unfinished = self.dir.join("state.unfinished");
        fs::write(&unfinished, serde_json::to_vec(&stored)?)?;
        fs::rename(&unfinished, self.dir.join(STATE))?;
        before.remove()
    }

    /// A file of further results, beside the activations of a file from [`State::next`], or of the current ones.
    pub fn beside(&self, streams: &StreamFile) -> PathBuf {
        streams.path().with_extension(if streams.path().ends_with(FILES[1]) { "1.found" } else { "0.found" })
    }
}

const STATE: &str = "state.json";
const FILES: [&str; 2] = ["streams.0", "streams.1"];

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::linalg::Precision;

    #[test]
    fn committed_state_is_resumed_unless_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("model");
        let shape = StreamShape { sizes: vec![5, 3], streams: 1, precision: Precision::F32 };
        let mut state = State::begin(&target, "key", &shape, BlockResults::default()).unwrap();
        state.current.write(0, 0, &[1.0; 5]).unwrap();
        let resume = |key: &str, shape| State::<BlockResults>::resume(&target, key, shape);
        assert!(resume("key", &shape).is_none());
        for blocks in 1..4 {
            let next = state.next().unwrap();
            next.write(0, 0, &[blocks as f32; 5]).unwrap();
            let found = BlockResults { blocks, ..BlockResults::default() };
            state.commit(next, found.clone()).unwrap();
            let resumed = resume("key", &shape).unwrap();
            assert_eq!(resumed.found, found);
            assert_eq!(resumed.current.read(0, 0, Vec::new()).unwrap(), [blocks as f32; 5]);
        }
        assert!(resume("other key", &shape).is_none());
        assert!(State::is_of_another(&target, "other key") && !State::is_of_another(&target, "key"));
        let longer = StreamShape { sizes: vec![5, 4], ..shape.clone() };
        assert!(State::<BlockResults>::resume(&target, "key", &longer).is_none());
        state.current.write(0, 1, &[9.0; 3]).unwrap();
        assert!(resume("key", &shape).is_none());
        State::remove(&target).unwrap();
        State::remove(&target).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
