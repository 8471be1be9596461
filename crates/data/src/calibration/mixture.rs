//! Mixtures: each file gives its share of the samples, and the samples of all files take turns.

use super::{CalibrationData, CalibrationDataError, HeldOut, Options, loader};
use crate::images::TextImages;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// A file, with its share of the samples where one is given.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedFile {
    /// The file or directory.
    pub path: PathBuf,
    /// Its weight beside those of the other files.
    pub share: Option<f64>,
}

impl SharedFile {
    /// The files that a text names: `a.jsonl:0.6,b.txt:0.4` is two with shares, a text without shares one path. A path that exists is
    /// that path, whatever characters it has. Files without a share among others are listed too, and shares may be any number:
    /// [`Options::sequences_of`] refuses what is no mixture.
    pub fn list(text: &OsStr) -> Vec<SharedFile> {
        let whole = || vec![SharedFile { path: PathBuf::from(text), share: None }];
        let Some(parts) = text.to_str().filter(|_| !Path::new(text).exists()) else { return whole() };
        let of = |part: &str| {
            let shared = part.rsplit_once(':').and_then(|(path, share)| Some((path, share.trim().parse().ok()?)));
            let (path, share) = shared.map_or((part, None), |(path, share)| (path, Some(share)));
            SharedFile { path: PathBuf::from(path.trim()), share }
        };
        let parts: Vec<SharedFile> = parts.split(',').filter(|part| !part.trim().is_empty()).map(of).collect();
        if parts.iter().any(|part| part.share.is_some()) { parts } else { whole() }
    }
}

impl Options {
    /// The options of each file alone, with its part of the samples; these options where no shares are given.
    ///
    /// # Errors
    /// Files that are named twice, shares that are not one positive number for each file, and files of which no sample would be taken.
    pub(super) fn parts(&self) -> Result<Vec<Options>, CalibrationDataError> {
        if let Some((_, again)) = self.files.iter().enumerate().find(|(at, file)| self.files[..*at].contains(file)) {
            return Err(CalibrationDataError::Twice { file: again.clone() });
        }
        if self.shares.is_empty() {
            return Ok(vec![self.clone()]);
        }
        if self.shares.len() != self.files.len() {
            return Err(CalibrationDataError::Shares {
                what: "some files of calibration data have shares, and others have none",
            });
        }
        if !self.shares.iter().all(|share| share.is_finite() && *share > 0.0) {
            return Err(CalibrationDataError::Shares {
                what: "a share of the calibration data is not a number above 0",
            });
        }
        // The sum of shares may be infinite; that of their ratios to the largest is not.
        let largest = self.shares.iter().copied().fold(0.0, f64::max);
        let total: f64 = self.shares.iter().map(|share| share / largest).sum();
        let shares: Vec<f64> = self.shares.iter().map(|share| share / largest / total).collect();
        let (samples, held_out) = (portions(self.samples, &shares), portions(self.held_out, &shares));
        let parts = self.files.iter().zip(&shares).zip(samples.into_iter().zip(held_out));
        let part = |((file, share), (samples, held_out)): ((&PathBuf, &f64), (usize, usize))| {
            if samples == 0 {
                return Err(CalibrationDataError::SmallShare {
                    file: file.clone(),
                    share: *share,
                    samples: self.samples,
                });
            }
            Ok(Options { files: vec![file.clone()], shares: vec![*share], samples, held_out, ..self.clone() })
        };
        parts.map(part).collect()
    }
}

impl Options {
    /// The most sequences that are taken of one of the files, those that are held out included.
    ///
    /// # Errors
    /// Shares that are not one positive number for each file, and files of which no sample would be taken.
    pub fn sequences_of(&self, file: usize) -> Result<usize, CalibrationDataError> {
        let parts = self.parts()?;
        let part = if self.shares.is_empty() { parts.first() } else { parts.get(file) };
        Ok(part.map_or(0, |part| part.samples.saturating_add(part.held_out)))
    }
}

/// A number in portions: each its share rounded down, and the largest remainders one more.
fn portions(number: usize, shares: &[f64]) -> Vec<usize> {
    let exact: Vec<f64> = shares.iter().map(|share| share * number as f64).collect();
    let mut portions: Vec<usize> = exact.iter().map(|exact| exact.floor() as usize).collect();
    let mut order: Vec<usize> = (0..shares.len()).collect();
    order.sort_by(|a, b| exact[*b].fract().total_cmp(&exact[*a].fract()).then(a.cmp(b)));
    let left = number.saturating_sub(portions.iter().sum());
    order.into_iter().cycle().take(left).for_each(|part| portions[part] += 1);
    portions
}

/// Loads each part of a mixture, and joins what they give.
pub(super) fn load(
    options: &Options,
    model: &Path,
    vocabulary: usize,
    mut images: TextImages,
    mut watch: impl FnMut(usize, usize),
) -> Result<CalibrationData, CalibrationDataError> {
    let mut loaded = Vec::new();
    let mut before = 0;
    for part in options.parts()? {
        let data = loader::load(&part, model, vocabulary, images, |done, _| watch(before + done, options.samples))?;
        before += data.sequences.len();
        images = data.images.clone();
        loaded.push(data);
    }
    joined(loaded, options.samples, images)
}

/// The data of all parts.
fn joined(
    parts: Vec<CalibrationData>,
    samples_asked: usize,
    images: TextImages,
) -> Result<CalibrationData, CalibrationDataError> {
    let (mut sequences, mut held_out, mut records) = (Vec::new(), Vec::new(), Vec::new());
    for CalibrationData { sequences: own, held_out: own_held_out, provenance, .. } in parts {
        sequences.push(own);
        held_out.push(own_held_out);
        records.push(provenance);
    }
    let (sequences, held_out) = (in_turns(sequences), in_turns(held_out));
    let mut all = records.into_iter();
    let mut provenance =
        all.next().ok_or(CalibrationDataError::Options { what: "no file of calibration data is named" })?;
    for other in all {
        provenance.files.extend(other.files);
        provenance.short_documents += other.short_documents;
        provenance.chat_template = provenance.chat_template.or(other.chat_template);
        provenance.conversations_without_template += other.conversations_without_template;
    }
    provenance.samples = sequences.len();
    provenance.samples_asked = samples_asked;
    provenance.tokens = sequences.iter().map(Vec::len).sum();
    provenance.different_tokens = sequences.iter().flatten().collect::<HashSet<_>>().len();
    provenance.held_out = HeldOut::of(&held_out);
    provenance.images = images.provenance(sequences.iter().chain(&held_out).map(Vec::as_slice))?;
    Ok(CalibrationData { sequences, held_out, images, provenance })
}

/// The sequences of all parts, those of each spread evenly: what takes the first ones takes some of every part.
fn in_turns(parts: Vec<Vec<Vec<u32>>>) -> Vec<Vec<u32>> {
    let placed = parts.into_iter().flat_map(|part| {
        let count = part.len() as f64;
        part.into_iter().enumerate().map(move |(at, sequence)| ((at as f64 + 0.5) / count, sequence))
    });
    let mut placed: Vec<(f64, Vec<u32>)> = placed.collect();
    placed.sort_by(|a, b| a.0.total_cmp(&b.0));
    placed.into_iter().map(|(_, sequence)| sequence).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_files_with_shares_are_distinguished_from_paths() {
        let list = |text: &str| SharedFile::list(OsStr::new(text));
        let file = |path: &str, share| SharedFile { path: path.into(), share };
        assert_eq!(list("a.jsonl:0.6,b.txt:0.4"), [file("a.jsonl", Some(0.6)), file("b.txt", Some(0.4))]);
        assert_eq!(list("C:/a.txt:2"), [file("C:/a.txt", Some(2.0))]);
        for path in ["a.txt", "C:/a.txt", "a,b.txt", "a.txt:x"] {
            assert_eq!(list(path), [file(path, None)]);
        }
        assert_eq!(list("a.jsonl:0.6,b.txt"), [file("a.jsonl", Some(0.6)), file("b.txt", None)]);
        assert_eq!(list("a.jsonl:1,b.txt:2,"), list("a.jsonl:1, b.txt:2"));
        assert!(list("a.txt:nan,b.txt:1")[0].share.is_some_and(f64::is_nan));
        let folder = tempfile::tempdir().unwrap();
        let odd = folder.path().join("a.txt:1");
        std::fs::write(&odd, "text").unwrap();
        assert_eq!(SharedFile::list(odd.as_os_str()), [SharedFile { path: odd, share: None }]);
    }

    #[test]
    fn portions_add_up() {
        assert_eq!(portions(10, &[0.6, 0.4]), [6, 4]);
        assert_eq!(portions(128, &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0]), [43, 43, 42]);
        assert_eq!(portions(1, &[0.4, 0.6]), [0, 1]);
        assert_eq!(portions(0, &[0.5, 0.5]), [0, 0]);
    }

    #[test]
    fn shares_are_one_positive_number_for_each_file() {
        let of = |shares: &[f64], samples| {
            Options { shares: shares.to_vec(), ..Options::new(["a.txt", "b.txt"], samples, 8) }.parts()
        };
        let parts = of(&[3.0, 1.0], 8).unwrap();
        assert_eq!(parts.iter().map(|part| (part.samples, part.files.len())).collect::<Vec<_>>(), [(6, 1), (2, 1)]);
        let samples = |shares: &[f64]| of(shares, 8).unwrap().iter().map(|part| part.samples).collect::<Vec<_>>();
        assert_eq!(samples(&[1e308, 1e308]), [4, 4]);
        for shares in [&[1.0][..], &[1.0, 0.0], &[1.0, -1.0], &[1.0, f64::NAN], &[1.0, f64::INFINITY]] {
            assert!(of(shares, 8).is_err(), "{shares:?}");
        }
        let twice = Options { shares: vec![1.0, 1.0], ..Options::new(["a.txt", "a.txt"], 8, 8) }.parts().unwrap_err();
        assert_eq!(twice.to_string(), "a.txt is named twice");
        let error = of(&[1.0, 0.01], 8).unwrap_err().to_string();
        assert_eq!(error, "b.txt: its share of 1.0 % is no whole sample of 8");
    }

    #[test]
    fn sequences_of_parts_take_turns() {
        let part = |first: u32, count: u32| (first..first + count).map(|token| vec![token]).collect::<Vec<_>>();
        assert_eq!(in_turns(vec![part(0, 4), part(10, 2)]).concat(), [0, 10, 1, 2, 11, 3]);
        assert_eq!(in_turns(vec![part(0, 2), Vec::new()]).concat(), [0, 1]);
    }
}
