//! What becomes of a mapped file that is rewritten, cut short, or whose disk fails, while its bytes are read. The kernel answers such a read
//! with SIGBUS, which ends a process that does not handle it. Here the pages that are gone become zeros, and the map is marked, so
//! that the run ends with an error that names the file.
//!
//! The handler is installed with the first map and passes on what is not about a map of ours. Reads cost nothing more than
//! without it. A file that is rewritten in place raises no signal: its last change is compared with that at the time of the map.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use super::file_state::FileState;
use crate::supply::Unsupplied;

/// A file that lost bytes while it was mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFile {
    /// The file.
    pub path: PathBuf,
    /// Whether it is shorter now; otherwise its disk or the network failed.
    pub is_shorter: bool,
    /// Why its bytes could not be fetched, if they come from elsewhere.
    pub unsupplied: Option<Unsupplied>,
}

/// The files that lose bytes or are rewritten from a moment on, in the whole process: parallel runs cannot be distinguished.
#[derive(Clone, Copy, Debug)]
pub struct FileChanges {
    read: usize,
    shortened: usize,
    changed: usize,
    /// The first map that counts as rewritten while it is still there: earlier ones are of earlier requests.
    map: u64,
}

impl FileChanges {
    /// Counts from now on.
    pub fn from_now_on() -> FileChanges {
        let mut registry = registry();
        registry.collect();
        FileChanges {
            read: registry.lost.len(),
            shortened: registry.shortened.len(),
            changed: registry.changed.len(),
            map: registry.maps,
        }
    }

    /// The first file that lost bytes before they were read: they read as zeros.
    pub fn first(&self) -> Option<LostFile> {
        let mut registry = registry();
        registry.collect();
        registry.lost.get(self.read).map(|file| registry.as_lost(file))
    }

    /// The first file that was shorter than its map when that was dropped, whether or not such bytes were read.
    pub fn first_shortened(&self) -> Option<LostFile> {
        let registry = registry();
        registry.shortened.get(self.shortened).map(|file| registry.as_lost(file))
    }

    /// The first file that was written to while it was mapped: what was read of it may be of both versions. Asks the file system for
    /// every file that is still mapped.
    pub fn first_changed(&self) -> Option<PathBuf> {
        let registry = registry();
        let gone = registry.changed.get(self.changed);
        let still_mapped = || registry.files.values().filter(|(map, ..)| *map >= self.map).map(|(.., file)| file);
        gone.or_else(|| still_mapped().find(|file| file.has_changed())).map(|file| file.path().to_owned())
    }
}

/// A map known to the handler. Slots are never freed, but reused.
#[derive(Debug)]
struct Slot {
    /// Odd while the range changes: whoever sees that, or another number after reading the range, leaves the slot alone.
    version: AtomicUsize,
    /// The addresses of the map; equal where there is none.
    start: AtomicUsize,
    end: AtomicUsize,
    has_lost_bytes: AtomicBool,
    next: AtomicPtr<Slot>,
}

/// The first of all slots, as the handler finds them.
static FIRST: AtomicPtr<Slot> = AtomicPtr::new(std::ptr::null_mut());

static REGISTRY: LazyLock<Mutex<Registry>> = LazyLock::new(Mutex::default);

/// Data about maps that the handler does not need.
#[derive(Default)]
struct Registry {
    free: Vec<&'static Slot>,
    /// How many maps there have been.
    maps: u64,
    /// The files of slots in use, each with the number of its map, by the address of the slot.
    files: HashMap<usize, (u64, &'static Slot, FileState)>,
    /// In the order in which it was noticed.
    lost: Vec<FileState>,
    shortened: Vec<FileState>,
    changed: Vec<FileState>,
    /// Why bytes of files could not be fetched.
    unsupplied: HashMap<PathBuf, Unsupplied>,
}

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Registry {
    fn as_lost(&self, file: &FileState) -> LostFile {
        LostFile { unsupplied: self.unsupplied.get(file.path()).cloned(), ..file.as_lost() }
    }

    /// Notes the maps that have lost bytes, each once.
    fn collect(&mut self) {
        let noted: Vec<usize> =
            self.files.iter().filter(|(_, (_, slot, _))| slot.has_lost_bytes()).map(|(address, _)| *address).collect();
        for address in noted {
            if let Some((.., lost)) = self.files.remove(&address) {
                self.lost.push(lost);
            }
        }
    }
}

impl Slot {
    fn has_lost_bytes(&self) -> bool {
        self.has_lost_bytes.load(Ordering::Acquire)
    }

    /// Changes the range, under the registry's lock.
    fn set(&self, start: usize, end: usize) {
        self.version.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::Release);
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The range, unless it is being changed: then it is of no map that anybody reads.
    #[cfg(unix)]
    fn range(&self) -> Option<(usize, usize)> {
        let before = self.version.load(Ordering::Acquire);
        let range = (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (before.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == before).then_some(range)
    }
}

/// Watches over a map until it is dropped, which must be before the map is.
#[derive(Debug)]
pub(super) struct Guard {
    slot: &'static Slot,
    file: FileState,
}

impl Guard {
    /// Watches over a map of a file.
    pub(super) fn over(map: &[u8], file: FileState) -> Guard {
        #[cfg(unix)]
        bus_error::install();
        let mut registry = registry();
        let slot = registry.free.pop().unwrap_or_else(new_slot);
        slot.has_lost_bytes.store(false, Ordering::Release);
        let start = map.as_ptr().addr();
        slot.set(start, start + map.len());
        let number = registry.maps;
        registry.maps += 1;
        registry.files.insert(std::ptr::from_ref(slot).addr(), (number, slot, file.clone()));
        Guard { slot, file }
    }

    pub(super) fn has_lost_bytes(&self) -> bool {
        self.slot.has_lost_bytes()
    }

    /// Notes that bytes of the file could not be fetched. The first cause counts.
    pub(super) fn mark_lost(&self, cause: &Unsupplied) {
        registry().unsupplied.entry(self.file.path().to_owned()).or_insert_with(|| cause.clone());
        self.slot.has_lost_bytes.store(true, Ordering::Release);
    }

    /// What the file was like when it was mapped.
    pub(super) fn file(&self) -> &FileState {
        &self.file
    }

    /// Notes that the file was written to, or cut short, before its map goes.
    pub(super) fn note_changes(&self) {
        // Bytes that only the kernel has read, on their way to another file, raise no signal.
        if self.file.is_shorter() {
            registry().shortened.push(self.file.clone());
        }
        if self.file.has_changed() {
            registry().changed.push(self.file.clone());
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut registry = registry();
        registry.collect();
        self.slot.set(0, 0);
        registry.files.remove(&std::ptr::from_ref(self.slot).addr());
        registry.free.push(self.slot);
    }
}

/// A slot that the handler finds, under the registry's lock.
fn new_slot() -> &'static Slot {
    let slot: &'static mut Slot = Box::leak(Box::new(Slot {
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        has_lost_bytes: AtomicBool::new(false),
        next: AtomicPtr::new(FIRST.load(Ordering::Relaxed)),
    }));
    FIRST.store(slot, Ordering::Release);
    slot
}

#[cfg(unix)]
mod bus_error {
    //! The handler. It runs in the middle of anything: it takes no lock and no memory, and reads atomics alone.

    use super::{FIRST, Slot};
    use libc::{c_int, c_void, siginfo_t};
    use std::sync::Once;
    use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

    /// The previous signal handler, for faults outside our maps.
    static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(std::ptr::null_mut());
    static PAGE: AtomicUsize = AtomicUsize::new(4096);

    /// Installs the handler, once in a process.
    pub(super) fn install() {
        static INSTALLED: Once = Once::new();
        INSTALLED.call_once(|| {
            // SAFETY: asks for a number, without pointers.
            if let Ok(page) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) {
                PAGE.store(page, Ordering::Relaxed);
            }
            // SAFETY: all of the structure's fields may be zero: no flags, no mask, the default action.
            let (mut previous, mut action): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
            // SAFETY: the pointer is to a structure that lives; nothing is changed.
            if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } != 0 {
                return;
            }
            PREVIOUS.store(Box::leak(Box::new(previous)), Ordering::Release);
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: the handler has the signature that SA_SIGINFO asks for, is never unloaded, and calls what may be called
            // from a handler alone. Without it, which nothing depends on, a file that is cut short ends the process.
            let _ = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        });
    }

    extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: the kernel gives a handler with SA_SIGINFO a valid structure; one with a positive code is of a memory access and
        // has an address.
        let address = unsafe { ((*info).si_code > 0).then(|| (*info).si_addr().addr()) };
        if !address.is_some_and(fill_with_zeros) {
            pass_on(signal, info, context);
        }
    }

    /// Puts zeros where the bytes of a map are gone: from the page of the address to the map's end. Whether there is such a map.
    fn fill_with_zeros(address: usize) -> bool {
        let mut next = FIRST.load(Ordering::Acquire);
        // SAFETY: slots are leaked, never freed, and whole before they are linked.
        while let Some(slot) = unsafe { next.as_ref() } {
            if let Some((start, end)) = slot.range()
                && (start..end).contains(&address)
            {
                return fill(slot, address, end);
            }
            next = slot.next.load(Ordering::Acquire);
        }
        false
    }

    fn fill(slot: &Slot, address: usize, end: usize) -> bool {
        slot.has_lost_bytes.store(true, Ordering::Release);
        let page = PAGE.load(Ordering::Relaxed);
        let start = address & !(page - 1);
        let (place, len) = (std::ptr::without_provenance_mut(start), end.next_multiple_of(page) - start);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the pages are the rest of a read-only map that is alive, since a thread is reading it; they stay mapped, readable
        // and part of what the map's owner will unmap. The call is a system call without state of the C library.
        unsafe { libc::mmap(place, len, libc::PROT_READ, flags, -1, 0) != libc::MAP_FAILED }
    }

    /// Does what would have been done without this handler.
    fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
        // SAFETY: leaked before the handler was installed, and never changed.
        let previous = unsafe { PREVIOUS.load(Ordering::Acquire).as_ref() };
        match previous.map(|previous| (previous.sa_sigaction, previous.sa_flags)) {
            None | Some((libc::SIG_DFL | libc::SIG_IGN, _)) => {
                // SAFETY: zeros are the default action; when this returns, the access is tried again, or the signal that was sent is
                // delivered, and ends the process.
                unsafe {
                    let default: libc::sigaction = std::mem::zeroed();
                    libc::sigaction(signal, &raw const default, std::ptr::null_mut());
                    if (*info).si_code <= 0 {
                        libc::raise(signal);
                    }
                }
            }
            Some((handler, flags)) if flags & libc::SA_SIGINFO != 0 => {
                // SAFETY: the system held it for a handler with this signature, as its flags say.
                let handler: extern "C" fn(c_int, *mut siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(handler) };
                handler(signal, info, context);
            }
            Some((handler, _)) => {
                // SAFETY: as above, without the flag.
                let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
                handler(signal);
            }
        }
    }
}
