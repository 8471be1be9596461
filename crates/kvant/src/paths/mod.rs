//! The paths that a run reads and writes: their names, the rule that keeps them apart, and records beside an output.

mod name;
mod page_file;
pub mod record;
mod rule;

pub use name::{OutputKind, check_name, full_path, tell_of_name};
pub use page_file::PageFormat;
#[cfg(test)]
pub(crate) use page_file::is_page;
pub(crate) use page_file::{MARK, not_a_page, page_format};
pub use rule::{
    FileKind, MODEL, Paths, check_job, data_file, follow, named, refuse_existing, refuse_missing, refuse_other_file,
    refuse_stray_data,
};
pub(crate) use rule::{MAX_RANGES_LEN, protect};

use crate::error::{Error, ErrorKind};
use crate::text::shown;
use kvant_container::Remedy;
use std::path::Path;

/// Refuses a directory where a single text is required.
///
/// # Errors
/// Names the option.
pub fn refuse_directory(option: &str, text: &Path) -> Result<(), Error> {
    if !text.is_dir() {
        return Ok(());
    }
    let message = format!("{option} {} is a directory", shown(text));
    Err(Error::new(ErrorKind::Usage, message).with_hint(Some("name one text file, in UTF-8".to_owned())))
}

/// The error for a job without an output directory.
pub fn no_directory() -> Error {
    Error::new(ErrorKind::Usage, "no output directory is given")
        .with_remedies(vec![Remedy::setting("output", "give one with ‹output›")])
}

/// The error for a job without an output file.
pub fn no_file() -> Error {
    Error::new(ErrorKind::Usage, "no output file is given")
        .with_remedies(vec![Remedy::setting("output", "give one with ‹output›")])
}
