//! The output error of a layer relative to its float weights: with the chosen codes, and with those of
//! rounding to nearest. Measured on held-out sequences, if there are any.

use super::error::BlockwiseError;
use super::inputs::Inputs;
use super::run::Blockwise;
use super::work::Work;
use crate::plan::LayerId;
use kvant_forward::forward::WeightOverrides;
use kvant_numeric::linalg::{Matrix, MatrixMut, Threads, multiply};
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::hessian::Hessian;
use kvant_weights::weight::{Band, WeightMatrix, WeightTransform};
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::Arc;

/// Squared errors of a layer's outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Losses {
    /// Without any algorithm.
    pub(super) nearest: f64,
    /// With the codes that were chosen.
    pub(super) chosen: f64,
    /// Held-out tokens over which both are taken; none where they are of calibration tokens.
    pub(super) held_out: Option<u64>,
}

/// The minimum number of rows that represent all rows of a larger weight.
const LOSS_ROWS: usize = 512;

/// Rows of weights that one thread takes at a time.
const BAND: usize = 64;

/// Held-out tokens below which codes, scales and limits are not compared.
pub(super) const COMPARABLE: u64 = 8;

impl<'a> Blockwise<'_, 'a> {
    /// Returns whether enough held-out tokens reached a module to compare codes of its layers.
    pub(super) fn is_measurable(work: &Work<'_, '_, 'a>, module: &str) -> bool {
        work.held_out.get(module).is_some_and(|inputs| inputs.statistic.tokens() >= COMPARABLE)
    }

    /// The losses of a layer with the input of `module`, estimated on rows of its inputs: of held-out sequences, otherwise of
    /// rows sampled for transforms, if any.
    pub(super) fn losses(
        &self,
        work: &Work<'_, '_, 'a>,
        module: &str,
        index: LayerId,
        tensor: &QuantTensor,
    ) -> Result<Option<Losses>, BlockwiseError> {
        let seen = |all: &HashMap<String, Inputs>| all.get(module).is_some_and(|inputs| !inputs.rows.is_empty());
        let (all, is_held_out) = if seen(&work.held_out) { (&work.held_out, true) } else { (&work.inputs, false) };
        let Some(inputs) = all.get(module).filter(|inputs| !inputs.rows.is_empty()) else { return Ok(None) };
        let nearest = self.loss_on(work, index, inputs, &self.unchanged(work, index)?)?;
        let chosen = self.loss_on(work, index, inputs, &quantized(tensor))?;
        let held_out = is_held_out.then(|| inputs.statistic.tokens());
        Ok(Some(Losses { nearest, chosen, held_out }))
    }

    /// The loss of codes on held-out tokens, if any reached the layer.
    pub(super) fn held_out_loss(
        &self,
        work: &Work<'_, '_, 'a>,
        module: &str,
        index: LayerId,
        tensor: &QuantTensor,
    ) -> Result<Option<f64>, BlockwiseError> {
        let inputs = work.held_out.get(module).filter(|inputs| !inputs.rows.is_empty());
        inputs.map(|inputs| self.loss_on(work, index, inputs, &quantized(tensor))).transpose()
    }

    /// The squared errors of the outputs over all tokens of some inputs, as rows of inputs and of outputs at even distances tell.
    fn loss_on(
        &self,
        work: &Work<'_, '_, 'a>,
        index: LayerId,
        inputs: &Inputs,
        quantized: &WeightMatrix<'a>,
    ) -> Result<f64, BlockwiseError> {
        let float = self.matrix(&work.float, work.block.index, self.plan.layer(index))?;
        let (columns, isa) = (float.columns, self.engine.isa);
        let rows: Vec<usize> = loss_rows(float.rows).collect();
        let of_rows = |rows: &[usize]| {
            let (of_float, of_quantized) = (rows_of(isa, &float, rows), rows_of(isa, quantized, rows));
            let errors: Vec<f32> = of_float.iter().zip(of_quantized).map(|(w, q)| w - q).collect();
            error_of_outputs(&errors, &inputs.rows, columns)
        };
        let sums: Vec<f64> = rows.par_chunks(BAND).map(of_rows).collect();
        let share = (rows.len() * inputs.rows.len()) as f64 / (float.rows * columns) as f64;
        Ok(sums.iter().sum::<f64>() * inputs.statistic.tokens() as f64 / share)
    }

    /// The loss of rounding to nearest over all calibration tokens, as rows at even distances tell: of all of them it would take
    /// as long as all codes.
    pub(super) fn loss_of_nearest(
        &self,
        work: &Work<'_, '_, 'a>,
        index: LayerId,
        hessian: &Hessian,
    ) -> Result<f64, BlockwiseError> {
        let nearest = self.unchanged(work, index)?;
        self.loss_by_rows(work, index, hessian, &nearest)
    }

    /// The same of codes.
    pub(super) fn loss_of_codes(
        &self,
        work: &Work<'_, '_, 'a>,
        index: LayerId,
        hessian: &Hessian,
        tensor: &QuantTensor,
    ) -> Result<f64, BlockwiseError> {
        self.loss_by_rows(work, index, hessian, &quantized(tensor))
    }

    fn loss_by_rows(
        &self,
        work: &Work<'_, '_, 'a>,
        index: LayerId,
        hessian: &Hessian,
        changed: &WeightMatrix<'a>,
    ) -> Result<f64, BlockwiseError> {
        let float = self.matrix(&work.float, work.block.index, self.plan.layer(index))?;
        let (rows, isa): (Vec<usize>, _) = (loss_rows(changed.rows).collect(), self.engine.isa);
        let loss = hessian.loss(&rows_of(isa, &float, &rows), &rows_of(isa, changed, &rows));
        Ok(loss * changed.rows as f64 / rows.len() as f64)
    }

    /// The source's weight rounded to nearest, with the scales that were moved since: what there would be without any
    /// algorithm, for the same outputs.
    fn unchanged(&self, work: &Work<'_, '_, 'a>, index: LayerId) -> Result<WeightMatrix<'a>, BlockwiseError> {
        let (layer, block, none) = (self.plan.layer(index), work.block.index, WeightOverrides::default());
        let context = self.context(&none, block, index)?;
        let nearest = quantized(&self.nearest(layer, &self.matrix(&none, block, layer)?, context)?);
        Ok(match work.foldings.folding(&layer.module) {
            Some(folding) => nearest.folded(Arc::new(WeightTransform { limits: None, ..folding })),
            None => nearest,
        })
    }
}

fn rows_of(isa: Isa, matrix: &WeightMatrix<'_>, rows: &[usize]) -> Vec<f32> {
    let mut values = Vec::new();
    for row in rows {
        matrix.read(isa, &Band { rows: *row..row + 1, columns: 0..matrix.columns }, &mut values);
    }
    values
}

fn quantized<'a>(tensor: &QuantTensor) -> WeightMatrix<'a> {
    WeightMatrix::quantized(Arc::new(tensor.clone()))
}

fn loss_rows(rows: usize) -> impl Iterator<Item = usize> {
    (0..rows).step_by((rows / LOSS_ROWS).max(1))
}

/// The squares of all products of rows of errors and of inputs, summed.
fn error_of_outputs(errors: &[f32], inputs: &[f32], columns: usize) -> f64 {
    let (rows, tokens) = (errors.len() / columns.max(1), inputs.len() / columns.max(1));
    let mut outputs = vec![0.0; rows * tokens];
    let right = Matrix::new(inputs, tokens, columns, columns).transposed();
    let left = Matrix::new(errors, rows, columns, columns);
    multiply(MatrixMut::new(&mut outputs, rows, tokens, tokens), left, right, 1.0, Threads::One);
    outputs.iter().map(|output| f64::from(*output).powi(2)).sum()
}

#[cfg(test)]
mod tests {
    use super::error_of_outputs;

    #[test]
    fn output_errors_are_squared_and_summed() {
        // Two rows of errors, three tokens, two inputs.
        assert_eq!(error_of_outputs(&[1.0, 0.0, 1.0, -1.0], &[1.0, 2.0, 3.0, 3.0, 0.0, 1.0], 2), 12.0);
    }
}
