//! How quantized layers are stored, as data: the tensors that a layer becomes (name, type, shape, content, packing), and one packer
//! that makes the bytes of all. Which tensors these are is for checkpoint formats to say: see [`crate::format`].

mod activation;
mod encoding;
mod layer;
mod packer;
mod packing;
mod parameter;
mod part;

pub use activation::{ActivationSpec, AttentionSpec, Owner, Side};
pub(crate) use encoding::encode;
pub(crate) use layer::plain_encoding;
pub use layer::{CannotHold, Fused, LayerSpec};
pub(crate) use packer::KEPT_BYTES;
pub use packer::{BandCodes, Coded, Packer, Piece, Whole};
pub use parameter::{ParameterContent, ParameterPart};
pub use part::{Content, Packing, Part, ScaleEncoding, band_axis};
