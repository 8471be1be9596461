//! Names of reports for people, and which files are such reports.

use crate::error::{Error, ErrorKind};
use crate::text::shown;
use std::io::Read;
use std::path::Path;

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// One HTML file.
    Html,
    /// Markdown, for a model card.
    Markdown,
}

impl PageFormat {
    /// The format by the end of a file's name: `.html`, `.htm` or `.md`.
    pub fn of(path: &Path) -> Option<PageFormat> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "html" | "htm" => Some(PageFormat::Html),
            "md" => Some(PageFormat::Markdown),
            _ => None,
        }
    }
}

/// What a page that Kvant wrote has near its beginning, so that only such pages are replaced.
pub(crate) const MARK: &str = "kvant report";

/// Returns whether a file is a page that Kvant wrote.
pub fn is_page(path: &Path) -> bool {
    // Bytes, since the end of what is read may be in the middle of a character.
    let mut beginning = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(400).read_to_end(&mut beginning));
    read.is_ok() && beginning.windows(MARK.len()).any(|bytes| bytes == MARK.as_bytes())
}

/// The format of a report by its name.
///
/// # Errors
/// *Usage* for names that end in none of .html and .md.
pub(crate) fn page_format(path: &Path) -> Result<PageFormat, Error> {
    PageFormat::of(path).ok_or_else(|| {
        let message = format!("{}: reports are pages in HTML or Markdown", shown(path));
        Error::new(ErrorKind::Usage, message).with_hint(Some(PAGES.to_owned()))
    })
}

const PAGES: &str = "name a file that ends in .html or .md";

/// The error for a report that is no page where no object in JSON is written either: that is of quantized graphs only.
pub(crate) fn not_a_page(path: &Path) -> Error {
    let is_json = path.extension().is_some_and(|end| end.eq_ignore_ascii_case("json"));
    match page_format(path) {
        Err(error) if !is_json => error,
        _ => Error::new(ErrorKind::Usage, "‹report› in JSON applies only to quantized ONNX graphs")
            .with_hint(Some(format!("{PAGES}; ‹json› prints the same object"))),
    }
}
