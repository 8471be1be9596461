//! A matrix whose rows are rows of tensors of a GGUF file, or of a checkpoint on its way to one, in blocks of llama.cpp's types: its values. Its codes are in
//! [`super::block_codes`]; `kvant_gguf::model::restore` says which rows they are.

use super::block_codes::{Minima, dequantize_nvfp4};
use super::row_map::RowMap;
use crate::band::Band;
use kvant_container::TensorView;
use kvant_container::gguf::GgufTensor;
use kvant_numeric::ggml::{Coded, GgmlType, dequantize};
use kvant_numeric::simd::Isa;
use std::ops::Range;
use std::sync::OnceLock;

/// A tensor of blocks.
#[derive(Clone, Copy, Debug)]
pub enum BlockTensor<'a> {
    /// Of a GGUF file.
    Gguf(GgufTensor<'a>),
    /// Of a checkpoint: its bytes.
    Checkpoint(TensorView<'a>),
}

/// The same of either.
macro_rules! of_tensor {
    ($self:ident, $tensor:ident => $result:expr) => {
        match $self {
            BlockTensor::Gguf($tensor) => $result,
            BlockTensor::Checkpoint($tensor) => $result,
        }
    };
}

impl<'a> BlockTensor<'a> {
    fn name(&self) -> &'a str {
        of_tensor!(self, tensor => tensor.name())
    }

    fn bytes(&self) -> &'a [u8] {
        of_tensor!(self, tensor => tensor.bytes())
    }

    fn byte_len(&self) -> u64 {
        of_tensor!(self, tensor => tensor.byte_len())
    }

    fn release_part(&self, part: Range<usize>) {
        of_tensor!(self, tensor => tensor.release_part(part));
    }
}

impl<'a> From<GgufTensor<'a>> for BlockTensor<'a> {
    fn from(tensor: GgufTensor<'a>) -> Self {
        BlockTensor::Gguf(tensor)
    }
}

/// Some rows of a matrix, which are rows of a tensor.
#[derive(Clone, Copy, Debug)]
pub struct BlockPiece<'a> {
    /// The tensor.
    pub tensor: BlockTensor<'a>,
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
    /// Which column of the matrix each column of the piece is, where their order is another.
    pub columns: Option<RowMap>,
    /// The scale of the tensor, which multiplies its values.
    pub factor: f32,
}

/// A matrix of `rows` output and `columns` input channels, every row of it in one piece.
#[derive(Clone, Debug)]
pub struct BlockMatrix<'a> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) pieces: Vec<BlockPiece<'a>>,
    /// What its minima are, once that has been asked for.
    pub(super) minima: OnceLock<Minima>,
}

impl<'a> BlockMatrix<'a> {
    /// The matrix of some pieces; `None` where a row is in none of them, or a piece is not as wide or as long as it must be.
    pub fn new(rows: usize, columns: usize, pieces: Vec<BlockPiece<'a>>) -> Option<BlockMatrix<'a>> {
        let fits = |piece: &BlockPiece<'_>| {
            let (length, width) =
                if piece.transposed { (columns, piece.rows.count()) } else { (piece.rows.count(), columns) };
            let bytes = piece.kind.row_bytes(piece.width).and_then(|row| row.checked_mul(piece.first + length));
            piece.width == width && bytes.is_some_and(|bytes| bytes as u64 <= piece.tensor.byte_len())
        };
        let covered = |row: usize| pieces.iter().any(|piece| piece.rows.position(row).is_some());
        let whole = pieces.iter().all(fits) && (0..rows).all(covered);
        whole.then_some(BlockMatrix { rows, columns, pieces, minima: OnceLock::new() })
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

    /// Returns whether all of it is plain floats.
    pub fn is_float(&self) -> bool {
        self.pieces.iter().all(|piece| piece.kind.block_elements() == 1)
    }

    /// The type that holds its floats, where all are plain: theirs, or F32 where they are of several.
    pub fn float_type(&self) -> Option<GgmlType> {
        let first = self.pieces.first()?.kind;
        let same = self.pieces.iter().all(|piece| piece.kind == first);
        self.is_float().then_some(if same { first } else { GgmlType::F32 })
    }

    /// The blocks of a row, where all of it is of one type and rows are rows of tensors.
    pub fn row_blocks(&self, row: usize) -> Option<&'a [u8]> {
        self.kind()?;
        let (piece, at) = self.find(row)?;
        Some(self.pieces[piece].row_bytes(at))
    }

    /// The type of its blocks, where all are of one and rows are rows of tensors, under no scale.
    pub fn kind(&self) -> Option<GgmlType> {
        let kind = self.pieces.first()?.kind;
        let same = |piece: &BlockPiece<'_>| piece.kind == kind && piece.is_by_rows() && piece.factor == 1.0;
        self.pieces.iter().all(same).then_some(kind)
    }

    /// The type of its blocks, where all are of one that is codes with plain scales.
    pub fn coded(&self) -> Option<Coded> {
        let kind = self.pieces.first()?.kind;
        let factor = self.tensor_factor()?;
        let same = self.pieces.iter().all(|piece| piece.kind == kind && piece.is_by_rows());
        let is_plain = |coded: &Coded| factor == 1.0 || *coded == Coded::Nvfp4;
        Coded::ALL.iter().copied().find(|coded| coded.kind() == kind).filter(|coded| same && is_plain(coded))
    }

    /// The scale of the tensor that all of it has; `None` where pieces have several.
    pub(super) fn tensor_factor(&self) -> Option<f32> {
        let first = self.pieces.first()?.factor;
        self.pieces.iter().all(|piece| piece.factor == first).then_some(first)
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
                false => match piece.columns {
                    None => piece.read_row(isa, at, band.columns.clone(), out),
                    Some(columns) => {
                        let mut row = vec![0.0; self.columns];
                        piece.read_row(isa, at, 0..self.columns, &mut row);
                        let taken =
                            band.columns.clone().map(|column| columns.position(column).map_or(0.0, |at| row[at]));
                        out.iter_mut().zip(taken).for_each(|(out, value)| *out = value);
                    }
                },
                true => {
                    let columns = turned[index].get_or_insert_with(|| piece.read_rows(isa, band.columns.clone()));
                    let column = columns.iter().skip(at).step_by(piece.width.max(1));
                    out.iter_mut().zip(column).for_each(|(out, value)| *out = *value);
                }
            }
        }
    }

    /// Returns whether its rows are rows of tensors.
    pub(super) fn is_by_rows(&self) -> bool {
        self.pieces.iter().all(BlockPiece::is_by_rows)
    }

    /// The piece that a row is in, and which of its rows it is.
    pub(super) fn find(&self, row: usize) -> Option<(usize, usize)> {
        let mut found = self.pieces.iter().enumerate().map(|(index, piece)| Some((index, piece.rows.position(row)?)));
        found.find_map(|place| place)
    }

    /// Bytes of its blocks.
    pub fn stored_bytes(&self) -> u64 {
        let rows = |piece: &BlockPiece<'_>| if piece.transposed { self.columns } else { piece.rows.count() };
        self.pieces.iter().map(|piece| (piece.row_length() * rows(piece)) as u64).sum()
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
    /// Returns whether its rows are rows of the matrix, column by column.
    fn is_by_rows(&self) -> bool {
        !self.transposed && self.columns.is_none()
    }

    /// Bytes of a row.
    fn row_length(&self) -> usize {
        self.kind.row_bytes(self.width).unwrap_or(0)
    }

    /// The blocks of one of its rows.
    pub(super) fn row_bytes(&self, row: usize) -> &'a [u8] {
        let length = self.row_length();
        let start = (self.first + row) * length;
        self.tensor.bytes().get(start..start + length).unwrap_or_default()
    }

    /// Some columns of a row.
    fn read_row(&self, isa: Isa, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let block = self.kind.block_elements();
        let (first, last) = (columns.start / block, columns.end.div_ceil(block));
        let size = self.kind.block_bytes();
        let bytes = self.row_bytes(row).get(first * size..last * size).unwrap_or_default();
        if self.factor != 1.0 {
            return self.read_scaled(isa, bytes, columns.start - first * block, out);
        }
        if (last - first) * block == out.len() {
            return dequantize(isa, self.kind, bytes, out);
        }
        let mut whole = vec![0.0; (last - first) * block];
        dequantize(isa, self.kind, bytes, &mut whole);
        let skipped = columns.start - first * block;
        out.copy_from_slice(&whole[skipped..skipped + columns.len()]);
    }

    /// Some columns of whole blocks, from the first that is not `skipped`. The scale of a tensor of NVFP4 multiplies those of
    /// groups before these multiply codes, as in layouts that have them apart.
    fn read_scaled(&self, isa: Isa, bytes: &[u8], skipped: usize, out: &mut [f32]) {
        let elements = bytes.len() / self.kind.block_bytes() * self.kind.block_elements();
        let mut whole = vec![0.0; elements];
        match self.kind {
            GgmlType::Nvfp4 => dequantize_nvfp4(isa, bytes, self.factor, &mut whole),
            kind => {
                dequantize(isa, kind, bytes, &mut whole);
                whole.iter_mut().for_each(|value| *value *= self.factor);
            }
        }
        out.iter_mut().zip(whole.get(skipped..).unwrap_or_default()).for_each(|(out, value)| *out = *value);
    }

    /// Some of its rows, whole.
    fn read_rows(&self, isa: Isa, rows: Range<usize>) -> Vec<f32> {
        let mut values = vec![0.0; rows.len() * self.width];
        for (row, out) in rows.zip(values.chunks_mut(self.width.max(1))) {
            self.read_row(isa, row, 0..self.width, out);
        }
        values
    }
}
