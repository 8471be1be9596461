//! Ranges of a graph's tensors in files of other tools: the file that a job reads, and the one that it writes.

use crate::error::{Error, ErrorKind};
use crate::job::Job;
use crate::paths::MAX_RANGES_LEN;
use crate::text::shown;
use kvant_container::Remedy;
use kvant_onnx::quantize::Prepared;
use kvant_onnx::ranges::{FORMATS, RangesFile, RangesFormat};
use serde::Serialize;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use xxhash_rust::xxh3::xxh3_128;

/// Reads the file of ranges of a job.
///
/// # Errors
/// The system's; a file that is none, with what is wrong.
pub fn given(job: &Job) -> Result<Option<Arc<RangesFile>>, Error> {
    let Some(path) = &job.recipe.graph.ranges else { return Ok(None) };
    let failed = |cause| Error::io(format!("cannot read {}", shown(path)), &cause);
    let mut bytes = Vec::new();
    let mut file = File::open(path).map_err(failed)?.take(MAX_RANGES_LEN + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_RANGES_LEN {
        let message =
            format!("{}: it has more than {} MB, and is no file of ranges", shown(path), MAX_RANGES_LEN >> 20);
        return Err(Error::new(ErrorKind::Invalid, message));
    }
    let hash = format!("{:032x}", xxh3_128(&bytes));
    Ok(Some(Arc::new(RangesFile::parse(path, &bytes, hash)?)))
}

/// The file of ranges that a job writes.
#[derive(Clone, Debug)]
pub struct SavedRanges {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub format: &'static RangesFormat,
}

impl SavedRanges {
    /// The file of a job, in the format that is asked for or that its name means.
    ///
    /// # Errors
    /// A name that means no format; a format without a file.
    pub fn of(job: &Job) -> Result<Option<SavedRanges>, Error> {
        let Some(path) = &job.sinks.save_ranges else {
            return match job.sinks.ranges_format {
                None => Ok(None),
                Some(_) => {
                    let error = Error::new(ErrorKind::Usage, "‹ranges-format› has no effect without ‹save-ranges›");
                    Err(error.with_remedies(vec![Remedy::leave_out("ranges-format")]))
                }
            };
        };
        let format = job.sinks.ranges_format.or_else(|| RangesFormat::of_path(path)).ok_or_else(|| {
            let endings: Vec<String> =
                FORMATS.iter().flat_map(|format| format.endings).map(|ending| format!(".{ending}")).collect();
            let names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
            let message = format!("{}: its name does not say a format of ranges", shown(path));
            Error::new(ErrorKind::Usage, message).with_remedies(vec![
                Remedy::setting("ranges-format", format!("name one with ‹ranges-format›: {}", names.join(", "))),
                Remedy::text(format!("end the name in {}", endings.join(" or "))),
            ])
        })?;
        Ok(Some(SavedRanges { path: path.clone(), format }))
    }

    /// Refuses a file that would have no ranges, or that cannot hold those of the graph.
    ///
    /// # Errors
    /// Names the setting, or the tensor.
    pub fn check(&self, prepared: &Prepared) -> Result<(), Error> {
        if prepared.has_ranges() {
            return Ok(prepared.check_ranges_format(self.format)?);
        }
        let message = "‹save-ranges› has nothing to write: no activation of the result has a static scale";
        let error = Error::new(ErrorKind::Usage, message);
        let preset = Remedy::setting("preset", "choose a preset with calibrated activations, e.g. ‹preset› A8W8");
        Err(error.with_remedies(vec![Remedy::leave_out("save-ranges"), preset]))
    }
}

/// The use of a file of ranges in place of data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsedRanges {
    /// Its path.
    pub path: String,
    /// Its format.
    pub format: &'static str,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of all its bytes.
    pub xxh3_128: String,
    /// Its tensors.
    pub tensors: usize,
    /// Activations and weights that have its ranges.
    pub used: usize,
}

impl UsedRanges {
    /// The file that a graph is prepared with.
    pub fn of(prepared: &Prepared) -> Option<UsedRanges> {
        let file = prepared.recipe.ranges.as_ref()?;
        Some(UsedRanges {
            path: file.path.to_string_lossy().into_owned(),
            format: file.format,
            xxh3_128: file.xxh3_128.clone(),
            tensors: file.table.len(),
            used: prepared.placement.given.used,
        })
    }
}

impl std::fmt::Display for UsedRanges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let used = crate::text::counts::number(self.used, "tensor");
        write!(f, "ranges of {used} from {}", shown(Path::new(&self.path)))
    }
}
