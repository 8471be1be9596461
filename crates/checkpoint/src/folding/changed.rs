//! New values of tensors that are not rounded.

use super::foldings::ScaleFactors;
use kvant_numeric::kernel::FloatDType;

/// A tensor that stays in its type, with other values: of a norm, a bias, or the weight of a layer that is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct ChangedTensor {
    /// Its position among those that the network was recognised from.
    pub tensor: usize,
    /// Its name.
    pub name: String,
    /// Its type.
    pub dtype: FloatDType,
    /// Its values in the order in which they are stored, each a number of the type.
    pub values: Vec<f32>,
}

/// Multiplies a matrix of so many rows and columns by factors, as it is stored.
pub(super) fn scale(values: &mut [f32], factors: &ScaleFactors, (rows, columns): (usize, usize), is_transposed: bool) {
    let row = |at: usize| if is_transposed { at % rows } else { at / columns };
    let column = |at: usize| if is_transposed { at / rows } else { at % columns };
    for (at, value) in values.iter_mut().enumerate() {
        let of_row = factors.rows.as_ref().map_or(1.0, |all| all[row(at)]);
        let of_column = factors.columns.as_ref().map_or(1.0, |all| all[column(at)]);
        *value = *value * of_row * of_column;
    }
}
