//! Runs one layer alone on its captured inputs, with other weights, and measures the distance of its outputs from the float model's.

use std::ops::ControlFlow;

use kvant_container::onnx::{Bytes, DataType, GraphProto, ModelProto, OperatorSetIdProto, TensorProto, tensor};
use kvant_quant::bias_correction::mean_error;

use super::layer::Layer;
use super::layer_io::LayerIo;
use crate::calibration::{CalibrationError, sessions};
use crate::data::Array;
use crate::error::AlgorithmError;
use crate::fake_quantization::{declared, open};
use crate::runtime::{RuntimeError, RuntimeOptions, Session};

/// The difference of a layer's outputs, behind its activation function.
#[derive(Debug, Clone, Default)]
pub(super) struct Difference {
    /// Sum of the squares of the float model's outputs.
    pub signal: f64,
    /// Sum of the squares of the differences.
    pub noise: f64,
    /// Outputs.
    pub elements: u64,
    /// For each channel the sum of the differences before the activation function, float less quantized.
    pub drift: Vec<f64>,
}

impl Difference {
    fn add(&mut self, other: &Self) {
        self.signal += other.signal;
        self.noise += other.noise;
        self.elements += other.elements;
        self.drift.resize(self.drift.len().max(other.drift.len()), 0.0);
        self.drift.iter_mut().zip(&other.drift).for_each(|(sum, more)| *sum += more);
    }

    /// The mean difference of each channel.
    pub fn mean_drift(&self) -> Vec<f64> {
        mean_error(&self.drift, self.elements as f64 / self.drift.len().max(1) as f64)
    }

    /// The difference when a constant is added to each channel of the quantized layer's output; for layers with no activation
    /// function. With `e` the differences of a channel and `s` the constant: `sum (e - s)^2 = sum e^2 - 2 s sum e + n s^2`.
    pub fn shifted(&self, shift: &[f64]) -> Self {
        let each = self.elements as f64 / self.drift.len().max(1) as f64;
        let change = |(drift, s): (&f64, &f64)| s * (each * s - 2.0 * drift);
        let noise = self.noise + self.drift.iter().zip(shift).map(change).sum::<f64>();
        let drift = self.drift.iter().zip(shift).map(|(drift, s)| drift - each * s).collect();
        Self { noise: noise.max(0.0), drift, ..self.clone() }
    }

    /// Mean squared difference.
    pub fn loss(&self) -> f64 {
        self.noise / self.elements.max(1) as f64
    }

    /// The ratio of signal and noise in decibels; `None` where there is no noise, or no signal.
    pub fn sqnr(&self) -> Option<f64> {
        (self.noise > 0.0 && self.signal > 0.0).then(|| 10.0 * (self.signal / self.noise).log10())
    }
}

/// Runs the layer with these weights and this bias on all samples.
pub(super) fn difference(
    layer: &Layer,
    weight: &[f32],
    bias: Option<&[f32]>,
    opsets: &[OperatorSetIdProto],
    captured: &LayerIo<'_>,
) -> Result<Difference, AlgorithmError> {
    let first = captured.pair(0)?;
    let model = model(layer, weight, bias, &first.input, opsets);
    let options = RuntimeOptions { threads: Some(1), ..captured.runtime().clone() };
    let count = sessions(captured.runtime().threads).min(captured.len());
    let work = |start: usize| -> Result<Vec<(usize, Difference)>, AlgorithmError> {
        let wanted = vec![layer.node.output.first().cloned().unwrap_or_default()];
        let mut session = open(&model, &wanted, &options)?;
        let mut made = Vec::new();
        for sample in (start..captured.len()).step_by(count) {
            captured.check_cancelled()?;
            let pair = captured.pair(sample)?;
            made.push((sample, one(layer, &mut *session, &wanted, &pair.input, &pair.output)?));
        }
        Ok(made)
    };
    let work = &work;
    let parts = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|start| scope.spawn(move || work(start))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| Err(panicked())))
            .collect::<Result<Vec<_>, _>>()
    })?;
    let mut parts: Vec<(usize, Difference)> = parts.into_iter().flatten().collect();
    // Sums are the same in whichever thread a sample was.
    parts.sort_by_key(|(sample, _)| *sample);
    Ok(parts.iter().fold(Difference::default(), |mut sum, (_, part)| {
        sum.add(part);
        sum
    }))
}

pub(super) fn panicked() -> AlgorithmError {
    CalibrationError::Panicked("a layer could not be run".to_owned()).into()
}

fn model(
    layer: &Layer,
    weight: &[f32],
    bias: Option<&[f32]>,
    input: &Array<'_>,
    opsets: &[OperatorSetIdProto],
) -> ModelProto {
    let floats = |name: &String, shape: &[usize], values: &[f32]| -> TensorProto {
        tensor(name, DataType::FLOAT, shape, Bytes::copy_from_slice(bytemuck::cast_slice(values)))
    };
    let names = &layer.node.input;
    let mut initializer = vec![floats(&names[1], &layer.shape, weight)];
    if let (Some(bias), Some(name)) = (bias, names.get(2)) {
        initializer.push(floats(name, &[bias.len()], bias));
    }
    let graph = GraphProto {
        name: Some("layer".to_owned()),
        node: vec![layer.node.clone()],
        initializer,
        input: vec![declared(&names[0], Some(input))],
        output: layer.node.output.iter().take(1).map(|name| declared(name, None)).collect(),
        ..GraphProto::default()
    };
    ModelProto {
        ir_version: Some(8),
        opset_import: opsets.to_vec(),
        graph: Some(graph).into(),
        ..ModelProto::default()
    }
}

fn one(
    layer: &Layer,
    session: &mut dyn Session,
    wanted: &[String],
    input: &Array<'_>,
    target: &Array<'_>,
) -> Result<Difference, AlgorithmError> {
    let mut made = None;
    session.run(&[(layer.node.input[0].as_str(), input.view())], wanted, &mut |_, output| {
        made = Some(compare(layer, output, target));
        ControlFlow::Break(())
    })?;
    made.flatten().ok_or_else(|| RuntimeError::UnknownTensor(wanted.concat()).into())
}

/// `None` where the shapes differ.
fn compare(layer: &Layer, output: &Array<'_>, target: &Array<'_>) -> Option<Difference> {
    let (made, wanted) = (output.f32s()?, target.f32s()?);
    if output.shape() != target.shape() {
        return None;
    }
    let first = layer.node.op_type().starts_with("Conv") || layer.node.op_type() == "InstanceNormalization";
    let axis = if first { 1 } else { output.shape().len().checked_sub(1)? };
    let channels = *output.shape().get(axis)?;
    let inner: usize = output.shape()[axis + 1..].iter().product();
    let mut found = Difference { drift: vec![0.0; channels], elements: made.len() as u64, ..Difference::default() };
    let runs = made.chunks(inner.max(1)).zip(wanted.chunks(inner.max(1)));
    for (run, (made, wanted)) in runs.enumerate() {
        let (mut drift, channel) = (0.0, run % channels);
        for (&m, &w) in made.iter().zip(wanted) {
            drift += f64::from(w) - f64::from(m);
            let (m, w) = (layer.function.apply(channel, m), layer.function.apply(channel, w));
            found.signal += f64::from(w).powi(2);
            found.noise += (f64::from(w) - f64::from(m)).powi(2);
        }
        found.drift[channel] += drift;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimated_shift_equals_a_second_run() {
        let (wanted, made) = ([1.0, 2.0, 3.0, 5.0, -1.0, 0.5], [0.5, 2.5, 2.0, 4.0, -2.0, 0.0]);
        let shift = [0.25, 0.75];
        let found = |made: &[f64]| {
            let each = |channel: usize| (channel..6).step_by(2);
            let e = |i: usize| wanted[i] - made[i];
            Difference {
                signal: wanted.iter().map(|w: &f64| w * w).sum(),
                noise: (0..6).map(|i| e(i).powi(2)).sum(),
                elements: 6,
                drift: (0..2).map(|channel| each(channel).map(e).sum()).collect(),
            }
        };
        let moved: Vec<f64> = made.iter().enumerate().map(|(i, m)| m + shift[i % 2]).collect();
        let (shifted, again) = (found(&made).shifted(&shift), found(&moved));
        assert!((shifted.noise - again.noise).abs() < 1e-12 && shifted.signal == again.signal);
        assert!(shifted.drift.iter().zip(&again.drift).all(|(a, b)| (a - b).abs() < 1e-12));
    }
}
