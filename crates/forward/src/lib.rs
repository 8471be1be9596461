//! Running decoders and encoders, and measuring how good they are.
//!
//! * [`forward`](mod@forward): the forward pass, block by block over all sequences, with hooks on activations and weights that stand in
//!   for those of the checkpoint,
//! * [`evaluation`]: perplexity of decoders and the distance to another model, on text,
//! * [`generation`]: text continued token by token,
//! * [`float_file`]: floats that do not fit into memory, in a temporary file.

pub mod evaluation;
pub mod float_file;
pub mod forward;
pub mod generation;
