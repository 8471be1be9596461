//! What models of sounds have in place of a table of tokens: convolutions that make rows of what is read of a sound.
//!
//! Tokens of such a model are numbers too: those of the rows of all sounds that it is given, sound after sound. The sequence of a sound is
//! its own rows; of an encoder-decoder the encoder reads them.

use super::{NormLayer, NormSite, Parts, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::{Projection, Vector};
use kvant_data::sounds::SoundInput;
use kvant_model::family::{Activation, SoundConvolutions, SoundTokens, WEIGHT_NORM};

/// The small number under the root of norms behind convolutions, which is that of torch's classes whatever config.json states.
const EPS: f32 = 1e-5;

/// The parts that make rows of the stream of a sound.
#[derive(Clone, Debug)]
pub struct SoundLayers {
    /// What is read of a sound.
    pub input: SoundInput,
    /// The convolutions, one behind the other.
    pub convolutions: Vec<SoundConvolution>,
    /// The norm of the rows that they give.
    pub norm: Option<NormLayer>,
    /// What makes positions of rows.
    pub positions: Option<PositionConvolution>,
}

/// A convolution along time, what normalises it, and the activation behind both: of rows `x_t` of `channels` elements, with `step` `s`, `before`
/// `p` and taps `W_k`, `y_t = sum_k W_k x_(s t + k - p) + b`. Rows before the first and behind the last are 0.
#[derive(Clone, Debug)]
pub struct SoundConvolution {
    /// The weight, whose columns are taps of a channel one after the other.
    pub layer: Projection,
    /// Elements of a row that it reads.
    pub channels: usize,
    /// Rows that an output reads.
    pub taps: usize,
    /// Rows from an output to the next.
    pub step: usize,
    /// Rows of zeros at either end.
    pub before: usize,
    /// The norm.
    pub norm: Option<ConvolutionNorm>,
    /// The activation.
    pub activation: Activation,
}

/// The norm behind a convolution.
#[derive(Clone, Debug)]
pub enum ConvolutionNorm {
    /// Over the channels of each row.
    OfRows(NormLayer),
    /// Over all rows of each channel.
    OfChannels(NormLayer),
}

/// A convolution along time in groups of channels, whose output is added to the rows that it reads. Its weight is `g_k V_k / |V_k|` for tap `k`,
/// with the root of the sum of squares of all that the tap has (weight normalization, arXiv 1602.07868). Half of the taps are before the
/// row; of an even number the last row is left out.
#[derive(Clone, Debug)]
pub struct PositionConvolution {
    /// `g`, one number for each tap.
    pub magnitudes: Vector,
    /// `V`, `[channels, channels / groups, taps]`.
    pub directions: Vector,
    /// The bias.
    pub bias: Vector,
    /// Rows that an output reads.
    pub taps: usize,
    /// Groups of channels that are read alone.
    pub groups: usize,
    /// The activation.
    pub activation: Activation,
}

impl SoundConvolution {
    /// Rows that it gives for so many.
    pub fn rows(&self, rows: usize) -> usize {
        outputs(rows, (self.taps, self.step, self.before))
    }
}

/// Outputs of a convolution of so many rows with these taps, rows from an output to the next, and zeros at either end.
fn outputs(rows: usize, (taps, step, before): (usize, usize, usize)) -> usize {
    (rows + 2 * before).checked_sub(taps).map_or(0, |more| more / step + 1)
}

impl SoundLayers {
    /// The number of rows, before the convolutions, of a sound of which so many values are read.
    pub fn columns_of(&self, values: usize) -> usize {
        match self.input {
            SoundInput::LogMel { bins, .. } => values / bins.max(1),
            SoundInput::Waveform => values,
        }
    }

    /// Rows of the stream for such a sound.
    pub fn rows_of(&self, values: usize) -> usize {
        self.convolutions.iter().fold(self.columns_of(values), |rows, convolution| convolution.rows(rows))
    }
}

impl<'a> Sources<'_, 'a> {
    /// What a model of sounds has; `None` for others.
    pub(super) fn sounds(&self, trunk: &Parts<'_, '_, 'a>) -> Result<Option<SoundLayers>, ForwardError> {
        let Some(sounds) = self.family.encoder.and_then(|encoder| encoder.sounds) else { return Ok(None) };
        let (input, convolutions) = match sounds.convolutions {
            SoundConvolutions::Spectrogram(first, second) => {
                let bins = self.need(self.config.size("num_mel_bins"), "num_mel_bins")?;
                let rows = self.need(self.config.size("max_source_positions"), "max_source_positions")?;
                let frames = rows.saturating_mul(2);
                (SoundInput::LogMel { bins, frames }, self.of_spectrograms([first, second], bins)?)
            }
            SoundConvolutions::Waveform(each) => (SoundInput::Waveform, self.of_waveforms(trunk, each)?),
        };
        let norm = match self.config.flag_or("feat_proj_layer_norm", true) {
            true => trunk.listed_norm(NormSite::SoundFeatures)?,
            false => None,
        };
        let layers = SoundLayers { input, convolutions, norm, positions: self.sound_positions(sounds)? };
        self.check_widths(trunk, &layers)?;
        Ok(Some(layers))
    }

    /// The rows that convolutions and projection give are as wide as the stream.
    fn check_widths(&self, trunk: &Parts<'_, '_, 'a>, layers: &SoundLayers) -> Result<(), ForwardError> {
        let (hidden, project) = (self.hidden()?, trunk.linear(super::Role::ProjectIn)?);
        let given = layers.convolutions.last().map_or(0, |convolution| convolution.layer.rows);
        let read = project.as_ref().map_or(hidden, |layer| layer.columns);
        let norm = layers.norm.iter().flat_map(|norm| &norm.weight).map(|weight| weight.length).next();
        match given == read && norm.is_none_or(|norm| norm == given) && project.is_none_or(|layer| layer.rows == hidden)
        {
            true => Ok(()),
            false => Err(ForwardError::unsupported(format!("convolutions of {given} channels before rows of {read}"))),
        }
    }

    fn of_spectrograms(&self, paths: [&str; 2], bins: usize) -> Result<Vec<SoundConvolution>, ForwardError> {
        let hidden = self.hidden()?;
        let sizes = [(bins, 1), (hidden, 2)];
        let both = paths.into_iter().zip(sizes).map(|(path, (channels, step))| {
            let layer = self.sound_layer(path, [hidden, channels, 3])?;
            let activation = Activation::Gelu;
            Ok(SoundConvolution { layer, channels, taps: 3, step, before: 1, norm: None, activation })
        });
        both.collect()
    }

    fn of_waveforms(&self, trunk: &Parts<'_, '_, 'a>, path: &str) -> Result<Vec<SoundConvolution>, ForwardError> {
        let count = self.need(self.config.entries("conv_dim"), "conv_dim")?;
        let stated = self.config.size("num_feat_extract_layers").unwrap_or(count);
        if stated != count {
            return Err(ForwardError::unsupported(format!("{stated} convolutions, of which `conv_dim` lists {count}")));
        }
        let listed = |key: &str, index: usize| {
            let entry = self.config.item(key, index).and_then(|entry| usize::try_from(entry.as_u64()?).ok());
            self.need(entry.filter(|size| (1..=i32::MAX as usize).contains(size)), key)
        };
        let activation = self.sound_activation()?;
        let mut channels = 1;
        let mut convolutions = Vec::new();
        for index in 0..count {
            let (rows, taps, step) =
                (listed("conv_dim", index)?, listed("conv_kernel", index)?, listed("conv_stride", index)?);
            let layer = self.sound_layer(&path.replace("{}", &index.to_string()), [rows, channels, taps])?;
            let norm = self.convolution_norm(trunk, index, rows)?;
            convolutions.push(SoundConvolution { layer, channels, taps, step, before: 0, norm, activation });
            channels = rows;
        }
        Ok(convolutions)
    }

    fn convolution_norm(
        &self,
        trunk: &Parts<'_, '_, 'a>,
        index: usize,
        channels: usize,
    ) -> Result<Option<ConvolutionNorm>, ForwardError> {
        let kind: fn(NormLayer) -> ConvolutionNorm = match self.config.text("feat_extract_norm") {
            None | Some("group") if index > 0 => return Ok(None),
            None | Some("group") => ConvolutionNorm::OfChannels,
            Some("layer") => ConvolutionNorm::OfRows,
            Some(other) => return Err(ForwardError::unsupported(format!("`feat_extract_norm` {other}"))),
        };
        let norm = trunk.numbered_norm(NormSite::SoundConvolution, index)?;
        if norm.weight.iter().chain(&norm.bias).any(|vector| vector.length != channels) {
            return Err(ForwardError::unsupported(format!(
                "a norm of another width than {channels} behind convolution {index}"
            )));
        }
        Ok(Some(kind(NormLayer { eps: EPS, ..norm })))
    }

    fn sound_activation(&self) -> Result<Activation, ForwardError> {
        const KEY: &str = "feat_extract_activation";
        let name = self.config.text(KEY).unwrap_or("gelu");
        match Activation::from_config_name(name) {
            Activation::Unknown => Err(ForwardError::unsupported(format!("`{KEY}` {name}"))),
            known => Ok(known),
        }
    }

    /// The position of a tensor in the trunk.
    fn tensor_in_trunk(&self, path: &str) -> Option<usize> {
        let trunk = self.network.trunk();
        let name = if trunk.is_empty() { path.to_owned() } else { format!("{trunk}.{path}") };
        self.tensors.meta().iter().position(|tensor| tensor.name == name)
    }

    fn needed_in_trunk(&self, path: &str) -> Result<usize, ForwardError> {
        let found = self.tensor_in_trunk(path);
        found.ok_or_else(|| ForwardError::missing("the model", format!("tensor `{path}`")))
    }

    /// A convolution of this shape: outputs, inputs and taps.
    fn sound_layer(&self, path: &str, shape: [usize; 3]) -> Result<Projection, ForwardError> {
        let weight = self.needed_in_trunk(&format!("{path}.weight"))?;
        let [rows, channels, taps] = shape;
        if self.tensors.meta()[weight].shape != shape {
            return Err(self
                .tensors
                .shape_error(weight, &format!("{rows} outputs, {channels} inputs and {taps} taps")));
        }
        let projection = self.tensors.rows_of_width(weight, channels * taps)?;
        let bias = self.tensor_in_trunk(&format!("{path}.bias"));
        let bias = bias.map(|bias| self.tensors.vector(bias, Some(rows))).transpose()?;
        Ok(projection.with_bias(bias))
    }

    fn sound_positions(&self, sounds: SoundTokens) -> Result<Option<PositionConvolution>, ForwardError> {
        let Some(path) = sounds.positions else { return Ok(None) };
        let size = |key: &str| self.need(self.config.size(key).filter(|size| *size > 0), key);
        let (hidden, taps, groups) =
            (self.hidden()?, size("num_conv_pos_embeddings")?, size("num_conv_pos_embedding_groups")?);
        let [magnitudes, directions] = *WEIGHT_NORM
            .iter()
            .find(|[first, _]| self.tensor_in_trunk(&format!("{path}.{first}")).is_some())
            .unwrap_or(&WEIGHT_NORM[0]);
        let part = |name: &str| self.needed_in_trunk(&format!("{path}.{name}"));
        let (magnitudes, directions, bias) = (part(magnitudes)?, part(directions)?, part("bias")?);
        let of_group = hidden.checked_div(groups).filter(|width| width * groups == hidden);
        if of_group.map(|width| vec![hidden, width, taps]).as_ref() != Some(&self.tensors.meta()[directions].shape) {
            return Err(self
                .tensors
                .shape_error(directions, &format!("{taps} taps of {hidden} channels in {groups} groups")));
        }
        Ok(Some(PositionConvolution {
            magnitudes: self.tensors.vector(magnitudes, Some(taps))?,
            directions: self.tensors.vector(directions, None)?,
            bias: self.tensors.vector(bias, Some(hidden))?,
            taps,
            groups,
            activation: self.sound_activation()?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_from_steps_and_taps() {
        // Of wav2vec 2.0: a second of 16,000 samples becomes 49 rows.
        let steps = [(10, 5), (3, 2), (3, 2), (3, 2), (3, 2), (2, 2), (2, 2)];
        assert_eq!(steps.iter().fold(16_000, |rows, (taps, step)| outputs(rows, (*taps, *step, 0))), 49);
        // Of Whisper: 3000 columns become 1500 rows.
        assert_eq!(outputs(outputs(3000, (3, 1, 1)), (3, 2, 1)), 1500);
        assert_eq!(outputs(9, (10, 5, 0)), 0);
    }
}
