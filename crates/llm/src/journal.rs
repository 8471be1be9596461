//! The record of finished work beside an unfinished output. With it a run that was killed goes on where it stopped. It
//! holds no data: what a line claims is checked against the bytes in the output before it is believed.

use serde::de::DeserializeOwned;
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
    /// Whether it records work on another plan.
    pub other: bool,
    /// Bytes of the lines that count, up to the last job.
    end: u64,
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

    /// Goes on with what was found: further jobs are recorded behind it. Nothing that counts is taken away, so that a run that is
    /// killed here loses nothing either.
    ///
    /// # Errors
    /// The system's.
    pub fn go_on(&self, found: &Found) -> io::Result<()> {
        self.lock()?.set_len(found.end)
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
    let mut lines = Lines { file: BufReader::new(file), end: 0 };
    let mut found = Found::default();
    let Some(head) = lines.next::<Head>()?.filter(|head| head.kvant_journal == VERSION) else { return Ok(found) };
    if plan.is_some_and(|plan| head.plan != plan) {
        found.other = lines.next::<Line>()?.is_some();
        return Ok(found);
    }
    found.end = lines.end;
    while let Some(line) = lines.next()? {
        match line {
            Line::Job(entry) => {
                found.entries.push(entry);
                found.end = lines.end;
            }
            Line::Whole { whole } => found.whole = whole,
        }
    }
    Ok(found)
}

/// The lines of a journal. A torn last line is the mark of a run that was killed; nothing after it counts.
struct Lines<'f> {
    file: BufReader<&'f File>,
    /// Bytes up to the end of the last line that was read.
    end: u64,
}

impl Lines<'_> {
    fn next<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let mut line = Vec::new();
        self.file.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            return Ok(None);
        }
        let read = serde_json::from_slice(&line).ok();
        self.end += if read.is_some() { line.len() as u64 } else { 0 };
        Ok(read)
    }
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
        let (journal, found) = Journal::open(&path, "p").unwrap();
        assert_eq!((&found.entries[..], found.whole, found.other), (&[entry(1), entry(2)][..], false, false));
        let other = Journal::peek(&path, "q");
        assert!(other.other && other.entries.is_empty());
        journal.go_on(&found).unwrap();
        assert_eq!(Journal::peek(&path, "p").entries, found.entries, "nothing is lost by a run that begins");
        journal.record(&entry(4)).unwrap();
        assert_eq!(Journal::peek(&path, "p").entries, [entry(1), entry(2), entry(4)], "the torn line is gone");
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
        let found = Journal::peek(&path, "p");
        assert_eq!((&found.entries[..], found.whole), (&[entry(1)][..], true));
        assert!(Journal::is_whole(&path) && !Journal::peek(&path, "q").whole);
        journal.go_on(&found).unwrap();
        assert!(!Journal::is_whole(&path), "who goes on has more to do");
    }

    #[test]
    fn a_second_run_is_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let _first = Journal::open(&path, "p").unwrap();
        assert_eq!(Journal::open(&path, "p").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
