//! The source of a tensor of a GGUF file.

use kvant_weights::weight::RowMap;

/// The contents of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    /// Rows of tensors of the source, one slab after the other.
    Slabs(Vec<TensorSlice>),
    /// The bytes of a tensor of a GGUF file, by its position there.
    Taken(usize),
    /// Values that follow from config.json.
    Values(Vec<f32>),
}

/// Rows of one matrix of the source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TensorSlice {
    /// The position of the tensor in the source.
    pub tensor: usize,
    /// Which matrix of the tensor.
    pub matrix: usize,
    /// Rows and columns of a matrix, as output and input channels.
    pub size: (usize, usize),
    /// Whether a matrix is stored as `[columns, rows]`.
    pub is_transposed: bool,
    /// The rows that are taken.
    pub rows: RowMap,
    /// Whether they become columns.
    pub transposed: bool,
    /// The offset added to every element.
    pub offset: f32,
}

impl TensorSlice {
    /// Rows that the slab becomes.
    pub fn out_rows(&self) -> usize {
        if self.transposed { self.size.1 } else { self.rows.count() }
    }

    /// Columns that the slab becomes.
    pub fn out_columns(&self) -> usize {
        if self.transposed { self.rows.count() } else { self.size.1 }
    }
}
