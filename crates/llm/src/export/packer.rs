//! From a band of a quantized tensor to the bytes of an export's tensors. One packer for all exports: what differs
//! between them is data ([`Part`]).

use super::part::{Content, Packing, Part, ScaleEncoding};
use crate::weight::Band;
use kvant_numeric::arithmetic::{round_to_bf16, round_to_f16};
use kvant_numeric::format::{Format, MiniFloat, e8m0_encode};
use kvant_numeric::pack::{pack_bits, pack_crumbs_first_high, pack_words, pack_words_transposed, transpose};
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;

/// Bytes of one tensor from some offset on.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Where the bytes begin in the tensor.
    pub offset: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// What is known of the whole weight that a band is of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Whole<'a> {
    /// Output and input channels.
    pub shape: (usize, usize),
    /// The group of every input channel, where groups are not runs of them.
    pub groups: Option<&'a [u32]>,
    /// What block scales are divided by, where that is what is known, and not its reciprocal.
    pub divisor: Option<f32>,
}

impl From<(usize, usize)> for Whole<'_> {
    fn from(shape: (usize, usize)) -> Self {
        Whole { shape, groups: None, divisor: None }
    }
}

/// The bytes that a band of the layer contributes to one of its tensors; `None` where it contributes nothing (what is
/// stored once comes with the first band).
pub fn pack(isa: Isa, part: &Part, tensor: &QuantTensor, band: &Band, whole: &Whole<'_>) -> Option<Piece> {
    let first = band.rows.start == 0 && band.columns.start == 0;
    let shape = whole.shape;
    match part.content {
        Content::Codes { packing, transposed } => Some(codes(isa, packing, transposed, tensor, band)),
        Content::Scales { .. } | Content::ZeroPoints { .. } if tensor.scale_shape() == (1, 1) && !first => None,
        Content::Scales { encoding, transposed } => {
            let values = Matrix::scales(tensor, band);
            Some(values.stored(transposed).piece(|n| n * encoding.size(), |row| encode(encoding, row)))
        }
        Content::ZeroPoints { packing, transposed, less_one } => {
            let points = Matrix::zero_points(tensor, band).stored(transposed);
            let piece = zero_points(packing, least_code(tensor), &points);
            Some(if less_one { less_ones(packing, piece) } else { piece })
        }
        Content::TensorScale => first.then(|| once(tensor.tensor_scale().unwrap_or(1.0).to_le_bytes())),
        Content::TensorScaleReciprocal => {
            let divisor = || whole.divisor.unwrap_or_else(|| 1.0 / tensor.tensor_scale().unwrap_or(1.0));
            first.then(|| once(divisor().to_le_bytes()))
        }
        Content::Groups => first.then(|| once(groups(tensor, whole))),
        Content::Shape => first.then(|| once([shape.0 as i64, shape.1 as i64].map(i64::to_le_bytes).concat())),
    }
}

fn once(bytes: impl Into<Vec<u8>>) -> Piece {
    Piece { offset: 0, bytes: bytes.into() }
}

/// The group of every input channel.
fn groups(tensor: &QuantTensor, whole: &Whole<'_>) -> Vec<u8> {
    let tile = tensor.scheme().granularity().map_or((1, 1), |g| g.tile(whole.shape.0, whole.shape.1));
    let run = |column: usize| (column / tile.1.max(1)) as u32;
    let group =
        |column: usize| whole.groups.and_then(|groups| groups.get(column).copied()).unwrap_or_else(|| run(column));
    (0..whole.shape.1).flat_map(|column| group(column).to_le_bytes()).collect()
}

/// Takes 1 from every code of every word at once.
fn less_ones(packing: Packing, piece: Piece) -> Piece {
    let bits = match packing {
        Packing::OffsetWords(bits) if bits.is_power_of_two() => bits,
        _ => return piece,
    };
    let ones = (0..32).step_by(bits as usize).fold(0u32, |ones, at| ones | 1 << at);
    let words: Vec<u32> = bytes_to_words(&piece.bytes).into_iter().map(|word| word.wrapping_sub(ones)).collect();
    Piece { bytes: words_to_bytes(&words), ..piece }
}

fn codes(isa: Isa, packing: Packing, transposed: bool, tensor: &QuantTensor, band: &Band) -> Piece {
    let (rows, columns) = tensor.shape();
    let codes = tensor.code_bytes().unwrap_or_default();
    let least = least_code(tensor);
    if !transposed {
        let offset = band.rows.start * packing.row_bytes(columns);
        return Piece { offset: offset as u64, bytes: pack_rows(isa, packing, least, codes, columns) };
    }
    let offset = (band.columns.start * packing.row_bytes(rows)) as u64;
    match packing {
        Packing::Words(order) | Packing::OffsetNibbles(order) => {
            let mut words = vec![0; columns * rows.div_ceil(8)];
            pack_words_transposed(isa, order, codes, rows, columns, &mut words);
            flip_words(packing, least, &mut words);
            return Piece { offset, bytes: words_to_bytes(&words) };
        }
        // Streams along the rows as they are, whose words are then turned.
        Packing::OffsetWordsDown(bits) => {
            let streams = bytes_to_words(&pack_rows(isa, Packing::OffsetWords(bits), least, codes, columns));
            let mut words = vec![0; streams.len()];
            transpose(&streams, rows, streams.len() / rows.max(1), &mut words);
            let first_word = band.columns.start * bits as usize / 32;
            return Piece { offset: (first_word * rows * 4) as u64, bytes: words_to_bytes(&words) };
        }
        _ => {}
    }
    let mut turned = vec![0; codes.len()];
    transpose(codes, rows, columns, &mut turned);
    Piece { offset, bytes: pack_rows(isa, packing, least, &turned, rows) }
}

/// Packs rows of `columns` codes, as one run where no row ends inside a unit of the packing.
fn pack_rows(isa: Isa, packing: Packing, least: i64, codes: &[u8], columns: usize) -> Vec<u8> {
    let run = if packing.is_seamless(columns) { codes.len() } else { columns };
    let mut bytes = Vec::with_capacity(codes.len() / columns.max(1) * packing.row_bytes(columns));
    for codes in codes.chunks(run.max(1)) {
        bytes.append(&mut pack_row(isa, packing, least, codes));
    }
    bytes
}

/// The least code of an integer format, 0 for floats.
fn least_code(tensor: &QuantTensor) -> i64 {
    match tensor.scheme().format() {
        Format::Int(int) => int.min(),
        _ => 0,
    }
}

fn pack_row(isa: Isa, packing: Packing, least: i64, codes: &[u8]) -> Vec<u8> {
    let mut out = vec![0; packing.row_bytes(codes.len())];
    let signed = least < 0;
    match packing {
        Packing::Bytes => out.copy_from_slice(codes),
        Packing::Bits(bits) => pack_bits(isa, codes, bits, &mut out),
        Packing::OffsetWords(bits) | Packing::OffsetWordsDown(bits) if least == 0 => {
            let used = (codes.len() * bits as usize).div_ceil(8);
            pack_bits(isa, codes, bits, &mut out[..used]);
        }
        Packing::OffsetWords(bits) | Packing::OffsetWordsDown(bits) => {
            let offset: Vec<u8> = codes.iter().map(|code| code.wrapping_sub(least as u8)).collect();
            let used = (codes.len() * bits as usize).div_ceil(8);
            pack_bits(isa, &offset, bits, &mut out[..used]);
        }
        Packing::CrumbsFirstHigh => pack_crumbs_first_high(codes, &mut out),
        Packing::Words(order) | Packing::OffsetNibbles(order) => {
            let mut words = vec![0; codes.len().div_ceil(8)];
            pack_words(order, codes, &mut words);
            flip_words(packing, least, &mut words);
            out = words_to_bytes(&words);
        }
        Packing::Int32 => out = codes.iter().flat_map(|code| widen_code(*code, signed).to_le_bytes()).collect(),
    }
    out
}

/// Makes offset-binary codes of nibbles in two's complement: 8 more is another highest bit.
fn flip_words(packing: Packing, least: i64, words: &mut [u32]) {
    if matches!(packing, Packing::OffsetNibbles(_)) && least < 0 {
        words.iter_mut().for_each(|word| *word ^= 0x8888_8888);
    }
}

fn widen_code(code: u8, signed: bool) -> i32 {
    if signed { i32::from(code as i8) } else { i32::from(code) }
}

fn zero_points(packing: Packing, least: i64, points: &Matrix<f64>) -> Piece {
    let codes = points.map(|point| point as i64 as u8);
    match packing {
        Packing::OffsetWordsDown(bits) => streams_down(bits, least, &codes),
        packing => codes.piece(|n| packing.row_bytes(n), |row| pack_row(Isa::best(), packing, least, row)),
    }
}

/// Packs every column as a stream of words, and stores the words row by row. The band starts on a word.
fn streams_down(bits: u32, least: i64, codes: &Matrix<u8>) -> Piece {
    let columns = codes.stored(true);
    let pack = |column: &[u8]| bytes_to_words(&pack_row(Isa::best(), Packing::OffsetWords(bits), least, column));
    let streams: Vec<u32> = columns.rows_of().flat_map(pack).collect();
    let words_per_column = streams.len() / columns.rows.max(1);
    let mut words = vec![0; streams.len()];
    transpose(&streams, columns.rows, words_per_column, &mut words);
    let first_word = codes.row_start * bits as usize / 32;
    Piece { offset: (first_word * codes.columns * 4) as u64, bytes: words_to_bytes(&words) }
}

/// Numbers in a type of the file.
pub(crate) fn encode(encoding: ScaleEncoding, values: &[f32]) -> Vec<u8> {
    match encoding {
        ScaleEncoding::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        ScaleEncoding::F16 => values.iter().flat_map(|v| half::f16::from_f32(round_to_f16(*v)).to_le_bytes()).collect(),
        ScaleEncoding::Bf16 => {
            values.iter().flat_map(|v| ((round_to_bf16(*v).to_bits() >> 16) as u16).to_le_bytes()).collect()
        }
        ScaleEncoding::E4m3 => values.iter().map(|v| MiniFloat::E4M3.encode(*v)).collect(),
        ScaleEncoding::E5m3 => values.iter().map(|v| MiniFloat::E5M3.encode(*v)).collect(),
        ScaleEncoding::E8m0 => values.iter().map(|v| e8m0_encode(*v)).collect(),
    }
}

fn words_to_bytes(words: &[u32]) -> Vec<u8> {
    let mut bytes = vec![0; words.len() * 4];
    for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
    bytes
}

fn bytes_to_words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

/// A band of a matrix and where in the whole it begins.
struct Matrix<T> {
    values: Vec<T>,
    rows: usize,
    columns: usize,
    row_start: usize,
    column_start: usize,
}

impl Matrix<f32> {
    fn scales(tensor: &QuantTensor, band: &Band) -> Matrix<f32> {
        Matrix::beside(tensor, band, tensor.scales().to_vec())
    }
}

impl Matrix<f64> {
    fn zero_points(tensor: &QuantTensor, band: &Band) -> Matrix<f64> {
        let stored = tensor.zero_points();
        let values = if stored.is_empty() { vec![0.0; tensor.scales().len()] } else { stored.to_vec() };
        Matrix::beside(tensor, band, values)
    }
}

impl<T: Copy> Matrix<T> {
    /// A matrix with one entry for every tile of the band.
    fn beside(tensor: &QuantTensor, band: &Band, values: Vec<T>) -> Matrix<T> {
        let (rows, columns) = tensor.scale_shape();
        let (band_rows, band_columns) = tensor.shape();
        // A band holds whole tiles, so that positions scale as the shapes do; a tile at the end may be short.
        let tile = tensor.scheme().granularity().map_or((1, 1), |g| g.tile(band_rows, band_columns));
        let (row_start, column_start) = (band.rows.start / tile.0.max(1), band.columns.start / tile.1.max(1));
        Matrix { values, rows, columns, row_start, column_start }
    }

    fn map<U: Copy>(&self, f: impl Fn(T) -> U) -> Matrix<U> {
        let values = self.values.iter().map(|v| f(*v)).collect();
        Matrix {
            values,
            rows: self.rows,
            columns: self.columns,
            row_start: self.row_start,
            column_start: self.column_start,
        }
    }

    /// The matrix as it is stored. A single column (one entry an output channel) is stored as one row: a vector.
    fn stored(&self, transposed: bool) -> Matrix<T> {
        let mut values = self.values.clone();
        if !transposed {
            let Matrix { rows, columns, row_start, column_start, .. } = *self;
            return Matrix { values, rows, columns, row_start, column_start };
        }
        transpose(&self.values, self.rows, self.columns, &mut values);
        Matrix {
            values,
            rows: self.columns,
            columns: self.rows,
            row_start: self.column_start,
            column_start: self.row_start,
        }
    }

    fn rows_of(&self) -> impl Iterator<Item = &[T]> {
        self.values.chunks(self.columns.max(1))
    }

    /// The bytes of all rows: whole stored rows of a cut matrix, or a run of a vector. `width` gives the bytes of a
    /// number of entries.
    fn piece(&self, width: impl Fn(usize) -> usize, pack: impl Fn(&[T]) -> Vec<u8>) -> Piece {
        let offset = self.row_start * width(self.columns) + width(self.column_start);
        Piece { offset: offset as u64, bytes: self.rows_of().flat_map(pack).collect() }
    }
}
