//! The models of Hugging Face checkpoints: what config.json and the tensors' headers say, before any weight is read.
//!
//! * [`model_config`]: a typed view of config.json,
//! * [`family`]: one declarative description for each model family,
//! * [`network`]: a checkpoint seen as a model: layers, norms and experts with their roles, the groups that share an input, and
//!   the smoothing pairs between them,
//! * [`vision`]: how models of text and images read an image.
//!
//! Nothing here reads a tensor, and no algorithm keeps its own lists of models or layers: both follow from the roles.

pub mod family;
pub mod model_config;
pub mod network;
pub mod vision;
