//! What calibration has to say besides parameters. Not printed here.

use kvant_weights::activation_point::Site;
use serde::Serialize;

/// A place of which nothing was seen, and the parameters of which come from its kin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Filled {
    /// The place.
    pub site: Site,
    /// Places of its kin of which something was seen.
    pub from: usize,
    /// Tokens that those saw together.
    pub tokens: u64,
}

/// What a user should know of the calibration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Tokens that each place saw, at least and at most.
    pub tokens: (u64, u64),
    /// Places of which nothing was seen: experts that no token was routed to.
    pub filled: Vec<Filled>,
    /// Places where the least scale took the place of a smaller one.
    pub raised: Vec<Site>,
    /// Places with values that were NaN or infinite, which were left out, and how many.
    pub not_finite: Vec<(Site, u64)>,
}

impl Report {
    /// In words, a line for each kind of thing.
    pub fn notices(&self) -> Vec<String> {
        let mut notices = Vec::new();
        if let Some(first) = self.filled.first() {
            let names: Vec<String> = self.filled.iter().map(|filled| filled.site.to_string()).collect();
            notices.push(format!(
                "no token reached {} places (the first is {}); their scales are those of the block's other experts: {}",
                self.filled.len(),
                first.site,
                names.join(", ")
            ));
        }
        if let Some(first) = self.raised.first() {
            notices.push(format!("{} scales were raised to the least (the first is of {first})", self.raised.len()));
        }
        for (site, count) in &self.not_finite {
            notices.push(format!("{count} activations of {site} were NaN or infinite and are left out"));
        }
        notices
    }
}
