//! The map from codes to values. Not how it is found from a range: [`crate::parameters`] for tensors of checkpoints,
//! [`crate::graph_grid`] for those of graphs.

/// Scale and zero point of codes that share them: `value = (code - zero_point) * scale`.
///
/// The zero points of checkpoints may have fractions and are `f64`; those of graphs are codes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine<Z = f64> {
    /// The step.
    pub scale: f32,
    /// The code of zero; in checkpoints a whole number unless the scheme has [`ZeroPoint::Float`](crate::scheme::ZeroPoint).
    pub zero_point: Z,
}
