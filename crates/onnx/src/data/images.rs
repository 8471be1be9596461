//! Folders of images as a model's input, by declared steps. JPEG and PNG.

use std::path::{Path, PathBuf};

use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageReader, Limits, RgbImage};
use kvant_container::onnx::DataType;

use super::array::{Array, Values};
use super::column::Column;
use super::error::DataError;
use super::inputs::{Axis, Input, display_axes};
use super::preprocessing::{Channels, Layout, Preprocessing, Resize};

/// The longest side and the memory of a decoded image.
const LONGEST_SIDE: u32 = 1 << 15;
const MOST_MEMORY: u64 = 1 << 30;

/// The images of a folder, one after the other.
#[derive(Debug)]
struct ImageColumn {
    input: Input,
    files: Vec<PathBuf>,
    steps: Preprocessing,
    batch: usize,
}

/// The images of these files, in this order. A fixed batch takes as many at a time.
pub(super) fn column(input: &Input, files: Vec<PathBuf>, steps: Preprocessing) -> Result<Box<dyn Column>, DataError> {
    Ok(Box::new(ImageColumn::new(input, files, steps)?))
}

impl ImageColumn {
    fn new(input: &Input, files: Vec<PathBuf>, steps: Preprocessing) -> Result<Self, DataError> {
        let batch = match input.axes.as_deref() {
            Some([Axis::Fixed(batch), _, _, _]) => *batch,
            Some([Axis::Open(_), _, _, _]) | None => 1,
            Some(other) => {
                let problem = format!("images for an input of shape {}", display_axes(other));
                return Err(DataError::Mismatch { input: input.name.clone(), problem });
            }
        };
        Ok(Self { input: input.clone(), files, steps, batch: batch.max(1) })
    }

    fn mismatch(&self, problem: String) -> DataError {
        DataError::Mismatch { input: self.input.name.clone(), problem }
    }
}

impl Column for ImageColumn {
    fn len(&self) -> usize {
        self.files.len() / self.batch
    }

    fn sample(&mut self, index: usize) -> Result<Array<'_>, DataError> {
        let files = self.files.get(index * self.batch..(index + 1) * self.batch);
        let files = files.ok_or_else(|| self.mismatch(format!("there is no sample {index}")))?;
        let mut values = Vec::new();
        let mut one = Vec::new();
        for file in files {
            let (shape, pixels) = prepare(file, &self.steps)?;
            if !one.is_empty() && one != shape {
                return Err(
                    self.mismatch(format!("{}: its size differs from the others'; declare one", file.display()))
                );
            }
            one = shape;
            values.extend(pixels);
        }
        let shape = [&[self.batch], &one[..]].concat();
        let fits = |axes: &Vec<Axis>| axes.iter().zip(&shape).all(|(axis, &size)| axis.fits(size));
        if !self.input.axes.as_ref().is_none_or(fits) {
            let axes = self.input.axes.as_deref().map(display_axes).unwrap_or_default();
            return Err(
                self.mismatch(format!("images come out as {shape:?}, the model takes {axes}: declare size or crop"))
            );
        }
        let values = match self.input.data_type {
            DataType::UINT8 if self.steps.keep_values() => Values::U8(values.iter().map(|&v| v as u8).collect()),
            _ => Values::F32(values.into()),
        };
        Array::new(shape, values).ok_or_else(|| self.mismatch("sizes that do not agree".to_owned()))
    }

    fn place(&self, index: usize) -> PathBuf {
        self.files.get(index * self.batch).cloned().unwrap_or_default()
    }
}

/// The shape without batch and the values of one image.
fn prepare(file: &Path, steps: &Preprocessing) -> Result<(Vec<usize>, Vec<f32>), DataError> {
    let image = decode(file)?;
    let invalid = |problem| DataError::invalid(file, problem);
    let image = resized(image, steps.resize).map_err(invalid)?;
    let image = cropped(image, steps.crop).map_err(invalid)?;
    let (width, height) = (image.width() as usize, image.height() as usize);
    let order: &[usize] = match steps.channels {
        Channels::Rgb => &[0, 1, 2],
        Channels::Bgr => &[2, 1, 0],
        Channels::Gray => &[0],
    };
    let pixels: Vec<[u8; 3]> = match steps.channels {
        Channels::Gray => DynamicImage::ImageRgb8(image).to_luma8().pixels().map(|p| [p.0[0]; 3]).collect(),
        _ => image.pixels().map(|p| p.0).collect(),
    };
    let value = |pixel: &[u8; 3], place: usize| {
        (f32::from(pixel[order[place]]) * steps.scale - steps.mean[place]) / steps.std[place]
    };
    let places = order.len();
    Ok(match steps.layout {
        Layout::Nchw => {
            let values = (0..places).flat_map(|c| pixels.iter().map(move |p| (p, c))).map(|(p, c)| value(p, c));
            (vec![places, height, width], values.collect())
        }
        Layout::Nhwc => {
            let values = pixels.iter().flat_map(|p| (0..places).map(move |c| (p, c))).map(|(p, c)| value(p, c));
            (vec![height, width, places], values.collect())
        }
    })
}

fn decode(file: &Path) -> Result<RgbImage, DataError> {
    let mut limits = Limits::default();
    limits.max_image_width = Some(LONGEST_SIDE);
    limits.max_image_height = Some(LONGEST_SIDE);
    limits.max_alloc = Some(MOST_MEMORY);
    let reader = ImageReader::open(file).and_then(ImageReader::with_guessed_format);
    let mut reader = reader.map_err(|e| DataError::io(file, e))?;
    reader.limits(limits);
    reader.decode().map(|image| image.to_rgb8()).map_err(|e| DataError::invalid(file, e.to_string()))
}

/// Bilinear, over the whole area where it shrinks: what Pillow and torchvision do.
fn resized(image: RgbImage, to: Option<Resize>) -> Result<RgbImage, String> {
    let (width, height) = image.dimensions();
    let (new_width, new_height) = match to {
        None => return Ok(image),
        Some(Resize::Exact(height, width)) => (width, height),
        Some(Resize::Shorter(side)) => {
            let long = |other: u32, short: u32| {
                let length = u64::from(other) * u64::from(side) / u64::from(short.max(1));
                u32::try_from(length).unwrap_or(u32::MAX)
            };
            match width <= height {
                true => (side, long(height, width)),
                false => (long(width, height), side),
            }
        }
    };
    if (new_width, new_height) == (width, height) {
        return Ok(image);
    }
    // In between it has the new width and the old height, four floats a pixel.
    let pixels = u64::from(new_width).saturating_mul(u64::from(new_height.max(height)));
    if pixels > MOST_MEMORY / 16 {
        return Err(format!("an image of {height}x{width} becomes too large at {new_height}x{new_width}"));
    }
    Ok(imageops::resize(&image, new_width, new_height, FilterType::Triangle))
}

fn cropped(image: RgbImage, to: Option<(u32, u32)>) -> Result<RgbImage, String> {
    let Some((height, width)) = to else { return Ok(image) };
    let (w, h) = image.dimensions();
    if width > w || height > h {
        return Err(format!("an image of {h}x{w} is smaller than the crop of {height}x{width}"));
    }
    // torchvision rounds half to even, as Python does.
    let middle = |free: u32| (f64::from(free) / 2.0).round_ties_even() as u32;
    Ok(imageops::crop_imm(&image, middle(w - width), middle(h - height), width, height).to_image())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_grow_beyond_memory_is_refused() {
        let line = || RgbImage::new(1, LONGEST_SIDE);
        assert!(resized(line(), Some(Resize::Shorter(256))).unwrap_err().contains("becomes too large at 8388608x256"));
        assert!(resized(line(), Some(Resize::Exact(u32::MAX, u32::MAX))).is_err());
        let shrunk = resized(line(), Some(Resize::Exact(4, 2))).unwrap();
        assert_eq!(shrunk.dimensions(), (2, 4));
    }
}
