//! The forward pass of a decoder or an encoder, built from its family's description. Activations are `f32` rows, one per token; weights
//! stay in the mapped file and are widened piece by piece, so memory is that of the activations of one block.
//!
//! [`blueprint`] specifies the pass for a checkpoint, [`Pass`] runs sequences through it block by block, [`Runner`] runs
//! single blocks, optionally with [`ForwardOptions`], [`ops`] is the interface of all arithmetic, [`cpu`] implements it. An [`ActivationHook`] observes activations.
//!
//! ```
//! use kvant_container::Checkpoint;
//! use kvant_forward::forward::{Decoder, cpu::Cpu};
//! use std::path::Path;
//!
//! let checkpoint = Checkpoint::open(Path::new("../../tests/models/nano_llama"))?;
//! let decoder = Decoder::open(&checkpoint)?;
//! let logits = decoder.logits(&Cpu::default(), &[5, 17, 301, 42], 4)?;
//! assert_eq!(logits.len(), 4 * decoder.vocabulary());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod attention;
pub mod blueprint;
mod buffers;
mod compressed;
pub mod cpu;
mod distances;
mod error;
mod feed_forward;
mod further;
mod gated_delta;
pub mod gradient;
mod heads;
mod hook;
mod hyper;
mod images;
mod indexer;
mod input_rotations;
mod lanes;
mod layer_input;
mod layout;
mod lightning;
mod mamba1;
mod mamba2;
mod mixer;
pub mod ops;
mod options;
mod pass;
mod patches;
mod quantizers;
mod readout;
mod recurrent;
mod recurrent_state;
mod rope;
mod routing;
mod routing_rule;
mod run;
mod runner;
mod sequence;
mod session;
mod short_convolution;
mod sounds;
mod spans;
mod stacks;
mod step;
mod stream;
mod streams;
mod tensors;
mod vision;
mod weighed;
mod weight_overrides;

pub use error::ForwardError;
pub use heads::{HeadLayout, Heads};
pub use hook::{ActivationHook, ActivationPoint, Rows};
pub use layout::{ImageSpan, SequenceLayout};
pub use options::{ForwardOptions, StartFrom, StopAt};
pub use pass::LONG;
pub use pass::{Chunk, Pass, WIDE, chunks};
pub use quantizers::{AttentionQuantizers, LayerQuantizers, Quantizers};
pub(crate) use readout::mean;
pub use recurrent_state::RecurrentState;
pub use rope::{Angles, Rotary};
pub use routing::Routing;
pub use runner::Runner;
pub use sequence::SequenceLength;
pub use session::{Session, SessionOps};
pub use spans::Spans;
pub use streams::Streams;
pub use tensors::{Projection, Tensors, Vector};
pub use vision::{TowerImages, VisionTower};
pub use weight_overrides::WeightOverrides;

use blueprint::{Blueprint, ReadoutLayers, Stacks};
use images::ImageGrids;
use input_rotations::of_layers;
use kvant_container::Checkpoint;
use kvant_data::images::Images;
use kvant_data::sounds::{SoundInput, Sounds};
use kvant_formats::import::{self, Import, InputRotations};
use kvant_model::family::Family;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::Network;
use kvant_weights::weight::WeightMatrix;
use ops::Ops;
use sequence::marked;
use serde_json::Value;
use sounds::GivenSounds;
use std::sync::Arc;
use vision::ImageRows;

/// A decoder that can be run, or where it was opened by [`Decoder::open_any`], an encoder.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    tensors: Tensors<'a>,
    network: Network,
    blueprint: Blueprint,
    quantizers: Quantizers,
    /// The rotations of layers' inputs.
    rotations: InputRotations,
    quantizes_cache: bool,
    images: Option<Arc<Images>>,
    /// Those of images of any size, by their tokens.
    grids: Option<Arc<ImageGrids>>,
    sounds: Option<GivenSounds>,
    /// The rows of images in texts.
    image_rows: Option<ImageRows>,
}

impl<'a> Decoder<'a> {
    /// The decoder in a checkpoint, of floats or quantized. Reads headers, config.json and scales of whole tensors.
    ///
    /// # Errors
    ///
    /// [`ForwardError::Unsupported`] for unsupported rules; [`ForwardError::Encoder`] for encoders, which predict no next token, and
    /// [`ForwardError::EncoderDecoder`] for models that read one text and predict another; errors for anything missing or inconsistent.
    pub fn open(checkpoint: &'a Checkpoint) -> Result<Decoder<'a>, ForwardError> {
        let decoder = Decoder::open_any(checkpoint)?;
        match decoder.network.family() {
            Some(family) if family.decoder_stack().is_some() => {
                Err(ForwardError::EncoderDecoder { family: family.name })
            }
            Some(family) if family.is_encoder() => Err(ForwardError::Encoder { family: family.name }),
            _ => Ok(decoder),
        }
    }

    /// The same for a decoder or an encoder.
    ///
    /// # Errors
    ///
    /// [`ForwardError::Unsupported`] for unsupported rules; errors for anything missing or inconsistent.
    pub fn open_any(checkpoint: &'a Checkpoint) -> Result<Decoder<'a>, ForwardError> {
        let config = checkpoint.config()?.ok_or(ForwardError::NoConfig)?;
        let import = import::open(checkpoint)?;
        let tensors = Tensors::new(import.tensors().to_vec());
        let network = Network::recognise(&ModelConfig::from_json(&config)?, tensors.meta());
        let blueprint = Blueprint::new(&config, &tensors)?;
        let quantizers = Quantizers::of(&import, &blueprint)?;
        let quantizes_cache = import.quantizes_cache();
        let rotations = of_layers(&import, &blueprint)?;
        let (images, grids, sounds, image_rows) = (None, None, None, None);
        Ok(Decoder {
            tensors,
            network,
            blueprint,
            quantizers,
            rotations,
            quantizes_cache,
            images,
            grids,
            sounds,
            image_rows,
        })
    }

    /// The tower of a model of text and images, whose names in the checkpoint stand behind `prefix`; of one that is described beside the families
    /// with its description.
    fn of_tower(
        config: &Value,
        described: Option<&'static Family>,
        tensors: Tensors<'a>,
        import: &Import<'_>,
        prefix: &str,
    ) -> Result<Decoder<'a>, ForwardError> {
        let typed = ModelConfig::from_json(config)?;
        let network = match described {
            None => Network::recognise(&typed, tensors.meta()),
            Some(family) => Network::of_tower(family, &typed, tensors.meta())
                .ok_or_else(|| ForwardError::missing("the model", format!("tower like {}", family.name)))?,
        };
        let blueprint = Blueprint::of_network(config, &tensors, &network)?;
        let quantizers = Quantizers::of_tower(import, &blueprint, prefix)?;
        let (quantizes_cache, images, grids, sounds, image_rows) = (false, None, None, None, None);
        let rotations = InputRotations::new();
        Ok(Decoder {
            tensors,
            network,
            blueprint,
            quantizers,
            rotations,
            quantizes_cache,
            images,
            grids,
            sounds,
            image_rows,
        })
    }

    /// The images in a sequence: those in a text, or that whose patches the sequence is, in a model of images of any size.
    fn images_in(&self, sequence: &[u32]) -> Vec<ImageSpan> {
        match (&self.image_rows, &self.grids) {
            (Some(rows), _) => rows.spans(sequence),
            (None, Some(grids)) => grids.span(sequence).into_iter().collect(),
            (None, None) => Vec::new(),
        }
    }

    /// Whether tokens of images in texts see all of their image.
    fn sees_images_whole(&self) -> bool {
        self.image_rows.as_ref().is_some_and(ImageRows::sees_whole)
    }

    /// Channels, height and width of the images that a model of images reads.
    pub fn image_shape(&self) -> Option<[usize; 3]> {
        self.blueprint.images.as_ref().map(|images| images.shape)
    }

    /// Gives a model of images those that its tokens are of, and returns the tokens of each.
    ///
    /// # Errors
    ///
    /// Models of text, images of another shape, and more patches than there are numbers for.
    pub fn give_images(&mut self, images: Arc<Images>) -> Result<Vec<Vec<u32>>, ForwardError> {
        let too_many = || ForwardError::TooManyImages { images: images.len() };
        if let Some(layers) = &self.blueprint.grids {
            let grids = ImageGrids::of(&images, layers)?;
            let sequences = grids.sequences().ok_or_else(too_many)?;
            (self.images, self.grids) = (Some(images), Some(Arc::new(grids)));
            return Ok(sequences);
        }
        let layers = self.blueprint.images.as_ref();
        let layers = layers.ok_or_else(|| ForwardError::unsupported("images in a model of text"))?;
        if let Some(found) = images.shapes().find(|found| *found != layers.shape) {
            let read = layers.shape;
            return Err(ForwardError::unsupported(format!("images of {found:?} in a model that reads {read:?}")));
        }
        let sequences = (0..images.len()).map(|image| layers.sequence(image).ok_or_else(too_many)).collect();
        self.images = Some(images);
        sequences
    }

    /// What a model of sounds reads of each.
    pub fn sound_input(&self) -> Option<SoundInput> {
        self.blueprint.sounds.as_ref().map(|sounds| sounds.input)
    }

    /// Gives a model of sounds those that its tokens are of, and returns the numbers of the rows of each: its tokens, or what the encoder of
    /// an encoder-decoder reads (see [`Decoder::sequence_of_pair`]).
    ///
    /// # Errors
    ///
    /// Models that read no sounds, sounds prepared for others, too short ones, and more rows than there are numbers for.
    pub fn give_sounds(&mut self, sounds: Arc<Sounds>) -> Result<Vec<Vec<u32>>, ForwardError> {
        let layers = self.blueprint.sounds.as_ref();
        let layers = layers.ok_or_else(|| ForwardError::unsupported("sounds in a model that reads none"))?;
        if sounds.input() != layers.input {
            let (found, read) = (sounds.input(), layers.input);
            return Err(ForwardError::unsupported(format!("{found} in a model that reads {read}")));
        }
        let given = GivenSounds::new(layers, sounds)?;
        let sequences = given.sequences();
        self.sounds = Some(given);
        Ok(sequences)
    }

    /// The sequences in which an encoder-decoder reads texts: the encoder reads the text, and the decoder predicts it from the token that it
    /// begins with on. Of other models they are the texts.
    ///
    /// # Errors
    ///
    /// [`ForwardError::Missing`] where config.json does not state the token that decoders begin with.
    pub fn sequences_of(&self, texts: Vec<Vec<u32>>) -> Result<Vec<Vec<u32>>, ForwardError> {
        match &self.blueprint.stacks {
            None => Ok(texts),
            Some(_) => texts.into_iter().map(|text| self.sequence_of_pair(&text, &text)).collect(),
        }
    }

    /// The sequence of an encoder-decoder whose encoder reads `source`, and whose decoder predicts `target`.
    ///
    /// # Errors
    ///
    /// As [`Decoder::sequences_of`]; models of one stack of blocks.
    pub fn sequence_of_pair(&self, source: &[u32], target: &[u32]) -> Result<Vec<u32>, ForwardError> {
        let stacks = self.blueprint.stacks.as_ref();
        let stacks = stacks.ok_or_else(|| ForwardError::unsupported("pairs of texts in a model of one stack"))?;
        let key = "`decoder_start_token_id`, the token that decoders begin with";
        let start = stacks.start.ok_or_else(|| ForwardError::missing("config.json", key))?;
        Ok(source.iter().map(|token| marked(*token)).chain([start]).chain(target.iter().copied()).collect())
    }

    /// The tensors of the model.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The weight of a layer, where it is mapped.
    pub fn weight(&self, layer: &Projection) -> WeightMatrix<'a> {
        self.tensors.weight(layer)
    }

    /// The layer of this name in a block.
    pub fn layer(&self, block: usize, module: &str) -> Option<&Projection> {
        self.blueprint.blocks.get(block)?.layers().into_iter().find(|layer| layer.module == module)
    }

    /// Refuses a block with NaN or infinite weights, before computing with it.
    ///
    /// # Errors
    ///
    /// [`ForwardError::NotFinite`].
    pub fn check_block(&self, block: usize) -> Result<(), ForwardError> {
        let layers = self.blueprint.blocks.get(block).map(|block| block.layers()).unwrap_or_default();
        let mut broken = layers.into_iter().filter_map(|layer| Some((layer, self.tensors.first_not_finite(layer)?)));
        match broken.next() {
            None => Ok(()),
            Some((layer, (tensor, [output, input], value))) => Err(ForwardError::NotFinite {
                tensor: tensor.to_owned(),
                module: layer.module.clone(),
                output,
                input,
                value,
            }),
        }
    }

    /// The first tensor of the model with a value that is NaN or infinite, and the value.
    pub fn first_broken(&self) -> Option<(&str, f32)> {
        self.tensors.first_broken()
    }

    /// The number of tokens that there are.
    pub fn vocabulary(&self) -> usize {
        self.blueprint.head.rows
    }

    /// Returns whether it is an encoder.
    pub fn is_encoder(&self) -> bool {
        self.blueprint.encoder.is_some()
    }

    /// The stacks of an encoder-decoder.
    pub fn stacks(&self) -> Option<&Stacks> {
        self.blueprint.stacks.as_ref()
    }

    /// What an encoder makes of its last hidden states.
    pub fn readouts(&self) -> &[ReadoutLayers] {
        self.blueprint.encoder.as_ref().map_or(&[], |encoder| &encoder.readouts)
    }

    /// The layers behind the last norm: the head, or those of an encoder's readouts.
    pub fn layers_behind(&self) -> Vec<&Projection> {
        match &self.blueprint.encoder {
            None => vec![&self.blueprint.head],
            Some(encoder) => encoder.readouts.iter().flat_map(ReadoutLayers::layers).collect(),
        }
    }

    /// The longest context that config.json states.
    pub fn longest(&self) -> Option<usize> {
        self.blueprint.longest
    }

    /// Returns whether the checkpoint quantizes activations.
    pub fn quantizes_activations(&self) -> bool {
        !self.quantizers.is_empty()
    }

    /// Which activations the checkpoint quantizes and how, a line for each kind of place and scheme; none in a float model.
    pub fn quantized_activations(&self) -> Vec<String> {
        self.quantizers.summary()
    }

    /// Returns whether the checkpoint quantizes activations of attention, including the KV cache.
    pub fn quantizes_attention(&self) -> bool {
        self.quantizes_cache || (0..self.blueprint.blocks.len()).any(|block| self.quantizers.attention(block).is_some())
    }

    /// The layers whose inputs it rotates.
    pub fn rotated_inputs(&self) -> impl Iterator<Item = &str> {
        self.rotations.keys().map(String::as_str)
    }

    /// The quantizers of its activations.
    pub fn quantizers(&self) -> &Quantizers {
        &self.quantizers
    }

    /// The tensors that it reads.
    pub fn tensors(&self) -> &Tensors<'a> {
        &self.tensors
    }

    /// The blueprint of the pass.
    pub fn blueprint(&self) -> &Blueprint {
        &self.blueprint
    }

    /// The width of the residual stream.
    pub fn hidden(&self) -> usize {
        self.blueprint.stream.hidden
    }

    /// The width of a row of the stream between blocks: the residual stream, and what later blocks read besides.
    pub fn width(&self) -> usize {
        self.blueprint.stream.width()
    }

    /// Elements that the widest activations of a token have: what bounds the tokens that pass together.
    fn widest(&self) -> usize {
        let layers = self.blueprint.blocks.iter().flat_map(blueprint::Block::layers);
        layers.map(|layer| layer.rows.max(layer.columns)).max().unwrap_or(1)
    }

    /// Bytes that a [`Session`] keeps of a sequence of so many tokens: keys and values of each, and the states of recurrent mixers.
    pub fn cache_bytes(&self, tokens: usize) -> u64 {
        let mixers = self.blueprint.blocks.iter().map(|block| block.mixer.state_elements(tokens) as u64);
        mixers.map(|elements| elements.saturating_mul(4)).fold(0, u64::saturating_add)
    }

    /// Those of all rotary embeddings, for sequences of this layout.
    fn angles(&self, layout: SequenceLayout<'_>) -> Vec<Angles> {
        let places = self.image_rows.as_ref().and_then(|rows| rows.places(layout));
        let of_layout = |rotary: &Rotary| match (&places, layout.images) {
            (_, [ImageSpan { grid: Some(grid), .. }]) if rotary.is_of_grid() => rotary.angles_of_grid(*grid),
            (Some((places, axes)), _) => rotary.angles_of_places(places, axes).unwrap_or_else(|| rotary.no_angles()),
            _ => rotary.angles(layout.length.max(1)),
        };
        self.blueprint.rotaries.iter().map(of_layout).collect()
    }

    /// The last hidden states of an encoder for sequences of `length` tokens, a row per token, and what its readouts make of them. Tokens
    /// beyond the last whole sequence are left out.
    ///
    /// # Errors
    ///
    /// As for [`Decoder::logits`].
    pub fn encode(
        &self,
        ops: &dyn Ops,
        tokens: &[u32],
        length: usize,
    ) -> Result<(Vec<f32>, Vec<Vec<f32>>), ForwardError> {
        let chunks = chunks(self, tokens.chunks_exact(length.max(1)));
        let mut pass = Pass::begin(self, ops, &chunks, u64::MAX, None)?;
        let (mut all, mut readouts) = (Vec::new(), vec![Vec::new(); self.readouts().len()]);
        for chunk in 0..chunks.len() {
            (0..self.blueprint.blocks.len()).try_for_each(|block| pass.block(block, chunk, |_| {}))?;
            let hidden = pass.hidden(chunk)?;
            for (readout, out) in self.readouts().iter().zip(&mut readouts) {
                let rows = pass.readout_rows(chunk, readout, &hidden);
                out.extend(pass.readout_values(readout, &rows, 0..readout.width));
            }
            all.extend(hidden);
        }
        Ok((all, readouts))
    }

    /// Logits of sequences of `length` tokens, one after the other in `tokens`: a row of [`Decoder::vocabulary`] per
    /// token. Tokens beyond the last whole sequence are left out. For long texts there is [`Pass`].
    ///
    /// # Errors
    ///
    /// Tokens outside the vocabulary, sequences longer than learned positions.
    pub fn logits(&self, ops: &dyn Ops, tokens: &[u32], length: usize) -> Result<Vec<f32>, ForwardError> {
        let chunks = chunks(self, tokens.chunks_exact(length.max(1)));
        let mut pass = Pass::begin(self, ops, &chunks, u64::MAX, None)?;
        let mut logits = Vec::new();
        for chunk in 0..chunks.len() {
            (0..self.blueprint.blocks.len()).try_for_each(|block| pass.block(block, chunk, |_| {}))?;
            let hidden = pass.hidden(chunk)?;
            logits.extend(pass.logits(&hidden, 0..self.vocabulary()));
        }
        Ok(logits)
    }
}
