//! Positions of declared tensors in the files of an output, independent of the format. A [`Writer`] needs nothing else.
//! No formats here; those make it.
//!
//! [`Writer`]: crate::Writer

use std::ops::Range;

/// The position of a declared tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The number of its file.
    pub shard: usize,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

/// One file of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputFile {
    /// Its name.
    pub name: String,
    /// The bytes in front of the tensors.
    pub header: Vec<u8>,
    /// The length of the whole file in bytes.
    pub len: u64,
}

/// The files of an output, and where in them each tensor lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// The files that hold tensors.
    pub files: Vec<OutputFile>,
    /// The tensors' names, for messages.
    pub names: Vec<String>,
    /// The tensors' places.
    pub places: Vec<Place>,
    /// The name and the contents of a file that says which tensor is where, in formats that have one.
    pub index: Option<(String, String)>,
}

impl Geometry {
    /// The bytes of all files that hold tensors together, headers included.
    pub fn disk_size(&self) -> u64 {
        self.files.iter().fold(0, |sum, file| sum.saturating_add(file.len))
    }
}

/// The tensors of each file, which are filled in order up to `max_size` bytes; a larger tensor has a file to itself. Empty tensors open no
/// file.
pub(crate) fn fill_files(sizes: &[u64], max_size: u64) -> Vec<Range<usize>> {
    let (mut files, mut start, mut filled) = (Vec::new(), 0, 0u64);
    for (tensor, &size) in sizes.iter().enumerate() {
        if size > 0 && filled > 0 && filled.saturating_add(size) > max_size {
            files.push(start..tensor);
            (start, filled) = (tensor, 0);
        }
        filled = filled.saturating_add(size);
    }
    files.push(start..sizes.len());
    files
}
