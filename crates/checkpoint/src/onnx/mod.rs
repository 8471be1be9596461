//! A decoder as an ONNX graph, with a cache of keys and values as inputs and outputs. Made from the same [`Blueprint`] that our
//! own forward follows, so that every family that runs here can be written; weights keep the codes of the checkpoint where
//! onnxruntime has an operator for them, and activations are quantized with the stored scales. Not the quantization, and not the graphs that `kvant-onnx` quantizes.
//!
//! Inputs are `input_ids`, `attention_mask` and `position_ids` (`[batch, sequence]`, the mask as long as cache and sequence
//! together) and `past_key_values.N.key` and `.value` (`[batch, heads, past, width]`); outputs are `logits` and
//! `present.N.key` and `.value`: the names that Optimum gives them.
//!
//! [`Blueprint`]: kvant_forward::forward::blueprint::Blueprint

mod activation;
mod attention;
mod builder;
mod decoder;
mod error;
mod feed_forward;
mod heads;
mod latent;
mod mask;
mod norm;
mod quantizers;
mod routing;
mod weights;

pub use decoder::{Exported, check, export};
pub use error::OnnxExportError;
pub use quantizers::check_schemes;
