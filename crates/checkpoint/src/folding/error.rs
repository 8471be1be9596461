//! Why scales cannot be moved through a link.

/// Why scales cannot be moved through a link, or limits be set. Nothing has been changed then, so that a caller may pass the
/// link over.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum FoldingError {
    /// Scales that are no positive numbers, or not one for each input of the consumers (*invalid*).
    #[error("the scales between {place} and what reads it {reason}")]
    Scales {
        /// The source's module.
        place: String,
        /// What is wrong.
        reason: String,
    },
    /// A module's values cannot be written (*unsupported*).
    #[error("{module} cannot be scaled: {reason}")]
    Fixed {
        /// The module.
        module: String,
        /// Why.
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
    Limits {
        /// The module.
        module: String,
    },
}

impl FoldingError {
    /// The way out.
    pub fn hint(&self) -> &'static str {
        match self {
            FoldingError::Scales { .. } | FoldingError::Limits { .. } => "find them from the statistics of this layer",
            FoldingError::Fixed { .. } => "leave this pair unscaled, or quantize the layer as well",
            FoldingError::Overflow { .. } => "leave this pair unscaled, or start from the checkpoint in bfloat16",
        }
    }
}
