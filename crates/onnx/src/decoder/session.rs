//! A decoder on an engine: tokens in, logits out.

use std::borrow::Cow;
use std::ops::ControlFlow;

use kvant_container::onnx::ModelProto;

use super::feed::LOGITS;
use super::{DecoderError, DecoderGraph};
use crate::evaluation::widened;
use crate::fake_quantization::{self, Quantizer, is_native};
use crate::runtime::{self, RuntimeOptions, Session};

/// A decoder that an engine has loaded.
pub struct DecoderSession {
    decoder: DecoderGraph,
    session: Box<dyn Session>,
}

impl DecoderSession {
    /// Loads a decoder, float or quantized, as programs do: with all graph optimizations where ONNX Runtime has its operators. Where it
    /// has not, and with the embedded engine, quantizing nodes are computed here.
    ///
    /// # Errors
    ///
    /// Graphs that are no decoders or that the engine does not take.
    pub fn open(model: &ModelProto, options: &RuntimeOptions) -> Result<DecoderSession, DecoderError> {
        let wanted = [LOGITS.to_owned()];
        let is_quantized = model.graph.node.iter().any(Quantizer::is);
        let model = if is_quantized { Cow::Borrowed(model) } else { Cow::Owned(widened(model.clone())?) };
        let decoder = DecoderGraph::of(&model.graph)?;
        let is_native = is_native(&model, options)?;
        let open = if is_native { runtime::open } else { fake_quantization::open };
        Ok(DecoderSession { decoder, session: open(&model, &wanted, options)? })
    }

    /// The engine and its version.
    pub fn engine(&self) -> String {
        self.session.name()
    }

    /// Runs a sequence of tokens behind an empty cache and shows its logits, `[tokens, vocabulary]`, while they are in memory.
    ///
    /// # Errors
    ///
    /// Sequences of another length than the graph takes, errors of the engine, logits that are not a row for each token.
    pub fn logits<T>(&mut self, tokens: &[u32], show: impl FnOnce(&[f32]) -> T) -> Result<T, DecoderError> {
        let feeds = self.decoder.feeds(tokens)?;
        let (mut show, mut shown) = (Some(show), None);
        self.session.run(&feeds, &[LOGITS.to_owned()], &mut |_, array| {
            let shape = array.shape().to_vec();
            shown = match (&shape[..], array.f32s(), show.take()) {
                ([1, rows, _], Some(values), Some(show)) if *rows == tokens.len() && !values.is_empty() => {
                    Some(Ok(show(values)))
                }
                _ => Some(Err(shape)),
            };
            ControlFlow::Continue(())
        })?;
        match shown {
            Some(Ok(found)) => Ok(found),
            Some(Err(shape)) => Err(DecoderError::Logits { shape, tokens: tokens.len() }),
            None => Err(DecoderError::NoDecoder { missing: "output `logits` that the engine shows" }),
        }
    }
}
