//! Folders of images as a model's input, by declared steps. JPEG and PNG.

use std::path::{Path, PathBuf};

use image::imageops::{self, FilterType};
use image::{DynamicImage, Rgb, RgbImage};
use kvant_container::onnx::DataType;
use kvant_samples::{Array, MOST_MEMORY, Picture, SampleError, Values};

use super::column::Column;
use super::error::DataError;
use super::inputs::{Axis, Input, display_axes};
use super::preprocessing::{Channels, Interpolation, Layout, Preprocessing, Resize};

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
                let problem = format!("it is of shape {}", display_axes(other));
                let way_out = "give arrays: images are for inputs of four axes";
                return Err(DataError::Images { input: input.name.clone(), problem, way_out });
            }
        };
        Ok(Self { input: input.clone(), files, steps, batch: batch.max(1) })
    }

    fn mismatch(&self, problem: String) -> DataError {
        DataError::Mismatch { input: self.input.name.clone(), problem }
    }

    fn unfit(&self, problem: String, way_out: &'static str) -> DataError {
        DataError::Images { input: self.input.name.clone(), problem, way_out }
    }

    /// What to declare so that images of a shape fit.
    fn way_out(&self, shape: &[usize]) -> &'static str {
        let axes = self.input.axes.as_deref().unwrap_or_default();
        let fits = |at: usize, size: usize| axes.get(at).is_none_or(|axis| axis.fits(size));
        let (last, channels) = (axes.len().saturating_sub(1), self.steps.channels.number());
        let (own, other, layout) = match self.steps.layout {
            Layout::Nchw => (1, last, "declare ‹preprocess› layout=nhwc"),
            Layout::Nhwc => (last, 1, "declare ‹preprocess› layout=nchw"),
        };
        match axes.get(own) {
            _ if shape.len() != axes.len() || fits(own, channels) => "declare size or crop with ‹preprocess›",
            _ if fits(other, channels) => layout,
            Some(Axis::Fixed(1)) => "declare ‹preprocess› channels=gray",
            Some(Axis::Fixed(3)) => "declare ‹preprocess› channels=rgb, or bgr",
            // Its channels may be in the other place.
            _ if axes.get(other).is_some_and(|axis| matches!(axis, Axis::Fixed(1 | 3))) => layout,
            _ => "give arrays: images have one channel or three",
        }
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
                let problem = format!("{}: its size differs from the others'", file.display());
                return Err(self.unfit(problem, "declare one size for all with ‹preprocess› size=HEIGHTxWIDTH"));
            }
            one = shape;
            values.extend(pixels);
        }
        let shape = [&[self.batch], &one[..]].concat();
        let fits = |axes: &Vec<Axis>| axes.iter().zip(&shape).all(|(axis, &size)| axis.fits(size));
        if !self.input.axes.as_ref().is_none_or(fits) {
            let axes = self.input.axes.as_deref().map(display_axes).unwrap_or_default();
            return Err(self.unfit(format!("they come out as {shape:?}, the model takes {axes}"), self.way_out(&shape)));
        }
        let values = match self.input.data_type {
            DataType::UINT8 if self.steps.keep_values() => Values::U8(values.iter().map(|&v| v as u8).collect()),
            _ => Values::F32(values.into()),
        };
        Array::new(shape, values).ok_or_else(|| self.mismatch("sizes that do not agree".to_owned()))
    }

    fn images(&self, index: usize) -> &[PathBuf] {
        self.files.get(index * self.batch..(index + 1) * self.batch).unwrap_or_default()
    }

    fn place(&self, index: usize) -> PathBuf {
        self.files.get(index * self.batch).cloned().unwrap_or_default()
    }
}

/// The shape without batch and the values of one image.
fn prepare(file: &Path, steps: &Preprocessing) -> Result<(Vec<usize>, Vec<f32>), DataError> {
    let image = decode(file)?;
    let invalid = |problem| {
        let way_out = "declare another size with ‹preprocess›, or take the picture out of the data";
        SampleError::Media { file: file.to_path_buf(), problem, way_out }
    };
    let image = resized(image, steps).map_err(invalid)?;
    let image = cropped(image, steps.crop).map_err(invalid)?;
    let image = padded(image, steps.pad, steps.filling()).map_err(invalid)?;
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
    let Picture { width, height, pixels } = kvant_samples::decode(file)?;
    // A decoded picture has three bytes for each of its pixels.
    RgbImage::from_raw(width as u32, height as u32, pixels)
        .ok_or_else(|| SampleError::invalid(file, "a picture of no size").into())
}

/// The image resized as declared, a letterbox padded too.
fn resized(image: RgbImage, steps: &Preprocessing) -> Result<RgbImage, String> {
    let (width, height) = image.dimensions();
    let (new_width, new_height) = match steps.resize {
        None => return Ok(image),
        Some(Resize::Exact(height, width)) => (width, height),
        Some(Resize::Letterbox(most_height, most_width)) => fitting((width, height), (most_width, most_height)),
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
    let image = match (new_width, new_height) == (width, height) {
        true => image,
        false => {
            // The intermediate image has the new width and the old height, four floats a pixel.
            refuse_large((new_width, new_height.max(height)), || {
                format!("an image of {height}x{width} becomes too large at {new_height}x{new_width}")
            })?;
            let filter = match steps.interpolation {
                Interpolation::Nearest => FilterType::Nearest,
                Interpolation::Bilinear => FilterType::Triangle,
                Interpolation::Bicubic => FilterType::CatmullRom,
                Interpolation::Lanczos => FilterType::Lanczos3,
            };
            imageops::resize(&image, new_width, new_height, filter)
        }
    };
    match steps.resize {
        Some(Resize::Letterbox(height, width)) => padded(image, Some((height, width)), steps.filling()),
        _ => Ok(image),
    }
}

/// The largest size in proportion that fits, rounded to whole pixels: `round(side * min(W / w, H / h))`.
fn fitting((width, height): (u32, u32), (most_width, most_height): (u32, u32)) -> (u32, u32) {
    let (w, h) = (f64::from(width.max(1)), f64::from(height.max(1)));
    let ratio = (f64::from(most_width) / w).min(f64::from(most_height) / h);
    let scaled = |side: f64, most: u32| ((side * ratio).round_ties_even() as u32).clamp(1, most);
    (scaled(w, most_width), scaled(h, most_height))
}

fn refuse_large((width, height): (u32, u32), problem: impl FnOnce() -> String) -> Result<(), String> {
    if u64::from(width).saturating_mul(u64::from(height)) > MOST_MEMORY / 16 { Err(problem()) } else { Ok(()) }
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

/// The image in the centre of a larger one; of an odd number of added rows or columns the last is at the bottom or at the right.
fn padded(image: RgbImage, to: Option<(u32, u32)>, fill: [u8; 3]) -> Result<RgbImage, String> {
    let Some((height, width)) = to else { return Ok(image) };
    let (w, h) = image.dimensions();
    if w > width || h > height {
        return Err(format!("an image of {h}x{w} is larger than the padding to {height}x{width}"));
    }
    refuse_large((width, height), || format!("padding to {height}x{width} takes too much memory"))?;
    let mut canvas = RgbImage::from_pixel(width, height, Rgb(fill));
    imageops::replace(&mut canvas, &image, i64::from((width - w) / 2), i64::from((height - h) / 2));
    Ok(canvas)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;
    use std::str::FromStr;

    fn steps(text: &str) -> Preprocessing {
        Preprocessing::from_str(text).unwrap()
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let axes = [1, 3, 64, 64].map(Axis::Fixed).to_vec();
        let input = Input { name: "x".to_owned(), data_type: DataType::FLOAT, axes: Some(axes) };
        for (text, way_out) in [
            ("size=64x64,layout=nhwc", "layout=nchw"),
            ("size=32x64,layout=nhwc", "layout=nchw"),
            ("letterbox=64,channels=gray", "channels=rgb"),
            ("size=64x32", "size or crop"),
        ] {
            let directory = tempfile::tempdir().unwrap();
            let file = directory.path().join("a.png");
            gradient(8, 8).save(&file).unwrap();
            let mut column = ImageColumn::new(&input, vec![file], steps(text)).unwrap();
            let refused = column.sample(0).unwrap_err();
            assert!(refused.hint().unwrap().contains(way_out), "{text}: {refused:?}");
        }
    }

    #[test]
    fn damaged_pictures_are_called_so() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("a.jpg");
        gradient(64, 64).save(&file).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..200]).unwrap();
        let refused = decode(&file).map(|image| image.dimensions()).unwrap_err();
        assert!(refused.hint().unwrap().contains("the picture is damaged"), "{refused:?}");
    }

    fn gradient(width: u32, height: u32) -> RgbImage {
        RgbImage::from_fn(width, height, |x, y| Rgb([(20 * x) as u8, (30 * y) as u8, 7]))
    }

    /// Every pixel by the definition: the image where it is, the fill elsewhere.
    fn expected(image: &RgbImage, (width, height): (u32, u32), (left, top): (u32, u32), fill: [u8; 3]) -> RgbImage {
        let inside = |at: u32, from: u32, size: u32| (from..from + size).contains(&at).then(|| at - from);
        RgbImage::from_fn(width, height, |x, y| {
            match (inside(x, left, image.width()), inside(y, top, image.height())) {
                (Some(x), Some(y)) => *image.get_pixel(x, y),
                _ => Rgb(fill),
            }
        })
    }

    #[test]
    fn padding_centres_with_the_odd_pixel_last() {
        let image = gradient(4, 3);
        let steps = steps("pad=6x9,fill=1:2:3");
        let made = padded(image.clone(), steps.pad, steps.filling()).unwrap();
        assert_eq!(made, expected(&image, (9, 6), (2, 1), [1, 2, 3]));
        let problem = padded(image, Some((2, 9)), [0; 3]).unwrap_err();
        assert!(problem.contains("3x4 is larger than the padding to 2x9"), "{problem}");
    }

    #[test]
    fn letterbox_keeps_the_aspect_ratio_and_fills_with_grey() {
        // 40x20 in 32x32: min(32/40, 32/20) = 0.8, so 32x16 with 8 rows above and below.
        let flat = RgbImage::from_pixel(40, 20, Rgb([10, 20, 30]));
        let made = resized(flat, &steps("letterbox=32")).unwrap();
        assert_eq!(made, expected(&RgbImage::from_pixel(32, 16, Rgb([10, 20, 30])), (32, 32), (0, 8), [114; 3]));
        // 10x30 (width x height) in 20 rows of 17: min(17/10, 20/30) = 2/3, so 7x20 (round 6.67), 5 columns before and after.
        let tall = RgbImage::from_pixel(10, 30, Rgb([1, 1, 1]));
        let made = resized(tall, &steps("letterbox=20x17,fill=0")).unwrap();
        assert_eq!(made, expected(&RgbImage::from_pixel(7, 20, Rgb([1, 1, 1])), (17, 20), (5, 0), [0; 3]));
        // It fits already: nothing is interpolated.
        let image = gradient(8, 5);
        let made = resized(image.clone(), &steps("letterbox=8")).unwrap();
        assert_eq!(made, expected(&image, (8, 8), (0, 1), [114; 3]));
    }

    /// Cubic convolution with a = -0.5 (Keys 1981).
    fn keys(x: f64) -> f64 {
        let x = x.abs();
        match x {
            _ if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            _ if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            _ => 0.0,
        }
    }

    /// A row resampled by the definition: weights of the kernel around the centre of each new pixel, stretched where it shrinks.
    fn resampled(row: &[f64], to: usize, support: f64, kernel: impl Fn(f64) -> f64) -> Vec<u8> {
        let ratio = row.len() as f64 / to as f64;
        let stretch = ratio.max(1.0);
        let pixel = |at: usize| {
            let centre = (at as f64 + 0.5) * ratio;
            let weight = |i: usize| {
                let distance = (i as f64 + 0.5 - centre) / stretch;
                if distance.abs() < support { kernel(distance) } else { 0.0 }
            };
            let sum: f64 = (0..row.len()).map(weight).sum();
            let value: f64 = row.iter().enumerate().map(|(i, value)| weight(i) * value).sum();
            (value / sum).round().clamp(0.0, 255.0) as u8
        };
        (0..to).map(pixel).collect()
    }

    #[test]
    fn interpolation_matches_its_kernels() {
        let row = [10.0, 200.0, 30.0, 90.0, 255.0, 0.0, 60.0, 120.0];
        let image = RgbImage::from_fn(8, 1, |x, _| Rgb([row[x as usize] as u8; 3]));
        let sinc = |x: f64| {
            let x = x * std::f64::consts::PI;
            if x == 0.0 { 1.0 } else { x.sin() / x }
        };
        for to in [3, 5, 13] {
            let red = |mode: &str| -> Vec<u8> {
                let made = resized(image.clone(), &steps(&format!("size=1x{to},interpolation={mode}"))).unwrap();
                made.pixels().map(|pixel| pixel.0[0]).collect()
            };
            let close = |mode: &str, expected: Vec<u8>| {
                let made = red(mode);
                let near = made.iter().zip(&expected).all(|(a, b)| a.abs_diff(*b) <= 1);
                assert!(near && made.len() == to, "{mode} {to}: {made:?} {expected:?}");
            };
            close("bilinear", resampled(&row, to, 1.0, |x| 1.0 - x.abs()));
            close("bicubic", resampled(&row, to, 2.0, keys));
            close("lanczos", resampled(&row, to, 3.0, |x| sinc(x) * sinc(x / 3.0)));
            let nearest: Vec<u8> =
                (0..to).map(|at| row[((at as f64 + 0.5) * 8.0 / to as f64) as usize] as u8).collect();
            assert_eq!(red("nearest"), nearest, "{to}");
        }
    }

    #[test]
    fn oversized_padding_is_refused() {
        assert!(padded(gradient(2, 2), Some((16_384, 16_384)), [0; 3]).unwrap_err().contains("too much memory"));
    }

    #[test]
    fn oversized_resizing_is_refused() {
        let line = || RgbImage::new(1, 1 << 15);
        assert!(resized(line(), &steps("size=256")).unwrap_err().contains("becomes too large at 8388608x256"));
        assert!(
            resized(
                line(),
                &Preprocessing { resize: Some(Resize::Exact(u32::MAX, u32::MAX)), ..Preprocessing::default() }
            )
            .is_err()
        );
        let shrunk = resized(line(), &steps("size=4x2")).unwrap();
        assert_eq!(shrunk.dimensions(), (2, 4));
    }
}
