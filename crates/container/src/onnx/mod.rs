//! ONNX models as files: protobuf read from mapped bytes and written back without loss, external data in and out.
//!
//! No graph logic: what a node means, whether tensors are connected and of what shape is outside this module.
//!
//! [`read`] maps the file and its external data; every tensor's `raw_data` is then a slice of a map, copied nowhere, and no
//! tensor is external any more. [`write()`] puts large tensors back beside the model where that is asked for or needed.
//! Fields that this version of ONNX does not know are kept as they are.

mod data_type;
mod external;
mod message;
#[allow(clippy::upper_case_acronyms, missing_docs, non_camel_case_types)]
// The specification says what they are, and how they are spelled.
mod proto;
mod read;
mod spill;
mod tensor;
mod write;

pub use crate::error::OnnxError;
pub use bytes::Bytes;
pub use data_type::{DataType, byte_len, data_type_bits, data_type_name};
pub use message::{EnumOrUnknown, MessageField};
pub use proto::{
    AttributeProto, AttributeType, Dimension, DimensionValue, FunctionProto, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, SparseTensorProto, StringStringEntryProto, TensorProto, TensorShapeProto, TensorTypeProto,
    TypeProto, TypeValue, ValueInfoProto,
};
/// The producer name in written graphs.
pub const PRODUCER: &str = "kvant";

pub use read::{external_files, parse, read};
pub use spill::{Spill, keep};
pub use tensor::{data_type, element_count, set_contents, shape, tensor, tensor_bytes};
pub use write::{ExternalData, external_data_path, serialize, sync_written, write, write_unless};
