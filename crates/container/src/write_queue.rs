//! Writes of many threads to one file, one after the other. A thread that finds the file busy queues its bytes and continues:
//! systems let one thread at a time write to a file, and the others would spin until it is done. Positions are determined by
//! [`crate::Writer`].

use std::fs::File;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::positioned::write_all_at;

/// Bytes that may wait for a file. Who has more waits too.
const MOST_BYTES: usize = 4 << 20;

/// A file that one thread at a time writes to.
#[derive(Debug)]
pub(crate) struct WriteQueue {
    file: File,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// Whether a thread is writing; it writes all queued pieces before it returns.
    busy: bool,
    waiting: Vec<(u64, Vec<u8>)>,
    waiting_bytes: usize,
    /// Pieces that were handed in, and those of them that are in the file: they are written in their order.
    taken: u64,
    written: u64,
    /// The first failure, possibly with bytes of a thread that has already returned.
    failed: Option<(io::ErrorKind, String)>,
}

impl State {
    fn check(&self) -> io::Result<()> {
        self.failed.as_ref().map_or(Ok(()), |(kind, reason)| Err(io::Error::new(*kind, reason.clone())))
    }

    fn holds(&self, bytes: usize) -> bool {
        self.waiting_bytes.checked_add(bytes).is_some_and(|sum| sum <= MOST_BYTES)
    }
}

impl WriteQueue {
    pub fn new(file: File) -> Self {
        Self { file, state: Mutex::default(), changed: Condvar::new() }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Writes bytes at a position, or queues them for the thread that is writing: after [`Self::settle`] they are in the file.
    ///
    /// # Errors
    /// The system's, be it about bytes left by another thread.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.lock();
        while state.busy {
            state.check()?;
            if state.holds(bytes.len()) {
                state.taken += 1;
                state.waiting_bytes += bytes.len();
                state.waiting.push((offset, bytes.to_vec()));
                return Ok(());
            }
            state = self.wait(state);
        }
        state.check()?;
        state.busy = true;
        state.taken += 1;
        drop(state);
        let (mut written, mut pieces) = (write_all_at(&self.file, bytes, offset), 1);
        while let Some(left) = self.next(&written, pieces) {
            pieces = left.len() as u64;
            written = left.iter().try_for_each(|(offset, bytes)| write_all_at(&self.file, bytes, *offset));
        }
        written
    }

    /// The waiting pieces; none, and the file is free, if nothing waits or writing the pieces failed.
    fn next(&self, written: &io::Result<()>, pieces: u64) -> Option<Vec<(u64, Vec<u8>)>> {
        let mut state = self.lock();
        state.written += pieces;
        if let Err(e) = written {
            state.failed = Some((e.kind(), e.to_string()));
            state.waiting.clear();
        }
        let left = std::mem::take(&mut state.waiting);
        state.waiting_bytes = 0;
        state.busy = !left.is_empty();
        self.changed.notify_all();
        state.busy.then_some(left)
    }

    /// Waits until all bytes that were handed in before are in the file.
    ///
    /// # Errors
    /// The system's about any of them.
    pub fn settle(&self) -> io::Result<()> {
        let mut state = self.lock();
        let all = state.taken;
        while state.written < all && state.failed.is_none() {
            state = self.wait(state);
        }
        state.check()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_all_threads_are_in_the_file() {
        let queue = WriteQueue::new(tempfile::tempfile().unwrap());
        let piece = |i: u8| vec![i; 1000 + usize::from(i)];
        let offset = |i: u8| (0..i).map(|before| piece(before).len() as u64).sum::<u64>();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let queue = &queue;
                scope.spawn(move || {
                    for i in (thread..200).step_by(8) {
                        queue.write(offset(i), &piece(i)).unwrap();
                    }
                });
            }
        });
        queue.settle().unwrap();
        let mut found = vec![0; offset(200) as usize];
        crate::positioned::read_exact_at(queue.file(), &mut found, 0).unwrap();
        assert_eq!(found, (0..200).flat_map(piece).collect::<Vec<_>>());
    }

    #[test]
    fn write_failure_is_returned_by_later_calls() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"x").unwrap();
        let queue = WriteQueue::new(File::open(&path).unwrap());
        assert!(queue.write(0, b"abc").is_err(), "the file is open for reading alone");
        assert!(queue.settle().is_err());
        assert!(queue.write(0, b"abc").is_err());
    }

    #[test]
    fn writes_are_queued_while_there_is_room() {
        let queue = WriteQueue::new(tempfile::tempfile().unwrap());
        queue.lock().busy = true;
        queue.write(3, b"def").unwrap();
        assert_eq!(queue.lock().waiting, [(3, b"def".to_vec())]);
        assert!(!queue.lock().holds(MOST_BYTES));
        queue.lock().busy = false;
        queue.write(0, b"abc").unwrap();
        queue.settle().unwrap();
        let mut found = [0; 6];
        crate::positioned::read_exact_at(queue.file(), &mut found, 0).unwrap();
        assert_eq!(&found, b"abcdef");
    }
}
