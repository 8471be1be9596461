//! How a layer's tensors are laid out in a checkpoint: data, from which sizes, order of work and bytes follow. Not the
//! bytes, which [`super::packer`] makes.

use crate::band::BandAxis;
use kvant_container::Dtype;
use kvant_numeric::pack::{NibbleOrder, WordAxis, WordLayout};

/// One tensor of a quantized layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// The tensor's full name.
    pub name: String,
    /// Its element type in the file.
    pub dtype: Dtype,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// The value it has.
    pub content: Content,
}

/// What a tensor holds of a [`QuantTensor`](kvant_quant::QuantTensor) of `[out, in]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Codes.
    Codes {
        /// How they become bytes.
        packing: Packing,
        /// Whether the matrix is stored as `[in, out]`.
        transposed: bool,
    },
    /// The matrix of scales.
    Scales {
        /// The type of a scale.
        encoding: ScaleEncoding,
        /// Whether the matrix is stored transposed.
        transposed: bool,
    },
    /// The matrix of zero points.
    ZeroPoints {
        /// How they become bytes.
        packing: Packing,
        /// Whether the matrix is stored transposed.
        transposed: bool,
        /// Whether each is stored less 1 (GPTQ's first format): subtracted from whole words, so that a zero point of 0 borrows
        /// from the next, which a reader that adds to whole words gives back.
        less_one: bool,
    },
    /// What is added to unsigned codes times their scale, one for each scale: minus the scale times the code of zero (MLX).
    Biases {
        /// The type of a bias.
        encoding: ScaleEncoding,
    },
    /// Whole blocks of a tensor type of GGUF: codes, scales and minima together.
    Blocks,
    /// The f32 scale of the whole tensor: a multiplier.
    GlobalScale,
    /// Its reciprocal: what dequantization divides by.
    GlobalScaleReciprocal,
    /// `[out, in]` as two 64-bit integers.
    Shape,
    /// The group of every input channel as a 32-bit integer: runs of the tile's length unless the weights came in another
    /// order.
    Groups,
    /// Sylvester's Hadamard matrix of the part's shape, as 1 and -1: that by which inputs are rotated while the model runs.
    Hadamard,
}

/// How codes become bytes, along the last axis of the stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// One byte a code.
    Bytes,
    /// One 32-bit integer a code, sign-extended (AMD Quark's int2).
    Int32,
    /// Eight 4-bit codes to a 32-bit word; rows are padded to words.
    Words(NibbleOrder),
    /// The same of offset-binary codes (least code is 0), as AWQ has them.
    OffsetNibbles(NibbleOrder),
    /// A dense little-endian bit stream; rows are padded to bytes.
    Bits(u32),
    /// A dense little-endian bit stream of offset-binary codes (least code is 0); rows are padded to 32-bit words.
    OffsetWords(u32),
    /// The same down the first axis: every column of the matrix is a stream, stored as rows of words.
    OffsetWordsDown(u32),
    /// Four 2-bit codes to a byte, the first in the high bits.
    CrumbsFirstHigh,
}

/// The type of stored scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleEncoding {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// fp8 e4m3.
    E4m3,
    /// The byte of an unsigned fp8 e5m3.
    E5m3,
    /// The byte of a power of two.
    E8m0,
}

impl ScaleEncoding {
    /// Bytes of one scale.
    pub fn size(self) -> usize {
        match self {
            ScaleEncoding::F32 => 4,
            ScaleEncoding::F16 | ScaleEncoding::Bf16 => 2,
            ScaleEncoding::E4m3 | ScaleEncoding::E5m3 | ScaleEncoding::E8m0 => 1,
        }
    }

    /// The most that a value is off by, relative to it: a unit in the last place.
    pub fn precision(self) -> f32 {
        match self {
            ScaleEncoding::F32 => f32::EPSILON,
            ScaleEncoding::F16 => 1.0 / 1024.0,
            ScaleEncoding::Bf16 => 1.0 / 128.0,
            ScaleEncoding::E4m3 | ScaleEncoding::E5m3 => 1.0 / 8.0,
            ScaleEncoding::E8m0 => 1.0,
        }
    }

    /// That of plain floats of a type.
    pub fn of_float(dtype: Dtype) -> Option<ScaleEncoding> {
        match dtype {
            Dtype::F32 => Some(ScaleEncoding::F32),
            Dtype::F16 => Some(ScaleEncoding::F16),
            Dtype::BF16 => Some(ScaleEncoding::Bf16),
            _ => None,
        }
    }

    /// That of plain floats in the file.
    pub fn of_floats(dtype: Dtype) -> ScaleEncoding {
        match dtype {
            Dtype::F16 => ScaleEncoding::F16,
            Dtype::BF16 => ScaleEncoding::Bf16,
            _ => ScaleEncoding::F32,
        }
    }

    /// The element type in the file; bytes that safetensors has no name for are `U8`.
    pub fn dtype(self) -> Dtype {
        match self {
            ScaleEncoding::F32 => Dtype::F32,
            ScaleEncoding::F16 => Dtype::F16,
            ScaleEncoding::Bf16 => Dtype::BF16,
            ScaleEncoding::E4m3 => Dtype::F8_E4M3,
            ScaleEncoding::E5m3 | ScaleEncoding::E8m0 => Dtype::U8,
        }
    }
}

impl Packing {
    /// The bytes of one row of `columns` codes. For [`Packing::OffsetWordsDown`] a row is one row of words.
    pub fn row_bytes(self, columns: usize) -> usize {
        match self {
            Packing::Bytes => columns,
            Packing::Int32 | Packing::OffsetWordsDown(_) => columns * 4,
            Packing::Words(_) | Packing::OffsetNibbles(_) => columns.div_ceil(8) * 4,
            Packing::Bits(bits) => (columns * bits as usize).div_ceil(8),
            Packing::OffsetWords(bits) => (columns * bits as usize).div_ceil(32) * 4,
            Packing::CrumbsFirstHigh => columns.div_ceil(4),
        }
    }

    /// Whether rows of `columns` codes end where a unit of the packing does, so that rows can be packed as one run.
    pub fn is_seamless(self, columns: usize) -> bool {
        match self {
            Packing::Words(_) | Packing::OffsetNibbles(_) => columns.is_multiple_of(8),
            Packing::Bits(bits) => (columns * bits as usize).is_multiple_of(8),
            Packing::OffsetWords(bits) => (columns * bits as usize).is_multiple_of(32),
            Packing::CrumbsFirstHigh => columns.is_multiple_of(4),
            Packing::Bytes | Packing::Int32 | Packing::OffsetWordsDown(_) => true,
        }
    }

    /// How 4-bit codes lie in words of eight, in a matrix that is stored `transposed` or not; `None` for other packings.
    pub fn word_layout(self, transposed: bool) -> Option<WordLayout> {
        let (order, down) = match self {
            Packing::Words(order) | Packing::OffsetNibbles(order) => (order, false),
            Packing::Bits(4) | Packing::OffsetWords(4) => (NibbleOrder::Natural, false),
            Packing::OffsetWordsDown(4) => (NibbleOrder::Natural, true),
            _ => return None,
        };
        let axis = if down == transposed { WordAxis::Columns } else { WordAxis::Rows };
        Some(WordLayout { axis, order, column_major: transposed })
    }

    /// Returns whether signed codes are stored as offset-binary ones, the least as 0, and not in two's complement.
    pub fn is_offset(self) -> bool {
        matches!(self, Packing::OffsetNibbles(_) | Packing::OffsetWords(_) | Packing::OffsetWordsDown(_))
    }

    /// How many codes a stored row of `length` elements of [`Packing::dtype`] holds, where it is full.
    pub fn codes_in(self, length: usize) -> usize {
        match self {
            Packing::Bytes | Packing::Int32 | Packing::OffsetWordsDown(_) => length,
            Packing::Words(_) | Packing::OffsetNibbles(_) => length * 8,
            Packing::CrumbsFirstHigh => length * 4,
            Packing::Bits(bits) => length * 8 / bits as usize,
            Packing::OffsetWords(bits) => length * 32 / bits as usize,
        }
    }

    /// The stored shape of a `rows x columns` matrix.
    pub fn shape(self, rows: usize, columns: usize) -> Vec<usize> {
        match self {
            Packing::OffsetWordsDown(bits) => vec![(rows * bits as usize).div_ceil(32), columns],
            packing => vec![rows, packing.row_bytes(columns) / packing.dtype().bitsize().div_ceil(8)],
        }
    }

    /// The element type in the file.
    pub fn dtype(self) -> Dtype {
        match self {
            Packing::Bytes => Dtype::I8,
            Packing::Int32
            | Packing::Words(_)
            | Packing::OffsetNibbles(_)
            | Packing::OffsetWords(_)
            | Packing::OffsetWordsDown(_) => Dtype::I32,
            Packing::Bits(_) | Packing::CrumbsFirstHigh => Dtype::U8,
        }
    }
}

impl Content {
    /// Whether it has one entry for every scale.
    pub fn is_of_scales(self) -> bool {
        matches!(self, Content::Scales { .. } | Content::ZeroPoints { .. } | Content::Biases { .. })
    }

    /// The axis along which bands of the weight are contiguous in this tensor; `None` where it does not matter.
    fn band_axis(self, vector: bool) -> Option<BandAxis> {
        let matrix = |transposed| Some(if transposed { BandAxis::Columns } else { BandAxis::Rows });
        match self {
            // A vector has one entry a row whichever way it is stored.
            Content::Scales { .. } | Content::ZeroPoints { .. } if vector => Some(BandAxis::Rows),
            Content::Blocks | Content::Biases { .. } => Some(BandAxis::Rows),
            Content::Codes { transposed, .. }
            | Content::Scales { transposed, .. }
            | Content::ZeroPoints { transposed, .. } => matrix(transposed),
            Content::GlobalScale
            | Content::GlobalScaleReciprocal
            | Content::Shape
            | Content::Groups
            | Content::Hadamard => None,
        }
    }
}

/// The axis along which a layer with these tensors can be cut: one on which all of them are contiguous.
/// `scale_shape` is the shape of its matrix of scales.
pub fn band_axis(parts: &[Part], scale_shape: (usize, usize)) -> BandAxis {
    let single = scale_shape == (1, 1);
    let matters = |part: &&Part| !(single && part.content.is_of_scales());
    let mut axes = parts.iter().filter(matters).filter_map(|part| part.content.band_axis(scale_shape.1 == 1));
    let first = axes.next().unwrap_or(BandAxis::Whole);
    if axes.all(|axis| axis == first) { first } else { BandAxis::Whole }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(content: Content) -> Part {
        Part { name: String::new(), dtype: Dtype::U8, shape: vec![], content }
    }

    #[test]
    fn band_axis_follows_orientation_and_conflicts_disable_bands() {
        let codes = |transposed| part(Content::Codes { packing: Packing::Bytes, transposed });
        let scales = |transposed| part(Content::Scales { encoding: ScaleEncoding::F32, transposed });
        assert_eq!(band_axis(&[codes(false), scales(false)], (8, 4)), BandAxis::Rows);
        assert_eq!(band_axis(&[codes(true), scales(true)], (8, 4)), BandAxis::Columns);
        assert_eq!(band_axis(&[codes(false), scales(true)], (8, 4)), BandAxis::Whole);
        assert_eq!(band_axis(&[codes(true), scales(false)], (1, 1)), BandAxis::Columns);
        assert_eq!(band_axis(&[codes(false), scales(true), part(Content::GlobalScale)], (8, 1)), BandAxis::Rows);
    }

    #[test]
    fn stored_shapes_of_packings() {
        assert_eq!(Packing::Words(NibbleOrder::Awq).shape(256, 128), [256, 16]);
        assert_eq!(Packing::Bits(6).shape(4, 32), [4, 24]);
        assert_eq!(Packing::OffsetWords(3).shape(4, 33), [4, 4]);
        assert_eq!(Packing::OffsetWordsDown(4).shape(64, 3), [8, 3]);
    }

    #[test]
    fn full_rows_give_their_code_count() {
        let order = NibbleOrder::Awq;
        for packing in [Packing::Bytes, Packing::Int32, Packing::Words(order), Packing::Bits(3), Packing::Bits(6)] {
            assert_eq!(packing.codes_in(packing.shape(1, 96)[1]), 96, "{packing:?}");
        }
        assert_eq!(Packing::OffsetWords(5).codes_in(Packing::OffsetWords(5).shape(1, 64)[1]), 64);
        assert_eq!(Packing::CrumbsFirstHigh.codes_in(Packing::CrumbsFirstHigh.shape(1, 64)[1]), 64);
    }
}
