//! The calibration record, kept beside a file or a graph without its own directory: `model.gguf` has
//! `model.calibration.json`. A checkpoint holds it as `calibration.json`.

use super::rule::refuse_existing;
use crate::error::{Error, ErrorKind};
use crate::text::shown;
use kvant_container::{Remedy, write_file};
use serde_json::Value;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Its name in a checkpoint.
const IN_CHECKPOINT: &str = "calibration.json";

/// Its name beside an output.
pub fn beside(output: &Path) -> PathBuf {
    output.with_extension(IN_CHECKPOINT)
}

/// Refuses a file of another kind in its place, and an existing record unless it may be replaced.
///
/// # Errors
/// Names the file.
pub fn check(output: &Path, overwrite: bool) -> Result<(), Error> {
    let path = beside(output);
    if path.symlink_metadata().is_err() {
        return Ok(());
    }
    if is_record(&path) {
        return refuse_existing(&path, overwrite);
    }
    let message = format!("{} exists and is not a record of calibration", shown(&path));
    Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![
        Remedy::text("move it away"),
        Remedy::setting("output", "choose another name with ‹output›"),
    ]))
}

fn is_record(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    serde_json::from_slice::<Value>(&bytes)
        .is_ok_and(|record| record["data"].is_object() && record["report"].is_object())
}

/// Copies the record of a checkpoint, if it has one, to its place beside an output converted from it.
///
/// # Errors
/// A file that appeared since [`check`], unless it is the same record; system errors.
pub fn keep(checkpoint: &Path, output: &Path, overwrite: bool) -> Result<(), Error> {
    let (from, to) = (checkpoint.join(IN_CHECKPOINT), beside(output));
    let failed = |cause: io::Error| Error::io(format!("cannot write {}", shown(&to)), &cause);
    let record = match fs::read(&from) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        record => record.map_err(failed)?,
    };
    if fs::read(&to).is_ok_and(|there| there == record) {
        return Ok(());
    }
    check(output, overwrite)?;
    write_file(&to, &record).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_record_replaces_only_a_record() {
        let dir = tempfile::tempdir().unwrap();
        let (checkpoint, output) = (dir.path().join("checkpoint"), dir.path().join("model.gguf"));
        fs::create_dir(&checkpoint).unwrap();
        keep(&checkpoint, &output, false).unwrap();
        assert!(!beside(&output).exists(), "nothing was calibrated");
        fs::write(checkpoint.join(IN_CHECKPOINT), r#"{"data": {}, "report": {}}"#).unwrap();
        keep(&checkpoint, &output, false).unwrap();
        keep(&checkpoint, &output, false).unwrap();
        assert!(dir.path().join("model.calibration.json").is_file() && check(&output, true).is_ok());
        assert!(check(&output, false).unwrap_err().message.contains("exists already"));
        fs::write(beside(&output), "notes").unwrap();
        assert!(check(&output, true).unwrap_err().message.contains("not a record"));
        assert!(keep(&checkpoint, &output, true).is_err());
        assert_eq!(fs::read(beside(&output)).unwrap(), b"notes");
    }
}
