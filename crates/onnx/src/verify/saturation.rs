//! Products of 8-bit data with int8 weights that ONNX Runtime's kernels may cut to 16 bits. On x86 processors without VNNI two
//! products are added in 16 bits (`vpmaddubsw`): 2 x 255 x 127 does not fit, 2 x 255 x 64 does. The data are unsigned there:
//! int8 data are moved up by 128, so that they saturate as uint8 data do.
//! Source: ONNX Runtime, Quantize ONNX models, "When and why do I need to try U8U8?"; `session.x64quantprecision` of its
//! session options. That int8 data saturate was measured: a perceptron with evenly distributed weights gives 36 dB in float and
//! 15 dB by these kernels.

use std::collections::BTreeMap;
use std::fmt;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type, tensor_bytes};
use kvant_quant::finding::Findings;
use serde::Serialize;

use crate::graph::{Index, int_attribute, positional_input};

/// The largest magnitude of a weight's code with which no sum of two products leaves 16 bits.
const LARGEST: u8 = 64;

macro_rules! ways {
    () => {
        "quantize with ‹reduce-range› or ‹weight› uint8, or set onnxruntime's session option session.x64quantprecision to 1 \
         (which fails on weights that several nodes share)"
    };
}

/// The remedy.
pub const SATURATION_WAYS: &str = ways!();

/// What helps, where it is not known whether it is needed.
pub const SATURATION_HINT: &str = concat!("where such processors are to run it, ", ways!());

/// Operators that multiply, with the positions of data, their zero point, weight; those of float operators have none.
const PRODUCTS: &[(&str, usize, Option<usize>, usize)] = &[
    ("Conv", 0, None, 1),
    ("MatMul", 0, None, 1),
    ("Gemm", 0, None, 1),
    ("QLinearConv", 0, Some(2), 3),
    ("QLinearMatMul", 0, Some(2), 3),
    ("QGemm", 0, Some(2), 3),
    ("ConvInteger", 0, Some(2), 1),
    ("MatMulInteger", 0, Some(2), 1),
];

/// Products of a graph that can saturate.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Saturation {
    /// The weights that are multiplied.
    pub products: usize,
    /// The weight with most codes beyond half of the range.
    pub weight: String,
    /// The share of these codes: sums of two of them are cut where the data are large.
    pub share: f64,
}

impl Saturation {
    /// Of a quantized graph; `None` where no product can saturate.
    pub fn of(graph: &GraphProto) -> Option<Self> {
        let products = Products { graph, index: Index::new(graph) };
        let weights: BTreeMap<&str, f64> = graph.node.iter().filter_map(|node| products.saturating(node)).collect();
        let (weight, share) = weights.iter().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
        Some(Self { products: weights.len(), weight: (*weight).to_owned(), share: *share })
    }
}

impl fmt::Display for Saturation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { products, share, .. } = self;
        let share = share * 100.0;
        let layers = if *products == 1 { "1 layer".to_owned() } else { format!("{products} layers") };
        write!(
            f,
            "the sums of {layers} with 8-bit data and int8 weights can saturate in onnxruntime on x86 processors without VNNI; \
             up to {share:.1} % of a weight's codes are beyond half of their range"
        )
    }
}

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    if let Some(saturation) = Saturation::of(&model.graph) {
        findings.note(saturation.weight.clone(), saturation.to_string(), SATURATION_HINT);
    }
}

struct Products<'g> {
    graph: &'g GraphProto,
    index: Index,
}

impl<'g> Products<'g> {
    /// The weight of a product that can saturate, and the share of its codes that are wide.
    fn saturating(&self, node: &'g NodeProto) -> Option<(&'g str, f64)> {
        let (_, data, zero_point, weight) = PRODUCTS.iter().find(|(op, ..)| node.op_type() == *op)?;
        let data = match zero_point {
            Some(at) => self.element(positional_input(node, *at)?),
            None => self.dequantized(positional_input(node, *data)?)?.1,
        };
        let name = positional_input(node, *weight)?;
        let codes = if zero_point.is_some() { name } else { self.dequantized(name)?.0 };
        let weight = self.index.constant(self.graph, codes)?;
        let share = Some(wide_share(weight)).filter(|_| matches!(data, DataType::UINT8 | DataType::INT8));
        share.filter(|share| *share > 0.0).map(|share| (codes, share))
    }

    /// The codes that a DequantizeLinear makes a tensor of, and their type.
    fn dequantized(&self, name: &str) -> Option<(&'g str, DataType)> {
        let node = &self.graph.node[self.index.producer(name)?];
        let codes = positional_input(node, 0).filter(|_| node.op_type() == "DequantizeLinear")?;
        // A zero point of 0 may be left out.
        let element =
            positional_input(node, 2).map_or_else(|| self.element(codes), |zero_point| self.element(zero_point));
        Some((codes, element))
    }

    /// The type of a constant, or of codes that are made.
    fn element(&self, name: &str) -> DataType {
        if let Some(constant) = self.index.constant(self.graph, name) {
            return data_type(constant);
        }
        let maker = self.index.producer(name).map(|at| &self.graph.node[at]);
        match maker.map(|node| (node, node.op_type())) {
            Some((_, "DynamicQuantizeLinear")) => DataType::UINT8,
            Some((node, "QuantizeLinear")) => match positional_input(node, 2) {
                Some(zero_point) => self.index.constant(self.graph, zero_point).map_or(DataType::UNDEFINED, data_type),
                None => match int_attribute(node, "output_dtype") {
                    None | Some(0) => DataType::UINT8,
                    Some(number) => [DataType::UINT8, DataType::INT8]
                        .into_iter()
                        .find(|known| *known as i64 == number)
                        .unwrap_or(DataType::UNDEFINED),
                },
            },
            _ => DataType::UNDEFINED,
        }
    }
}

/// The share of an int8 weight's codes that are beyond half of their range; 0 of other types.
fn wide_share(weight: &TensorProto) -> f64 {
    let Ok(bytes) = tensor_bytes(weight) else { return 0.0 };
    if data_type(weight) != DataType::INT8 || bytes.is_empty() {
        return 0.0;
    }
    let wide = bytes.iter().filter(|byte| byte.cast_signed().unsigned_abs() > LARGEST);
    wide.count() as f64 / bytes.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::test_models::{floats, model};
    use kvant_container::onnx::tensor;

    /// A quantized product; `codes` are the weight's.
    fn quantized(data: DataType, weight: DataType, codes: &[u8]) -> ModelProto {
        let nodes = vec![
            node("QuantizeLinear", "q", &["x", "s", "z"], &["xq"]),
            node("DequantizeLinear", "d", &["xq", "s", "z"], &["xf"]),
            node("DequantizeLinear", "wd", &["w", "s", "wz"], &["wf"]),
            node("MatMul", "m", &["xf", "wf"], &["y"]),
        ];
        let constants = vec![
            floats("s", &[], &[0.5]),
            tensor("z", data, &[], vec![0u8]),
            tensor("wz", weight, &[], vec![0u8]),
            tensor("w", weight, &[1, codes.len()], codes.to_vec()),
        ];
        model(17, nodes, constants, &["x"], &["y"])
    }

    fn notes(model: &ModelProto) -> usize {
        let mut findings = Findings::of("saturation");
        run(model, &mut findings);
        findings.into_vec().len()
    }

    #[test]
    fn saturating_int8_weights_beside_uint8_are_noted() {
        use DataType::{INT8, INT16, UINT8};
        assert_eq!(notes(&quantized(UINT8, INT8, &[1, 200])), 0);
        assert_eq!(notes(&quantized(UINT8, INT8, &[1, 100])), 1);
        assert_eq!(notes(&quantized(UINT8, INT8, &[0x80])), 1);
        assert_eq!(notes(&quantized(UINT8, UINT8, &[200])), 0);
        assert_eq!(notes(&quantized(INT8, INT8, &[100])), 1);
        assert_eq!(notes(&quantized(INT16, INT8, &[100])), 0);
        let found = Saturation::of(&quantized(INT8, INT8, &[100, 64, 10, 192]).graph).unwrap();
        assert_eq!((found.products, found.weight.as_str(), found.share), (1, "w", 0.25));
    }

    #[test]
    fn saturation_check_accepts_missing_zero_points() {
        let mut model = quantized(DataType::UINT8, DataType::INT8, &[100]);
        let graph = model.graph.as_mut().unwrap();
        graph.node.iter_mut().for_each(|node| node.input.truncate(2));
        assert_eq!(notes(&model), 1);
        set_attribute(&mut model.graph.as_mut().unwrap().node[0], "output_dtype", DataType::INT16 as i64);
        assert_eq!(notes(&model), 0);
    }

    #[test]
    fn saturation_check_covers_integer_operators() {
        let nodes = vec![
            node("DynamicQuantizeLinear", "q", &["x"], &["xq", "xs", "xz"]),
            node("MatMulInteger", "m", &["xq", "w", "xz", "wz"], &["y"]),
        ];
        let constants = |code: u8| {
            vec![tensor("w", DataType::INT8, &[1, 1], vec![code]), tensor("wz", DataType::INT8, &[], vec![0u8])]
        };
        let made = |code| model(17, nodes.clone(), constants(code), &["x"], &["y"]);
        assert_eq!((notes(&made(127)), notes(&made(64))), (1, 0));
    }
}
