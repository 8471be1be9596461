//! The steps from an image to a model's input, and their spelling. `images` carries them out.

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

impl Channels {
    /// How many there are.
    #[cfg(feature = "images")]
    pub(super) fn number(self) -> usize {
        if self == Self::Gray { 1 } else { 3 }
    }
}

/// A size to resize to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resize {
    /// The shorter side gets this length, the other follows in proportion.
    Shorter(u32),
    /// Height and width, ignoring the proportion.
    Exact(u32, u32),
    /// As large as fits into height and width in proportion, and padded to them around the centre.
    Letterbox(u32, u32),
}

/// The interpolation of resizing. All but the nearest pixel average over the whole area where an image shrinks, as Pillow does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Interpolation {
    /// The nearest pixel.
    Nearest,
    /// Linear in both directions.
    #[default]
    Bilinear,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// A windowed sinc with three lobes.
    Lanczos,
}

/// The steps from an image to a model's input: resize or letterbox, crop from the centre, pad, then `(value * scale - mean) / std`
/// on the values 0..=255 of each channel.
///
/// Spelled `size=256,crop=224,mean=0.485:0.456:0.406,std=0.229:0.224:0.225,scale=1/255,layout=nchw,channels=rgb`. Omitted keys have
/// the values of this example, except that without `size`, `crop`, `mean` and `std` nothing is resized, cropped, subtracted or
/// divided. Sizes are one number or HEIGHTxWIDTH.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessing {
    /// Resize first.
    pub resize: Option<Resize>,
    /// The interpolation of resizing.
    pub interpolation: Interpolation,
    /// Then cut height and width from the centre.
    pub crop: Option<(u32, u32)>,
    /// Then pad to height and width around the centre.
    pub pad: Option<(u32, u32)>,
    /// Red, green and blue of padding; `None` is black, and grey (114) for a letterbox.
    pub fill: Option<[u8; 3]>,
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

/// The keys, with their values in words.
const KEYS: [(&str, &str); 11] = [
    ("size", "the shorter side, or HEIGHTxWIDTH, and stands alone: not beside another size or a letterbox"),
    ("letterbox", "a side, or HEIGHTxWIDTH, and stands alone: not beside a size"),
    ("interpolation", "nearest, bilinear, bicubic or lanczos"),
    ("crop", "a side, or HEIGHTxWIDTH"),
    ("pad", "a side, or HEIGHTxWIDTH"),
    ("fill", "a level of 0 to 255, or RED:GREEN:BLUE"),
    ("scale", "a number, or a fraction such as 1/255"),
    ("mean", "a number, or one for each channel: 0.485:0.456:0.406"),
    ("std", "a number other than 0, or one for each channel: 0.229:0.224:0.225"),
    ("layout", "nchw or nhwc"),
    ("channels", "rgb, bgr or gray"),
];

/// The grey around a letterbox where no fill is given: that of the YOLO models.
#[cfg(feature = "images")]
const LETTERBOX_FILL: [u8; 3] = [114; 3];

impl Default for Preprocessing {
    fn default() -> Self {
        Self {
            resize: None,
            interpolation: Interpolation::Bilinear,
            crop: None,
            pad: None,
            fill: None,
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
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let (key, value) = (key.trim(), value.trim());
            steps.set(key, value).ok_or_else(|| DataError::Preprocessing(steps.problem(part, key)))?;
        }
        match steps.contradiction() {
            Some(problem) => Err(DataError::Preprocessing(problem)),
            None => Ok(steps),
        }
    }
}

impl Preprocessing {
    /// Why a part is refused, in words.
    fn problem(&self, part: &str, key: &str) -> String {
        match KEYS.iter().find(|(known, _)| *known == key) {
            Some((_, values)) => format!("`{part}` is not understood: {key} is {values}"),
            None => {
                let keys: Vec<&str> = KEYS.iter().map(|(key, _)| *key).collect();
                format!("`{part}` is not understood: the keys are {}", keys.join(", "))
            }
        }
    }

    /// Returns whether values stay those of the pixels: whole numbers of 0..=255.
    #[cfg(feature = "images")]
    pub(super) fn keep_values(&self) -> bool {
        self.scale == 1.0 && self.mean == [0.0; 3] && self.std == [1.0; 3]
    }

    /// The colour of padding.
    #[cfg(feature = "images")]
    pub(super) fn filling(&self) -> [u8; 3] {
        let default = if matches!(self.resize, Some(Resize::Letterbox(..))) { LETTERBOX_FILL } else { [0; 3] };
        self.fill.unwrap_or(default)
    }

    /// Steps that contradict each other, in words.
    fn contradiction(&self) -> Option<String> {
        let exceeds = |(height, width): (u32, u32), (h, w): (u32, u32)| height > h || width > w;
        let exact = match self.resize {
            Some(Resize::Exact(height, width)) => Some((height, width)),
            _ => None,
        };
        match (self.resize, self.crop, self.pad) {
            (Some(Resize::Letterbox(..)), Some(_), _) => Some("`letterbox` with `crop`".to_owned()),
            (Some(Resize::Letterbox(..)), _, Some(_)) => Some("`letterbox` with `pad`".to_owned()),
            (Some(Resize::Shorter(side)), Some((height, width)), _) if height.max(width) > side => {
                Some(format!("a crop of {height}x{width} from a side of {side}"))
            }
            (Some(Resize::Exact(h, w)), Some((height, width)), _) if exceeds((height, width), (h, w)) => {
                Some(format!("a crop of {height}x{width} from {h}x{w}"))
            }
            (_, crop, Some((height, width))) => {
                let (h, w) = crop.or(exact).filter(|before| exceeds(*before, (height, width)))?;
                Some(format!("{h}x{w} padded to {height}x{width}"))
            }
            (resize, _, None) => {
                let pads = matches!(resize, Some(Resize::Letterbox(..)));
                (self.fill.is_some() && !pads).then(|| "`fill` without `pad` or `letterbox`".to_owned())
            }
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            // Of two ways to resize one would have no effect.
            "size" | "letterbox" if self.resize.is_some() => return None,
            "size" => self.resize = Some(resize(value)?),
            "letterbox" => self.resize = pair(value).map(|(height, width)| Resize::Letterbox(height, width)),
            "interpolation" => {
                let known = [
                    ("nearest", Interpolation::Nearest),
                    ("bilinear", Interpolation::Bilinear),
                    ("bicubic", Interpolation::Bicubic),
                    ("lanczos", Interpolation::Lanczos),
                ];
                self.interpolation = choice(value, &known)?;
            }
            "crop" => self.crop = Some(pair(value)?),
            "pad" => self.pad = Some(pair(value)?),
            "fill" => self.fill = Some(colour(value)?),
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

/// One level for all channels, or red, green and blue.
fn colour(value: &str) -> Option<[u8; 3]> {
    let levels = value.split(':').map(|level| level.trim().parse().ok()).collect::<Option<Vec<u8>>>()?;
    match levels[..] {
        [all] => Some([all; 3]),
        [red, green, blue] => Some([red, green, blue]),
        _ => None,
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
    fn preprocessing_spelling_sets_each_step() {
        let text = "size=256,crop=224, mean=0.485:0.456:0.406,std=0.5,scale=1/255,layout=NHWC,channels=bgr";
        let steps: Preprocessing = text.parse().unwrap();
        assert_eq!((steps.resize, steps.crop), (Some(Resize::Shorter(256)), Some((224, 224))));
        assert_eq!((steps.mean, steps.std, steps.scale), ([0.485, 0.456, 0.406], [0.5; 3], 1.0 / 255.0));
        assert_eq!((steps.layout, steps.channels), (Layout::Nhwc, Channels::Bgr));
        assert_eq!("size=32x64".parse::<Preprocessing>().unwrap().resize, Some(Resize::Exact(32, 64)));
        assert_eq!("".parse::<Preprocessing>().unwrap(), Preprocessing::default());
        let steps: Preprocessing = "size=200x100,interpolation=bicubic,pad=224,fill=1:2:3".parse().unwrap();
        assert_eq!((steps.interpolation, steps.pad), (Interpolation::Bicubic, Some((224, 224))));
        assert_eq!(steps.fill, Some([1, 2, 3]));
        let steps: Preprocessing = "letterbox=384x640".parse().unwrap();
        assert_eq!(steps.resize, Some(Resize::Letterbox(384, 640)));
    }

    #[test]
    fn keys_and_values_are_listed_where_others_are_given() {
        for (text, told) in [
            (
                "size=64,interpolation=cubic",
                "`interpolation=cubic` is not understood: interpolation is nearest, bilinear",
            ),
            ("foo=1", "`foo=1` is not understood: the keys are size, letterbox, interpolation, crop, pad"),
            ("channels=cmyk", "channels is rgb, bgr or gray"),
            ("size", "size is the shorter side, or HEIGHTxWIDTH"),
            ("size=256,letterbox=640", "not beside a size"),
        ] {
            let refused = text.parse::<Preprocessing>().unwrap_err().to_string();
            assert!(refused.contains(told), "{refused}");
        }
        // Each key that is listed is one: it takes one of these values.
        for (key, _) in KEYS {
            let takes = |value: &&str| Preprocessing::default().set(key, value).is_some();
            assert!(["8", "nearest", "nchw", "rgb"].iter().any(takes), "{key}");
        }
    }

    #[test]
    fn contradictory_preprocessing_steps_are_refused() {
        for text in [
            "size=256,letterbox=640",
            "letterbox=640,crop=224",
            "letterbox=640,pad=700",
            "size=300x200,pad=256",
            "size=256,crop=224,pad=200",
            "fill=114",
            "fill=256,pad=10",
            "fill=1:2,pad=10",
            "interpolation=area",
            "pad=0",
        ] {
            assert!(text.parse::<Preprocessing>().is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_preprocessing_values_are_refused() {
        for text in ["size", "size=0", "size=99999999", "std=0", "mean=1:2", "crop=224x", "size=32,crop=64", "depth=3"]
        {
            assert!(text.parse::<Preprocessing>().is_err(), "{text}");
        }
    }
}
