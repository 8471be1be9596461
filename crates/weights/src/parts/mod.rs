//! How quantized layers are stored, as data: the tensors that a layer becomes (name, type, shape, content, packing), and one packer
//! that makes the bytes of all. Which tensors these are is for checkpoint formats to say: see `kvant_formats::format`.

mod activation;
mod encoding;
mod layer;
mod packer;
mod packing;
mod parameter;
mod part;

pub use activation::{ActivationSpec, AttentionSpec, Owner, Side};
pub use encoding::encode;
pub use layer::{CannotHold, Fused, LayerSpec, plain_encoding};
pub use packer::{BandCodes, Coded, KEPT_BYTES, Packer, Piece, Whole};
pub use parameter::{ParameterContent, ParameterPart};
pub use part::{Content, Packing, Part, ScaleEncoding, band_axis};
