//! A matrix whose rows are rows of tensors of a GGUF file, in blocks of llama.cpp's types: its values, and where blocks are
//! codes with plain scales, those. Not which rows they are: see [`crate::gguf::restore`].

use super::matrix::decode_scales;
use super::recode::{granularity, middle, shift};
use crate::export::ScaleEncoding;
use crate::gguf::plan::RowMap;
use crate::weight::Band;
use kvant_container::gguf::GgufTensor;
use kvant_numeric::format::{MiniFloat, ScaleRule};
use kvant_numeric::ggml::{Coded, GgmlType, PartsMut, dequantize};
use kvant_numeric::kernel::CodeKind;
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::{FloatScale, FloatScheme, IntScheme, ScaleType, SchemeError, TensorScheme, ZeroPoint};
use kvant_quant::{Codes, QuantParts, QuantTensor};

/// Some rows of a matrix, which are rows of a tensor of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockPiece<'a> {
    /// The tensor.
    pub tensor: GgufTensor<'a>,
    /// The type of its blocks.
    pub kind: GgmlType,
    /// Elements of a row of the tensor.
    pub width: usize,
    /// The row of the tensor in which the piece begins, the rows of all its matrices counted.
    pub first: usize,
    /// Which row of the matrix each row of the piece is.
    pub rows: RowMap,
    /// Whether a row of the piece is a column of the matrix, and `rows` the columns of the piece.
    pub transposed: bool,
}

/// A matrix of `rows` output and `columns` input channels, every row of it in one piece.
#[derive(Clone, Debug)]
pub struct BlockMatrix<'a> {
    rows: usize,
    columns: usize,
    pieces: Vec<BlockPiece<'a>>,
}

/// Codes, scales and minima of a band, row by row: see [`kvant_numeric::ggml::Parts`].
#[derive(Debug, Default)]
struct Stored {
    codes: Vec<u8>,
    scales: Vec<u16>,
    minima: Vec<u16>,
}

impl<'a> BlockMatrix<'a> {
    /// The matrix of some pieces; `None` where a row is in none of them, or a piece is not as wide or as long as it must be.
    pub(crate) fn new(rows: usize, columns: usize, pieces: Vec<BlockPiece<'a>>) -> Option<BlockMatrix<'a>> {
        let fits = |piece: &BlockPiece<'_>| {
            let (length, width) =
                if piece.transposed { (columns, piece.rows.count()) } else { (piece.rows.count(), columns) };
            let bytes = piece.kind.row_bytes(piece.width).and_then(|row| row.checked_mul(piece.first + length));
            piece.width == width && bytes.is_some_and(|bytes| bytes as u64 <= piece.tensor.byte_len())
        };
        let covered = |row: usize| pieces.iter().any(|piece| piece.rows.position(row).is_some());
        let whole = pieces.iter().all(fits) && (0..rows).all(covered);
        whole.then_some(BlockMatrix { rows, columns, pieces })
    }

    /// Output channels.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Input channels.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The name of the tensor that its first rows are in.
    pub fn tensor_name(&self) -> Option<&'a str> {
        self.pieces.first().map(|piece| piece.tensor.name())
    }

    /// Whether all of it is plain floats.
    pub fn is_float(&self) -> bool {
        self.pieces.iter().all(|piece| piece.kind.block_elements() == 1)
    }

    /// The type of its floats, where all are plain.
    pub fn float_type(&self) -> Option<GgmlType> {
        self.pieces.first().map(|piece| piece.kind).filter(|_| self.is_float())
    }

    /// The type of its blocks, where all are of one that is codes with plain scales.
    pub fn coded(&self) -> Option<Coded> {
        let kind = self.pieces.first()?.kind;
        let same = self.pieces.iter().all(|piece| piece.kind == kind && !piece.transposed);
        Coded::ALL.iter().copied().find(|coded| coded.kind() == kind).filter(|_| same)
    }

    /// The types of its blocks, for people.
    pub fn kinds(&self) -> String {
        let mut names: Vec<&str> = self.pieces.iter().map(|piece| piece.kind.name()).collect();
        names.dedup();
        names.join(" and ")
    }

    /// The values of a band, row-major, appended to `out`.
    pub fn read(&self, isa: Isa, band: &Band, out: &mut Vec<f32>) {
        let start = out.len();
        out.resize(start + band.len(), 0.0);
        let mut turned: Vec<Option<Vec<f32>>> = vec![None; self.pieces.len()];
        for (row, out) in band.rows.clone().zip(out[start..].chunks_mut(band.columns.len().max(1))) {
            let Some((index, at)) = self.find(row) else { continue };
            let piece = &self.pieces[index];
            match piece.transposed {
                false => piece.read_row(isa, at, band.columns.clone(), out),
                true => {
                    let columns = turned[index].get_or_insert_with(|| piece.read_rows(isa, band.columns.clone()));
                    let column = columns.iter().skip(at).step_by(piece.width.max(1));
                    out.iter_mut().zip(column).for_each(|(out, value)| *out = *value);
                }
            }
        }
    }

    /// The piece that a row is in, and which of its rows it is.
    fn find(&self, row: usize) -> Option<(usize, usize)> {
        let mut found = self.pieces.iter().enumerate().map(|(index, piece)| Some((index, piece.rows.position(row)?)));
        found.find_map(|place| place)
    }

    fn stored(&self, isa: Isa, coded: Coded, band: &Band) -> Stored {
        let group = coded.group();
        let (mut all, mut line) = (Stored::default(), Stored::default());
        line.codes.resize(self.columns, 0);
        line.scales.resize(self.columns / group, 0);
        line.minima.resize(if coded.has_minima() { line.scales.len() } else { 0 }, 0);
        let groups = band.columns.start / group..band.columns.end.div_ceil(group);
        for (index, at) in band.rows.clone().filter_map(|row| self.find(row)) {
            let parts = PartsMut { codes: &mut line.codes, scales: &mut line.scales, minima: &mut line.minima };
            coded.take_apart(isa, self.pieces[index].row_bytes(at), parts);
            all.codes.extend_from_slice(&line.codes[band.columns.clone()]);
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
            CodeKind::Float(_) => Some(float(FloatScale::E4m3OfTensor)),
            CodeKind::Integer { bits, .. } | CodeKind::OffsetInteger { bits } => {
                self.zero_points(Isa::best(), coded, &self.whole())?;
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
        if widest > 4 { "int8:g32:f16" } else { "uint4:g32:f16:zp" }.parse().ok()
    }

    /// The zero point of every group of a band: `z` with `minimum = -z scale`, exactly; `None` where some minimum is no such
    /// number. Empty for types without minima.
    fn zero_points(&self, isa: Isa, coded: Coded, band: &Band) -> Option<Vec<u8>> {
        if !coded.has_minima() {
            return Some(Vec::new());
        }
        let stored = self.stored(isa, coded, band);
        let most = if coded == Coded::Q4_1 { 15.0 } else { 31.0 };
        let both = floats(isa, coded, &stored.scales).into_iter().zip(floats(isa, coded, &stored.minima));
        both.map(|(scale, minimum)| zero_point(scale, minimum, most)).collect()
    }

    /// Rows and columns that share a scale.
    pub fn cut(&self) -> Option<(usize, usize)> {
        Some((1, self.coded()?.group()))
    }

    /// Whether codes are integers.
    pub fn is_integer(&self) -> bool {
        self.coded().is_some_and(|coded| !matches!(code_kind(coded), CodeKind::Float(_)))
    }

    /// Whether zero has the middle code for all scales.
    pub fn is_symmetric(&self, isa: Isa) -> bool {
        let Some(coded) = self.coded().filter(|coded| coded.has_minima()) else { return true };
        let middle = if coded == Coded::Q4_1 { middle(4) } else { middle(5) };
        let points = self.zero_points(isa, coded, &self.whole());
        points.is_some_and(|points| points.iter().all(|point| *point == middle))
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

    /// How scales are stored.
    pub fn scale_encoding(&self) -> ScaleEncoding {
        self.coded().map_or(ScaleEncoding::F32, encoding)
    }

    /// All scales, row by row.
    pub fn scales(&self, isa: Isa) -> Vec<f32> {
        let Some(coded) = self.coded() else { return Vec::new() };
        floats(isa, coded, &self.stored(isa, coded, &self.whole()).scales)
    }

    /// The scale of the tensor, which NVFP4 has in other layouts.
    pub fn tensor_scale(&self) -> Option<f32> {
        (self.coded()? == Coded::Nvfp4).then_some(1.0)
    }

    /// Bytes of its blocks.
    pub fn stored_bytes(&self) -> u64 {
        let rows = |piece: &BlockPiece<'_>| if piece.transposed { self.columns } else { piece.rows.count() };
        self.pieces.iter().map(|piece| (piece.row_length() * rows(piece)) as u64).sum()
    }

    /// See [`super::CodeMatrix::recoded`].
    ///
    /// # Errors
    /// [`SchemeError`] where the scheme is not of such codes.
    pub fn recoded(&self, isa: Isa, band: &Band, scheme: TensorScheme) -> Result<QuantTensor, SchemeError> {
        let coded = self.coded().unwrap_or(Coded::Q4_0);
        let Stored { mut codes, scales, .. } = self.stored(isa, coded, band);
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
        let parts = QuantParts { codes: Codes::Bytes(codes), scales, zero_points, tensor_scale: self.tensor_scale() };
        QuantTensor::new(scheme, band.rows.len(), band.columns.len(), parts)
    }

    /// Gives the pages of its bytes back to the system.
    pub fn release(&self) {
        for piece in &self.pieces {
            let length = if piece.transposed { self.columns } else { piece.rows.count() };
            let row = piece.row_length();
            piece.tensor.release_part(piece.first * row..(piece.first + length) * row);
        }
    }
}

impl<'a> BlockPiece<'a> {
    /// Bytes of a row.
    fn row_length(&self) -> usize {
        self.kind.row_bytes(self.width).unwrap_or(0)
    }

    /// The blocks of one of its rows.
    fn row_bytes(&self, row: usize) -> &'a [u8] {
        let length = self.row_length();
        let start = (self.first + row) * length;
        self.tensor.bytes().get(start..start + length).unwrap_or_default()
    }

    /// Some columns of a row.
    fn read_row(&self, isa: Isa, row: usize, columns: std::ops::Range<usize>, out: &mut [f32]) {
        let block = self.kind.block_elements();
        let (first, last) = (columns.start / block, columns.end.div_ceil(block));
        let size = self.kind.block_bytes();
        let bytes = self.row_bytes(row).get(first * size..last * size).unwrap_or_default();
        if (last - first) * block == out.len() {
            return dequantize(isa, self.kind, bytes, out);
        }
        let mut whole = vec![0.0; (last - first) * block];
        dequantize(isa, self.kind, bytes, &mut whole);
        let skipped = columns.start - first * block;
        out.copy_from_slice(&whole[skipped..skipped + columns.len()]);
    }

    /// Some of its rows, whole.
    fn read_rows(&self, isa: Isa, rows: std::ops::Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * self.width];
        for (row, out) in rows.zip(values.chunks_mut(self.width.max(1))) {
            self.read_row(isa, row, 0..self.width, out);
        }
        values
    }
}

/// What the codes of a type are.
fn code_kind(coded: Coded) -> CodeKind {
    match coded {
        Coded::Q4_0 => CodeKind::OffsetInteger { bits: 4 },
        Coded::Q5_0 => CodeKind::OffsetInteger { bits: 5 },
        Coded::Q4_1 => CodeKind::Integer { bits: 4, signed: false },
        Coded::Q5_1 => CodeKind::Integer { bits: 5, signed: false },
        Coded::Q8_0 => CodeKind::Integer { bits: 8, signed: true },
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

/// What the scales of a type are.
fn encoding(coded: Coded) -> ScaleEncoding {
    match coded {
        Coded::Mxfp4 => ScaleEncoding::E8m0,
        Coded::Nvfp4 => ScaleEncoding::E4m3,
        _ => ScaleEncoding::F16,
    }
}

fn floats(isa: Isa, coded: Coded, stored: &[u16]) -> Vec<f32> {
    let encoding = encoding(coded);
    let bytes: Vec<u8> = match encoding.size() {
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
    fn zero_points_are_whole_and_exact() {
        assert_eq!(zero_point(0.5, -3.5, 15.0), Some(7));
        assert_eq!((zero_point(0.5, 0.0, 15.0), zero_point(0.0, 0.0, 15.0)), (Some(0), Some(0)));
        for (scale, minimum) in [(0.5, -3.4), (0.5, 0.5), (0.5, -8.0), (0.0, 1.0), (f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert_eq!(zero_point(scale, minimum, 15.0), None, "{scale} {minimum}");
        }
    }
}
