//! Positions of declared tensors in the files of an output, independent of the format. A [`Writer`] needs nothing else.
//! No formats here; those make it.
//!
//! [`Writer`]: crate::Writer

use std::collections::BTreeSet;
use std::ops::Range;

/// Ends the name of a file that has a part of the tensors of another.
const PIECE: &str = ".piece";

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

impl OutputFile {
    /// Returns whether it has some of the tensors of a file: see [`Geometry::part`].
    pub fn is_piece(&self) -> bool {
        self.name.ends_with(PIECE)
    }
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

    /// The files of some of the tensors, which are indices here. A file is as it is here if all its tensors are among them. Of any other
    /// there is a piece, with the bytes of those tensors alone, one after the other. All other tensors are empty in it. There is no index.
    #[must_use]
    pub fn part(&self, tensors: &BTreeSet<usize>) -> Geometry {
        let mut places = vec![Place { shard: 0, offset: 0, len: 0 }; self.places.len()];
        let mut files = Vec::new();
        let mut of_files = vec![Vec::new(); self.files.len()];
        for (tensor, place) in self.places.iter().enumerate().filter(|(_, place)| place.len > 0) {
            of_files[place.shard].push(tensor);
        }
        for (file, all) in self.files.iter().zip(&of_files) {
            let inside: Vec<usize> = all.iter().copied().filter(|tensor| tensors.contains(tensor)).collect();
            let shard = files.len();
            if inside.is_empty() {
                continue;
            }
            if inside.len() == all.len() {
                inside.iter().for_each(|tensor| places[*tensor] = Place { shard, ..self.places[*tensor] });
                files.push(file.clone());
                continue;
            }
            let mut end = 0;
            for tensor in inside {
                places[tensor] = Place { shard, offset: end, len: self.places[tensor].len };
                end += places[tensor].len;
            }
            files.push(OutputFile { name: format!("{}{PIECE}", file.name), header: Vec::new(), len: end });
        }
        Geometry { files, names: self.names.clone(), places, index: None }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_has_whole_files_and_pieces_of_others() {
        let file = |name: &str, len| OutputFile { name: name.to_owned(), header: vec![1; 8], len };
        let place = |shard, offset, len| Place { shard, offset, len };
        let whole = Geometry {
            files: vec![file("a", 18), file("b", 28)],
            names: ["t", "u", "v", "w", "empty"].map(str::to_owned).to_vec(),
            places: vec![place(0, 8, 10), place(1, 8, 4), place(1, 12, 6), place(1, 18, 10), place(1, 28, 0)],
            index: Some(("index".to_owned(), String::new())),
        };
        let part = whole.part(&[0, 1, 3, 99].into());
        let piece = OutputFile { name: "b.piece".to_owned(), header: Vec::new(), len: 14 };
        assert_eq!(part.files, [file("a", 18), piece]);
        assert_eq!([part.files[0].is_piece(), part.files[1].is_piece()], [false, true]);
        assert_eq!(part.places[..4], [place(0, 8, 10), place(1, 0, 4), place(0, 0, 0), place(1, 4, 10)]);
        assert_eq!((part.index, part.names), (None, whole.names.clone()));
        let all = whole.part(&(0..5).collect());
        assert_eq!((all.files, &all.places[..4]), (whole.files.clone(), &whole.places[..4]));
        assert!(whole.part(&BTreeSet::new()).files.is_empty());
    }
}
