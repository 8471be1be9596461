//! Element types against versions: that of the operators that quantize to them, and that of the file. And against each other,
//! where an operator works on one type and what it reads is declared.

use crate::graph::{Index, STANDARD_DOMAIN, int_attribute, is, is_standard, opset};
use crate::shape::ValueType;
use kvant_container::onnx::{DataType, EnumOrUnknown, ModelProto, NodeProto, data_type, data_type_name};
use kvant_quant::finding::Findings;
use std::collections::{BTreeMap, HashMap};

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

/// The first version of the file format that has a type, where that matters.
pub(crate) fn least_version(found: DataType) -> Option<i64> {
    row(found).map(|(_, _, version)| *version)
}

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    files(model, findings);
    operators(model, findings);
    operands(model, findings);
}

/// Operators all of whose inputs, or so many of them, are of one type.
const OF_ONE_TYPE: [(&str, usize); 14] = [
    ("Add", 2),
    ("Concat", usize::MAX),
    ("Conv", 3),
    ("ConvTranspose", 3),
    ("Div", 2),
    ("Equal", 2),
    ("Gemm", 3),
    ("Greater", 2),
    ("InstanceNormalization", 3),
    ("Less", 2),
    ("MatMul", 2),
    ("Mul", 2),
    ("PRelu", 2),
    ("Sub", 2),
];

/// Operands whose types are declared: inputs of the graph, constants and what is cast. Others are for the runtime to find.
fn operands(model: &ModelProto, findings: &mut Findings) {
    let graph = &model.graph;
    let inputs = graph.input.iter().filter_map(|input| Some((input.name(), ValueType::declared(input)?.data_type)));
    let constants = graph.initializer.iter().map(|tensor| (tensor.name(), data_type(tensor)));
    let casts = graph.node.iter().filter(|node| is(node, "Cast")).filter_map(|node| {
        let to = i32::try_from(int_attribute(node, "to")?).ok()?;
        Some((node.output.first()?.as_str(), EnumOrUnknown::from_i32(to).enum_value_or(DataType::UNDEFINED)))
    });
    let known = inputs.chain(constants).chain(casts).filter(|(_, known)| *known != DataType::UNDEFINED);
    let known: HashMap<&str, DataType> = known.collect();
    for node in graph.node.iter().filter(|node| is_standard(node)) {
        let Some((_, count)) = OF_ONE_TYPE.iter().find(|(operator, _)| *operator == node.op_type()) else { continue };
        let mut types = node.input.iter().take(*count).filter_map(|name| known.get(name.as_str()));
        let Some(first) = types.next() else { continue };
        if let Some(other) = types.find(|other| *other != first) {
            let (first, other) = (data_type_name(*first), data_type_name(*other));
            let reason = format!("reads {first} and {other}, and {} works on one type", node.op_type());
            findings.error(name_of(node), reason, "cast one of them, or declare the input's type as it is");
        }
    }
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
