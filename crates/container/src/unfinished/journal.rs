//! The record of finished work beside an unfinished output, from which an interrupted run resumes. It contains no data: every
//! line is checked against the bytes of the output before it counts.

use super::placing::Planned;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::sync::Mutex;

/// The options of a run by name, as the user spells them.
pub type Options = BTreeMap<String, String>;

/// The options of a run, which distinguish it from another that would resume its work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Given {
    /// Its options.
    pub options: Options,
    /// The directory that relative paths among them start from.
    pub directory: String,
    /// The files and folders among them.
    pub inputs: Vec<Input>,
    /// The version of Kvant.
    pub version: String,
}

/// A file or folder that a run was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Input {
    /// The option that names it.
    pub option: String,
    /// Its path as it was given.
    pub path: String,
    /// Its size and modification time, in an opaque form.
    pub state: String,
}

/// The first line: which plan the work belongs to, none as long as it is not known, and what the run was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Head {
    kvant_journal: u32,
    plan: String,
    #[serde(flatten)]
    given: Given,
}

/// The version of the lines' meaning.
const VERSION: u32 = 1;

/// A further line: a job, and the bytes that it delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The job's index in the plan.
    pub job: usize,
    /// The written output.
    pub pieces: Vec<Written>,
}

/// A run of bytes of an output tensor, with its xxh3 hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Written {
    /// The tensor's index among the declarations.
    pub tensor: usize,
    /// Its offset in the tensor.
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
    /// Files that are, or are about to be, written among the unfinished work.
    Files {
        files: BTreeSet<String>,
    },
    /// The output is whole and about to get its name, or the files of it theirs.
    Whole {
        whole: bool,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        placing: Vec<Planned>,
    },
    /// The process that has it open.
    Process {
        process: u32,
    },
}

/// The contents of an existing journal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The plan that it is of; none where the journal is new, or cannot be read.
    pub plan: Option<String>,
    /// The inputs and options of the run.
    pub given: Given,
    /// The process that had it open last.
    pub process: Option<u32>,
    /// The jobs that are done.
    pub entries: Vec<Entry>,
    /// The files that Kvant writes among the unfinished work; all others there are somebody else's.
    pub files: BTreeSet<String>,
    /// Whether the output was complete: only the final rename may be missing.
    pub whole: bool,
    /// The files that were about to get their names together, if it is of several.
    pub(super) placing: Vec<Planned>,
    /// Bytes of the lines that count, up to the last job or file.
    end: u64,
    /// The same up to the word that the output is whole, if it is there.
    whole_end: u64,
}

impl Found {
    /// Clears the mark that the output was complete.
    pub(super) fn forget_placing(&mut self) {
        (self.whole, self.placing, self.whole_end) = (false, Vec::new(), self.end);
    }

    /// Returns whether the output of this plan was complete.
    pub fn is_whole(&self, plan: &str) -> bool {
        self.whole && self.plan.as_deref() == Some(plan)
    }
}

impl Journal {
    /// Opens or creates the journal at `path`, and says what it records.
    ///
    /// # Errors
    /// The system's; [`io::ErrorKind::WouldBlock`] where another process has the journal open.
    pub fn open(path: &Path) -> io::Result<(Journal, Found)> {
        loop {
            let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
            file.try_lock().map_err(io::Error::from)?;
            // Its previous owner may have removed it meanwhile, and the name may belong to another journal.
            if is_named(&file, path) {
                let found = read(&file)?;
                return Ok((Journal { file: Mutex::new(file) }, found));
            }
        }
    }

    /// The contents of the journal at `path`, without opening it for writing; empty if there is none.
    pub fn peek(path: &Path) -> Found {
        File::open(path).and_then(|file| read(&file)).unwrap_or_default()
    }

    /// Returns whether the file at `path` starts with a journal's first line.
    pub fn is_begun(path: &Path) -> bool {
        Journal::peek(path).plan.is_some()
    }

    /// Returns whether the file at `path` is empty, as a run leaves it that ends between two calls.
    pub fn is_empty(path: &Path) -> bool {
        path.metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
    }

    /// Forgets everything and begins the record of a plan.
    ///
    /// # Errors
    /// System errors.
    pub fn begin(&self, plan: &str, given: &Given) -> io::Result<()> {
        let head = Head { kvant_journal: VERSION, plan: plan.to_owned(), given: given.clone() };
        let mut file = self.lock()?;
        file.set_len(0)?;
        write_line(&mut file, &head)?;
        write_line(&mut file, &Line::Process { process: std::process::id() })
    }

    /// Holds on to all that was found, without a change to what it says.
    ///
    /// # Errors
    /// System errors.
    pub fn hold(&self, found: &Found) -> io::Result<()> {
        self.cut(found.whole_end)
    }

    /// Resumes a journal: further jobs are appended, and nothing that counts is removed, so that a run killed here loses nothing.
    ///
    /// # Errors
    /// System errors.
    pub fn resume(&self, found: &Found) -> io::Result<()> {
        self.cut(found.end)
    }

    fn cut(&self, end: u64) -> io::Result<()> {
        let mut file = self.lock()?;
        file.set_len(end)?;
        write_line(&mut file, &Line::Process { process: std::process::id() })
    }

    /// Records a finished job. The line is with the system when this returns: it survives the end of the process.
    ///
    /// # Errors
    /// System errors.
    pub fn record(&self, entry: &Entry) -> io::Result<()> {
        write_line(&mut *self.lock()?, entry)
    }

    /// Records files before they are written among the unfinished work, by their names there.
    ///
    /// # Errors
    /// System errors.
    pub fn record_files(&self, files: BTreeSet<String>) -> io::Result<()> {
        write_line(&mut *self.lock()?, &Line::Files { files })
    }

    /// Records that the output is whole.
    ///
    /// # Errors
    /// System errors.
    pub fn record_whole(&self) -> io::Result<()> {
        write_line(&mut *self.lock()?, &Line::Whole { whole: true, placing: Vec::new() })
    }

    /// Records that an output of several files is whole.
    pub(super) fn record_placing(&self, placing: Vec<Planned>) -> io::Result<()> {
        write_line(&mut *self.lock()?, &Line::Whole { whole: true, placing })
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

/// Returns whether a file that is open still has its name.
fn is_named(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let open = file.metadata().map(|found| (found.dev(), found.ino())).ok();
        open.is_some() && open == crate::positioned::file_id(path)
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        path.exists()
    }
}

fn read(file: &File) -> io::Result<Found> {
    let mut lines = Lines { file: BufReader::new(file), end: 0 };
    let Some(head) = lines.next::<Head>()?.filter(|head| head.kvant_journal == VERSION) else {
        return Ok(Found::default());
    };
    let mut found = Found { plan: Some(head.plan), given: head.given, end: lines.end, ..Found::default() };
    found.whole_end = found.end;
    while let Some(line) = lines.next()? {
        match line {
            Line::Job(entry) => {
                found.entries.push(entry);
                (found.end, found.whole_end) = (lines.end, lines.end);
            }
            Line::Files { files } => {
                found.files.extend(files);
                (found.end, found.whole_end) = (lines.end, lines.end);
            }
            Line::Whole { whole, placing } => {
                (found.whole, found.placing) = (whole, placing);
                found.whole_end = lines.end;
            }
            Line::Process { process } => found.process = Some(process),
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
    fn journal_round_trips_and_ignores_a_torn_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let (journal, found) = Journal::open(&path).unwrap();
        assert_eq!(found, Found::default());
        let options: Options = [("‹seed›".to_owned(), "1".to_owned())].into();
        let given = Given { options, directory: "/here".to_owned(), ..Given::default() };
        journal.begin("p", &given).unwrap();
        journal.record(&entry(1)).unwrap();
        journal.record(&entry(2)).unwrap();
        drop(journal);
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"job\":3,\"pie").unwrap();
        let (journal, found) = Journal::open(&path).unwrap();
        assert_eq!((&found.entries[..], found.whole), (&[entry(1), entry(2)][..], false));
        assert_eq!((found.plan.as_deref(), &found.given, found.process), (Some("p"), &given, Some(std::process::id())));
        journal.resume(&found).unwrap();
        assert_eq!(Journal::peek(&path).entries, found.entries, "nothing is lost by a run that begins");
        journal.record(&entry(4)).unwrap();
        assert_eq!(Journal::peek(&path).entries, [entry(1), entry(2), entry(4)], "the torn line is gone");
    }

    #[test]
    fn complete_output_is_known_by_its_last_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert_eq!(Journal::peek(&path), Found::default());
        let (journal, _) = Journal::open(&path).unwrap();
        journal.begin("p", &Given::default()).unwrap();
        journal.record(&entry(1)).unwrap();
        journal.record_whole().unwrap();
        let found = Journal::peek(&path);
        assert_eq!((&found.entries[..], found.is_whole("p"), found.is_whole("q")), (&[entry(1)][..], true, false));
        journal.hold(&found).unwrap();
        assert!(Journal::peek(&path).whole);
        journal.resume(&found).unwrap();
        assert!(!Journal::peek(&path).whole, "who goes on has more to do");
    }

    #[test]
    fn journals_of_older_versions_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        std::fs::write(&path, "{\"kvant_journal\":1,\"plan\":\"p\"}\n").unwrap();
        assert_eq!((Journal::peek(&path).plan.as_deref(), Journal::peek(&path).given), (Some("p"), Given::default()));
    }

    #[test]
    fn second_run_is_locked_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let _first = Journal::open(&path).unwrap();
        assert_eq!(Journal::open(&path).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn foreign_file_is_not_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        assert!(!Journal::is_begun(&path) && !Journal::is_empty(&path));
        std::fs::write(&path, "").unwrap();
        assert!(!Journal::is_begun(&path) && Journal::is_empty(&path));
        std::fs::write(&path, "dear diary\n").unwrap();
        assert!(!Journal::is_begun(&path) && !Journal::is_empty(&path));
    }
}
