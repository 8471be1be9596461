//! Reconstruction of a layer: the codes of its weight are chosen so that its output on data comes nearest to that of the float
//! model, instead of minimising the weight error. AdaRound and AdaQuant by gradients written out by hand.
//!
//! A layer is the product of its weights with patches of its input, followed by an activation function:
//! `y = f(W X + b)`. `X` has a row for each weight of an output and a column for each position; convolutions of all kinds and
//! products of matrices have this form. The loss of a sample is
//!
//! ```text
//! L = sum over outputs and positions of (f(W' X + b) - f(t))^2 / positions
//! ```
//!
//! with `W'` the dequantized weights, `X` from the quantized model and `t` from the float one. There are no graphs
//! here, no operators and no files: a caller knows how its layers become patches.
//!
//! Sources: Nagel et al., Up or Down? Adaptive Rounding for Post-Training Quantization, arXiv 2004.10568; Hubara et al.,
//! Improving Post Training Neural Quantization: Layer-wise Calibration and Integer Programming, arXiv 2006.10518.

mod activation_function;
mod ada_quant;
mod ada_round;
mod adam;
mod batches;
mod channelwise;
mod module;
mod objective;
mod quadratic;
mod run;
mod settings;
mod variables;

pub use activation_function::ActivationFunction;
pub(crate) use adam::{Adam, Moments};
pub use module::{Module, Sample, Samples, Shape};
pub use objective::Gradients;
pub use run::{Reconstructed, Stopped, reconstruct, reconstruct_from_hessian};
pub use settings::{InputMix, Method, Regularization, Settings};
pub use variables::{CodeSteps, Weight};
