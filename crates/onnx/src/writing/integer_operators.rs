//! The integer operators of the QOperator layout and the float operators that they stand for: one row each.
//!
//! Source: ONNX, QLinearConv-10, QLinearMatMul-10; ONNX Runtime, ContribOperators.md.

use kvant_container::onnx::NodeProto;

use super::operators::MICROSOFT;
use crate::graph::{domain, is};

/// The order of an integer operator's inputs, relative to the float operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OperatorForm {
    /// Data, weight, output scale, bias in int32; QLinearConv.
    Conv,
    /// The same without a bias; QLinearMatMul.
    MatMul,
    /// The bias before the output's scale; QGemm.
    Gemm,
    /// Two operands and the output's scale.
    Pair,
    /// One operand and the output's scale.
    One,
    /// The output's scale and all operands.
    Many,
    /// The operator itself, from this opset on: codes move, and input and output have the same scale.
    Moves(i64),
}

/// A float operator and what computes the same with codes.
#[derive(Debug)]
pub struct OperatorRow {
    /// The float operator of the standard domain.
    pub op_type: &'static str,
    /// The integer operator.
    pub integer: &'static str,
    /// The domain of the integer operator.
    pub domain: &'static str,
    /// Its inputs.
    pub form: OperatorForm,
}

const fn row(op_type: &'static str, integer: &'static str, domain: &'static str, form: OperatorForm) -> OperatorRow {
    OperatorRow { op_type, integer, domain, form }
}

const fn moves(op_type: &'static str, from: i64) -> OperatorRow {
    row(op_type, op_type, "", OperatorForm::Moves(from))
}

const ROWS: &[OperatorRow] = &[
    row("Conv", "QLinearConv", "", OperatorForm::Conv),
    row("MatMul", "QLinearMatMul", "", OperatorForm::MatMul),
    row("Gemm", "QGemm", MICROSOFT, OperatorForm::Gemm),
    row("Add", "QLinearAdd", MICROSOFT, OperatorForm::Pair),
    row("Mul", "QLinearMul", MICROSOFT, OperatorForm::Pair),
    row("Sigmoid", "QLinearSigmoid", MICROSOFT, OperatorForm::One),
    row("LeakyRelu", "QLinearLeakyRelu", MICROSOFT, OperatorForm::One),
    row("GlobalAveragePool", "QLinearGlobalAveragePool", MICROSOFT, OperatorForm::One),
    row("AveragePool", "QLinearAveragePool", MICROSOFT, OperatorForm::One),
    row("Softmax", "QLinearSoftmax", MICROSOFT, OperatorForm::One),
    row("Concat", "QLinearConcat", MICROSOFT, OperatorForm::Many),
    moves("DepthToSpace", 10),
    moves("Expand", 10),
    moves("Flatten", 10),
    moves("Gather", 10),
    moves("MaxPool", 12),
    moves("Reshape", 10),
    moves("Resize", 11),
    moves("Slice", 10),
    moves("SpaceToDepth", 10),
    moves("Split", 10),
    moves("Squeeze", 10),
    moves("Tile", 10),
    moves("Transpose", 10),
    moves("Unsqueeze", 10),
];

/// The row of a float operator.
pub fn of_float(node: &NodeProto) -> Option<&'static OperatorRow> {
    ROWS.iter().find(|row| is(node, row.op_type))
}

/// The row of an integer operator, or of one that moves codes.
pub fn of_integer(node: &NodeProto) -> Option<&'static OperatorRow> {
    ROWS.iter().find(|row| node.op_type() == row.integer && domain(node) == row.domain)
}

/// Positions of the inputs that state a tensor of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodesAt {
    /// The codes.
    pub codes: usize,
    /// Their scale.
    pub scale: usize,
    /// Their zero point.
    pub zero_point: usize,
}

/// Positions of the inputs of an integer operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IntegerInputs {
    /// The operands, in the order of the float operator's inputs.
    pub operands: Vec<CodesAt>,
    /// The scale of the output.
    pub scale: usize,
    /// The zero point of the output.
    pub zero_point: usize,
    /// The int32 codes of the bias.
    pub bias: Option<usize>,
}

impl OperatorRow {
    /// The positions in a node of so many inputs. `None` for an operator that moves codes: all that it states is codes.
    pub fn inputs(&self, count: usize) -> Option<IntegerInputs> {
        let operand = |first: usize| CodesAt { codes: first, scale: first + 1, zero_point: first + 2 };
        let (operands, scale, bias) = match self.form {
            OperatorForm::Conv => (vec![0, 3], 6, Some(8)),
            OperatorForm::MatMul | OperatorForm::Pair => (vec![0, 3], 6, None),
            OperatorForm::Gemm => (vec![0, 3], 7, Some(6)),
            OperatorForm::One => (vec![0], 3, None),
            OperatorForm::Many => ((2..count).step_by(3).collect(), 0, None),
            OperatorForm::Moves(_) => return None,
        };
        let operands = operands.into_iter().map(operand).collect();
        Some(IntegerInputs { operands, scale, zero_point: scale + 1, bias })
    }

    /// Whether it only moves codes.
    pub fn is_move(&self) -> bool {
        matches!(self.form, OperatorForm::Moves(_))
    }
}

/// Operators beside those whose names begin with `QLinear` or `QOrdered` that compute with codes.
const OTHERS: &[&str] = &[
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulBnb4",
    "MatMulFpQ4",
    "MatMulInteger",
    "MatMulInteger16",
    "MatMulIntegerToFloat",
    "QAttention",
    "QEmbedLayerNormalization",
    "QGemm",
    "QMoE",
    "QuantizeBFP",
    "DequantizeBFP",
];

/// Returns whether a node computes with codes.
pub fn computes_with_codes(node: &NodeProto) -> bool {
    let operator = node.op_type();
    let is_known = OTHERS.contains(&operator) || operator.starts_with("QLinear") || operator.starts_with("QOrdered");
    is_known && ["", MICROSOFT].contains(&domain(node))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    #[test]
    fn every_operator_has_one_row_and_every_input_one_meaning() {
        for row in ROWS {
            assert_eq!(of_float(&node(row.op_type, "", &[], &[])).unwrap().integer, row.integer);
            let Some(inputs) = row.inputs(8) else { continue };
            let operands = inputs.operands.iter().flat_map(|at| [at.codes, at.scale, at.zero_point]);
            let mut positions: Vec<usize> =
                operands.chain([inputs.scale, inputs.zero_point]).chain(inputs.bias).collect();
            positions.sort_unstable();
            assert_eq!(positions, (0..positions.len()).collect::<Vec<_>>(), "{}", row.integer);
        }
    }
}
