//! Search for the range with the least squared error. Unlike the incumbent's, which tries the last three bins of a
//! histogram from zero, it shrinks both ends together and so holds for asymmetric data.

use super::registry::{ObserverRow, plain};
use super::{Grid, Needs, Observer, Seen};
use kvant_numeric::kernel::Range;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "mse",
    aliases: &["minmse", "min_mse", "min-mse"],
    example: "mse",
    about: "the shrunken range with the least squared error; with scales of powers of two the best of five exponents",
    make: |settings| plain(settings, Mse),
};

/// The observer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mse;

impl Observer for Mse {
    fn spelling(&self) -> String {
        ROW.name.to_owned()
    }

    fn needs(&self, _: &dyn Grid) -> Needs {
        Needs::HISTOGRAM
    }

    fn range(&self, seen: &Seen<'_>, grid: &dyn Grid) -> Range {
        search(seen.range(), |range| seen.squared_error(grid, range))
    }
}

/// Hundredths by which the range is shrunk, at most: int2 gains until about a quarter of the range is left.
const STEPS: u32 = 80;

/// The range among `full * (1 - i / 100)`, `i = 0..=80`, with the least error; the widest of equals.
fn search(full: Range, error: impl Fn(Range) -> f64) -> Range {
    let candidates = (0..=STEPS).map(|i| scaled(full, 1.0 - i as f32 / 100.0));
    let best =
        candidates.map(|range| (error(range), range)).reduce(|best, next| if next.0 < best.0 { next } else { best });
    best.map_or(full, |(_, range)| range)
}

fn scaled(range: Range, factor: f32) -> Range {
    Range { min: range.min * factor, max: range.max * factor }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_minimum_and_prefers_the_widest() {
        let full = Range { min: -2.0, max: 10.0 };
        let best = search(full, |r| f64::from((r.max - 6.0).abs()));
        assert!((best.max - 6.0).abs() < 1e-5 && (best.min + 1.2).abs() < 1e-5);
        assert_eq!(search(full, |_| 1.0), full);
    }
}
