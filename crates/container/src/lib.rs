//! File syntax for Kvant: checkpoints, mapped in and streamed out as safetensors, and ONNX models ([`onnx`]).
//!
//! This crate knows files and nothing else: no model families, no quantization. Two flows go through it:
//!
//! * **in**: [`Checkpoint::open`] finds the shards of a Hugging Face directory (or takes one file), checks every header
//!   before it trusts a byte of it, and hands out [`TensorView`]s that borrow from the mapped files. Shards are safetensors, or
//!   files that `torch.save` wrote, whose pickles are read for tensors and never run;
//! * **out**: a [`Layout`] turns declared names, dtypes and shapes into shards with their headers, and a [`Writer`] puts the
//!   tensors' bytes at their places, from any thread and in any order, so memory stays bounded for models of any size.
//!
//! Every file is hostile until proven otherwise: see [`Header::parse`] for what is refused. [`Error::kind`] distinguishes
//! invalid input ([`ErrorKind::Invalid`]) from input this crate does not handle ([`ErrorKind::Unsupported`]), and [`Error::hint`]
//! says what to do about it.
//!
//! # Example
//!
//! Declare two tensors, deliver them, read them back:
//!
//! ```
//! use kvant_container::{Checkpoint, Dtype, Durability, Layout, TensorDeclaration, Writer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let dir = tempfile::tempdir()?;
//! let declarations = vec![
//!     TensorDeclaration::new("layer.bias", Dtype::U8, [3]),
//!     TensorDeclaration::new("layer.weight", Dtype::F32, [2, 3]),
//! ];
//! let metadata = [("format".to_string(), "pt".to_string())].into();
//! let layout = Layout::new(declarations, 5_000_000_000, metadata)?;
//!
//! let writer = Writer::create(dir.path(), layout)?;
//! writer.write_at(1, 0, &[0; 24])?; // tensors come in any order, whole or in pieces
//! writer.write_at(0, 0, &[1, 2, 3])?;
//! writer.finish(Durability::Disk)?;
//!
//! let checkpoint = Checkpoint::open(dir.path())?;
//! let bias = checkpoint.tensor("layer.bias").ok_or("no bias")?;
//! assert_eq!((bias.dtype(), bias.shape(), bias.bytes()), (Dtype::U8, &[3][..], &[1, 2, 3][..]));
//! # Ok(())
//! # }
//! ```

mod checkpoint;
mod diagnostic;
mod directory;
mod dtype;
mod error;
mod geometry;
pub mod gguf;
mod hub_name;
mod json;
mod limits;
mod manifest;
pub mod mmap;
mod new_file;
mod numbered_name;
pub mod onnx;
mod path_text;
pub mod positioned;
mod protobuf;
pub mod python_json;
mod pytorch;
mod remedy;
mod removal;
mod safetensors;
pub mod sentencepiece;
pub mod supply;
mod tensor_file;
mod tensor_type;
pub mod unfinished;
mod write_queue;
mod writer;
mod zip;

pub use self::safetensors::{
    Header, HeaderError, Layout, LayoutError, MAX_HEADER_LEN, Shard, TensorDeclaration, TensorEntry, TensorPart,
    WeightFiles,
};
pub use checkpoint::{
    AdapterSource, Checkpoint, CheckpointError, CustomCode, LeftOutFile, LeftOutReason, MissingCode, Pipeline,
    PipelineComponent,
};
pub use diagnostic::{Diagnostic, ErrorKind};
pub use directory::{MissingFolder, directory_of, model_directory, names_below};
pub use dtype::{Dtype, SizeError, alignment, byte_len, parse_dtype};
pub use error::{Error, PytorchError, WriterError, io_hint};
pub use geometry::{Geometry, OutputFile, Place};
pub use hub_name::is_hub_name;
pub use manifest::{Look, MANIFEST_FILE, Manifest, RecordedFile, files_beside_manifest};
pub use mmap::{FileChanges, LostFile, MappedFile};
pub use new_file::{TEMPORARY, behind_links, lock_folder, new_file_for, new_folder_for, write_file};
pub use path_text::{of_record, recorded, recorded_name, shell_word, shown};
pub use remedy::Remedy;
pub use removal::or_gone;
pub use tensor_file::{TensorFile, TensorView};
pub use writer::{Durability, Writer};
pub use zip::{ZipEntry, ZipError, zip_entries};
