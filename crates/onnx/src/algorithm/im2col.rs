//! A layer as a matrix product (im2col): rows of inputs, one for each output position, whose products with the rows of the weight
//! are the outputs. Not the products.

use kvant_container::onnx::NodeProto;

use crate::data::Array;
use crate::graph::{int_attribute, ints_attribute, is_standard, string_attribute};

/// A layer's weight as a matrix: for each of its groups `rows` outputs and `columns` inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unfolding {
    kind: Kind,
    /// Groups of a convolution; 1 of products.
    pub groups: usize,
    /// Outputs of a group.
    pub rows: usize,
    /// Inputs of a group: its channels, each with all places of the kernel.
    pub columns: usize,
    /// Places of the kernel.
    kernel: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Convolution,
    Transposed,
    /// A weight of `[outputs, inputs]`.
    RowsAreOutputs,
    /// A weight of `[inputs, outputs]`.
    RowsAreInputs,
}

/// The positions of a sample's inputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InputStatistics {
    /// They are rows as they lie.
    Rows,
    /// Patches of images.
    Patches {
        /// Images.
        batch: usize,
        /// Channels of all groups.
        channels: usize,
        /// Elements of a channel.
        inner: usize,
        /// For each place of the output and of the kernel the place of the input.
        sources: Vec<Option<usize>>,
    },
}

impl Unfolding {
    /// For a layer with a weight of this shape; `None` if it is not such a product.
    pub fn of(node: &NodeProto, shape: &[usize]) -> Option<Self> {
        if !is_standard(node) || shape.contains(&0) {
            return None;
        }
        let groups = usize::try_from(int_attribute(node, "group").unwrap_or(1)).ok().filter(|g| *g > 0)?;
        let kernel = shape.get(2..).unwrap_or_default().to_vec();
        let places: usize = kernel.iter().product();
        let each = |count: usize| count.checked_div(groups).filter(|n| n * groups == count);
        let made = |kind, rows, columns, kernel| Self { kind, groups, rows, columns, kernel };
        match (node.op_type(), shape) {
            ("Conv", [outputs, inputs, ..]) => Some(made(Kind::Convolution, each(*outputs)?, inputs * places, kernel)),
            ("ConvTranspose", [inputs, outputs, ..]) => {
                Some(made(Kind::Transposed, *outputs, each(*inputs)? * places, kernel))
            }
            ("Gemm", _) if int_attribute(node, "transA").unwrap_or(0) != 0 => None,
            ("Gemm", [outputs, inputs]) if int_attribute(node, "transB") == Some(1) => {
                Some(made(Kind::RowsAreOutputs, *outputs, *inputs, kernel))
            }
            ("Gemm" | "MatMul", [inputs, outputs]) => Some(made(Kind::RowsAreInputs, *outputs, *inputs, kernel)),
            _ => None,
        }
    }

    /// The position of a group's matrix element in the weight.
    pub fn place(&self, group: usize, row: usize, column: usize) -> usize {
        let places: usize = self.kernel.iter().product();
        match self.kind {
            Kind::Convolution | Kind::RowsAreOutputs => (group * self.rows + row) * self.columns + column,
            Kind::Transposed => {
                let (channel, place) = (group * (self.columns / places) + column / places, column % places);
                (channel * self.rows + row) * places + place
            }
            Kind::RowsAreInputs => column * self.rows + row,
        }
    }

    /// The positions of a sample's inputs, the same for all groups. `None` if the shapes do not match the layer.
    pub fn seen(&self, node: &NodeProto, input: &[usize], output: &[usize]) -> Option<InputStatistics> {
        let is_product = matches!(self.kind, Kind::RowsAreOutputs | Kind::RowsAreInputs);
        if is_product {
            return (input.last() == Some(&self.columns)).then_some(InputStatistics::Rows);
        }
        let (&[batch, channels, ref sizes @ ..], [_, _, made @ ..]) = (input, output) else { return None };
        let of_group = self.columns / self.kernel.iter().product::<usize>();
        if sizes.len() != self.kernel.len() || made.len() != sizes.len() || of_group * self.groups != channels {
            return None;
        }
        let sources = self.sources(node, sizes, made)?;
        Some(InputStatistics::Patches { batch, channels, inner: sizes.iter().product(), sources })
    }

    /// The rows of inputs of a group, row-major: `columns` values for each place of the output. `None` for what is no f32.
    pub fn inputs(&self, input: &Array<'_>, seen: &InputStatistics, group: usize) -> Option<Vec<f32>> {
        let values = input.f32s()?;
        Some(match seen {
            InputStatistics::Rows => values.to_vec(),
            InputStatistics::Patches { batch, channels, inner, sources } => {
                self.patches(values, (*batch, *channels, *inner), sources, group)
            }
        })
    }

    fn patches(
        &self,
        values: &[f32],
        (batch, channels, inner): (usize, usize, usize),
        sources: &[Option<usize>],
        group: usize,
    ) -> Vec<f32> {
        let places: usize = self.kernel.iter().product();
        let (of_group, positions) = (self.columns / places, sources.len() / places);
        let mut rows = vec![0f32; batch * positions * self.columns];
        for (n, rows) in rows.chunks_mut((positions * self.columns).max(1)).enumerate() {
            for channel in 0..of_group {
                let start = (n * channels + group * of_group + channel) * inner;
                let image = &values[start..start + inner];
                for (row, sources) in rows.chunks_mut(self.columns).zip(sources.chunks(places)) {
                    let patch = &mut row[channel * places..(channel + 1) * places];
                    for (value, source) in patch.iter_mut().zip(sources) {
                        *value = source.map_or(0.0, |source| image[source]);
                    }
                }
            }
        }
        rows
    }

    /// For each place of the output and of the kernel the place of the input that meets, if it is not in the padding.
    fn sources(&self, node: &NodeProto, sizes: &[usize], made: &[usize]) -> Option<Vec<Option<usize>>> {
        let mut sources = vec![Some(0)];
        let mut shape: Vec<(usize, usize)> = vec![];
        for axis in 0..sizes.len() {
            let along =
                Axis::of(node, axis, sizes[axis], made[axis], self.kernel[axis], self.kind == Kind::Transposed)?;
            let count = made[axis] * self.kernel[axis];
            let step = |place: Option<usize>, at: usize| {
                let source = along.source(at / self.kernel[axis], at % self.kernel[axis])?;
                Some(place? * sizes[axis] + source)
            };
            sources = sources
                .into_iter()
                .flat_map(|place| (0..count).map(move |at| (place, at)))
                .map(|(p, at)| step(p, at))
                .collect();
            shape.push((made[axis], self.kernel[axis]));
        }
        Some(outputs_first(&sources, &shape))
    }
}

/// From an order of output and kernel axis by axis to one of all outputs, then all of the kernel.
fn outputs_first(sources: &[Option<usize>], shape: &[(usize, usize)]) -> Vec<Option<usize>> {
    let positions: usize = shape.iter().map(|(made, _)| made).product();
    let places: usize = shape.iter().map(|(_, kernel)| kernel).product();
    let at = |mut position: usize, mut place: usize| {
        let (mut index, mut stride) = (0, 1);
        for &(made, kernel) in shape.iter().rev() {
            index += ((position % made) * kernel + place % kernel) * stride;
            stride *= made * kernel;
            (position, place) = (position / made, place / kernel);
        }
        sources[index]
    };
    (0..positions).flat_map(|position| (0..places).map(move |place| at(position, place))).collect()
}

/// One axis of a convolution.
struct Axis {
    size: usize,
    stride: usize,
    dilation: usize,
    /// Padding before the first input.
    before: i64,
    transposed: bool,
}

impl Axis {
    fn of(node: &NodeProto, axis: usize, size: usize, made: usize, kernel: usize, transposed: bool) -> Option<Self> {
        let number = |name: &str| ints_attribute(node, name).and_then(|all| all.get(axis)).copied();
        let stride = usize::try_from(number("strides").unwrap_or(1)).ok().filter(|s| *s > 0)?;
        let dilation = usize::try_from(number("dilations").unwrap_or(1)).ok().filter(|d| *d > 0)?;
        let extent = (dilation * (kernel - 1) + 1) as i64;
        // The total padding, if only given by the output's size.
        let total = match transposed {
            false => (made as i64 - 1) * stride as i64 + extent - size as i64,
            true => {
                let more = number("output_padding").unwrap_or(0);
                (size as i64 - 1) * stride as i64 + more + extent - made as i64
            }
        };
        let sized = transposed && ints_attribute(node, "output_shape").is_some();
        let before = match string_attribute(node, "auto_pad").unwrap_or("NOTSET") {
            "SAME_UPPER" => total.max(0) / 2,
            "SAME_LOWER" => total.max(0) - total.max(0) / 2,
            "VALID" => 0,
            _ if sized => total.max(0) - total.max(0) / 2,
            _ => number("pads").unwrap_or(0),
        };
        Some(Self { size, stride, dilation, before, transposed })
    }

    /// The input that a place of the output and one of the kernel meet at.
    fn source(&self, output: usize, kernel: usize) -> Option<usize> {
        let (output, kernel, stride) = (output as i64, (kernel * self.dilation) as i64, self.stride as i64);
        let source = match self.transposed {
            false => output * stride + kernel - self.before,
            true => {
                let from = output + self.before - kernel;
                (from % stride == 0).then_some(from / stride)?
            }
        };
        usize::try_from(source).ok().filter(|source| *source < self.size)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::runtime::{RuntimeChoice, RuntimeOptions, open};
    use crate::test_models::{floats, model, typed};

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 7919 + seed * 31) % 613) as f32 / 300.0 - 1.0).collect()
    }

    /// The output of the engine, and that of the product of matrices.
    fn both(node: NodeProto, input: &[usize], weight: &[usize]) -> (Vec<f32>, Vec<f32>) {
        let (x, w) = (values(input.iter().product(), 1), values(weight.iter().product(), 2));
        let mut model = model(17, vec![node.clone()], vec![floats("w", weight, &w)], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", input)];
        let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() };
        let mut session = open(&model, &["y".to_owned()], &options).unwrap();
        let array = Array::of(input.to_vec(), x).unwrap();
        let (mut expected, mut shape) = (Vec::new(), Vec::new());
        let run = session.run(&[("x", array.view())], &["y".to_owned()], &mut |_, y| {
            (expected, shape) = (y.to_f32s().into_owned(), y.shape().to_vec());
            ControlFlow::Continue(())
        });
        run.unwrap();
        let unfolding = Unfolding::of(&node, weight).unwrap();
        let mut made = vec![0f32; expected.len()];
        let seen = unfolding.seen(&node, array.shape(), &shape).unwrap();
        for group in 0..unfolding.groups {
            let inputs = unfolding.inputs(&array, &seen, group).unwrap();
            for (position, inputs) in inputs.chunks(unfolding.columns).enumerate() {
                for row in 0..unfolding.rows {
                    let product = |(column, x): (usize, &f32)| x * w[unfolding.place(group, row, column)];
                    let sum: f32 = inputs.iter().enumerate().map(product).sum();
                    let channel = group * unfolding.rows + row;
                    let (channels, inner) = (unfolding.groups * unfolding.rows, shape[2..].iter().product::<usize>());
                    let at = match shape.len() {
                        2 => position * channels + channel,
                        _ => (position / inner * channels + channel) * inner + position % inner,
                    };
                    made[at] = sum;
                }
            }
        }
        (expected, made)
    }

    fn convolution(op_type: &str, group: i64, numbers: &[(&str, &[i64])], pad: &str) -> NodeProto {
        let mut made = node(op_type, "", &["x", "w"], &["y"]);
        set_attribute(&mut made, "group", group);
        numbers.iter().for_each(|(name, values)| set_attribute(&mut made, name, *values));
        if !pad.is_empty() {
            set_attribute(&mut made, "auto_pad", pad);
        }
        made
    }

    fn agree((expected, made): (Vec<f32>, Vec<f32>)) {
        assert_eq!(expected.len(), made.len());
        for (e, m) in expected.iter().zip(&made) {
            assert!((e - m).abs() < 1e-3, "{expected:?} {made:?}");
        }
    }

    #[test]
    fn hessian_form_equals_the_layer_output() {
        let strided: &[(&str, &[i64])] = &[("strides", &[2, 1]), ("pads", &[1, 0, 2, 1]), ("dilations", &[1, 2])];
        agree(both(convolution("Conv", 2, strided, ""), &[2, 4, 7, 8], &[6, 2, 3, 2]));
        agree(both(convolution("Conv", 4, &[("strides", &[2, 2])], "SAME_UPPER"), &[1, 4, 7, 8], &[4, 1, 3, 3]));
        agree(both(convolution("Conv", 1, &[("pads", &[1, 1])], ""), &[1, 3, 9], &[2, 3, 3]));
        let transposed: &[(&str, &[i64])] = &[("strides", &[2, 2]), ("pads", &[1, 0, 0, 1])];
        agree(both(convolution("ConvTranspose", 1, transposed, ""), &[1, 3, 4, 5], &[3, 2, 3, 2]));
        agree(both(node("MatMul", "", &["x", "w"], &["y"]), &[3, 4], &[4, 5]));
        let mut gemm = node("Gemm", "", &["x", "w"], &["y"]);
        set_attribute(&mut gemm, "transB", 1i64);
        agree(both(gemm, &[3, 4], &[5, 4]));
    }
}
