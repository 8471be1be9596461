//! A graph that is complete and has no name yet: it is opened and measured in the directory where its output is made, and gets its
//! name, with its external data and a report, as the last step.

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind};
use crate::events::Reporter;
use kvant_container::onnx::{ExternalData, ModelProto, external_data_path, sync_written, write_unless};
use kvant_container::unfinished::{Claim, Placing};
use kvant_container::{Durability, behind_links, write_file};
use std::path::{Path, PathBuf};

/// The report until it has its name.
const REPORT: &str = "report.json";

/// A graph and its external data under the names that they will have, in `NAME.partial/`.
pub struct Staged {
    path: PathBuf,
    output: PathBuf,
    report: Option<Placing>,
}

impl Staged {
    /// Writes a graph for an output that this run has claimed.
    ///
    /// # Errors
    /// The system's; a graph that is too large for one file; a user who asks to stop.
    pub fn write(
        model: ModelProto,
        claim: &Claim,
        external: ExternalData,
        cancel: &CancelToken,
    ) -> Result<Staged, Error> {
        let output = claim.target().to_owned();
        let names = [output.clone(), external_data_path(&output), REPORT.into()];
        let name = |path: PathBuf| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let directory = claim.staging(names.map(name).into())?;
        // External data are found by the name of the graph: both have the names they will have.
        let path = directory.join(output.file_name().unwrap_or_default());
        write_unless(model, &path, external, cancel.flag())?;
        Ok(Staged { path, output, report: None })
    }

    /// Where the graph is for now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds a report, which gets its name with the graph.
    ///
    /// # Errors
    /// The system's.
    pub fn add_report(&mut self, text: &str, place: &Path) -> Result<(), Error> {
        let failed = |e: std::io::Error| Error::system(format!("cannot write {}: {e}", place.display()));
        let made = self.path.with_file_name(REPORT);
        write_file(&made, text.as_bytes()).map_err(failed)?;
        // A link stays one.
        self.report = Some(Placing::of(made, &behind_links(place).map_err(failed)?));
        Ok(())
    }

    /// Gives the graph, its external data and the report their names.
    ///
    /// # Errors
    /// The system's. What was there before is there again then.
    pub fn place(self, claim: Claim, sync: bool) -> Result<(), Error> {
        let (data, own) = (external_data_path(&self.output), external_data_path(&self.path));
        let vacated = |place: &Path| Placing { made: None, place: place.to_owned() };
        // At no moment does a graph refer to the data of another.
        let mut files: Vec<Placing> = self.output.exists().then(|| vacated(&self.output)).into_iter().collect();
        match own.exists() {
            true => files.push(Placing::of(own, &data)),
            false => files.extend(data.exists().then(|| vacated(&data))),
        }
        files.push(Placing::of(self.path.clone(), &self.output));
        files.extend(self.report);
        if sync {
            sync_written(&self.path)?;
        }
        Ok(claim.place(&files, durability(sync))?)
    }

    /// Gives the report alone its name: the graph was rejected.
    ///
    /// # Errors
    /// The system's.
    pub fn place_report(self, claim: Claim, sync: bool) -> Result<(), Error> {
        let files: Vec<Placing> = self.report.into_iter().collect();
        Ok(claim.place(&files, durability(sync))?)
    }
}

fn durability(sync: bool) -> Durability {
    if sync { Durability::Disk } else { Durability::Process }
}

/// The claim with what was made. After an error nothing unfinished stays beside the output, but results that a rerun resumes with: where
/// the user has stopped it, or the system refused something.
///
/// # Errors
/// That of the work.
pub fn made_or_left<T>(claim: Claim, made: Result<T, Error>, reporter: &Reporter<'_>) -> Result<(T, Claim), Error> {
    match made {
        Ok(made) => Ok((made, claim)),
        Err(error) => {
            // The result of a source that was cut short is useless.
            let is_sound = reporter.refuse_lost().is_ok();
            let resumes = is_sound && matches!(error.kind, ErrorKind::Interrupted | ErrorKind::System);
            // The error of the work is the one to report.
            let _ = claim.leave(resumes);
            Err(error)
        }
    }
}
