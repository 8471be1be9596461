//! What was learned so far, beside the unfinished output, so that a run that was killed does not learn it again:
//! `name.partial.blocks/rotation.safetensors`. It is verified before it is used.

use super::RotationReport;
use kvant_container::unfinished::learned_rotation_beside;
use kvant_container::{Dtype, Layout, TensorDeclaration, TensorFile};
use kvant_formats::rotation::{blocks_of_tensor, blocks_to_tensor};
use kvant_quant::rotation::{BlockDiagonal, DescentState, RotationPlace};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// Ends the name of the average of gradients of a place.
const MOMENTUM: &str = ".momentum";
/// The key of the header under which the rest is kept.
const STATE: &str = "kvant_rotation";

/// The state after some steps.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LearnedState {
    /// Steps that are done.
    pub steps: u32,
    /// The loss before the first.
    pub before: f64,
    /// Of every place.
    pub places: BTreeMap<RotationPlace, DescentState>,
    /// What was found, once all is done.
    pub report: Option<RotationReport>,
}

/// The contents of the header.
#[derive(Serialize, Deserialize)]
struct StoredState {
    key: String,
    /// Of the bytes of all tensors.
    hash: String,
    steps: u32,
    /// Its bits, so that it is the same number.
    before: u64,
    powers: BTreeMap<String, (u64, u32)>,
    report: Option<RotationReport>,
}

/// The file of the state.
pub(super) struct StateFile {
    path: PathBuf,
    key: String,
}

impl StateFile {
    /// That of the output `target`; another plan or other data have another key.
    pub fn beside(target: &Path, key: &str) -> StateFile {
        StateFile { path: learned_rotation_beside(target), key: key.to_owned() }
    }

    /// The state, if it is there, whole, and of this key.
    pub fn read(&self) -> Option<LearnedState> {
        let file = TensorFile::open(&self.path).ok()?;
        let stored = stored(&file).filter(|stored| stored.key == self.key && stored.hash == hash(&file))?;
        let blocks: BTreeMap<String, (usize, Vec<Vec<f64>>)> = file
            .tensors()
            .map(|view| Some((view.name().to_owned(), blocks_of_tensor(view)?)))
            .collect::<Option<_>>()?;
        let place = |(name, (power, steps)): (&String, &(u64, u32))| {
            let (size, matrix) = blocks.get(name)?.clone();
            let state = DescentState {
                matrix: BlockDiagonal::of_blocks(size, matrix)?,
                momentum: blocks.get(&format!("{name}{MOMENTUM}"))?.1.clone(),
                power: f64::from_bits(*power),
                steps: *steps,
            };
            Some((name.parse().ok()?, state))
        };
        let places = stored.powers.iter().map(place).collect::<Option<_>>()?;
        Some(LearnedState { steps: stored.steps, before: f64::from_bits(stored.before), places, report: stored.report })
    }

    /// Returns whether there is a state of another key, which [`write`](Self::write) replaces.
    pub fn is_of_another(&self) -> bool {
        let file = TensorFile::open(&self.path).ok();
        file.and_then(|file| stored(&file)).is_some_and(|stored| stored.key != self.key)
    }

    /// Keeps a state. It appears under its name when it is whole.
    pub fn write(&self, state: &LearnedState) -> io::Result<()> {
        let (mut declarations, mut contents) = (Vec::new(), Vec::new());
        for (place, state) in &state.places {
            let parts = [("", state.matrix.blocks()), (MOMENTUM, state.momentum.as_slice())];
            for (ending, blocks) in parts {
                let name = format!("{place}{ending}");
                let (declaration, bytes): (TensorDeclaration, Vec<u8>) =
                    blocks_to_tensor(&name, state.matrix.size(), blocks);
                declarations.push(declaration);
                contents.push(bytes);
            }
        }
        let powers =
            |(place, state): (&RotationPlace, &DescentState)| (place.to_string(), (state.power.to_bits(), state.steps));
        let stored = StoredState {
            key: self.key.clone(),
            hash: format!("{:032x}", xxh3_128(&contents.concat())),
            steps: state.steps,
            before: state.before.to_bits(),
            powers: state.places.iter().map(powers).collect(),
            report: state.report.clone(),
        };
        let metadata = BTreeMap::from([(STATE.to_owned(), serde_json::to_string(&stored)?)]);
        let layout = Layout::new(declarations, u64::MAX, metadata).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        for shard in layout.shards() {
            bytes.extend_from_slice(shard.header());
            shard.tensors().iter().for_each(|tensor| bytes.extend_from_slice(&contents[*tensor]));
        }
        if let Some(parent) = self.path.parent() {
            fs::create_dir_all(parent)?;
        }
        let unfinished = self.path.with_extension("unfinished");
        fs::write(&unfinished, bytes)?;
        fs::rename(&unfinished, &self.path)
    }
}

fn stored(file: &TensorFile) -> Option<StoredState> {
    serde_json::from_str(file.metadata().get(STATE)?).ok()
}

/// Of the bytes of all tensors, which are of one type, so that they follow each other in the order of their declarations.
fn hash(file: &TensorFile) -> String {
    let bytes: Vec<u8> =
        file.tensors().filter(|view| view.dtype() == Dtype::F64).flat_map(|view| view.bytes().to_vec()).collect();
    format!("{:032x}", xxh3_128(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_quant::rotation::RotationDescent;

    #[test]
    fn kept_state_is_read_only_whole_and_with_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("model");
        let mut learned = RotationDescent::new(BlockDiagonal::identity(12, 4).unwrap(), false);
        learned.step(&[0, 1, 2].map(|seed| (0..16).map(|i| ((i * 5 + seed) % 7) as f64).collect()), 0.1);
        let places = BTreeMap::from([
            (RotationPlace::Stream, learned.state()),
            (RotationPlace::Values(10), RotationDescent::new(BlockDiagonal::identity(2, 2).unwrap(), false).state()),
        ]);
        let state = LearnedState { steps: 7, before: 0.1 + 0.2, places, report: None };
        let file = StateFile::beside(&target, "plan and data");
        assert_eq!(file.read(), None);
        file.write(&state).unwrap();
        assert_eq!(file.read(), Some(state.clone()));
        let other = StateFile::beside(&target, "other data");
        assert!(other.read().is_none() && other.is_of_another() && !file.is_of_another());
        let mut bytes = fs::read(&file.path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&file.path, bytes).unwrap();
        assert_eq!(file.read(), None);
    }
}
