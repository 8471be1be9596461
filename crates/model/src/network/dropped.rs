//! Tensors that are not in the output.

/// A tensor of the source that has no successor of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedTensor {
    /// Its name.
    pub name: String,
    /// Why.
    pub reason: &'static str,
}
