//! `com.microsoft.MatMulNBits`: products with a constant whose weights have four or eight bits, in blocks along the reduced axis.
//!
//! The weight of K inputs and N outputs becomes `[N, K / block, bytes]`, the first code of a byte in its low half, K padded with
//! zeros; scales `[N, K / block]`. Symmetric: the value m with the largest magnitude of a block gets the lowest code,
//! `scale = -m / 2^(bits - 1)`, and codes are stored with `2^(bits - 1)` added. Else zero points, packed like the codes, and
//! `scale = (max - min) / (2^bits - 1)` with zero in the range.
//! Source: ONNX Runtime, ContribOperators.md.

use std::collections::BTreeSet;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, Spill, keep, tensor};
use kvant_numeric::pack::packed_bits;
use rayon::prelude::*;

use super::block_placement::blocks_of;
use super::operators::MICROSOFT;
use super::tensor_names::TensorNames;
use crate::algorithm_settings::Algorithm;
use crate::block_map::BlockMap;
use crate::calibration_method::ScaleSearch;
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::{Index, add_opset, bodies_mut, node, set_attribute};
use crate::placement::Placement;
use crate::quantization::{Affine, CodeRange};
use crate::recipe::Recipe;
use crate::solution::{Solution, refuse_not_finite, values};
use kvant_quant::observer::ObserverRef;
use kvant_quant::rounding::Hqq;

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// Bits of a code: 4 or 8.
    pub bits: u8,
    /// Weights that share a scale.
    pub block: usize,
    /// The accuracy level of the kernel; 0 leaves it open.
    pub accuracy: u8,
    /// Whether there are no zero points.
    pub symmetric: bool,
    /// Whether zero points are searched, and lie between codes.
    pub hqq: Option<Hqq>,
    /// Whether scales are searched.
    pub searches: bool,
}

impl Blocks {
    /// As a recipe asks: the type of its weights says the bits.
    pub fn of(recipe: &Recipe, bits: u8, block: usize, accuracy: u8) -> Self {
        let scheme = recipe.weight;
        let bits = scheme.element.integer_bits().map_or(bits, |bits| bits as u8);
        let hqq = recipe.algorithms.iter().find_map(Algorithm::hqq);
        let searches = scheme.method == ObserverRef::SEARCH && hqq.is_none();
        Self { bits, block, accuracy, symmetric: scheme.symmetric, hqq, searches }
    }

    /// Bytes of a weight: codes, scales and zero points.
    pub(super) fn bytes(&self, map: BlockMap) -> u64 {
        let (rows, outputs) = (map.inputs.div_ceil(self.block), map.outputs as u64);
        let packed = |codes: usize| (codes * usize::from(self.bits)).div_ceil(8) as u64;
        let zero_points = match (self.hqq, self.symmetric) {
            (Some(_), _) => rows as u64 * 4,
            (None, true) => 0,
            (None, false) => packed(rows),
        };
        outputs * (rows as u64 * (packed(self.block) + 4) + zero_points)
    }

    /// The type of the codes as algorithms see them.
    pub fn element(&self) -> Element {
        if self.bits == 4 { Element::UInt4 } else { Element::UInt8 }
    }
}

/// Scale and zero point of every block of a weight, those of the first output first. Where scales are searched, the error of each
/// element counts as much as its `importance`, if that is known.
pub(crate) fn block_parameters(
    source: &[f32],
    importance: Option<&[f32]>,
    map: BlockMap,
    blocks: Blocks,
) -> Vec<Affine> {
    let column = |values: &[f32], output: usize| -> Vec<f32> {
        (0..map.inputs).map(|input| values[map.element(output, input)]).collect()
    };
    let of_output = |output: usize| {
        let importance = importance.map(|importance| column(importance, output));
        let importance = importance.as_deref().unwrap_or_default();
        let affine = |(at, block): (usize, &[f32])| {
            let (scale, zero_point) = parameters(block, blocks);
            let plain = Affine { scale, zero_point: i64::from(zero_point) };
            let importance = importance.get(at * map.block..at * map.block + block.len());
            if blocks.searches { searched(block, importance, plain, blocks) } else { plain }
        };
        column(source, output).chunks(map.block).enumerate().map(affine).collect::<Vec<_>>()
    };
    (0..map.outputs).into_par_iter().flat_map_iter(of_output).collect()
}

/// A weight in blocks.
struct Packed {
    codes: Vec<u8>,
    scales: Vec<f32>,
    zero_points: ZeroPoints,
}

/// The codes of zero.
#[derive(Debug, Clone, PartialEq)]
enum ZeroPoints {
    /// The middle code everywhere.
    None,
    /// Packed like the weights' codes.
    Codes(Vec<u8>),
    /// Numbers between codes.
    Floats(Vec<f32>),
}

/// Replaces MatMul and Gemm nodes whose weight is placed.
pub fn write_blocks(
    model: &mut ModelProto,
    blocks: Blocks,
    placement: &Placement,
    solution: &Solution,
    spill: Option<&Spill>,
) -> Result<(), QuantizeError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(()) };
    let names = TensorNames::of(graph);
    let mut nodes = std::mem::take(&mut graph.node);
    let index = Index::new(graph);
    let made = BTreeSet::new();
    let mut writer = NBitsWriter { graph, index, blocks, placement, solution, spill, names, made };
    writer.nodes(&mut nodes)?;
    graph.node = nodes;
    let index = Index::new(graph);
    graph.initializer.retain(|t| index.is_read(t.name()) || index.is_input(t.name()));
    add_opset(model, MICROSOFT, 1);
    Ok(())
}

struct NBitsWriter<'a> {
    /// The main graph without its nodes: the constants, which graphs inside of nodes read too.
    graph: &'a mut GraphProto,
    index: Index,
    blocks: Blocks,
    placement: &'a Placement,
    solution: &'a Solution,
    spill: Option<&'a Spill>,
    names: TensorNames,
    /// The stored weights.
    made: BTreeSet<String>,
}

impl NBitsWriter<'_> {
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

    /// The replacement of a node; `None` if it stays.
    fn replaced(&mut self, old: &NodeProto) -> Result<Option<Vec<NodeProto>>, QuantizeError> {
        let taken = blocks_of(old, self.graph, &self.index, self.placement, self.blocks.block);
        let Some((weight, map)) = taken else { return Ok(None) };
        let Some(source) = self.index.constant(self.graph, weight) else { return Ok(None) };
        let suffix = format!("_Q{}{}", self.blocks.bits, if map.transposed { "_t" } else { "" });
        let stored = self.names.of_tensor(weight, &suffix);
        if self.made.insert(stored.clone()) {
            let source = values(source)?;
            self.store(weight, &stored, &source, map)?;
        }
        Ok(Some(self.replacement(old, &stored, map)))
    }

    fn store(&mut self, weight: &str, stored: &str, source: &[f32], map: BlockMap) -> Result<(), QuantizeError> {
        refuse_not_finite(weight, source)?;
        let packed = match (self.solution.codes.get(weight), self.solution.weights.get(weight)) {
            (Some(codes), Some(parameters)) => pack_chosen(codes, parameters, map, self.blocks),
            _ => pack(source, map, self.blocks),
        };
        let rows = map.inputs.div_ceil(self.blocks.block);
        let bytes = self.blocks.block * usize::from(self.blocks.bits) / 8;
        let codes = keep(self.spill, packed.codes)?;
        let initializers = &mut self.graph.initializer;
        initializers.push(tensor(stored, DataType::UINT8, &[map.outputs, rows, bytes], codes));
        let scales = bytemuck::cast_slice(&packed.scales).to_vec();
        initializers.push(tensor(
            &self.names.of_tensor(stored, "_scales"),
            DataType::FLOAT,
            &[map.outputs * rows],
            scales,
        ));
        let name = self.names.of_tensor(stored, "_zero_points");
        match packed.zero_points {
            ZeroPoints::None => {}
            ZeroPoints::Codes(codes) => initializers.push(tensor(&name, DataType::UINT8, &[codes.len()], codes)),
            ZeroPoints::Floats(floats) => {
                let bytes = bytemuck::cast_slice(&floats).to_vec();
                initializers.push(tensor(&name, DataType::FLOAT, &[map.outputs, rows], bytes));
            }
        }
        Ok(())
    }

    fn replacement(&mut self, old: &NodeProto, stored: &str, map: BlockMap) -> Vec<NodeProto> {
        let blocks = self.blocks;
        let bias = old.input.get(2).filter(|name| !name.is_empty());
        let output = &old.output[0];
        let product = bias.map_or_else(|| output.clone(), |_| self.names.of_tensor(output, "_product"));
        let [scales, zero_points] = ["_scales", "_zero_points"].map(|suffix| self.names.of_tensor(stored, suffix));
        let mut reads = vec![old.input[0].as_str(), stored, &scales];
        if !blocks.symmetric || blocks.hqq.is_some() {
            reads.push(&zero_points);
        }
        // Names of nodes may be empty; those of tensors differ.
        let named = if old.name().is_empty() { &old.output[0] } else { old.name() };
        let name = format!("{named}_Q{}", blocks.bits);
        let mut made = node("MatMulNBits", &name, &reads, &[&product]);
        made.domain = Some(MICROSOFT.to_owned());
        let numbers = [
            ("K", map.inputs as i64),
            ("N", map.outputs as i64),
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
}

/// The nearest codes.
fn pack(source: &[f32], map: BlockMap, blocks: Blocks) -> Packed {
    let column = |output: usize| -> Vec<f32> {
        let padded = map.inputs.next_multiple_of(blocks.block);
        let at = |input: usize| if input < map.inputs { source[map.element(output, input)] } else { 0.0 };
        (0..padded).map(at).collect()
    };
    let columns: Vec<Packed> =
        (0..map.outputs).into_par_iter().map(|output| pack_column(&column(output), blocks)).collect();
    joined_columns(columns)
}

/// Codes that an algorithm chose, in the weight's order, and the parameters of their blocks.
fn pack_chosen(codes: &[i32], parameters: &[Affine], map: BlockMap, blocks: Blocks) -> Packed {
    let rows = map.inputs.div_ceil(map.block);
    let column = |output: usize| {
        let own = &parameters[output * rows..(output + 1) * rows];
        let code = |input: usize| match input < map.inputs {
            true => codes[map.element(output, input)] as u8,
            false => own[input / map.block].zero_point as u8,
        };
        let codes: Vec<u8> = (0..rows * map.block).map(code).collect();
        let zero_points: Vec<u8> = own.iter().map(|affine| affine.zero_point as u8).collect();
        Packed {
            codes: packed_bits(&codes, blocks.bits.into()),
            scales: own.iter().map(|affine| affine.scale).collect(),
            zero_points: match blocks.symmetric {
                true => ZeroPoints::None,
                false => ZeroPoints::Codes(packed_bits(&zero_points, blocks.bits.into())),
            },
        }
    };
    joined_columns((0..map.outputs).into_par_iter().map(column).collect())
}

fn joined_columns(columns: Vec<Packed>) -> Packed {
    let mut all = Packed { codes: Vec::new(), scales: Vec::new(), zero_points: ZeroPoints::None };
    for column in columns {
        all.codes.extend(column.codes);
        all.scales.extend(column.scales);
        match (&mut all.zero_points, column.zero_points) {
            (ZeroPoints::Codes(codes), ZeroPoints::Codes(more)) => codes.extend(more),
            (ZeroPoints::Floats(floats), ZeroPoints::Floats(more)) => floats.extend(more),
            (none, more) => *none = more,
        }
    }
    all
}

fn pack_column(values: &[f32], blocks: Blocks) -> Packed {
    let (mut codes, mut scales, mut zero_points, mut floats) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for block in values.chunks(blocks.block) {
        let (scale, zero_point) = parameters(block, blocks);
        let top = f32::from((1u16 << blocks.bits) - 1);
        let (scale, zero) = match blocks.hqq {
            Some(settings) => settings.search(block, top),
            None => (scale, f32::from(zero_point)),
        };
        let code = |&v: &f32| (v / scale + zero).round_ties_even().clamp(0.0, top) as u8;
        codes.extend(packed_bits(&block.iter().map(code).collect::<Vec<u8>>(), blocks.bits.into()));
        scales.push(scale);
        zero_points.push(zero_point as u8);
        floats.push(zero);
    }
    let zero_points = match (blocks.hqq, blocks.symmetric) {
        (Some(_), _) => ZeroPoints::Floats(floats),
        (None, true) => ZeroPoints::None,
        (None, false) => ZeroPoints::Codes(packed_bits(&zero_points, blocks.bits.into())),
    };
    Packed { codes, scales, zero_points }
}

/// From the scale of a block's range to the one with the least squared error, which may be negative where codes reach further on one
/// side.
fn searched(block: &[f32], importance: Option<&[f32]>, plain: Affine, blocks: Blocks) -> Affine {
    const STEPS: u16 = 24;
    let top = (1i64 << blocks.bits) - 1;
    let least = if blocks.bits == 4 { 0.6 } else { 0.9 };
    let shares = (0..=STEPS).map(|step| least + (1.05 - least) * f32::from(step) / f32::from(STEPS));
    let signs: &[f32] = if blocks.symmetric { &[1.0, -1.0] } else { &[1.0] };
    let moved = shares.flat_map(|share| signs.iter().map(move |sign| share * sign));
    let candidates = moved.map(|share| Affine { scale: plain.scale * share, ..plain });
    let search = ScaleSearch { values: block, importance, codes: CodeRange { min: 0, max: top } };
    search.best(std::iter::once(plain).chain(candidates), !blocks.symmetric).unwrap_or(plain)
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
    use crate::algorithm::Grid;

    const FOUR: Blocks = Blocks { bits: 4, block: 4, accuracy: 0, symmetric: true, hqq: None, searches: false };

    #[test]
    fn largest_magnitude_is_exact_and_nibbles_are_packed_low_first() {
        let made = pack_column(&[1.0, -0.5, 0.25, 0.0], FOUR);
        assert_eq!(made.scales, [-0.125]);
        assert_eq!(made.codes, [0xC0, 0x86]);
    }

    #[test]
    fn asymmetric_blocks_have_packed_zero_points() {
        let blocks = Blocks { symmetric: false, ..FOUR };
        let made = pack_column(&[0.0, 15.0, 5.0, 1.0, -1.0, 14.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], blocks);
        assert_eq!(made.scales, [1.0, 1.0, 1.0]);
        assert_eq!((made.codes[0], made.zero_points), (0xF0, ZeroPoints::Codes(vec![0x10, 0x00])));
    }

    #[test]
    fn columns_are_padded_and_both_orientations_agree() {
        let map = BlockMap { inputs: 3, outputs: 2, transposed: false, block: 4 };
        let plain = pack(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], map, FOUR);
        let transposed = pack(&[1.0, 3.0, 5.0, 2.0, 4.0, 6.0], BlockMap { transposed: true, ..map }, FOUR);
        assert_eq!(plain.codes, transposed.codes);
        assert_eq!((plain.codes.len(), plain.scales.len()), (4, 2));
    }

    #[test]
    fn chosen_codes_are_stored_like_nearest_codes() {
        for (symmetric, transposed) in [(true, false), (false, true)] {
            let blocks = Blocks { symmetric, ..FOUR };
            let map = BlockMap { inputs: 6, outputs: 2, transposed, block: 4 };
            // No value halfway between codes, where it matters whether zero points are added before.
            let source: Vec<f32> = (0..12).map(|i| ((i * 7) % 5) as f32 * 0.93 - 1.71 + i as f32 * 0.013).collect();
            let parameters = block_parameters(&source, None, map, blocks);
            let element = Element::UInt4;
            let grid = Grid::in_blocks(element, element.full_range().unwrap(), map, parameters.clone());
            let (chosen, nearest) =
                (pack_chosen(&grid.nearest(&source), &parameters, map, blocks), pack(&source, map, blocks));
            assert_eq!((chosen.codes, chosen.scales), (nearest.codes, nearest.scales));
            assert_eq!(chosen.zero_points, nearest.zero_points);
        }
    }
}
