//! Element types against versions: that of the operators that quantize to them, and that of the file.

use crate::graph::{Index, STANDARD_DOMAIN, is, opset};
use kvant_container::onnx::{DataType, ModelProto, NodeProto, data_type, data_type_name};
use kvant_quant::finding::Findings;
use std::collections::BTreeMap;

/// A type, the first opset whose QuantizeLinear and DequantizeLinear take it, and the first version of the file format that
/// has it (ONNX 1.22, docs/Versioning.md and the operators' schemas).
const TYPES: &[(DataType, i64, i64)] = &[
    (DataType::INT8, 10, 5),
    (DataType::UINT8, 10, 5),
    (DataType::FLOAT8E4M3FN, 19, 9),
    (DataType::FLOAT8E4M3FNUZ, 19, 9),
    (DataType::FLOAT8E5M2, 19, 9),
    (DataType::FLOAT8E5M2FNUZ, 19, 9),
    (DataType::INT16, 21, 3),
    (DataType::UINT16, 21, 3),
    (DataType::INT4, 21, 10),
    (DataType::UINT4, 21, 10),
    (DataType::FLOAT4E2M1, 23, 11),
    (DataType::FLOAT8E8M0, 24, 12),
    (DataType::INT2, 25, 13),
    (DataType::UINT2, 25, 13),
];

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    files(model, findings);
    operators(model, findings);
}

fn row(found: DataType) -> Option<&'static (DataType, i64, i64)> {
    TYPES.iter().find(|(known, ..)| *known == found)
}

/// Types of initializers against the version of the file.
fn files(model: &ModelProto, findings: &mut Findings) {
    let mut seen: BTreeMap<String, (i64, String)> = BTreeMap::new();
    for tensor in &model.graph.initializer {
        let Some((found, _, least)) = row(data_type(tensor)) else { continue };
        if model.ir_version() < *least {
            seen.entry(data_type_name(*found)).or_insert((*least, tensor.name().to_owned()));
        }
    }
    for (name, (least, tensor)) in seen {
        let reason =
            format!("is {name}, which needs IR version {least}; the file is of version {}", model.ir_version());
        findings.error(tensor, reason, "write the model with that version");
    }
}

/// Types of codes against the version of the standard operators.
fn operators(model: &ModelProto, findings: &mut Findings) {
    let (Some(version), graph) = (opset(model, STANDARD_DOMAIN), &model.graph) else { return };
    let index = Index::new(graph);
    for node in graph.node.iter().filter(|node| is(node, "QuantizeLinear") || is(node, "DequantizeLinear")) {
        let codes =
            [node.input.get(2), node.input.first()].into_iter().flatten().find_map(|name| index.constant(graph, name));
        let Some((found, least, _)) = codes.and_then(|codes| row(data_type(codes))) else { continue };
        if version < *least {
            let reason =
                format!("works on {}, which needs opset {least}; the model has {version}", data_type_name(*found));
            findings.error(name_of(node), reason, "use the operators of com.microsoft, or raise the opset");
        }
    }
}

/// The name of a node, or of what it makes.
pub(super) fn name_of(node: &NodeProto) -> &str {
    match node.name() {
        "" => node.output.first().map_or("", String::as_str),
        name => name,
    }
}
