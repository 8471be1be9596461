//! The portable version: seek, then copy, one thread at a time. Free disk space is unknown.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The cursor of a `File` is shared by all threads, so only one of them may use one at a time.
static CURSOR: Mutex<()> = Mutex::new(());

fn lock_cursor() -> MutexGuard<'static, ()> {
    CURSOR.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write_all_at(mut file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    let _guard = lock_cursor();
    file.seek(SeekFrom::Start(offset))?;
    file.write_all(bytes)
}

pub(super) fn read_exact_at(mut file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    let _guard = lock_cursor();
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}

#[cfg(not(any(unix, windows)))]
pub(super) fn allocate(_: &File, _: u64) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(not(any(unix, windows)))]
pub(super) fn available_space(_: &std::path::Path) -> io::Result<u64> {
    Err(io::ErrorKind::Unsupported.into())
}
