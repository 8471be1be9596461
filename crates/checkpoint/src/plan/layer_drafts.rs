//! The second stage of a plan: what becomes of every tensor of the source.

use super::attention::AttentionDrafts;
use super::draft::Draft;

/// What becomes of every tensor of the source; all that a recipe or a conversion can be refused for is refused by now.
pub(super) struct LayerDrafts {
    /// Layers, those that are kept included, in the order in which their tensors are declared.
    pub(super) layers: Vec<Draft>,
    /// What is declared after them.
    pub(super) attention: AttentionDrafts,
    /// All other tensors.
    pub(super) rest: Vec<Draft>,
    /// Whether input channels of layers whose codes are taken over are grouped otherwise than as they stand.
    pub(super) act_order: bool,
    /// Notices for the user, besides those of every plan.
    pub(super) notices: Vec<String>,
}
