//! Runs of numbers in a file, little endian, as `f32` or, where they are bfloat16, as that. Not which runs lie where: see
//! the streams of a pass and those between blocks.

use kvant_container::positioned;
use kvant_numeric::arithmetic::{bf16_to_f32, round_to_bf16};
use kvant_numeric::linalg::Precision;
use rayon::prelude::*;
use std::fs::File;
use std::io;

/// Bytes of a number.
pub fn size(precision: Precision) -> usize {
    match precision {
        Precision::F32 => 4,
        Precision::Bf16 => 2,
    }
}

/// Writes numbers of this precision from byte `offset` on.
///
/// # Errors
/// System errors.
pub fn write(file: &File, precision: Precision, offset: u64, data: &[f32]) -> io::Result<()> {
    let size = size(precision);
    data.par_chunks(PIECE).enumerate().try_for_each_init(Vec::new, |bytes, (index, piece)| {
        bytes.resize(size * piece.len(), 0);
        match precision {
            Precision::F32 => encode(piece, bytes, f32::to_le_bytes),
            Precision::Bf16 => {
                encode(piece, bytes, |value| ((round_to_bf16(value).to_bits() >> 16) as u16).to_le_bytes())
            }
        }
        positioned::write_all_at(file, bytes, offset + (index * PIECE * size) as u64)
    })
}

fn encode<const N: usize>(values: &[f32], bytes: &mut [u8], encode: impl Fn(f32) -> [u8; N]) {
    bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = encode(*value));
}

/// Reads numbers from byte `offset` on into `data`, reusing its memory.
///
/// # Errors
/// System errors.
pub fn read(
    file: &File,
    precision: Precision,
    offset: u64,
    elements: usize,
    mut data: Vec<f32>,
) -> io::Result<Vec<f32>> {
    let size = size(precision);
    data.resize(elements, 0.0);
    let pieces = data.par_chunks_mut(PIECE).enumerate();
    pieces.try_for_each_init(Vec::new, |bytes, (index, piece)| {
        bytes.resize(size * piece.len(), 0);
        positioned::read_exact_at(file, bytes, offset + (index * PIECE * size) as u64)?;
        match precision {
            Precision::F32 => decode(bytes, piece, f32::from_le_bytes),
            Precision::Bf16 => decode(bytes, piece, |bytes| bf16_to_f32(u16::from_le_bytes(bytes))),
        }
        Ok::<(), io::Error>(())
    })?;
    Ok(data)
}

fn decode<const N: usize>(bytes: &[u8], values: &mut [f32], decode: impl Fn([u8; N]) -> f32) {
    values.iter_mut().zip(bytes.as_chunks().0).for_each(|(value, bytes)| *value = decode(*bytes));
}

/// Elements that are turned into bytes at a time.
pub const PIECE: usize = 256 << 10;
