//! The outcome of a layer, kept for resuming: everything that the rest of the run and the written model need.
//! Floats are kept as their bits.

use serde::{Deserialize, Serialize};

use super::data::Data;
use super::target::LayerRef;
use super::tuning::LayerGain;
use crate::error::AlgorithmError;
use crate::quantization::Affine;

/// The outcome of a layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// Its codes, where an algorithm chose them.
    pub codes: Option<Vec<i32>>,
    /// The parameters of its grid, where they were learned.
    pub parameters: Option<Vec<Affine>>,
    /// Its bias.
    pub bias: Option<Vec<f32>>,
    /// Whether the bias was corrected, with a scale for its new values.
    pub is_corrected: bool,
    /// The bias that an Add behind it holds, where that was corrected.
    pub added: Option<Vec<f32>>,
    /// The distance of the quantized model from the float model, if codes are selected by it.
    pub distance: Option<f64>,
    /// For the report.
    pub gain: LayerGain,
}

#[derive(Serialize, Deserialize)]
struct StoredLayerOutcome {
    weight: String,
    /// None where the quantized model has no such layer.
    outcome: Option<StoredOutcome>,
}

#[derive(Serialize, Deserialize)]
struct StoredOutcome {
    /// The codes themselves are behind the value.
    has_codes: bool,
    /// The bits of scales, and zero points.
    parameters: Option<Vec<(u32, i64)>>,
    bias: Option<Vec<u32>>,
    is_corrected: bool,
    added: Option<Vec<u32>>,
    distance: Option<u64>,
    layer: String,
    operator: String,
    losses: [u64; 2],
    sqnr: [Option<u64>; 2],
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn floats(bits: Vec<u32>) -> Vec<f32> {
    bits.into_iter().map(f32::from_bits).collect()
}

impl Outcome {
    fn stored(&self) -> StoredOutcome {
        let (gain, parameters) = (&self.gain, self.parameters.as_ref());
        StoredOutcome {
            has_codes: self.codes.is_some(),
            parameters: parameters.map(|all| all.iter().map(|a| (a.scale.to_bits(), a.zero_point)).collect()),
            bias: self.bias.as_deref().map(bits),
            is_corrected: self.is_corrected,
            added: self.added.as_deref().map(bits),
            distance: self.distance.map(f64::to_bits),
            layer: gain.layer.clone(),
            operator: gain.operator.clone(),
            losses: [gain.loss_before, gain.loss_after].map(f64::to_bits),
            sqnr: [gain.sqnr_before, gain.sqnr_after].map(|sqnr| sqnr.map(f64::to_bits)),
        }
    }

    fn of(stored: StoredOutcome, codes: Vec<i32>) -> Outcome {
        let [loss_before, loss_after] = stored.losses.map(f64::from_bits);
        let [sqnr_before, sqnr_after] = stored.sqnr.map(|sqnr| sqnr.map(f64::from_bits));
        let (layer, operator) = (stored.layer, stored.operator);
        let affine = |(scale, zero_point): (u32, i64)| Affine { scale: f32::from_bits(scale), zero_point };
        Outcome {
            codes: stored.has_codes.then_some(codes),
            parameters: stored.parameters.map(|all| all.into_iter().map(affine).collect()),
            bias: stored.bias.map(floats),
            is_corrected: stored.is_corrected,
            added: stored.added.map(floats),
            distance: stored.distance.map(f64::from_bits),
            gain: LayerGain { layer, operator, loss_before, loss_after, sqnr_before, sqnr_after },
        }
    }
}

fn name(number: usize) -> String {
    format!("layer.{number}")
}

/// Keeps what became of a layer.
pub(super) fn keep_layer(
    number: usize,
    target: &LayerRef,
    outcome: Option<&Outcome>,
    data: &Data<'_>,
) -> Result<(), AlgorithmError> {
    let stored = StoredLayerOutcome { weight: target.weight.clone(), outcome: outcome.map(Outcome::stored) };
    let codes = outcome.and_then(|outcome| outcome.codes.as_deref()).unwrap_or_default();
    data.keep(&name(number), &stored, bytemuck::cast_slice(codes))
}

/// The outcomes of the first layers of an interrupted run, as far as they were kept.
pub(super) fn kept_layers(targets: &[LayerRef], data: &Data<'_>) -> Vec<Option<Outcome>> {
    let layer = |(number, target): (usize, &LayerRef)| {
        let (stored, bytes): (StoredLayerOutcome, _) = data.kept(&name(number))?;
        let codes = bytes.chunks_exact(4).map(|b| i32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect();
        let outcome = stored.outcome.map(|outcome| Outcome::of(outcome, codes));
        (stored.weight == target.weight).then_some(outcome)
    };
    targets.iter().enumerate().map_while(layer).collect()
}
