//! The data formats and their file extensions. Does not read files.

use super::CalibrationDataError;
use super::document::{RowSink, Sink};
use super::fields;
use super::source::{array, json, json_lines, parquet, tensors, text};
use std::path::{Path, PathBuf};

/// Hands the documents of a file to a sink, until that has enough or the file ends.
type ReadDocuments = fn(&DataFile, &Reading<'_>, &mut Sink<'_>) -> Result<(), CalibrationDataError>;

/// Hands out the rows of a file with their fields, in the same way.
type ReadRows = fn(&DataFile, &Reading<'_>, &mut RowSink<'_>) -> Result<(), CalibrationDataError>;

/// What a file holds, and the function that reads it.
enum Content {
    /// Documents without fields: text or tokens.
    Documents(ReadDocuments),
    /// Rows with fields.
    Rows(ReadRows),
}

/// A format of files.
pub(super) struct Format {
    /// Its file extension, which is also its name.
    ending: &'static str,
    /// Whether it may stand in a compressed stream.
    compressible: bool,
    content: Content,
}

impl Format {
    /// Hands the documents of a file to a sink, until that has enough or the file ends.
    pub(super) fn read(
        &self,
        file: &DataFile,
        reading: &Reading<'_>,
        sink: &mut Sink<'_>,
    ) -> Result<(), CalibrationDataError> {
        match self.content {
            Content::Documents(read) => read(file, reading, sink),
            Content::Rows(read) => read(file, reading, &mut fields::documents(reading.column, sink)),
        }
    }

    /// The function that reads the rows of a file with their fields; `None` where they have none.
    pub(super) fn rows(&self) -> Option<ReadRows> {
        match self.content {
            Content::Documents(_) => None,
            Content::Rows(read) => Some(read),
        }
    }
}

/// The formats. `.json` may also hold one JSON value after another, as `.jsonl` does.
static FORMATS: [Format; 7] = [
    Format { ending: "txt", compressible: true, content: Content::Documents(text::read) },
    Format { ending: "jsonl", compressible: true, content: Content::Rows(json_lines::rows) },
    Format { ending: "ndjson", compressible: true, content: Content::Rows(json_lines::rows) },
    Format { ending: "json", compressible: true, content: Content::Rows(json::rows) },
    Format { ending: "parquet", compressible: false, content: Content::Rows(parquet::rows) },
    Format { ending: "npy", compressible: false, content: Content::Documents(array::read) },
    Format { ending: "safetensors", compressible: false, content: Content::Documents(tensors::read) },
];

/// The compression of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    /// Not at all.
    None,
    /// gzip, of one or more members.
    Gzip,
    /// Zstandard, of one or more frames.
    Zstandard,
}

/// The endings of compressed files.
const COMPRESSIONS: [(&str, Compression); 2] = [("gz", Compression::Gzip), ("zst", Compression::Zstandard)];

/// The amount to read, and the field of a row.
pub(super) struct Reading<'a> {
    /// The most bytes of the file, decompressed.
    pub max_bytes: u64,
    /// The most bytes of a text that is one document; of a longer one, so much of its beginning is read.
    pub max_document: u64,
    /// The field that holds the text.
    pub column: Option<&'a str>,
    /// Fields of which every row has some, of rows that are no documents: then all of their fields are read.
    pub marks: Option<&'a [&'a str]>,
}

impl Reading<'_> {
    /// Returns whether an object with this field is a row, and not an object that holds a list of them.
    pub(super) fn marks_row(&self, field: &str) -> bool {
        self.marks.map_or_else(|| fields::is_relevant(field, self.column), |marks| marks.contains(&field))
    }

    /// Returns whether a field is read.
    #[cfg(feature = "parquet")]
    pub(super) fn reads(&self, field: &str) -> bool {
        self.marks.is_some() || fields::is_relevant(field, self.column)
    }
}

/// A file to be read.
pub(super) struct DataFile {
    /// Its path.
    pub path: PathBuf,
    /// Its kind.
    pub format: &'static Format,
    /// Its compression.
    pub compression: Compression,
}

impl DataFile {
    /// The file by its name; `None` for an unknown extension.
    fn of(path: PathBuf) -> Option<DataFile> {
        // The extension is plain text, whatever the rest of the name is.
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let (stem, last) = name.rsplit_once('.')?;
        let compression = COMPRESSIONS.iter().find(|(ending, _)| *ending == last).map(|&(_, compression)| compression);
        let ending = if compression.is_some() { stem.rsplit_once('.')?.1 } else { last };
        let suits = |format: &&Format| format.ending == ending && (format.compressible || compression.is_none());
        let format = FORMATS.iter().find(suits)?;
        Some(DataFile { path, format, compression: compression.unwrap_or(Compression::None) })
    }

    /// The file by its name, which is text where its extension is unknown; `None` for compressed ones of which nothing else is known.
    pub(super) fn or_text(path: PathBuf) -> Option<DataFile> {
        let is_compressed = || {
            let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
            COMPRESSIONS.iter().any(|(known, _)| *known == ending)
        };
        let text = FORMATS.iter().find(|format| format.ending == "txt").filter(|_| !is_compressed());
        let text = text.map(|format| DataFile { path: path.clone(), format, compression: Compression::None });
        DataFile::of(path).or(text)
    }

    /// The size of a text that is one document; `None` if compressed, or for other files.
    pub(super) fn text_bytes(&self) -> Option<u64> {
        let size = || std::fs::metadata(&self.path).map_or(0, |metadata| metadata.len());
        let is_compressed = self.compression != Compression::None;
        (self.format.ending == "txt").then(|| if is_compressed { u64::MAX } else { size() })
    }

    /// Returns whether its rows have fields, or it has tensors with names.
    pub(super) fn has_fields(&self) -> bool {
        !["txt", "npy"].contains(&self.format.ending)
    }

    /// Returns whether reading the first row may require more than the beginning.
    pub(super) fn is_read_whole(&self) -> bool {
        let rows = ["txt", "jsonl", "ndjson", "parquet"];
        !rows.contains(&self.format.ending)
    }

    /// The name without its directory.
    pub(super) fn name(&self) -> String {
        self.path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// The format with its compression, such as `jsonl.zst`.
    pub(super) fn format_name(&self) -> String {
        let ending = COMPRESSIONS.iter().find(|(_, compression)| *compression == self.compression);
        ending.map_or(self.format.ending.to_owned(), |(ending, _)| format!("{}.{ending}", self.format.ending))
    }
}

/// The resolved files: each given file, and those of given directories with a known extension, by name. Files in
/// deeper directories and hidden ones are left out.
pub(super) fn resolve(paths: &[PathBuf]) -> Result<Vec<DataFile>, CalibrationDataError> {
    let mut files = Vec::new();
    for path in paths {
        let unreadable = |cause| CalibrationDataError::Read { file: path.clone(), cause };
        if std::fs::metadata(path).map_err(unreadable)?.is_dir() {
            files.extend(in_directory(path)?);
        } else {
            let unknown = || CalibrationDataError::UnknownFormat { file: path.clone() };
            files.push(DataFile::of(path.clone()).ok_or_else(unknown)?);
        }
    }
    Ok(files)
}

fn in_directory(directory: &Path) -> Result<Vec<DataFile>, CalibrationDataError> {
    let unreadable = |cause| CalibrationDataError::Read { file: directory.to_path_buf(), cause };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(unreadable)? {
        paths.push(entry.map_err(unreadable)?.path());
    }
    paths.sort();
    let hidden = |path: &PathBuf| path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
    let shown = paths.into_iter().filter(|path| !hidden(path) && path.is_file());
    let files: Vec<DataFile> = shown.filter_map(DataFile::of).collect();
    if files.is_empty() {
        return Err(CalibrationDataError::NoFiles { directory: directory.to_path_buf() });
    }
    Ok(files)
}

/// A sentence that names the formats.
pub(super) fn known_formats() -> String {
    let with = |compressible| {
        let endings = FORMATS.iter().filter(|format| format.compressible == compressible);
        endings.map(|format| format!(".{}", format.ending)).collect::<Vec<_>>().join(", ")
    };
    format!("data is read from files named {} (each also with .gz or .zst), {}", with(true), with(false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    fn name_of(path: &str) -> Option<String> {
        DataFile::of(PathBuf::from(path)).map(|file| file.format_name())
    }

    #[test]
    fn data_format_follows_the_file_name() {
        let known = ["a/b.txt", "b.TXT", "c.jsonl.zst", "d.ndjson.gz", "e.json", "f.v1.parquet", "g.npy"];
        let formats = ["txt", "txt", "jsonl.zst", "ndjson.gz", "json", "parquet", "npy"];
        assert_eq!(known.map(|path| name_of(path).unwrap()), formats);
        for unknown in ["a", "a.pt", "a.gz", "a.npy.gz", "a.parquet.zst", "txt", ".gz"] {
            assert_eq!(name_of(unknown), None, "{unknown}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn data_format_of_a_name_that_is_not_utf8_follows_its_extension() {
        use std::os::unix::ffi::OsStrExt;
        let path = PathBuf::from(std::ffi::OsStr::from_bytes(b"caf\xe9.jsonl.gz"));
        assert_eq!(DataFile::of(path).map(|file| file.format_name()).as_deref(), Some("jsonl.gz"));
    }

    #[test]
    fn directories_list_their_files_by_name() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b.txt", "a.jsonl", ".hidden.txt", "README.md"] {
            std::fs::write(dir.path().join(name), "x").unwrap();
        }
        std::fs::create_dir(dir.path().join("c.txt")).unwrap();
        let files = resolve(&[dir.path().join("b.txt"), dir.path().to_path_buf()]).unwrap();
        let names: Vec<String> = files.iter().map(DataFile::name).collect();
        assert_eq!(names, ["b.txt", "a.jsonl", "b.txt"]);
    }

    #[test]
    fn unreadable_data_files_are_refused_first() {
        let dir = tempfile::tempdir().unwrap();
        let error = |path: PathBuf| resolve(&[path]).err().unwrap();
        assert!(matches!(error(dir.path().join("no.txt")), CalibrationDataError::Read { .. }));
        assert!(matches!(error(dir.path().to_path_buf()), CalibrationDataError::NoFiles { .. }));
        std::fs::write(dir.path().join("a.pt"), "x").unwrap();
        let unknown = error(dir.path().join("a.pt"));
        assert!(matches!(unknown, CalibrationDataError::UnknownFormat { .. }));
        assert!(unknown.hint().unwrap().contains(".txt, .jsonl"), "{unknown}");
    }
}
