//! Writing the header of a safetensors file: deterministic bytes from placed tensors. No files here.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::METADATA_KEY;
use crate::dtype::Dtype;

/// Headers end on a multiple of this many bytes, so that the data after them is aligned for every dtype.
const HEADER_ALIGNMENT: usize = 8;

/// A tensor as the header writes it.
#[derive(Serialize)]
pub(super) struct EncodedTensor<'a> {
    #[serde(skip)]
    pub name: &'a str,
    pub dtype: Dtype,
    pub shape: &'a [usize],
    pub data_offsets: (u64, u64),
}

/// The beginning of a file: the header's length as 8 little-endian bytes, the JSON, spaces up to the alignment.
///
/// # Errors
///
/// Only those of the JSON writer, which these types cannot cause.
pub(super) fn encode_header(
    metadata: &BTreeMap<String, String>,
    tensors: &[EncodedTensor<'_>],
) -> Result<Vec<u8>, serde_json::Error> {
    let mut json = serde_json::to_vec(&EncodedHeader { metadata, tensors })?;
    json.resize(json.len().next_multiple_of(HEADER_ALIGNMENT), b' ');
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut json);
    Ok(bytes)
}

struct EncodedHeader<'a> {
    metadata: &'a BTreeMap<String, String>,
    tensors: &'a [EncodedTensor<'a>],
}

impl Serialize for EncodedHeader<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.metadata.is_empty() {
            map.serialize_entry(METADATA_KEY, self.metadata)?;
        }
        for tensor in self.tensors {
            map.serialize_entry(tensor.name, tensor)?;
        }
        map.end()
    }
}
