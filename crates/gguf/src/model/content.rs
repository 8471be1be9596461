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
    /// The integers of a tensor of the source, by its position there, in 32 bits.
    Integers(usize),
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
    /// The columns, where their order is another than that of the matrix.
    pub columns: Option<RowMap>,
    /// What becomes of every element.
    pub change: Change,
}

/// What becomes of an element on its way into the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// Nothing.
    None,
    /// This is added.
    Added(f32),
    /// It is multiplied by this, which is not 0.
    Scaled(f32),
    /// `-exp(x)`: the decay of recurrent mixers, whose logarithm models hold.
    NegatedExponential,
    /// `exp(x)`: the same of mixers whose decays are bounded.
    Exponential,
}

impl Change {
    /// Changes elements.
    pub fn apply(self, values: &mut [f32]) {
        match self {
            Change::None => {}
            Change::Added(offset) => values.iter_mut().for_each(|value| *value += offset),
            Change::Scaled(factor) => values.iter_mut().for_each(|value| *value *= factor),
            Change::NegatedExponential => values.iter_mut().for_each(|value| *value = -value.exp()),
            Change::Exponential => values.iter_mut().for_each(|value| *value = value.exp()),
        }
    }

    /// Takes the change back.
    pub fn undo(self, values: &mut [f32]) {
        match self {
            Change::None => {}
            Change::Added(offset) => values.iter_mut().for_each(|value| *value -= offset),
            Change::Scaled(factor) => values.iter_mut().for_each(|value| *value /= factor),
            Change::NegatedExponential => values.iter_mut().for_each(|value| *value = (-*value).ln()),
            Change::Exponential => values.iter_mut().for_each(|value| *value = value.ln()),
        }
    }
}

impl TensorSlice {
    /// Returns whether its rows are rows of the source, element by element.
    pub fn is_by_rows(&self) -> bool {
        !self.transposed && self.columns.is_none() && self.change == Change::None
    }

    /// Rows that the slab becomes.
    pub fn out_rows(&self) -> usize {
        if self.transposed { self.size.1 } else { self.rows.count() }
    }

    /// Columns that the slab becomes.
    pub fn out_columns(&self) -> usize {
        if self.transposed { self.rows.count() } else { self.size.1 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_elements_are_taken_back() {
        for (change, expected) in [
            (Change::None, 0.5),
            (Change::Added(1.0), 1.5),
            (Change::Scaled(4.0), 2.0),
            (Change::NegatedExponential, -1.648_721_3),
            (Change::Exponential, 1.648_721_3),
        ] {
            let mut values = [0.5f32];
            change.apply(&mut values);
            assert!((values[0] - expected).abs() < 1e-6, "{change:?}: {values:?}");
            change.undo(&mut values);
            assert!((values[0] - 0.5).abs() < 1e-6, "{change:?}: {values:?}");
        }
    }
}
