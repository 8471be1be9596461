//! Weights as checkpoints store them, whatever the format.
//!
//! * [`parts`]: the tensors of a quantized layer, as data, and the one packer and unpacker for all of them,
//! * [`weight`]: a weight in all its forms: floats, codes, blocks, merged with adapters; read band by band ([`band`]),
//! * [`float_dtype`]: the element types that weights are read from,
//! * [`activation_point`]: where activations are quantized,
//! * [`import_error`], [`recipe_error`]: what is wrong with a stored weight, and with what says how to quantize one.
//!
//! Nothing here knows a checkpoint format: those are lists of [`parts`].

pub mod activation_point;
pub mod band;
pub mod float_dtype;
pub mod import_error;
pub mod parts;
pub mod recipe_error;
pub mod weight;
