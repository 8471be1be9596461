//! Delivering the bytes of declared tensors: any thread, any order, whole or in pieces. It decides nothing about places;
//! the layout of a format does, by its [`Geometry`].

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, WriterError};
use crate::geometry::{Geometry, OutputFile, Place};
use crate::positioned::{read_exact_at, reserve, sync_dir, write_all_at};
use crate::write_queue::WriteQueue;

/// The durability that [`Writer::finish`] guarantees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Durability {
    /// They survive the end of the process, but perhaps not a power cut: the system writes them to disk when it likes.
    Process,
    /// They are on disk.
    Disk,
}

/// The files of a [`Geometry`], open for writing. All methods but [`Self::finish`] take `&self` and may run in parallel.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    geometry: Geometry,
    files: Vec<WriteQueue>,
    /// Bytes delivered so far, per tensor.
    delivered: Vec<AtomicU64>,
}

impl Writer {
    /// Creates the directory if need be, and in it every file of the layout: header written, space for the tensors
    /// reserved (see [`reserve`]). Existing files of the same names are replaced.
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`] if the space cannot be reserved, [`Error::Io`] otherwise.
    pub fn create(dir: &Path, layout: impl Into<Geometry>) -> Result<Self, Error> {
        let geometry = layout.into();
        fs::create_dir_all(dir).map_err(|e| Error::io("create", dir, None, e))?;
        let files = geometry.files.iter().map(|file| create_file(dir, file)).collect::<Result<_, _>>()?;
        Ok(Self::with_files(dir, geometry, files))
    }

    /// Opens the files of an interrupted [`Self::create`] with the same layout. The caller marks the tensors that they already
    /// contain with [`Self::mark_delivered`].
    ///
    /// # Errors
    ///
    /// [`Error::Writer`] if a file has another length or header than the layout gives it, [`Error::Io`] if one is missing.
    pub fn reopen(dir: &Path, layout: impl Into<Geometry>) -> Result<Self, Error> {
        let geometry = layout.into();
        let files = geometry.files.iter().map(|file| reopen_file(dir, file)).collect::<Result<_, _>>()?;
        Ok(Self::with_files(dir, geometry, files))
    }

    /// The same where some of the files are missing or damaged: those are created as [`Self::create`] does.
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`], [`Error::Io`].
    pub fn complete(dir: &Path, layout: impl Into<Geometry>) -> Result<Self, Error> {
        let geometry = layout.into();
        let open = |file: &OutputFile| reopen_file(dir, file).or_else(|_| create_file(dir, file));
        let files = geometry.files.iter().map(open).collect::<Result<_, _>>()?;
        Ok(Self::with_files(dir, geometry, files))
    }

    fn with_files(dir: &Path, geometry: Geometry, files: Vec<File>) -> Self {
        let delivered = geometry.places.iter().map(|_| AtomicU64::new(0)).collect();
        let files = files.into_iter().map(WriteQueue::new).collect();
        Self { dir: dir.to_path_buf(), geometry, files, delivered }
    }

    /// The geometry it was made with.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Takes bytes of a tensor. `tensor` is its index among the declarations, `offset` counts from its first byte. They are
    /// in the file once [`Self::settle`] has returned; until then another thread may have them still to write.
    ///
    /// # Errors
    ///
    /// [`WriterError::OutOfRange`] if they do not fit inside the tensor, [`Error::DiskFull`], [`Error::Io`].
    pub fn write_at(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        self.restore_at(tensor, offset, bytes)?;
        self.delivered[tensor].fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Takes bytes that were written to a tensor elsewhere. They count once they are marked with [`Self::mark_delivered`].
    ///
    /// # Errors
    ///
    /// As [`Self::write_at`].
    pub fn restore_at(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<(), Error> {
        let place = self.check(tensor, offset, bytes.len() as u64)?;
        if bytes.is_empty() {
            return Ok(());
        }
        let result = self.files[place.shard].write(place.offset + offset, bytes);
        result.map_err(|e| Error::io("write", &self.path_of(place.shard), Some(self.name_of(tensor)), e))
    }

    /// Waits until all bytes that were taken are in the files: they survive the end of the process then.
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`] or [`Error::Io`] about any of them.
    pub fn settle(&self) -> Result<(), Error> {
        self.files
            .iter()
            .enumerate()
            .try_for_each(|(shard, file)| file.settle().map_err(|e| Error::io("write", &self.path_of(shard), None, e)))
    }

    /// Reads back bytes of a tensor, as they are in the file: what was written, or zeros.
    ///
    /// # Errors
    ///
    /// [`WriterError::OutOfRange`] if the range is not inside the tensor, [`Error::Io`], [`Error::DiskFull`].
    pub fn read_at(&self, tensor: usize, offset: u64, buffer: &mut [u8]) -> Result<(), Error> {
        let place = self.check(tensor, offset, buffer.len() as u64)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let file = &self.files[place.shard];
        let result = file.settle().and_then(|()| read_exact_at(file.file(), buffer, place.offset + offset));
        result.map_err(|e| Error::io("read", &self.path_of(place.shard), Some(self.name_of(tensor)), e))
    }

    /// Records that so many bytes of a tensor are already in the files, from the run that [`Self::reopen`] continues.
    ///
    /// # Errors
    ///
    /// [`WriterError::NoSuchTensor`].
    pub fn mark_delivered(&self, tensor: usize, bytes: u64) -> Result<(), Error> {
        self.check(tensor, 0, 0)?;
        self.delivered[tensor].fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Waits until everything written so far is on disk.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn sync(&self) -> Result<(), Error> {
        self.settle()?;
        self.files.iter().enumerate().try_for_each(|(shard, file)| {
            file.file().sync_data().map_err(|e| Error::io("sync", &self.path_of(shard), None, e))
        })
    }

    /// Checks that every tensor was delivered, writes the index where there is one, and closes the files.
    ///
    /// # Errors
    ///
    /// [`WriterError::Incomplete`] if fewer bytes than a tensor has were written to it (it would read as zeros),
    /// [`Error::Io`], [`Error::DiskFull`].
    pub fn finish(self, durability: Durability) -> Result<(), Error> {
        self.settle()?;
        self.refuse_incomplete()?;
        if let Some((name, text)) = &self.geometry.index {
            self.write_index(name, text, durability)?;
        }
        match durability {
            Durability::Process => Ok(()),
            Durability::Disk => self.sync_everything(),
        }
    }

    fn sync_everything(&self) -> Result<(), Error> {
        self.sync()?;
        sync_dir(&self.dir).map_err(|e| Error::io("sync", &self.dir, None, e))
    }

    fn write_index(&self, name: &str, text: &str, durability: Durability) -> Result<(), Error> {
        let path = self.dir.join(name);
        let wrap = |e| Error::io("write", &path, None, e);
        let mut file = File::create(&path).map_err(wrap)?;
        file.write_all(text.as_bytes()).map_err(wrap)?;
        match durability {
            Durability::Process => Ok(()),
            Durability::Disk => file.sync_all().map_err(wrap),
        }
    }

    fn refuse_incomplete(&self) -> Result<(), Error> {
        let places = self.geometry.places.iter().zip(&self.delivered);
        let missing =
            |(place, delivered): (&Place, &AtomicU64)| place.len.saturating_sub(delivered.load(Ordering::Relaxed));
        match places.map(missing).enumerate().find(|&(_, missing)| missing > 0) {
            Some((tensor, missing)) => {
                Err(self.error(tensor, WriterError::Incomplete { tensor: self.name_of(tensor).into(), missing }))
            }
            None => Ok(()),
        }
    }

    /// The place of a tensor, once it is sure that a range of bytes lies inside it.
    fn check(&self, tensor: usize, offset: u64, len: u64) -> Result<Place, Error> {
        let Some(&place) = self.geometry.places.get(tensor) else {
            let problem = WriterError::NoSuchTensor { index: tensor, count: self.geometry.places.len() };
            return Err(Error::Writer { file: self.dir.clone(), problem });
        };
        match offset.checked_add(len) {
            Some(end) if end <= place.len => Ok(place),
            _ => {
                let tensor_name = self.name_of(tensor).into();
                Err(self
                    .error(tensor, WriterError::OutOfRange { tensor: tensor_name, offset, len, tensor_len: place.len }))
            }
        }
    }

    fn error(&self, tensor: usize, problem: WriterError) -> Error {
        Error::Writer { file: self.path_of(self.geometry.places[tensor].shard), problem }
    }

    fn name_of(&self, tensor: usize) -> &str {
        &self.geometry.names[tensor]
    }

    fn path_of(&self, shard: usize) -> PathBuf {
        self.dir.join(&self.geometry.files[shard].name)
    }
}

fn create_file(dir: &Path, planned: &OutputFile) -> Result<File, Error> {
    let path = &dir.join(&planned.name);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(true).open(path);
    let file = file.map_err(|e| Error::io("create", path, None, e))?;
    reserve(&file, planned.len).map_err(|e| Error::io("reserve space for", path, None, e))?;
    write_all_at(&file, &planned.header, 0).map_err(|e| Error::io("write", path, None, e))?;
    Ok(file)
}

fn reopen_file(dir: &Path, planned: &OutputFile) -> Result<File, Error> {
    let path = &dir.join(&planned.name);
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| Error::io("open", path, None, e))?;
    let found = file.metadata().map_err(|e| Error::io("open", path, None, e))?.len();
    if found != planned.len {
        let problem = WriterError::OtherLength { found, expected: planned.len };
        return Err(Error::Writer { file: path.to_path_buf(), problem });
    }
    let mut found = vec![0; planned.header.len()];
    read_exact_at(&file, &mut found, 0).map_err(|e| Error::io("read", path, None, e))?;
    match found == planned.header {
        true => Ok(file),
        false => Err(Error::Writer { file: path.to_path_buf(), problem: WriterError::OtherHeader }),
    }
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
