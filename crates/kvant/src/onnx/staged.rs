//! A graph that is written and has no name yet: it is opened and measured as it will be found, and gets its name if it passes.

use crate::cancel::CancelToken;
use crate::error::Error;
use kvant_container::onnx::{ExternalData, ModelProto, external_data_path, write_unless};
use kvant_container::{TEMPORARY, directory_of};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A graph and its external data in a directory of their own, beside where they will be. Both go with it.
pub struct Staged {
    directory: TempDir,
    path: PathBuf,
}

impl Staged {
    /// Writes a graph for a path.
    ///
    /// # Errors
    /// The system's; a graph that is too large for one file; a user who asks to stop.
    pub fn write(
        model: ModelProto,
        output: &Path,
        external: ExternalData,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let beside = directory_of(output);
        let directory = tempfile::Builder::new().prefix(TEMPORARY).tempdir_in(beside);
        let refused = |e: std::io::Error| Error::system(format!("cannot write in {}: {e}", beside.display()));
        let directory = directory.map_err(refused)?;
        // External data are found by the name of the graph: both have the names they will have.
        let path = directory.path().join(name_of(output));
        write_unless(model, &path, external, cancel.flag())?;
        Ok(Self { directory, path })
    }

    /// Where the graph is for now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it its name. A graph and external data that it replaces are taken away first: at no moment does a graph refer to data of
    /// another. If that fails they come back.
    ///
    /// # Errors
    /// The system's.
    pub fn persist(self, output: &Path) -> Result<(), Error> {
        let (data, own) = (external_data_path(output), external_data_path(&self.path));
        let failed = |e: std::io::Error| Error::system(format!("cannot rename to {}: {e}", output.display()));
        let set_aside = self.directory.path().join("replaced");
        let replaced = [output, &data].map(|path| (path, set_aside.join(name_of(path))));
        if own.exists() || data.exists() {
            std::fs::create_dir(&set_aside).map_err(failed)?;
            for (path, aside) in replaced.iter().filter(|(path, _)| path.exists()) {
                std::fs::rename(path, aside).map_err(failed)?;
            }
        }
        let named = match own.exists() {
            true => std::fs::rename(&own, &data),
            false => Ok(()),
        };
        let named = named.and_then(|()| std::fs::rename(&self.path, output));
        if named.is_err() {
            for (path, aside) in replaced.iter().filter(|(_, aside)| aside.exists()) {
                std::fs::rename(aside, path).map_err(failed)?;
            }
        }
        named.map_err(failed)?;
        self.directory.close().map_err(failed)
    }
}

fn name_of(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}
