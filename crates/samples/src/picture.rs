//! Pictures in JPEG and PNG files, decoded to red, green and blue.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use image::{ImageReader, Limits};

use crate::error::SampleError;

/// The longest side of a decoded picture.
const LONGEST_SIDE: u32 = 1 << 15;

/// The memory of a decoded picture, in bytes.
pub const MOST_MEMORY: u64 = 1 << 30;

/// A decoded picture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Red, green and blue of every pixel, row by row from the top.
    pub pixels: Vec<u8>,
}

/// Height and width of the picture in a file, from its header.
///
/// # Errors
/// Files that cannot be read, that are no pictures, and damaged ones.
pub fn picture_size(file: &Path) -> Result<[usize; 2], SampleError> {
    let (width, height) = reader(file)?.into_dimensions().map_err(|e| damaged(file, &e))?;
    Ok([height as usize, width as usize])
}

/// The picture in a file, whatever its name says of its format. Alpha is left out.
///
/// # Errors
/// Files that cannot be read, that are no pictures, damaged ones, and pictures that take too much memory.
pub fn decode(file: &Path) -> Result<Picture, SampleError> {
    let image = reader(file)?.decode().map_err(|e| damaged(file, &e))?.to_rgb8();
    let (width, height) = (image.width() as usize, image.height() as usize);
    Ok(Picture { width, height, pixels: image.into_raw() })
}

fn reader(file: &Path) -> Result<ImageReader<BufReader<File>>, SampleError> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(LONGEST_SIDE);
    limits.max_image_height = Some(LONGEST_SIDE);
    limits.max_alloc = Some(MOST_MEMORY);
    let reader = ImageReader::open(file).and_then(ImageReader::with_guessed_format);
    let mut reader = reader.map_err(|e| SampleError::io(file, e))?;
    reader.limits(limits);
    Ok(reader)
}

fn damaged(file: &Path, problem: &image::ImageError) -> SampleError {
    let way_out = match problem {
        image::ImageError::Unsupported(_) => "convert the picture to PNG or JPEG, or take it out of the data",
        _ => "the picture is damaged: copy it again, or take it out of the data",
    };
    SampleError::Media { file: file.to_path_buf(), problem: problem.to_string(), way_out }
}
