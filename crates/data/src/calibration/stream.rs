//! A file's bytes in order: decompressed, counted against a limit, and hashed. No formats of rows.

use super::CalibrationDataError;
use super::files::{Compression, DataFile};
use ruzstd::decoding::FrameDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use xxhash_rust::xxh3::Xxh3;

const BUFFER: usize = 1 << 18;

/// Opens a file for reading at most `limit` bytes of what it holds when decompressed.
pub(super) fn open(file: &DataFile, limit: u64) -> Result<impl BufRead + use<>, CalibrationDataError> {
    let raw = BufReader::with_capacity(BUFFER, open_raw(&file.path)?);
    let plain: Box<dyn Read> = match file.compression {
        Compression::None => Box::new(raw),
        Compression::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(raw)),
        Compression::Zstandard => Box::new(Frames::new(raw)),
    };
    Ok(BufReader::with_capacity(BUFFER, Limited { plain, left: limit }))
}

/// Classifies a read error: too large, damaged, or a system error.
pub(super) fn failure(file: &DataFile, limit: u64, cause: io::Error) -> CalibrationDataError {
    let path = file.path.clone();
    if cause.get_ref().is_some_and(|inner| inner.is::<Exhausted>()) {
        return CalibrationDataError::TooLarge { file: path, limit };
    }
    match file.compression {
        Compression::None => CalibrationDataError::Read { file: path, cause },
        _ => CalibrationDataError::damaged(&path, format!("cannot be decompressed: {cause}")),
    }
}

/// Passes over a byte order mark.
pub(super) fn skip_mark(stream: &mut impl BufRead) -> io::Result<()> {
    if stream.fill_buf()?.starts_with(b"\xEF\xBB\xBF") {
        stream.consume(3);
    }
    Ok(())
}

/// The XXH3 hash, 128 bits as hexadecimal digits, of a file as it lies on disk, and its length.
pub(super) fn hash(path: &Path) -> Result<(String, u64), CalibrationDataError> {
    let unreadable = |cause| CalibrationDataError::Read { file: path.to_path_buf(), cause };
    let (mut file, mut hash, mut length) = (open_raw(path)?, Xxh3::new(), 0);
    let mut buffer = vec![0; BUFFER];
    loop {
        match file.read(&mut buffer).map_err(unreadable)? {
            0 => return Ok((format!("{:032x}", hash.digest128()), length)),
            read => {
                hash.update(&buffer[..read]);
                length += read as u64;
            }
        }
    }
}

/// Opens a regular file: another could block for ever.
fn open_raw(path: &Path) -> Result<File, CalibrationDataError> {
    let unreadable = |cause| CalibrationDataError::Read { file: path.to_path_buf(), cause };
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err(unreadable(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
    }
    File::open(path).map_err(unreadable)
}

/// The error for a stream beyond its limit.
#[derive(Debug, thiserror::Error)]
#[error("there is more than the limit")]
struct Exhausted;

/// A stream that fails beyond a number of bytes.
struct Limited {
    plain: Box<dyn Read>,
    left: u64,
}

impl Read for Limited {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.plain.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or_else(|| io::Error::other(Exhausted))?;
        Ok(read)
    }
}

/// A Zstandard stream: frames one after another, some of which may be there to be skipped. Memory is bounded by the window
/// that the decoder accepts, 128 MiB.
pub(super) struct Frames<R> {
    source: R,
    frame: FrameDecoder,
    reading: bool,
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.reading && !self.begin()? {
                return Ok(0);
            }
            while self.frame.can_collect() == 0 && !self.frame.is_finished() {
                let one = ruzstd::decoding::BlockDecodingStrategy::UptoBlocks(1);
                self.frame.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
            }
            match self.frame.read(buffer)? {
                0 if !buffer.is_empty() => self.end()?,
                read => return Ok(read),
            }
        }
    }
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(source: R) -> Frames<R> {
        Frames { source, frame: FrameDecoder::new(), reading: false }
    }

    /// Begins the next frame; `false` at the end.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.frame.reset(&mut self.source) {
                Ok(()) => {
                    self.reading = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }

    /// Ends a frame whose bytes have all been read, checking their sum where the frame has one.
    fn end(&mut self) -> io::Result<()> {
        self.reading = false;
        match (self.frame.get_checksum_from_data(), self.frame.get_calculated_checksum()) {
            (Some(stored), Some(computed)) if stored != computed => Err(io::Error::other("the checksum is wrong")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibration::files::resolve;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};
    use std::io::Write;

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn zstandard(text: &[u8]) -> Vec<u8> {
        compress_to_vec(text, CompressionLevel::Fastest)
    }

    fn read(name: &str, bytes: &[u8], limit: u64) -> Result<String, CalibrationDataError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(name), bytes).unwrap();
        let file = resolve(&[dir.path().join(name)])?.remove(0);
        let mut text = String::new();
        match open(&file, limit)?.read_to_string(&mut text) {
            Ok(_) => Ok(text),
            Err(cause) => Err(failure(&file, limit, cause)),
        }
    }

    #[test]
    fn concatenated_streams_are_joined() {
        let skippable = [&0x184D_2A50_u32.to_le_bytes()[..], &3_u32.to_le_bytes(), b"xyz"].concat();
        assert_eq!(read("a.txt", b"one two", 99).unwrap(), "one two");
        assert_eq!(read("a.txt.gz", &[gzip(b"one "), gzip(b"two")].concat(), 99).unwrap(), "one two");
        let frames = [zstandard(b"one "), skippable, zstandard(b""), zstandard(b"two")].concat();
        assert_eq!(read("a.txt.zst", &frames, 99).unwrap(), "one two");
    }

    #[test]
    fn decompression_bombs_are_refused() {
        let zeros = vec![b'0'; 3_000_000];
        for (name, bomb) in [("a.txt.gz", gzip(&zeros)), ("a.txt.zst", zstandard(&zeros)), ("a.txt", zeros.clone())] {
            assert_eq!(read(name, &bomb, 3_000_000).unwrap().len(), zeros.len());
            let error = read(name, &bomb, 2_999_999).unwrap_err();
            assert!(matches!(error, CalibrationDataError::TooLarge { limit: 2_999_999, .. }), "{error}");
        }
    }

    #[test]
    fn damaged_streams_are_errors() {
        let text: Vec<u8> = (0..9999_u32).flat_map(u32::to_le_bytes).map(|byte| byte % 64 + 32).collect();
        for (name, whole) in [("a.txt.gz", gzip(&text)), ("a.txt.zst", zstandard(&text))] {
            for damaged in [&whole[..whole.len() - 9], b"no such stream"] {
                let error = read(name, damaged, 1 << 20).unwrap_err();
                assert!(matches!(error, CalibrationDataError::Damaged { .. }), "{name}: {error}");
            }
        }
    }

    #[test]
    fn hash_is_that_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, b"abc").unwrap();
        let expected = format!("{:032x}", xxhash_rust::xxh3::xxh3_128(b"abc"));
        assert_eq!(hash(&path).unwrap(), (expected, 3));
    }
}
