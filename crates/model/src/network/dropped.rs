//! Tensors that are not in the output.

/// A tensor of the source without its own counterpart in the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DroppedTensor {
    /// Its name.
    pub name: String,
    /// The reason.
    pub reason: &'static str,
}
