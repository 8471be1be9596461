//! Products of matrices: those of two tensors, and those of a tensor with a weight, convolutions included.

use kvant_container::onnx::NodeProto;
use kvant_numeric::linalg::{Matrix, MatrixMut, Patches, Threads, multiply, multiply_add};

use super::Operator;
use super::tensor::{Broadcast, Input, Tensor};
use crate::algorithm::form::{Convolution, Form, Kind, Product};
use crate::graph::float_attribute;

/// MatMul of two tensors of at least two axes.
pub(super) struct MatMul;

/// The matrices that are multiplied: sizes, and for each product the number of its matrix on either side.
struct Batches {
    rows: usize,
    shared: usize,
    columns: usize,
    pairs: Vec<(usize, usize)>,
    shape: Vec<usize>,
}

impl Batches {
    fn of(left: &[usize], right: &[usize]) -> Option<Batches> {
        let (&[ref left_batch @ .., rows, shared], &[ref right_batch @ .., inner, columns]) = (left, right) else {
            return None;
        };
        let broadcast = Broadcast::new(&[left_batch, right_batch])?;
        let mut pairs = Vec::new();
        broadcast.for_each(|_, at| pairs.push((at[0], at[1])));
        let mut shape = broadcast.shape;
        shape.extend([rows, columns]);
        (inner == shared && rows * shared * columns > 0).then_some(Batches { rows, shared, columns, pairs, shape })
    }
}

impl Operator for MatMul {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let [(left, a), (right, b)] = [inputs.first()?.floats()?, inputs.get(1)?.floats()?];
        let Batches { rows, shared, columns, pairs, shape } = Batches::of(left, right)?;
        let mut values = vec![0.0; shape.iter().product()];
        for (out, (i, j)) in values.chunks_mut(rows * columns).zip(pairs) {
            let a = Matrix::new(&a[i * rows * shared..][..rows * shared], rows, shared, shared);
            let b = Matrix::new(&b[j * shared * columns..][..shared * columns], shared, columns, columns);
            multiply(MatrixMut::new(out, rows, columns, columns), a, b, 1.0, Threads::Pool);
        }
        Some(Tensor { shape, values })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], wanted: &[bool]) -> Option<Vec<Vec<f32>>> {
        let [(left, a), (right, b)] = [inputs.first()?.floats()?, inputs.get(1)?.floats()?];
        let Batches { rows, shared, columns, pairs, .. } = Batches::of(left, right)?;
        let size = |input: usize, values: &[f32]| if wanted.get(input) == Some(&true) { values.len() } else { 0 };
        let mut gradients = vec![vec![0.0; size(0, a)], vec![0.0; size(1, b)]];
        for (slopes, (i, j)) in slopes.chunks(rows * columns).zip(pairs) {
            let slopes = Matrix::new(slopes, rows, columns, columns);
            if let Some(out) = gradients[0].get_mut(i * rows * shared..).filter(|out| !out.is_empty()) {
                let b = Matrix::new(&b[j * shared * columns..][..shared * columns], shared, columns, columns);
                let out = MatrixMut::new(&mut out[..rows * shared], rows, shared, shared);
                multiply_add(out, slopes, b.transposed(), 1.0, Threads::Pool);
            }
            if let Some(out) = gradients[1].get_mut(j * shared * columns..).filter(|out| !out.is_empty()) {
                let a = Matrix::new(&a[i * rows * shared..][..rows * shared], rows, shared, shared);
                let out = MatrixMut::new(&mut out[..shared * columns], shared, columns, columns);
                multiply_add(out, a.transposed(), slopes, 1.0, Threads::Pool);
            }
        }
        Some(gradients)
    }
}

/// A layer: the product of its input with a weight, `[outputs, features]`, which is the second input, and a bias.
pub(super) struct LayerProduct {
    form: Form,
    node: NodeProto,
    /// The factor of the bias.
    beta: f32,
}

impl LayerProduct {
    /// The layer of a node with a weight of a shape; `None` where it is not of the form.
    pub fn of(node: &NodeProto, weight: &[usize]) -> Option<LayerProduct> {
        let form = Form::of_node(node, weight).filter(|form| !matches!(form.kind, Kind::Normalization(_)))?;
        let beta = if node.op_type() == "Gemm" { float_attribute(node, "beta").unwrap_or(1.0) } else { 1.0 };
        Some(LayerProduct { form, node: node.clone(), beta })
    }

    /// A weight as it is stored in the order of this product.
    pub fn rows(&self, stored: &[f32]) -> Tensor {
        let shape = vec![self.form.shape.outputs, self.form.shape.features];
        Tensor { shape, values: self.form.rows(stored) }
    }

    fn bias<'a>(&self, inputs: &[Input<'a>]) -> Option<Option<(&'a [usize], &'a [f32])>> {
        match inputs.get(2) {
            None | Some(Input::Absent) => Some(None),
            Some(input) => Some(Some(input.floats()?)),
        }
    }
}

impl Operator for LayerProduct {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let [(shape, x), (_, weight)] = [inputs.first()?.floats()?, inputs.get(1)?.floats()?];
        let bias = self.bias(inputs)?;
        match &self.form.kind {
            Kind::Convolution(convolution) => {
                let window = Window::of(&self.form, convolution, &self.node, shape)?;
                Some(window.forward(x, weight, bias.map(|(_, values)| values)))
            }
            Kind::Product(product) => self.multiplied(*product, (shape, x), weight, bias),
            Kind::Normalization(_) => None,
        }
    }

    fn backward(
        &self,
        inputs: &[Input<'_>],
        output: &Tensor,
        slopes: &[f32],
        wanted: &[bool],
    ) -> Option<Vec<Vec<f32>>> {
        let [(shape, x), (_, weight)] = [inputs.first()?.floats()?, inputs.get(1)?.floats()?];
        let [of_input, of_weight] = [0, 1].map(|input| wanted.get(input) == Some(&true));
        if wanted.get(2) == Some(&true) {
            return None;
        }
        match &self.form.kind {
            Kind::Convolution(convolution) => {
                let window = Window::of(&self.form, convolution, &self.node, shape)?;
                let by_input = if of_input { window.by_input(weight, slopes)? } else { Vec::new() };
                let by_weight = if of_weight { window.by_weight(x, slopes) } else { Vec::new() };
                Some(vec![by_input, by_weight])
            }
            Kind::Product(product) => {
                let (features, outputs) = (self.form.shape.features, self.form.shape.outputs);
                let positions = output.values.len() / outputs.max(1);
                let slopes = Matrix::new(slopes, positions, outputs, outputs);
                let mut gradients = vec![Vec::new(), Vec::new()];
                if of_input {
                    gradients[0] = vec![0.0; x.len()];
                    let weight = Matrix::new(weight, outputs, features, features);
                    match product.transposed {
                        true => {
                            let out = MatrixMut::new(&mut gradients[0], features, positions, positions);
                            multiply(out, weight.transposed(), slopes.transposed(), product.factor, Threads::Pool);
                        }
                        false => {
                            let out = MatrixMut::new(&mut gradients[0], positions, features, features);
                            multiply(out, slopes, weight, product.factor, Threads::Pool);
                        }
                    }
                }
                if of_weight {
                    gradients[1] = vec![0.0; weight.len()];
                    let out = MatrixMut::new(&mut gradients[1], outputs, features, features);
                    let x = input_rows(*product, x, positions, features);
                    multiply(out, slopes.transposed(), x, product.factor, Threads::Pool);
                }
                Some(gradients)
            }
            Kind::Normalization(_) => None,
        }
    }
}

impl LayerProduct {
    fn multiplied(
        &self,
        product: Product,
        (shape, x): (&[usize], &[f32]),
        weight: &[f32],
        bias: Option<(&[usize], &[f32])>,
    ) -> Option<Tensor> {
        let (features, outputs) = (self.form.shape.features, self.form.shape.outputs);
        let mut made = shape.to_vec();
        let positions = x.len().checked_div(features)?;
        match (product.transposed, shape) {
            (true, &[rows, _]) if rows == features => made = vec![positions, outputs],
            (false, [.., last]) if *last == features => *made.last_mut()? = outputs,
            _ => return None,
        }
        let mut values = vec![0.0; positions * outputs];
        let weight = Matrix::new(weight, outputs, features, features).transposed();
        let out = MatrixMut::new(&mut values, positions, outputs, outputs);
        multiply(out, input_rows(product, x, positions, features), weight, product.factor, Threads::Pool);
        if let Some((own, bias)) = bias {
            Broadcast::new(&[&made, own])
                .filter(|broadcast| broadcast.shape == made)?
                .for_each(|element, at| values[element] += self.beta * bias[at[1]]);
        }
        Some(Tensor { shape: made, values })
    }
}

/// The input of a product, `[positions, features]`.
fn input_rows(product: Product, x: &[f32], positions: usize, features: usize) -> Matrix<'_> {
    match product.transposed {
        true => Matrix::new(x, features, positions, positions).transposed(),
        false => Matrix::new(x, positions, features, features),
    }
}

/// A convolution of an input of known sizes.
struct Window<'a> {
    form: &'a Form,
    patches: Patches,
    /// Those of the slopes, which give the gradient of the input.
    adjoint: Option<Patches>,
    batch: usize,
    channels: usize,
    outputs: Vec<usize>,
}

impl<'a> Window<'a> {
    fn of(form: &'a Form, convolution: &Convolution, node: &NodeProto, shape: &[usize]) -> Option<Window<'a>> {
        let &[batch, channels, ref inputs @ ..] = shape else { return None };
        let outputs = convolution.outputs(node, inputs)?;
        let patches = convolution.patches(inputs, &outputs)?;
        let adjoint = convolution.adjoint(inputs, &outputs);
        let fits = channels * patches.taps() == form.shape.groups * form.shape.features && patches.positions() > 0;
        fits.then_some(Window { form, patches, adjoint, batch, channels, outputs })
    }

    /// The patches of one input of a batch.
    fn unfolded(&self, x: &[f32], number: usize) -> Vec<f32> {
        let size = self.channels * self.patches.inputs();
        let signal = &x[number * size..][..size];
        if self.patches.is_identity() {
            return signal.to_vec();
        }
        let mut matrix = vec![0.0; self.channels * self.patches.taps() * self.patches.positions()];
        self.patches.im2col(self.channels, signal, &mut matrix);
        matrix
    }

    fn forward(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Tensor {
        let shape = self.form.shape;
        let (positions, features) = (self.patches.positions(), shape.features);
        let rows = shape.outputs / shape.groups;
        let mut values = vec![0.0; self.batch * shape.outputs * positions];
        for (number, out) in values.chunks_mut(shape.outputs * positions).enumerate() {
            let matrix = self.unfolded(x, number);
            let groups = out.chunks_mut(rows * positions).zip(weight.chunks(rows * features));
            for ((out, weight), x) in groups.zip(matrix.chunks(features * positions)) {
                let weight = Matrix::new(weight, rows, features, features);
                let x = Matrix::new(x, features, positions, positions);
                multiply(MatrixMut::new(out, rows, positions, positions), weight, x, 1.0, Threads::Pool);
            }
            for (out, bias) in out.chunks_mut(positions).zip(bias.unwrap_or_default()) {
                out.iter_mut().for_each(|value| *value += bias);
            }
        }
        let shape = [self.batch, shape.outputs].into_iter().chain(self.outputs.iter().copied()).collect();
        Tensor { shape, values }
    }

    fn by_weight(&self, x: &[f32], slopes: &[f32]) -> Vec<f32> {
        let shape = self.form.shape;
        let (positions, features) = (self.patches.positions(), shape.features);
        let rows = shape.outputs / shape.groups;
        let mut gradient = vec![0.0; shape.weights()];
        for (number, slopes) in slopes.chunks(shape.outputs * positions).enumerate() {
            let matrix = self.unfolded(x, number);
            let groups = gradient.chunks_mut(rows * features).zip(slopes.chunks(rows * positions));
            for ((out, slopes), x) in groups.zip(matrix.chunks(features * positions)) {
                let slopes = Matrix::new(slopes, rows, positions, positions);
                let x = Matrix::new(x, features, positions, positions).transposed();
                multiply_add(MatrixMut::new(out, rows, features, features), slopes, x, 1.0, Threads::Pool);
            }
        }
        gradient
    }

    /// The convolution of the slopes with the weight, inputs and outputs exchanged. `None` where the patches of slopes are unknown.
    fn by_input(&self, weight: &[f32], slopes: &[f32]) -> Option<Vec<f32>> {
        let (shape, adjoint) = (self.form.shape, self.adjoint.as_ref()?);
        let (taps, rows, inputs) = (adjoint.taps(), shape.outputs / shape.groups, adjoint.positions());
        let own = self.channels / shape.groups;
        // [channel, output and tap] of each group.
        let mut exchanged = vec![0.0; weight.len()];
        for (i, value) in weight.iter().enumerate() {
            let (output, channel, tap) = (i / shape.features, i % shape.features / taps, i % taps);
            exchanged[((output / rows * own + channel) * rows + output % rows) * taps + tap] = *value;
        }
        let mut gradient = vec![0.0; self.batch * self.channels * inputs];
        let size = shape.outputs * adjoint.inputs();
        let mut matrix = vec![0.0; shape.outputs * taps * inputs];
        for (out, slopes) in gradient.chunks_mut(self.channels * inputs).zip(slopes.chunks(size)) {
            adjoint.im2col(shape.outputs, slopes, &mut matrix);
            let groups = out.chunks_mut(own * inputs).zip(exchanged.chunks(own * rows * taps));
            for ((out, weight), slopes) in groups.zip(matrix.chunks(rows * taps * inputs)) {
                let weight = Matrix::new(weight, own, rows * taps, rows * taps);
                let slopes = Matrix::new(slopes, rows * taps, inputs, inputs);
                multiply(MatrixMut::new(out, own, inputs, inputs), weight, slopes, 1.0, Threads::Pool);
            }
        }
        Some(gradient)
    }
}
