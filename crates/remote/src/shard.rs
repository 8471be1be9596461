//! The bytes of shards: fetched ahead in the order in which they were announced, or at once when they are asked for, and removed from the
//! disk when nobody holds them any more.

use crate::client::{Client, Object, Version};
use crate::ranges::Ranges;
use kvant_container::positioned::write_all_at;
use kvant_container::supply::{Supply, Unsupplied};
use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Bytes that are fetched ahead at most, those that are in use included.
const WINDOW: u64 = 512 << 20;
/// Bytes of a request.
const CHUNK: u64 = 16 << 20;
/// Connections.
const WORKERS: usize = 4;
/// How often whoever waits looks whether the user has stopped the run.
const GLANCE: Duration = Duration::from_millis(100);

/// A file of weights elsewhere, and the sparse file that stands for it.
#[derive(Debug)]
pub struct ShardFile {
    pub object: Object,
    pub version: Version,
    pub file: File,
}

/// All shards of a model, with the threads that fetch their bytes.
pub struct Shards {
    client: Client,
    files: Vec<ShardFile>,
    state: Mutex<State>,
    changed: Condvar,
}

/// What is where.
#[derive(Default)]
struct State {
    shards: Vec<ShardState>,
    /// Chunks that somebody waits for.
    urgent: VecDeque<Chunk>,
    /// Chunks that were announced.
    ahead: VecDeque<Chunk>,
    /// Bytes in the files, and on their way there.
    bytes: u64,
    failure: Option<Unsupplied>,
    has_workers: bool,
    is_over: bool,
}

#[derive(Clone, Default)]
struct ShardState {
    present: Ranges,
    on_the_way: Ranges,
    /// One for each holder.
    held: Vec<Range<u64>>,
}

struct Chunk {
    shard: usize,
    range: Range<u64>,
}

impl Shards {
    pub fn new(client: Client, files: Vec<ShardFile>) -> Shards {
        let shards = vec![ShardState::default(); files.len()];
        Shards { client, files, state: Mutex::new(State { shards, ..State::default() }), changed: Condvar::new() }
    }

    /// Ends the threads that fetch bytes, each after what it is reading.
    pub fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the threads that fetch bytes, once.
    fn start(self: &Arc<Self>, state: &mut State) {
        if std::mem::replace(&mut state.has_workers, true) {
            return;
        }
        for _ in 0..WORKERS {
            let shards = Arc::clone(self);
            let name = "kvant-download".to_owned();
            if let Err(cause) = thread::Builder::new().name(name).spawn(move || shards.work()) {
                state.failure = Some(Unsupplied::Failed(format!("cannot start a thread for downloads: {cause}")));
            }
        }
    }

    fn work(&self) {
        while let Some(chunk) = self.next() {
            let ShardFile { object, version, file } = &self.files[chunk.shard];
            let mut receive = |at: u64, bytes: &[u8]| write_all_at(file, bytes, at);
            let fetched = self.client.part(object, version, chunk.range.clone(), &mut receive);
            let mut state = self.state();
            let shard = &mut state.shards[chunk.shard];
            shard.on_the_way.remove(&chunk.range);
            match fetched {
                Ok(()) => shard.present.insert(chunk.range),
                Err(error) => {
                    state.bytes -= chunk.range.end - chunk.range.start;
                    state.failure.get_or_insert(error.unsupplied());
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Waits for the next chunk to fetch, and notes that it is on its way; `None` when all is over.
    fn next(&self) -> Option<Chunk> {
        let mut state = self.state();
        loop {
            if state.is_over || state.failure.is_some() {
                return None;
            }
            match state.take() {
                Some(chunk) => return Some(chunk),
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Removes bytes from the disk; they stay where the system cannot.
    fn punch(&self, shard: usize, range: &Range<u64>) -> bool {
        punch(&self.files[shard].file, range).is_ok()
    }
}

impl State {
    /// Takes the next chunk, less what is there by now. Those that somebody waits for come first, whatever room there is.
    fn take(&mut self) -> Option<Chunk> {
        loop {
            let chunk = match self.urgent.pop_front() {
                Some(chunk) => chunk,
                None => self.take_ahead()?,
            };
            let Chunk { shard, range } = chunk;
            let mut missing = self.shards[shard].unfetched(&range).into_iter();
            let Some(first) = missing.next() else { continue };
            let others: Vec<Chunk> = missing.map(|range| Chunk { shard, range }).collect();
            others.into_iter().rev().for_each(|chunk| self.urgent.push_front(chunk));
            self.shards[shard].on_the_way.insert(first.clone());
            self.bytes += first.end - first.start;
            return Some(Chunk { shard, range: first });
        }
    }
}

impl State {
    /// Takes the next chunk that was announced, together with those that follow it in the file: small tensors share a request. `None` where
    /// there is no room.
    fn take_ahead(&mut self) -> Option<Chunk> {
        let bytes = self.bytes;
        let has_room = |range: &Range<u64>| bytes == 0 || bytes + (range.end - range.start) <= WINDOW;
        let mut chunk = self.ahead.pop_front_if(|chunk| has_room(&chunk.range))?;
        let joined = |chunk: &Chunk, next: &Chunk| {
            let both = chunk.range.start..next.range.end;
            let follows = next.shard == chunk.shard && next.range.start == chunk.range.end;
            (follows && both.end - both.start <= CHUNK && has_room(&both)).then_some(both)
        };
        while let Some(both) = self.ahead.front().and_then(|next| joined(&chunk, next)) {
            self.ahead.pop_front();
            chunk.range = both;
        }
        Some(chunk)
    }
}

impl ShardState {
    /// What of a range is neither there nor on its way.
    fn unfetched(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let missing = self.present.missing(range);
        missing.iter().flat_map(|range| self.on_the_way.missing(range)).collect()
    }

    fn is_held(&self, range: &Range<u64>) -> bool {
        self.held.iter().any(|held| held.start <= range.start && range.end <= held.end)
    }
}

/// The bytes of one shard.
pub struct Shard {
    pub shards: Arc<Shards>,
    pub index: usize,
    /// The folder of the sparse files, which goes when nobody maps any of them.
    pub folder: Arc<Folder>,
}

/// The folder that stands for a model, and the lock that says that it is in use.
#[derive(Debug)]
pub struct Folder {
    pub dir: TempDir,
    pub _lock: File,
}

impl fmt::Debug for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.file().object.name(), self.folder.dir.path().display())
    }
}

impl Shard {
    fn file(&self) -> &ShardFile {
        &self.shards.files[self.index]
    }

    /// The chunks of a range.
    fn chunks(&self, range: Range<u64>) -> impl Iterator<Item = Chunk> + use<> {
        let (shard, Range { start, end }) = (self.index, range);
        let starts = (0..).map(move |chunk| start + chunk * CHUNK).take_while(move |start| *start < end);
        starts.map(move |start| Chunk { shard, range: start..end.min(start + CHUNK) })
    }
}

impl Supply for Shard {
    fn identity(&self) -> String {
        let Version { len, tag, .. } = &self.file().version;
        format!("{len} {}", tag.as_deref().unwrap_or_default())
    }

    fn provide(&self, range: Range<u64>) -> Result<(), Unsupplied> {
        let mut state = self.shards.state();
        if !state.shards[self.index].is_held(&range) {
            // Nobody will say when these bytes are no longer needed.
            state.shards[self.index].held.push(range.clone());
        }
        while !state.shards[self.index].present.contains(&range) {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            if self.shards.client.is_cancelled() {
                return Err(Unsupplied::Cancelled);
            }
            if state.is_over {
                return Err(Unsupplied::Failed(format!("{}: the model is closed", self.file().object.name())));
            }
            self.shards.start(&mut state);
            let mut asked = Ranges::default();
            state
                .urgent
                .iter()
                .filter(|chunk| chunk.shard == self.index)
                .for_each(|chunk| asked.insert(chunk.range.clone()));
            let missing = state.shards[self.index].unfetched(&range);
            let missing: Vec<_> = missing.iter().flat_map(|range| asked.missing(range)).collect();
            if !missing.is_empty() {
                missing.into_iter().for_each(|range| state.urgent.extend(self.chunks(range)));
                self.shards.changed.notify_all();
            }
            let waited = self.shards.changed.wait_timeout(state, GLANCE);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    fn announce(&self, range: Range<u64>) {
        let mut state = self.shards.state();
        state.ahead.extend(self.chunks(range));
        self.shards.start(&mut state);
        drop(state);
        self.shards.changed.notify_all();
    }

    fn hold(&self, range: Range<u64>) {
        let mut state = self.shards.state();
        // Its holder asks for it: after that, nothing is to be fetched ahead that nobody would remove.
        let is_inside = |chunk: &Chunk| {
            chunk.shard == self.index && range.start <= chunk.range.start && chunk.range.end <= range.end
        };
        state.ahead.retain(|chunk| !is_inside(chunk));
        state.shards[self.index].held.push(range);
    }

    fn let_go(&self, range: Range<u64>) {
        let mut state = self.shards.state();
        let shard = &mut state.shards[self.index];
        if let Some(place) = shard.held.iter().position(|held| *held == range) {
            shard.held.swap_remove(place);
        }
        let mut kept = Ranges::default();
        shard.held.iter().for_each(|held| kept.insert(held.clone()));
        for free in kept.missing(&range) {
            let there = state.shards[self.index].present.inside(&free);
            for range in there.iter().filter(|range| self.shards.punch(self.index, range)) {
                state.shards[self.index].present.remove(range);
                state.bytes -= range.end - range.start;
            }
        }
        drop(state);
        self.shards.changed.notify_all();
    }
}

/// Gives the space of a range of a file back, whose bytes read as zeros then.
#[cfg(target_os = "linux")]
fn punch(file: &File, range: &Range<u64>) -> io::Result<()> {
    use rustix::fs::{FallocateFlags, fallocate};
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, flags, range.start, range.end - range.start)?)
}

#[cfg(not(target_os = "linux"))]
fn punch(_: &File, _: &Range<u64>) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
