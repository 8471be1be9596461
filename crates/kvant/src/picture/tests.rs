use super::*;
use kvant_onnx::tool::{ListedNode, ListedTensor, QuantizedTensor};
use std::path::PathBuf;

fn tensor(name: &str, is_constant: bool) -> ListedTensor {
    ListedTensor { name: name.to_owned(), dtype: Some("float[1, 8]".to_owned()), is_constant }
}

fn node(name: &str, operator: &str, inputs: Vec<ListedTensor>, output: &str) -> ListedNode {
    let (name, operator) = (name.to_owned(), operator.to_owned());
    ListedNode { name, operator, inside: None, inputs, outputs: vec![tensor(output, false)] }
}

/// x -> Q -> D -> Relu, so many times -> y.
fn listing(relus: usize) -> GraphListing {
    let mut nodes = vec![
        node("q", "QuantizeLinear", vec![tensor("x", false), tensor("s", true), tensor("z", true)], "c"),
        node("d", "DequantizeLinear", vec![tensor("c", false), tensor("s", true), tensor("z", true)], "h0"),
    ];
    let relu = |at: usize| {
        node(&format!("<relu {at}>"), "Relu", vec![tensor(&format!("h{at}"), false)], &format!("h{}", at + 1))
    };
    nodes.extend((0..relus).map(relu));
    let quantized = QuantizedTensor {
        tensor: "x".to_owned(),
        node: "q".to_owned(),
        is_constant: false,
        dtype: "uint8".to_owned(),
        scales: 1,
        scale_range: Some((0.0123, 0.0123)),
        zero_point_range: Some((7.0, 7.0)),
        axis: None,
        block: None,
    };
    let value = |role: &str, name: String| [role.to_owned(), name, "float".to_owned(), "[1, 8]".to_owned()];
    GraphListing {
        path: PathBuf::from("net.onnx"),
        opsets: [(String::new(), 17)].into(),
        operators: [].into(),
        node_count: nodes.len(),
        values: vec![value("input", "x".to_owned()), value("output", format!("h{relus}"))],
        nodes: Some(nodes),
        quantized: vec![quantized],
    }
}

#[test]
fn picture_shows_types_and_scales_and_escapes_names() {
    let picture = drawn(&listing(2)).unwrap();
    for expected in
        ["uint8 × 0.0123, zero 7", "→ float[1, 8]", "&lt;relu 1&gt;", "prefers-color-scheme:dark", "QuantizeLinear"]
    {
        assert!(picture.contains(expected), "{expected}: {picture}");
    }
    // Two ends, four nodes, the paper and four colours.
    assert_eq!(picture.matches("<rect").count(), 2 + 4 + 1 + 4);
    assert_eq!(picture.matches("class=\"line\"").count(), 5);
    assert!(!picture.contains("<relu"));
}

#[test]
fn large_graphs_are_refused() {
    assert!(drawn(&listing(MOST_NODES - 2)).is_ok());
    let error = drawn(&listing(MOST_NODES - 1)).unwrap_err();
    assert_eq!(error.message, "a graph of 201 nodes is too large for a picture, which shows 200 at most");
}
