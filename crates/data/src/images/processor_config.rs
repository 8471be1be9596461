//! `preprocessor_config.json`: the steps that it states, and those that its class takes where it is silent.

use super::error::ImageDataError;
use super::processor::{ImageProcessor, PatchSizes, ResizeTo};
use crate::json_file;
use kvant_container::model_directory;
use kvant_samples::Filter;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// The largest side that is believed.
const LONGEST_SIDE: u64 = 1 << 15;

/// What a class of transformers takes where its file is silent.
struct ClassDefaults {
    /// The name without `ImageProcessor`, `ImageProcessorFast`, `ImageProcessorPil` or `FeatureExtractor`.
    class: &'static str,
    filter: Filter,
    size: ResizeTo,
    /// Whether one number is both sides, and not the shorter one.
    is_square: bool,
    crop: Option<[usize; 2]>,
    mean: [f64; 3],
    std: [f64; 3],
    /// Whether values are scaled before they are resized, without rounding.
    rescales_first: bool,
    /// The sizes of patches, where images keep their proportions.
    patches: Option<PatchSizes>,
}

const HALVES: [f64; 3] = [0.5; 3];
const IMAGENET: [[f64; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];
const CLIP: [[f64; 3]; 2] = [[0.481_454_66, 0.457_827_5, 0.408_210_73], [0.268_629_54, 0.261_302_58, 0.275_777_11]];

const CLIP_DEFAULTS: ClassDefaults = ClassDefaults {
    class: "CLIP",
    filter: Filter::Bicubic,
    size: ResizeTo::Shorter { side: 224 },
    is_square: false,
    crop: Some([224, 224]),
    mean: CLIP[0],
    std: CLIP[1],
    rescales_first: false,
    patches: None,
};

const CLASSES: &[ClassDefaults] = &[
    ClassDefaults {
        class: "ViT",
        filter: Filter::Bilinear,
        size: ResizeTo::Size { height: 224, width: 224 },
        is_square: true,
        crop: None,
        mean: HALVES,
        std: HALVES,
        rescales_first: false,
        patches: None,
    },
    ClassDefaults {
        class: "DeiT",
        filter: Filter::Bicubic,
        size: ResizeTo::Size { height: 256, width: 256 },
        is_square: true,
        crop: Some([224, 224]),
        mean: HALVES,
        std: HALVES,
        rescales_first: false,
        patches: None,
    },
    CLIP_DEFAULTS,
    ClassDefaults { class: "Llava", ..CLIP_DEFAULTS },
    ClassDefaults {
        class: "Gemma3",
        filter: Filter::Bilinear,
        size: ResizeTo::Size { height: 224, width: 224 },
        is_square: true,
        crop: None,
        mean: HALVES,
        std: HALVES,
        rescales_first: false,
        patches: None,
    },
    ClassDefaults { class: "Bit", ..CLIP_DEFAULTS },
    ClassDefaults {
        class: "Qwen2VL",
        size: ResizeTo::Pixels { factor: 28, least: 56 * 56, most: 28 * 28 * 1280 },
        crop: None,
        patches: Some(PatchSizes { patch: 14, square: 2, frames: 2 }),
        ..CLIP_DEFAULTS
    },
    ClassDefaults {
        class: "Siglip",
        filter: Filter::Bicubic,
        size: ResizeTo::Size { height: 224, width: 224 },
        is_square: false,
        crop: None,
        mean: HALVES,
        std: HALVES,
        rescales_first: false,
        patches: None,
    },
    ClassDefaults {
        class: "DINOv3ViT",
        filter: Filter::Bilinear,
        size: ResizeTo::Size { height: 224, width: 224 },
        is_square: true,
        crop: None,
        mean: IMAGENET[0],
        std: IMAGENET[1],
        rescales_first: true,
        patches: None,
    },
];

/// The keys of a file, and its name for messages.
struct Keys<'k> {
    file: &'k Path,
    map: &'k Map<String, Value>,
}

impl ImageProcessor {
    /// The steps of the model in a directory, or of the file in it.
    ///
    /// # Errors
    /// A model without the file, one that is no JSON, states impossible values, or steps that are not computed here.
    pub fn of_model(model: &Path) -> Result<ImageProcessor, ImageDataError> {
        let directory = model_directory(model);
        let file = directory.join("preprocessor_config.json");
        let whole = directory.join("processor_config.json");
        if !file.is_file() && whole.is_file() {
            // Processors of several modalities have that of images as a part of theirs.
            let all = read(&whole)?;
            return match all.get("image_processor").and_then(Value::as_object) {
                Some(map) => Keys { file: &whole, map }.processor(),
                None => Err(ImageDataError::NoProcessor { file }),
            };
        }
        if !file.is_file() {
            return Err(ImageDataError::NoProcessor { file });
        }
        Keys { file: &file, map: &read(&file)? }.processor()
    }
}

fn read(file: &Path) -> Result<Map<String, Value>, ImageDataError> {
    json_file::object(file).map_err(|problem| ImageDataError::Processor { file: file.to_path_buf(), problem })
}

impl Keys<'_> {
    fn processor(&self) -> Result<ImageProcessor, ImageDataError> {
        let class = self.class()?;
        if let Some(key) =
            ["do_pad", "do_convert_grayscale", "do_pan_and_scan"].into_iter().find(|key| self.is(key, false))
        {
            return Err(self.unsupported(format!("`{key}`")));
        }
        let patches = class.patches.map(|usual| self.patch_sizes(usual)).transpose()?;
        let resize = match (self.is("do_resize", true), patches) {
            (true, Some(sizes)) => Some((self.pixel_bounds(class, sizes)?, self.filter(class)?)),
            (true, None) => Some((self.size(class)?, self.filter(class)?)),
            (false, _) => None,
        };
        let crop = match self.is("do_center_crop", class.crop.is_some()) {
            true => Some(self.crop_size(class)?),
            false => None,
        };
        let scale = match self.is("do_rescale", true) {
            true => self.number("rescale_factor")?.unwrap_or(1.0 / 255.0),
            false => 1.0,
        };
        let (mean, std) = match self.is("do_normalize", true) {
            true => (self.three("image_mean", class.mean)?, self.three("image_std", class.std)?),
            false => ([0.0; 3], [1.0; 3]),
        };
        if std.contains(&0.0) {
            return Err(self.invalid("`image_std` is 0"));
        }
        let rescales_first = class.rescales_first;
        let is_of_torch = patches.is_some() && !self.class_name().is_some_and(|name| name.ends_with("Pil"));
        Ok(ImageProcessor {
            file: PathBuf::from(self.file),
            resize,
            crop,
            scale,
            mean,
            std,
            rescales_first,
            patches,
            is_of_torch,
        })
    }

    fn class_name(&self) -> Option<&str> {
        let text = |key: &str| self.map.get(key).and_then(Value::as_str);
        text("image_processor_type").or_else(|| text("feature_extractor_type"))
    }

    fn class(&self) -> Result<&'static ClassDefaults, ImageDataError> {
        let Some(name) = self.class_name() else {
            return Err(self.invalid("names no class: it has no `image_processor_type`"));
        };
        let ends = ["ImageProcessor", "ImageProcessorFast", "ImageProcessorPil", "FeatureExtractor"];
        let stem = ends.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
        let found = CLASSES.iter().find(|class| class.class == stem);
        found.ok_or_else(|| self.unsupported(format!("the class {name}")))
    }

    fn invalid(&self, problem: impl Into<String>) -> ImageDataError {
        ImageDataError::Processor { file: self.file.to_path_buf(), problem: problem.into() }
    }

    fn unsupported(&self, step: String) -> ImageDataError {
        ImageDataError::UnsupportedProcessor { file: self.file.to_path_buf(), step }
    }

    fn is(&self, key: &str, default: bool) -> bool {
        self.map.get(key).and_then(Value::as_bool).unwrap_or(default)
    }

    fn number(&self, key: &str) -> Result<Option<f64>, ImageDataError> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match value.as_f64().filter(|value| value.is_finite()) {
                Some(value) => Ok(Some(value)),
                None => Err(self.invalid(format!("`{key}` is not a number"))),
            },
        }
    }

    /// A number for each channel, or one for all.
    fn three(&self, key: &str, default: [f64; 3]) -> Result<[f64; 3], ImageDataError> {
        let Some(stated) = self.map.get(key).filter(|value| !value.is_null()) else { return Ok(default) };
        let list = stated.as_array().map(|list| list.iter().filter_map(Value::as_f64).collect::<Vec<_>>());
        match (list.as_deref(), stated.as_f64()) {
            (Some(&[red, green, blue]), _) => Ok([red, green, blue]),
            (None, Some(all)) => Ok([all; 3]),
            _ => Err(self.invalid(format!("`{key}` has no value for each of three channels"))),
        }
    }

    fn side(&self, key: &str, value: &Value) -> Result<usize, ImageDataError> {
        let side = value.as_u64().filter(|side| (1..=LONGEST_SIDE).contains(side));
        side.map(|side| side as usize).ok_or_else(|| self.invalid(format!("`{key}` is no size in pixels")))
    }

    fn size(&self, class: &ClassDefaults) -> Result<ResizeTo, ImageDataError> {
        const KEY: &str = "size";
        let object = match self.map.get(KEY) {
            None | Some(Value::Null) => return Ok(class.size),
            Some(Value::Object(object)) => object,
            Some(number) => {
                let side = self.side(KEY, number)?;
                return Ok(match class.is_square {
                    true => ResizeTo::Size { height: side, width: side },
                    false => ResizeTo::Shorter { side },
                });
            }
        };
        let stated = |key: &str| object.get(key).filter(|value| !value.is_null());
        match (stated("height"), stated("width"), stated("shortest_edge"), stated("longest_edge")) {
            (Some(height), Some(width), None, None) => {
                Ok(ResizeTo::Size { height: self.side(KEY, height)?, width: self.side(KEY, width)? })
            }
            (None, None, Some(side), None) => Ok(ResizeTo::Shorter { side: self.side(KEY, side)? }),
            _ => Err(self.unsupported(format!("`{KEY}` {}", Value::Object(object.clone())))),
        }
    }

    /// The sizes of patches, and those of the class where they are not stated.
    fn patch_sizes(&self, usual: PatchSizes) -> Result<PatchSizes, ImageDataError> {
        let size = |key: &str, usual: usize| match self.map.get(key).filter(|value| !value.is_null()) {
            None => Ok(usual),
            Some(stated) => self.side(key, stated),
        };
        Ok(PatchSizes {
            patch: size("patch_size", usual.patch)?,
            square: size("merge_size", usual.square)?,
            frames: size("temporal_patch_size", usual.frames)?,
        })
    }

    /// The numbers of pixels that images may have: `min_pixels` and `max_pixels`, or the two edges of `size`, which count as such.
    fn pixel_bounds(&self, class: &ClassDefaults, sizes: PatchSizes) -> Result<ResizeTo, ImageDataError> {
        const KEY: &str = "size";
        let pixels = |key: &str, value: &Value| {
            let count = value.as_u64().filter(|count| (1..=1 << 32).contains(count));
            count.map(|count| count as usize).ok_or_else(|| self.invalid(format!("`{key}` is not a count of pixels")))
        };
        let own = |key: &str| {
            let stated = self.map.get(key).filter(|value| !value.is_null());
            stated.map(|value| pixels(key, value)).transpose()
        };
        let usual = match class.size {
            ResizeTo::Pixels { least, most, .. } => [least, most],
            _ => return Err(self.unsupported(format!("`{KEY}` of the class {}", class.class))),
        };
        let bounds = match self.map.get(KEY) {
            None | Some(Value::Null) => usual.map(Some),
            Some(Value::Object(object)) => {
                let edge = |key: &str| {
                    let stated = object.get(key).filter(|value| !value.is_null());
                    stated.map(|value| pixels(KEY, value)).transpose()
                };
                [edge("shortest_edge")?, edge("longest_edge")?]
            }
            Some(other) => return Err(self.unsupported(format!("`{KEY}` {other}"))),
        };
        let [least, most] = [own("min_pixels")?.or(bounds[0]), own("max_pixels")?.or(bounds[1])];
        match (least, most) {
            (Some(least), Some(most)) => Ok(ResizeTo::Pixels { factor: sizes.factor(), least, most }),
            _ => Err(self.unsupported(format!("`{KEY}` without `shortest_edge` and `longest_edge`"))),
        }
    }

    fn crop_size(&self, class: &ClassDefaults) -> Result<[usize; 2], ImageDataError> {
        const KEY: &str = "crop_size";
        match self.map.get(KEY) {
            None | Some(Value::Null) => match class.crop {
                Some(size) => Ok(size),
                None => Err(self.invalid(format!("`do_center_crop` without `{KEY}`"))),
            },
            Some(Value::Object(object)) => {
                let side = |key: &str| self.side(KEY, object.get(key).unwrap_or(&Value::Null));
                Ok([side("height")?, side("width")?])
            }
            Some(number) => self.side(KEY, number).map(|side| [side, side]),
        }
    }

    fn filter(&self, class: &ClassDefaults) -> Result<Filter, ImageDataError> {
        const KEY: &str = "resample";
        match self.map.get(KEY) {
            None | Some(Value::Null) => Ok(class.filter),
            Some(stated) => {
                let found = stated.as_u64().and_then(Filter::from_number);
                found.ok_or_else(|| self.invalid(format!("`{KEY}` {stated} is no filter of Pillow")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::{Diagnostic, ErrorKind};

    fn of(text: &str) -> Result<ImageProcessor, ImageDataError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("preprocessor_config.json"), text).unwrap();
        ImageProcessor::of_model(dir.path())
    }

    #[test]
    fn absent_keys_are_those_of_the_class() {
        let clip = of(r#"{"image_processor_type": "CLIPImageProcessorFast"}"#).unwrap();
        assert_eq!(clip.resize, Some((ResizeTo::Shorter { side: 224 }, Filter::Bicubic)));
        assert_eq!((clip.crop, clip.mean), (Some([224, 224]), CLIP[0]));
        let old = of(r#"{"feature_extractor_type": "ViTFeatureExtractor", "size": 384, "resample": 3}"#).unwrap();
        assert_eq!(old.resize, Some((ResizeTo::Size { height: 384, width: 384 }, Filter::Bicubic)));
        let short = of(r#"{"feature_extractor_type": "CLIPFeatureExtractor", "size": 64, "crop_size": 60}"#).unwrap();
        assert_eq!(short.resize, Some((ResizeTo::Shorter { side: 64 }, Filter::Bicubic)));
        assert_eq!((short.crop, short.scale), (Some([60, 60]), 1.0 / 255.0));
        let any = of(r#"{"image_processor_type": "Qwen2VLImageProcessorFast", "max_pixels": 9000, "patch_size": 16}"#)
            .unwrap();
        assert_eq!(any.patches, Some(PatchSizes { patch: 16, square: 2, frames: 2 }));
        assert_eq!(any.resize, Some((ResizeTo::Pixels { factor: 32, least: 3136, most: 9000 }, Filter::Bicubic)));
        let plain = of(
            r#"{"image_processor_type": "ViTImageProcessor", "do_resize": false, "do_rescale": false, "do_normalize": false}"#,
        );
        let plain = plain.unwrap();
        assert_eq!((plain.resize, plain.scale, plain.std), (None, 1.0, [1.0; 3]));
    }

    #[test]
    fn steps_that_are_not_computed_are_refused_by_name() {
        for (text, kind, words) in [
            ("[]", ErrorKind::Invalid, "no JSON object"),
            ("{", ErrorKind::Invalid, "no JSON"),
            ("{}", ErrorKind::Invalid, "image_processor_type"),
            (r#"{"image_processor_type": "SamImageProcessor"}"#, ErrorKind::Unsupported, "SamImageProcessor"),
            (r#"{"image_processor_type": "ViTImageProcessor", "do_pad": true}"#, ErrorKind::Unsupported, "do_pad"),
            (
                r#"{"image_processor_type": "ViTImageProcessor", "size": {"shortest_edge": 8, "longest_edge": 9}}"#,
                ErrorKind::Unsupported,
                "longest_edge",
            ),
            (
                r#"{"image_processor_type": "Qwen2VLImageProcessor", "size": {"max_pixels": 9}}"#,
                ErrorKind::Unsupported,
                "shortest_edge",
            ),
            (r#"{"image_processor_type": "Qwen2VLImageProcessor", "min_pixels": 0}"#, ErrorKind::Invalid, "min_pixels"),
            (r#"{"image_processor_type": "ViTImageProcessor", "size": 0}"#, ErrorKind::Invalid, "`size`"),
            (r#"{"image_processor_type": "ViTImageProcessor", "resample": 9}"#, ErrorKind::Invalid, "`resample`"),
            (r#"{"image_processor_type": "ViTImageProcessor", "image_std": [1, 0, 1]}"#, ErrorKind::Invalid, "is 0"),
            (r#"{"image_processor_type": "ViTImageProcessor", "image_mean": [1]}"#, ErrorKind::Invalid, "`image_mean`"),
        ] {
            let error = of(text).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(words) && error.hint().is_some(), "{error}");
        }
        let dir = tempfile::tempdir().unwrap();
        let none = ImageProcessor::of_model(dir.path()).unwrap_err();
        assert!(none.to_string().contains("preprocessor_config.json is missing"), "{none}");
    }
}
