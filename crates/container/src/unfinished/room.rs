//! Whether the disks have room for what a run is going to write. Changes nothing.

use super::output_error::OutputError;
use super::paths::{Paths, named_output};
use crate::directory::directory_of;
use crate::positioned::{available_space, file_system};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The room that a run needs, on each disk together.
#[derive(Debug, Default)]
pub struct Room {
    disks: BTreeMap<Option<u64>, Needed>,
}

/// The space that a disk needs.
#[derive(Debug)]
struct Needed {
    /// The first path on it.
    first: PathBuf,
    /// How many outputs it holds.
    count: usize,
    outputs: u64,
    temporary: u64,
    /// Whether temporary files are of data, and smaller with less of them.
    of_data: bool,
}

impl Room {
    /// Counts an output of so many bytes. An unfinished one has its room already.
    pub fn output(&mut self, paths: &Paths, bytes: u64) {
        let needed = self.disk(&paths.target);
        needed.outputs = needed.outputs.saturating_add(bytes.saturating_sub(size(&paths.staging)));
        needed.count += 1;
    }

    /// Counts what lies beside an output while it is made, besides what an interrupted run has kept there.
    pub fn beside(&mut self, paths: &Paths, bytes: u64) {
        let missing = bytes.saturating_sub(size(&paths.blocks()));
        self.temporary(&paths.target, missing);
    }

    /// Counts packed weights that lie beside an output while it is made.
    pub fn weights_beside(&mut self, paths: &Paths, bytes: u64) {
        let needed = self.disk(&paths.target);
        needed.temporary = needed.temporary.saturating_add(bytes);
    }

    /// Counts temporary files on the disk of a path.
    pub fn temporary(&mut self, place: &Path, bytes: u64) {
        let needed = self.disk(place);
        needed.temporary = needed.temporary.saturating_add(bytes);
        needed.of_data |= bytes > 0;
    }

    /// Refuses a run that a disk has no room for.
    ///
    /// # Errors
    /// [`OutputError::NoRoom`] with the first path on that disk.
    pub fn check(&self) -> Result<(), OutputError> {
        self.disks.values().filter(|needed| needed.outputs > 0 || needed.temporary > 0).try_for_each(Needed::check)
    }

    fn disk(&mut self, place: &Path) -> &mut Needed {
        let first = || Needed { first: place.to_owned(), count: 0, outputs: 0, temporary: 0, of_data: false };
        self.disks.entry(file_system(place)).or_insert_with(first)
    }
}

impl Needed {
    fn check(&self) -> Result<(), OutputError> {
        let needed = self.outputs.saturating_add(self.temporary);
        match available_space(&self.first) {
            Ok(available) if available < needed => Err(OutputError::NoRoom {
                path: named_output(&self.first),
                directory: directory_of(&self.first).to_owned(),
                others: self.count.saturating_sub(1),
                needed,
                temporary: self.temporary,
                of_data: self.of_data,
                available,
            }),
            // If the free space is unknown, the work starts; a full disk is reported then.
            _ => Ok(()),
        }
    }
}

/// Bytes of the files in a directory.
fn size(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.metadata().ok()).map(|metadata| metadata.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::super::paths::checkpoint_beside;
    use super::*;
    use crate::diagnostic::Diagnostic;

    #[test]
    fn outputs_and_temporary_files_of_one_disk_are_counted_together() {
        let dir = tempfile::tempdir().unwrap();
        let free = available_space(dir.path()).unwrap();
        let paths = |name: &str| Paths::of(&dir.path().join(name)).unwrap();
        let mut room = Room::default();
        room.output(&paths("a"), free / 10 * 4);
        room.output(&paths("b"), free / 10 * 4);
        room.check().unwrap();
        room.beside(&paths("a"), free / 10 * 4);
        let error = room.check().unwrap_err();
        let OutputError::NoRoom { directory, others, needed, temporary, .. } = &error else { panic!("{error}") };
        assert_eq!((directory.as_path(), *others), (dir.path(), 1));
        assert_eq!((*needed, *temporary), (free / 10 * 12, free / 10 * 4));
        let told = error.to_string();
        assert!(error.hint().unwrap().contains("‹num-samples›"));
        let mut of_weights = Room::default();
        of_weights.weights_beside(&paths("a"), free * 2);
        assert_eq!(
            of_weights.check().unwrap_err().hint().unwrap(),
            "free some space, or choose a directory on another disk"
        );
        let mut intermediate = Room::default();
        intermediate.output(&Paths::of(&checkpoint_beside(&dir.path().join("g.onnx"))).unwrap(), free * 2);
        let told_of_output = intermediate.check().unwrap_err().to_string();
        assert!(told_of_output.contains("/g.onnx needs "), "{told_of_output}");
        for part in [format!("needs {needed} bytes"), format!("free in {}", dir.path().display())] {
            assert!(told.contains(&part), "{told}");
        }
    }
}
