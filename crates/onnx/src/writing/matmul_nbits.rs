//! `com.microsoft.MatMulNBits`: products with a constant whose weights have four or eight bits, in blocks along the reduced axis.
//!
//! The weight of K inputs and N outputs becomes `[N, K / block, bytes]`, the first code of a byte in its low half, K padded with
//! zeros; scales `[N, K / block]`. Symmetric: the value m with the largest magnitude of a block gets the lowest code,
//! `scale = -m / 2^(bits - 1)`, and codes are stored with `2^(bits - 1)` added. Else zero points, packed like the codes, and
//! `scale = (max - min) / (2^bits - 1)` with zero in the range.
//! Source: ONNX Runtime, ContribOperators.md.

use std::collections::BTreeSet;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, Spill, keep, shape, tensor};
use rayon::prelude::*;

use super::operators::MICROSOFT;
use crate::error::QuantizeError;
use crate::graph::{Index, add_opset, bodies_mut, float_attribute, int_attribute, node, set_attribute};
use crate::placement::Placement;
use crate::solution::values;

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Bits of a code: 4 or 8.
    pub bits: u8,
    /// Weights that share a scale.
    pub block: usize,
    /// What the kernel may compute in; 0 leaves it open.
    pub accuracy: u8,
    /// Whether there are no zero points.
    pub symmetric: bool,
}

/// A weight in blocks.
struct Packed {
    codes: Vec<u8>,
    scales: Vec<f32>,
    zero_points: Vec<u8>,
}

/// Replaces MatMul and Gemm nodes whose weight is placed. Returns their number.
pub fn write_blocks(
    model: &mut ModelProto,
    blocks: Blocks,
    placement: &Placement,
    spill: Option<&Spill>,
) -> Result<usize, QuantizeError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let mut nodes = std::mem::take(&mut graph.node);
    let index = Index::new(graph);
    let mut writer = Writer { graph, index, blocks, placement, spill, made: BTreeSet::new(), written: 0 };
    writer.nodes(&mut nodes)?;
    let written = writer.written;
    graph.node = nodes;
    let index = Index::new(graph);
    graph.initializer.retain(|t| index.is_read(t.name()) || index.is_input(t.name()));
    add_opset(model, MICROSOFT, 1);
    Ok(written)
}

struct Writer<'a> {
    /// The main graph without its nodes: the constants, which graphs inside of nodes read too.
    graph: &'a mut GraphProto,
    index: Index,
    blocks: Blocks,
    placement: &'a Placement,
    spill: Option<&'a Spill>,
    /// The stored weights.
    made: BTreeSet<String>,
    written: usize,
}

impl Writer<'_> {
    fn nodes(&mut self, nodes: &mut Vec<NodeProto>) -> Result<(), QuantizeError> {
        let mut made = Vec::with_capacity(nodes.len());
        for mut old in std::mem::take(nodes) {
            bodies_mut(&mut old).try_for_each(|body| self.nodes(&mut body.node))?;
            match self.replaced(&old)? {
                Some(new) => made.extend(new),
                None => made.push(old),
            }
        }
        *nodes = made;
        Ok(())
    }

    /// What a node becomes; `None` where it stays.
    fn replaced(&mut self, old: &NodeProto) -> Result<Option<Vec<NodeProto>>, QuantizeError> {
        let weight = old.input.get(1).filter(|w| self.placement.weights.contains_key(*w) && fits(old));
        let Some(weight) = weight else { return Ok(None) };
        let transposed = old.op_type() == "Gemm" && int_attribute(old, "transB") == Some(1);
        let stored = format!("{weight}_Q{}{}", self.blocks.bits, if transposed { "_t" } else { "" });
        let Some((inputs, outputs)) = sides(self.graph, &self.index, weight, transposed)? else { return Ok(None) };
        if self.made.insert(stored.clone()) {
            let sides = (inputs, outputs, transposed);
            store(self.graph, &self.index, weight, &stored, sides, self.blocks, self.spill)?;
        }
        self.written += 1;
        Ok(Some(replacement(old, &stored, inputs, outputs, self.blocks)))
    }
}

/// A Gemm is a product and a sum only without factors and with its data as they are.
fn fits(old: &NodeProto) -> bool {
    let one = |name: &str| float_attribute(old, name).is_none_or(|factor| factor == 1.0);
    match old.op_type() {
        "MatMul" => true,
        "Gemm" => one("alpha") && one("beta") && int_attribute(old, "transA").unwrap_or(0) == 0,
        _ => false,
    }
}

/// Inputs and outputs of a weight of two dimensions.
fn sides(
    graph: &GraphProto,
    index: &Index,
    weight: &str,
    transposed: bool,
) -> Result<Option<(usize, usize)>, QuantizeError> {
    let Some(source) = index.constant(graph, weight) else { return Ok(None) };
    Ok(match shape(source)?[..] {
        [n, k] if transposed => Some((k, n)),
        [k, n] if !transposed => Some((k, n)),
        _ => None,
    })
}

fn store(
    graph: &mut GraphProto,
    index: &Index,
    weight: &str,
    stored: &str,
    (inputs, outputs, transposed): (usize, usize, bool),
    blocks: Blocks,
    spill: Option<&Spill>,
) -> Result<(), QuantizeError> {
    let Some(source) = index.constant(graph, weight) else { return Ok(()) };
    let source = values(source)?;
    if let Some(position) = source.iter().position(|v| !v.is_finite()) {
        return Err(QuantizeError::NotANumber { tensor: weight.to_owned(), position });
    }
    let packed = pack(&source, inputs, outputs, transposed, blocks);
    let rows = inputs.div_ceil(blocks.block);
    let bytes = blocks.block * usize::from(blocks.bits) / 8;
    let codes = keep(spill, packed.codes)?;
    graph.initializer.push(tensor(stored, DataType::UINT8, &[outputs, rows, bytes], codes));
    let scales: Vec<u8> = packed.scales.iter().flat_map(|s| s.to_le_bytes()).collect();
    graph.initializer.push(tensor(&format!("{stored}_scales"), DataType::FLOAT, &[outputs * rows], scales));
    if !blocks.symmetric {
        let name = format!("{stored}_zero_points");
        graph.initializer.push(tensor(&name, DataType::UINT8, &[packed.zero_points.len()], packed.zero_points));
    }
    Ok(())
}

fn replacement(old: &NodeProto, stored: &str, inputs: usize, outputs: usize, blocks: Blocks) -> Vec<NodeProto> {
    let bias = old.input.get(2).filter(|name| !name.is_empty());
    let product = bias.map_or_else(|| old.output[0].clone(), |_| format!("{}_product", old.output[0]));
    let (scales, zero_points) = (format!("{stored}_scales"), format!("{stored}_zero_points"));
    let mut reads = vec![old.input[0].as_str(), stored, &scales];
    if !blocks.symmetric {
        reads.push(&zero_points);
    }
    // Names of nodes may be empty; those of tensors differ.
    let named = if old.name().is_empty() { &old.output[0] } else { old.name() };
    let name = format!("{named}_Q{}", blocks.bits);
    let mut made = node("MatMulNBits", &name, &reads, &[&product]);
    made.domain = Some(MICROSOFT.to_owned());
    let numbers = [
        ("K", inputs as i64),
        ("N", outputs as i64),
        ("bits", i64::from(blocks.bits)),
        ("block_size", blocks.block as i64),
    ];
    numbers.iter().for_each(|&(key, value)| set_attribute(&mut made, key, value));
    if blocks.accuracy > 0 {
        set_attribute(&mut made, "accuracy_level", i64::from(blocks.accuracy));
    }
    let sum = bias.map(|bias| node("Add", &format!("{name}_bias"), &[&product, bias], &[&old.output[0]]));
    [made].into_iter().chain(sum).collect()
}

fn pack(source: &[f32], inputs: usize, outputs: usize, transposed: bool, blocks: Blocks) -> Packed {
    let column = |output: usize| -> Vec<f32> {
        let at =
            |input: usize| if transposed { source[output * inputs + input] } else { source[input * outputs + output] };
        let padded = inputs.next_multiple_of(blocks.block);
        (0..padded).map(|input| if input < inputs { at(input) } else { 0.0 }).collect()
    };
    let columns: Vec<Packed> =
        (0..outputs).into_par_iter().map(|output| pack_column(&column(output), blocks)).collect();
    let mut all = Packed { codes: Vec::new(), scales: Vec::new(), zero_points: Vec::new() };
    for column in columns {
        all.codes.extend(column.codes);
        all.scales.extend(column.scales);
        all.zero_points.extend(column.zero_points);
    }
    all
}

fn pack_column(values: &[f32], blocks: Blocks) -> Packed {
    let mut packed = Packed { codes: Vec::new(), scales: Vec::new(), zero_points: Vec::new() };
    let mut zero_points = Vec::new();
    for block in values.chunks(blocks.block) {
        let (scale, zero_point) = parameters(block, blocks);
        let top = f32::from((1u16 << blocks.bits) - 1);
        let code = |&v: &f32| (v / scale + f32::from(zero_point)).round_ties_even().clamp(0.0, top) as u8;
        let codes: Vec<u8> = block.iter().map(code).collect();
        packed.codes.extend(joined(&codes, blocks.bits));
        packed.scales.push(scale);
        zero_points.push(zero_point as u8);
    }
    packed.zero_points = joined(&zero_points, blocks.bits);
    packed
}

/// Two 4-bit codes to a byte.
fn joined(codes: &[u8], bits: u8) -> Vec<u8> {
    match bits {
        4 => codes.chunks(2).map(|pair| pair[0] | pair.get(1).map_or(0, |c| c << 4)).collect(),
        _ => codes.to_vec(),
    }
}

fn parameters(block: &[f32], blocks: Blocks) -> (f32, u16) {
    let middle = 1u16 << (blocks.bits - 1);
    let (scale, zero_point) = match blocks.symmetric {
        true => {
            let largest = block.iter().fold(0f32, |m, &v| if v.abs() > m.abs() { v } else { m });
            (-largest / f32::from(middle), middle)
        }
        false => {
            let (low, high) = block.iter().fold((0f32, 0f32), |(l, h), &v| (l.min(v), h.max(v)));
            let scale = (high - low) / f32::from((1u16 << blocks.bits) - 1);
            (scale, if scale > 0.0 { (-low / scale).round_ties_even() as u16 } else { 0 })
        }
    };
    if scale == 0.0 || !scale.is_normal() {
        (1.0, if blocks.symmetric { middle } else { 0 })
    } else {
        (scale, zero_point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOUR: Blocks = Blocks { bits: 4, block: 4, accuracy: 0, symmetric: true };

    #[test]
    fn the_largest_magnitude_is_exact_and_halves_are_packed_low_first() {
        let made = pack_column(&[1.0, -0.5, 0.25, 0.0], FOUR);
        assert_eq!(made.scales, [-0.125]);
        assert_eq!(made.codes, [0xC0, 0x86]);
    }

    #[test]
    fn asymmetric_blocks_have_packed_zero_points() {
        let blocks = Blocks { symmetric: false, ..FOUR };
        let made = pack_column(&[0.0, 15.0, 5.0, 1.0, -1.0, 14.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], blocks);
        assert_eq!(made.scales, [1.0, 1.0, 1.0]);
        assert_eq!((made.codes[0], made.zero_points), (0xF0, vec![0x10, 0x00]));
    }

    #[test]
    fn columns_are_padded_and_both_orders_agree() {
        let plain = pack(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 3, 2, false, FOUR);
        let transposed = pack(&[1.0, 3.0, 5.0, 2.0, 4.0, 6.0], 3, 2, true, FOUR);
        assert_eq!(plain.codes, transposed.codes);
        assert_eq!((plain.codes.len(), plain.scales.len()), (4, 2));
    }
}
