//! Observing a pass while it runs: the points at which activations can be seen, and the hooks. Activations are floats, before
//! quantization.

use super::spans::Spans;
use kvant_weights::activation_point;

/// A place in the model where activations pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ActivationPoint<'a> {
    /// The input of the linear layer of this name.
    Input(&'a str),
    /// Its output.
    Output(&'a str),
    /// The queries of a block as they meet the keys.
    Query(usize),
    /// The keys of a block as they are cached, after rotary embedding.
    Key(usize),
    /// The values of a block as they are cached.
    Value(usize),
    /// The weights of attention of a block.
    Probabilities(usize),
}

impl From<ActivationPoint<'_>> for activation_point::ActivationPoint {
    fn from(site: ActivationPoint<'_>) -> activation_point::ActivationPoint {
        match site {
            ActivationPoint::Input(module) => activation_point::ActivationPoint::Input(module.to_owned()),
            ActivationPoint::Output(module) => activation_point::ActivationPoint::Output(module.to_owned()),
            ActivationPoint::Query(block) => activation_point::ActivationPoint::Query(block),
            ActivationPoint::Key(block) => activation_point::ActivationPoint::Key(block),
            ActivationPoint::Value(block) => activation_point::ActivationPoint::Value(block),
            ActivationPoint::Probabilities(block) => activation_point::ActivationPoint::Probabilities(block),
        }
    }
}

/// Rows that pass a site.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The rows, one after the other.
    pub data: &'a [f32],
    /// Elements of a row.
    pub columns: usize,
    /// Which rows are of one sequence.
    pub spans: Spans<'a>,
}

impl<'a> Rows<'a> {
    /// The rows of each sequence, of those that have any.
    pub fn sequences(self) -> impl Iterator<Item = &'a [f32]> {
        let mut rest = self.data;
        let columns = self.columns.max(1);
        self.spans.of(self.data.len() / columns).map(move |rows| {
            let (first, others) = rest.split_at(rows * columns);
            rest = others;
            first
        })
    }
}

/// The hook.
pub trait ActivationHook: Sync {
    /// Returns whether [`ActivationHook::see`] is to be called for a point: unwanted activations need not be gathered.
    fn wants(&self, site: ActivationPoint<'_>) -> bool;

    /// Receives the rows. Experts of a block call from several threads, each with its own point.
    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>);
}

/// Several who look.
impl<H: ActivationHook, const N: usize> ActivationHook for [H; N] {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        self.iter().any(|hook| hook.wants(site))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        self.iter().for_each(|hook| hook.see(site, rows));
    }
}
