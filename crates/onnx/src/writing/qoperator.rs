//! Integer operators instead of float ones between Q/DQ pairs: `DequantizeLinear -> op -> QuantizeLinear` becomes one node.
//!
//! The pairs are written first, so that both layouts have the same scales and codes. [`integer_operators`](super::integer_operators) says what becomes of an operator.
//! Fused are 8-bit types in the combinations that ONNX Runtime's kernels have: outputs of the data's type, int8 weights with
//! either, uint8 weights with uint8 data, operands of arithmetic all of one type. Everything else keeps its pairs.

use kvant_container::onnx::{
    DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type, element_count, tensor,
};

use super::integer_operators::{OperatorForm, OperatorRow, of_float};
use super::operators::MICROSOFT;
use super::tensor_names::TensorNames;
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::{
    Edit, Index, STANDARD_DOMAIN, add_opset, attribute, float_attribute, int_attribute, is, node, opset,
    positional_input, set_attribute, string_attribute, take_attribute,
};
use crate::pass::{Context, Pass};
use crate::placement::clip_bounds;
use crate::quantization::CodeRange;
use crate::quantization::{Affine, pack, quantize_value};
use crate::solution::values;

/// Replaces what can be replaced. Returns the number of integer operators.
pub fn fuse(model: &mut ModelProto) -> Result<usize, QuantizeError> {
    let version = opset(model, STANDARD_DOMAIN).unwrap_or(1);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let mut edit = Edit::default();
    let mut names = TensorNames::of(graph);
    let fuser = Fuser { graph, index: Index::new(graph), opset: version };
    for (position, old) in graph.node.iter().enumerate() {
        let Some(row) = of_float(old) else { continue };
        let Some(fused) = fuser.fused(old, row, &mut names)? else { continue };
        fused.gone.iter().for_each(|&gone| edit.remove(gone));
        fused.constants.into_iter().for_each(|constant| edit.add(constant));
        edit.replace(position, fused.nodes);
    }
    let written = edit.apply(graph);
    if graph.node.iter().any(|node| node.domain() == MICROSOFT) {
        add_opset(model, MICROSOFT, 1);
    }
    Pass::named("dead-nodes")?.run(model, &Context::default())?;
    Ok(written)
}

/// A tensor as codes, by the names of its scale and zero point.
struct TensorCodes<'a> {
    codes: &'a str,
    scale: &'a str,
    zero_point: &'a str,
    element: DataType,
}

impl TensorCodes<'_> {
    fn names(&self) -> [&str; 3] {
        [self.codes, self.scale, self.zero_point]
    }
}

/// What is made of an output: its codes, the nodes that made them, and the codes' bounds where Relu or Clip stood between.
struct Output<'a> {
    codes: TensorCodes<'a>,
    gone: Vec<usize>,
    clamp: Option<CodeRange>,
}

/// New nodes in place of an old one and of others that go.
struct Fused {
    nodes: Vec<NodeProto>,
    gone: Vec<usize>,
    constants: Vec<TensorProto>,
}

struct Fuser<'a> {
    graph: &'a GraphProto,
    index: Index,
    opset: i64,
}

impl<'a> Fuser<'a> {
    fn fused(
        &self,
        old: &'a NodeProto,
        row: &OperatorRow,
        names: &mut TensorNames,
    ) -> Result<Option<Fused>, QuantizeError> {
        if let OperatorForm::Moves(from) = row.form {
            return Ok(if self.opset >= from { self.moved(old) } else { None });
        }
        let Some(output) = self.output(&old.output[0]) else { return Ok(None) };
        let Some(inputs) = self.inputs(old, row.form, &output.codes)? else { return Ok(None) };
        let mut made = NodeProto { domain: Some(row.domain.to_owned()), ..old.clone() };
        made.op_type = Some(row.integer.to_owned());
        made.input = inputs;
        made.output = vec![output.codes.codes.to_owned()];
        if !self.spell(&mut made, old) {
            return Ok(None);
        }
        let (clip, constants) = clamped(&mut made, &output, names);
        Ok(Some(Fused { nodes: [made].into_iter().chain(clip).collect(), gone: output.gone, constants }))
    }

    /// Attributes as the integer operator has them; false where it has no such thing.
    fn spell(&self, made: &mut NodeProto, old: &NodeProto) -> bool {
        match old.op_type() {
            "Gemm" => take_attribute(made, "beta").is_none_or(|beta| beta.f == Some(1.0)),
            "AveragePool" => attribute(old, "dilations").is_none(),
            "Softmax" => {
                let default = if self.opset < 13 { 1 } else { -1 };
                set_attribute(made, "axis", int_attribute(old, "axis").unwrap_or(default));
                set_attribute(made, "opset", self.opset);
                true
            }
            _ => true,
        }
    }

    /// The codes that a tensor is dequantized from.
    fn read(&self, name: &str) -> Option<TensorCodes<'a>> {
        let dequantize = &self.graph.node[self.index.producer(name)?];
        if is(dequantize, "DequantizeLinear") { self.codes(dequantize, &dequantize.input[0]) } else { None }
    }

    fn codes(&self, pair: &'a NodeProto, codes: &'a str) -> Option<TensorCodes<'a>> {
        let [_, scale, zero_point] = &pair.input[..] else { return None };
        let is_float = self.index.constant(self.graph, scale).is_some_and(|scale| data_type(scale) == DataType::FLOAT);
        if !is_float || int_attribute(pair, "block_size").unwrap_or(0) != 0 {
            return None;
        }
        let element = data_type(self.index.constant(self.graph, zero_point)?);
        Some(TensorCodes { codes, scale, zero_point, element })
    }

    /// Codes of 8 bits with one scale.
    fn plain(&self, name: &str) -> Option<TensorCodes<'a>> {
        self.read(name).filter(|codes| is_byte(codes.element) && self.is_one(codes.scale))
    }

    fn is_one(&self, scale: &str) -> bool {
        self.index.constant(self.graph, scale).and_then(|t| element_count(t).ok()) == Some(1)
    }

    fn output(&self, name: &str) -> Option<Output<'a>> {
        let position = self.index.only_consumer(name)?;
        let reader = &self.graph.node[position];
        if is(reader, "QuantizeLinear") {
            let codes = self.codes(reader, &reader.output[0])?;
            let plain = is_byte(codes.element) && self.is_one(codes.scale);
            return plain.then(|| Output { codes, gone: vec![position], clamp: None });
        }
        // Integers can be clipped from this opset on.
        let clamps = (is(reader, "Relu") || is(reader, "Clip")) && self.opset >= 12;
        let behind = if clamps { self.index.only_consumer(&reader.output[0])? } else { return None };
        let quantize = Some(&self.graph.node[behind]).filter(|node| is(node, "QuantizeLinear"))?;
        let codes = self.codes(quantize, &quantize.output[0])?;
        let plain = is_byte(codes.element) && self.is_one(codes.scale);
        let clamp = Some(self.clamp(reader, &codes)?);
        plain.then(|| Output { codes, gone: vec![position, behind], clamp })
    }

    /// The codes of the bounds of a Relu or Clip: clamping rounded values is rounding clamped ones.
    fn clamp(&self, node: &NodeProto, codes: &TensorCodes) -> Option<CodeRange> {
        let (low, high) = match node.op_type() {
            "Relu" => (0.0, f32::MAX),
            _ => clip_bounds(self.graph, &self.index, node)?,
        };
        let affine =
            Affine { scale: self.numbers(codes.scale)?.first().copied()?, zero_point: self.zero_point(codes)? };
        let range = element(codes.element).full_range()?;
        let code = |value: f32| quantize_value(value, affine, range);
        Some(CodeRange { min: code(low), max: code(high) })
    }

    fn numbers(&self, name: &str) -> Option<Vec<f32>> {
        values(self.index.constant(self.graph, name)?).ok()
    }

    fn zero_points(&self, name: &str) -> Option<Vec<u8>> {
        let tensor = self.index.constant(self.graph, name)?;
        kvant_container::onnx::tensor_bytes(tensor).ok().map(|bytes| bytes.into_owned())
    }

    fn zero_point(&self, codes: &TensorCodes) -> Option<i64> {
        let byte = self.zero_points(codes.zero_point)?.first().copied()?;
        Some(if codes.element == DataType::INT8 { i64::from(byte as i8) } else { i64::from(byte) })
    }

    fn inputs(
        &self,
        old: &NodeProto,
        form: OperatorForm,
        output: &TensorCodes,
    ) -> Result<Option<Vec<String>>, QuantizeError> {
        let target = [output.scale, output.zero_point];
        let made = match form {
            OperatorForm::One => {
                self.same(&old.input[0], output).map(|x| x.names().into_iter().chain(target).map(owned).collect())
            }
            OperatorForm::Pair | OperatorForm::Many => {
                let operands: Option<Vec<TensorCodes>> = old.input.iter().map(|name| self.same(name, output)).collect();
                operands.map(|operands| {
                    let operands = operands.iter().flat_map(TensorCodes::names).map(owned);
                    let target = target.map(owned).into_iter();
                    if form == OperatorForm::Many {
                        target.chain(operands).collect()
                    } else {
                        operands.chain(target).collect()
                    }
                })
            }
            OperatorForm::Conv | OperatorForm::MatMul | OperatorForm::Gemm => self.product(old, form, output),
            OperatorForm::Moves(_) => None,
        };
        Ok(made)
    }

    /// The codes of an operand that has the output's type.
    fn same(&self, name: &str, output: &TensorCodes) -> Option<TensorCodes<'a>> {
        self.plain(name).filter(|codes| codes.element == output.element)
    }

    fn product(&self, old: &NodeProto, form: OperatorForm, output: &TensorCodes) -> Option<Vec<String>> {
        let data = self.same(&old.input[0], output)?;
        let weight = self.read(&old.input[1]).filter(|w| is_byte(w.element))?;
        let known = weight.element == data.element || data.element == DataType::UINT8;
        let constant = self.index.constant(self.graph, weight.codes).is_some();
        let one_zero_point = self.zero_points(weight.zero_point)?.windows(2).all(|pair| pair[0] == pair[1]);
        let fits_axis = self.is_one(weight.scale) || self.has_output_axis(old, weight.codes);
        if !known
            || !fits_axis
            || !one_zero_point
            || !constant && (form != OperatorForm::MatMul || weight.element != data.element)
        {
            return None;
        }
        let bias = match positional_input(old, 2) {
            Some(bias) => Some(self.bias(old, bias, &data, &weight)?),
            None => None,
        };
        let target = [output.scale, output.zero_point];
        let operands = data.names().into_iter().chain(weight.names());
        let inputs: Vec<&str> = match form {
            OperatorForm::Gemm => operands.chain([bias.unwrap_or("")]).chain(target).collect(),
            _ => operands.chain(target).chain(bias).collect(),
        };
        Some(inputs.into_iter().map(owned).collect())
    }

    /// Returns whether the scales of a weight's codes are those of the outputs of its product.
    fn has_output_axis(&self, product: &NodeProto, codes: &str) -> bool {
        let pair = self.index.producer(&product.input[1]).map(|at| &self.graph.node[at]);
        let Some(rank) = self.index.constant_shape(self.graph, codes).map(|shape| shape.len() as i64) else {
            return false;
        };
        let axis = pair.and_then(|pair| int_attribute(pair, "axis")).unwrap_or(1);
        let transposed = int_attribute(product, "transB").unwrap_or(0) != 0;
        let expected = if is(product, "Conv") || transposed { 0 } else { rank - 1 };
        axis.rem_euclid(rank.max(1)) == expected
    }

    /// The int32 codes of a bias whose scale is that of the product.
    fn bias(&self, old: &NodeProto, bias: &str, data: &TensorCodes, weight: &TensorCodes) -> Option<&'a str> {
        let codes = self.read(bias).filter(|codes| codes.element == DataType::INT32)?;
        let alpha = if is(old, "Gemm") { float_attribute(old, "alpha").unwrap_or(1.0) } else { 1.0 };
        let input = self.numbers(data.scale)?.first().copied()? * alpha;
        let (weights, scales) = (self.numbers(weight.scale)?, self.numbers(codes.scale)?);
        let fits = |(&w, &s): (&f32, &f32)| (input * w - s).abs() <= 1e-5 * s.abs();
        let same = weights.len() == scales.len() && weights.iter().zip(&scales).all(fits);
        same.then_some(codes.codes)
    }

    /// The node on codes, where all that it gives is quantized as what it gets.
    fn moved(&self, old: &'a NodeProto) -> Option<Fused> {
        let data = self.plain(&old.input[0])?;
        let nearest = !is(old, "Resize") || string_attribute(old, "mode").unwrap_or("nearest") == "nearest";
        let named = old.output.iter().filter(|name| !name.is_empty());
        let outputs: Vec<Output> = named.map(|name| self.output(name)).collect::<Option<_>>()?;
        let indices = is(old, "MaxPool") && old.output.len() > 1;
        let alike = |output: &Output| output.clamp.is_none() && self.alike(&data, &output.codes);
        if !nearest || indices || outputs.len() != old.output.len() || !outputs.iter().all(alike) {
            return None;
        }
        let mut made = old.clone();
        made.input[0] = data.codes.to_owned();
        made.output = outputs.iter().map(|output| output.codes.codes.to_owned()).collect();
        let gone = outputs.into_iter().flat_map(|output| output.gone).collect();
        Some(Fused { nodes: vec![made], gone, constants: Vec::new() })
    }

    fn alike(&self, a: &TensorCodes, b: &TensorCodes) -> bool {
        let scale = a.scale == b.scale || self.numbers(a.scale) == self.numbers(b.scale);
        a.element == b.element && scale && self.zero_point(a) == self.zero_point(b)
    }
}

/// Puts a Clip on integers behind a node whose output is clamped.
fn clamped(made: &mut NodeProto, output: &Output, names: &mut TensorNames) -> (Option<NodeProto>, Vec<TensorProto>) {
    let Some(clamp) = output.clamp else { return (None, Vec::new()) };
    let target = output.codes.codes;
    let [between, min, max] = ["_unclamped", "_min", "_max"].map(|suffix| names.of_tensor(target, suffix));
    made.output = vec![between.clone()];
    let bound =
        |name: &str, code: i64| tensor(name, output.codes.element, &[], pack(&[code], element(output.codes.element)));
    let constants = vec![bound(&min, clamp.min), bound(&max, clamp.max)];
    (Some(node("Clip", &format!("{target}_Clip"), &[&between, &min, &max], &[target])), constants)
}

fn owned(name: &str) -> String {
    name.to_owned()
}

fn is_byte(element: DataType) -> bool {
    matches!(element, DataType::INT8 | DataType::UINT8)
}

fn element(data_type: DataType) -> Element {
    if data_type == DataType::INT8 { Element::Int8 } else { Element::UInt8 }
}

#[cfg(test)]
mod tests;
