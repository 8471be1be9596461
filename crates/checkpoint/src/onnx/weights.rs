//! Weights as constants of the graph, and the products with them. Codes of integers go to `com.microsoft.MatMulNBits` where it holds
//! them, else to DequantizeLinear, as fp8 codes do; what neither holds is stored as the floats that it stands for. Behind
//! DequantizeLinear onnxruntime rounds activations to 8 bits on its own account (`session.qdq_matmulnbits_accuracy_level`), which is
//! why MatMulNBits comes first. Where activations are 8-bit integers with one scale, codes of 8-bit weights go to DequantizeLinear:
//! onnxruntime then multiplies integers. They are unsigned there, because its products with signed weights saturate on x86 processors
//! without VNNI (1 to 4 % of the output's energy, measured with onnxruntime 1.31 on random weights; unsigned ones take 1.3 to 1.6 times
//! as long there).
//!
//! `MatMulNBits` takes a weight of K inputs and N outputs as `[N, K / block, block * bits / 8]`, the first code of a byte in its low
//! half, scales `[N * K / block]` and zero points packed like codes, a row of bytes an output; without zero points zero is the
//! middle code. Source: ONNX Runtime, ContribOperators.md; DequantizeLinear: ONNX operators, opset 21.

use super::builder::{Attribute, Value};
use super::decoder::Writer;
use super::error::OnnxExportError;
use kvant_container::onnx::{DataType, keep};
use kvant_forward::forward::Projection;
use kvant_numeric::format::MiniFloat;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::pack::{packed_bits, transpose};
use kvant_quant::QuantTensor;
use kvant_quant::scheme::{Axis, FloatScale, FloatScheme, Granularity, IntScheme, TensorScheme};
use kvant_weights::parts::{ScaleEncoding, encode};
use kvant_weights::weight::PackedMatrix;
use kvant_weights::weight::{Band, WeightMatrix};

/// The domain of onnxruntime's own operators.
pub(super) const MICROSOFT: &str = "com.microsoft";
/// Inputs of a block that the kernels of `MatMulNBits` take: powers of two from here.
const SMALLEST_BLOCK: usize = 16;
/// The largest block that is made.
const LARGEST_BLOCK: usize = 128;

/// A weight in the graph.
#[derive(Clone, Debug)]
pub(super) enum Weight {
    /// Floats `[in, out]`, or what becomes of codes.
    Matrix(Value),
    /// For `MatMulNBits`: codes, scales and zero points.
    Blocks { inputs: Vec<Value>, bits: u32, block: usize },
}

impl Writer<'_, '_> {
    /// `x W^T + b` for rows `x`.
    pub(super) fn linear(&mut self, layer: &Projection, x: &Value) -> Result<Value, OnnxExportError> {
        let x = &self.quantized_input(layer, x)?;
        let out = match self.weight(layer)? {
            Weight::Matrix(matrix) => self.builder.binary("MatMul", x, &matrix),
            Weight::Blocks { inputs, bits, block } => {
                let attributes = [
                    ("K", Attribute::Int(layer.columns as i64)),
                    ("N", Attribute::Int(layer.rows as i64)),
                    ("bits", Attribute::Int(i64::from(bits))),
                    ("block_size", Attribute::Int(block as i64)),
                ];
                let inputs: Vec<&Value> = std::iter::once(x).chain(&inputs).collect();
                let [out] = self.builder.node_of(MICROSOFT, "MatMulNBits", &inputs, &attributes);
                out
            }
        };
        let out = match self.decoder.tensors().bias(layer) {
            Some(bias) => {
                let bias = self.builder.numbers(&bias, &[bias.len()]);
                self.builder.binary("Add", &out, &bias)
            }
            None => out,
        };
        self.quantized_output(layer, out)
    }

    /// A table `[rows, columns]` whose rows are looked up, and the value of row numbers `rows`.
    pub(super) fn looked_up(&mut self, table: &Projection, rows: &Value) -> Result<Value, OnnxExportError> {
        let (constant, data_type) = self.constant_of(table, false)?;
        self.tables.insert(table.module.clone(), (constant.clone(), data_type));
        let found = self.builder.node("Gather", &[&constant, rows], &[("axis", Attribute::Int(0))]);
        Ok(self.as_floats(found, data_type))
    }

    fn as_floats(&mut self, value: Value, data_type: DataType) -> Value {
        if data_type == DataType::FLOAT { value } else { self.builder.cast(&value, DataType::FLOAT) }
    }

    fn weight(&mut self, layer: &Projection) -> Result<Weight, OnnxExportError> {
        if let Some(known) = self.weights.get(&layer.module) {
            return Ok(known.clone());
        }
        let weight = match (self.tables.get(&layer.module).cloned(), self.decoder.tensors().packed(layer)) {
            (None, _) if self.outline => self.floats(layer)?,
            // A head that is tied to the embedding.
            (Some((table, data_type)), _) => {
                let table = self.as_floats(table, data_type);
                Weight::Matrix(self.builder.transpose(&table, &[1, 0]))
            }
            (None, Some(matrix)) => self.packed(layer, matrix)?,
            (None, None) => self.floats(layer)?,
        };
        self.decoder.tensors().release(layer);
        self.weights.insert(layer.module.clone(), weight.clone());
        Ok(weight)
    }

    fn floats(&mut self, layer: &Projection) -> Result<Weight, OnnxExportError> {
        let (constant, data_type) = self.constant_of(layer, true)?;
        Ok(Weight::Matrix(self.as_floats(constant, data_type)))
    }

    /// The values of a weight in the type in which the checkpoint has them, f32 for codes.
    fn constant_of(&mut self, layer: &Projection, transposed: bool) -> Result<(Value, DataType), OnnxExportError> {
        let name = format!("{}.weight", layer.module);
        if self.outline {
            let nothing = keep(None, Vec::new())?;
            return Ok((self.builder.initializer(&name, DataType::FLOAT, &[0], nothing), DataType::FLOAT));
        }
        let matrix: WeightMatrix<'_> = self.decoder.weight(layer);
        let (rows, columns) = (layer.rows, layer.columns);
        let mut values = Vec::new();
        matrix.read(self.isa, &Band { rows: 0..rows, columns: 0..columns }, &mut values);
        check_finite(layer, "a weight", &values)?;
        let (encoding, data_type) = match self.decoder.tensors().float_source(layer) {
            Some(FloatDType::F16) => (ScaleEncoding::F16, DataType::FLOAT16),
            Some(FloatDType::Bf16) => (ScaleEncoding::Bf16, DataType::BFLOAT16),
            _ => (ScaleEncoding::F32, DataType::FLOAT),
        };
        let shape = if transposed { [columns, rows] } else { [rows, columns] };
        let values = if transposed { transposed_matrix(&values, rows, columns) } else { values };
        let contents = keep(self.spill, encode(encoding, &values))?;
        Ok((self.builder.initializer(&name, data_type, &shape, contents), data_type))
    }

    /// Codes, where an operator takes them.
    fn packed(&mut self, layer: &Projection, matrix: &PackedMatrix<'_>) -> Result<Weight, OnnxExportError> {
        let scheme = matrix.scheme(matrix.is_symmetric(self.isa), None).filter(|_| matrix.groups().is_none());
        match scheme {
            Some(TensorScheme::Int(int)) if !matches!(int.granularity, Granularity::Block { .. }) => {
                let is_byte = int.format.bits() == 8 && !matches!(int.granularity, Granularity::Group { .. });
                match block_of(int, layer) {
                    Some(block) if !(is_byte && self.multiplies_codes(layer)) => self.blocks(layer, matrix, int, block),
                    _ => self.dequantized(layer, matrix, int),
                }
            }
            Some(TensorScheme::Float(float)) if is_plain_fp8(float) => self.dequantized_fp8(layer, matrix, float),
            _ => {
                self.widened.push(layer.module.clone());
                self.floats(layer)
            }
        }
    }

    fn recoded(
        &self,
        layer: &Projection,
        matrix: &PackedMatrix<'_>,
        scheme: TensorScheme,
    ) -> Result<QuantTensor, OnnxExportError> {
        let band = Band { rows: 0..layer.rows, columns: 0..layer.columns };
        let wrong = |cause| OnnxExportError::Codes { layer: layer.module.clone(), cause };
        let tensor = matrix.recoded(self.isa, &band, scheme, Vec::new()).map_err(wrong)?;
        check_finite(layer, "a scale", tensor.scales())?;
        Ok(tensor)
    }

    /// Codes of up to 4 bits in 4, others in 8, signed ones with half of the range added; scales of longer groups than a
    /// block are repeated.
    fn blocks(
        &mut self,
        layer: &Projection,
        matrix: &PackedMatrix<'_>,
        int: IntScheme,
        (block, shared): (usize, usize),
    ) -> Result<Weight, OnnxExportError> {
        let tensor = self.recoded(layer, matrix, TensorScheme::Int(int))?;
        let bits = if int.format.bits() <= 4 { 4 } else { 8 };
        let middle = 1i16 << (bits - 1);
        let (rows, count) = (layer.rows, layer.columns.div_ceil(block));
        let codes = tensor.code_bytes().unwrap_or_default();
        let raised: Vec<u8> = codes.iter().map(|code| (i16::from(*code as i8) + middle) as u8).collect();
        let packed = raised.chunks(layer.columns.max(1)).flat_map(|row| packed_row(row, bits, count * block));
        let name = |what: &str| format!("{}.{what}", layer.module);
        let codes = keep(self.spill, packed.collect())?;
        let shape = [rows, count, block * bits as usize / 8];
        let (scale_rows, scale_columns) = tensor.scale_shape();
        let place = |row: usize, at: usize| row.min(scale_rows - 1) * scale_columns + at * block / shared;
        let places: Vec<usize> = (0..rows).flat_map(|row| (0..count).map(move |at| place(row, at))).collect();
        let scales: Vec<f32> = places.iter().map(|place| tensor.scales()[*place]).collect();
        let mut inputs = vec![
            self.builder.initializer(&name("weight_blocks"), DataType::UINT8, &shape, codes),
            self.scales(&name("weight_scales"), &scales, &[rows * count])?,
        ];
        let points = tensor.zero_points();
        if points.iter().any(|point| *point != 0.0) {
            let points: Vec<u8> = places.iter().map(|place| (points[*place] as i16 + middle) as u8).collect();
            let packed: Vec<u8> = points.chunks(count.max(1)).flat_map(|row| packed_row(row, bits, count)).collect();
            let shape = [packed.len()];
            inputs.push(self.builder.initializer(&name("weight_zero_points"), DataType::UINT8, &shape, packed));
        }
        Ok(Weight::Blocks { inputs, bits, block })
    }

    fn scales(&mut self, name: &str, scales: &[f32], shape: &[usize]) -> Result<Value, OnnxExportError> {
        let contents = keep(self.spill, encode(ScaleEncoding::F32, scales))?;
        Ok(self.builder.initializer(name, DataType::FLOAT, shape, contents))
    }

    /// Codes `[in, out]` behind DequantizeLinear. 4-bit codes stand two to a byte, all others one. Bytes that are multiplied as codes
    /// are unsigned.
    fn dequantized(
        &mut self,
        layer: &Projection,
        matrix: &PackedMatrix<'_>,
        int: IntScheme,
    ) -> Result<Weight, OnnxExportError> {
        let tensor = self.recoded(layer, matrix, TensorScheme::Int(int))?;
        let codes = transposed_matrix(tensor.code_bytes().unwrap_or_default(), layer.rows, layer.columns);
        let data_type = match int.format.bits() {
            4 => DataType::INT4,
            8 if self.multiplies_codes(layer) => DataType::UINT8,
            _ => DataType::INT8,
        };
        let store = |codes: Vec<u8>| match data_type {
            DataType::INT4 => packed_bits(&codes, 4),
            // Half of the range more is the other sign bit.
            DataType::UINT8 => codes.iter().map(|code| code ^ 0x80).collect(),
            _ => codes,
        };
        let mut points: Vec<u8> = tensor.zero_points().iter().map(|point| *point as i8 as u8).collect();
        let (scale_rows, scale_columns) = tensor.scale_shape();
        if data_type == DataType::UINT8 {
            points.resize(scale_rows * scale_columns, 0);
        }
        let points = (!points.is_empty()).then(|| store(transposed_matrix(&points, scale_rows, scale_columns)));
        self.behind_dequantize(layer, (data_type, store(codes)), &tensor, int.granularity, points)
    }

    fn dequantized_fp8(
        &mut self,
        layer: &Projection,
        matrix: &PackedMatrix<'_>,
        float: FloatScheme,
    ) -> Result<Weight, OnnxExportError> {
        let tensor = self.recoded(layer, matrix, TensorScheme::Float(float))?;
        let codes = transposed_matrix(tensor.code_bytes().unwrap_or_default(), layer.rows, layer.columns);
        if self.has_quantizers(layer) {
            return self.cast_fp8(layer, codes, tensor.scales());
        }
        self.behind_dequantize(layer, (DataType::FLOAT8E4M3FN, codes), &tensor, float.granularity, None)
    }

    /// Codes behind Cast and Mul, which onnxruntime does not fuse with what quantizes the input: its integer product refuses fp8.
    fn cast_fp8(&mut self, layer: &Projection, codes: Vec<u8>, scales: &[f32]) -> Result<Weight, OnnxExportError> {
        let name = |what: &str| format!("{}.{what}", layer.module);
        let contents = keep(self.spill, codes)?;
        let shape = [layer.columns, layer.rows];
        let codes = self.builder.initializer(&name("weight_codes"), DataType::FLOAT8E4M3FN, &shape, contents);
        let scales = self.scales(&name("weight_scale"), scales, &[scales.len()])?;
        let values = self.builder.cast(&codes, DataType::FLOAT);
        Ok(Weight::Matrix(self.builder.binary("Mul", &values, &scales)))
    }

    fn behind_dequantize(
        &mut self,
        layer: &Projection,
        (data_type, codes): (DataType, Vec<u8>),
        tensor: &QuantTensor,
        granularity: Granularity,
        zero_points: Option<Vec<u8>>,
    ) -> Result<Weight, OnnxExportError> {
        let (rows, columns) = tensor.scale_shape();
        let (shape, attributes) = match granularity {
            Granularity::Tensor => (vec![], vec![]),
            Granularity::Channel(_) => (vec![rows], vec![("axis", Attribute::Int(1))]),
            _ => {
                let block = layer.columns / columns.max(1);
                (vec![columns, rows], vec![("axis", Attribute::Int(0)), ("block_size", Attribute::Int(block as i64))])
            }
        };
        let name = |what: &str| format!("{}.{what}", layer.module);
        let contents = keep(self.spill, codes)?;
        let scales = transposed_matrix(tensor.scales(), rows, columns);
        let mut inputs = vec![
            self.builder.initializer(&name("weight_codes"), data_type, &[layer.columns, layer.rows], contents),
            self.scales(&name("weight_scale"), &scales, &shape)?,
        ];
        if let Some(points) = zero_points {
            inputs.push(self.builder.initializer(&name("weight_zero_point"), data_type, &shape, points));
        }
        let inputs: Vec<&Value> = inputs.iter().collect();
        Ok(Weight::Matrix(self.builder.node("DequantizeLinear", &inputs, &attributes)))
    }
}

fn check_finite(layer: &Projection, what: &'static str, values: &[f32]) -> Result<(), OnnxExportError> {
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(()),
        false => Err(OnnxExportError::NotFinite { layer: layer.module.clone(), what }),
    }
}

/// The block in which `MatMulNBits` takes these codes, and how many input channels share a scale: the largest power of two that
/// divides those.
fn block_of(int: IntScheme, layer: &Projection) -> Option<(usize, usize)> {
    let whole = layer.columns.next_power_of_two().clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
    let (block, shared) = match int.granularity {
        Granularity::Tensor | Granularity::Channel(Axis::Rows) => (whole, usize::MAX),
        Granularity::Group { axis: Axis::Columns, size } => {
            let size = size.map_or(layer.columns, |size| size.get() as usize);
            ((1 << size.trailing_zeros()).min(LARGEST_BLOCK), size)
        }
        _ => return None,
    };
    (block >= SMALLEST_BLOCK).then_some((block, shared))
}

/// e4m3 with a float scale for each channel or the tensor.
fn is_plain_fp8(float: FloatScheme) -> bool {
    let one_axis = matches!(float.granularity, Granularity::Tensor | Granularity::Channel(Axis::Rows));
    float.format == MiniFloat::E4M3 && one_axis && matches!(float.scale, FloatScale::Plain(_))
}

/// Codes of 4 or 8 bits, dense, filled up with zeros to `length` codes.
fn packed_row(codes: &[u8], bits: u32, length: usize) -> Vec<u8> {
    let mut padded = codes.to_vec();
    padded.resize(length, 0);
    packed_bits(&padded, bits)
}

/// The transpose of a matrix.
fn transposed_matrix<T: Copy + Default>(values: &[T], rows: usize, columns: usize) -> Vec<T> {
    let mut out = vec![T::default(); values.len()];
    transpose(values, rows, columns, &mut out);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn int4_rows_are_packed_low_nibble_first_with_padding() {
        assert_eq!(packed_row(&[1, 2, 3], 4, 6), [0x21, 3, 0]);
        assert_eq!(packed_row(&[1, 2, 3], 8, 4), [1, 2, 3, 0]);
        assert_eq!(packed_row(&[0xff, 0xfe, 0x07], 4, 3), [0xef, 0x07]);
    }

    #[test]
    fn matrix_is_transposed() {
        assert_eq!(transposed_matrix(&[1, 2, 3, 4, 5, 6], 2, 3), [1, 4, 2, 5, 3, 6]);
    }
}
