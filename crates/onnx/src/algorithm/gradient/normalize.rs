//! Softmax, normalizations and means.

use kvant_container::onnx::NodeProto;
use kvant_numeric::linalg::exp;

use super::Operator;
use super::tensor::{Broadcast, Input, Tensor, axis_of};
use crate::graph::{float_attribute, int_attribute, ints_attribute};

/// Softmax along an axis, or along all from an axis on, as it was before opset 13.
pub(super) struct Softmax {
    axis: i64,
    is_flat: bool,
}

impl Softmax {
    /// That of a node in a version of the operators.
    pub fn of(node: &NodeProto, opset: i64) -> Softmax {
        let is_flat = opset < 13;
        Softmax { axis: int_attribute(node, "axis").unwrap_or(if is_flat { 1 } else { -1 }), is_flat }
    }

    /// Elements that are normalized together, and the distance between two of them.
    fn runs(&self, shape: &[usize]) -> Option<(usize, usize)> {
        let axis = axis_of(self.axis, shape.len())?;
        let behind: usize = shape[axis + 1..].iter().product();
        Some(if self.is_flat { (shape[axis] * behind, 1) } else { (shape[axis], behind) })
    }
}

/// Visits the positions of each run of `length` elements `step` apart.
fn for_each_run(count: usize, (length, step): (usize, usize), mut visit: impl FnMut(&mut dyn Iterator<Item = usize>)) {
    for outer in (0..count).step_by((length * step).max(1)) {
        for inner in 0..step {
            visit(&mut (0..length).map(|i| outer + inner + i * step));
        }
    }
}

impl Operator for Softmax {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (shape, values) = inputs.first()?.floats()?;
        let mut made = values.to_vec();
        for_each_run(values.len(), self.runs(shape)?, |run| {
            let run: Vec<usize> = run.collect();
            let largest = run.iter().map(|&i| made[i]).fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0.0;
            for &i in &run {
                made[i] = exp(made[i] - largest);
                sum += made[i];
            }
            run.iter().for_each(|&i| made[i] /= sum);
        });
        Some(Tensor { shape: shape.to_vec(), values: made })
    }

    fn backward(&self, inputs: &[Input<'_>], output: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (shape, _) = inputs.first()?.floats()?;
        let mut made = vec![0.0; slopes.len()];
        for_each_run(slopes.len(), self.runs(shape)?, |run| {
            let run: Vec<usize> = run.collect();
            let mean: f32 = run.iter().map(|&i| output.values[i] * slopes[i]).sum();
            run.iter().for_each(|&i| made[i] = output.values[i] * (slopes[i] - mean));
        });
        Some(vec![made])
    }
}

/// The elements of a tensor that a normalization takes a mean and a variance of.
#[derive(Clone, Copy)]
enum Over {
    /// All from an axis on; gain and bias have one for each of them.
    From(i64),
    /// All behind the channels, which are axis 1 and have a gain and a bias each.
    Positions,
    /// None: mean and variance of each channel are inputs.
    Given,
}

/// LayerNormalization, InstanceNormalization and BatchNormalization: `y = gain (x - mean) / sqrt(variance + epsilon) + bias`.
pub(super) struct Normalization {
    over: Over,
    epsilon: f64,
}

impl Normalization {
    /// That of a node, if it is one.
    pub fn of(node: &NodeProto) -> Option<Normalization> {
        let over = match node.op_type() {
            "LayerNormalization" => Over::From(int_attribute(node, "axis").unwrap_or(-1)),
            "InstanceNormalization" => Over::Positions,
            "BatchNormalization" if int_attribute(node, "training_mode").unwrap_or(0) == 0 => Over::Given,
            _ => return None,
        };
        Some(Normalization { over, epsilon: f64::from(float_attribute(node, "epsilon").unwrap_or(1e-5)) })
    }

    /// Elements with one mean; and those in order that share a gain, and how many gains there are.
    fn sizes(&self, shape: &[usize]) -> Option<(usize, usize, usize)> {
        Some(match self.over {
            Over::From(axis) => {
                let size = shape[axis_of(axis, shape.len())?..].iter().product();
                (size, 1, size)
            }
            Over::Positions | Over::Given => {
                let inner = shape.get(2..)?.iter().product();
                (inner, inner, shape[1])
            }
        })
    }

    /// For each run of elements with one mean: the mean, and the inverse of the deviation.
    fn statistics(&self, inputs: &[Input<'_>]) -> Option<Vec<(f64, f64)>> {
        let (shape, values) = inputs.first()?.floats()?;
        let (size, _, gains) = self.sizes(shape)?;
        if let Over::Given = self.over {
            let [means, variances] = [inputs.get(3)?.floats()?.1, inputs.get(4)?.floats()?.1];
            let of = |run: usize| {
                let (mean, variance) = (means.get(run % gains)?, variances.get(run % gains)?);
                Some((f64::from(*mean), 1.0 / (f64::from(*variance) + self.epsilon).sqrt()))
            };
            return (0..values.len() / size.max(1)).map(of).collect();
        }
        let of = |values: &[f32]| {
            let count = values.len() as f64;
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
            let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
            (mean, 1.0 / (variance + self.epsilon).sqrt())
        };
        Some(values.chunks(size.max(1)).map(of).collect())
    }
}

impl Operator for Normalization {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (shape, values) = inputs.first()?.floats()?;
        let (size, inner, gains) = self.sizes(shape)?;
        let gain = inputs.get(1)?.floats()?.1;
        let bias = inputs.get(2).filter(|input| !input.is_absent());
        let bias = bias.map(|bias| bias.floats().map(|(_, values)| values));
        let bias = match bias {
            Some(bias) => bias?.to_vec(),
            None => vec![0.0; gain.len()],
        };
        if gain.len() != gains || bias.len() != gains {
            return None;
        }
        let statistics = self.statistics(inputs)?;
        let made = |(i, &value): (usize, &f32)| {
            let ((mean, inverse), channel) = (statistics[i / size], i / inner % gains);
            ((f64::from(value) - mean) * inverse) as f32 * gain[channel] + bias[channel]
        };
        Some(Tensor { shape: shape.to_vec(), values: values.iter().enumerate().map(made).collect() })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], wanted: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (shape, values) = inputs.first()?.floats()?;
        if wanted.iter().skip(1).any(|&wanted| wanted) {
            return None;
        }
        let (size, inner, gains) = self.sizes(shape)?;
        let (gain, statistics) = (inputs.get(1)?.floats()?.1, self.statistics(inputs)?);
        let mut made: Vec<f32> = slopes.iter().enumerate().map(|(i, slope)| slope * gain[i / inner % gains]).collect();
        for (run, (made, (mean, inverse))) in made.chunks_mut(size.max(1)).zip(statistics).enumerate() {
            if let Over::Given = self.over {
                made.iter_mut().for_each(|slope| *slope *= inverse as f32);
                continue;
            }
            let values = &values[run * size..][..made.len()];
            let normalized = |value: f32| (f64::from(value) - mean) * inverse;
            let count = made.len() as f64;
            let sum = made.iter().map(|&slope| f64::from(slope)).sum::<f64>() / count;
            let along =
                made.iter().zip(values).map(|(&slope, &x)| f64::from(slope) * normalized(x)).sum::<f64>() / count;
            for (slope, &x) in made.iter_mut().zip(values) {
                *slope = (inverse * (f64::from(*slope) - sum - normalized(x) * along)) as f32;
            }
        }
        Some(vec![made])
    }
}

/// ReduceMean, ReduceSum and GlobalAveragePool.
pub(super) struct Reduce {
    /// Whether sums are divided by their number of elements.
    means: bool,
    keeps_axes: bool,
    axes: Axes,
}

enum Axes {
    Given(Vec<i64>),
    /// Those of the second input, or all.
    OfInput,
    Spatial,
}

impl Reduce {
    /// That of a node, if it is one.
    pub fn of(node: &NodeProto) -> Option<Reduce> {
        let means = match node.op_type() {
            "ReduceMean" => true,
            "ReduceSum" => false,
            "GlobalAveragePool" => return Some(Reduce { means: true, keeps_axes: true, axes: Axes::Spatial }),
            _ => return None,
        };
        let does_nothing = int_attribute(node, "noop_with_empty_axes").unwrap_or(0) != 0;
        let axes = ints_attribute(node, "axes").map_or(Axes::OfInput, |axes| Axes::Given(axes.to_vec()));
        let keeps_axes = int_attribute(node, "keepdims").unwrap_or(1) != 0;
        (!does_nothing).then_some(Reduce { means, keeps_axes, axes })
    }

    /// The shape with ones along the reduced axes, and that of the output.
    fn shapes(&self, inputs: &[Input<'_>]) -> Option<(Vec<usize>, Vec<usize>)> {
        let (shape, _) = inputs.first()?.floats()?;
        let axes: Vec<usize> = match (&self.axes, inputs.get(1)) {
            (Axes::Spatial, _) => (2..shape.len()).collect(),
            (Axes::Given(axes), _) => axes.iter().map(|&axis| axis_of(axis, shape.len())).collect::<Option<_>>()?,
            (Axes::OfInput, Some(Input::Other(axes))) => {
                let axes = axes.to_f32s();
                axes.iter().map(|&axis| axis_of(axis as i64, shape.len())).collect::<Option<_>>()?
            }
            (Axes::OfInput, _) => (0..shape.len()).collect(),
        };
        let kept: Vec<usize> =
            shape.iter().enumerate().map(|(axis, &size)| if axes.contains(&axis) { 1 } else { size }).collect();
        let out = kept.iter().enumerate().filter(|(axis, _)| self.keeps_axes || !axes.contains(axis));
        let out = out.map(|(_, &size)| size).collect();
        Some((kept, out))
    }
}

impl Operator for Reduce {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (shape, values) = inputs.first()?.floats()?;
        let (kept, out) = self.shapes(inputs)?;
        let mut sums = vec![0f64; kept.iter().product()];
        Broadcast::new(&[shape, &kept])?.for_each(|element, at| sums[at[1]] += f64::from(values[element]));
        let count = if self.means { values.len() as f64 / sums.len().max(1) as f64 } else { 1.0 };
        Some(Tensor { shape: out, values: sums.iter().map(|sum| (sum / count) as f32).collect() })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (shape, values) = inputs.first()?.floats()?;
        let (kept, _) = self.shapes(inputs)?;
        let count = if self.means { values.len() as f32 / slopes.len().max(1) as f32 } else { 1.0 };
        let mut made = vec![0.0; values.len()];
        Broadcast::new(&[shape, &kept])?.for_each(|element, at| made[element] = slopes[at[1]] / count);
        Some(vec![made])
    }
}
