//! What an encoder-decoder has beside its decoder: what makes rows of what the encoder reads, and where its blocks end.

use super::encoder::PositionTable;
use super::parts::Parts;
use super::{NormLayer, Sinusoids, Sources};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::NormSite;
use kvant_model::network::Place;

/// The stacks of an encoder-decoder. Its blocks are those of the encoder, then two for each layer of the decoder; what the blueprint has
/// before and behind its blocks is the decoder's.
#[derive(Clone, Debug)]
pub struct Stacks {
    /// Blocks of the encoder.
    pub encoder_blocks: usize,
    /// The token embedding of the encoder; where that reads sounds, the decoder's, which it does not read.
    pub embedding: Projection,
    /// Its table of learned positions.
    pub positions: Option<PositionTable>,
    /// Its positions that are computed.
    pub sinusoids: Option<Sinusoids>,
    /// The norm of its embeddings.
    pub embedding_norm: Option<NormLayer>,
    /// The norm after its last block.
    pub final_norm: Option<NormLayer>,
    /// The token that decoders begin with, if config.json states it.
    pub start: Option<u32>,
}

impl<'a> Sources<'_, 'a> {
    /// The stacks of an encoder-decoder; `None` for other models.
    pub(super) fn stacks(
        &self,
        trunk: &Parts<'_, '_, 'a>,
        embedding: &Projection,
    ) -> Result<Option<Stacks>, ForwardError> {
        if self.family.decoder_stack().is_none() {
            return Ok(None);
        }
        self.check_stacks()?;
        let start = self.config.number("decoder_start_token_id")?;
        Ok(Some(Stacks {
            encoder_blocks: self.need(self.config.num_layers, "num_layers")?,
            embedding: embedding.clone(),
            positions: self.position_table_at(Place::Positions)?,
            sinusoids: self.sinusoids()?,
            embedding_norm: trunk.listed_norm(NormSite::SourceEmbedding)?,
            final_norm: trunk.listed_norm(NormSite::SourceFinal)?,
            start: start.map(|token| token as u32),
        }))
    }

    /// Refuses decoders with other heads than the encoder's.
    fn check_stacks(&self) -> Result<(), ForwardError> {
        let [encoder, decoder] =
            ["encoder_attention_heads", "decoder_attention_heads"].map(|key| self.config.size(key));
        match encoder.zip(decoder).filter(|(encoder, decoder)| encoder != decoder) {
            Some((encoder, decoder)) => Err(ForwardError::unsupported(format!(
                "`decoder_attention_heads` {decoder} of config.json beside {encoder} of the encoder"
            ))),
            None if !self.config.flag_or("share_encoder_decoder_embeddings", true) => {
                Err(ForwardError::unsupported("`share_encoder_decoder_embeddings` false of config.json"))
            }
            None => Ok(()),
        }
    }
}
