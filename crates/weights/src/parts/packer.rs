//! From a band of a quantized tensor to the bytes of a format's tensors. One packer for all formats: what differs
//! between them is data ([`Part`]). How codes become bytes is in [`super::packing`].

use super::encoding::{encode, encode_onto};
use super::packing::{pack_rows, pack_streams_down, pack_words_across, rearrange};
use super::part::{Content, Packing, Part, ScaleEncoding};
use crate::band::Band;
use kvant_numeric::format::DType;
use kvant_numeric::pack::{Word, WordMatrix, transpose};
use kvant_numeric::simd::Isa;
use kvant_quant::{Parameters, QuantTensor};
use std::borrow::Cow;

/// Bytes of one tensor from some offset on.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece<'a> {
    /// The offset of the bytes in the tensor.
    pub offset: u64,
    /// The bytes.
    pub bytes: Cow<'a, [u8]>,
}

/// A band of a quantized matrix, on its way to files.
#[derive(Clone, Copy, Debug)]
pub struct Coded<'a> {
    /// Its codes.
    pub codes: BandCodes<'a>,
    /// Its scales and zero points.
    pub parameters: Parameters<'a>,
}

/// The codes of a band.
#[derive(Clone, Copy, Debug)]
pub enum BandCodes<'a> {
    /// One byte each, row-major; in two's complement where the format is signed.
    Bytes(&'a [u8]),
    /// Eight 4-bit codes to a word, as another layout has them: for parts whose packing has a
    /// [`word_layout`](Packing::word_layout) alone.
    Words {
        /// The words.
        words: WordMatrix<'a>,
        /// Whether codes are in two's complement there.
        twos_complement: bool,
    },
}

impl<'a> From<&'a QuantTensor> for Coded<'a> {
    fn from(tensor: &'a QuantTensor) -> Self {
        let codes = BandCodes::Bytes(tensor.code_bytes().unwrap_or_default());
        Coded { codes, parameters: tensor.parameters() }
    }
}

/// The known facts about the whole weight of a band.
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

/// Makes pieces, in memory that is kept from one to the next: system and allocator cost more than packing where every piece
/// has its own.
#[derive(Debug, Default)]
pub struct Packer {
    /// The piece.
    bytes: Vec<u8>,
    /// Codes, scales or words on their way to it.
    turned: Turned,
}

/// The most bytes that are kept: what bands need. Layers that are packed whole take more, and give it back.
pub const KEPT_BYTES: usize = 4 << 20;

/// What is transposed, in between.
#[derive(Debug, Default)]
struct Turned {
    codes: Vec<u8>,
    scales: Vec<f32>,
    words: Vec<Word>,
}

impl Packer {
    /// Gives large memory back.
    pub fn trim(&mut self) {
        if self.bytes.capacity().max(self.turned.codes.capacity()) > KEPT_BYTES {
            *self = Packer::default();
        }
    }

    /// The bytes that a band of the layer contributes to one of its tensors; `None` where it contributes nothing (what is
    /// stored once comes with the first band).
    pub fn pack(
        &mut self,
        isa: Isa,
        part: &Part,
        coded: Coded<'_>,
        band: &Band,
        whole: &Whole<'_>,
    ) -> Option<Piece<'_>> {
        let tensor = coded.parameters;
        let first = band.rows.start == 0 && band.columns.start == 0;
        let offset = match part.content {
            Content::Codes { packing, transposed } => self.codes(isa, packing, transposed, coded, band),
            content if content.is_of_scales() && tensor.scale_shape() == (1, 1) && !first => return None,
            Content::Scales { encoding, transposed } => {
                let grid = PackGrid::beside(&tensor, band);
                let scales = grid.stored_values(tensor.scales(), transposed, &mut self.turned.scales);
                encode_onto(isa, encoding, scales, &mut self.bytes);
                grid.stored(transposed).offset(|n| n * encoding.size())
            }
            Content::ZeroPoints { packing, transposed, less_one } => {
                let offset = self.zero_points(isa, packing, transposed, &tensor, band);
                if less_one {
                    less_ones(packing, &mut self.bytes);
                }
                offset
            }
            Content::Biases { encoding } => {
                let grid = PackGrid::beside(&tensor, band);
                encode_onto(isa, encoding, &biases(&tensor), &mut self.bytes);
                grid.offset(|n| n * encoding.size())
            }
            Content::Blocks => {
                self.bytes.clear();
                put_blocks(coded, &mut self.bytes);
                band.rows.start * self.bytes.len() / band.rows.len().max(1)
            }
            _ if !first => return None,
            _ => {
                self.bytes = stored_once(part, &tensor, whole);
                0
            }
        };
        Some(Piece { offset: offset as u64, bytes: Cow::Borrowed(&self.bytes) })
    }

    /// Packs codes, and says where they begin.
    fn codes(&mut self, isa: Isa, packing: Packing, transposed: bool, coded: Coded<'_>, band: &Band) -> usize {
        let Packer { bytes, turned } = self;
        let ((rows, columns), signed) = (coded.parameters.shape(), is_signed(&coded.parameters));
        let codes = match coded.codes {
            BandCodes::Bytes(codes) => codes,
            BandCodes::Words { words, twos_complement } => {
                let flipped = twos_complement != (signed && !packing.is_offset());
                rearrange(isa, words, (packing, transposed), (rows, columns), flipped, bytes);
                return codes_start(packing, transposed, (rows, columns), band);
            }
        };
        if !transposed {
            pack_rows(isa, packing, signed, (codes, columns), bytes);
            return codes_start(packing, transposed, (rows, columns), band);
        }
        match packing {
            Packing::Words(order) => pack_words_across(isa, order, false, (codes, rows, columns), bytes),
            Packing::OffsetNibbles(order) => pack_words_across(isa, order, signed, (codes, rows, columns), bytes),
            Packing::OffsetWordsDown(bits) => {
                pack_streams_down(isa, bits, signed, (codes, columns), &mut turned.words, bytes);
            }
            _ => {
                turned.codes.resize(codes.len(), 0);
                transpose(codes, rows, columns, &mut turned.codes);
                pack_rows(isa, packing, signed, (&turned.codes, rows), bytes);
            }
        }
        codes_start(packing, transposed, (rows, columns), band)
    }

    /// Packs zero points, which are codes themselves, and says where they begin.
    fn zero_points(
        &mut self,
        isa: Isa,
        packing: Packing,
        transposed: bool,
        tensor: &Parameters<'_>,
        band: &Band,
    ) -> usize {
        let Packer { bytes, turned } = self;
        let (grid, signed) = (PackGrid::beside(tensor, band), is_signed(tensor));
        let mut points: Vec<u8> = tensor.zero_points().iter().map(|point| *point as i64 as u8).collect();
        points.resize(tensor.scales().len(), 0);
        let stored = grid.stored(transposed);
        if let Packing::OffsetWordsDown(bits) = packing {
            let streams = grid.stored_values(&points, !transposed, &mut turned.codes);
            pack_streams_down(isa, bits, signed, (streams, stored.rows), &mut turned.words, bytes);
            return stored.row_start * bits as usize / 32 * stored.columns * 4;
        }
        let points = grid.stored_values(&points, transposed, &mut turned.codes);
        pack_rows(isa, packing, signed, (points, stored.columns), bytes);
        stored.offset(|n| packing.row_bytes(n))
    }
}

/// The offset of the bytes of a band's `rows x columns` codes.
fn codes_start(packing: Packing, transposed: bool, (rows, columns): (usize, usize), band: &Band) -> usize {
    match packing {
        Packing::OffsetWordsDown(bits) if transposed => band.columns.start * bits as usize / 32 * rows * 4,
        _ if transposed => band.columns.start * packing.row_bytes(rows),
        _ => band.rows.start * packing.row_bytes(columns),
    }
}

/// The blocks of a band of whole rows.
fn put_blocks(coded: Coded<'_>, out: &mut Vec<u8>) {
    if let BandCodes::Bytes(codes) = coded.codes {
        coded.parameters.put_blocks(codes, out);
    }
}

/// The bytes of what a layer has once.
fn stored_once(part: &Part, tensor: &Parameters<'_>, whole: &Whole<'_>) -> Vec<u8> {
    let scale = tensor.global_scale().unwrap_or(1.0);
    match part.content {
        Content::GlobalScale => scale.to_le_bytes().to_vec(),
        Content::GlobalScaleReciprocal => whole.divisor.unwrap_or(1.0 / scale).to_le_bytes().to_vec(),
        Content::Groups => groups(tensor, whole),
        Content::Shape => [whole.shape.0 as i64, whole.shape.1 as i64].map(i64::to_le_bytes).concat(),
        Content::Hadamard => hadamard(part),
        Content::Codes { .. }
        | Content::Scales { .. }
        | Content::ZeroPoints { .. }
        | Content::Biases { .. }
        | Content::Blocks => Vec::new(),
    }
}

/// Sylvester's Hadamard matrix: -1 where the binary numbers of row and column have an odd number of ones in common.
fn hadamard(part: &Part) -> Vec<u8> {
    let size = part.shape.first().copied().unwrap_or(0);
    let [one, minus_one]: [Vec<u8>; 2] = match ScaleEncoding::of_float(part.dtype) {
        Some(encoding) => [1.0, -1.0].map(|value| encode(encoding, &[value])),
        None => [1i8, -1].map(|value| value.to_le_bytes().to_vec()),
    };
    let mut bytes = Vec::with_capacity(size * size * one.len());
    for (row, column) in (0..size).flat_map(|row| (0..size).map(move |column| (row, column))) {
        bytes.extend_from_slice(if (row & column).count_ones().is_multiple_of(2) { &one } else { &minus_one });
    }
    bytes
}

/// What is added to unsigned codes times their scales.
fn biases(tensor: &Parameters<'_>) -> Vec<f32> {
    let lowest = match tensor.scheme().format() {
        DType::Int(int) if int.is_signed() => f64::from(1u32 << (int.bits() - 1)),
        _ => 0.0,
    };
    let points = tensor.zero_points().iter().copied().chain(std::iter::repeat(0.0));
    let both = tensor.scales().iter().zip(points);
    // Not -0, which a zero of unsigned codes would give.
    both.map(|(scale, point)| 0.0 - (f64::from(*scale) * (point + lowest)) as f32).collect()
}

/// The group of every input channel.
fn groups(tensor: &Parameters<'_>, whole: &Whole<'_>) -> Vec<u8> {
    let tile = tensor.scheme().granularity().map_or((1, 1), |g| g.tile(whole.shape.0, whole.shape.1));
    let run = |column: usize| (column / tile.1.max(1)) as u32;
    let group =
        |column: usize| whole.groups.and_then(|groups| groups.get(column).copied()).unwrap_or_else(|| run(column));
    (0..whole.shape.1).flat_map(|column| group(column).to_le_bytes()).collect()
}

/// Takes 1 from every code of every word at once.
fn less_ones(packing: Packing, bytes: &mut [u8]) {
    let bits = match packing {
        Packing::OffsetWords(bits) if bits.is_power_of_two() => bits,
        _ => return,
    };
    let ones = (0..32).step_by(bits as usize).fold(0u32, |ones, at| ones | 1 << at);
    for word in bytes.as_chunks_mut().0 {
        *word = u32::from_le_bytes(*word).wrapping_sub(ones).to_le_bytes();
    }
}

/// Returns whether codes are in two's complement, which offset-binary packings change.
fn is_signed(tensor: &Parameters<'_>) -> bool {
    matches!(tensor.scheme().format(), DType::Int(int) if int.is_signed())
}

/// A band's scales or zero points: a matrix, and where it begins in that of the whole.
#[derive(Clone, Copy)]
struct PackGrid {
    rows: usize,
    columns: usize,
    row_start: usize,
    column_start: usize,
}

impl PackGrid {
    /// One entry for every tile of the band.
    fn beside(tensor: &Parameters<'_>, band: &Band) -> PackGrid {
        let (rows, columns) = tensor.scale_shape();
        let (band_rows, band_columns) = tensor.shape();
        // A band holds whole tiles, so that positions scale as the shapes do; a tile at the end may be short.
        let tile = tensor.scheme().granularity().map_or((1, 1), |g| g.tile(band_rows, band_columns));
        let (row_start, column_start) = (band.rows.start / tile.0.max(1), band.columns.start / tile.1.max(1));
        PackGrid { rows, columns, row_start, column_start }
    }

    /// The matrix as it is stored. A single column (one entry an output channel) is stored as one row: a vector.
    fn stored(self, transposed: bool) -> PackGrid {
        match transposed {
            false => self,
            true => PackGrid {
                rows: self.columns,
                columns: self.rows,
                row_start: self.column_start,
                column_start: self.row_start,
            },
        }
    }

    /// Its entries in that order; `turned` is memory for them.
    fn stored_values<'v, T: Copy + Default>(
        &self,
        values: &'v [T],
        transposed: bool,
        turned: &'v mut Vec<T>,
    ) -> &'v [T] {
        if !transposed {
            return values;
        }
        turned.resize(values.len(), T::default());
        transpose(values, self.rows, self.columns, turned);
        turned
    }

    /// Where its first entry stands: its rows are whole rows of a cut matrix, or a run of a vector. `width` gives the bytes of a
    /// number of entries.
    fn offset(&self, width: impl Fn(usize) -> usize) -> usize {
        self.row_start * width(self.columns) + width(self.column_start)
    }
}
