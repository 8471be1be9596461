//! Dense linear algebra and the row kernels of a decoder's forward pass, on plain slices of `f32`. Sums run in a fixed
//! order, so a result does not depend on the number of threads. The row kernels give the same bits on every instruction
//! set; products of matrices, which come from the `gemm` crate, may differ in the last bits between kinds of CPU.

mod attention;
mod cholesky;
mod coded;
mod cross_gram;
mod elementary;
mod gram;
mod im2col;
mod learning;
mod linear;
mod linear_rows;
mod lower_blocks;
mod matmul;
mod precision;
mod rows;
mod single_query;
mod tiled;

pub use attention::{AttentionBuffers, AttentionRule, KeysValues, QUERIES, ScoreBias};
pub use cholesky::{Cholesky, NotPositiveDefinite};
pub use coded::{CodedMatrix, CodedScales};
pub use cross_gram::CrossGram;
pub use elementary::{erf, exp, exp2, ln, sigmoid, tanh};
pub use gram::Gram;
pub use im2col::{PatchAxis, Patches, Steps};
pub use learning::LearningPrecision;
pub use linear::{Weight, linear};
pub use linear_rows::linear_rows;
pub use lower_blocks::{BlockRow, LowerBlocks};
pub use matmul::{Matrix, MatrixMut, Threads, multiply, multiply_add};
pub use precision::Precision;
pub use rows::{fold_in_lanes, layer_norm, rms_norm, softmax, sum_of_exponentials};
pub use single_query::attend_one;
