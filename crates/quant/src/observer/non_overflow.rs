//! The whole range of the values, under a scale that is a power of two. The scale is the nearest power, as in AMD Quark's
//! NonOverflow, so that the largest values can saturate by up to the root of two.

use super::registry::{ObserverRow, plain};
use super::{Grid, ObservedTensor, ObservedValues, Observer};
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "nonoverflow",
    aliases: &["non-overflow"],
    example: "nonoverflow",
    about: "the least and the greatest value, with a power-of-two scale: `pow2` in schemes",
    make: |settings| plain(settings, NonOverflow),
};

/// The observer.
#[derive(Clone, Copy, Debug)]
pub(super) struct NonOverflow;

impl Observer for NonOverflow {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        (!tensor.has_power_of_two_scales).then_some("it is for scales that are powers of two: add `pow2` to the scheme")
    }

    fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
        seen.range()
    }
}
