//! SmoothQuant: part of the range of a product's inputs moves into its weights, channel by channel.
//!
//! With `a[k]` the largest magnitude of input channel `k` on the calibration data and `w[k]` that of its weights, over all products
//! that read the tensor: `s[k] = a[k]^alpha / w[k]^(1 - alpha)`; inputs are divided by `s`, weights multiplied.
//! Source: Xiao et al., SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models, arXiv 2211.10438.

use std::collections::BTreeMap;

use kvant_container::onnx::{GraphProto, ModelProto, Spill};
use kvant_quant::transform::{ChannelStatistic, SmoothQuant};

use super::data::Data;
use super::input_scaling::{Scaled, ScaledInput, SharedInputGroup, apply, readers, sorted};
use crate::algorithm_settings::SmoothQuantSettings;
use crate::calibration::{Watch, watch};
use crate::data::Array;
use crate::error::AlgorithmError;
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::shape::Types;
use crate::solution::values;

impl SmoothQuantSettings {
    /// Scales the inputs of all products with constants.
    pub(super) fn run(
        &self,
        model: &mut ModelProto,
        types: &Types,
        data: &mut Data<'_>,
        spill: Option<&Spill>,
    ) -> Result<Vec<ScaledInput>, QuantizeError> {
        let readers = readers(&model.graph, types);
        let maxima = maxima(model, &readers, data)?;
        let mut done = Vec::with_capacity(readers.len());
        for readers in &readers {
            data.check_cancelled()?;
            let Some(inputs) = maxima.get(&readers.tensor) else { continue };
            let weights = weight_maxima(&model.graph, readers)?;
            let core = SmoothQuant { alpha: self.alpha, ..SmoothQuant::DEFAULTS };
            let scales = core
                .scales(inputs, &weights)
                .map_err(|error| AlgorithmError::Layer { layer: readers.tensor.clone(), problem: error.to_string() })?;
            done.push(apply(model, readers, &scales, spill)?);
        }
        sorted(model)?;
        Ok(done)
    }
}

/// The name of the result kept for resuming.
const KEPT: &str = "smooth-quant";

/// The largest magnitude of each channel of the tensors that samples had: of an interrupted run, else of this one.
fn maxima(
    model: &ModelProto,
    readers: &[SharedInputGroup],
    data: &mut Data<'_>,
) -> Result<BTreeMap<String, Vec<f32>>, AlgorithmError> {
    if let Some((found, _)) = data.kept::<BTreeMap<String, Vec<u32>>>(KEPT) {
        let floats = |bits: Vec<u32>| bits.into_iter().map(f32::from_bits).collect();
        return Ok(found.into_iter().map(|(tensor, maxima)| (tensor, floats(maxima))).collect());
    }
    let observed = Maxima::observed(model, readers, data)?;
    let maxima = readers.iter().filter_map(|readers| Some((readers.tensor.clone(), observed.of(readers)?)));
    let maxima: BTreeMap<String, Vec<f32>> = maxima.collect();
    let bits = |maxima: &Vec<f32>| maxima.iter().map(|value| value.to_bits()).collect();
    let kept: BTreeMap<&String, Vec<u32>> = maxima.iter().map(|(tensor, maxima)| (tensor, bits(maxima))).collect();
    data.keep(KEPT, &kept, &[])?;
    Ok(maxima)
}

/// The largest magnitude of each channel of tensors.
struct Maxima(BTreeMap<String, ChannelStatistic>);

impl Maxima {
    fn observed(model: &ModelProto, readers: &[SharedInputGroup], data: &mut Data<'_>) -> Result<Self, AlgorithmError> {
        let empty = readers.iter().map(|r| (r.tensor.clone(), ChannelStatistic::new(r.channels)));
        let mut maxima = Self(empty.collect());
        let wanted: Vec<String> = maxima.0.keys().cloned().collect();
        if !wanted.is_empty() {
            watch(model, &wanted, &mut maxima, data.samples, &data.runtime, &mut |_, _| {}, data.cancelled)?;
        }
        Ok(maxima)
    }

    /// `None` where no sample had the channels.
    fn of(&self, readers: &SharedInputGroup) -> Option<Vec<f32>> {
        self.0.get(&readers.tensor).filter(|statistic| statistic.tokens() > 0).map(ChannelStatistic::abs_max)
    }
}

impl Watch for Maxima {
    fn see(&mut self, tensor: &str, array: &Array<'_>) {
        let Some(statistic) = self.0.get_mut(tensor) else { return };
        if array.shape().last() == Some(&statistic.channels()) {
            statistic.update(&array.to_f32s());
        }
    }
}

/// The largest magnitude of each input channel over all weights.
fn weight_maxima(graph: &GraphProto, readers: &SharedInputGroup) -> Result<Vec<f32>, QuantizeError> {
    let index = Index::new(graph);
    let mut maxima = vec![0f32; readers.channels];
    for Scaled { name, map } in &readers.weights {
        let Some(tensor) = index.constant(graph, name) else { continue };
        for (element, value) in values(tensor)?.into_iter().enumerate() {
            let channel = map.channel(element);
            maxima[channel] = maxima[channel].max(value.abs());
        }
    }
    Ok(maxima)
}
