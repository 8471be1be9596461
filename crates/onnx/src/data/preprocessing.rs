//! How images become a model's input: the declared steps and their spelling. The steps themselves are in `images`.

use std::str::FromStr;

use super::error::DataError;

/// The order of axes a model takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layout {
    /// Batch, channel, row, column.
    #[default]
    Nchw,
    /// Batch, row, column, channel.
    Nhwc,
}

/// The order of an image's channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Channels {
    /// Red first.
    #[default]
    Rgb,
    /// Blue first.
    Bgr,
    /// One channel: the luma of the colours.
    Gray,
}

/// A size to resize to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// The shorter side becomes this long, the other in proportion.
    Shorter(u32),
    /// Height and width, whatever the proportion.
    Exact(u32, u32),
}

/// The steps from an image to a model's input: resize, crop from the centre, then `(value * scale - mean) / std` of each
/// channel's values of 0..=255.
///
/// Spelled `size=256,crop=224,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,scale=1/255,layout=nchw,channels=rgb`; what is left
/// out has the value of this example, but for size, crop, mean and std, without which nothing is resized, cropped, shifted or
/// divided. Sizes are one number or HEIGHTxWIDTH.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessing {
    /// Resize first.
    pub resize: Option<Resize>,
    /// Then cut height and width from the centre.
    pub crop: Option<(u32, u32)>,
    /// Then multiply.
    pub scale: f32,
    /// Then subtract, by channel in the order of `channels`.
    pub mean: [f32; 3],
    /// Then divide.
    pub std: [f32; 3],
    /// The order of axes.
    pub layout: Layout,
    /// The order of channels.
    pub channels: Channels,
}

impl Default for Preprocessing {
    fn default() -> Self {
        Self {
            resize: None,
            crop: None,
            scale: 1.0 / 255.0,
            mean: [0.0; 3],
            std: [1.0; 3],
            layout: Layout::Nchw,
            channels: Channels::Rgb,
        }
    }
}

impl FromStr for Preprocessing {
    type Err = DataError;

    fn from_str(text: &str) -> Result<Self, DataError> {
        let mut steps = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let refused = || DataError::Preprocessing(format!("`{part}` is not understood"));
            let (key, value) = part.split_once('=').ok_or_else(refused)?;
            steps.set(key.trim(), value.trim()).ok_or_else(refused)?;
        }
        match (steps.resize, steps.crop) {
            (Some(Resize::Shorter(side)), Some((height, width))) if height.max(width) > side => {
                Err(DataError::Preprocessing(format!("a crop of {height}x{width} from a side of {side}")))
            }
            (Some(Resize::Exact(h, w)), Some((height, width))) if height > h || width > w => {
                Err(DataError::Preprocessing(format!("a crop of {height}x{width} from {h}x{w}")))
            }
            _ => Ok(steps),
        }
    }
}

impl Preprocessing {
    /// Whether values stay those of the pixels: whole numbers of 0..=255.
    #[cfg(feature = "images")]
    pub(super) fn keep_values(&self) -> bool {
        self.scale == 1.0 && self.mean == [0.0; 3] && self.std == [1.0; 3]
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "size" => self.resize = Some(resize(value)?),
            "crop" => self.crop = Some(pair(value)?),
            "scale" => self.scale = number(value)?,
            "mean" => self.mean = three(value)?,
            "std" => self.std = three(value).filter(|std| std.iter().all(|&s| s != 0.0))?,
            "layout" => self.layout = choice(value, &[("nchw", Layout::Nchw), ("nhwc", Layout::Nhwc)])?,
            "channels" => {
                let known = [("rgb", Channels::Rgb), ("bgr", Channels::Bgr), ("gray", Channels::Gray)];
                self.channels = choice(value, &known)?;
            }
            _ => return None,
        }
        Some(())
    }
}

fn choice<T: Copy>(value: &str, known: &[(&str, T)]) -> Option<T> {
    known.iter().find(|(name, _)| name.eq_ignore_ascii_case(value)).map(|(_, choice)| *choice)
}

fn resize(value: &str) -> Option<Resize> {
    match value.contains('x') {
        true => pair(value).map(|(height, width)| Resize::Exact(height, width)),
        false => side(value).map(Resize::Shorter),
    }
}

fn pair(value: &str) -> Option<(u32, u32)> {
    match value.split_once('x') {
        Some((height, width)) => Some((side(height)?, side(width)?)),
        None => side(value).map(|side| (side, side)),
    }
}

/// Sides beyond this are mistakes.
fn side(value: &str) -> Option<u32> {
    value.parse().ok().filter(|side| (1..=16_384).contains(side))
}

/// A number, or a fraction such as 1/255.
fn number(value: &str) -> Option<f32> {
    let parsed = |text: &str| text.trim().parse::<f32>().ok().filter(|v| v.is_finite());
    match value.split_once('/') {
        Some((above, below)) => Some(parsed(above)? / parsed(below).filter(|&b| b != 0.0)?),
        None => parsed(value),
    }
}

/// One number for all channels, or three.
fn three(value: &str) -> Option<[f32; 3]> {
    let numbers = value.split(':').map(number).collect::<Option<Vec<_>>>()?;
    match numbers[..] {
        [all] => Some([all; 3]),
        [a, b, c] => Some([a, b, c]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spelling_says_each_step() {
        let text = "size=256,crop=224, mean=0.485:0.456:0.406,std=0.5,scale=1/255,layout=NHWC,channels=bgr";
        let steps: Preprocessing = text.parse().unwrap();
        assert_eq!((steps.resize, steps.crop), (Some(Resize::Shorter(256)), Some((224, 224))));
        assert_eq!((steps.mean, steps.std, steps.scale), ([0.485, 0.456, 0.406], [0.5; 3], 1.0 / 255.0));
        assert_eq!((steps.layout, steps.channels), (Layout::Nhwc, Channels::Bgr));
        assert_eq!("size=32x64".parse::<Preprocessing>().unwrap().resize, Some(Resize::Exact(32, 64)));
        assert_eq!("".parse::<Preprocessing>().unwrap(), Preprocessing::default());
    }

    #[test]
    fn mistakes_are_told() {
        for text in ["size", "size=0", "size=99999999", "std=0", "mean=1:2", "crop=224x", "size=32,crop=64", "depth=3"]
        {
            assert!(text.parse::<Preprocessing>().is_err(), "{text}");
        }
    }
}
