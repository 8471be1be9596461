//! Tables that Gather reads rows of: DequantizeLinear stands behind the Gather, so that a run dequantizes the rows it reads and not
//! the whole table.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto, NodeProto, data_type};

use crate::graph::{Index, Names, is};

/// Moves DequantizeLinear of stored codes with one scale behind the Gathers that read it. What goes into codes with the same scale
/// again is left: runtimes take both nodes away there. Returns how many Gathers read codes now.
pub(super) fn dequantize_rows(graph: &mut GraphProto) -> usize {
    let index = Index::new(graph);
    let mut names = Names::of(graph);
    let mut moved: HashMap<usize, NodeProto> = HashMap::new();
    for (at, gather) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "Gather")) {
        let Some(table) = gather.input.first().and_then(|name| stored(graph, &index, name)) else { continue };
        if !goes_into_codes(graph, &index, gather, table) && !gather.output.is_empty() {
            let mut dequantize = table.clone();
            dequantize.name = Some(names.fresh(&format!("{}_DequantizeLinear", gather.output[0])));
            dequantize.input[0] = names.fresh(&format!("{}_quantized", gather.output[0]));
            dequantize.output = vec![gather.output[0].clone()];
            moved.insert(at, dequantize);
        }
    }
    let count = moved.len();
    let tables: HashMap<String, String> = moved
        .keys()
        .filter_map(|&at| {
            let name = graph.node[at].input.first()?;
            Some((name.clone(), stored(graph, &index, name)?.input.first()?.clone()))
        })
        .collect();
    let old = std::mem::take(&mut graph.node);
    for (at, mut node) in old.into_iter().enumerate() {
        match moved.remove(&at) {
            Some(dequantize) => {
                if let Some(codes) = tables.get(&node.input[0]) {
                    node.input[0].clone_from(codes);
                }
                node.output[0].clone_from(&dequantize.input[0]);
                graph.node.extend([node, dequantize]);
            }
            None => graph.node.push(node),
        }
    }
    let read = Index::new(graph);
    graph.node.retain(|node| {
        let idle = |name: &String| tables.contains_key(name) && !read.is_read(name) && !read.is_output(name);
        !node.output.first().is_some_and(idle)
    });
    count
}

/// The DequantizeLinear of stored bytes with one scale that makes a tensor.
fn stored<'g>(graph: &'g GraphProto, index: &Index, name: &str) -> Option<&'g NodeProto> {
    let node = index.producer(name).map(|at| &graph.node[at]).filter(|node| node.op_type() == "DequantizeLinear")?;
    let codes = index.constant(graph, node.input.first()?)?;
    let scale = index.constant(graph, node.input.get(1)?)?;
    let bytes = matches!(data_type(codes), DataType::INT8 | DataType::UINT8);
    (bytes && scale.dims.iter().product::<i64>() == 1).then_some(node)
}

/// Returns whether all that reads a Gather's rows quantizes them with the table's scale.
fn goes_into_codes(graph: &GraphProto, index: &Index, gather: &NodeProto, table: &NodeProto) -> bool {
    let Some(rows) = gather.output.first() else { return false };
    let readers = index.consumers(rows);
    let same = |&at: &usize| {
        let node = &graph.node[at];
        node.op_type() == "QuantizeLinear" && node.input.get(1) == table.input.get(1)
    };
    !readers.is_empty() && !index.is_output(rows) && readers.iter().all(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{floats, model};
    use kvant_container::onnx::tensor;

    fn graph(behind: NodeProto) -> GraphProto {
        let nodes =
            vec![node("DequantizeLinear", "d", &["t", "s"], &["f"]), node("Gather", "g", &["f", "i"], &["r"]), behind];
        let table = tensor("t", DataType::UINT8, &[3, 2], vec![1u8; 6]);
        let constants = vec![table, floats("s", &[], &[0.5]), floats("o", &[], &[0.25])];
        model(17, nodes, constants, &["i"], &["y"]).graph.into_option().unwrap()
    }

    fn operators(graph: &GraphProto) -> Vec<(&str, &str)> {
        graph.node.iter().map(|node| (node.op_type(), node.input[0].as_str())).collect()
    }

    #[test]
    fn gathered_rows_are_dequantized_after_the_gather() {
        let mut floats = graph(node("Relu", "n", &["r"], &["y"]));
        assert_eq!(dequantize_rows(&mut floats), 1);
        assert_eq!(operators(&floats), [("Gather", "t"), ("DequantizeLinear", "r_quantized"), ("Relu", "r")]);
        let mut other = graph(node("QuantizeLinear", "q", &["r", "o"], &["y"]));
        assert_eq!(dequantize_rows(&mut other), 1);
        let mut same = graph(node("QuantizeLinear", "q", &["r", "s"], &["y"]));
        assert_eq!(dequantize_rows(&mut same), 0);
    }

    #[test]
    fn table_that_is_also_a_weight_is_kept_for_it() {
        let mut tied = graph(node("MatMul", "m", &["r", "f"], &["y"]));
        assert_eq!(dequantize_rows(&mut tied), 1);
        let expected =
            [("DequantizeLinear", "t"), ("Gather", "t"), ("DequantizeLinear", "r_quantized"), ("MatMul", "r")];
        assert_eq!(operators(&tied), expected);
    }
}
