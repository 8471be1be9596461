//! Captured inputs and outputs of a layer, as patches and targets: computed once and kept as far as memory allows, otherwise recomputed.
//! not.

use std::sync::Arc;

use kvant_quant::reconstruction::{InputMix, Sample, Samples};
use kvant_quant::rounding::SampleError;

use super::form::{Convolution, Form, Kind, Product};
use super::layer::Layer;
use super::layer_io::LayerIo;
use super::mix::mixed;
use super::normalization::{Normalization, Over};
use crate::data::Array;
use crate::error::AlgorithmError;

/// Unused data.
const EMPTY: Sample<'static> = Sample { patches: &[], targets: &[], positions: 0 };

/// Samples of a layer.
pub(super) struct PatchedSamples<'a> {
    form: &'a Form,
    layer: &'a Layer,
    captured: &'a LayerIo<'a>,
    kept: Vec<Patched>,
    /// The one beyond those that was used last.
    other: Option<(usize, Patched)>,
    /// The input of the last step, if inputs are mixed.
    mixed: Option<Patched>,
}

/// One sample.
struct Patched {
    patches: Values,
    targets: Values,
    positions: usize,
}

/// Numbers that were captured as they are needed, or that were made from such.
enum Values {
    Captured(Arc<Array<'static>>),
    Made(Vec<f32>),
}

impl Values {
    fn slice(&self) -> &[f32] {
        match self {
            Self::Captured(array) => array.f32s().unwrap_or(&[]),
            Self::Made(values) => values,
        }
    }
}

impl<'a> PatchedSamples<'a> {
    /// Prepares the samples to keep. `None` if the captured data do not match the layer's form.
    pub fn new(form: &'a Form, layer: &'a Layer, captured: &'a LayerIo<'a>) -> Result<Option<Self>, AlgorithmError> {
        let mut samples = Self { form, layer, captured, kept: Vec::new(), other: None, mixed: None };
        let mut room = captured.runtime().budget / 2;
        for index in 0..captured.len() {
            captured.check_cancelled()?;
            let Some(sample) = samples.make(index)? else { return Ok(None) };
            let bytes = 4 * (sample.patches.slice().len() + sample.targets.slice().len()) as u64;
            if bytes > room {
                break;
            }
            room -= bytes;
            samples.kept.push(sample);
        }
        Ok(Some(samples))
    }

    fn make(&self, index: usize) -> Result<Option<Patched>, AlgorithmError> {
        let pair = self.captured.pair(index)?;
        Ok(patched(self.form, pair.input, pair.output))
    }

    /// The mixed sample of a draw; `None` if nothing is mixed, or mixing is impossible.
    fn mixture(&self, index: usize, mix: InputMix, draw: u64) -> Result<Option<Patched>, AlgorithmError> {
        let Some(float) = self.captured.float_input(index)? else { return Ok(None) };
        let pair = self.captured.pair(index)?;
        let input = mixed(mix, &pair.input, &float, draw);
        Ok(input.and_then(|input| patched(self.form, Arc::new(input), pair.output)))
    }
}

impl Patched {
    fn sample(&self) -> Sample<'_> {
        Sample { patches: self.patches.slice(), targets: self.targets.slice(), positions: self.positions }
    }
}

impl Samples for PatchedSamples<'_> {
    type Error = SampleError;

    fn count(&self) -> usize {
        self.captured.len()
    }

    fn sample(&mut self, index: usize) -> Result<Sample<'_>, SampleError> {
        if index >= self.kept.len() && self.other.as_ref().is_none_or(|(other, _)| *other != index) {
            self.other = None;
            let problem = || "samples do not have the same number of axes".to_owned();
            let wrong = || AlgorithmError::Layer { layer: self.layer.name().to_owned(), problem: problem() };
            self.other = Some((index, self.make(index)?.ok_or_else(wrong)?));
        }
        let found = self.kept.get(index).or(self.other.as_ref().map(|(_, sample)| sample));
        // One of both is there: it was just made.
        Ok(found.map_or(EMPTY, Patched::sample))
    }

    fn mixed(&mut self, index: usize, mix: InputMix, draw: u64) -> Result<Sample<'_>, SampleError> {
        self.mixed = self.mixture(index, mix, draw)?;
        if self.mixed.is_none() {
            return self.sample(index);
        }
        Ok(self.mixed.as_ref().map_or(EMPTY, Patched::sample))
    }

    fn check_cancelled(&self) -> Result<(), SampleError> {
        Ok(self.captured.check_cancelled()?)
    }
}

/// The input and output of a layer, in its form; `None` if they do not match the form.
fn patched(form: &Form, input: Arc<Array<'static>>, output: Arc<Array<'static>>) -> Option<Patched> {
    match &form.kind {
        Kind::Convolution(convolution) => convolved(form, convolution, input, output),
        Kind::Product(product) => multiplied(form, *product, &input, &output),
        Kind::Normalization(normalization) => normalized(form, *normalization, &input, output),
    }
}

/// The patches of a convolution; batches lie behind one another in each row.
fn convolved(
    form: &Form,
    convolution: &Convolution,
    input: Arc<Array<'static>>,
    output: Arc<Array<'static>>,
) -> Option<Patched> {
    let &[batch, channels, ref inputs @ ..] = input.shape() else { return None };
    let &[made, outputs, ref places @ ..] = output.shape() else { return None };
    let patches = convolution.patches(inputs, places)?;
    let rows = form.shape.groups * form.shape.features;
    if made != batch || outputs != form.shape.outputs || channels * patches.taps() != rows {
        return None;
    }
    let (one, signal) = (patches.positions(), input.f32s()?);
    let targets = channels_first(batch, outputs, one, output.clone())?;
    if patches.is_identity() {
        let patches = channels_first(batch, channels, one, input.clone())?;
        return Some(Patched { patches, targets, positions: batch * one });
    }
    let mut matrix = vec![0.0; rows * one * batch];
    let size = channels * patches.inputs();
    match batch {
        1 => patches.im2col(channels, signal, &mut matrix),
        _ => {
            let mut own = vec![0.0; rows * one];
            for (number, signal) in signal.chunks(size.max(1)).enumerate() {
                patches.im2col(channels, signal, &mut own);
                interleave(&own, one, number, batch, &mut matrix);
            }
        }
    }
    Some(Patched { patches: Values::Made(matrix), targets, positions: batch * one })
}

/// `[batch, rows, positions]` as `[rows, batch * positions]`.
fn channels_first(batch: usize, rows: usize, positions: usize, array: Arc<Array<'static>>) -> Option<Values> {
    let values = array.f32s().filter(|values| values.len() == batch * rows * positions)?;
    if batch == 1 {
        return Some(Values::Captured(array));
    }
    let mut made = vec![0.0; values.len()];
    for (number, values) in values.chunks((rows * positions).max(1)).enumerate() {
        interleave(values, positions, number, batch, &mut made);
    }
    Some(Values::Made(made))
}

/// Puts the rows of one of a batch to their places.
fn interleave(values: &[f32], positions: usize, number: usize, batch: usize, out: &mut [f32]) {
    let rows = out.chunks_mut((positions * batch).max(1)).zip(values.chunks(positions.max(1)));
    rows.for_each(|(out, values)| out[number * positions..][..positions].copy_from_slice(values));
}

/// The patches of a product: its input with features as rows.
fn multiplied(form: &Form, product: Product, input: &Array<'_>, output: &Array<'_>) -> Option<Patched> {
    let (features, outputs) = (form.shape.features, form.shape.outputs);
    let (values, targets) = (input.f32s()?, output.f32s()?);
    let positions = values.len() / features;
    let last = if product.transposed { input.shape().first() } else { input.shape().last() };
    let fits = last == Some(&features) && output.shape().last() == Some(&outputs);
    if !fits || targets.len() != positions * outputs || product.transposed && input.shape().len() != 2 {
        return None;
    }
    let mut patches = if product.transposed { values.to_vec() } else { transposed(values, features) };
    if product.factor != 1.0 {
        patches.iter_mut().for_each(|value| *value *= product.factor);
    }
    let (patches, targets) = (Values::Made(patches), Values::Made(transposed(targets, outputs)));
    Some(Patched { patches, targets, positions })
}

/// The normalized values of a normalization, a row for each channel. The bias belongs to the targets.
fn normalized(
    form: &Form,
    normalization: Normalization,
    input: &Array<'_>,
    output: Arc<Array<'static>>,
) -> Option<Patched> {
    let (channels, values) = (form.shape.outputs, input.f32s()?);
    if input.shape() != output.shape() || channels == 0 {
        return None;
    }
    let made = normalization.normalized(input.shape(), channels, values)?;
    let positions = values.len() / channels;
    if let Over::Channels { .. } = normalization.over {
        let targets = transposed(output.f32s()?, channels);
        return Some(Patched {
            patches: Values::Made(transposed(&made, channels)),
            targets: Values::Made(targets),
            positions,
        });
    }
    let batch = *input.shape().first()?;
    let made = Arc::new(Array::of(input.shape().to_vec(), made)?);
    let inner = positions / batch.max(1);
    let patches = channels_first(batch, channels, inner, made)?;
    Some(Patched { patches, targets: channels_first(batch, channels, inner, output)?, positions })
}

/// Rows of `columns` elements as columns.
fn transposed(values: &[f32], columns: usize) -> Vec<f32> {
    let rows = values.len() / columns.max(1);
    (0..values.len()).map(|i| values[i % rows * columns + i / rows]).collect()
}

#[cfg(test)]
mod tests;
