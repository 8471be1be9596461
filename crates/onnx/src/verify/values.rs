//! Constants: numbers that are none, and infinite weights. Masks hold infinities on purpose, and a lone number may be no number to
//! mean something.

use crate::graph::{bodies, for_each_node};
use kvant_container::onnx::{DataType, ModelProto, TensorProto, data_type, tensor_bytes};
use kvant_quant::counts::number;
use kvant_quant::finding::Findings;
use std::collections::HashSet;

/// Operators that multiply by constants and add them: what is not finite there is damage.
const PRODUCTS: [&str; 4] = ["Conv", "ConvTranspose", "Gemm", "MatMul"];

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    let mut tensors: Vec<(&str, &TensorProto)> = named(&model.graph.initializer).collect();
    let mut weights: HashSet<&str> = HashSet::new();
    for_each_node(&model.graph, &mut |node| {
        tensors.extend(bodies(node).flat_map(|body| named(&body.initializer)));
        let output = node.output.first().map_or("", String::as_str);
        tensors.extend(node.attribute.iter().flat_map(|attribute| &attribute.t).map(|tensor| (output, tensor)));
        if PRODUCTS.contains(&node.op_type()) {
            weights.extend(node.input.iter().skip(1).map(String::as_str));
        }
    });
    for (name, tensor) in tensors {
        let found = count(tensor);
        let bad = if weights.contains(name) { found.none + found.infinite } else { found.none };
        if bad > 0 && found.all > 1 {
            let hint = "download the model again, or export it again";
            findings.error(name, format!("{bad} of {} are NaN or infinite", number(found.all, "value")), hint);
        }
    }
}

fn named(tensors: &[TensorProto]) -> impl Iterator<Item = (&str, &TensorProto)> {
    tensors.iter().map(|tensor| (tensor.name(), tensor))
}

#[derive(Default)]
struct Count {
    all: usize,
    none: usize,
    infinite: usize,
}

/// Counts by bits: magnitudes from that of infinity on are no numbers.
fn count(tensor: &TensorProto) -> Count {
    let Ok(bytes) = tensor_bytes(tensor) else { return Count::default() };
    let halves = |infinity: u16| {
        let words = bytes.as_chunks::<2>().0.iter().map(|word| u16::from_le_bytes(*word) & 0x7FFF);
        counted(words.map(|word| word.cmp(&infinity)))
    };
    match data_type(tensor) {
        DataType::FLOAT => {
            let words = bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word) & 0x7FFF_FFFF);
            counted(words.map(|word| word.cmp(&0x7F80_0000)))
        }
        DataType::DOUBLE => {
            let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word) & (u64::MAX >> 1));
            counted(words.map(|word| word.cmp(&f64::INFINITY.to_bits())))
        }
        DataType::FLOAT16 => halves(0x7C00),
        DataType::BFLOAT16 => halves(0x7F80),
        _ => Count::default(),
    }
}

fn counted(beside_infinity: impl Iterator<Item = std::cmp::Ordering>) -> Count {
    use std::cmp::Ordering::{Equal, Greater};
    beside_infinity.fold(Count::default(), |so_far, order| Count {
        all: so_far.all + 1,
        none: so_far.none + usize::from(order == Greater),
        infinite: so_far.infinite + usize::from(order == Equal),
    })
}
