//! Which products a layout of blocks takes: the one answer for the plan and for [`write_blocks`](super::write_blocks).

use std::collections::{BTreeMap, BTreeSet};

use kvant_container::onnx::{DataType, GraphProto, NodeProto, shape};

use super::matmul_nbits::Blocks;
use super::remaining::constants_without;
use crate::block_map::{BlockMap, changes_data};
use crate::graph::{Index, for_each_node};
use crate::placement::{self, Placement, Skipped};
use crate::recipe::Recipe;

/// Decides which weights are quantized: those of products that MatMulNBits computes. All other nodes stay in float.
pub fn place(
    graph: &GraphProto,
    recipe: &Recipe,
    block: usize,
    data_type: &dyn Fn(&str) -> Option<DataType>,
) -> Placement {
    let mut placement = placement::place(graph, recipe, data_type);
    let index = Index::new(graph);
    let mut taken = BTreeSet::new();
    let (mut written, mut left) = (0, Vec::new());
    for_each_node(graph, &mut |node| match blocks_of(node, graph, &index, &placement, block) {
        Some((weight, _)) => {
            written += 1;
            taken.insert(weight.clone());
        }
        None if node.input.iter().any(|name| placement.weights.contains_key(name)) => {
            let reason = match changes_data(node) {
                true => "MatMulNBits has no factors (alpha, beta) and does not transpose its data",
                false => "MatMulNBits computes products with one constant matrix only",
            };
            left.push(Skipped::new(node, reason));
        }
        None => {}
    });
    placement.weights.retain(|name, _| taken.contains(name));
    placement.nodes = written;
    placement.skipped.append(&mut left);
    placement
}

/// Bytes of the constants of a graph whose placed products are written in blocks: codes, scales and zero points of each weight,
/// and what other nodes read still.
pub fn constant_bytes(graph: &GraphProto, placement: &Placement, blocks: Blocks) -> u64 {
    let index = Index::new(graph);
    let mut stored = BTreeMap::new();
    let left = constants_without(graph, &mut |node| {
        let taken = blocks_of(node, graph, &index, placement, blocks.block).map(|(_, map)| map);
        if let Some(map) = taken {
            stored.insert((std::mem::take(&mut node.input[1]), map.transposed), blocks.bytes(map));
        }
    });
    left + stored.values().sum::<u64>()
}

/// The weight of a node and its blocks, where the node becomes a MatMulNBits.
pub(super) fn blocks_of<'n>(
    node: &'n NodeProto,
    graph: &GraphProto,
    index: &Index,
    placement: &Placement,
    block: usize,
) -> Option<(&'n String, BlockMap)> {
    let weight = node.input.get(1).filter(|name| placement.weights.contains_key(*name))?;
    let sizes = shape(index.constant(graph, weight)?).ok()?;
    Some((weight, BlockMap::of(node, &sizes, block)?))
}
