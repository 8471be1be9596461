//! Sounds for models of sounds: WAV files, prepared as the checkpoint's `preprocessor_config.json` says, or arrays of `input_features` or
//! `input_values` that are prepared already. One sound is read at a time; what a model makes of it is not decided here. The text of what is
//! said in `a.wav` is in `a.txt` beside it, where there is one.

mod error;
mod extractor;
mod spectrogram;
mod transcript;

pub use crate::images::ImageOptions as SoundOptions;
pub use error::SoundDataError;
pub use extractor::{ExtractorKind, LogMelSpectrogram, SoundExtractor};
pub use transcript::{TranscriptError, TranscriptTokens, Transcripts};

use crate::hashed::HashedFiles;
use kvant_samples::{SampleError, Stored, arrays, is_sound, sound_files};
use serde::Serialize;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What a model reads of a sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoundInput {
    /// A logarithmic mel spectrogram: a row for each filter.
    LogMel {
        /// Filters.
        bins: usize,
        /// Values of a filter.
        frames: usize,
    },
    /// Samples, however many.
    Waveform,
}

impl SoundInput {
    /// The name of arrays with such inputs, where a file has several.
    fn array_name(self) -> &'static str {
        match self {
            SoundInput::LogMel { .. } => "input_features",
            SoundInput::Waveform => "input_values",
        }
    }
}

impl fmt::Display for SoundInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SoundInput::LogMel { bins, frames } => write!(f, "spectrograms of {bins} filters and {frames} frames"),
            SoundInput::Waveform => f.write_str("samples"),
        }
    }
}

/// Sounds, prepared one at a time.
#[derive(Debug)]
pub struct Sounds {
    source: Source,
    /// The sounds that count, by their numbers in the source.
    order: Vec<usize>,
    input: SoundInput,
}

#[derive(Debug)]
enum Source {
    Files {
        files: Vec<SoundFile>,
        extractor: SoundExtractor,
    },
    /// Arrays `[sounds, ...]` of the inputs of several sounds, or those of one.
    Arrays {
        parts: Mutex<Vec<Stored>>,
        places: Vec<ArrayPlace>,
    },
}

/// A sound in a file.
#[derive(Debug)]
struct SoundFile {
    path: PathBuf,
    samples: usize,
}

/// A sound in an array.
#[derive(Clone, Copy, Debug)]
struct ArrayPlace {
    part: usize,
    sound: usize,
    /// Values of the sound.
    values: usize,
}

/// Where sounds come from, for the metadata of an output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SoundProvenance {
    /// The name of the file or folder, without directories above it.
    pub name: String,
    /// Its files of sounds or arrays, and texts beside them.
    pub files: usize,
    /// The bytes of all files.
    pub bytes: u64,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of the names and bytes of all files.
    pub xxh3_128: String,
    /// Sounds that are used.
    pub samples: usize,
    /// Sounds that were asked for.
    pub samples_asked: usize,
    /// Further sounds that are held out.
    pub held_out: usize,
    /// The steps from a sound to what the model reads; none for arrays.
    pub preprocessing: Option<SoundExtractor>,
    /// The seed of shuffled sounds.
    pub seed: u64,
    /// Whether sounds were shuffled.
    pub shuffled: bool,
}

impl Sounds {
    /// The sounds of a file or folder, for a model that reads `input`. The directory `model` has the preprocessor_config.json, which arrays
    /// do not need. Headers are read here, samples later.
    ///
    /// # Errors
    /// Paths that cannot be read, files of other kinds, sounds at another rate, sounds beside arrays, a model without preprocessing or with
    /// another one, arrays of another shape.
    pub fn open(path: &Path, model: &Path, input: SoundInput, options: SoundOptions) -> Result<Sounds, SoundDataError> {
        let found = sound_files(path)?;
        let (sounds, others): (Vec<PathBuf>, Vec<PathBuf>) = found.into_iter().partition(|file| is_sound(file));
        let source = match (sounds.first(), others.first()) {
            (Some(sound), Some(other)) => {
                return Err(SoundDataError::Mixed { sound: sound.clone(), other: other.clone() });
            }
            (Some(_), None) => of_files(sounds, SoundExtractor::of_model(model, input)?, input)?,
            (None, _) => of_arrays(arrays(&others)?, input)?,
        };
        let count = match &source {
            Source::Files { files, .. } => files.len(),
            Source::Arrays { places, .. } => places.len(),
        };
        let order = options.order(count);
        match order.is_empty() {
            true => Err(SampleError::invalid(path, "no sound").into()),
            false => Ok(Sounds { source, order, input }),
        }
    }

    /// The number of sounds.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// What the model reads of them.
    pub fn input(&self) -> SoundInput {
        self.input
    }

    fn number(&self, index: usize) -> Result<usize, SoundDataError> {
        self.order.get(index).copied().ok_or(SoundDataError::NoSound { index, count: self.order.len() })
    }

    /// The number of values that the model reads of a sound.
    ///
    /// # Errors
    /// A sound beyond the last one.
    pub fn length(&self, index: usize) -> Result<usize, SoundDataError> {
        let number = self.number(index)?;
        Ok(match (self.input, &self.source) {
            (SoundInput::LogMel { bins, frames }, _) => bins * frames,
            (SoundInput::Waveform, Source::Files { files, .. }) => files[number].samples,
            (SoundInput::Waveform, Source::Arrays { places, .. }) => places[number].values,
        })
    }

    /// What the model reads of a sound: its samples, or a row for each filter.
    ///
    /// # Errors
    /// Damaged files, values that are NaN or infinite, a sound beyond the last one.
    pub fn values(&self, index: usize) -> Result<Vec<f32>, SoundDataError> {
        let number = self.number(index)?;
        match &self.source {
            Source::Files { files, extractor } => extractor.values(&files[number].path),
            Source::Arrays { parts, places } => {
                let ArrayPlace { part, sound, values } = places[number];
                let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
                let stored = &mut parts[part];
                let found = stored.read(sound * values, vec![values])?.to_f32s().into_owned();
                match found.iter().find(|value| !value.is_finite()) {
                    None => Ok(found),
                    Some(value) => Err(SoundDataError::NotFinite { file: stored.place.clone(), sound, value: *value }),
                }
            }
        }
    }

    /// The sounds of which the model reads the beginning alone, because they are longer than its window.
    pub fn cut(&self) -> usize {
        let Source::Files { files, extractor } = &self.source else { return 0 };
        let ExtractorKind::LogMel { samples, .. } = extractor.kind else { return 0 };
        self.order.iter().filter(|number| files[**number].samples > samples).count()
    }

    /// The name of a sound in messages.
    pub fn name(&self, index: usize) -> String {
        match (self.number(index), &self.source) {
            (Ok(number), Source::Files { files, .. }) => kvant_container::shown(&files[number].path).to_string(),
            _ => format!("sound {index}"),
        }
    }

    /// What is said in a sound, by the text beside its file; `None` where there is no text.
    ///
    /// # Errors
    /// Texts that cannot be read, a sound beyond the last one.
    pub fn text(&self, index: usize) -> Result<Option<String>, SoundDataError> {
        let number = self.number(index)?;
        let Source::Files { files, .. } = &self.source else { return Ok(None) };
        let file = text_of(&files[number].path);
        if !file.is_file() {
            return Ok(None);
        }
        let text = fs::read_to_string(&file);
        let text = text.map_err(|cause| SoundDataError::Text { file, problem: format!("cannot be read: {cause}") })?;
        Ok(Some(text.trim_start_matches('\u{feff}').trim().to_owned()))
    }

    /// Where the sounds of a path come from; those beyond `samples` of the options are held out.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn provenance(&self, path: &Path, options: SoundOptions) -> Result<SoundProvenance, SoundDataError> {
        let sounds = sound_files(path)?;
        let texts = sounds.iter().filter(|file| is_sound(file)).map(|file| text_of(file)).filter(|file| file.is_file());
        let texts: Vec<PathBuf> = texts.collect();
        let found = [sounds, texts].concat();
        let HashedFiles { bytes, xxh3_128 } = HashedFiles::of(path, &found)?;
        let asked = options.samples.unwrap_or(self.order.len());
        let samples = self.order.len().min(asked);
        Ok(SoundProvenance {
            name: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            files: found.len(),
            bytes,
            xxh3_128,
            samples,
            samples_asked: asked,
            held_out: self.order.len() - samples,
            preprocessing: match &self.source {
                Source::Files { extractor, .. } => Some(extractor.clone()),
                Source::Arrays { .. } => None,
            },
            seed: options.seed,
            shuffled: options.shuffle,
        })
    }
}

/// The file with the text of a sound: `a.txt`, or `a.TXT` where there is no such file.
fn text_of(sound: &Path) -> PathBuf {
    let [lower, upper] = ["txt", "TXT"].map(|end| sound.with_extension(end));
    if !lower.is_file() && upper.is_file() { upper } else { lower }
}

/// Files of sounds whose headers fit the extractor, which fits what the model reads.
fn of_files(paths: Vec<PathBuf>, extractor: SoundExtractor, input: SoundInput) -> Result<Source, SoundDataError> {
    let made = match extractor.kind {
        ExtractorKind::Waveform { .. } => SoundInput::Waveform,
        ExtractorKind::LogMel { bins, samples, step, .. } => SoundInput::LogMel { bins, frames: samples / step },
    };
    if made != input {
        let (found, expected) = (made.to_string(), input.to_string());
        return Err(SoundDataError::OtherInputs { file: extractor.file, found, expected });
    }
    let file = |path: PathBuf| Ok(SoundFile { samples: extractor.header(&path)?.samples, path });
    let files = paths.into_iter().map(file).collect::<Result<Vec<_>, SoundDataError>>()?;
    Ok(Source::Files { files, extractor })
}

/// Arrays of sounds: those of the model's inputs where a file has several.
fn of_arrays(mut all: Vec<Stored>, input: SoundInput) -> Result<Source, SoundDataError> {
    let name = input.array_name();
    if all.iter().any(|stored| stored.name == name) {
        all.retain(|stored| stored.name == name);
    }
    let mut places = Vec::new();
    for (part, stored) in all.iter().enumerate() {
        let (count, values) = match (&stored.shape[..], input) {
            (&[sounds, bins, frames], SoundInput::LogMel { bins: b, frames: f }) if (bins, frames) == (b, f) => {
                (sounds, bins * frames)
            }
            (&[bins, frames], SoundInput::LogMel { bins: b, frames: f }) if (bins, frames) == (b, f) => {
                (1, bins * frames)
            }
            (&[sounds, samples], SoundInput::Waveform) => (sounds, samples),
            (&[samples], SoundInput::Waveform) => (1, samples),
            _ => {
                let (file, found) = (stored.place.clone(), stored.shape.clone());
                return Err(SoundDataError::Shape { file, found, expected: input.to_string() });
            }
        };
        // Without values no data bound the number of sounds.
        let count = if values == 0 { 0 } else { count };
        places.extend((0..count).map(|sound| ArrayPlace { part, sound, values }));
    }
    Ok(Source::Arrays { parts: Mutex::new(all), places })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    const WHISPER: &str = r#"{"feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 4, "chunk_length": 1, "n_fft": 16, "hop_length": 4000}"#;

    /// A sound of 16-bit samples at a rate.
    fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
        let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
        bytes.extend(rate.to_le_bytes());
        bytes.extend((2 * rate).to_le_bytes());
        bytes.extend(b"\x02\0\x10\0data");
        bytes.extend((2 * samples.len() as u32).to_le_bytes());
        bytes.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
        bytes
    }

    fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, contents)| fs::write(dir.path().join(name), contents).unwrap());
        dir
    }

    fn opened(dir: &Path, input: SoundInput) -> Result<Sounds, SoundDataError> {
        Sounds::open(dir, dir, input, SoundOptions::default())
    }

    #[test]
    fn folders_hold_sounds_with_texts() {
        let tones: Vec<i16> = (0..20_000).map(|at| (at % 100) * 300).collect();
        let dir = folder(&[
            ("preprocessor_config.json", WHISPER.as_bytes()),
            ("a.wav", &wav(16_000, &tones)),
            ("a.TXT", "\u{feff} one two\n".as_bytes()),
            ("b.wav", &wav(16_000, &tones[..10])),
        ]);
        let input = SoundInput::LogMel { bins: 4, frames: 4 };
        let sounds = opened(dir.path(), input).unwrap();
        assert_eq!((sounds.len(), sounds.length(0).unwrap(), sounds.values(1).unwrap().len()), (2, 16, 16));
        assert_eq!((sounds.text(0).unwrap().as_deref(), sounds.text(1).unwrap()), (Some("one two"), None));
        // The first is longer than the window of the model.
        assert_eq!(sounds.cut(), 1);
        assert!(matches!(sounds.values(2), Err(SoundDataError::NoSound { index: 2, count: 2 })));
        let provenance = sounds.provenance(dir.path(), SoundOptions::default()).unwrap();
        assert_eq!((provenance.files, provenance.samples), (3, 2));
        let other = opened(dir.path(), SoundInput::LogMel { bins: 4, frames: 5 }).unwrap_err();
        assert!(other.to_string().contains("4 filters and 5 frames") && other.hint().is_some(), "{other}");
    }

    #[test]
    fn sounds_that_do_not_fit_are_named() {
        let config = br#"{"feature_extractor_type": "Wav2Vec2FeatureExtractor"}"#;
        let whole = wav(16_000, &[1, 2, 3]);
        let slow = wav(8_000, &[1, 2, 3]);
        for (name, contents, words) in [
            ("b.wav", &slow[..], "b.wav has 8000 samples in a second, and the model reads 16000"),
            ("b.mp3", &b"ID3"[..], "b.mp3: sounds in .mp3 files"),
            ("b.npy", &whole[..], "b.npy is none"),
            ("b.wav", &whole[..40], "b.wav"),
        ] {
            let dir = folder(&[("preprocessor_config.json", &config[..]), ("a.wav", &whole), (name, contents)]);
            let error = opened(dir.path(), SoundInput::Waveform).unwrap_err();
            assert!(error.to_string().contains(words) && error.hint().is_some(), "{error}");
        }
        let dir = folder(&[("a.wav", &whole)]);
        let error = opened(dir.path(), SoundInput::Waveform).unwrap_err();
        assert!(error.to_string().contains("preprocessor_config.json is missing"), "{error}");
    }
}
