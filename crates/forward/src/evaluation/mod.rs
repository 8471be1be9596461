//! Quality of a model, measured on text with the forward pass of [`crate::forward`].

mod changed;
mod comparison;
mod encoder;
mod error;
mod evaluate;
mod fisher;
mod likelihood;
mod logits;
mod predicted;
mod score;
mod statistics;
mod text;
mod variants;
mod windows;

pub use changed::{ChangedToken, Prediction};
pub use comparison::Comparison;
pub use encoder::{EncoderEvaluation, Pooling, ReadoutComparison, evaluate_encoder};
pub use error::EvaluationError;
pub use evaluate::{
    DEFAULT_MEMORY, Evaluation, Options, check_comparable, default_window, evaluate, evaluate_documents,
    evaluate_models, evaluate_scored, evaluate_sequences,
};
pub use fisher::{BlockChanges, WeightChange, fisher_divergences, missing_gradient};
pub use likelihood::{Likelihood, ScoredSequence, likelihoods};
pub use logits::{LogitsEvaluation, WindowLogits};
pub use statistics::{ContextRange, Mean, RangeComparison};
pub use text::read_text;
pub use variants::{ModelStage, Variants, evaluate_variants};
pub use windows::{JoinedSequences, ScoredEnd, Window, windows};
