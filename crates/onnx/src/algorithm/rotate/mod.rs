//! QuaRot: the channels of the residual stream are rotated, so that outliers of one channel are spread over all.
//!
//! A residual stream is the chain of sums between the layers of a transformer. With an orthogonal matrix `R`, all its producers are
//! multiplied by `R`, all its consumers by `R^T`, and the function of the model is unchanged: RMSNorm commutes with `R` once its gain is in
//! the layers behind it, LayerNorm too if `R` keeps the mean over the channels, of which there are as many as are needed. What the
//! layers of a graph make then loses its mean, where nothing but LayerNorm reads it. No node is added for it, but a bias where a layer
//! behind a LayerNorm had none.
//!
//! The values of an attention are rotated in each head in the same way (`R2` of the paper), between the layer that makes them and the one
//! behind the attention; where nothing but sums over the head's channels reads queries and keys, these go with them.
//!
//! A stream with other consumers is not rotated at all: outputs of the model, caches, norms after the sums. Not here: rotations that
//! need their own nodes (`R3` after rotary embeddings, `R4` before the last layer of an MLP).
//! Source: Ashkboos et al., QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs, arXiv 2404.00456; the folding of gains is that of
//! Ashkboos et al., SliceGPT, arXiv 2401.15024.

mod affine;
mod apply;
mod lanes;
mod norm;
mod plan;
mod stream;
mod turn;
mod view;

use kvant_container::onnx::{ModelProto, Spill};
use serde::Serialize;

use crate::algorithm_settings::RotateSettings;
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::shape::infer;
use apply::{changes, told};
use plan::plan;
use view::View;

/// A stream that was rotated.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RotatedStream {
    /// The tensor that it was found at.
    pub tensor: String,
    /// Channels that are rotated: all of a residual stream, those of one head of an attention.
    pub channels: usize,
    /// The matrix: its kind, and the orders of its factors.
    pub rotation: String,
    /// Normalizations that read it.
    pub normalizations: usize,
    /// The constants that make it.
    pub makers: Vec<String>,
    /// The weights of the layers that read it.
    pub readers: Vec<String>,
}

/// A stream that stays as it was.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LeftStream {
    /// The tensor that it was found at.
    pub tensor: String,
    /// Channels of what is normalized, or of a head.
    pub channels: usize,
    /// Normalizations that read it.
    pub normalizations: usize,
    /// The reason.
    pub reason: String,
}

/// The outcome for all streams.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rotations {
    /// Those that were rotated.
    pub rotated: Vec<RotatedStream>,
    /// Those that were not.
    pub left: Vec<LeftStream>,
}

impl Rotations {
    /// The notice for the user.
    pub(crate) fn notice(&self) -> Option<String> {
        let main = self.left.iter().rev().max_by_key(|stream| stream.normalizations);
        let residual = self.rotated.iter().any(|stream| stream.normalizations > 0);
        match (residual, main) {
            (true, None) => None,
            (true, Some(first)) => Some(format!(
                "{} streams of channels are not rotated: at `{}`, {}; the report lists all",
                self.left.len(),
                first.tensor,
                first.reason
            )),
            (false, Some(main)) if main.normalizations > 0 => {
                let heads = if self.rotated.is_empty() { "" } else { ", only values of attention in their heads" };
                Some(format!("no residual stream of the model can be rotated{heads}: {}", main.reason))
            }
            (false, _) => Some("no residual stream of the model can be rotated: nothing is normalized".to_owned()),
        }
    }
}

/// Rotates all streams of a model that can be.
///
/// # Errors
/// Constants whose bytes do not fit their shape.
pub fn rotate(
    model: &mut ModelProto,
    settings: RotateSettings,
    spill: Option<&Spill>,
) -> Result<Rotations, QuantizeError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(Rotations::default()) };
    let view = View { graph, index: Index::new(graph), types: &types };
    let (planned, left) = plan(&view, settings);
    let rotated = planned.iter().map(|plan| told(&view, plan)).collect();
    changes(&view, &planned)?.apply(graph, spill)?;
    Ok(Rotations { rotated, left })
}

#[cfg(test)]
mod tests;
