//! Values on the grid of their codes, stored as floats under the source's names and shapes. No tensors of its own: the
//! engine writes into the source's.

use super::part::Part;
use super::{CannotHold, LayerSpec};

pub(super) fn parts(_layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    Ok(Vec::new())
}
