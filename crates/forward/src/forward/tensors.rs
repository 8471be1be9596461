//! The tensors of a checkpoint as the forward pass reads them: weight matrices left where they are mapped, small vectors
//! widened. What was found fit when the model was opened is read without further questions.

use super::error::ForwardError;
use kvant_container::{Dtype, TensorView};
use kvant_model::network::{Linear, TensorMeta};
use kvant_numeric::kernel::{FloatDType, widen};
use kvant_numeric::simd::Isa;
use kvant_weights::band::Band;
use kvant_weights::weight::{ImportedTensor, PackedMatrix, Stored};
use kvant_weights::weight::{WeightMatrix, first_not_finite};
use std::ops::Range;
use std::sync::Arc;

/// A linear layer: a matrix in a tensor and a bias in another.
#[derive(Clone, Debug, PartialEq)]
pub struct Projection {
    /// The module's full name.
    pub module: String,
    /// The position of the tensor with the weight.
    tensor: usize,
    place: MatrixPlace,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub columns: usize,
    bias: Option<Vector>,
}

impl Projection {
    /// The layer with another bias.
    pub(super) fn with_bias(self, bias: Option<Vector>) -> Projection {
        Projection { bias, ..self }
    }
}

/// The position of a matrix in its tensor.
#[derive(Clone, Debug, PartialEq)]
enum MatrixPlace {
    /// Floats at these bytes.
    Plain { bytes: Range<usize>, source: FloatDType, is_transposed: bool },
    /// The packed matrix of this number.
    Packed(usize),
}

/// Some elements of a tensor, to be used as a vector.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Vector {
    tensor: usize,
    bytes: Range<usize>,
    source: FloatDType,
    /// The number of elements.
    pub length: usize,
}

impl Vector {
    /// The position of the tensor among those of the checkpoint.
    pub fn tensor(&self) -> usize {
        self.tensor
    }

    /// The type that its elements are stored in.
    pub fn source(&self) -> FloatDType {
        self.source
    }
}

/// A table of small numbers, a row for each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerTable {
    tensor: usize,
    columns: usize,
    /// Bytes of a number.
    size: usize,
}

/// The tensors of a checkpoint, in its order.
#[derive(Clone, Debug)]
pub struct Tensors<'a> {
    meta: Vec<TensorMeta>,
    stored: Vec<Stored<'a>>,
}

impl<'a> Tensors<'a> {
    /// All of these.
    pub fn new(tensors: Vec<ImportedTensor<'a>>) -> Tensors<'a> {
        let (meta, stored) = tensors.into_iter().map(|tensor| (tensor.meta, tensor.stored)).unzip();
        Tensors { meta, stored }
    }

    /// The tensors in the form that networks are recognised from.
    pub fn meta(&self) -> &[TensorMeta] {
        &self.meta
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
        let is_transposed = linear.orientation == kvant_model::family::Orientation::InOut;
        let size = (linear.out_features, linear.in_features);
        let bias = linear.bias.map(|bias| self.vector(bias, Some(linear.out_features))).transpose()?;
        let module = linear.module.clone();
        Ok(Projection { module, bias, ..self.matrix_at(linear.weight, 0, 1, size, is_transposed)? })
    }

    /// A whole tensor `[rows, columns]`, such as an embedding.
    ///
    /// # Errors
    ///
    /// As for [`Tensors::projection`].
    pub fn table(&self, tensor: usize) -> Result<Projection, ForwardError> {
        let [rows, columns] = *self.meta[tensor].shape.as_slice() else {
            return Err(self.shape_error(tensor, "a table"));
        };
        self.matrix_at(tensor, 0, 1, (rows, columns), false)
    }

    /// A whole tensor `[columns, rows]`, as layers store it whose weight is the matrix that their inputs are multiplied by.
    ///
    /// # Errors
    ///
    /// As for [`Tensors::projection`].
    pub fn input_major(&self, tensor: usize, [rows, columns]: [usize; 2]) -> Result<Projection, ForwardError> {
        match self.meta[tensor].shape == [columns, rows] {
            true => self.matrix_at(tensor, 0, 1, (rows, columns), true),
            false => Err(self.shape_error(tensor, &format!("{columns} inputs and {rows} outputs"))),
        }
    }

    /// A whole tensor of any number of axes as rows of `width` elements.
    ///
    /// # Errors
    ///
    /// As for [`Tensors::projection`].
    pub fn rows_of_width(&self, tensor: usize, width: usize) -> Result<Projection, ForwardError> {
        let elements = self.meta[tensor].shape.iter().product::<usize>();
        if width == 0 || !elements.is_multiple_of(width) {
            return Err(self.shape_error(tensor, &format!("rows of {width} elements")));
        }
        self.matrix_at(tensor, 0, 1, (elements / width, width), false)
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
        is_transposed: bool,
    ) -> Result<Projection, ForwardError> {
        let bias = bias.map(|bias| {
            let all = self.vector(bias, Some(count * size.0))?;
            let step = size.0 * all.source.size();
            let start = all.bytes.start + index * step;
            Ok::<_, ForwardError>(Vector { bytes: start..start + step, length: size.0, ..all })
        });
        let module = kvant_model::network::expert_module(module, index);
        Ok(Projection { module, bias: bias.transpose()?, ..self.matrix_at(tensor, index, count, size, is_transposed)? })
    }

    fn matrix_at(
        &self,
        tensor: usize,
        index: usize,
        count: usize,
        (rows, columns): (usize, usize),
        is_transposed: bool,
    ) -> Result<Projection, ForwardError> {
        let misfit = || self.shape_error(tensor, &format!("{count} matrices of {rows} outputs and {columns} inputs"));
        let place = match &self.stored[tensor] {
            Stored::Packed(matrices) => {
                let fits = |matrix: &Arc<PackedMatrix<'_>>| (matrix.rows(), matrix.columns()) == (rows, columns);
                let matrix = matrices.get(index).filter(|matrix| matrices.len() == count && fits(matrix));
                matrix.map(|_| MatrixPlace::Packed(index)).ok_or_else(misfit)?
            }
            Stored::Plain(view) => {
                let source = source(*view)?;
                let step = rows * columns * source.size();
                if step.checked_mul(count) != Some(view.bytes().len()) || rows == 0 || columns == 0 {
                    return Err(misfit());
                }
                MatrixPlace::Plain { bytes: index * step..(index + 1) * step, source, is_transposed }
            }
        };
        let name = &self.meta[tensor].name;
        let module = name.strip_suffix(".weight").unwrap_or(name).to_owned();
        Ok(Projection { module, tensor, place, rows, columns, bias: None })
    }

    /// A tensor as a vector, of `length` elements if that is given.
    ///
    /// # Errors
    ///
    /// Another length, and types that are not floats.
    pub fn vector(&self, tensor: usize, length: Option<usize>) -> Result<Vector, ForwardError> {
        let (source, bytes) = match &self.stored[tensor] {
            Stored::Plain(view) => (source(*view)?, view.bytes().len()),
            // Codes of a bias are read as floats.
            Stored::Packed(matrices) => match &matrices[..] {
                [matrix] => (FloatDType::F32, matrix.rows() * matrix.columns() * FloatDType::F32.size()),
                _ => return Err(ForwardError::unsupported(format!("{}, which is quantized", self.meta[tensor].name))),
            },
        };
        let found = bytes / source.size();
        if length.is_some_and(|length| length != found) {
            return Err(self.shape_error(tensor, &format!("{} elements", length.unwrap_or(0))));
        }
        Ok(Vector { tensor, bytes: 0..bytes, source, length: found })
    }

    /// A tensor of integers as a table `[rows, columns]` of numbers below `bound`.
    ///
    /// # Errors
    ///
    /// Another shape or type, and larger numbers.
    pub fn integers(
        &self,
        tensor: usize,
        (rows, columns): (usize, usize),
        bound: usize,
    ) -> Result<IntegerTable, ForwardError> {
        let meta = &self.meta[tensor];
        let size = match meta.dtype.as_str() {
            "I64" => 8,
            "I32" => 4,
            other => return Err(ForwardError::unsupported(format!("{}, which is {other}", meta.name))),
        };
        let table = IntegerTable { tensor, columns, size };
        let bytes = rows.checked_mul(columns).and_then(|count| count.checked_mul(size));
        let fits = matches!(&self.stored[tensor], Stored::Plain(view) if Some(view.bytes().len()) == bytes);
        if meta.shape != [rows, columns] || !fits {
            return Err(self.shape_error(tensor, &format!("{rows} rows of {columns} integers")));
        }
        let mut all = (0..rows).flat_map(|row| self.integer_row(&table, row));
        match all.find(|number| *number >= bound) {
            Some(number) => Err(ForwardError::unsupported(format!(
                "{}, which holds a number other than those below {bound}: {number}",
                meta.name
            ))),
            None => Ok(table),
        }
    }

    /// A row of a table of integers; none beyond its end. Negative numbers are larger than all others.
    pub fn integer_row(&self, table: &IntegerTable, row: usize) -> Vec<usize> {
        let Stored::Plain(view) = &self.stored[table.tensor] else { return Vec::new() };
        let width = table.columns * table.size;
        let Some(bytes) = view.bytes().get(row * width..(row + 1) * width) else { return Vec::new() };
        let number = |bytes: &[u8]| {
            let wide = bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
            usize::try_from(wide).unwrap_or(usize::MAX)
        };
        bytes.chunks_exact(table.size).map(number).collect()
    }

    /// An error about the shape of a tensor.
    pub fn shape_error(&self, tensor: usize, expected: &str) -> ForwardError {
        let meta = &self.meta[tensor];
        ForwardError::Shape { tensor: meta.name.clone(), found: meta.shape.clone(), expected: expected.to_owned() }
    }

    /// The weight of a layer, where it is mapped.
    pub fn weight(&self, layer: &Projection) -> WeightMatrix<'a> {
        match (&layer.place, &self.stored[layer.tensor]) {
            (MatrixPlace::Plain { bytes, source, is_transposed }, Stored::Plain(view)) => {
                let bytes = &view.bytes()[bytes.clone()];
                WeightMatrix::plain(bytes, *source, (layer.rows, layer.columns), *is_transposed)
            }
            (MatrixPlace::Packed(index), Stored::Packed(matrices)) => {
                WeightMatrix::packed(Arc::clone(&matrices[*index]))
            }
            // A layer's place is that of its tensor.
            _ => WeightMatrix::plain(&[], FloatDType::F32, (0, layer.columns), false),
        }
    }

    /// The codes and scales of a layer that is quantized.
    pub fn packed(&self, layer: &Projection) -> Option<&Arc<PackedMatrix<'a>>> {
        match (&layer.place, &self.stored[layer.tensor]) {
            (MatrixPlace::Packed(index), Stored::Packed(matrices)) => matrices.get(*index),
            _ => None,
        }
    }

    /// The type that a layer's floats are stored in.
    pub fn float_source(&self, layer: &Projection) -> Option<FloatDType> {
        match layer.place {
            MatrixPlace::Plain { source, .. } => Some(source),
            MatrixPlace::Packed(_) => None,
        }
    }

    /// The first element of a layer's weight that is NaN or infinite: the tensor, output and input, and the value. Weights that
    /// are quantized are looked at by who reads them.
    pub fn first_not_finite(&self, layer: &Projection) -> Option<(&str, [usize; 2], f32)> {
        let (MatrixPlace::Plain { bytes, source, is_transposed }, Stored::Plain(view)) =
            (&layer.place, &self.stored[layer.tensor])
        else {
            return None;
        };
        let (index, value) = first_not_finite(&view.bytes()[bytes.clone()], *source)?;
        let place = match is_transposed {
            true => [index % layer.rows, index / layer.rows],
            false => [index / layer.columns, index % layer.columns],
        };
        Some((&self.meta[layer.tensor].name, place, value))
    }

    /// The first tensor with a value that is NaN or infinite, packed ones included, and the value.
    pub fn first_broken(&self) -> Option<(&str, f32)> {
        let all = self.meta.iter().zip(&self.stored);
        all.into_iter().find_map(|(meta, stored)| Some((meta.name.as_str(), broken_value(stored)?)))
    }

    /// The bias of a layer.
    pub fn bias(&self, layer: &Projection) -> Option<Vec<f32>> {
        layer.bias.as_ref().map(|bias| self.values(bias))
    }

    /// A vector, widened.
    pub fn values(&self, vector: &Vector) -> Vec<f32> {
        let mut values = vec![0.0; vector.length];
        match &self.stored[vector.tensor] {
            Stored::Plain(view) => {
                widen(Isa::best(), vector.source, &view.bytes()[vector.bytes.clone()], &mut values);
            }
            Stored::Packed(matrices) => {
                let mut all = Vec::new();
                for matrix in matrices {
                    matrix.read(Isa::best(), &Band { rows: 0..matrix.rows(), columns: 0..matrix.columns() }, &mut all);
                }
                let first = vector.bytes.start / vector.source.size();
                all.into_iter().skip(first).zip(&mut values).for_each(|(value, place)| *place = value);
            }
        }
        values
    }

    /// Gives the pages of a layer's weight back to the system.
    pub fn release(&self, layer: &Projection) {
        match (&layer.place, &self.stored[layer.tensor]) {
            (MatrixPlace::Plain { bytes, .. }, Stored::Plain(view)) => view.release_part(bytes.clone()),
            (MatrixPlace::Packed(index), Stored::Packed(matrices)) => matrices[*index].release(),
            _ => {}
        }
    }
}

/// The first value of a tensor that is NaN or infinite. Packed matrices are read row by row.
fn broken_value(stored: &Stored<'_>) -> Option<f32> {
    match stored {
        Stored::Plain(view) => Some(first_not_finite(view.bytes(), source(*view).ok()?)?.1),
        Stored::Packed(matrices) => {
            let mut row = Vec::new();
            matrices.iter().find_map(|matrix| {
                (0..matrix.rows()).find_map(|index| {
                    row.clear();
                    matrix.read(Isa::best(), &Band { rows: index..index + 1, columns: 0..matrix.columns() }, &mut row);
                    row.iter().copied().find(|value| !value.is_finite())
                })
            })
        }
    }
}

fn source(view: TensorView<'_>) -> Result<FloatDType, ForwardError> {
    match view.dtype() {
        Dtype::F32 => Ok(FloatDType::F32),
        Dtype::F16 => Ok(FloatDType::F16),
        Dtype::BF16 => Ok(FloatDType::Bf16),
        dtype => Err(ForwardError::unsupported(format!("{}, which is {dtype}", view.name()))),
    }
}
