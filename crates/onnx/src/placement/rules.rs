//! The table of operators: which of their tensors are quantized. One row per operator.

/// What is quantized about an operator. Only float tensors ever are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Every input and output.
    All,
    /// The first input and all outputs; what else it reads are settings.
    Data,
    /// Data, a weight that may have a scale per channel, a bias, and the output.
    Product,
    /// Data, and a gain and an offset that are quantized like weights, and the first output.
    Normalization,
    /// The output has the scale of the first input: values only move.
    SameScale,
    /// Relu and Clip: like [`Rule::Data`], and they can vanish into the range of their output's codes.
    Clamp,
    /// Two alternatives and the output.
    Choice,
}

/// Rules of one operator of the standard domain.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The operator.
    pub op_type: &'static str,
    /// Its rule in the standard set; none: left in float.
    pub standard: Option<Rule>,
    /// Its rule in the extended set.
    pub extended: Option<Rule>,
}

const fn both(op_type: &'static str, rule: Rule) -> Row {
    Row { op_type, standard: Some(rule), extended: Some(rule) }
}

const fn extended(op_type: &'static str, rule: Rule) -> Row {
    Row { op_type, standard: None, extended: Some(rule) }
}

/// Every operator that is ever quantized.
pub const RULES: &[Row] = &[
    both("Conv", Rule::Product),
    both("ConvTranspose", Rule::Product),
    both("Gemm", Rule::Product),
    both("MatMul", Rule::Product),
    both("Relu", Rule::Clamp),
    both("Clip", Rule::Clamp),
    both("Add", Rule::All),
    both("Mul", Rule::All),
    both("LeakyRelu", Rule::All),
    both("Sigmoid", Rule::All),
    both("Softmax", Rule::All),
    both("ArgMax", Rule::Data),
    both("GlobalAveragePool", Rule::All),
    both("Pad", Rule::Data),
    both("Gelu", Rule::All),
    both("Concat", Rule::All),
    both("Where", Rule::Choice),
    both("InstanceNormalization", Rule::Normalization),
    both("LayerNormalization", Rule::Normalization),
    both("RMSNormalization", Rule::Normalization),
    both("Reshape", Rule::SameScale),
    both("Transpose", Rule::SameScale),
    both("Squeeze", Rule::SameScale),
    both("Unsqueeze", Rule::SameScale),
    both("MaxPool", Rule::SameScale),
    both("Resize", Rule::SameScale),
    both("Split", Rule::SameScale),
    both("Gather", Rule::SameScale),
    Row { op_type: "AveragePool", standard: Some(Rule::SameScale), extended: Some(Rule::All) },
    both("Tanh", Rule::All),
    extended("Div", Rule::All),
    extended("Sub", Rule::All),
    extended("Erf", Rule::All),
    extended("Min", Rule::All),
    extended("Max", Rule::All),
    extended("ReduceMean", Rule::Data),
    extended("DepthToSpace", Rule::All),
    extended("SpaceToDepth", Rule::All),
    // With int8 codes ONNX Runtime moves DequantizeLinear over a Slice in float, and then refuses the types it made.
    Row { op_type: "Slice", standard: Some(Rule::SameScale), extended: Some(Rule::Data) },
    extended("PRelu", Rule::All),
    extended("LpNormalization", Rule::All),
    extended("HardSigmoid", Rule::All),
    extended("HardSwish", Rule::All),
];

/// The row of an operator.
pub fn row(op_type: &str) -> Option<&'static Row> {
    RULES.iter().find(|row| row.op_type == op_type)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_operator_has_one_rule() {
        let names: HashSet<&str> = RULES.iter().map(|row| row.op_type).collect();
        assert_eq!(names.len(), RULES.len());
    }
}
