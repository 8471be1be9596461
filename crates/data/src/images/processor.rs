//! The steps from a picture to what a model of images reads, as image processors of transformers take them: resize, crop, scale, normalise.

use super::error::ImageDataError;
use kvant_samples::{Filter, MOST_MEMORY, Picture, SampleError, decode, resample, resample_as_torch, resample_floats};
use serde::{Serialize, Serializer};
use std::path::{Path, PathBuf};

/// The size that pictures get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResizeTo {
    /// This one.
    Size {
        /// Rows.
        height: usize,
        /// Pixels of a row.
        width: usize,
    },
    /// The shorter side has this length, the other follows in proportion, rounded down.
    Shorter {
        /// Its length.
        side: usize,
    },
    /// Both sides are the nearest multiples of a number; where these have too many or too few pixels, multiples of about the same proportion that
    /// do not (Qwen2-VL's `smart_resize`).
    Pixels {
        /// The number.
        factor: usize,
        /// Pixels that there must be.
        least: usize,
        /// Pixels that there may be.
        most: usize,
    },
}

/// The sizes of patches in images of any size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PatchSizes {
    /// Pixels along a side of a patch.
    pub patch: usize,
    /// Patches along a side of a square, which make a row.
    pub square: usize,
    /// Equal frames that a still image counts as.
    pub frames: usize,
}

impl PatchSizes {
    /// Pixels along a side of a square.
    pub fn factor(self) -> usize {
        self.patch.saturating_mul(self.square)
    }
}

/// How many times as long as wide pictures may be that [`ResizeTo::Pixels`] resizes.
const MOST_PROPORTION: usize = 200;

impl ResizeTo {
    /// Height and width of what becomes of a picture of this size.
    fn of(self, [height, width]: [usize; 2]) -> [usize; 2] {
        match self {
            ResizeTo::Size { height, width } => [height, width],
            ResizeTo::Shorter { side } if width <= height => [side * height / width.max(1), side],
            ResizeTo::Shorter { side } => [side, side * width / height.max(1)],
            ResizeTo::Pixels { factor, least, most } => {
                let step = factor as f64;
                let sides = [height, width].map(|side| side as f64);
                let area = sides[0] * sides[1];
                // Numbers in the middle between two multiples go to the even one.
                let nearest = sides.map(|side| (side / step).round_ties_even() * step);
                let found = nearest[0] * nearest[1];
                let sides = if found > most as f64 {
                    let shrink = (area / most as f64).sqrt();
                    sides.map(|side| ((side / shrink / step).floor() * step).max(step))
                } else if found < least as f64 {
                    let stretch = (least as f64 / area).sqrt();
                    sides.map(|side| (side * stretch / step).ceil() * step)
                } else {
                    nearest
                };
                sides.map(|side| side as usize)
            }
        }
    }
}

/// The steps from a picture to pixels: `(v scale - mean) / std` for every value `v` of the resized and cropped picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ImageProcessor {
    /// The file that states them.
    #[serde(skip)]
    pub file: PathBuf,
    /// The new size, and the filter.
    #[serde(serialize_with = "resize_text")]
    pub resize: Option<(ResizeTo, Filter)>,
    /// Height and width of the part in the middle; what a smaller picture lacks is black.
    pub crop: Option<[usize; 2]>,
    /// The factor on values of 0 to 255.
    pub scale: f64,
    /// What is subtracted from each channel.
    pub mean: [f64; 3],
    /// What each channel is divided by.
    pub std: [f64; 3],
    /// Whether values are scaled before they are resized, and are not rounded to bytes (DINOv3).
    pub rescales_first: bool,
    /// The sizes of patches, where images keep their proportions.
    #[serde(skip)]
    pub patches: Option<PatchSizes>,
    /// Whether pictures are resized in torchvision's arithmetic, and not in Pillow's.
    #[serde(skip)]
    pub is_of_torch: bool,
}

fn resize_text<S: Serializer>(resize: &Option<(ResizeTo, Filter)>, serializer: S) -> Result<S::Ok, S::Error> {
    let text = resize.map(|(to, filter)| {
        let size = match to {
            ResizeTo::Size { height, width } => format!("{height}x{width}"),
            ResizeTo::Shorter { side } => format!("shorter side {side}"),
            ResizeTo::Pixels { factor, least, most } => format!("multiples of {factor}, {least} to {most} pixels"),
        };
        format!("{size}, {}", format!("{filter:?}").to_lowercase())
    });
    text.serialize(serializer)
}

/// Values of three channels, a pixel after the other.
struct Canvas {
    width: usize,
    height: usize,
    values: Vec<f32>,
}

impl ImageProcessor {
    /// Refuses steps that do not make images of a shape: channels, height and width.
    ///
    /// # Errors
    /// [`ImageDataError::ProcessorShape`].
    pub fn check(&self, shape: [usize; 3]) -> Result<(), ImageDataError> {
        let size = match (self.crop, self.resize) {
            (Some([height, width]), _) | (None, Some((ResizeTo::Size { height, width }, _))) => Some([height, width]),
            _ => None,
        };
        let [channels, height, width] = shape;
        match channels == 3 && size.is_none_or(|size| size == [height, width]) {
            true => Ok(()),
            false => Err(ImageDataError::ProcessorShape {
                file: self.file.clone(),
                found: std::iter::once(3).chain(size.into_iter().flatten()).collect(),
                expected: shape,
            }),
        }
    }

    /// Height and width of what the steps make of a picture of this size, where images keep their proportions.
    ///
    /// # Errors
    /// Sizes that are not multiples of the patch size, and pictures whose sides differ by more than a factor of 200.
    pub fn size_of(&self, file: &Path, size: [usize; 2]) -> Result<[usize; 2], ImageDataError> {
        let [height, width] = size;
        let found = self.resize.map_or(size, |(to, _)| to.of(size));
        let factor = self.patches.map_or(1, PatchSizes::factor).max(1);
        let problem = if height.min(width) == 0 || height.max(width) > MOST_PROPORTION * height.min(width) {
            format!("a picture of {height}x{width} is more than {MOST_PROPORTION} times as long as wide")
        } else if found.iter().any(|side| *side == 0 || !side.is_multiple_of(factor)) {
            format!("a picture of {height}x{width} is not filled by squares of {factor}x{factor} pixels")
        } else {
            return Ok(found);
        };
        let way_out = "take the picture out of the data";
        Err(SampleError::Media { file: file.to_path_buf(), problem, way_out }.into())
    }

    /// The pixels of a picture, channel by channel, row by row.
    ///
    /// # Errors
    /// Files that are no pictures or damaged, and sizes that take too much memory.
    pub fn pixels(&self, file: &Path) -> Result<Vec<f32>, ImageDataError> {
        let canvas = self.cropped(self.resized(decode(file)?, file)?);
        let scale = if self.rescales_first { 1.0 } else { self.scale as f32 };
        let area = canvas.width * canvas.height;
        let mut pixels = Vec::with_capacity(3 * area);
        for channel in 0..3 {
            let (mean, std) = (self.mean[channel] as f32, self.std[channel] as f32);
            let values = canvas.values.iter().skip(channel).step_by(3);
            pixels.extend(values.map(|value| (value * scale - mean) / std));
        }
        Ok(pixels)
    }

    /// Values of the resized picture, scaled already where that comes first.
    fn resized(&self, picture: Picture, file: &Path) -> Result<Canvas, ImageDataError> {
        let Picture { width, height, pixels } = picture;
        let factor = if self.rescales_first { self.scale as f32 } else { 1.0 };
        let floats = |bytes: &[u8]| bytes.iter().map(|byte| f32::from(*byte) * factor).collect::<Vec<f32>>();
        let Some((to, filter)) = self.resize else { return Ok(Canvas { width, height, values: floats(&pixels) }) };
        let [new_height, new_width] = to.of([height, width]);
        // The intermediate picture has the new width and the old height.
        let largest = (new_width as u64).saturating_mul(new_height.max(height) as u64).saturating_mul(12);
        if largest > MOST_MEMORY || new_width == 0 || new_height == 0 {
            return Err(SampleError::Media {
                file: file.to_path_buf(),
                problem: format!("a picture of {height}x{width} becomes {new_height}x{new_width}"),
                way_out: "take the picture out of the data",
            }
            .into());
        }
        let (from, to) = ((width, height), (new_width, new_height));
        let values = match self.rescales_first {
            true => resample_floats(&floats(&pixels), from, to, filter),
            false if self.is_of_torch => floats(&resample_as_torch(&pixels, from, to, filter)),
            false => floats(&resample(&pixels, from, to, filter)),
        };
        Ok(Canvas { width: new_width, height: new_height, values })
    }

    fn cropped(&self, from: Canvas) -> Canvas {
        let Some([height, width]) = self.crop else { return from };
        // Of an odd number of missing rows the last is below, of an odd number of further ones it is left out.
        let start = |have: usize, want: usize| {
            if want > have { -((want - have) as i64 / 2) } else { ((have - want) / 2) as i64 }
        };
        let (top, left) = (start(from.height, height), start(from.width, width));
        let mut values = vec![0.0; 3 * width * height];
        for (row, out) in values.chunks_exact_mut(3 * width.max(1)).enumerate() {
            let Some(y) = usize::try_from(top + row as i64).ok().filter(|y| *y < from.height) else { continue };
            for (column, out) in out.chunks_exact_mut(3).enumerate() {
                let Some(x) = usize::try_from(left + column as i64).ok().filter(|x| *x < from.width) else { continue };
                let at = 3 * (y * from.width + x);
                out.copy_from_slice(&from.values[at..at + 3]);
            }
        }
        Canvas { width, height, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(resize: Option<(ResizeTo, Filter)>, crop: Option<[usize; 2]>) -> ImageProcessor {
        ImageProcessor {
            file: PathBuf::from("preprocessor_config.json"),
            resize,
            crop,
            scale: 1.0,
            mean: [0.0; 3],
            std: [1.0; 3],
            rescales_first: false,
            patches: None,
            is_of_torch: false,
        }
    }

    #[test]
    fn crops_are_in_the_middle_and_black_beyond_the_picture() {
        let canvas = || Canvas { width: 3, height: 2, values: (1..=18).map(|value| value as f32).collect() };
        let inner = steps(None, Some([1, 2])).cropped(canvas());
        assert_eq!(inner.values, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let outer = steps(None, Some([3, 4])).cropped(canvas());
        assert_eq!((outer.width, outer.height), (4, 3));
        assert_eq!(outer.values[..3], [1.0, 2.0, 3.0]);
        assert_eq!(outer.values[9..12], [0.0; 3], "the last column is beyond the picture");
        assert_eq!(outer.values[24..], [0.0; 12], "so is the last row");
    }

    #[test]
    fn steps_of_another_size_are_refused() {
        let crop = steps(Some((ResizeTo::Shorter { side: 8 }, Filter::Bilinear)), Some([6, 6]));
        assert!(crop.check([3, 6, 6]).is_ok());
        assert!(crop.check([3, 8, 8]).unwrap_err().to_string().contains("[3, 6, 6]"));
        assert!(crop.check([1, 6, 6]).is_err());
    }

    #[test]
    fn steps_are_recorded_in_words() {
        let of = |to| serde_json::to_value(steps(Some((to, Filter::Bicubic)), Some([6, 8]))).unwrap();
        assert_eq!(of(ResizeTo::Size { height: 9, width: 7 })["resize"], "9x7, bicubic");
        assert_eq!(of(ResizeTo::Shorter { side: 9 })["resize"], "shorter side 9, bicubic");
        assert_eq!(serde_json::to_value(steps(None, None)).unwrap()["resize"], serde_json::Value::Null);
    }

    #[test]
    fn sides_are_in_proportion() {
        let picture = Picture { width: 5, height: 11, pixels: vec![9; 3 * 55] };
        let to = steps(Some((ResizeTo::Shorter { side: 4 }, Filter::Bicubic)), None);
        let resized = to.resized(picture, Path::new("a.png")).unwrap();
        assert_eq!((resized.width, resized.height), (4, 8));
        assert!(resized.values.iter().all(|value| *value == 9.0));
    }
    #[test]
    fn sides_become_multiples_within_bounds_of_pixels() {
        // Of transformers' smart_resize.
        let of = |size: [usize; 2], least, most| ResizeTo::Pixels { factor: 28, least, most }.of(size);
        assert_eq!(of([100, 300], 3136, 1_003_520), [112, 308]);
        assert_eq!(of([42, 70], 784, 1_003_520), [56, 56], "half a step goes to the even multiple");
        assert_eq!(of([10, 20], 3136, 1_003_520), [56, 84]);
        assert_eq!(of([3000, 2000], 3136, 1_003_520), [1204, 812]);
        assert_eq!(of([2000, 20], 3136, 12_544), [1120, 28]);
    }

    #[test]
    fn sizes_that_patches_do_not_fill_are_refused() {
        let sizes = PatchSizes { patch: 2, square: 2, frames: 2 };
        let whole = ImageProcessor { patches: Some(sizes), ..steps(None, None) };
        assert_eq!(whole.size_of(Path::new("a.png"), [8, 4]).unwrap(), [8, 4]);
        let error = whole.size_of(Path::new("a.png"), [8, 6]).unwrap_err();
        assert!(error.to_string().contains("squares of 4x4"), "{error}");
        let resized = ImageProcessor {
            resize: Some((ResizeTo::Pixels { factor: 4, least: 16, most: 64 }, Filter::Bicubic)),
            ..whole
        };
        assert_eq!(resized.size_of(Path::new("a.png"), [8, 6]).unwrap(), [8, 8]);
        assert!(resized.size_of(Path::new("a.png"), [201, 1]).unwrap_err().to_string().contains("200 times"));
    }
}
