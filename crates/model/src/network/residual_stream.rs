//! Who writes to the residual stream, who reads it and through which norm: where the stream, and the values of attention, may be
//! rotated without changing the model's function. Rotates nothing.

use super::links::{Consumer, Input, PairPath, ScaleSource, SmoothingPair};
use super::{LinearId, Network, NormId, Place, Reason};
use crate::family::{HeadGate, NormSite, Positions, Residual, Role};
use std::collections::BTreeSet;
use std::fmt;

/// The residual stream of a decoder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResidualStream {
    /// The table of the embeddings.
    pub embedding: Option<usize>,
    /// Another table whose rows are added to it: learned positions.
    pub positions: Option<usize>,
    /// Layers whose outputs are added to it.
    pub writers: Vec<Consumer>,
    /// Layers that read it, each with the norm between them, where that has a weight.
    pub readers: Vec<(Consumer, Option<NormId>)>,
    /// The norm before the head.
    pub last_norm: Option<NormId>,
    /// Whether a norm subtracts the mean over the channels.
    pub subtracts_mean: bool,
}

/// The reason that a model cannot be rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamObstacle {
    /// Its architecture has no description.
    Undescribed,
    /// A norm stands behind a branch, so that what joins the stream is not linear in it.
    Norm(String),
    /// Norms stand on the stream itself.
    PostNorm,
    /// Experts add to the stream what they read, which a norm has scaled.
    Identities,
    /// There are several streams, which learned factors mix.
    Streams,
    /// Positions are added to the stream as numbers that no tensor holds.
    Positions,
    /// A layer neither reads the stream through a norm nor writes to it, as far as is known.
    Layer(String),
    /// A tensor that is not understood, or of a part that would have to be rotated too.
    Tensor {
        /// Its position in the list that the network was recognised from.
        tensor: usize,
        /// What it is or does, after its name.
        what: &'static str,
    },
}

impl fmt::Display for StreamObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StreamObstacle::Undescribed => f.write_str("its architecture has no description"),
            StreamObstacle::Norm(module) => {
                write!(f, "`{module}` normalises what is added to the residual stream, which no rotation passes")
            }
            StreamObstacle::PostNorm => f.write_str("its norms stand on the residual stream itself"),
            StreamObstacle::Identities => f.write_str(
                "some of its experts add to the residual stream what a norm gives, which no rotation passes",
            ),
            StreamObstacle::Streams => f.write_str("it has several residual streams, which are mixed token by token"),
            StreamObstacle::Positions => {
                f.write_str("its positions are computed, not read from a table that could be rotated")
            }
            StreamObstacle::Layer(module) => {
                write!(f, "`{module}` is beside the residual stream, where rotations are not supported")
            }
            StreamObstacle::Tensor { what, .. } => write!(f, "one of its tensors {what}"),
        }
    }
}

impl Network {
    /// The residual stream.
    ///
    /// # Errors
    /// [`StreamObstacle`] where it cannot be rotated.
    pub fn residual_stream(&self) -> Result<ResidualStream, StreamObstacle> {
        let residual = self.facts.residual.filter(|_| self.family.is_some()).ok_or(StreamObstacle::Undescribed)?;
        if matches!(residual, Residual::PostNorm | Residual::OfNorm) {
            return Err(StreamObstacle::PostNorm);
        }
        if self.family.is_some_and(|family| family.math.hyper_connections) {
            return Err(StreamObstacle::Streams);
        }
        let is_computed = |positions| matches!(positions, Positions::Sinusoidal { .. } | Positions::SinusoidalOfWidth);
        if self.family.is_some_and(|family| is_computed(family.math.positions)) {
            return Err(StreamObstacle::Positions);
        }
        self.check_norms()?;
        self.check_places()?;
        let mut stream = ResidualStream { subtracts_mean: self.subtracts_mean(), ..ResidualStream::default() };
        for (tensor, place) in self.places.iter().enumerate() {
            match place {
                Place::Embedding => stream.embedding = Some(tensor),
                Place::Positions => stream.positions = Some(tensor),
                _ => {}
            }
        }
        for block in &self.blocks {
            self.add_block(*block, &mut stream)?;
        }
        let last = self.norms.iter().position(|norm| norm.site == NormSite::Final).map(NormId);
        stream.last_norm = last;
        stream.readers.extend(self.head().map(|head| (Consumer::Linear(head), last)));
        Ok(stream)
    }

    /// The pairs of each block through which values may be rotated, head by head, with the rows of values.
    pub fn value_paths(&self) -> Vec<SmoothingPair> {
        let gates_of_queries = self.family.is_some_and(|family| family.math.head_gate == HeadGate::WithQueries);
        let gated: BTreeSet<usize> =
            self.linears.iter().filter(|l| l.role == Role::HeadGate).filter_map(|l| l.block).collect();
        let blocks = self.blocks.iter().filter(|block| !gates_of_queries && !gated.contains(block));
        let of_values = |pair: &SmoothingPair| {
            matches!((&pair.from, pair.through), (ScaleSource::Linear { .. }, PairPath::Heads { .. }))
        };
        blocks.flat_map(|block| self.links(*block)).filter(of_values).collect()
    }

    fn subtracts_mean(&self) -> bool {
        self.family.is_some_and(|family| family.norm_kind.subtracts_mean())
            || self.norms.iter().any(|norm| is_of_stream(norm.site) && norm.kind.subtracts_mean())
    }

    /// Norms may stand between the stream and what reads it, and inside of branches.
    fn check_norms(&self) -> Result<(), StreamObstacle> {
        use NormSite::{
            AttentionOutput, DenseOutput, Embedding, FeedForwardOutput, LaneRouter, LayerInputOutput, LayerInputs,
            LowRankOutput, RoutedOutput,
        };
        let barred = [
            AttentionOutput,
            DenseOutput,
            Embedding,
            FeedForwardOutput,
            LaneRouter,
            LayerInputOutput,
            LayerInputs,
            LowRankOutput,
            RoutedOutput,
        ];
        let barrier = self.norms.iter().find(|norm| barred.contains(&norm.site));
        barrier.map_or(Ok(()), |norm| Err(StreamObstacle::Norm(norm.module.clone())))
    }

    fn check_places(&self) -> Result<(), StreamObstacle> {
        for (tensor, place) in self.places.iter().enumerate() {
            let what = match place {
                Place::LayerInputs => "gives blocks inputs of their own, where rotations are not supported",
                Place::Patches(_) => "reads patches of images, where rotations are not supported",
                Place::SoundConvolution(_) => "reads sounds, where rotations are not supported",
                Place::HeadBias => "is the bias of a head that shares the embeddings, which have to be separated",
                Place::Other(Reason::Modality) => {
                    "is of a part for images or sound, whose outputs would have to be rotated too"
                }
                Place::Other(Reason::ExtraLayer) => {
                    "predicts further tokens from the residual stream, where rotations are not supported"
                }
                Place::Other(Reason::Quantized) => "is quantized already",
                Place::Other(Reason::Unrecognised | Reason::NotLinear) => "is not understood",
                _ => continue,
            };
            return Err(StreamObstacle::Tensor { tensor, what });
        }
        let outside = self.linears.iter().find(|linear| linear.block.is_none() && linear.role != Role::Head);
        outside.map_or(Ok(()), |linear| Err(StreamObstacle::Layer(linear.module.clone())))
    }

    fn add_block(&self, block: usize, stream: &mut ResidualStream) -> Result<(), StreamObstacle> {
        if self.has_identities(block) {
            return Err(StreamObstacle::Identities);
        }
        let norms =
            self.norms.iter().enumerate().filter(|(_, norm)| norm.block == Some(block) && is_of_stream(norm.site));
        let norms: Vec<(NormId, Vec<Consumer>)> =
            norms.map(|(at, norm)| (NormId(at), self.readers(block, norm.site))).collect();
        let of_linears = self.linears.iter().enumerate().filter(|(_, linear)| linear.block == Some(block));
        if let Some((_, unknown)) = of_linears.clone().find(|(at, _)| self.input(LinearId(*at)).is_none()) {
            return Err(StreamObstacle::Layer(unknown.module.clone()));
        }
        for stage in self.stages(block) {
            let input = stage.input;
            for consumer in stage.into_consumers() {
                match input {
                    Input::Attention | Input::Recurrent | Input::FeedForward | Input::Router | Input::Routed(_) => {
                        let norm = norms.iter().find(|(_, readers)| readers.contains(&consumer)).map(|(norm, _)| *norm);
                        stream.readers.push((consumer, norm));
                    }
                    Input::Heads
                    | Input::RecurrentHeads
                    | Input::Hidden
                    | Input::SharedHidden
                    | Input::RoutedHidden(_) => stream.writers.push(consumer),
                    Input::QueryLatent
                    | Input::KeyValueLatent
                    | Input::Convolved
                    | Input::StepLatent
                    | Input::DecayLatent
                    | Input::GateLatent => {}
                    // Of two streams, each may be rotated only as the other is.
                    Input::EncoderStates | Input::LowRankLatent | Input::LayerInput | Input::LayerInputHidden => {
                        return Err(StreamObstacle::Layer(self.consumer_module(consumer).to_owned()));
                    }
                }
            }
        }
        Ok(())
    }

    fn consumer_module(&self, consumer: Consumer) -> &str {
        match consumer {
            Consumer::Linear(id) => &self.linear(id).module,
            Consumer::Experts(id) => &self.experts[id.index()].module,
        }
    }
}

/// Norms that stand between the residual stream and what reads it.
fn is_of_stream(site: NormSite) -> bool {
    matches!(site, NormSite::AttentionInput | NormSite::FeedForwardInput | NormSite::RoutedInput | NormSite::Final)
}
