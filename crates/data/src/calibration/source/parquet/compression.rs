//! Pages decompressed to exactly the size that they state.

use super::super::super::stream::Frames;
use ::parquet::basic::Compression;
use std::io::{self, Read};

/// Returns whether pages compressed like this are read.
pub(super) fn is_read(compression: Compression) -> bool {
    use Compression::{GZIP, SNAPPY, UNCOMPRESSED, ZSTD};
    matches!(compression, UNCOMPRESSED | SNAPPY | GZIP(_) | ZSTD(_))
}

/// A page of `size` bytes; never uses more memory than that.
pub(super) fn decompress(compression: Compression, bytes: &[u8], size: usize) -> io::Result<Vec<u8>> {
    let lie = || io::Error::new(io::ErrorKind::InvalidData, "a page has not the size that it states");
    let page = match compression {
        Compression::UNCOMPRESSED => bytes.to_vec(),
        Compression::SNAPPY if snap::raw::decompress_len(bytes)? != size => return Err(lie()),
        Compression::SNAPPY => snap::raw::Decoder::new().decompress_vec(bytes)?,
        Compression::GZIP(_) => at_most(flate2::bufread::MultiGzDecoder::new(bytes), size)?,
        Compression::ZSTD(_) => at_most(Frames::new(bytes), size)?,
        other => return Err(io::Error::new(io::ErrorKind::Unsupported, format!("{other} is not read"))),
    };
    if page.len() == size { Ok(page) } else { Err(lie()) }
}

/// All of a stream, or one byte more than `size`.
fn at_most(stream: impl Read, size: usize) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    stream.take(size as u64 + 1).read_to_end(&mut page)?;
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decompressed_pages_must_have_the_stated_size() {
        let page = b"aaaaaaaaaaaaaaaa".repeat(99);
        let packed = snap::raw::Encoder::new().compress_vec(&page).unwrap();
        let frame = ruzstd::encoding::compress_to_vec(&page[..], ruzstd::encoding::CompressionLevel::Fastest);
        let cases = [(Compression::SNAPPY, packed), (Compression::ZSTD(Default::default()), frame)];
        for (compression, bytes) in [(Compression::UNCOMPRESSED, page.clone())].into_iter().chain(cases) {
            assert_eq!(decompress(compression, &bytes, page.len()).unwrap(), page);
            for lie in [0, 1, page.len() - 1, page.len() + 1, usize::MAX >> 1] {
                assert!(decompress(compression, &bytes, lie).is_err(), "{compression}");
            }
        }
        assert!(decompress(Compression::LZ4, b"", 0).is_err());
    }
}
