//! Samples in files for Kvant: arrays that numpy or safetensors wrote, decoded images and sounds. What a sample means to a model, and how
//! images and sounds become its inputs, is not decided here.
//!
//! [`files`] finds the files of a path, [`arrays`] opens those of arrays, whose values are mapped and read as far as they are wanted, and
//! [`decode`] reads a picture, [`decode_sound`] a sound. Files are hostile: shapes, sizes and checksums are checked before use, pickles are refused.

mod array;
mod error;
mod files;
mod npy;
mod npz;
mod order;
#[cfg(feature = "images")]
mod picture;
#[cfg(not(feature = "images"))]
#[path = "no_pictures.rs"]
mod picture;
mod resample;
mod sound;
mod stored;

pub use array::{Array, Element, Values, from_bytes};
pub use error::SampleError;
pub use files::{arrays, files, is_image, is_sound, sound_files};
pub use picture::{MOST_MEMORY, Picture, decode, picture_size, small_jpeg};
pub use resample::{Filter, resample, resample_as_torch, resample_floats};
pub use sound::{SoundHeader, decode_sound, sound_header};
pub use stored::Stored;
