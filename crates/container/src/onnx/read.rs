//! Reading a model: the file mapped, its message parsed, external data mapped into place.

use crate::directory::directory_of;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::external::ExternalFiles;
use super::message::Message;
use super::proto::{AttributeProto, DataLocation, GraphProto, ModelProto, NodeProto, TensorProto};
use crate::error::Error;
use crate::error::OnnxError;
use crate::gguf::begins_as_gguf;
use crate::mmap::MappedFile;
use crate::protobuf::{WireError, varint};
use bytes::Bytes;

/// Reads a model and maps all of its data. Nothing of a tensor's contents is copied: the tensors are slices of the mapped files,
/// which nobody may write to while the model is in use ([`FileChanges`](crate::FileChanges) notices it).
///
/// Errors: a file that cannot be read or is not a model with a graph, external data outside of the directory or missing or
/// shorter than their tensor.
pub fn read(path: &Path) -> Result<ModelProto, Error> {
    let named = |problem| Error::Onnx { file: path.to_path_buf(), problem };
    let mut model = parse(&Bytes::from_owner(MappedFile::open(path)?)).map_err(named)?;
    let mut files = ExternalFiles::new(directory_of(path));
    each_tensor(&mut model, &mut |tensor| bring_in(tensor, &mut files)).map_err(named)?;
    Ok(model)
}

/// The files that hold a model's external data, as the model names them. They are not opened.
///
/// Errors: a file that cannot be read or is not a model with a graph.
pub fn external_files(path: &Path) -> Result<BTreeSet<PathBuf>, Error> {
    let named = |problem| Error::Onnx { file: path.to_path_buf(), problem };
    let mut model = parse(&Bytes::from_owner(MappedFile::open(path)?)).map_err(named)?;
    let mut files = BTreeSet::new();
    let collected = each_tensor(&mut model, &mut |tensor| {
        // A location that ends in no name is none of a file, and reading the tensor says so.
        let names_file = |location: &str| Path::new(location).file_name().is_some();
        let locations = tensor.external_data.iter().filter(|entry| entry.key() == "location");
        let locations = locations.filter(|entry| names_file(entry.value()));
        files.extend(locations.map(|entry| path.with_file_name(entry.value())));
        Ok(())
    });
    collected.map_err(named)?;
    Ok(files)
}

/// Parses the bytes of one file. External data are left alone.
pub fn parse(bytes: &Bytes) -> Result<ModelProto, OnnxError> {
    let unread = |_: WireError| match cut_short(bytes) {
        _ if begins_as_gguf(bytes) => OnnxError::Gguf,
        true => OnnxError::CutShort(bytes.len()),
        false => OnnxError::NotAModel,
    };
    let model = ModelProto::parse(bytes).map_err(unread)?;
    match model.graph.is_some() {
        true => Ok(model),
        false => Err(OnnxError::NoGraph),
    }
}

/// Returns whether bytes begin as a model does, with fields that it has and their types, and end within one of them.
fn cut_short(bytes: &[u8]) -> bool {
    /// The largest number of a field of [`ModelProto`].
    const LAST_FIELD: u64 = 26;
    let mut rest = bytes;
    while !rest.is_empty() {
        let Ok(key) = varint(&mut rest) else { return true };
        if !(1..=LAST_FIELD).contains(&(key >> 3)) {
            return false;
        }
        let length = match key & 7 {
            0 => varint(&mut rest).ok().map(|_| 0),
            1 => Some(8),
            2 => varint(&mut rest).ok(),
            5 => Some(4),
            _ => return false,
        };
        let left = length.and_then(|length| usize::try_from(length).ok()).and_then(|length| rest.get(length..));
        match left {
            Some(left) => rest = left,
            None => return true,
        }
    }
    false
}

fn bring_in(tensor: &mut TensorProto, files: &mut ExternalFiles<'_>) -> Result<(), OnnxError> {
    let external = tensor.data_location.is_some_and(|l| l.enum_value() == Ok(DataLocation::EXTERNAL));
    if !external {
        return Ok(());
    }
    tensor.raw_data = Some(files.contents(tensor)?);
    tensor.data_location = None;
    tensor.external_data.clear();
    Ok(())
}

/// The operation on each tensor.
pub(super) type Visit<'a> = dyn FnMut(&mut TensorProto) -> Result<(), OnnxError> + 'a;

/// Visits every tensor of a model: initializers, sparse ones, attributes, those of subgraphs and functions.
pub(super) fn each_tensor(model: &mut ModelProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    if let Some(graph) = model.graph.as_mut() {
        in_graph(graph, visit)?;
    }
    model.functions.iter_mut().flat_map(|f| &mut f.node).try_for_each(|node| in_node(node, visit))
}

fn in_graph(graph: &mut GraphProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    graph.initializer.iter_mut().try_for_each(&mut *visit)?;
    for sparse in &mut graph.sparse_initializer {
        sparse.values.as_mut().into_iter().chain(sparse.indices.as_mut()).try_for_each(&mut *visit)?;
    }
    graph.node.iter_mut().try_for_each(|node| in_node(node, visit))
}

fn in_node(node: &mut NodeProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    node.attribute.iter_mut().try_for_each(|attribute| in_attribute(attribute, visit))
}

fn in_attribute(attribute: &mut AttributeProto, visit: &mut Visit<'_>) -> Result<(), OnnxError> {
    attribute.t.as_mut().into_iter().chain(&mut attribute.tensors).try_for_each(&mut *visit)?;
    attribute.g.as_mut().into_iter().chain(&mut attribute.graphs).try_for_each(|graph| in_graph(graph, visit))
}

#[cfg(test)]
mod tests {
    use super::super::serialize;
    use super::*;

    #[test]
    fn every_truncated_graph_is_refused() {
        let node = NodeProto { name: Some("n".to_owned()), input: vec!["x".to_owned()], ..NodeProto::default() };
        let graph = GraphProto { node: vec![node], name: Some("g".to_owned()), ..GraphProto::default() };
        let model = ModelProto { graph: super::super::MessageField::some(graph), ..ModelProto::default() };
        let whole = Bytes::from(serialize(&model).unwrap());
        assert_eq!(parse(&whole).unwrap(), model);
        assert!((0..whole.len()).all(|n| parse(&whole.slice(..n)).is_err()));
        assert_eq!(parse(&whole.slice(..whole.len() - 1)), Err(OnnxError::CutShort(whole.len() - 1)));
        assert_eq!(parse(&Bytes::from_static(b"not a model at all")), Err(OnnxError::NotAModel));
        assert_eq!(parse(&Bytes::from_static(b"GGUF\x03\0\0\0")), Err(OnnxError::Gguf));
    }
}
