//! What calibration found, kept beside a file or a graph that has no directory of its own: `model.gguf` has
//! `model.calibration.json`. A checkpoint holds it as `calibration.json`.

use super::paths::refuse_existing;
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Its name in a checkpoint.
const IN_CHECKPOINT: &str = "calibration.json";

/// Its name beside an output.
pub(super) fn beside(output: &Path) -> PathBuf {
    output.with_extension(IN_CHECKPOINT)
}

/// Refuses a file of another kind in its place, and a record where nothing is to be replaced.
///
/// # Errors
/// Names the file.
pub fn check(output: &Path, overwrite: bool) -> Result<(), Failure> {
    let path = beside(output);
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    if is_record(&path) {
        return refuse_existing(&path, overwrite);
    }
    let message = format!("{} is in the way: it is no record of a calibration", printable(&path.to_string_lossy()));
    Err(Failure::new(Kind::Invalid, message).with_hint(Some("move it away, or choose another name with -o".to_owned())))
}

fn is_record(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    serde_json::from_slice::<Value>(&bytes)
        .is_ok_and(|record| record["data"].is_object() && record["report"].is_object())
}

/// Copies the record of a checkpoint, if it has one, to where it stands beside an output that was made of it.
///
/// # Errors
/// The system's.
pub fn keep(checkpoint: &Path, output: &Path) -> Result<(), Failure> {
    let (from, to) = (checkpoint.join(IN_CHECKPOINT), beside(output));
    let unfinished = to.with_extension("json.partial");
    let copied = fs::copy(&from, &unfinished).and_then(|_| fs::rename(&unfinished, &to));
    match copied {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound && !from.exists() => Ok(()),
        Err(cause) => Err(Failure::system(format!("cannot write {}: {cause}", printable(&to.to_string_lossy())))),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_takes_the_place_of_a_record_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (checkpoint, output) = (dir.path().join("checkpoint"), dir.path().join("model.gguf"));
        fs::create_dir(&checkpoint).unwrap();
        keep(&checkpoint, &output).unwrap();
        assert!(!beside(&output).exists(), "nothing was calibrated");
        fs::write(checkpoint.join(IN_CHECKPOINT), r#"{"data": {}, "report": {}}"#).unwrap();
        keep(&checkpoint, &output).unwrap();
        assert!(dir.path().join("model.calibration.json").is_file() && check(&output, true).is_ok());
        assert!(check(&output, false).unwrap_err().message.contains("exists already"));
        fs::write(beside(&output), "notes").unwrap();
        assert!(check(&output, true).unwrap_err().message.contains("no record"));
    }
}
