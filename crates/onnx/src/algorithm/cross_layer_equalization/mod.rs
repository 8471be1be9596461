//! Cross-layer equalization: channels of consecutive layers scaled so that both weights use their range, the function unchanged.
//!
//! Between a layer (weight `W0`, bias `b0`) and the next (`W1`) there are only positively homogeneous functions of each channel, so
//! `W0[c] * s[c], b0[c] * s[c]` and `W1[:, c] / s[c]` compute the same for any `s > 0`. With `r0[c]` and `r1[c]` the largest
//! magnitudes of the channel in both, `s[c] = sqrt(r1[c] / r0[c])` makes them equal. The bias counts in `r0` as much as the largest
//! bias is to the largest weight, so that no activation grows beyond the others. Layers in a chain affect each other: the rule is
//! repeated until nothing moves, which for convolution, depthwise and pointwise is the closed form of the three.
//!
//! A Clip between the layers is homogeneous only if its bounds grow with the channel: see [`ClipRule`].
//! Source: Nagel et al., Data-Free Quantization Through Weight Equalization and Bias Correction, arXiv 1906.04721.

mod clip;
mod pair;
mod weights;

use kvant_container::onnx::{ModelProto, Spill};
use serde::Serialize;

use crate::algorithm_settings::Equalization;
use crate::error::QuantizeError;
use crate::graph::Edit;
use pair::pairs;
use weights::Weights;

/// Scales closer to 1 than this are no movement.
const SETTLED: f32 = 1e-3;

/// Two layers that were equalized.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EqualizedPair {
    /// The weight before.
    pub head: String,
    /// The weight behind.
    pub tail: String,
    /// Channels between them.
    pub channels: usize,
    /// The largest range of a channel over the smallest, of both weights, as they were.
    pub spread_before: f32,
    /// The same as they have become.
    pub spread_after: f32,
}

/// Equalizes every pair of layers of a model.
///
/// # Errors
/// Weights whose bytes do not fit their shape.
pub fn equalize(
    model: &mut ModelProto,
    settings: Equalization,
    spill: Option<&Spill>,
) -> Result<Vec<EqualizedPair>, QuantizeError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(Vec::new()) };
    let pairs = pairs(graph, settings.clip);
    let mut weights = Weights::read(graph, &pairs)?;
    let before: Vec<f32> = pairs.iter().map(|pair| weights.spread(pair)).collect();
    // What each pair was scaled by in all rounds.
    let mut sums: Vec<Vec<f32>> = pairs.iter().map(|pair| vec![1.0; pair.channels]).collect();
    for _ in 0..settings.steps {
        let mut moved = false;
        for (pair, sum) in pairs.iter().zip(&mut sums) {
            let scales = weights.equalize(pair, sum, settings.bias);
            moved |= scales.iter().any(|s| (s - 1.0).abs() > SETTLED);
            sum.iter_mut().zip(scales).for_each(|(sum, s)| *sum *= s);
        }
        if !moved {
            break;
        }
    }
    let spreads = pairs.iter().map(|pair| weights.spread(pair));
    let after: Vec<f32> = spreads.collect();
    weights.write(graph, spill)?;
    let mut edit = Edit::default();
    for (pair, sum) in pairs.iter().zip(&sums) {
        pair.clips.iter().for_each(|clip| clip.rewrite(graph, settings.clip, sum, &mut edit));
    }
    edit.apply(graph);
    let equalized = pairs.into_iter().zip(before.into_iter().zip(after));
    let row = |(pair, (spread_before, spread_after)): (pair::Pair, (f32, f32))| EqualizedPair {
        head: pair.head.weight,
        tail: pair.tail.weight,
        channels: pair.channels,
        spread_before,
        spread_after,
    };
    Ok(equalized.map(row).collect())
}

#[cfg(test)]
mod tests;
