//! The whole range of the values.

use super::registry::{ObserverRow, plain};
use super::{Grid, ObservedValues, Observer};
use kvant_numeric::kernel::Range;

/// The least and the greatest value.
#[derive(Clone, Copy, Debug)]
pub(super) struct MinMax;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "minmax",
    aliases: &["min-max"],
    example: "minmax",
    about: "the least and the greatest value (the default)",
    make: |settings| plain(settings, MinMax),
};

impl Observer for MinMax {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
        seen.range()
    }
}
