//! A decoder on an engine: tokens in, logits out.

use std::borrow::Cow;
use std::ops::ControlFlow;

use kvant_container::onnx::ModelProto;

use super::feed::{CacheTensor, Cached, LOGITS};
use super::{DecoderError, DecoderGraph};
use crate::evaluation::widened;
use crate::fake_quantization::{self, Quantizer, is_native};
use crate::runtime::{self, RuntimeError, RuntimeOptions, Session};

/// A decoder that an engine has loaded.
pub struct DecoderSession {
    decoder: DecoderGraph,
    /// What a run keeps for the next one; nothing where tokens are not run in parts.
    cache: Vec<CacheTensor>,
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
        let is_quantized = model.graph.node.iter().any(Quantizer::is);
        let model = if is_quantized { Cow::Borrowed(model) } else { Cow::Owned(widened(model.clone())?) };
        let decoder = DecoderGraph::of(&model.graph)?;
        let is_native = is_native(&model, options)?;
        let cache = decoder.cache.clone();
        let open = if is_native { runtime::open } else { fake_quantization::open };
        let session = open(&model, &wanted(&cache), options)?;
        Ok(DecoderSession { decoder, cache, session })
    }

    /// The engine and its version.
    pub fn engine(&self) -> String {
        self.session.name()
    }

    /// Runs a sequence of tokens and shows its logits, `[tokens, vocabulary]`, while they are in memory. Where the graph has a cache,
    /// the second half of the tokens is run behind that of the first, as programs run a prompt and what follows it: scales and
    /// codes of cached keys and values count.
    ///
    /// # Errors
    ///
    /// Sequences of another length than the graph takes, errors of the engine, logits that are not a row for each token.
    pub fn logits<T>(&mut self, tokens: &[u32], show: impl FnOnce(&[f32]) -> T) -> Result<T, DecoderError> {
        match self.in_parts(tokens)? {
            Some(logits) => Ok(show(&logits)),
            None => self.run(&Cached::default(), tokens, &[], show).map(|(_, shown)| shown),
        }
    }

    /// The logits of tokens that are run in two parts; `None` where the graph does not take them so.
    fn in_parts(&mut self, tokens: &[u32]) -> Result<Option<Vec<f32>>, DecoderError> {
        let cache = std::mem::take(&mut self.cache);
        if cache.is_empty() || tokens.len() < 2 {
            self.cache = cache;
            return Ok(None);
        }
        let (first, second) = tokens.split_at(tokens.len() / 2);
        let mut logits = Vec::new();
        let (cached, ()) = self.run(&Cached::default(), first, &cache, |rows| {
            logits.reserve_exact(rows.len() / first.len() * tokens.len());
            logits.extend_from_slice(rows);
        })?;
        match self.run(&cached, second, &[], |rows| logits.extend_from_slice(rows)) {
            // Some graphs take one token at a time behind a cache.
            Err(DecoderError::Runtime(RuntimeError::Run { .. }) | DecoderError::Logits { .. }) => Ok(None),
            Err(error) => Err(error),
            Ok(_) => {
                self.cache = cache;
                Ok(Some(logits))
            }
        }
    }

    /// Runs tokens behind those that were run, and shows their logits. What it returns of a cache is for the tokens behind them.
    fn run<T>(
        &mut self,
        cached: &Cached,
        tokens: &[u32],
        cache: &[CacheTensor],
        show: impl FnOnce(&[f32]) -> T,
    ) -> Result<(Cached, T), DecoderError> {
        let feeds = self.decoder.feeds(cached, tokens)?;
        let mut longer = Cached { tokens: cached.tokens + tokens.len(), ..Cached::default() };
        let (mut show, mut shown) = (Some(show), None);
        self.session.run(&feeds, &wanted(cache), &mut |name, array| {
            if let Some(kept) = cache.iter().find(|kept| kept.present == name) {
                longer.arrays.insert(kept.past.clone(), array.clone().into_owned());
                return ControlFlow::Continue(());
            }
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
            Some(Ok(found)) => Ok((longer, found)),
            Some(Err(shape)) => Err(DecoderError::Logits { shape, tokens: tokens.len() }),
            None => Err(DecoderError::NoDecoder { missing: "output `logits` that the engine shows" }),
        }
    }
}

/// The outputs that a run is asked for.
fn wanted(cache: &[CacheTensor]) -> Vec<String> {
    std::iter::once(LOGITS.to_owned()).chain(cache.iter().map(|kept| kept.present.clone())).collect()
}
