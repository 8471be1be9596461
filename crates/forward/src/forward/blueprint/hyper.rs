//! Residual streams that blocks read and write through learned mixtures (hyper-connections, arXiv 2409.19606; DeepSeek V4 keeps what mixes
//! them doubly stochastic).

use super::Sources;
use crate::forward::error::ForwardError;
use crate::forward::tensors::Vector;
use kvant_model::model_config::CompressedConfig;

/// What the streams have around the blocks.
#[derive(Clone, Debug)]
pub struct HyperStreams {
    /// How many there are.
    pub count: usize,
    /// What is added to shares, and to the sums that they are divided by.
    pub eps: f32,
    /// The small number under the root of the norm of all streams.
    pub norm_eps: f32,
    /// How often rows and columns of what mixes streams are divided by their sums.
    pub iterations: usize,
    /// The factors with which streams join before the last norm.
    pub last: HyperMixture,
}

/// The tensors that give factors of streams: with all `n` streams of a token side by side, divided by the root of their mean square, as `h`,
/// `z = W h`, and factors follow from `scale z + base`.
#[derive(Clone, Debug)]
pub struct HyperMixture {
    /// `W`, a row for each factor.
    pub weight: Vector,
    /// `base`, one for each factor.
    pub base: Vector,
    /// `scale`, one for each kind of factors.
    pub scale: Vector,
}

impl HyperMixture {
    /// Its tensors.
    pub fn vectors(&self) -> [&Vector; 3] {
        [&self.weight, &self.base, &self.scale]
    }
}

impl Sources<'_, '_> {
    /// The streams of the model, where it has such.
    pub(super) fn hyper_streams(&self) -> Result<Option<HyperStreams>, ForwardError> {
        let Some(sizes) = self.hyper_sizes()? else { return Ok(None) };
        let find = |ends: [&str; 2], length: usize| {
            let found = ends.into_iter().find_map(|end| self.trunk_parameter(end));
            let found = found.ok_or_else(|| ForwardError::missing("the model", format!("tensor `{}`", ends[0])))?;
            self.tensors.vector(found, Some(length))
        };
        let (count, width) = (sizes.streams, self.streams_width(sizes)?);
        let elements = count.checked_mul(width).ok_or_else(too_large)?;
        Ok(Some(HyperStreams {
            count,
            eps: sizes.stream_eps as f32,
            norm_eps: self.eps(),
            iterations: sizes.iterations,
            last: HyperMixture {
                weight: find(["hc_head.hc_fn", "hc_head_fn"], elements)?,
                base: find(["hc_head.hc_base", "hc_head_base"], count)?,
                scale: find(["hc_head.hc_scale", "hc_head_scale"], 1)?,
            },
        }))
    }

    /// What a block's branches read and write the streams with: that of attention, then that of the feed-forward network.
    pub(super) fn hyper_mixtures(&self, index: usize) -> Result<Option<[HyperMixture; 2]>, ForwardError> {
        let Some(sizes) = self.hyper_sizes()? else { return Ok(None) };
        let mixture = |kind: &str| {
            let factors = sizes.streams.checked_add(2).and_then(|more| more.checked_mul(sizes.streams));
            let factors = factors.ok_or_else(too_large)?;
            let elements = factors.checked_mul(self.streams_width(sizes)?).ok_or_else(too_large)?;
            let find = |part: &str, length: usize| {
                let end = format!("hc_{kind}_{part}");
                let found = self.parameter(index, &end, length)?;
                found.ok_or_else(|| ForwardError::missing(format!("block {index}"), format!("tensor `{end}`")))
            };
            Ok::<_, ForwardError>(HyperMixture {
                weight: find("fn", elements)?,
                base: find("base", factors)?,
                scale: find("scale", 3)?,
            })
        };
        Ok(Some([mixture("attn")?, mixture("ffn")?]))
    }

    fn hyper_sizes(&self) -> Result<Option<&CompressedConfig>, ForwardError> {
        match self.family.math.hyper_connections {
            true => self.need(self.config.compressed.as_ref(), "hc_mult").map(Some),
            false => Ok(None),
        }
    }

    /// Elements of all streams of a token.
    fn streams_width(&self, sizes: &CompressedConfig) -> Result<usize, ForwardError> {
        sizes.streams.checked_mul(self.hidden()?).ok_or_else(too_large)
    }
}

fn too_large() -> ForwardError {
    ForwardError::unsupported("streams beyond all sizes")
}
