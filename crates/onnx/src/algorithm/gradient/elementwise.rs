//! Operators on single elements: functions of one tensor, and of two or three that are broadcast.

use kvant_container::onnx::NodeProto;
use kvant_numeric::linalg::{erf, exp, ln, sigmoid};
use kvant_quant::reconstruction::ActivationFunction;

use super::Operator;
use super::tensor::{Broadcast, Input, Tensor};
use crate::data::Array;
use crate::graph::{float_attribute, string_attribute};

/// A function of each element, with its derivative.
pub(super) struct Unary(Function);

enum Function {
    /// One that may stand behind a layer.
    Activation(ActivationFunction),
    Elu(f32),
    Softplus,
    Erf,
    Exp,
    Log,
    Sqrt,
    Reciprocal,
    Neg,
    Abs,
}

impl Unary {
    /// The function of a node, unless it is no function of one tensor.
    pub fn of(node: &NodeProto) -> Option<Unary> {
        use ActivationFunction as A;
        let float = |name: &str, default: f32| float_attribute(node, name).unwrap_or(default);
        let function = match node.op_type() {
            "Relu" => Function::Activation(A::Relu),
            "LeakyRelu" => Function::Activation(A::LeakyRelu { alpha: float("alpha", 0.01) }),
            "Sigmoid" => Function::Activation(A::Sigmoid),
            "HardSigmoid" => {
                Function::Activation(A::HardSigmoid { alpha: float("alpha", 0.2), beta: float("beta", 0.5) })
            }
            "HardSwish" => Function::Activation(A::HardSwish),
            "Tanh" => Function::Activation(A::Tanh),
            "Gelu" if string_attribute(node, "approximate") == Some("tanh") => Function::Activation(A::GeluTanh),
            "Gelu" => Function::Activation(A::Gelu),
            "Elu" => Function::Elu(float("alpha", 1.0)),
            "Softplus" => Function::Softplus,
            "Erf" => Function::Erf,
            "Exp" => Function::Exp,
            "Log" => Function::Log,
            "Sqrt" => Function::Sqrt,
            "Reciprocal" => Function::Reciprocal,
            "Neg" => Function::Neg,
            "Abs" => Function::Abs,
            _ => return None,
        };
        Some(Unary(function))
    }

    /// The value and the derivative.
    fn at(&self, x: f32) -> (f32, f32) {
        match &self.0 {
            Function::Activation(function) => function.at(0, x),
            Function::Elu(alpha) if x < 0.0 => (alpha * (exp(x) - 1.0), alpha * exp(x)),
            Function::Elu(_) => (x, 1.0),
            Function::Softplus => (x.max(0.0) + ln(1.0 + exp(-x.abs())), sigmoid(x)),
            Function::Erf => (erf(x), std::f32::consts::FRAC_2_SQRT_PI * exp(-x * x)),
            Function::Exp => (exp(x), exp(x)),
            Function::Log => (ln(x), 1.0 / x),
            Function::Sqrt => (x.sqrt(), 0.5 / x.sqrt()),
            Function::Reciprocal => (1.0 / x, -1.0 / (x * x)),
            Function::Neg => (-x, -1.0),
            Function::Abs => (x.abs(), x.signum()),
        }
    }
}

impl Operator for Unary {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (shape, values) = inputs.first()?.floats()?;
        Some(Tensor { shape: shape.to_vec(), values: values.iter().map(|&x| self.at(x).0).collect() })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (_, values) = inputs.first()?.floats()?;
        Some(vec![values.iter().zip(slopes).map(|(&x, slope)| slope * self.at(x).1).collect()])
    }
}

/// Clip, whose bounds are inputs.
pub(super) struct Clip;

impl Clip {
    /// That of a node; `None` where bounds are attributes, as they were before opset 11.
    pub fn of(node: &NodeProto) -> Option<Clip> {
        node.attribute.is_empty().then_some(Clip)
    }
}

impl Operator for Clip {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (shape, values) = inputs.first()?.floats()?;
        let (low, high) = bounds(inputs)?;
        Some(Tensor { shape: shape.to_vec(), values: values.iter().map(|x| x.max(low).min(high)).collect() })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (_, values) = inputs.first()?.floats()?;
        let (low, high) = bounds(inputs)?;
        let slope = |(&x, &slope): (&f32, &f32)| if x >= low && x <= high { slope } else { 0.0 };
        Some(vec![values.iter().zip(slopes).map(slope).collect()])
    }
}

fn bounds(inputs: &[Input<'_>]) -> Option<(f32, f32)> {
    let bound = |at: usize, default: f32| match inputs.get(at) {
        None | Some(Input::Absent) => Some(default),
        Some(input) => input.floats()?.1.first().copied(),
    };
    Some((bound(1, f32::NEG_INFINITY)?, bound(2, f32::INFINITY)?))
}

/// A function of two tensors.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    Min,
    Max,
    PRelu,
}

impl Binary {
    /// The function of a node of two inputs.
    pub fn of(node: &NodeProto) -> Option<Binary> {
        let binary = match node.op_type() {
            "Add" | "Sum" => Binary::Add,
            "Sub" => Binary::Sub,
            "Mul" => Binary::Mul,
            "Div" => Binary::Div,
            "Pow" => Binary::Pow,
            "Min" => Binary::Min,
            "Max" => Binary::Max,
            "PRelu" => Binary::PRelu,
            _ => return None,
        };
        (node.input.len() == 2).then_some(binary)
    }

    /// The value and the derivatives by both.
    #[inline(always)]
    fn at(self, a: f32, b: f32) -> (f32, f32, f32) {
        let first = |is_first: bool| if is_first { (a, 1.0, 0.0) } else { (b, 0.0, 1.0) };
        match self {
            Binary::Add => (a + b, 1.0, 1.0),
            Binary::Sub => (a - b, 1.0, -1.0),
            Binary::Mul => (a * b, b, a),
            Binary::Div => (a / b, 1.0 / b, -a / (b * b)),
            Binary::Pow if b == 2.0 => (a * a, 2.0 * a, 0.0),
            Binary::Pow => (a.powf(b), b * a.powf(b - 1.0), 0.0),
            Binary::Min => first(a <= b),
            Binary::Max => first(a >= b),
            Binary::PRelu if a < 0.0 => (a * b, b, a),
            Binary::PRelu => (a, 1.0, 0.0),
        }
    }
}

impl Operator for Binary {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let [(left, a), (right, b)] = [inputs.first()?.floats()?, inputs.get(1)?.floats()?];
        if left == right {
            let values = a.iter().zip(b).map(|(&a, &b)| self.at(a, b).0).collect();
            return Some(Tensor { shape: left.to_vec(), values });
        }
        let broadcast = Broadcast::new(&[left, right])?;
        let mut values = Vec::with_capacity(broadcast.shape.iter().product());
        broadcast.for_each(|_, at| values.push(self.at(a[at[0]], b[at[1]]).0));
        Some(Tensor { shape: broadcast.shape, values })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], wanted: &[bool]) -> Option<Vec<Vec<f32>>> {
        let [(left, a), (right, b)] = [inputs.first()?.floats()?, inputs.get(1)?.floats()?];
        // Nothing that is trained is an exponent.
        if *self == Binary::Pow && wanted.get(1) == Some(&true) {
            return None;
        }
        let mut gradients = vec![vec![0.0; a.len()], vec![0.0; b.len()]];
        let mut add = |element: usize, at: [usize; 2]| {
            let (_, by_a, by_b) = self.at(a[at[0]], b[at[1]]);
            gradients[0][at[0]] += slopes[element] * by_a;
            gradients[1][at[1]] += slopes[element] * by_b;
        };
        match left == right {
            true => (0..slopes.len()).for_each(|element| add(element, [element; 2])),
            false => Broadcast::new(&[left, right])?.for_each(|element, at| add(element, [at[0], at[1]])),
        }
        Some(gradients)
    }
}

/// One of two tensors, element by element.
pub(super) struct Where;

impl Where {
    fn condition(array: &Array<'static>) -> Vec<bool> {
        array.to_f32s().iter().map(|&value| value != 0.0).collect()
    }
}

impl Operator for Where {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let &[Input::Other(condition), a, b] = inputs else { return None };
        let ((left, a), (right, b)) = (a.floats()?, b.floats()?);
        let (broadcast, condition) = (Broadcast::new(&[condition.shape(), left, right])?, Self::condition(condition));
        let mut values = Vec::with_capacity(broadcast.shape.iter().product());
        broadcast.for_each(|_, at| values.push(if condition[at[0]] { a[at[1]] } else { b[at[2]] }));
        Some(Tensor { shape: broadcast.shape, values })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let &[Input::Other(condition), a, b] = inputs else { return None };
        let ((left, a), (right, b)) = (a.floats()?, b.floats()?);
        let (broadcast, condition) = (Broadcast::new(&[condition.shape(), left, right])?, Self::condition(condition));
        let mut gradients = vec![Vec::new(), vec![0.0; a.len()], vec![0.0; b.len()]];
        broadcast.for_each(|element, at| {
            let (input, position) = if condition[at[0]] { (1, at[1]) } else { (2, at[2]) };
            gradients[input][position] += slopes[element];
        });
        Some(gradients)
    }
}
