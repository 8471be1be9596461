//! The file of measurements, which later searches of the same model on the same data reuse: those that were interrupted, whose
//! measurements are kept block by block, and those with another target or further options.

use crate::error::{Error, ErrorKind};
use crate::text::shown;
use kvant_checkpoint::sensitivity::MixError;
use kvant_container::{Remedy, write_file};
use kvant_forward::evaluation::Comparison;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The version of the file.
const VERSION: u32 = 1;

/// The distance of a mix from the model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredMix {
    /// The mean Kullback-Leibler divergence from the model, in nats.
    pub kl: f64,
    /// Its standard error; none of an estimate.
    pub kl_error: Option<f64>,
    /// The share of tokens for which the likeliest token is the model's; none of an estimate.
    pub top1_agreement: Option<f64>,
}

impl MeasuredMix {
    /// The model itself.
    pub(super) const FLOAT: MeasuredMix = MeasuredMix { kl: 0.0, kl_error: Some(0.0), top1_agreement: Some(1.0) };

    /// An estimate.
    pub(super) fn estimated(kl: f64) -> MeasuredMix {
        MeasuredMix { kl, kl_error: None, top1_agreement: None }
    }
}

impl From<&Comparison> for MeasuredMix {
    fn from(found: &Comparison) -> MeasuredMix {
        // The error of a single token is not a number, which JSON lacks.
        let error = Some(found.kl_mean.error).filter(|error| error.is_finite());
        MeasuredMix { kl: found.kl_mean.value, kl_error: error, top1_agreement: Some(found.top1_agreement) }
    }
}

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Contents {
    version: u32,
    /// A hash of the model, the data and how they are run.
    key: String,
    /// By group and option.
    sensitivities: BTreeMap<String, BTreeMap<String, MeasuredMix>>,
    /// Whole mixes, by a hash of their recipe and what they were measured on.
    mixes: BTreeMap<String, MeasuredMix>,
}

/// The file, or only what it would hold.
#[derive(Debug)]
pub(super) struct KeptFile {
    path: Option<PathBuf>,
    contents: Contents,
}

impl KeptFile {
    /// What an earlier search has kept under this key; nothing without a file. A file of another model or other data is replaced only if
    /// that is wanted.
    ///
    /// # Errors
    /// Files of something else.
    pub(super) fn open(path: Option<PathBuf>, key: &str, overwrite: bool) -> Result<KeptFile, Error> {
        let none =
            Contents { version: VERSION, key: key.to_owned(), sensitivities: BTreeMap::new(), mixes: BTreeMap::new() };
        let Some(file) = path.as_ref().filter(|path| path.exists()) else {
            return Ok(KeptFile { path, contents: none });
        };
        let failed = |cause| Error::system(format!("cannot read {}: {cause}", shown(file)));
        let text = fs::read_to_string(file).map_err(failed)?;
        match serde_json::from_str::<Contents>(&text) {
            Ok(contents) if contents.version == VERSION && contents.key == key => Ok(KeptFile { path, contents }),
            _ if overwrite || text.is_empty() => Ok(KeptFile { path, contents: none }),
            read => {
                let what = match read {
                    Ok(_) => "holds sensitivities of another model, or on other data",
                    Err(_) => "holds no sensitivities",
                };
                let remedies =
                    vec![Remedy::setting("sensitivities", "name another file with ‹sensitivities›"), Remedy::Overwrite];
                Err(Error::new(ErrorKind::Invalid, format!("{} {what}", shown(file))).with_remedies(remedies))
            }
        }
    }

    /// The path.
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What is known of a group in an option.
    pub(super) fn single(&self, group: &str, option: &str) -> Option<MeasuredMix> {
        self.contents.sensitivities.get(group)?.get(option).copied()
    }

    /// What is known of a mix.
    pub(super) fn mix(&self, key: &str) -> Option<MeasuredMix> {
        self.contents.mixes.get(key).copied()
    }

    /// Keeps the measurement of a group in an option.
    ///
    /// # Errors
    /// System errors.
    pub(super) fn keep_single(&mut self, group: &str, option: &str, found: MeasuredMix) -> Result<(), MixError> {
        self.contents.sensitivities.entry(group.to_owned()).or_default().insert(option.to_owned(), found);
        self.write()
    }

    /// Keeps the measurement of a mix.
    ///
    /// # Errors
    /// System errors.
    pub(super) fn keep_mix(&mut self, key: String, found: MeasuredMix) -> Result<(), MixError> {
        self.contents.mixes.insert(key, found);
        self.write()
    }

    fn write(&self) -> Result<(), MixError> {
        let Some(path) = &self.path else { return Ok(()) };
        // Serializing numbers and names does not fail.
        let text = serde_json::to_string_pretty(&self.contents).unwrap_or_default();
        write_file(path, (text + "\n").as_bytes()).map_err(|cause| MixError::Keep { file: shown(path), cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_measurements_are_read_back_under_their_key_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.json");
        let found = MeasuredMix { kl: 0.25, kl_error: Some(0.01), top1_agreement: Some(0.9) };
        let open = |key: &str, overwrite| KeptFile::open(Some(path.clone()), key, overwrite);
        let mut kept = open("key", false).unwrap();
        kept.keep_single("group", "int4", found).unwrap();
        kept.keep_mix("mix".to_owned(), found).unwrap();
        let again = open("key", false).unwrap();
        assert_eq!((again.single("group", "int4"), again.mix("mix")), (Some(found), Some(found)));
        assert_eq!((again.single("group", "int8"), again.mix("other")), (None, None));
        let error = open("other", false).unwrap_err();
        assert!(error.message.contains("another model") && error.remedies().contains(&Remedy::Overwrite));
        assert_eq!(open("other", true).unwrap().mix("mix"), None);
        fs::write(&path, "{}").unwrap();
        assert!(open("key", false).unwrap_err().message.contains("holds no sensitivities"));
    }

    #[test]
    fn nothing_is_written_without_a_file() {
        let mut kept = KeptFile::open(None, "key", false).unwrap();
        kept.keep_mix("mix".to_owned(), MeasuredMix::FLOAT).unwrap();
        assert_eq!((kept.mix("mix"), kept.path()), (Some(MeasuredMix::FLOAT), None));
    }
}
