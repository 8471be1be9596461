//! Images for models of images: files of pictures, prepared as the checkpoint's `preprocessor_config.json` says, or arrays of `pixel_values`
//! that are prepared already. One image is read at a time; what a model makes of its pixels is not decided here.

mod error;
mod in_text;
mod processor;
mod processor_config;

pub use error::ImageDataError;
pub use in_text::{ImageMarks, ImagesUnread, TextImageFormat, TextImageProvenance, TextImages};
pub use processor::{ImageProcessor, PatchSizes};

use crate::hashed::HashedFiles;
use kvant_quant::random::SplitMix64;
use kvant_samples::{SampleError, Stored, arrays, files, is_image};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The name of arrays that are meant for a model of images, where a file has several.
const PIXELS: &str = "pixel_values";

/// Images, prepared one at a time.
#[derive(Debug)]
pub struct Images {
    source: Source,
    /// The images that count, by their numbers in the source.
    order: Vec<usize>,
    shapes: Shapes,
}

/// Channels, height and width.
#[derive(Debug)]
enum Shapes {
    /// Those of all images.
    Equal([usize; 3]),
    /// Those of each image of the source.
    Each(Vec<[usize; 3]>),
}

#[derive(Debug)]
enum Source {
    Pictures {
        files: Vec<PathBuf>,
        processor: ImageProcessor,
    },
    /// Arrays `[images, channels, height, width]`, or `[channels, height, width]` of one image.
    Arrays {
        parts: Mutex<Vec<Stored>>,
        counts: Vec<usize>,
    },
}

/// Which images are taken.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImageOptions {
    /// At most so many; all where `None`.
    pub samples: Option<usize>,
    /// Whether they are taken in an order that the seed decides.
    pub shuffle: bool,
    /// The seed.
    pub seed: u64,
}

impl ImageOptions {
    /// The numbers of the samples that are taken of `count`, in their order.
    pub(crate) fn order(self, count: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..count).collect();
        if self.shuffle {
            SplitMix64::new(self.seed).shuffle(&mut order);
        }
        order.truncate(self.samples.unwrap_or(count));
        order
    }
}

/// Where images come from, for the metadata of an output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageProvenance {
    /// The name of the file or folder, without directories above it.
    pub name: String,
    /// Its files.
    pub files: usize,
    /// The bytes of all files.
    pub bytes: u64,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of the names and bytes of all files.
    pub xxh3_128: String,
    /// Images that are used.
    pub samples: usize,
    /// Images that were asked for.
    pub samples_asked: usize,
    /// Further images that are held out.
    pub held_out: usize,
    /// Channels, height and width of an image.
    pub shape: [usize; 3],
    /// The steps from a picture to pixels; none for arrays.
    pub preprocessing: Option<ImageProcessor>,
    /// The seed of shuffled images.
    pub seed: u64,
    /// Whether images were shuffled.
    pub shuffled: bool,
}

impl Images {
    /// The images of a file or folder, for a model that takes images of `shape`: channels, height and width. The directory `model` has the
    /// preprocessor_config.json, which arrays do not need. Pictures are decoded later, arrays are checked here.
    ///
    /// # Errors
    /// Paths that cannot be read, files of other kinds, pictures beside arrays, a model without preprocessing, arrays and preprocessing of
    /// another shape.
    pub fn open(path: &Path, model: &Path, shape: [usize; 3], options: ImageOptions) -> Result<Images, ImageDataError> {
        let found = files(path)?;
        let (pictures, others): (Vec<PathBuf>, Vec<PathBuf>) = found.into_iter().partition(|file| is_image(file));
        let (source, count) = match (pictures.first(), others.first()) {
            (Some(picture), Some(other)) => {
                return Err(ImageDataError::Mixed { picture: picture.clone(), other: other.clone() });
            }
            (Some(_), None) => {
                let processor = ImageProcessor::of_model(model)?;
                processor.check(shape)?;
                let count = pictures.len();
                (Source::Pictures { files: pictures, processor }, count)
            }
            (None, _) => of_arrays(arrays(&others)?, shape)?,
        };
        let order = options.order(count);
        match order.is_empty() {
            true => Err(SampleError::invalid(path, "no image").into()),
            false => Ok(Images { source, order, shapes: Shapes::Equal(shape) }),
        }
    }

    /// The number of images.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Channels, height and width of each image.
    pub fn shapes(&self) -> impl Iterator<Item = [usize; 3]> + '_ {
        self.order.iter().map(|number| self.shape_of(*number))
    }

    /// The same of an image of the source.
    fn shape_of(&self, number: usize) -> [usize; 3] {
        match &self.shapes {
            Shapes::Equal(shape) => *shape,
            Shapes::Each(shapes) => shapes[number],
        }
    }

    /// The pixels of an image, channel by channel, row by row.
    ///
    /// # Errors
    /// Damaged files, pictures that cannot be prepared, values that are NaN or infinite, an image beyond the last one.
    pub fn pixels(&self, index: usize) -> Result<Vec<f32>, ImageDataError> {
        let number = *self.order.get(index).ok_or(ImageDataError::NoImage { index, count: self.order.len() })?;
        let shape = self.shape_of(number);
        match &self.source {
            Source::Pictures { files, processor } => {
                let pixels = processor.pixels(&files[number])?;
                match pixels.len() == shape.iter().product::<usize>() {
                    true => Ok(pixels),
                    false => {
                        Err(SampleError::invalid(&files[number], "another picture than when its size was read").into())
                    }
                }
            }
            Source::Arrays { parts, counts } => {
                let (part, image) = place_of(number, counts);
                let mut parts = parts.lock().unwrap_or_else(PoisonError::into_inner);
                let stored = &mut parts[part];
                let size: usize = shape.iter().product();
                let values = stored.read(image * size, shape.to_vec())?.to_f32s().into_owned();
                match values.iter().find(|value| !value.is_finite()) {
                    None => Ok(values),
                    Some(value) => Err(ImageDataError::NotFinite { file: stored.place.clone(), image, value: *value }),
                }
            }
        }
    }

    /// Where the images of a path come from; those beyond `samples` of the options are held out.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub fn provenance(&self, path: &Path, options: ImageOptions) -> Result<ImageProvenance, ImageDataError> {
        let found = files(path)?;
        let HashedFiles { bytes, xxh3_128 } = HashedFiles::of(path, &found)?;
        let asked = options.samples.unwrap_or(self.order.len());
        let samples = self.order.len().min(asked);
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(ImageProvenance {
            name,
            files: found.len(),
            bytes,
            xxh3_128,
            samples,
            samples_asked: asked,
            held_out: self.order.len() - samples,
            shape: self.shapes().next().unwrap_or_default(),
            preprocessing: match &self.source {
                Source::Pictures { processor, .. } => Some(processor.clone()),
                Source::Arrays { .. } => None,
            },
            seed: options.seed,
            shuffled: options.shuffle,
        })
    }
}

/// The array that has an image, and its number there.
fn place_of(number: usize, counts: &[usize]) -> (usize, usize) {
    let mut rest = number;
    for (part, count) in counts.iter().enumerate() {
        if rest < *count {
            return (part, rest);
        }
        rest -= count;
    }
    (counts.len().saturating_sub(1), rest)
}

/// Arrays of images: those called `pixel_values` where a file has several.
fn of_arrays(mut all: Vec<Stored>, shape: [usize; 3]) -> Result<(Source, usize), ImageDataError> {
    if all.iter().any(|stored| stored.name == PIXELS) {
        all.retain(|stored| stored.name == PIXELS);
    }
    let mut counts = Vec::new();
    for stored in &all {
        let count = match &stored.shape[..] {
            [images, rest @ ..] if rest == shape => *images,
            whole if whole == shape => 1,
            _ => {
                return Err(ImageDataError::Shape {
                    file: stored.place.clone(),
                    found: stored.shape.clone(),
                    expected: shape,
                });
            }
        };
        counts.push(count);
    }
    let count = counts.iter().sum();
    Ok((Source::Arrays { parts: Mutex::new(all), counts }, count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    /// An array of NumPy with these values.
    fn npy(shape: &str, values: &[f32]) -> Vec<u8> {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    fn opened(contents: &[u8], options: ImageOptions) -> Result<Images, ImageDataError> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pixels.npy");
        std::fs::write(&file, contents).unwrap();
        Images::open(&file, dir.path(), [1, 2, 2], options)
    }

    #[test]
    fn arrays_hold_images_one_after_the_other() {
        let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
        let images = opened(&npy("(3, 1, 2, 2)", &values), ImageOptions::default()).unwrap();
        assert_eq!(images.shapes().collect::<Vec<_>>(), [[1, 2, 2]; 3]);
        assert_eq!(images.pixels(2).unwrap(), [8.0, 9.0, 10.0, 11.0]);
        assert!(matches!(images.pixels(3), Err(ImageDataError::NoImage { index: 3, count: 3 })));
        let shuffled = ImageOptions { samples: Some(2), shuffle: true, seed: 3 };
        let some = opened(&npy("(3, 1, 2, 2)", &values), shuffled).unwrap();
        assert_eq!(some.len(), 2);
        assert_ne!(some.pixels(0).unwrap(), some.pixels(1).unwrap());
        let one = opened(&npy("(1, 2, 2)", &values[..4]), ImageOptions::default()).unwrap();
        assert_eq!((one.len(), one.pixels(0).unwrap()[3]), (1, 3.0));
    }

    #[test]
    fn images_of_another_shape_and_values_that_are_no_numbers_are_named() {
        let other = opened(&npy("(1, 1, 2, 3)", &[0.0; 6]), ImageOptions::default()).unwrap_err();
        assert!(other.to_string().contains("[1, 1, 2, 3]") && other.hint().is_some(), "{other}");
        let broken = opened(&npy("(1, 1, 2, 2)", &[0.0, f32::NAN, 0.0, 0.0]), ImageOptions::default()).unwrap();
        let error = broken.pixels(0).unwrap_err();
        assert!(error.to_string().contains("pixels.npy") && error.to_string().contains("NaN"), "{error}");
        let none = opened(&npy("(0, 1, 2, 2)", &[]), ImageOptions::default()).unwrap_err();
        assert!(none.to_string().contains("no image"), "{none}");
    }
}
