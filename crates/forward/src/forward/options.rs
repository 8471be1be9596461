//! How a run differs from the checkpoint's own, who watches it, and where it ends. Not the running.

use super::hook::ActivationHook;
use super::routing::Routing;
use super::weight_overrides::WeightOverrides;
use std::fmt;
use std::ops::ControlFlow;

/// How a block is run otherwise than from the checkpoint alone, and to its end.
#[derive(Clone, Copy, Default)]
pub struct ForwardOptions<'v, 'a> {
    /// What stands in for the checkpoint's tensors.
    pub overlay: Option<&'v WeightOverrides<'a>>,
    /// Who looks.
    pub tap: Option<&'v dyn ActivationHook>,
    /// Where the run of a block begins, if not before it.
    pub from: Option<Resume<'v>>,
    /// Where the run of a block ends, if not behind it.
    pub until: Option<StopAt>,
    /// Which rows experts get, to be recorded or replayed.
    pub routing: Option<&'v Routing>,
}

impl fmt::Debug for ForwardOptions<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ForwardOptions { overlay, tap, from, until, routing } = self;
        let mut all = f.debug_struct("Variation");
        all.field("overlay", overlay)
            .field("tap", &tap.is_some())
            .field("from", &from.map(Resume::depth))
            .field("until", until)
            .field("routing", routing)
            .finish()
    }
}

/// Where a run of a block ends: the tap has seen these inputs, and none of the layers that read them was computed. What
/// comes before in this order was computed and seen, what comes behind was not.
///
/// In parallel blocks all of attention comes before the feed-forward network. Where one norm feeds both, the first layers
/// of the network read [`StopAt::AttentionInput`], and are seen there if the run ends there. A block without latents that
/// is to end at one ends before its output projection, whose input is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StopAt {
    /// What the first layers of attention read.
    AttentionInput,
    /// MLA's query latent after its norm.
    QueryLatent,
    /// MLA's key/value latent after its norm.
    KeyValueLatent,
    /// The heads' outputs, side by side.
    Heads,
    /// What the first layers of the feed-forward network read, rows that are routed to experts included. A router is
    /// computed nevertheless, as is the gate of shared experts.
    FeedForward,
    /// Hidden activations of the feed-forward network, of shared experts and of each expert.
    Hidden,
}

/// Where a run of a block goes on from an earlier one that ended there: past what both have in common. The stream is that
/// which the earlier run left: before [`StopAt::FeedForward`] what the block reads, from there on what attention was
/// joined to. [`Block::resumes_at`](super::blueprint::Block::resumes_at) says which blocks can.
#[derive(Clone, Copy, Debug)]
pub enum Resume<'v> {
    /// At these inputs of attention's output projection.
    Heads(&'v [f32]),
    /// At the feed-forward network, its norm included.
    FeedForward,
    /// At these inputs of the last layer of a dense feed-forward network.
    Hidden(&'v [f32]),
}

impl Resume<'_> {
    /// The depth at which the earlier run ended.
    pub fn depth(self) -> StopAt {
        match self {
            Resume::Heads(_) => StopAt::Heads,
            Resume::FeedForward => StopAt::FeedForward,
            Resume::Hidden(_) => StopAt::Hidden,
        }
    }
}

/// What comes of a computation, unless the run ended in it.
pub(super) type Flow<T> = ControlFlow<(), T>;
