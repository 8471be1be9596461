//! The steps from a sound to what a model of sounds reads, as feature extractors of transformers take them, by the checkpoint's
//! `preprocessor_config.json`.

use super::SoundInput;
use super::error::SoundDataError;
use super::spectrogram::{Spectrogram, SpectrogramSizes};
use crate::json_file;
use kvant_container::model_directory;
use kvant_samples::{SoundHeader, decode_sound, sound_header};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The largest number that is believed of a file.
const LARGEST: u64 = 1 << 20;

/// Samples of a sound that is read whole, at most: a gigabyte of floats.
const MOST_SAMPLES: usize = 1 << 28;

/// The steps from a sound to what a model reads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SoundExtractor {
    /// The file that states them.
    #[serde(skip)]
    pub file: PathBuf,
    /// Samples in a second that sounds must have.
    pub rate: u32,
    /// The features that the model reads, and their settings.
    #[serde(serialize_with = "kind_text")]
    pub kind: ExtractorKind,
}

/// Features that models of sounds read.
#[derive(Clone, Debug, PartialEq)]
pub enum ExtractorKind {
    /// The samples, of mean 0 and variance 1 if that is asked for: `(x - mean) / sqrt(var + 1e-7)`.
    Waveform {
        /// Whether they are normalised.
        normalises: bool,
    },
    /// A logarithmic mel spectrogram of as many samples as these: longer sounds are cut, shorter ones padded.
    LogMel {
        /// Filters.
        bins: usize,
        /// Samples.
        samples: usize,
        /// Samples from one column to the next.
        step: usize,
        /// The samples behind the last one.
        padding: f32,
        /// What makes it.
        spectrogram: LogMelSpectrogram,
    },
}

/// Makes logarithmic mel spectrograms.
#[derive(Clone, Debug, PartialEq)]
pub struct LogMelSpectrogram(Spectrogram);

fn kind_text<S: Serializer>(kind: &ExtractorKind, serializer: S) -> Result<S::Ok, S::Error> {
    match kind {
        ExtractorKind::Waveform { normalises: true } => "waveform, normalized".serialize(serializer),
        ExtractorKind::Waveform { normalises: false } => "waveform".serialize(serializer),
        ExtractorKind::LogMel { bins, samples, step, .. } => {
            format!("log-mel spectrogram, {bins} filters, {samples} samples in steps of {step}").serialize(serializer)
        }
    }
}

impl SoundExtractor {
    /// The steps of the model in a directory, or of the file in it. A file that names no class, as those of the first models, is of the class
    /// that makes what the model reads.
    ///
    /// # Errors
    /// A model without the file, one that is no JSON, states impossible values, or steps that are not computed here.
    pub fn of_model(model: &Path, input: SoundInput) -> Result<SoundExtractor, SoundDataError> {
        let directory = model_directory(model);
        let file = directory.join("preprocessor_config.json");
        let whole = directory.join("processor_config.json");
        if !file.is_file() && whole.is_file() {
            // Processors of sounds and texts have that of sounds as a part of theirs.
            let all = read(&whole)?;
            return match all.get("feature_extractor").and_then(Value::as_object) {
                Some(map) => Keys { file: &whole, map }.extractor(input),
                None => Err(SoundDataError::NoExtractor { file }),
            };
        }
        if !file.is_file() {
            return Err(SoundDataError::NoExtractor { file });
        }
        Keys { file: &file, map: &read(&file)? }.extractor(input)
    }

    /// The header of a sound at the sampling rate of the model.
    ///
    /// # Errors
    /// Files that are no sounds, and sounds at another rate.
    pub fn header(&self, sound: &Path) -> Result<SoundHeader, SoundDataError> {
        let header = sound_header(sound)?;
        match header.rate == self.rate {
            true => Ok(header),
            false => Err(SoundDataError::Rate { file: sound.to_path_buf(), found: header.rate, expected: self.rate }),
        }
    }

    /// What the model reads of a sound: its samples, or a row for each filter.
    ///
    /// # Errors
    /// Those of [`SoundExtractor::header`], damaged files, sounds without samples.
    pub fn values(&self, sound: &Path) -> Result<Vec<f32>, SoundDataError> {
        let SoundHeader { samples: length, .. } = self.header(sound)?;
        match &self.kind {
            ExtractorKind::Waveform { .. } if length > MOST_SAMPLES => {
                Err(SoundDataError::Long { file: sound.to_path_buf(), samples: length, most: MOST_SAMPLES })
            }
            ExtractorKind::Waveform { normalises } => {
                let mut samples = decode_sound(sound, MOST_SAMPLES)?;
                if *normalises {
                    normalise(&mut samples);
                }
                Ok(samples)
            }
            ExtractorKind::LogMel { samples, padding, spectrogram, .. } => {
                let mut padded = decode_sound(sound, *samples)?;
                padded.resize(*samples, *padding);
                Ok(spectrogram.0.of(&padded))
            }
        }
    }
}

/// Gives samples the mean 0 and the variance 1.
fn normalise(samples: &mut [f32]) {
    let count = samples.len() as f64;
    let mean = samples.iter().map(|sample| f64::from(*sample)).sum::<f64>() / count;
    let variance = samples.iter().map(|sample| (f64::from(*sample) - mean).powi(2)).sum::<f64>() / count;
    let root = (variance + 1e-7).sqrt();
    samples.iter_mut().for_each(|sample| *sample = ((f64::from(*sample) - mean) / root) as f32);
}

fn read(file: &Path) -> Result<Map<String, Value>, SoundDataError> {
    json_file::object(file).map_err(|problem| SoundDataError::Extractor { file: file.to_path_buf(), problem })
}

/// The keys of a file, and its name for messages.
struct Keys<'k> {
    file: &'k Path,
    map: &'k Map<String, Value>,
}

impl Keys<'_> {
    fn extractor(&self, input: SoundInput) -> Result<SoundExtractor, SoundDataError> {
        let rate = self.count("sampling_rate", 16_000)?;
        let class = self.map.get("feature_extractor_type").and_then(Value::as_str);
        let kind = match (class, input) {
            (Some("Wav2Vec2FeatureExtractor"), _) | (None, SoundInput::Waveform) => self.waveform()?,
            (Some("WhisperFeatureExtractor"), _) | (None, SoundInput::LogMel { .. }) => self.log_mel(rate)?,
            (Some(other), _) => return Err(self.unsupported(format!("the class {other}"))),
        };
        Ok(SoundExtractor { file: self.file.to_path_buf(), rate: rate as u32, kind })
    }

    fn waveform(&self) -> Result<ExtractorKind, SoundDataError> {
        match self.count("feature_size", 1)? {
            1 => Ok(ExtractorKind::Waveform { normalises: self.is("do_normalize", true)? }),
            other => Err(self.unsupported(format!("`feature_size` {other} of samples"))),
        }
    }

    fn log_mel(&self, rate: usize) -> Result<ExtractorKind, SoundDataError> {
        if self.number("dither")?.is_some_and(|dither| dither != 0.0) {
            return Err(self.unsupported("`dither`, which adds random numbers".to_owned()));
        }
        let (bins, frame, step) =
            (self.count("feature_size", 80)?, self.count("n_fft", 400)?, self.count("hop_length", 160)?);
        let samples = self.count("chunk_length", 30)?.saturating_mul(rate);
        if frame < 2 || samples <= frame / 2 || samples < step || samples > MOST_SAMPLES {
            return Err(self.invalid(format!("frames of {frame} samples every {step} of {samples}")));
        }
        let padding = self.number("padding_value")?.unwrap_or(0.0) as f32;
        let spectrogram = LogMelSpectrogram(Spectrogram::new(SpectrogramSizes { bins, rate, frame, step }));
        Ok(ExtractorKind::LogMel { bins, samples, step, padding, spectrogram })
    }

    fn invalid(&self, problem: impl Into<String>) -> SoundDataError {
        SoundDataError::Extractor { file: self.file.to_path_buf(), problem: problem.into() }
    }

    fn unsupported(&self, step: String) -> SoundDataError {
        SoundDataError::UnsupportedExtractor { file: self.file.to_path_buf(), step }
    }

    fn stated(&self, key: &str) -> Option<&Value> {
        self.map.get(key).filter(|value| !value.is_null())
    }

    fn is(&self, key: &str, default: bool) -> Result<bool, SoundDataError> {
        let Some(stated) = self.stated(key) else { return Ok(default) };
        stated.as_bool().ok_or_else(|| self.invalid(format!("`{key}` is neither true nor false")))
    }

    fn number(&self, key: &str) -> Result<Option<f64>, SoundDataError> {
        let Some(stated) = self.stated(key) else { return Ok(None) };
        let number = stated.as_f64().filter(|number| number.is_finite());
        number.map(Some).ok_or_else(|| self.invalid(format!("`{key}` is not a number")))
    }

    /// A number of things, at least one.
    fn count(&self, key: &str, default: usize) -> Result<usize, SoundDataError> {
        let Some(stated) = self.stated(key) else { return Ok(default) };
        let count = stated.as_u64().filter(|count| (1..=LARGEST).contains(count));
        count
            .map(|count| count as usize)
            .ok_or_else(|| self.invalid(format!("`{key}` must be a number from 1 to {LARGEST}, found {stated}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::{Diagnostic, ErrorKind};

    fn of(text: &str) -> Result<SoundExtractor, SoundDataError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("preprocessor_config.json"), text).unwrap();
        SoundExtractor::of_model(dir.path(), SoundInput::Waveform)
    }

    #[test]
    fn absent_keys_are_those_of_the_class() {
        let whisper = of(r#"{"feature_extractor_type": "WhisperFeatureExtractor"}"#).unwrap();
        let ExtractorKind::LogMel { bins, samples, step, padding, .. } = whisper.kind else { panic!("{whisper:?}") };
        assert_eq!((bins, samples, step, padding, whisper.rate), (80, 480_000, 160, 0.0, 16_000));
        let wave = of(r#"{"feature_extractor_type": "Wav2Vec2FeatureExtractor", "sampling_rate": 8000}"#).unwrap();
        assert_eq!((wave.kind, wave.rate), (ExtractorKind::Waveform { normalises: true }, 8000));
        let unnamed = of(r#"{"do_normalize": false}"#).unwrap();
        assert_eq!((unnamed.kind, unnamed.rate), (ExtractorKind::Waveform { normalises: false }, 16_000));
    }

    #[test]
    fn steps_that_are_not_computed_are_refused_by_name() {
        let whisper = |keys: &str| format!(r#"{{"feature_extractor_type": "WhisperFeatureExtractor", {keys}}}"#);
        for (text, kind, words) in [
            ("[]".to_owned(), ErrorKind::Invalid, "no JSON object"),
            (
                r#"{"feature_extractor_type": "ClapFeatureExtractor"}"#.to_owned(),
                ErrorKind::Unsupported,
                "ClapFeatureExtractor",
            ),
            (whisper(r#""dither": 0.1"#), ErrorKind::Unsupported, "dither"),
            (whisper(r#""hop_length": 0"#), ErrorKind::Invalid, "hop_length"),
            (whisper(r#""n_fft": 1"#), ErrorKind::Invalid, "frames of 1"),
            (whisper(r#""chunk_length": 1000000"#), ErrorKind::Invalid, "samples"),
        ] {
            let error = of(&text).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words) && error.hint().is_some(), "{error}");
        }
    }

    #[test]
    fn normalised_samples_have_mean_zero_and_variance_one() {
        let mut samples = [1.0, 3.0];
        normalise(&mut samples);
        assert!((samples[0] + 1.0).abs() < 1e-6 && (samples[1] - 1.0).abs() < 1e-6, "{samples:?}");
    }
}
