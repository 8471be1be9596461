//! Pictures in JPEG and PNG files, decoded to red, green and blue.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageReader, Limits, RgbImage};

use crate::error::SampleError;

/// The longest side of a decoded picture.
const LONGEST_SIDE: u32 = 1 << 15;

/// The quality of small pictures, of 100.
const QUALITY: u8 = 85;

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

/// The picture in a file, reduced to fit a square of `side` pixels, in JPEG.
///
/// # Errors
/// Those of [`decode`].
pub fn small_jpeg(file: &Path, side: u32) -> Result<Vec<u8>, SampleError> {
    let Picture { width, height, pixels } = decode(file)?;
    let picture = RgbImage::from_raw(width as u32, height as u32, pixels);
    let picture = picture.ok_or_else(|| SampleError::invalid(file, "a picture of no size"))?;
    let picture = DynamicImage::ImageRgb8(picture);
    let is_small = width.max(height) <= side as usize;
    let picture = if is_small { picture } else { picture.thumbnail(side, side) };
    let mut bytes = Vec::new();
    let encoder = JpegEncoder::new_with_quality(&mut bytes, QUALITY);
    picture.write_with_encoder(encoder).map_err(|e| damaged(file, &e))?;
    Ok(bytes)
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
    fn small_pictures_keep_their_shape_and_fit() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.png");
        for ((width, height), expected) in [((300, 100), (32, 96)), ((40, 20), (20, 40)), ((96, 300), (96, 31))] {
            RgbImage::from_pixel(width, height, image::Rgb([200, 10, 10])).save(&file).unwrap();
            let bytes = small_jpeg(&file, 96).unwrap();
            assert!(bytes.len() < 4096, "{}", bytes.len());
            let small = dir.path().join("small.jpg");
            std::fs::write(&small, bytes).unwrap();
            let picture = decode(&small).unwrap();
            assert_eq!((picture.height, picture.width), expected);
            assert!(picture.pixels[0] > 180 && picture.pixels[1] < 40, "{:?}", &picture.pixels[..3]);
        }
        std::fs::write(&file, "no picture").unwrap();
        assert!(small_jpeg(&file, 96).is_err());
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
