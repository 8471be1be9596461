//! The conditions under which ONNX Runtime makes a kernel for codes of an operator and the pairs around it.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto, NodeProto, data_type, element_count};

use super::prepared::PreparedGraph;
use super::reason::FusionProblem;
use crate::graph::{
    Index, called, float_attribute, int_attribute, is, is_dequantize_linear, is_qdq, is_quantize_linear, is_standard,
    positional_input,
};
use crate::writing::integer_operators::computes_with_codes;

/// What a kernel takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KernelForm {
    /// One operand and the output, of one type of 8 bits.
    Unary,
    /// All operands and the output, of one type of 8 bits.
    All,
    /// Two operands behind a condition, and the output.
    Choice,
    /// Data and weight, perhaps a bias, and the output.
    Conv,
    /// Data and weight. The output may be in float.
    MatMul,
    /// Data and weight, perhaps a bias. The output may be in float.
    Gemm,
    /// Codes move. Of 16 bits, too, where the flag says so.
    Moves { wide: bool },
    /// Codes are read, and the output is none.
    Reads,
}

const KERNELS: &[(&str, KernelForm)] = &[
    ("AveragePool", KernelForm::Unary),
    ("GlobalAveragePool", KernelForm::Unary),
    ("LeakyRelu", KernelForm::Unary),
    ("Sigmoid", KernelForm::Unary),
    ("Softmax", KernelForm::Unary),
    ("Add", KernelForm::All),
    ("Mul", KernelForm::All),
    ("Concat", KernelForm::All),
    ("Where", KernelForm::Choice),
    ("Conv", KernelForm::Conv),
    ("MatMul", KernelForm::MatMul),
    ("Gemm", KernelForm::Gemm),
    ("MaxPool", KernelForm::Moves { wide: false }),
    ("ReduceMax", KernelForm::Moves { wide: false }),
    ("ReduceMin", KernelForm::Moves { wide: false }),
    ("Resize", KernelForm::Moves { wide: false }),
    ("DepthToSpace", KernelForm::Moves { wide: false }),
    ("Expand", KernelForm::Moves { wide: true }),
    ("Flatten", KernelForm::Moves { wide: true }),
    ("Gather", KernelForm::Moves { wide: true }),
    ("GatherElements", KernelForm::Moves { wide: true }),
    ("Reshape", KernelForm::Moves { wide: true }),
    ("Slice", KernelForm::Moves { wide: true }),
    ("Split", KernelForm::Moves { wide: true }),
    ("Squeeze", KernelForm::Moves { wide: true }),
    ("Tile", KernelForm::Moves { wide: true }),
    ("Transpose", KernelForm::Moves { wide: true }),
    ("Unsqueeze", KernelForm::Moves { wide: true }),
    ("ArgMax", KernelForm::Reads),
];

/// What becomes of a node that computes with floats.
enum Outcome {
    /// A kernel takes its pairs.
    Fused,
    /// A kernel takes the DequantizeLinear of its weight.
    WeightOnly,
    Unfused(FusionProblem),
}

/// What becomes of the nodes of a graph.
pub(super) struct Kernels<'p> {
    prepared: &'p PreparedGraph,
    index: Index,
    outcomes: HashMap<usize, Outcome>,
    /// The readers of each tensor, once for each input.
    readers: HashMap<&'p str, Vec<usize>>,
}

/// The pairs around a node.
struct Surroundings<'p> {
    node: &'p NodeProto,
    /// The DequantizeLinear before each input, where there is one.
    before: Vec<Option<&'p NodeProto>>,
    /// The QuantizeLinear nodes behind.
    behind: Vec<&'p NodeProto>,
    /// All readers of outputs.
    readers: usize,
    is_output: bool,
    /// A Relu or Clip between the node and QuantizeLinear that cuts values.
    clamp: Option<&'p NodeProto>,
}

impl<'p> Kernels<'p> {
    pub fn of(prepared: &'p PreparedGraph) -> Self {
        let mut readers: HashMap<&str, Vec<usize>> = HashMap::new();
        for (position, node) in prepared.nodes() {
            node.input.iter().for_each(|name| readers.entry(name).or_default().push(position));
        }
        let index = Index::new(&prepared.graph);
        let mut made = Self { prepared, index, outcomes: HashMap::new(), readers };
        for (position, node) in prepared.nodes().filter(|(_, node)| !is_qdq(node)) {
            let outcome = made.outcome(node);
            made.outcomes.insert(position, outcome);
        }
        made
    }

    /// Number of operators that compute with codes, those that the graph has itself included.
    pub fn fused(&self) -> usize {
        let fused = self.outcomes.values().filter(|outcome| matches!(outcome, Outcome::Fused | Outcome::WeightOnly));
        fused.count() + self.prepared.nodes().filter(|(_, node)| computes_with_codes(node)).count()
    }

    fn graph(&self) -> &'p GraphProto {
        &self.prepared.graph
    }

    fn maker(&self, tensor: &str) -> Option<(usize, &'p NodeProto)> {
        let position = self.index.producer(tensor)?;
        Some((position, &self.graph().node[position]))
    }

    fn readers_of(&self, tensor: &str) -> &[usize] {
        self.readers.get(tensor).map_or(&[], Vec::as_slice)
    }

    /// Why a QuantizeLinear or DequantizeLinear stays, and the float node beside it.
    pub fn unfused(&self, position: usize) -> Option<(Option<usize>, FusionProblem)> {
        let pair = &self.graph().node[position];
        match is_quantize_linear(pair) {
            true => self.unfused_quantize(pair),
            false => self.unfused_dequantize(pair),
        }
    }

    fn unfused_quantize(&self, pair: &NodeProto) -> Option<(Option<usize>, FusionProblem)> {
        let Some((position, maker)) = self.maker(pair.input.first()?) else { return Some((None, FusionProblem::End)) };
        if is_dequantize_linear(maker) {
            return self.requantized(maker, pair).then_some((None, FusionProblem::Requantized));
        }
        match self.outcomes.get(&position)? {
            Outcome::Fused => None,
            Outcome::WeightOnly => {
                Some((Some(position), FusionProblem::FloatInput { input: maker.input.first()?.clone() }))
            }
            Outcome::Unfused(problem) => Some((Some(position), problem.clone())),
        }
    }

    fn unfused_dequantize(&self, pair: &NodeProto) -> Option<(Option<usize>, FusionProblem)> {
        let floats = pair.output.first()?;
        let Some(&position) = self.readers_of(floats).first() else {
            let is_output = self.index.is_output(floats);
            let problem = if is_output { FusionProblem::End } else { FusionProblem::Body };
            return (is_output || self.index.is_read(floats)).then_some((None, problem));
        };
        let reader = &self.graph().node[position];
        if is_quantize_linear(reader) {
            return self.requantized(pair, reader).then_some((None, FusionProblem::Requantized));
        }
        match self.outcomes.get(&position)? {
            Outcome::Fused => None,
            Outcome::WeightOnly if reader.input.get(1) == Some(floats) => None,
            Outcome::WeightOnly => Some((Some(position), FusionProblem::Bias)),
            Outcome::Unfused(problem) => Some((Some(position), problem.clone())),
        }
    }

    /// Returns whether codes of a DequantizeLinear become others in the QuantizeLinear behind it.
    fn requantized(&self, dequantize: &NodeProto, quantize: &NodeProto) -> bool {
        let same = self.same_parameters(dequantize, quantize);
        !same || self.code_type(dequantize) != self.code_type(quantize)
    }

    fn same_parameters(&self, a: &NodeProto, b: &NodeProto) -> bool {
        let parameters = self.prepared.parameters(&self.index, a);
        // Zero points of int8 become those of uint8 on both sides.
        parameters.is_some() && parameters == self.prepared.parameters(&self.index, b)
    }

    /// The type of the codes of a pair.
    fn code_type(&self, pair: &NodeProto) -> Option<DataType> {
        let codes = if is_quantize_linear(pair) { pair.output.first()? } else { pair.input.first()? };
        let of_constant = || self.index.constant(self.graph(), codes).map(data_type);
        self.prepared.code_type(codes).or_else(of_constant)
    }

    fn surroundings(&self, node: &'p NodeProto) -> Surroundings<'p> {
        let before =
            |name: &String| self.maker(name).map(|(_, maker)| maker).filter(|maker| is_dequantize_linear(maker));
        let named: Vec<&'p String> = node.output.iter().filter(|name| !name.is_empty()).collect();
        let mut readers: Vec<usize> = named.iter().flat_map(|name| self.readers_of(name)).copied().collect();
        let mut is_output = named.iter().any(|name| self.index.is_output(name));
        let mut clamp = None;
        if let [one] = readers[..] {
            let reader = &self.graph().node[one];
            let output = reader.output.first().map_or("", String::as_str);
            let is_clamp = is(reader, "Relu") || is(reader, "Clip");
            if is_clamp && !is_output && !self.index.is_output(output) && self.readers_of(output).len() == 1 {
                let behind = &self.graph().node[self.readers_of(output)[0]];
                let is_implied = is_quantize_linear(behind) && self.prepared.is_implied(&self.index, reader, behind);
                clamp = Some(reader).filter(|_| !is_implied);
                readers = self.readers_of(output).to_vec();
                is_output = false;
            }
        }
        Surroundings {
            node,
            before: node.input.iter().filter(|name| !name.is_empty()).map(before).collect(),
            behind: readers
                .iter()
                .map(|&at| &self.graph().node[at])
                .filter(|reader| is_quantize_linear(reader))
                .collect(),
            readers: readers.len(),
            is_output,
            clamp,
        }
    }

    fn outcome(&self, node: &'p NodeProto) -> Outcome {
        let around = self.surroundings(node);
        let form = KERNELS.iter().find(|(op, _)| is(node, op)).map(|(_, form)| *form);
        let no_kernel = || Outcome::Unfused(FusionProblem::NoKernel { operator: node.op_type().to_owned() });
        let Some(form) = form.filter(|_| is_standard(node) && self.prepared.takes_codes(node)) else {
            return no_kernel();
        };
        if self.is_weight_only(&around, form) {
            return Outcome::WeightOnly;
        }
        // A node whose clamp comes before it has no pair: there is nothing to say of it.
        match self.problem(&around, form) {
            None => Outcome::Fused,
            Some(problem) => Outcome::Unfused(problem),
        }
    }

    fn problem(&self, around: &Surroundings<'p>, form: KernelForm) -> Option<FusionProblem> {
        if let Some(clamp) = around.clamp {
            return Some(FusionProblem::Clamp { node: called(clamp).to_owned() });
        }
        let product = matches!(form, KernelForm::Conv | KernelForm::MatMul | KernelForm::Gemm);
        let coded = self.coded_inputs(around, form);
        let coded: Vec<&NodeProto> = match coded {
            Ok(coded) => coded,
            Err(problem) => return Some(problem),
        };
        let may_be_float = matches!(form, KernelForm::MatMul | KernelForm::Gemm);
        let needs_codes = form != KernelForm::Reads && !(may_be_float && around.behind.is_empty());
        if let Some(problem) = output_problem(around).filter(|_| needs_codes) {
            return Some(problem);
        }
        if product { self.product_problem(around, form, &coded) } else { self.types_problem(around, form, &coded) }
    }

    /// The DequantizeLinear nodes that a kernel absorbs. The error names an input without one.
    fn coded_inputs(&self, around: &Surroundings<'p>, form: KernelForm) -> Result<Vec<&'p NodeProto>, FusionProblem> {
        let named: Vec<&String> = around.node.input.iter().filter(|name| !name.is_empty()).collect();
        let wanted = match form {
            KernelForm::Choice => 1..named.len(),
            KernelForm::Unary | KernelForm::Moves { .. } | KernelForm::Reads => 0..1,
            _ => 0..named.len(),
        };
        let is_bias = |at: usize| at == 2 && matches!(form, KernelForm::Conv | KernelForm::Gemm);
        let mut coded = Vec::new();
        for at in wanted {
            match around.before.get(at).copied().flatten() {
                Some(dequantize) => coded.push(dequantize),
                // ONNX Runtime quantizes constants of products itself where the output is quantized.
                None if self.is_made_coded(around, form, at) => {}
                None if is_bias(at) => return Err(FusionProblem::Bias),
                None if form == KernelForm::Choice && self.is_scalar(named[at]) => {}
                None => {
                    let input = named.get(at).map(|name| (*name).clone()).unwrap_or_default();
                    return Err(FusionProblem::FloatInput { input });
                }
            }
        }
        Ok(coded)
    }

    fn is_scalar(&self, tensor: &str) -> bool {
        self.index.constant(self.graph(), tensor).is_some_and(|t| element_count(t).is_ok_and(|count| count == 1))
    }

    /// Returns whether a float weight or bias of a product becomes codes: its data have codes with one scale, and its output is quantized.
    fn is_made_coded(&self, around: &Surroundings<'p>, form: KernelForm, at: usize) -> bool {
        let data = around.before.first().copied().flatten();
        let is_quantized = around.behind.len() == 1 && around.readers == 1 && !around.is_output;
        if !matches!(form, KernelForm::Conv | KernelForm::Gemm) || at == 0 || !is_quantized {
            return false;
        }
        let has_one_scale = data.and_then(|data| positional_input(data, 1)).is_some_and(|scale| self.is_scalar(scale));
        let constant = around.node.input.get(at).and_then(|name| self.index.constant(self.graph(), name));
        let is_float = constant.is_some_and(|t| data_type(t) == DataType::FLOAT);
        let is_vector = constant.is_some_and(|t| t.dims.len() == 1);
        has_one_scale && is_float && (at == 1 || is_vector)
    }

    /// The weight of a product whose data are in float: ONNX Runtime makes MatMulNBits of it.
    fn is_weight_only(&self, around: &Surroundings<'p>, form: KernelForm) -> bool {
        let node = around.node;
        let plain = match form {
            KernelForm::MatMul => true,
            KernelForm::Gemm => {
                let is_off = |name| int_attribute(node, name).unwrap_or(0) == 0;
                let is_one = |name| float_attribute(node, name).unwrap_or(1.0) == 1.0;
                is_off("transA") && is_off("transB") && is_one("alpha") && is_one("beta")
            }
            _ => false,
        };
        let [None, Some(weight), ..] = around.before[..] else { return false };
        plain && around.behind.is_empty() && around.clamp.is_none() && self.is_block_weight(weight)
    }

    /// Returns whether a DequantizeLinear has a constant matrix of at most 8 bits, with scales that MatMulNBits takes.
    fn is_block_weight(&self, dequantize: &NodeProto) -> bool {
        let held =
            |at: usize| positional_input(dequantize, at).and_then(|name| self.index.constant(self.graph(), name));
        let (Some(codes), Some(scale)) = (held(0), held(1)) else { return false };
        let has_zero_point = positional_input(dequantize, 2).is_none() || held(2).is_some();
        let [_, columns] = codes.dims[..] else { return false };
        use DataType::{INT2, INT4, INT8, UINT2, UINT4, UINT8};
        let is_narrow = [INT2, INT4, INT8, UINT2, UINT4, UINT8].contains(&data_type(codes));
        let axis = int_attribute(dequantize, "axis").unwrap_or(1);
        let fits = match int_attribute(dequantize, "block_size").unwrap_or(0) {
            0 => scale.dims.is_empty() || scale.dims == [columns] && axis == 1,
            block => axis == 0 && block >= 16 && block & (block - 1) == 0 && scale.dims.len() == 2,
        };
        has_zero_point && is_narrow && fits
    }

    fn product_problem(
        &self,
        around: &Surroundings<'p>,
        form: KernelForm,
        coded: &[&'p NodeProto],
    ) -> Option<FusionProblem> {
        let data = self.code_type(coded.first()?)?;
        let weight = around.before.get(1).copied().flatten().and_then(|weight| self.code_type(weight));
        let weight = weight.unwrap_or(DataType::INT8);
        let output = around.behind.first().and_then(|behind| self.code_type(behind));
        if let Some(problem) = [data, weight].into_iter().find_map(|data_type| width_problem(data_type, false)) {
            return Some(problem);
        }
        if data == DataType::INT8 {
            if form != KernelForm::Gemm {
                return Some(FusionProblem::SignedData);
            }
            if weight != data {
                return Some(FusionProblem::Types { types: vec![data, weight] });
            }
        }
        if output.is_some_and(|output| output != data) {
            return Some(FusionProblem::Types {
                types: [Some(data), Some(weight), output].into_iter().flatten().collect(),
            });
        }
        let bias = around.before.get(2).copied().flatten();
        if bias.is_some_and(|bias| self.code_type(bias) != Some(DataType::INT32)) {
            return Some(FusionProblem::Bias);
        }
        let beta = float_attribute(around.node, "beta").unwrap_or(1.0);
        let becomes_gemm = form == KernelForm::MatMul && around.behind.is_empty() && self.adds_bias(around);
        ((form == KernelForm::Gemm && around.before.len() > 2 && beta != 1.0) || becomes_gemm)
            .then_some(FusionProblem::Bias)
    }

    /// Returns whether a float vector is added to a product of a matrix: ONNX Runtime makes a Gemm of both, whose kernel for codes takes int32.
    fn adds_bias(&self, around: &Surroundings<'p>) -> bool {
        let Some(product) = around.node.output.first() else { return false };
        let [add] = *self.readers_of(product) else { return false };
        let add = &self.graph().node[add];
        let other = add.input.iter().find(|name| *name != product);
        let bias = other.and_then(|name| self.index.constant(self.graph(), name));
        let weight = around.before.get(1).copied().flatten().and_then(|weight| weight.input.first());
        let is_matrix =
            weight.and_then(|codes| self.index.constant(self.graph(), codes)).is_some_and(|t| t.dims.len() == 2);
        is(add, "Add")
            && !around.is_output
            && is_matrix
            && bias.is_some_and(|t| t.dims.len() == 1)
            && around.node.input.first().is_some_and(|data| self.prepared.rank(data).is_none_or(|rank| rank > 1))
    }

    fn types_problem(
        &self,
        around: &Surroundings<'p>,
        form: KernelForm,
        coded: &[&'p NodeProto],
    ) -> Option<FusionProblem> {
        let is_constant_choice = form == KernelForm::Choice && coded.len() < 2;
        let became_unsigned =
            |pair: &&NodeProto| pair.input.first().is_some_and(|codes| self.prepared.became_unsigned(codes));
        if is_constant_choice && coded.iter().any(became_unsigned) {
            // The constant gets int8 codes before.
            return Some(FusionProblem::Types { types: vec![DataType::UINT8, DataType::INT8] });
        }
        let of_outputs = if form == KernelForm::Reads { &[][..] } else { &around.behind[..] };
        let types: Vec<DataType> = coded.iter().chain(of_outputs).filter_map(|pair| self.code_type(pair)).collect();
        let first = *types.first()?;
        if types.iter().any(|other| *other != first) {
            // uint8 beside int8 that could not become uint8 is the same cause as for products.
            let is_signed = types.contains(&DataType::INT8) && types.contains(&DataType::UINT8);
            let is_activation = |pair: &&&NodeProto| {
                self.code_type(pair) == Some(DataType::INT8)
                    && pair.input.first().is_some_and(|codes| self.index.constant(self.graph(), codes).is_none())
            };
            let stays_signed = is_signed && coded.iter().chain(of_outputs).any(|pair| is_activation(&pair));
            return Some(if stays_signed { FusionProblem::SignedData } else { FusionProblem::Types { types } });
        }
        let takes_wide = matches!(form, KernelForm::Moves { wide: true });
        if let Some(problem) = width_problem(first, takes_wide) {
            return Some(problem);
        }
        let is_move = matches!(form, KernelForm::Moves { .. });
        let differs = |behind: &&NodeProto| !self.same_parameters(coded[0], behind);
        (is_move && of_outputs.iter().any(differs)).then_some(FusionProblem::Parameters)
    }
}

/// Why a kernel cannot give codes.
fn output_problem(around: &Surroundings<'_>) -> Option<FusionProblem> {
    let outputs = around.node.output.iter().filter(|name| !name.is_empty()).count();
    if around.behind.is_empty() {
        return Some(FusionProblem::FloatOutput);
    }
    let readers = around.readers + usize::from(around.is_output);
    (around.behind.len() != outputs || readers != outputs).then_some(FusionProblem::SharedOutput { readers })
}

/// Types that no kernel takes.
fn width_problem(data_type: DataType, takes_wide: bool) -> Option<FusionProblem> {
    use DataType::{INT8, INT16, UINT8, UINT16};
    let is_known = [INT8, UINT8].contains(&data_type) || takes_wide && [INT16, UINT16].contains(&data_type);
    (!is_known).then_some(FusionProblem::Width { data_type })
}
