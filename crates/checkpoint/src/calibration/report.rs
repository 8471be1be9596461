//! The calibration report. Not printed here.

use kvant_quant::counts::{number, number_are};
use kvant_weights::activation_point::ActivationPoint;
use serde::Serialize;

/// An unobserved point whose parameters come from its group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filled {
    /// The place.
    pub site: ActivationPoint,
    /// Observed points of its group.
    pub from: usize,
    /// Tokens that those saw together.
    pub tokens: u64,
}

/// Notes on the calibration for the user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Tokens that each place saw, at least and at most.
    pub tokens: (u64, u64),
    /// Unobserved points: experts that no token was routed to.
    pub filled: Vec<Filled>,
    /// Places where the least scale took the place of a smaller one.
    pub raised: Vec<ActivationPoint>,
    /// Places with values that were NaN or infinite, which were left out, and how many.
    pub not_finite: Vec<(ActivationPoint, u64)>,
}

impl Report {
    /// In words, a line for each kind of thing.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if let Some(first) = self.filled.first() {
            let names: Vec<String> = self.filled.iter().map(|filled| filled.site.to_string()).collect();
            notices.push(format!(
                "no token reached {} (the first is {}); scales there are those of the block's other experts: {}",
                number(self.filled.len(), "activation point"),
                first.site,
                names.join(", ")
            ));
        }
        if let Some(first) = self.raised.first() {
            notices.push(format!(
                "{} raised to the least (the first is of {first})",
                number_are(self.raised.len(), "scale")
            ));
        }
        for (site, count) in &self.not_finite {
            notices.push(format!("{count} of the activations of {site} are left out: they were NaN or infinite"));
        }
        notices
    }
}
