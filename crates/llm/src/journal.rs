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

/// What an existing journal says.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing of this plan: the work starts anew.
    Nothing,
    /// Another plan's work, or what cannot be read.
    Other,
    /// These jobs of this plan are done.
    Finished(Vec<Entry>),
}

impl Journal {
    /// Opens or creates the journal at `path`, and says what it records for the plan with this fingerprint.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] where another process has the journal open.
    pub fn open(path: &Path, plan: &str) -> io::Result<(Journal, Found)> {
        let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
        file.try_lock().map_err(io::Error::from)?;
        let found = read(&file, plan)?;
        Ok((Journal { file: Mutex::new(file) }, found))
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

fn read(file: &File, plan: &str) -> io::Result<Found> {
    let mut lines = BufReader::new(file).lines();
    let Some(first) = lines.next().transpose()? else {
        return Ok(Found::Nothing);
    };
    let expected = Head { kvant_journal: VERSION, plan: plan.to_owned() };
    if serde_json::from_str::<Head>(&first).ok() != Some(expected) {
        return Ok(Found::Other);
    }
    // A torn last line is the mark of a run that was killed; nothing after it counts.
    let entries = lines.map_while(|line| serde_json::from_str(&line.ok()?).ok());
    Ok(Found::Finished(entries.collect()))
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
        assert_eq!(found, Found::Nothing);
        journal.begin("p").unwrap();
        journal.record(&entry(1)).unwrap();
        journal.record(&entry(2)).unwrap();
        drop(journal);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"job\":3,\"pie").unwrap();
        assert_eq!(Journal::open(&path, "p").unwrap().1, Found::Finished(vec![entry(1), entry(2)]));
        assert_eq!(Journal::open(&path, "q").unwrap().1, Found::Other);
    }

    #[test]
    fn a_second_run_is_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let _first = Journal::open(&path, "p").unwrap();
        assert_eq!(Journal::open(&path, "p").unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
