//! The reason that scales cannot be moved through a smoothing pair.

/// The reason that scales cannot be moved through a smoothing pair, or thresholds be set. Nothing has been changed then, so that a caller may skip the
/// pair.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum ScaleFusionError {
    /// Scales that are not positive, or not one for each input of the consumers (*invalid*).
    #[error("the scales between {place} and what reads it {reason}")]
    Scales {
        /// The source's module.
        place: String,
        /// The problem.
        reason: String,
    },
    /// A module's values cannot be written (*unsupported*).
    #[error("{module} cannot be scaled: {reason}")]
    Fixed {
        /// The module.
        module: String,
        /// The reason.
        reason: String,
    },
    /// A value is beyond the type that it is stored in (*invalid*).
    #[error("{module}, once scaled, would hold numbers beyond its type")]
    Overflow {
        /// The module.
        module: String,
    },
    /// Limits of another size than the weight's, or of a weight that is not rounded (*invalid*).
    #[error("{module} has no weight that these limits fit")]
    ClippingThresholds {
        /// The module.
        module: String,
    },
}
