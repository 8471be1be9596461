//! Graphs that are complete and have no names yet: they are opened and measured in the directory where the output is made, and get
//! their names, with their external data and a report, as the last step.

use super::outputs::GraphOutputs;
use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind};
use crate::text::shown;
use kvant_container::onnx::{ExternalData, ModelProto, external_data_path, sync_written, write_unless};
use kvant_container::unfinished::{Claim, Placing};
use kvant_container::{Durability, behind_links, recorded_name, write_file};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The report until it has its name.
const REPORT: &str = "report.json";

/// The file of ranges until it has its name.
const RANGES: &str = "ranges";

/// Graphs and their external data under the names that they will have, in `NAME.partial/`.
pub struct Staged {
    directory: PathBuf,
    graphs: Vec<StagedGraph>,
    report: Option<Placing>,
    ranges: Option<Placing>,
}

/// A graph that is complete.
struct StagedGraph {
    path: PathBuf,
    output: PathBuf,
}

impl Staged {
    /// Makes a place for the graphs of an output that this run has claimed.
    ///
    /// # Errors
    /// System errors.
    pub fn begin<'p>(claim: &Claim, outputs: impl IntoIterator<Item = &'p Path>) -> Result<Staged, Error> {
        let files = outputs.into_iter().flat_map(|output| [output.to_owned(), external_data_path(output)]);
        let name = |path: PathBuf| recorded_name(Path::new(path.file_name().unwrap_or_default()));
        let names: BTreeSet<String> = files.chain([REPORT.into(), RANGES.into()]).map(name).collect();
        let directory = claim.staging(names)?.to_owned();
        Ok(Staged { directory, graphs: Vec::new(), report: None, ranges: None })
    }

    /// Writes a graph, which will be called `output`. Where it is for now.
    ///
    /// # Errors
    /// The system's; a graph that is too large for one file; a user who asks to stop.
    pub fn write(
        &mut self,
        model: ModelProto,
        output: &Path,
        external: ExternalData,
        cancel: &CancelToken,
    ) -> Result<PathBuf, Error> {
        // External data are found by the name of the graph: both have the names they will have.
        let path = self.directory.join(output.file_name().unwrap_or_default());
        write_unless(model, &path, external, cancel.flag())?;
        self.graphs.push(StagedGraph { path: path.clone(), output: output.to_owned() });
        Ok(path)
    }

    /// The graphs, where they are for now.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.graphs.iter().map(|graph| graph.path.as_path())
    }

    /// Adds a report, which gets its name with the graphs.
    ///
    /// # Errors
    /// System errors.
    pub fn add_report(&mut self, text: &str, place: &Path) -> Result<(), Error> {
        self.report = Some(self.added(REPORT, text.as_bytes(), place)?);
        Ok(())
    }

    /// Adds a file of ranges, which gets its name with the graphs.
    ///
    /// # Errors
    /// System errors.
    pub fn add_ranges(&mut self, bytes: &[u8], place: &Path) -> Result<(), Error> {
        self.ranges = Some(self.added(RANGES, bytes, place)?);
        Ok(())
    }

    fn added(&self, name: &str, bytes: &[u8], place: &Path) -> Result<Placing, Error> {
        let failed = |cause: io::Error| Error::io(format!("cannot write {}", shown(place)), &cause);
        let made = self.directory.join(name);
        write_file(&made, bytes).map_err(failed)?;
        // A link stays one.
        Ok(Placing::of(made, &behind_links(place).map_err(failed)?))
    }

    /// Gives the graphs, their external data, the ranges and the report their names, all together.
    ///
    /// # Errors
    /// The system's. What was there before is there again then.
    pub fn place(self, claim: Claim, sync: bool) -> Result<(), Error> {
        let mut files: Vec<Placing> = self.graphs.iter().flat_map(StagedGraph::files).collect();
        files.extend(self.ranges);
        files.extend(self.report);
        if sync {
            self.graphs.iter().try_for_each(|graph| sync_written(&graph.path))?;
        }
        Ok(claim.place(&files, durability(sync))?)
    }

    /// The same in a directory of their own, which is made if it is not there.
    ///
    /// # Errors
    /// As [`place`](Self::place).
    pub fn place_all(self, claim: Claim, outputs: &GraphOutputs, sync: bool) -> Result<(), Error> {
        if !outputs.has_directory() || outputs.named.is_dir() {
            return self.place(claim, sync);
        }
        let directory = &outputs.named;
        let failed = |cause: io::Error| Error::io(format!("cannot create {}", shown(directory)), &cause);
        fs::create_dir(directory).map_err(failed)?;
        // Nothing of a failed run stays under a final name; what is not empty is somebody else's.
        self.place(claim, sync).inspect_err(|_| _ = fs::remove_dir(directory))
    }

    /// Gives the report alone its name: the graphs were rejected.
    ///
    /// # Errors
    /// System errors.
    pub fn place_report(self, claim: Claim, sync: bool) -> Result<(), Error> {
        let files: Vec<Placing> = self.report.into_iter().collect();
        Ok(claim.place(&files, durability(sync))?)
    }
}

impl StagedGraph {
    /// What gets a name, and what is vacated before: at no moment does a graph refer to the data of another.
    fn files(&self) -> Vec<Placing> {
        let (data, own) = (external_data_path(&self.output), external_data_path(&self.path));
        let vacated = |place: &Path| Placing { made: None, place: place.to_owned() };
        let mut files: Vec<Placing> = self.output.exists().then(|| vacated(&self.output)).into_iter().collect();
        match own.exists() {
            true => files.push(Placing::of(own, &data)),
            false => files.extend(data.exists().then(|| vacated(&data))),
        }
        files.push(Placing::of(self.path.clone(), &self.output));
        files
    }
}

fn durability(sync: bool) -> Durability {
    if sync { Durability::Disk } else { Durability::Process }
}

/// Returns the claim. After an error no unfinished files are left beside the output, except results that a rerun resumes from: if
/// the user stopped it, or a system call failed. Those of a source that was cut short or rewritten are not sound.
///
/// # Errors
/// The error of the work.
pub fn made_or_left<T>(claim: Claim, made: Result<T, Error>, is_sound: bool) -> Result<(T, Claim), Error> {
    match made {
        Ok(made) => Ok((made, claim)),
        Err(error) => {
            let resumes = is_sound && matches!(error.kind, ErrorKind::Interrupted | ErrorKind::System);
            // The error of the work is the one to report.
            let _ = claim.leave(resumes);
            Err(error)
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn graph_whose_name_is_not_utf8_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let output = directory.path().join(OsStr::from_bytes(b"v\xff.onnx"));
        let claim = Claim::take(&output, &Default::default()).unwrap();
        let mut staged = Staged::begin(&claim, [output.as_path()]).unwrap();
        let cancel = CancelToken::default();
        staged.write(ModelProto::default(), &output, ExternalData::Auto, &cancel).unwrap();
        staged.place(claim, false).unwrap();
        assert!(output.is_file());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
