//! What a recurrent mixer keeps of a sequence between its tokens. Of a fixed size, however long the sequence is.

/// The state of one mixer and one sequence; empty before the first token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RecurrentState {
    /// The last rows that the convolution has read: one fewer than its kernel is long.
    pub tail: Vec<f32>,
    /// The state of each value head, `[key width, value width]`.
    pub memory: Vec<f32>,
}
