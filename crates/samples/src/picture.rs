//! Pictures in JPEG and PNG files, decoded to red, green and blue.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits};

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

/// Height and width of the picture in a file as it is shown, from its header.
///
/// # Errors
/// Files that cannot be read, that are no pictures, and damaged ones.
pub fn picture_size(file: &Path) -> Result<[usize; 2], SampleError> {
    let mut decoder = reader(file)?.into_decoder().map_err(|e| damaged(file, &e))?;
    let (width, height) = decoder.dimensions();
    let (width, height) = match orientation(&mut decoder) {
        Orientation::Rotate90 | Orientation::Rotate270 | Orientation::Rotate90FlipH | Orientation::Rotate270FlipH => {
            (height, width)
        }
        _ => (width, height),
    };
    Ok([height as usize, width as usize])
}

/// The picture in a file, whatever its name says of its format, turned as its EXIF data say, as transformers and OpenCV do. Alpha is left out.
///
/// # Errors
/// Files that cannot be read, that are no pictures, damaged ones, and pictures that take too much memory.
pub fn decode(file: &Path) -> Result<Picture, SampleError> {
    let mut decoder = reader(file)?.into_decoder().map_err(|e| damaged(file, &e))?;
    let orientation = orientation(&mut decoder);
    let mut image = DynamicImage::from_decoder(decoder).map_err(|e| damaged(file, &e))?;
    image.apply_orientation(orientation);
    let image = image.to_rgb8();
    let (width, height) = (image.width() as usize, image.height() as usize);
    Ok(Picture { width, height, pixels: image.into_raw() })
}

/// How the picture is turned to be shown. EXIF data that cannot be read turn nothing, as in other programs.
fn orientation(decoder: &mut impl ImageDecoder) -> Orientation {
    decoder.orientation().unwrap_or(Orientation::NoTransforms)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A JPEG file of two columns, black and white, with this orientation in its EXIF data.
    fn jpeg(orientation: u8) -> Vec<u8> {
        let pixels: Vec<u8> = (0..16 * 8).flat_map(|at| [if at % 16 < 8 { 0 } else { 255 }; 3]).collect();
        let mut bytes = Vec::new();
        let mut encoder = image::codecs::jpeg::JpegEncoder::new(&mut bytes);
        encoder.encode(&pixels, 16, 8, image::ExtendedColorType::Rgb8).unwrap();
        let mut exif = b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
        exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
        bytes.splice(2..2, exif);
        bytes
    }

    #[test]
    fn pictures_are_turned_as_their_exif_data_say() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.jpg");
        for (orientation, size, first_is_black) in
            [(1, [8, 16], true), (3, [8, 16], false), (6, [16, 8], true), (8, [16, 8], false)]
        {
            std::fs::write(&file, jpeg(orientation)).unwrap();
            assert_eq!(picture_size(&file).unwrap(), size, "{orientation}");
            let picture = decode(&file).unwrap();
            assert_eq!([picture.height, picture.width], size, "{orientation}");
            assert_eq!(picture.pixels[0] < 128, first_is_black, "{orientation}");
        }
    }
}
