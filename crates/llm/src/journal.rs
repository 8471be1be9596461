//! The record of finished work beside an unfinished output. With it a run that was killed goes on where it stopped. It
//! holds no data: what a line claims is checked against the bytes in the output before it is believed.

use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;

/// The first line: which plan the work belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    kvant_journal: u32,
    plan: String,
}

/// The version of the lines' meaning.
const VERSION: u32 = 1;

/// A further line: a job, and the bytes that it delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The job's index in the plan.
    pub job: usize,
    /// What was written.
    pub pieces: Vec<Written>,
}

/// A run of bytes of an output tensor, with its xxh3 hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The tensor's index among the declarations.
    pub tensor: usize,
    /// Where in the tensor it begins.
    pub offset: u64,
    /// Its length.
    pub length: u64,
    /// The hash of its bytes.
    pub hash: u64,
}

/// An open journal: locked against a second run until it is dropped.
#[derive(Debug)]
pub struct Journal {
    file: Mutex<File>,
}

/// A line after the first.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    Job(Entry),
    /// The output is whole and about to get its name.
    Whole {
        whole: bool,
    },
}

/// What an existing journal says of a plan.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The jobs that are done; none where the journal is new, of another plan, or cannot be read.
    pub entries: Vec<Entry>,
    /// Whether the output was whole: only its naming may be missing.
    pub whole: bool,
}

impl Journal {
    /// Opens or creates the journal at `path`, and says what it records for the plan with this fingerprint.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] where another process has the journal open.
    pub fn open(path: &Path, plan: &str) -> io::Result<(Journal, Found)> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        file.try_lock().map_err(io::Error::from)?;
        let found = read(&file, Some(plan))?;
        Ok((Journal { file: Mutex::new(file) }, found))
    }

    /// What the journal at `path` says of the plan, without opening it for writing; nothing where there is none.
    pub fn peek(path: &Path, plan: &str) -> Found {
        File::open(path).and_then(|file| read(&file, Some(plan))).unwrap_or_default()
    }

    /// Whether the journal at `path` says that an output was whole, of whatever plan.
    pub fn is_whole(path: &Path) -> bool {
        File::open(path).and_then(|file| read(&file, None)).is_ok_and(|found| found.whole)
    }

    /// Forgets everything and begins the record of a plan.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(&self, plan: &str) -> io::Result<()> {
        let head = Head { kvant_journal: VERSION, plan: plan.to_owned() };
        let mut file = self.lock()?;
        file.set_len(0)?;
        write_line(&mut file, &head)
    }

    /// Records a finished job. The line is with the system when this returns: it survives the end of the process.
    ///
    /// # Errors
    /// The system's.
    pub fn record(&self, entry: &Entry) -> io::Result<()> {
        write_line(&mut *self.lock()?, entry)
    }

    /// Records that the output is whole.
    ///
    /// # Errors
    /// The system's.
    pub fn record_whole(&self) -> io::Result<()> {
        write_line(&mut *self.lock()?, &Line::Whole { whole: true })
    }

    fn lock(&self) -> io::Result<std::sync::MutexGuard<'_, File>> {
        self.file.lock().map_err(|_| io::Error::other("a thread that held the journal has panicked"))
    }
}

fn write_line(file: &mut File, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    // One call, so that a line is either there or not.
    file.write_all(&line)
}

/// What a file says of the plan, or of the one that it is of.
fn read(file: &File, plan: Option<&str>) -> io::Result<Found> {
    let mut lines = BufReader::new(file).lines();
    let first = lines.next().transpose()?.and_then(|line| serde_json::from_str::<Head>(&line).ok());
    let is_expected = |head: &Head| head.kvant_journal == VERSION && plan.is_none_or(|plan| head.plan == plan);
    let mut found = Found::default();
    if !first.as_ref().is_some_and(is_expected) {
        return Ok(found);
    }
    // A torn last line is the mark of a run that was killed; nothing after it counts.
    for line in lines.map_while(|line| serde_json::from_str(&line.ok()?).ok()) {
        match line {
            Line::Job(entry) => found.entries.push(entry),
            Line::Whole { whole } => found.whole = whole,
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(job: usize) -> Entry {
        Entry { job, pieces: vec![Written { tensor: job, offset: 8, length: 2, hash: u64::MAX }] }
    }

    #[test]
    fn records_survive_and_a_torn_line_does_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, found) = Journal::open(&path, "p").unwrap();
        assert_eq!(found, Found::default());
        journal.begin("p").unwrap();
        journal.record(&entry(1)).unwrap();
        journal.record(&entry(2)).unwrap();
        drop(journal);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"job\":3,\"pie").unwrap();
        let expected = Found { entries: vec![entry(1), entry(2)], whole: false };
        assert_eq!(Journal::open(&path, "p").unwrap().1, expected);
        assert_eq!(Journal::open(&path, "q").unwrap().1, Found::default());
    }

    #[test]
    fn a_whole_output_is_told_by_its_last_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert_eq!(Journal::peek(&path, "p"), Found::default());
        let (journal, _) = Journal::open(&path, "p").unwrap();
        journal.begin("p").unwrap();
        journal.record(&entry(1)).unwrap();
        journal.record_whole().unwrap();
        assert_eq!(Journal::peek(&path, "p"), Found { entries: vec![entry(1)], whole: true });
        assert!(Journal::is_whole(&path) && !Journal::peek(&path, "q").whole);
    }

    #[test]
    fn a_second_run_is_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let _first = Journal::open(&path, "p").unwrap();
        assert_eq!(Journal::open(&path, "p").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
