//! Whether the disks have room for what a run is going to write. Changes nothing.

use super::output_error::OutputError;
use super::paths::{Paths, named_output};
use crate::directory::directory_of;
use crate::positioned::{available_space, file_system};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Bytes for what lies with an output besides its tensors: config.json, manifest and journal, and the last block of each file.
const MARGIN: u64 = 256 << 10;

/// A journal has a line of about a hundred bytes for each job, and a job writes some megabytes: less than this share of the output.
const JOURNAL_SHARE: u64 = 4096;

/// Bytes that a report takes at most, but for the largest graphs.
const REPORT: u64 = 1 << 20;

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
    /// Counts an output of so many bytes, and what lies with it. An unfinished one has its room already.
    pub fn output(&mut self, paths: &Paths, bytes: u64) {
        let margin = MARGIN.saturating_add(bytes / JOURNAL_SHARE);
        self.file(&paths.target, bytes.saturating_add(margin).saturating_sub(size(&paths.staging)));
    }

    /// Counts a report, whose length is known only after the work. Pipes and devices take no room.
    pub fn report(&mut self, path: &Path) {
        if path.is_file() || !path.exists() {
            self.file(path, REPORT);
        }
    }

    fn file(&mut self, path: &Path, bytes: u64) {
        let needed = self.disk(path);
        needed.outputs = needed.outputs.saturating_add(bytes);
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

    /// A disk that only the tensors fit on is too small.
    #[test]
    fn files_beside_tensors_and_a_report_need_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut room = Room::default();
        room.output(&Paths::of(&dir.path().join("a")).unwrap(), 700_000);
        room.report(&dir.path().join("report.json"));
        room.report(Path::new("/dev/null"));
        let needed: u64 = room.disks.values().map(|disk| disk.outputs).sum();
        assert_eq!(needed, 700_000 + 700_000 / JOURNAL_SHARE + MARGIN + REPORT);
        // An output that an interrupted run has written needs what is missing alone.
        let paths = Paths::of(&dir.path().join("b")).unwrap();
        fs::create_dir(&paths.staging).unwrap();
        fs::write(paths.staging.join("model.safetensors"), vec![0; 600_000]).unwrap();
        let mut resumed = Room::default();
        resumed.output(&paths, 600_000);
        assert_eq!(resumed.disks.values().map(|disk| disk.outputs).sum::<u64>(), MARGIN + 600_000 / JOURNAL_SHARE);
    }

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
        let margins = 2 * (MARGIN + free / 10 * 4 / JOURNAL_SHARE);
        assert_eq!((*needed, *temporary), (free / 10 * 12 + margins, free / 10 * 4));
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
        for part in [format!("needs up to {needed} bytes"), format!("free in {}", dir.path().display())] {
            assert!(told.contains(&part), "{told}");
        }
    }
}
