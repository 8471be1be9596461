//! Blocks of layers whose codes are learned together: the layers between two tensors that everything passes through, such as those of a
//! residual block or of an attention block. No values.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use kvant_container::onnx::GraphProto;
use kvant_quant::reconstruction::ActivationFunction;

use super::target::LayerRef;
use crate::graph::{Index, for_each_read};

/// Layers of a block at most. Where more stand between two such tensors, as in a U-Net, they are cut, and a block has several outputs.
const MOST_LAYERS: usize = 8;

/// Some layers that follow one another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LayerBlock {
    /// The layers, among all of the graph.
    pub layers: Range<usize>,
    /// What the rest of the graph reads of them, and what the graph gives of them.
    pub outputs: Vec<String>,
}

/// The blocks of all layers. The nodes are in an order in which they can run.
pub(super) fn blocks(graph: &GraphProto, layers: &[LayerRef]) -> Vec<LayerBlock> {
    let mut last_read: HashMap<String, usize> = HashMap::new();
    for (position, node) in graph.node.iter().enumerate() {
        for_each_read(node, &mut |name| {
            last_read.insert(name.to_owned(), position);
        });
    }
    let mut walk = Walk { blocks: Vec::new(), begun: 0, open: BTreeSet::new(), passage: None, given: Vec::new() };
    let given: HashSet<&str> = graph.output.iter().map(|output| output.name()).collect();
    // Tensors that depend on a layer.
    let mut depends: HashSet<&str> = HashSet::new();
    let mut met = 0;
    for (position, node) in graph.node.iter().enumerate() {
        let is_layer = layers.get(met).is_some_and(|layer| layer.position == position);
        if is_layer {
            walk.meet(met);
            met += 1;
        }
        let mut follows = is_layer;
        for_each_read(node, &mut |name| follows |= depends.contains(name));
        for name in node.output.iter().filter(|name| follows && !name.is_empty()) {
            depends.insert(name);
            if last_read.contains_key(name) {
                walk.open.insert(name.clone());
            }
            if given.contains(name.as_str()) {
                walk.given.push(name.clone());
            }
        }
        walk.open.retain(|name| last_read.get(name).is_some_and(|&last| last > position));
        if walk.open.len() == 1 {
            walk.passage = walk.open.first().cloned();
        }
    }
    walk.close(met, Vec::new());
    walk.blocks
}

struct Walk {
    blocks: Vec<LayerBlock>,
    /// The first layer of the block.
    begun: usize,
    /// Tensors that depend on layers and are read later.
    open: BTreeSet<String>,
    /// The last tensor, since a layer of the block, that everything behind it passes through.
    passage: Option<String>,
    /// Outputs of the graph that the block gives.
    given: Vec<String>,
}

impl Walk {
    /// Comes to a layer, which may begin another block.
    fn meet(&mut self, layer: usize) {
        if layer > self.begun {
            match self.passage.take() {
                Some(passage) => self.close(layer, vec![passage]),
                None if layer - self.begun >= MOST_LAYERS => self.close(layer, self.open.iter().cloned().collect()),
                None => {}
            }
        }
        self.passage = None;
    }

    /// Ends the block before a layer.
    fn close(&mut self, layer: usize, mut outputs: Vec<String>) {
        outputs.extend(
            std::mem::take(&mut self.given).into_iter().filter(|name| !outputs.contains(name)).collect::<Vec<_>>(),
        );
        if layer > self.begun && !outputs.is_empty() {
            self.blocks.push(LayerBlock { layers: self.begun..layer, outputs });
        }
        self.begun = layer;
    }
}

impl LayerBlock {
    /// Each of its layers as a block of its own, with the activation function behind it.
    pub fn apart(&self, graph: &GraphProto, index: &Index, layers: &[LayerRef]) -> Vec<LayerBlock> {
        let alone = |number: usize| {
            let layer = &layers[number];
            let own = graph.node[layer.position].output.first()?;
            let function = index.only_consumer(own).filter(|_| layer.function != ActivationFunction::None);
            let output = function.and_then(|position| graph.node[position].output.first()).unwrap_or(own);
            Some(LayerBlock { layers: number..number + 1, outputs: vec![output.clone()] })
        };
        self.layers.clone().filter_map(alone).collect()
    }
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::NodeProto;

    use super::*;
    use crate::graph::node;
    use crate::test_models::model;

    /// The blocks of a graph whose layers are its convolutions and products of two inputs with names that begin with `w`.
    fn found(nodes: Vec<NodeProto>, outputs: &[&str]) -> Vec<(Range<usize>, Vec<String>)> {
        let made = model(17, nodes, Vec::new(), &["x"], outputs);
        let is_layer = |node: &NodeProto| node.input.get(1).is_some_and(|name| name.starts_with('w'));
        let layers = made.graph.node.iter().enumerate().filter(|(_, node)| is_layer(node));
        let layers = layers.map(|(position, node)| LayerRef {
            position,
            weight: node.input[1].clone(),
            bias: None,
            added: None,
            function: ActivationFunction::None,
        });
        let layers: Vec<LayerRef> = layers.collect();
        blocks(&made.graph, &layers).into_iter().map(|block| (block.layers, block.outputs)).collect()
    }

    fn conv(input: &str, output: &str) -> NodeProto {
        node("Conv", output, &[input, "w"], &[output])
    }

    fn strings(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn residual_blocks_end_behind_their_sums() {
        let nodes = vec![
            conv("x", "stem"),
            node("Relu", "r", &["stem"], &["r"]),
            conv("r", "a"),
            node("Relu", "ra", &["a"], &["ra"]),
            conv("ra", "b"),
            node("Add", "sum", &["b", "r"], &["sum"]),
            node("Relu", "rs", &["sum"], &["rs"]),
            conv("rs", "head"),
        ];
        let expected = [(0..1, strings(&["r"])), (1..3, strings(&["rs"])), (3..4, strings(&["head"]))];
        assert_eq!(found(nodes, &["head"]), expected);
    }

    #[test]
    fn attention_is_one_block_and_masks_do_not_count() {
        let nodes = vec![
            conv("x", "embedded"),
            node("Cast", "mask", &["m"], &["mask"]),
            node("LayerNormalization", "n", &["embedded", "g"], &["n"]),
            conv("n", "q"),
            conv("n", "k"),
            conv("n", "v"),
            node("MatMul", "scores", &["q", "k"], &["s"]),
            node("Add", "masked", &["s", "mask"], &["sm"]),
            node("Softmax", "p", &["sm"], &["p"]),
            node("MatMul", "mixed", &["p", "v"], &["o"]),
            conv("o", "out"),
            node("Add", "sum", &["out", "embedded"], &["sum"]),
            conv("sum", "f"),
            node("Add", "again", &["f", "mask"], &["y"]),
        ];
        let expected = [(0..1, strings(&["embedded"])), (1..5, strings(&["sum"])), (5..6, strings(&["y"]))];
        assert_eq!(found(nodes, &["y"]), expected);
    }

    #[test]
    fn long_blocks_are_cut_and_outputs_in_between_count() {
        // A connection over everything.
        let names: Vec<String> = (0..12).map(|i| format!("t{i}")).collect();
        let mut nodes = vec![conv("x", "t0")];
        nodes.extend((1..12).map(|i| conv(&names[i - 1], &names[i])));
        nodes.push(node("Add", "sum", &["t11", "t0"], &["y"]));
        let found = found(nodes, &["y", "t5"]);
        let expected = [(0..1, strings(&["t0"])), (1..9, strings(&["t0", "t8", "t5"])), (9..12, strings(&["y"]))];
        assert_eq!(found, expected);
    }
}
