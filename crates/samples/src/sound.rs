//! Sounds in WAV files: uncompressed samples (PCM) of integers or floats, as one channel of numbers from -1 to 1. Sampling rates stay as they
//! are.
//!
//! The layout is that of RIFF: `RIFF size WAVE`, then chunks, each a name of four bytes, a size and as many bytes, padded to an even number.

use std::ops::Range;
use std::path::Path;

use kvant_container::MappedFile;

use crate::error::SampleError;
use crate::files::{FOREIGN_SOUNDS, extension};

/// The advice for files of other formats.
const CONVERT: &str =
    "convert it to WAV at the model's sampling rate, e.g. `ffmpeg -i IN -ac 1 -ar 16000 -c:a pcm_s16le OUT.wav`";

/// What the header of a WAV file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SoundHeader {
    /// Samples of a channel in a second.
    pub rate: u32,
    /// Samples of a channel.
    pub samples: usize,
    channels: usize,
    encoding: Encoding,
    /// The bytes of the samples in the file.
    data: Range<usize>,
}

/// How a sample is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Encoding {
    /// An integer of so many bytes; a single byte is unsigned.
    Integer(usize),
    /// A float of so many bytes.
    Float(usize),
}

impl Encoding {
    fn bytes(self) -> usize {
        match self {
            Encoding::Integer(bytes) | Encoding::Float(bytes) => bytes,
        }
    }

    /// The number that a sample of [`Encoding::bytes`] bytes is: integers divided by the largest power of two that they reach.
    fn value(self, bytes: &[u8]) -> f64 {
        match (self, bytes) {
            (Encoding::Integer(_), [byte]) => (f64::from(*byte) - 128.0) / 128.0,
            (Encoding::Integer(size), bytes) => {
                // The highest bit becomes the sign.
                let wide = bytes.iter().rev().fold(0u32, |number, byte| number << 8 | u32::from(*byte));
                f64::from((wide << (32 - 8 * size)) as i32) / f64::from(1u32 << 31)
            }
            (Encoding::Float(_), [a, b, c, d]) => f64::from(f32::from_le_bytes([*a, *b, *c, *d])),
            (Encoding::Float(_), bytes) => {
                f64::from_bits(bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
            }
        }
    }
}

/// The header of a WAV file.
///
/// # Errors
/// Files that cannot be read, sounds of other formats, compressed ones, and files that are damaged or cut short.
pub fn sound_header(file: &Path) -> Result<SoundHeader, SampleError> {
    header(file, &open(file)?)
}

/// The first samples of a WAV file, at most so many; several channels are averaged, as transformers' pipelines do.
///
/// # Errors
/// Those of [`sound_header`], and samples that are NaN or infinite.
pub fn decode_sound(file: &Path, most: usize) -> Result<Vec<f32>, SampleError> {
    let bytes = open(file)?;
    let SoundHeader { channels, encoding, data, .. } = header(file, &bytes)?;
    let size = encoding.bytes();
    let mean =
        |frame: &[u8]| frame.chunks_exact(size).map(|sample| encoding.value(sample)).sum::<f64>() / channels as f64;
    let samples: Vec<f32> =
        bytes[data].chunks_exact(size * channels).take(most).map(|frame| mean(frame) as f32).collect();
    match samples.iter().position(|sample| !sample.is_finite()) {
        None => Ok(samples),
        Some(at) => {
            Err(damaged(file, format!("sample {at} is {}", samples[at]), "fix the sound or take it out of the data"))
        }
    }
}

fn open(file: &Path) -> Result<MappedFile, SampleError> {
    let end = extension(file);
    if FOREIGN_SOUNDS.contains(&end.as_str()) {
        return Err(damaged(file, format!("sounds in .{end} files are not decoded"), CONVERT));
    }
    MappedFile::open(file).map_err(|e| SampleError::io(file, e))
}

fn damaged(file: &Path, problem: impl Into<String>, way_out: &'static str) -> SampleError {
    SampleError::Media { file: file.to_path_buf(), problem: problem.into(), way_out }
}

fn header(file: &Path, bytes: &[u8]) -> Result<SoundHeader, SampleError> {
    const AGAIN: &str = "the sound is damaged: copy it again, or take it out of the data";
    let cut = || damaged(file, "the file ends before its samples do", AGAIN);
    match (bytes.get(..4), bytes.get(8..12)) {
        (Some(b"RIFF"), Some(b"WAVE")) => {}
        (Some(b"RF64" | b"RIFX" | b"BW64"), _) => {
            return Err(damaged(file, "a variant of WAV that is not read", CONVERT));
        }
        _ => return Err(damaged(file, "is no WAV file", CONVERT)),
    }
    let (mut at, mut format) = (12, None);
    loop {
        let (name, size) = (bytes.get(at..at + 4).ok_or_else(cut)?, word(bytes, at + 4).ok_or_else(cut)?);
        let (start, end) = (at + 8, (at + 8).checked_add(size as usize).ok_or_else(cut)?);
        // Programs that write into a pipe do not know the size of the samples, which reach to the end of the file then.
        let end = if name == b"data" && size == u32::MAX { bytes.len() } else { end };
        let content = bytes.get(start..end);
        match name {
            b"fmt " => {
                format = Some(
                    Format::of(content.ok_or_else(cut)?)
                        .ok_or_else(|| damaged(file, "its format is cut short", AGAIN))?,
                )
            }
            b"data" => {
                let format = format.ok_or_else(|| damaged(file, "its samples stand before their format", AGAIN))?;
                return format
                    .header(start..content.map(|_| end).ok_or_else(cut)?)
                    .map_err(|problem| damaged(file, problem, CONVERT));
            }
            _ => {}
        }
        at = end.checked_add(size as usize % 2).ok_or_else(cut)?;
    }
}

/// The chunk that says how samples are stored.
struct Format {
    tag: u16,
    channels: u16,
    rate: u32,
    block: u16,
    bits: u16,
}

impl Format {
    /// The tag behind which the actual one stands.
    const EXTENSIBLE: u16 = 0xfffe;

    fn of(content: &[u8]) -> Option<Format> {
        let half = |at: usize| Some(u16::from_le_bytes([*content.get(at)?, *content.get(at + 1)?]));
        let tag = match half(0)? {
            Format::EXTENSIBLE => half(24)?,
            tag => tag,
        };
        Some(Format { tag, channels: half(2)?, rate: word(content, 4)?, block: half(12)?, bits: half(14)? })
    }

    /// The header of a file with its samples at these bytes.
    fn header(&self, data: Range<usize>) -> Result<SoundHeader, String> {
        let encoding = match (self.tag, self.bits) {
            (1, bits @ (8 | 16 | 24 | 32)) => Encoding::Integer(usize::from(bits / 8)),
            (3, bits @ (32 | 64)) => Encoding::Float(usize::from(bits / 8)),
            (1 | 3, bits) => return Err(format!("samples of {bits} bits are not read")),
            (2, _) => return Err("samples compressed by ADPCM are not read".to_owned()),
            (6, _) => return Err("samples compressed by A-law are not read".to_owned()),
            (7, _) => return Err("samples compressed by mu-law are not read".to_owned()),
            (tag, _) => return Err(format!("samples of the format {tag:#x} are not read")),
        };
        let channels = usize::from(self.channels);
        let frame = channels * encoding.bytes();
        if frame == 0 || usize::from(self.block) != frame || self.rate == 0 {
            let (rate, block) = (self.rate, self.block);
            return Err(format!(
                "its header contradicts itself: {channels} channels, {block} bytes for all, {rate} samples in a second"
            ));
        }
        let whole = data.len() - data.len() % frame;
        let data = data.start..data.start + whole;
        Ok(SoundHeader { rate: self.rate, samples: whole / frame, channels, encoding, data })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(four.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    /// A WAV file with another chunk of an odd size before its samples.
    fn wav(tag: u16, bits: u16, channels: u16, data: &[u8]) -> Vec<u8> {
        let block = channels * (bits / 8);
        let mut format = Vec::new();
        [tag, channels].iter().for_each(|half| format.extend(half.to_le_bytes()));
        [16_000u32, 16_000 * u32::from(block)].iter().for_each(|word| format.extend(word.to_le_bytes()));
        [block, bits].iter().for_each(|half| format.extend(half.to_le_bytes()));
        let mut bytes = b"RIFF\0\0\0\0WAVE".to_vec();
        for (name, content) in [(b"fmt ", &format[..]), (b"LIST", b"abc"), (b"data", data)] {
            bytes.extend(name);
            bytes.extend((content.len() as u32).to_le_bytes());
            bytes.extend(content);
            bytes.resize(bytes.len() + content.len() % 2, 0);
        }
        bytes
    }

    fn decoded(bytes: &[u8]) -> Result<Vec<f32>, SampleError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.wav");
        std::fs::write(&file, bytes).unwrap();
        sound_header(&file)?;
        decode_sound(&file, usize::MAX)
    }

    #[test]
    fn samples_of_all_widths_are_from_minus_one_to_one() {
        let halves: Vec<u8> = [0i16, 16384, -32768].iter().flat_map(|sample| sample.to_le_bytes()).collect();
        assert_eq!(decoded(&wav(1, 16, 1, &halves)).unwrap(), [0.0, 0.5, -1.0]);
        assert_eq!(decoded(&wav(1, 24, 1, &[0, 0, 0x40, 0, 0, 0x80])).unwrap(), [0.5, -1.0]);
        assert_eq!(decoded(&wav(1, 32, 1, &(-1i32 << 30).to_le_bytes())).unwrap(), [-0.5]);
        assert_eq!(decoded(&wav(1, 8, 1, &[128, 0, 192])).unwrap(), [0.0, -1.0, 0.5]);
        assert_eq!(decoded(&wav(3, 32, 1, &0.25f32.to_le_bytes())).unwrap(), [0.25]);
        assert_eq!(decoded(&wav(3, 64, 1, &(-0.25f64).to_le_bytes())).unwrap(), [-0.25]);
    }

    #[test]
    fn channels_are_averaged_and_samples_cut() {
        let halves: Vec<u8> = [8192i16, 16384, -8192, 8192].iter().flat_map(|sample| sample.to_le_bytes()).collect();
        assert_eq!(decoded(&wav(1, 16, 2, &halves)).unwrap(), [0.375, 0.0]);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.wav");
        std::fs::write(&file, wav(1, 16, 1, &halves)).unwrap();
        assert_eq!(decode_sound(&file, 1).unwrap(), [0.25]);
        let header = sound_header(&file).unwrap();
        assert_eq!((header.rate, header.samples), (16_000, 4));
    }

    #[test]
    fn samples_of_unknown_size_reach_to_the_end() {
        let halves: Vec<u8> = [8192i16, 16384].iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let mut bytes = wav(1, 16, 1, &halves);
        let size = bytes.len() - halves.len() - 4;
        bytes[size..][..4].fill(0xff);
        assert_eq!(decoded(&bytes).unwrap(), [0.25, 0.5]);
    }

    #[test]
    fn files_that_are_not_read_are_named() {
        let long = wav(1, 16, 1, &[0; 64]);
        for (bytes, words) in [
            (b"ID3".to_vec(), "is no WAV file"),
            (wav(2, 4, 1, &[]), "ADPCM"),
            (wav(7, 8, 1, &[0]), "mu-law"),
            (wav(1, 12, 1, &[]), "12 bits"),
            (wav(1, 16, 0, &[]), "contradicts itself"),
            (long[..long.len() - 1].to_vec(), "ends before its samples"),
            (wav(3, 32, 1, &f32::NAN.to_le_bytes()), "NaN"),
        ] {
            let error = decoded(&bytes).unwrap_err();
            assert!(error.to_string().contains(words) && error.hint().is_some(), "{error}");
        }
        let foreign = sound_header(Path::new("a.flac")).unwrap_err();
        assert!(foreign.to_string().contains("a.flac") && foreign.hint().unwrap().contains("ffmpeg"), "{foreign}");
    }

    #[test]
    fn damaged_headers_are_errors() {
        let whole = wav(1, 16, 2, &[0; 40]);
        for at in 0..52 {
            for byte in [0, 1, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                let _ = decoded(&bytes);
            }
            assert!(decoded(&whole[..at]).is_err(), "{at}");
        }
    }
}
