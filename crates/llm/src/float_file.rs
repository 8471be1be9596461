//! Runs of `f32` in a file, little endian. Not which runs lie where: see the streams of a pass and those between blocks.

use kvant_container::positioned;
use std::fs::File;
use std::io;

/// Writes numbers from byte `offset` on.
///
/// # Errors
/// The system's.
pub(crate) fn write(file: &File, mut offset: u64, data: &[f32]) -> io::Result<()> {
    for piece in data.chunks(PIECE) {
        let bytes: Vec<u8> = piece.iter().flat_map(|value| value.to_le_bytes()).collect();
        positioned::write_all_at(file, &bytes, offset)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}

/// Reads so many numbers from byte `offset` on.
///
/// # Errors
/// The system's.
pub(crate) fn read(file: &File, mut offset: u64, elements: usize) -> io::Result<Vec<f32>> {
    let mut data = Vec::with_capacity(elements);
    let mut bytes = vec![0; 4 * PIECE.min(elements)];
    while data.len() < elements {
        let bytes = &mut bytes[..4 * PIECE.min(elements - data.len())];
        positioned::read_exact_at(file, bytes, offset)?;
        data.extend(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])));
        offset += bytes.len() as u64;
    }
    Ok(data)
}

/// Elements that are turned into bytes at a time.
pub(crate) const PIECE: usize = 256 << 10;
