//! The scale that leaves the least squared error of a weight's groups: not of a range, since it may be negative. The search is
//! part of rounding to nearest (`rounding/rtn/search.rs`), which knows what each weight is multiplied by.

use super::mse::Mse;
use super::registry::{ObserverRow, plain};
use super::{Grid, Needs, ObservedTensor, ObservedValues, Observer};
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "search",
    aliases: &["searched"],
    example: "search",
    about: "for weights: the scale with the least squared error, weighed by the inputs where an algorithm sees them; any kind of scale",
    make: |settings| plain(settings, Search),
};

/// The observer. Tensors of graphs get the range of [`Mse`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Search;

impl Observer for Search {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn needs(&self, grid: &dyn Grid) -> Needs {
        Mse.needs(grid)
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        (!tensor.is_weight).then_some("it searches scales of weights: activations take mse")
    }

    fn range(&self, seen: &ObservedValues<'_>, grid: &dyn Grid) -> Range {
        Mse.range(seen, grid)
    }
}
