//! The codes of a stored matrix in the form of a scheme, without values on the way: what a conversion between layouts takes
//! over. Which scheme stored codes are, and how scales are stored. Not whether another layout holds them: see
//! `kvant_checkpoint::conversion`.

use super::code_matrix::{CodeMatrix, Factor, ZeroPoints, rounded_scales};
use crate::band::Band;
use crate::parts::ScaleEncoding;
use kvant_numeric::format::{Int, MiniFloat, ScaleRule};
use kvant_numeric::kernel::CodeKind;
use kvant_numeric::pack::WordMatrix;
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::{
    Axis, FloatScale, FloatScheme, Granularity, IntScheme, ScaleType, SchemeError, TensorScheme, ZeroPoint,
};
use kvant_quant::{Codes, QuantParts, QuantTensor};
use std::num::NonZeroU32;

/// Integers of up to eight bits by width, signed and unsigned; there are no unsigned ones of odd widths.
const INTEGERS: &[(Int, Option<Int>)] = &[
    (Int::INT2, Some(Int::UINT2)),
    (Int::INT3, None),
    (Int::INT4, Some(Int::UINT4)),
    (Int::INT5, None),
    (Int::INT6, None),
    (Int::INT7, None),
    (Int::INT8, Some(Int::UINT8)),
];

/// The integers of a width: signed, and unsigned where there are any.
pub fn integers(bits: u32) -> Option<(Int, Option<Int>)> {
    INTEGERS.iter().find(|(signed, _)| signed.bits() == bits).copied()
}

/// The code of zero in unsigned codes of this width that are symmetric about it.
pub(super) fn middle(bits: u32) -> u8 {
    1 << (bits - 1)
}

/// Scales and zero points of a band, row-major.
#[derive(Clone, Debug, PartialEq)]
pub struct RecodedParameters {
    /// One for each tile.
    pub scales: Vec<f32>,
    /// One for each scale, or none where zero is code 0.
    pub zero_points: Vec<f64>,
}

impl CodeMatrix<'_> {
    /// What the codes are, in the terms of schemes: integers are signed, with a zero point unless zero has the middle code
    /// everywhere and `symmetric` says that this may count. `None` for what no scheme describes.
    ///
    /// `usual` is what [`CodeMatrix::cut`] is for most matrices: it tells groups that are as long as the axis from channels, and
    /// blocks that are as large as the matrix from the whole of it.
    pub fn scheme(&self, symmetric: bool, usual: Option<(usize, usize)>) -> Option<TensorScheme> {
        let granularity = self.granularity(usual)?;
        match self.kind {
            CodeKind::Float(format) => {
                let scale = self.float_scale()?;
                let scheme = FloatScheme { format, granularity, scale, observer: Default::default() };
                Some(TensorScheme::Float(scheme))
            }
            CodeKind::Integer { .. } | CodeKind::OffsetInteger { .. } if !self.has_integer_zeros() => None,
            CodeKind::Integer { bits, .. } | CodeKind::OffsetInteger { bits } => {
                let zero_point = if symmetric { ZeroPoint::Zero } else { ZeroPoint::Integer };
                let (format, _) = integers(bits)?;
                let scale = self.plain_scale()?;
                let scheme = IntScheme { format, granularity, scale, zero_point, observer: Default::default() };
                self.with_stages(scheme)
            }
        }
    }

    fn with_stages(&self, second: IntScheme) -> Option<TensorScheme> {
        let first = FloatScheme {
            format: MiniFloat::E4M3,
            granularity: Granularity::Tensor,
            scale: FloatScale::Plain(ScaleType::F32),
            observer: Default::default(),
        };
        match self.factor {
            Factor::None => Some(TensorScheme::Int(second)),
            Factor::OfValues(_) => Some(TensorScheme::Progressive { first, second }),
            Factor::OfScales(_) | Factor::UnderScales(_) => None,
        }
    }

    fn granularity(&self, usual: Option<(usize, usize)>) -> Option<Granularity> {
        granularity(self.tile, (self.rows, self.columns), usual)
    }

    /// Rows and columns that share a scale, where there are several such tiles in a row, or a matrix of them.
    pub fn cut(&self) -> Option<(usize, usize)> {
        let several =
            if self.tile.0 == 1 { self.scales.columns > 1 } else { self.scales.rows * self.scales.columns > 1 };
        several.then_some(self.tile)
    }

    fn plain_scale(&self) -> Option<ScaleType> {
        match self.scales.encoding {
            ScaleEncoding::F32 => Some(ScaleType::F32),
            ScaleEncoding::F16 => Some(ScaleType::F16),
            ScaleEncoding::Bf16 => Some(ScaleType::Bf16),
            ScaleEncoding::E4m3 | ScaleEncoding::E5m3 | ScaleEncoding::E8m0 => None,
        }
    }

    fn float_scale(&self) -> Option<FloatScale> {
        let under_tensor = matches!(self.factor, Factor::OfScales(_) | Factor::UnderScales(_));
        match (self.scales.encoding, under_tensor) {
            (ScaleEncoding::E8m0, false) => Some(FloatScale::E8m0(ScaleRule::Even)),
            (ScaleEncoding::E4m3, true) => Some(FloatScale::E4m3WithGlobal),
            (ScaleEncoding::E5m3, true) => Some(FloatScale::E5m3WithGlobal),
            (ScaleEncoding::E5m3, false) => Some(FloatScale::E5m3),
            (_, false) => self.plain_scale().map(FloatScale::Plain),
            _ => None,
        }
    }

    /// The encoding of scales.
    pub fn scale_encoding(&self) -> ScaleEncoding {
        self.scales.encoding
    }

    /// All scales as they are stored, without that of the tensor.
    pub fn scales(&self, isa: Isa) -> Vec<f32> {
        self.scales.read(isa, &self.all_tiles())
    }

    /// Returns whether codes are integers.
    pub fn is_integer(&self) -> bool {
        !matches!(self.kind, CodeKind::Float(_))
    }

    /// Returns whether zero has the middle code for all scales.
    pub fn is_symmetric(&self, isa: Isa) -> bool {
        let Some((kind, points)) = self.zero_codes(isa, &self.all_tiles()) else {
            return !matches!(self.kind, CodeKind::Integer { signed: false, .. });
        };
        let zero = match kind {
            CodeKind::Integer { signed: true, .. } => 0,
            CodeKind::Integer { bits, .. } | CodeKind::OffsetInteger { bits } => middle(bits),
            CodeKind::Float(_) => return true,
        };
        points.iter().all(|point| *point == zero)
    }

    /// The codes of zero of some tiles, and what they stand for; `None` where zero is code 0.
    fn zero_codes(&self, isa: Isa, tiles: &Band) -> Option<(CodeKind, Vec<u8>)> {
        match self.zero_points? {
            ZeroPoints::Codes { kind, codes } => {
                Some((kind, codes.read(isa, tiles.rows.clone(), tiles.columns.clone())))
            }
            points @ ZeroPoints::Biases(_) => {
                let zeros = points.read(isa, tiles, &self.effective_scales(isa, tiles));
                Some((self.kind, zeros.into_iter().map(|zero| zero.round_ties_even() as u8).collect()))
            }
        }
    }

    /// What is added to codes times their scales, for every scale, where that is what is stored.
    pub fn biases(&self, isa: Isa) -> Option<Vec<f32>> {
        match self.zero_points? {
            ZeroPoints::Biases(biases) => Some(biases.read(isa, &self.all_tiles())),
            ZeroPoints::Codes { .. } => None,
        }
    }

    /// Returns whether zero is a code of every scale, but for the rounding of stored biases.
    fn has_integer_zeros(&self) -> bool {
        let (Some(ZeroPoints::Biases(biases)), isa, tiles) = (self.zero_points, Isa::best(), self.all_tiles()) else {
            return true;
        };
        let scales = self.effective_scales(isa, &tiles);
        let (_, zeros) = self.zero_codes(isa, &tiles).unwrap_or((self.kind, Vec::new()));
        let expected: Vec<f32> = scales.iter().zip(zeros).map(|(scale, zero)| -(scale * f32::from(zero))).collect();
        let rounded = rounded_scales(isa, biases.encoding, &expected);
        let stored = biases.read(isa, &tiles);
        // The scale was rounded after the bias was chosen (MLX), or before (Kvant).
        let near = |(bias, rounded): (&f32, &f32)| (bias - rounded).abs() <= bias.abs() * biases.encoding.precision();
        stored.iter().zip(&rounded).all(near)
    }

    /// All tiles.
    fn all_tiles(&self) -> Band {
        Band { rows: 0..self.scales.rows, columns: 0..self.scales.columns }
    }

    /// How far the code of zero is from the lowest code, for every scale.
    pub fn lowest_to_zero(&self, isa: Isa) -> Vec<u8> {
        let lowest = |kind: CodeKind, code: u8| match kind {
            CodeKind::Integer { bits, signed: true } => (code ^ middle(bits)) & (middle(bits) | (middle(bits) - 1)),
            _ => code,
        };
        match self.zero_codes(isa, &self.all_tiles()) {
            Some((kind, codes)) => codes.into_iter().map(|code| lowest(kind, code)).collect(),
            None => vec![lowest(self.kind, zero_of(self.kind)); self.scales.rows * self.scales.columns],
        }
    }

    /// The group of every input channel, where groups are not runs of them.
    pub fn groups(&self) -> Option<&[u32]> {
        self.groups.as_deref()
    }

    /// The scale of the tensor: what multiplies block scales, or values.
    pub fn global_scale(&self) -> Option<f32> {
        match self.factor {
            Factor::None => None,
            Factor::OfScales(factor) | Factor::OfValues(factor) => Some(factor),
            Factor::UnderScales(divisor) => Some(1.0 / divisor),
        }
    }

    /// What block scales are divided by, where that is what is stored.
    pub fn divisor(&self) -> Option<f32> {
        match self.factor {
            Factor::UnderScales(divisor) => Some(divisor),
            _ => None,
        }
    }

    /// Bytes of codes, scales and zero points.
    pub fn stored_bytes(&self) -> u64 {
        let points = self.zero_points.as_ref().map_or(0, ZeroPoints::stored_bytes);
        (self.codes.bytes.len() + self.scales.bytes.len() + points) as u64
    }

    /// A band of the codes in the form of a scheme that stands for the same values: [`CodeMatrix::scheme`], or that of
    /// unsigned codes, whose zero points are higher by half of their range. The band starts on a tile of scales. `codes` is
    /// memory for them.
    ///
    /// # Errors
    /// [`SchemeError`] where the scheme is not of such codes.
    pub fn recoded(
        &self,
        isa: Isa,
        band: &Band,
        scheme: TensorScheme,
        mut codes: Vec<u8>,
    ) -> Result<QuantTensor, SchemeError> {
        self.codes.read_onto(isa, band.rows.clone(), band.columns.clone(), &mut codes);
        if let TensorScheme::Int(target) | TensorScheme::Progressive { second: target, .. } = scheme {
            shift(self.kind, target.format, &mut codes);
        }
        let RecodedParameters { scales, zero_points } = self.parameters(isa, band, scheme);
        let parts = QuantParts { codes: Codes::Bytes(codes), scales, zero_points, global_scale: self.global_scale() };
        QuantTensor::new(scheme, band.rows.len(), band.columns.len(), parts)
    }

    /// The words of a band's 4-bit codes as they are stored, and whether codes are in two's complement there; `None` for other
    /// codes, and bands that end within a word.
    pub fn words(&self, band: &Band) -> Option<(WordMatrix<'_>, bool)> {
        let twos_complement = matches!(self.kind, CodeKind::Integer { signed: true, .. });
        self.codes.words_of(band).map(|words| (words, twos_complement))
    }

    /// The scales and zero points of a band, which starts on a tile of scales, as a scheme has them.
    pub fn parameters(&self, isa: Isa, band: &Band, scheme: TensorScheme) -> RecodedParameters {
        let (Band { rows, columns }, tile) = (band, self.tile);
        let tiles = Band {
            rows: rows.start / tile.0..rows.end.div_ceil(tile.0),
            columns: columns.start / tile.1..columns.end.div_ceil(tile.1),
        };
        let zero_points = match scheme {
            TensorScheme::Int(target) | TensorScheme::Progressive { second: target, .. } => {
                self.zero_points_for(isa, &tiles, target)
            }
            _ => Vec::new(),
        };
        RecodedParameters { scales: self.scales.read(isa, &tiles), zero_points }
    }

    /// Zero points as a scheme has them; none where zero is code 0.
    fn zero_points_for(&self, isa: Isa, tiles: &Band, target: IntScheme) -> Vec<f64> {
        if target.zero_point == ZeroPoint::Zero && target.format.is_signed() {
            return Vec::new();
        }
        let none = || (self.kind, vec![zero_of(self.kind); tiles.len()]);
        let (kind, mut points) = self.zero_codes(isa, tiles).unwrap_or_else(none);
        shift(kind, target.format, &mut points);
        let value = |point: u8| if target.format.is_signed() { f64::from(point as i8) } else { f64::from(point) };
        points.into_iter().map(value).collect()
    }
}

/// How tiles of a matrix share scales; see [`CodeMatrix::scheme`].
pub(super) fn granularity(
    tile: (usize, usize),
    (rows, columns): (usize, usize),
    usual: Option<(usize, usize)>,
) -> Option<Granularity> {
    let size = |length: usize| u32::try_from(length).ok().and_then(NonZeroU32::new);
    match tile {
        (1, width) if width >= columns && usual != Some(tile) => Some(Granularity::Channel(Axis::Rows)),
        (1, width) if !columns.is_multiple_of(width) => None,
        (1, width) => Some(Granularity::Group { axis: Axis::Columns, size: Some(size(width)?) }),
        tile if tile == (rows, columns) && usual != Some(tile) => Some(Granularity::Tensor),
        (high, wide) => Some(Granularity::Block { rows: size(high)?, columns: size(wide)? }),
    }
}

/// The stored code of zero where there are no zero points.
fn zero_of(kind: CodeKind) -> u8 {
    match kind {
        CodeKind::OffsetInteger { bits } => middle(bits),
        _ => 0,
    }
}

/// Moves stored codes to those of a format as wide: unsigned, or in two's complement over the whole byte.
pub(super) fn shift(kind: CodeKind, target: Int, codes: &mut [u8]) {
    let half = middle(target.bits());
    match (kind, target.is_signed()) {
        (CodeKind::Integer { signed: true, .. }, true) if target.bits() == 8 => {}
        (CodeKind::Integer { signed: true, .. }, true) => {
            codes.iter_mut().for_each(|code| *code = (*code ^ half).wrapping_sub(half));
        }
        (CodeKind::Integer { signed: true, .. }, false) => {
            let mask = half | (half - 1);
            codes.iter_mut().for_each(|code| *code = (*code ^ half) & mask);
        }
        (_, true) => codes.iter_mut().for_each(|code| *code = code.wrapping_sub(half)),
        (_, false) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_of_all_kinds_transcode_to_the_target() {
        let signed = CodeKind::Integer { bits: 4, signed: true };
        let shifted = |kind, target, code: u8| {
            let mut codes = [code];
            shift(kind, target, &mut codes);
            codes[0]
        };
        for value in -8i8..8 {
            let (nibble, unsigned) = (value as u8 & 15, (value + 8) as u8);
            assert_eq!(shifted(signed, Int::INT4, nibble), value as u8);
            assert_eq!(shifted(signed, Int::UINT4, nibble), unsigned);
            for stored in [CodeKind::OffsetInteger { bits: 4 }, CodeKind::Integer { bits: 4, signed: false }] {
                assert_eq!(shifted(stored, Int::INT4, unsigned), value as u8);
                assert_eq!(shifted(stored, Int::UINT4, unsigned), unsigned);
            }
        }
        let bytes = CodeKind::Integer { bits: 8, signed: true };
        assert_eq!((shifted(bytes, Int::INT8, 0x80), shifted(bytes, Int::UINT8, 0x80)), (0x80, 0));
    }
}
