//! The tensors of a checkpoint as the forward pass reads them: weight matrices left where they are mapped, small vectors
//! widened. What was found fit when the model was opened is read without further questions.

use super::error::ForwardError;
use crate::network::Linear;
use crate::weight::{Band, WeightMatrix};
use kvant_container::{Dtype, TensorView};
use kvant_numeric::kernel::{Source, widen};
use kvant_numeric::simd::Isa;
use std::ops::Range;

/// A linear layer: a matrix in a tensor and a bias in another.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// The module's full name.
    pub module: String,
    /// The position of the tensor with the weight.
    tensor: usize,
    /// Where the matrix stands in the tensor's bytes.
    bytes: Range<usize>,
    source: Source,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub columns: usize,
    input_major: bool,
    bias: Option<Vector>,
}

/// Some elements of a tensor, to be used as a vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    tensor: usize,
    bytes: Range<usize>,
    source: Source,
    /// The number of elements.
    pub length: usize,
}

/// The tensors of a checkpoint, in its order.
#[derive(Clone, Debug)]
pub struct Tensors<'a> {
    views: Vec<TensorView<'a>>,
}

impl<'a> Tensors<'a> {
    /// All of these.
    pub fn new(views: Vec<TensorView<'a>>) -> Tensors<'a> {
        Tensors { views }
    }

    /// The tensors in the form that networks are recognised from.
    pub fn views(&self) -> &[TensorView<'a>] {
        &self.views
    }

    /// A linear layer of the network.
    ///
    /// # Errors
    ///
    /// Shapes that contradict the network, and types that are not floats.
    pub fn projection(&self, linear: &Linear) -> Result<Projection, ForwardError> {
        if linear.scale.is_some() {
            return Err(ForwardError::unsupported(format!("{}, whose weight is quantized already", linear.module)));
        }
        let input_major = linear.orientation == crate::family::Orientation::InOut;
        let size = (linear.out_features, linear.in_features);
        let bias = linear.bias.map(|bias| self.vector(bias, Some(linear.out_features))).transpose()?;
        let module = linear.module.clone();
        Ok(Projection { module, bias, ..self.matrix_at(linear.weight, 0, 1, size, input_major)? })
    }

    /// A whole tensor `[rows, columns]`, such as an embedding.
    ///
    /// # Errors
    ///
    /// As for [`Tensors::projection`].
    pub fn table(&self, tensor: usize) -> Result<Projection, ForwardError> {
        let [rows, columns] = *self.views[tensor].shape() else {
            return Err(self.shape_error(tensor, "a table"));
        };
        self.matrix_at(tensor, 0, 1, (rows, columns), false)
    }

    /// Matrix `index` of the `count` in a tensor that is called `module`, with row `index` of `bias`.
    ///
    /// # Errors
    ///
    /// As for [`Tensors::projection`].
    pub fn slice(
        &self,
        module: &str,
        (tensor, bias): (usize, Option<usize>),
        (index, count): (usize, usize),
        size: (usize, usize),
        input_major: bool,
    ) -> Result<Projection, ForwardError> {
        let bias = bias.map(|bias| {
            let all = self.vector(bias, Some(count * size.0))?;
            let step = size.0 * all.source.size();
            let start = all.bytes.start + index * step;
            Ok::<_, ForwardError>(Vector { bytes: start..start + step, length: size.0, ..all })
        });
        let module = crate::plan::expert_module(module, index);
        Ok(Projection { module, bias: bias.transpose()?, ..self.matrix_at(tensor, index, count, size, input_major)? })
    }

    fn matrix_at(
        &self,
        tensor: usize,
        index: usize,
        count: usize,
        (rows, columns): (usize, usize),
        input_major: bool,
    ) -> Result<Projection, ForwardError> {
        let source = self.source(tensor)?;
        let step = rows * columns * source.size();
        if step.checked_mul(count) != Some(self.views[tensor].bytes().len()) || rows == 0 || columns == 0 {
            return Err(self.shape_error(tensor, &format!("{count} matrices of {rows} outputs and {columns} inputs")));
        }
        let bytes = index * step..(index + 1) * step;
        let name = self.views[tensor].name();
        let module = name.strip_suffix(".weight").unwrap_or(name).to_owned();
        Ok(Projection { module, tensor, bytes, source, rows, columns, input_major, bias: None })
    }

    /// A tensor as a vector, of `length` elements if that is given.
    ///
    /// # Errors
    ///
    /// Another length, and types that are not floats.
    pub fn vector(&self, tensor: usize, length: Option<usize>) -> Result<Vector, ForwardError> {
        let (source, bytes) = (self.source(tensor)?, self.views[tensor].bytes().len());
        let found = bytes / source.size();
        if length.is_some_and(|length| length != found) {
            return Err(self.shape_error(tensor, &format!("{} elements", length.unwrap_or(0))));
        }
        Ok(Vector { tensor, bytes: 0..bytes, source, length: found })
    }

    /// An error about the shape of a tensor.
    pub fn shape_error(&self, tensor: usize, expected: &str) -> ForwardError {
        let view = &self.views[tensor];
        ForwardError::Shape {
            tensor: view.name().to_owned(),
            found: view.shape().to_vec(),
            expected: expected.to_owned(),
        }
    }

    fn source(&self, tensor: usize) -> Result<Source, ForwardError> {
        let view = &self.views[tensor];
        match view.dtype() {
            Dtype::F32 => Ok(Source::F32),
            Dtype::F16 => Ok(Source::F16),
            Dtype::BF16 => Ok(Source::Bf16),
            dtype => Err(ForwardError::unsupported(format!("{}, which is {dtype}", view.name()))),
        }
    }

    /// The weight of a layer, where it is mapped.
    pub fn weight(&self, layer: &Projection) -> WeightMatrix<'a> {
        WeightMatrix {
            bytes: &self.views[layer.tensor].bytes()[layer.bytes.clone()],
            source: layer.source,
            rows: layer.rows,
            columns: layer.columns,
            input_major: layer.input_major,
            scales: None,
        }
    }

    /// Some rows of a layer's weight. Of a weight stored by inputs, which no head is, all rows.
    pub fn weight_rows(&self, layer: &Projection, rows: Range<usize>) -> WeightMatrix<'a> {
        let whole = self.weight(layer);
        let row = layer.columns * layer.source.size();
        WeightMatrix { bytes: &whole.bytes[rows.start * row..rows.end * row], rows: rows.len(), ..whole }
    }

    /// The bias of a layer.
    pub fn bias(&self, layer: &Projection) -> Option<Vec<f32>> {
        layer.bias.as_ref().map(|bias| self.values(bias))
    }

    /// A vector, widened.
    pub fn values(&self, vector: &Vector) -> Vec<f32> {
        let mut values = vec![0.0; vector.length];
        let bytes = &self.views[vector.tensor].bytes()[vector.bytes.clone()];
        widen(Isa::best(), vector.source, bytes, &mut values);
        values
    }

    /// One row of a table, appended to `out`.
    pub fn read_row(&self, table: &Projection, row: usize, out: &mut Vec<f32>) {
        let band = Band { rows: row..row + 1, columns: 0..table.columns };
        self.weight(table).read(Isa::best(), &band, out);
    }

    /// Gives the pages of a layer's weight back to the system.
    pub fn release(&self, layer: &Projection) {
        self.views[layer.tensor].release_part(layer.bytes.clone());
    }
}
