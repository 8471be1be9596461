//! The state of an unfinished measurement, beside the unfinished output: the streams between two blocks and the sums
//! so far, from which the next run resumes. Not the result.

use super::{ImatrixError, InputSums};
use crate::blockwise::{State, StreamShape};
use kvant_container::or_gone;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64;

/// The path and interval of keeping a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Keep<'a> {
    /// The output that it is for.
    pub target: &'a Path,
    /// Its identity: the plan, the data, the precision.
    pub key: &'a str,
    /// The time that may be lost.
    pub every: Duration,
}

impl Keep<'_> {
    pub(super) fn failed(&self, cause: io::Error) -> ImatrixError {
        ImatrixError::Write { file: State::directory(self.target), cause }
    }
}

/// Its progress.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct KeptSums {
    blocks: usize,
    /// Of the file of sums.
    hash: u64,
}

/// A measurement that is kept.
pub(super) struct Kept<'a> {
    keep: Keep<'a>,
    shape: StreamShape,
    state: Option<State<KeptSums>>,
    last: Instant,
}

/// Sums by tensor.
pub(super) type Sums = BTreeMap<String, InputSums>;

impl<'a> Kept<'a> {
    /// Goes on with what an earlier run has left, and gives its sums, or begins.
    pub fn open(keep: Keep<'a>, shape: StreamShape) -> (Kept<'a>, Option<Sums>) {
        let state = State::<KeptSums>::resume(keep.target, keep.key, &shape);
        let sums = state.as_ref().and_then(|state| {
            let bytes = fs::read(state.beside(&state.current)).ok()?;
            if xxh3_64(&bytes) == state.found.hash { parsed(&bytes) } else { None }
        });
        let state = state.filter(|_| sums.is_some());
        (Kept { keep, shape, state, last: Instant::now() }, sums)
    }

    /// Blocks that are done.
    pub fn blocks(&self) -> usize {
        self.state.as_ref().map_or(0, |state| state.found.blocks)
    }

    /// The stream of a chunk behind them.
    pub fn stream(&self, chunk: usize) -> Result<Option<Vec<f32>>, ImatrixError> {
        let stream = self.state.as_ref().map(|state| state.current.read(0, chunk, Vec::new()));
        stream.transpose().map_err(|cause| self.failed(cause))
    }

    /// Returns whether the interval has passed.
    pub fn is_due(&self) -> bool {
        self.last.elapsed() >= self.keep.every
    }

    /// Keeps the state after some blocks; `stream` writes the streams of all chunks with the given function.
    pub fn commit(
        &mut self,
        blocks: usize,
        sums: &Sums,
        streams: impl FnOnce(&mut dyn FnMut(usize, &[f32]) -> io::Result<()>) -> Result<(), ImatrixError>,
    ) -> Result<(), ImatrixError> {
        let Keep { target, key, .. } = self.keep;
        let state = match self.state.take() {
            Some(state) => Ok(state),
            None => State::begin(target, key, &self.shape, KeptSums::default()),
        };
        let mut state = state.map_err(|cause| self.failed(cause))?;
        let next = state.next().map_err(|cause| self.failed(cause))?;
        streams(&mut |chunk, x| next.write(0, chunk, x))?;
        let (bytes, old, new) = (written(sums), state.beside(&state.current), state.beside(&next));
        let found = KeptSums { blocks, hash: xxh3_64(&bytes) };
        let written = fs::write(new, &bytes).and_then(|()| state.commit(next, found));
        let kept = written.and_then(|()| or_gone(fs::remove_file(old)));
        kept.map_err(|cause| self.failed(cause))?;
        self.state = Some(state);
        self.last = Instant::now();
        Ok(())
    }

    fn failed(&self, cause: io::Error) -> ImatrixError {
        self.keep.failed(cause)
    }
}

/// For each tensor its name, the number of its matrices, their counts, the columns, and the sums: numbers of eight bytes.
fn written(sums: &Sums) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, sums) in sums {
        bytes.extend((name.len() as u64).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.extend((sums.counts.len() as u64).to_le_bytes());
        sums.counts.iter().for_each(|count| bytes.extend(count.to_le_bytes()));
        bytes.extend((sums.columns as u64).to_le_bytes());
        sums.squares.iter().for_each(|square| bytes.extend(square.to_le_bytes()));
    }
    bytes
}

fn parsed(mut bytes: &[u8]) -> Option<Sums> {
    let mut sums = Sums::new();
    while !bytes.is_empty() {
        let name = usize::try_from(number(&mut bytes)?).ok()?;
        let (text, rest) = bytes.split_at_checked(name)?;
        bytes = rest;
        let matrices = number(&mut bytes)?;
        let counts = (0..matrices).map(|_| number(&mut bytes)).collect::<Option<Vec<u64>>>()?;
        let columns = usize::try_from(number(&mut bytes)?).ok()?;
        let values = columns.checked_mul(counts.len())?;
        let squares = (0..values).map(|_| number(&mut bytes).map(f64::from_bits)).collect::<Option<_>>()?;
        sums.insert(String::from_utf8(text.to_vec()).ok()?, InputSums { columns, squares, counts });
    }
    Some(sums)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_sums_round_trip() {
        let experts = InputSums { columns: 2, squares: vec![0.1, -0.0, f64::MAX, 1e-300], counts: vec![3, 0] };
        let sums = Sums::from([("a".to_owned(), InputSums::new(3, 1)), ("b".to_owned(), experts)]);
        let bytes = written(&sums);
        assert_eq!(parsed(&bytes).unwrap(), sums);
        assert!((1..bytes.len()).all(|len| parsed(&bytes[..len]).is_none_or(|found| found.len() == 1)));
    }
}
