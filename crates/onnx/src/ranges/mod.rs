//! Ranges of tensors in files of other tools: AIMET's encodings, ONNX Runtime's calibration tables and TensorRT's calibration caches. Each
//! format is a file here and a row of [`FORMATS`]. Not which tensors of a graph they are for: that is `placement`.

mod aimet;
mod aimet_2;
mod error;
mod file;
mod flatbuffers;
mod numbers;
mod onnxruntime;
mod tensorrt;

pub use error::RangesError;
pub use file::RangesFile;

use std::collections::BTreeMap;
use std::path::Path;

use crate::element::Element;
use crate::quantization::{Affine, Range};
use error::Problem;
use serde_json::Value;

/// What is known of the values of tensors, by name.
pub type RangeTable = BTreeMap<String, TensorRanges>;

/// What is known of the values of a tensor.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorRanges {
    /// Whether it is a constant.
    pub is_constant: bool,
    /// Whether it has no codes.
    pub is_float: bool,
    /// The range of all values, or one for each channel; none if no range is known.
    pub ranges: Vec<Range>,
    /// How values are quantized; none for types other than integers, and where only ranges are known.
    pub codes: Option<Codes>,
}

/// Integer codes of a tensor: `value = scale * (code - zero_point)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Codes {
    /// Bits of a code, 2 to 32.
    pub bits: u32,
    /// Whether the codes are signed and symmetric about zero.
    pub is_symmetric: bool,
    /// The axis of the channels, if each has a scale and the axis is known.
    pub axis: Option<usize>,
    /// One scale, or one for each channel. Zero points are those of codes from 0 to `2^bits - 1`, whatever the type's sign.
    pub affines: Vec<Affine>,
}

impl TensorRanges {
    /// A tensor that stays in float, with the range of its values if that is known.
    pub fn float(range: Option<Range>) -> Self {
        Self { is_constant: false, is_float: true, ranges: range.into_iter().collect(), codes: None }
    }

    /// A tensor of which nothing but ranges is known.
    pub(crate) fn of_ranges(ranges: Vec<Range>) -> Self {
        Self { is_constant: false, is_float: false, ranges, codes: None }
    }

    /// The range of all values.
    pub fn whole(&self) -> Option<Range> {
        self.ranges.iter().copied().reduce(Range::join)
    }
}

impl Codes {
    /// Those of an integer type, whose zero points are codes of that type.
    pub(crate) fn of(element: Element, affines: &[Affine], axis: Option<usize>) -> Option<Self> {
        let int = element.int().filter(|_| !affines.is_empty())?;
        let shift = if int.is_signed() { 1_i64 << (int.bits() - 1) } else { 0 };
        let is_symmetric = int.is_signed() && affines.iter().all(|affine| affine.zero_point == 0);
        let affine = |affine: &Affine| Affine { zero_point: affine.zero_point + shift, ..*affine };
        Some(Self { bits: int.bits(), is_symmetric, axis, affines: affines.iter().map(affine).collect() })
    }

    /// The values of the lowest and the highest code of each scale.
    pub(crate) fn ranges(&self) -> Vec<Range> {
        self.ends().into_iter().map(|[min, max]| Range { min: min as f32, max: max as f32 }).collect()
    }

    /// The same as 64-bit floats.
    fn ends(&self) -> Vec<[f64; 2]> {
        let highest = (1_i64 << self.bits) - 1;
        let value = |affine: &Affine, code: i64| f64::from(affine.scale) * (code - affine.zero_point) as f64;
        self.affines.iter().map(|affine| [value(affine, 0), value(affine, highest)]).collect()
    }
}

/// A format of files with ranges.
#[derive(Debug)]
pub struct RangesFormat {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub about: &'static str,
    /// The ends of names that mean this format, in lower case and without a dot.
    pub endings: &'static [&'static str],
    /// Whether it has the scales of constants too.
    pub has_constants: bool,
    /// The element types that it expresses.
    holds: fn(Element) -> bool,
    is_of: fn(&Contents<'_>) -> bool,
    read: fn(&Contents<'_>) -> Result<RangeTable, Problem>,
    write: fn(&RangeTable) -> Result<Vec<u8>, Problem>,
}

/// All formats. A file is read in the first that it is of.
pub const FORMATS: &[RangesFormat] = &[
    RangesFormat {
        name: "aimet",
        about: "AIMET's encodings 0.6.1 in JSON: scales and offsets of activations and weights, which Qualcomm's converters read",
        endings: &["encodings"],
        has_constants: true,
        holds: Element::is_integer,
        is_of: aimet::is_of_0_6_1,
        read: aimet::read,
        write: aimet::write_0_6_1,
    },
    RangesFormat {
        name: "aimet-1.0.0",
        about: "AIMET's encodings 1.0.0",
        endings: &[],
        has_constants: true,
        holds: Element::is_integer,
        is_of: aimet::is_of_1_0_0,
        read: aimet::read,
        write: aimet::write_1_0_0,
    },
    RangesFormat {
        name: "aimet-2.0.0",
        about: "AIMET's encodings 2.0.0, with the types and axes of ONNX",
        endings: &[],
        has_constants: true,
        holds: Element::is_integer,
        is_of: aimet_2::is_of,
        read: aimet_2::read,
        write: aimet_2::write,
    },
    RangesFormat {
        name: "onnxruntime",
        about: "ONNX Runtime's calibration table in JSON: the lowest and the highest value of each activation, for `quantize_static`",
        endings: &["json"],
        has_constants: false,
        holds: |_| true,
        is_of: onnxruntime::is_of_json,
        read: onnxruntime::read_json,
        write: onnxruntime::write_json,
    },
    RangesFormat {
        name: "onnxruntime-flatbuffers",
        about: "ONNX Runtime's calibration table for its TensorRT execution provider: the largest magnitude of each activation",
        endings: &["flatbuffers"],
        has_constants: false,
        holds: |_| true,
        is_of: flatbuffers::is_of,
        read: flatbuffers::read,
        write: flatbuffers::write,
    },
    RangesFormat {
        name: "tensorrt",
        about: "TensorRT's calibration cache: a symmetric int8 scale of each activation",
        endings: &["cache", "calib"],
        has_constants: false,
        holds: |_| true,
        is_of: tensorrt::is_of,
        read: tensorrt::read,
        write: tensorrt::write,
    },
    RangesFormat {
        name: "onnxruntime-text",
        about: "ONNX Runtime's calibration table as lines of a name and the largest magnitude",
        endings: &[],
        has_constants: false,
        holds: |_| true,
        is_of: onnxruntime::is_of_text,
        read: onnxruntime::read_text,
        write: onnxruntime::write_text,
    },
];

/// A file's contents, parsed as far as formats are told apart by it.
enum Contents<'b> {
    Json(Value),
    Text(&'b str),
    Binary(&'b [u8]),
}

impl<'b> Contents<'b> {
    fn of(bytes: &'b [u8]) -> Result<Self, Problem> {
        // Text has no zero bytes, and every table of flatbuffers has.
        let text = std::str::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
        let Some(text) = text else { return Ok(Self::Binary(bytes)) };
        let text = text.trim_start_matches('\u{feff}');
        if !text.trim_start().starts_with(['{', '[']) {
            return Ok(Self::Text(text));
        }
        let json = serde_json::from_str(text);
        json.map(Self::Json)
            .map_err(|cause| Problem::Invalid(format!("it is not JSON: {cause}; NaN and Infinity are no ranges")))
    }

    fn json(&self) -> Option<&Value> {
        match self {
            Self::Json(value) => Some(value),
            Self::Text(_) | Self::Binary(_) => None,
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Json(_) | Self::Binary(_) => "",
        }
    }

    fn binary(&self) -> &[u8] {
        match self {
            Self::Binary(bytes) => bytes,
            Self::Json(_) | Self::Text(_) => &[],
        }
    }
}

impl RangesFormat {
    /// The format of a name.
    pub fn find(name: &str) -> Option<&'static RangesFormat> {
        FORMATS.iter().find(|format| format.name == name)
    }

    /// The format that the end of a file's name means.
    pub fn of_path(path: &Path) -> Option<&'static RangesFormat> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        FORMATS.iter().find(|format| format.endings.contains(&ending.as_str()))
    }

    /// Returns whether bytes are a file of one of the formats.
    pub fn recognises(bytes: &[u8]) -> bool {
        Contents::of(bytes).is_ok_and(|contents| FORMATS.iter().any(|format| (format.is_of)(&contents)))
    }

    /// Refuses the type of an activation that the format does not express.
    ///
    /// # Errors
    /// *Unsupported*, with the tensor.
    pub fn check(&self, tensor: &str, element: Element) -> Result<(), RangesError> {
        match (self.holds)(element) {
            true => Ok(()),
            false => Err(RangesError::NotExpressed {
                tensor: tensor.to_owned(),
                element: element.to_string(),
                format: self.name,
            }),
        }
    }

    /// The bytes of a file.
    ///
    /// # Errors
    /// A table that the format does not express.
    pub fn write(&self, table: &RangeTable) -> Result<Vec<u8>, RangesError> {
        (self.write)(table).map_err(|problem| problem.of_format(self.name))
    }
}

#[cfg(test)]
mod tests;
