//! Per tensor the method whose range loses least: all candidates see the values as they pass, and the squared error of each one's
//! scale is taken on MinMSE's histogram of them in the end.

use std::sync::OnceLock;

use super::method::{Method, Seen, Settings, Statistic};
use super::min_mse::MinMse;
use crate::element::CodeRange;
use crate::quantization::{Range, affine};

/// The methods tried before MinMSE; of equals the first wins.
const CANDIDATES: [Method; 3] = [Method::MinMax, Method::Percentile, Method::Entropy];

/// A statistic of each candidate, the last of which judges them.
pub struct Automatic {
    settings: Settings,
    codes: CodeRange,
    candidates: Vec<Box<dyn Statistic>>,
    min_mse: MinMse,
    /// What is best of the values so far, once it was asked for: to find it takes all searches.
    best: OnceLock<(Method, Range)>,
}

impl Automatic {
    /// For an integer type; the range of all values is best for others, whose numbers are dense about zero.
    pub fn start(settings: Settings) -> Box<dyn Statistic> {
        let of = |method| Settings { method, ..settings }.start();
        match settings.element.range(settings.symmetric) {
            Some(codes) => {
                let candidates = CANDIDATES.map(of).into_iter().collect();
                let min_mse = MinMse::new(settings.element, settings.symmetric, settings.scale);
                Box::new(Self { settings, codes, candidates, min_mse, best: OnceLock::new() })
            }
            None => of(Method::MinMax),
        }
    }

    /// The candidate whose range loses least.
    fn best(&self) -> (Method, Range) {
        *self.best.get_or_init(|| {
            let ranges = CANDIDATES.into_iter().zip(self.candidates.iter().map(|candidate| candidate.range()));
            let mut best = (Method::MinMse, self.min_mse.range());
            let mut least = self.error(best.1);
            // Of equals the first wins, and MinMSE the last of all.
            for found in ranges.rev() {
                let error = self.error(found.1);
                if error <= least {
                    (least, best) = (error, found);
                }
            }
            best
        })
    }

    fn error(&self, range: Range) -> f64 {
        let Settings { element, symmetric, scale, .. } = self.settings;
        self.min_mse.error(self.codes, affine(range, element, symmetric, scale))
    }
}

impl Statistic for Automatic {
    fn observe(&mut self, seen: &Seen<'_>) {
        self.candidates.iter_mut().for_each(|candidate| candidate.observe(seen));
        self.min_mse.observe(seen);
        self.best = OnceLock::new();
    }

    fn range(&self) -> Range {
        self.best().1
    }

    fn chosen(&self) -> Option<Method> {
        Some(self.best().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;
    use crate::quantization::ScaleKind;

    /// Squared error of int8 codes with the scale of a range.
    fn error(values: &[f32], range: Range, symmetric: bool) -> f64 {
        let (made, codes) =
            (affine(range, Element::Int8, symmetric, ScaleKind::Float), Element::Int8.range(symmetric).unwrap());
        let code = |v: f32| crate::quantization::quantize_value(v, made, codes);
        let lost = |&v: &f32| (f64::from(v) - (code(v) - made.zero_point) as f64 * f64::from(made.scale)).powi(2);
        values.iter().map(lost).sum()
    }

    #[test]
    fn no_candidate_loses_less() {
        let wave = |i: u32| ((i as f32) * 0.731).sin() + ((i as f32) * 0.0113).cos() * 0.3;
        let plain: Vec<f32> = (0..20_000).map(wave).collect();
        let heavy: Vec<f32> = plain.iter().map(|v| v * v * v * 4.0).chain([60.0]).collect();
        let one_sided: Vec<f32> = heavy.iter().map(|v| v.abs()).collect();
        for (values, symmetric) in [(&plain, true), (&heavy, true), (&one_sided, false)] {
            let range = |method| {
                let mut statistic = Settings::new(method, Element::Int8, symmetric, ScaleKind::Float).start();
                statistic.observe(&Seen::new(values));
                statistic.range()
            };
            let methods = CANDIDATES.iter().chain([&Method::MinMse]);
            let least = methods.map(|&m| error(values, range(m), symmetric)).fold(f64::INFINITY, f64::min);
            let found = error(values, range(Method::Auto), symmetric);
            let mut statistic = Settings::new(Method::Auto, Element::Int8, symmetric, ScaleKind::Float).start();
            statistic.observe(&Seen::new(values));
            assert_eq!(range(statistic.chosen().unwrap()), statistic.range());
            // The histogram stands for the values but for its bins' width.
            assert!(found <= least * 1.02, "{found} {least}");
        }
    }
}
