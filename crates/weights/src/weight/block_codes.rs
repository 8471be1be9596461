//! The codes and scales of a matrix of blocks, where its type is codes with plain scales: the same that [`super::recode`] is for
//! codes in tensors of their own.

use super::blocks::{BlockMatrix, BlockPiece};
use super::code_matrix::decode_scales;
use super::recode::{granularity, middle, shift};
use crate::band::{Band, BandAxis, bands};
use crate::parts::ScaleEncoding;
use kvant_numeric::format::{MiniFloat, ScaleRule};
use kvant_numeric::ggml::{Coded, PartsMut};
use kvant_numeric::kernel::{CodeKind, RowScales, dequantize_row};
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::{FloatScale, FloatScheme, IntScheme, ScaleType, SchemeError, TensorScheme, ZeroPoint};
use kvant_quant::{Codes, QuantParts, QuantTensor};

/// Elements that are looked at at a time.
const PART: usize = 1 << 20;

/// Codes, scales and minima of a band, row by row: see [`kvant_numeric::ggml::Parts`].
#[derive(Debug, Default)]
struct Stored {
    codes: Vec<u8>,
    scales: Vec<u16>,
    minima: Vec<u16>,
}

/// The minima of all blocks, as zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Minima {
    /// Whether each is a whole multiple of its scale, or there are none.
    are_zero_points: bool,
    /// Whether zero has the middle code everywhere.
    are_symmetric: bool,
}

impl BlockMatrix<'_> {
    /// What its minima are: all blocks are taken apart for that, once and a part at a time.
    fn minima(&self, isa: Isa, coded: Coded) -> Minima {
        *self.minima.get_or_init(|| {
            let mut found = Minima { are_zero_points: true, are_symmetric: true };
            if !coded.has_minima() {
                return found;
            }
            let middle = if coded == Coded::Q4_1 { middle(4) } else { middle(5) };
            for band in bands(self.rows, self.columns, BandAxis::Rows, 1, PART) {
                let Some(points) = self.zero_points(isa, coded, &band) else {
                    return Minima { are_zero_points: false, are_symmetric: false };
                };
                found.are_symmetric &= points.iter().all(|point| *point == middle);
            }
            found
        })
    }

    /// The parts of a band; without its codes where only what is beside them is wanted.
    fn stored(&self, isa: Isa, coded: Coded, band: &Band, with_codes: bool) -> Stored {
        let group = coded.group();
        let (mut all, mut line) = (Stored::default(), Stored::default());
        line.codes.resize(self.columns, 0);
        line.scales.resize(self.columns / group, 0);
        line.minima.resize(if coded.has_minima() { line.scales.len() } else { 0 }, 0);
        let groups = band.columns.start / group..band.columns.end.div_ceil(group);
        for (index, at) in band.rows.clone().filter_map(|row| self.find(row)) {
            let parts = PartsMut { codes: &mut line.codes, scales: &mut line.scales, minima: &mut line.minima };
            coded.take_apart(isa, self.pieces[index].row_bytes(at), parts);
            if with_codes {
                all.codes.extend_from_slice(&line.codes[band.columns.clone()]);
            }
            all.scales.extend_from_slice(&line.scales[groups.clone()]);
            all.minima.extend_from_slice(line.minima.get(groups.clone()).unwrap_or_default());
        }
        all
    }

    fn whole(&self) -> Band {
        Band { rows: 0..self.rows, columns: 0..self.columns }
    }

    /// See [`super::CodeMatrix::scheme`]; `None` too where minima are no whole multiples of scales.
    pub fn scheme(&self, symmetric: bool, usual: Option<(usize, usize)>) -> Option<TensorScheme> {
        let coded = self.coded()?;
        let granularity = granularity(self.cut()?, (self.rows, self.columns), usual)?;
        let observer = Default::default();
        let float = |scale| TensorScheme::Float(FloatScheme { format: MiniFloat::E2M1, granularity, scale, observer });
        match code_kind(coded) {
            CodeKind::Float(_) if coded == Coded::Mxfp4 => Some(float(FloatScale::E8m0(ScaleRule::Even))),
            CodeKind::Float(_) => Some(float(FloatScale::E4m3WithGlobal)),
            CodeKind::Integer { bits, .. } | CodeKind::OffsetInteger { bits } => {
                if !self.minima(Isa::best(), coded).are_zero_points {
                    return None;
                }
                let zero_point = if symmetric { ZeroPoint::Zero } else { ZeroPoint::Integer };
                let (format, scale) = (super::integers(bits)?.0, ScaleType::F16);
                Some(TensorScheme::Int(IntScheme { format, granularity, scale, zero_point, observer }))
            }
        }
    }

    /// The nearest scheme in which usual layouts hold as much as its blocks do.
    pub fn like(&self) -> Option<TensorScheme> {
        let bits = |piece: &BlockPiece<'_>| piece.kind.block_bytes() * 8 / piece.kind.block_elements();
        let widest = self.pieces.iter().map(bits).max()?;
        if widest > 4 { "int8:g32:f16" } else { "int4:g32:f16:zp" }.parse().ok()
    }

    /// The zero point of every group of a band: `z` with `minimum = -z scale`, exactly; `None` where some minimum is no such
    /// number. Empty for types without minima.
    fn zero_points(&self, isa: Isa, coded: Coded, band: &Band) -> Option<Vec<u8>> {
        if !coded.has_minima() {
            return Some(Vec::new());
        }
        let stored = self.stored(isa, coded, band, false);
        let most = if coded == Coded::Q4_1 { 15.0 } else { 31.0 };
        let both = floats(isa, coded, &stored.scales).into_iter().zip(floats(isa, coded, &stored.minima));
        both.map(|(scale, minimum)| zero_point(scale, minimum, most)).collect()
    }

    /// Rows and columns that share a scale.
    pub fn cut(&self) -> Option<(usize, usize)> {
        Some((1, self.coded()?.group()))
    }

    /// Returns whether codes are integers.
    pub fn is_integer(&self) -> bool {
        self.coded().is_some_and(|coded| !matches!(code_kind(coded), CodeKind::Float(_)))
    }

    /// Returns whether zero has the middle code for all scales.
    pub fn is_symmetric(&self, isa: Isa) -> bool {
        self.coded().is_none_or(|coded| self.minima(isa, coded).are_symmetric)
    }

    /// How far the code of zero is from the lowest code, for every scale.
    pub fn lowest_to_zero(&self, isa: Isa) -> Vec<u8> {
        let Some(coded) = self.coded() else { return Vec::new() };
        match self.zero_points(isa, coded, &self.whole()).unwrap_or_default() {
            points if points.is_empty() => {
                let zero = if coded == Coded::Q8_0 { middle(8) } else { zero_code(code_kind(coded)) };
                vec![zero; self.rows * self.columns / coded.group()]
            }
            points => points,
        }
    }

    /// The encoding of scales.
    pub fn scale_encoding(&self) -> ScaleEncoding {
        self.coded().map_or(ScaleEncoding::F32, encoding)
    }

    /// All scales, row by row.
    pub fn scales(&self, isa: Isa) -> Vec<f32> {
        let Some(coded) = self.coded() else { return Vec::new() };
        floats(isa, coded, &self.stored(isa, coded, &self.whole(), false).scales)
    }

    /// The scale of the tensor, which NVFP4 has in other layouts.
    pub fn global_scale(&self) -> Option<f32> {
        self.tensor_factor().filter(|_| self.coded() == Some(Coded::Nvfp4))
    }

    /// See [`super::CodeMatrix::recoded`].
    ///
    /// # Errors
    /// [`SchemeError`] where the scheme is not of such codes.
    pub fn recoded(&self, isa: Isa, band: &Band, scheme: TensorScheme) -> Result<QuantTensor, SchemeError> {
        let coded = self.coded().unwrap_or(Coded::Q4_0);
        let Stored { mut codes, scales, .. } = self.stored(isa, coded, band, true);
        let scales = floats(isa, coded, &scales);
        let mut zero_points = Vec::new();
        if let TensorScheme::Int(target) = scheme {
            let kind = code_kind(coded);
            shift(kind, target.format, &mut codes);
            let mut points = self.zero_points(isa, coded, band).unwrap_or_default();
            if points.is_empty() && (target.zero_point != ZeroPoint::Zero || !target.format.is_signed()) {
                points = vec![zero_code(kind); scales.len()];
            }
            let kept = target.zero_point != ZeroPoint::Zero || !target.format.is_signed();
            shift(kind, target.format, &mut points);
            let value = |point: u8| if target.format.is_signed() { f64::from(point as i8) } else { f64::from(point) };
            zero_points.extend(points.into_iter().filter(|_| kept).map(value));
        }
        let parts = QuantParts { codes: Codes::Bytes(codes), scales, zero_points, global_scale: self.global_scale() };
        QuantTensor::new(scheme, band.rows.len(), band.columns.len(), parts)
    }
}

/// The kind of a type's codes.
fn code_kind(coded: Coded) -> CodeKind {
    match coded {
        Coded::Q4_0 => CodeKind::OffsetInteger { bits: 4 },
        Coded::Q5_0 => CodeKind::OffsetInteger { bits: 5 },
        Coded::Q4_1 => CodeKind::Integer { bits: 4, signed: false },
        Coded::Q5_1 => CodeKind::Integer { bits: 5, signed: false },
        Coded::Q8_0 => CodeKind::Integer { bits: 8, signed: true },
        Coded::Tq1_0 | Coded::Tq2_0 => CodeKind::OffsetInteger { bits: 2 },
        Coded::Mxfp4 | Coded::Nvfp4 => CodeKind::Float(MiniFloat::E2M1),
    }
}

/// The stored code of zero of types without minima.
fn zero_code(kind: CodeKind) -> u8 {
    match kind {
        CodeKind::OffsetInteger { bits } => middle(bits),
        _ => 0,
    }
}

/// The kind of a type's scales.
fn encoding(coded: Coded) -> ScaleEncoding {
    match coded {
        Coded::Mxfp4 => ScaleEncoding::E8m0,
        Coded::Nvfp4 => ScaleEncoding::E4m3,
        _ => ScaleEncoding::F16,
    }
}

/// The values of blocks of NVFP4 under the scale of a tensor.
pub(super) fn dequantize_nvfp4(isa: Isa, bytes: &[u8], factor: f32, out: &mut [f32]) {
    let (coded, group) = (Coded::Nvfp4, Coded::Nvfp4.group());
    let (mut codes, mut scales) = (vec![0; out.len()], vec![0; out.len() / group]);
    coded.take_apart(isa, bytes, PartsMut { codes: &mut codes, scales: &mut scales, minima: &mut [] });
    let mut scales = floats(isa, coded, &scales);
    scales.iter_mut().for_each(|scale| *scale *= factor);
    let scales = RowScales { scales: &scales, zero_points: &[], group, first: group };
    dequantize_row(isa, code_kind(coded), &codes, scales, out);
}

/// The byte of a scale of NVFP4, which has no sign, and where what is NaN elsewhere stands for 0.
fn unsigned_e4m3(bits: u16) -> u8 {
    match bits as u8 & 0x7F {
        0x7F => 0,
        bits => bits,
    }
}

fn floats(isa: Isa, coded: Coded, stored: &[u16]) -> Vec<f32> {
    let encoding = encoding(coded);
    let bytes: Vec<u8> = match encoding.size() {
        1 if coded == Coded::Nvfp4 => stored.iter().map(|bits| unsigned_e4m3(*bits)).collect(),
        1 => stored.iter().map(|bits| *bits as u8).collect(),
        _ => stored.iter().flat_map(|bits| bits.to_le_bytes()).collect(),
    };
    let mut values = vec![0.0; stored.len()];
    decode_scales(isa, encoding, &bytes, &mut values);
    values
}

/// The whole number `z` of at most `most` with `-z scale = minimum`. Products of binary16 numbers and such are exact in f64.
fn zero_point(scale: f32, minimum: f32, most: f64) -> Option<u8> {
    if minimum == 0.0 {
        return Some(0);
    }
    let (scale, minimum) = (f64::from(scale), f64::from(minimum));
    let point = (-minimum / scale).round();
    let fits = (0.0..=most).contains(&point) && -point * scale == minimum;
    fits.then_some(point as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_zero_points_must_be_exact_integers() {
        assert_eq!(zero_point(0.5, -3.5, 15.0), Some(7));
        assert_eq!((zero_point(0.5, 0.0, 15.0), zero_point(0.0, 0.0, 15.0)), (Some(0), Some(0)));
        for (scale, minimum) in [(0.5, -3.4), (0.5, 0.5), (0.5, -8.0), (0.0, 1.0), (f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert_eq!(zero_point(scale, minimum, 15.0), None, "{scale} {minimum}");
        }
    }
}
