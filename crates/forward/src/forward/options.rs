//! Options of a run: overrides, the hook, and the start and end. Not the run itself.

use super::hook::ActivationHook;
use super::routing::Routing;
use super::weight_overrides::WeightOverrides;
use std::fmt;
use std::ops::ControlFlow;

/// Options of running a block.
#[derive(Clone, Copy, Default)]
pub struct ForwardOptions<'v, 'a> {
    /// Overrides of the checkpoint's tensors.
    pub overlay: Option<&'v WeightOverrides<'a>>,
    /// The hook.
    pub tap: Option<&'v dyn ActivationHook>,
    /// The start of the run, if not at the beginning of the block.
    pub from: Option<StartFrom<'v>>,
    /// The end of the run, if not at the end of the block.
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
            .field("from", &from.map(StartFrom::depth))
            .field("until", until)
            .field("routing", routing)
            .finish()
    }
}

/// The end of a partial run: the hook has seen these inputs, and none of the layers that read them was computed. What
/// comes before in this order was computed and seen, what comes after was not.
///
/// In parallel blocks all of attention comes before the feed-forward network. Where one norm feeds both, the first layers
/// of the network read [`StopAt::AttentionInput`], and are seen there if the run ends there. A block without latents that
/// asked to stop at one ends before its output projection, whose input is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StopAt {
    /// The input of the first layers of attention.
    AttentionInput,
    /// MLA's query latent after its norm.
    QueryLatent,
    /// MLA's key/value latent after its norm.
    KeyValueLatent,
    /// Mamba: what the convolution gives.
    Convolved,
    /// Mamba: the latent of the steps after its norm.
    StepLatent,
    /// Delta nets with a decay for each channel: the latent of the steps of decays.
    DecayLatent,
    /// The same: the latent of the gates on the output.
    GateLatent,
    /// What the first of two narrow layers beside attention gives.
    LowRankLatent,
    /// The heads' outputs, side by side.
    Heads,
    /// The input of the first layers of the feed-forward network, including rows routed to experts. A router is
    /// computed nevertheless, as is the gate of shared experts.
    FeedForward,
    /// Hidden activations of the feed-forward network, of shared experts and of each expert.
    Hidden,
    /// The input of the gate on the block's own input.
    LayerInput,
    /// The block's own input, gated.
    LayerInputHidden,
}

/// The start of a run of a block that continues an earlier one. The stream is that
/// left by the earlier run: before [`StopAt::FeedForward`] the block's input, from there on what attention was
/// joined to. [`Block::resumes_at`](super::blueprint::Block::resumes_at) says which blocks can.
#[derive(Clone, Copy, Debug)]
pub enum StartFrom<'v> {
    /// At these inputs of attention's output projection.
    Heads(&'v [f32]),
    /// At the feed-forward network, its norm included.
    FeedForward,
    /// At these inputs of the last layer of a dense feed-forward network.
    Hidden(&'v [f32]),
}

impl StartFrom<'_> {
    /// The depth at which the earlier run ended.
    pub fn depth(self) -> StopAt {
        match self {
            StartFrom::Heads(_) => StopAt::Heads,
            StartFrom::FeedForward => StopAt::FeedForward,
            StartFrom::Hidden(_) => StopAt::Hidden,
        }
    }
}

/// The result of a computation, unless the run ended in it.
pub(super) type Flow<T> = ControlFlow<(), T>;
