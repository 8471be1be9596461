//! How a run differs from the checkpoint's own, who watches it, and where it ends. Not the running.

use super::overlay::Overlay;
use super::routing::Routing;
use super::tap::Tap;
use std::fmt;
use std::ops::ControlFlow;

/// How a block is run otherwise than from the checkpoint alone, and to its end.
#[derive(Clone, Copy, Default)]
pub struct Variation<'v, 'a> {
    /// What stands in for the checkpoint's tensors.
    pub overlay: Option<&'v Overlay<'a>>,
    /// Who looks.
    pub tap: Option<&'v dyn Tap>,
    /// Where the run of a block ends, if not behind it.
    pub until: Option<Depth>,
    /// Which rows experts get, to be recorded or replayed.
    pub routing: Option<&'v Routing>,
}

impl fmt::Debug for Variation<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Variation { overlay, tap, until, routing } = self;
        let mut all = f.debug_struct("Variation");
        all.field("overlay", overlay)
            .field("tap", &tap.is_some())
            .field("until", until)
            .field("routing", routing)
            .finish()
    }
}

/// Where a run of a block ends: the tap has seen these inputs, and none of the layers that read them was computed. What
/// comes before in this order was computed and seen, what comes behind was not.
///
/// In parallel blocks all of attention comes before the feed-forward network. Where one norm feeds both, the first layers
/// of the network read [`Depth::AttentionInput`], and are seen there if the run ends there. A block without latents that
/// is to end at one ends before its output projection, whose input is not seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Depth {
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

/// What comes of a computation, unless the run ended in it.
pub(super) type Flow<T> = ControlFlow<(), T>;
