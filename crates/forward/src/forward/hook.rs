//! Looking at a pass while it runs: where activations can be seen, and by whom. What is seen is in floats, before
//! anything is quantized there.

use super::spans::Spans;
use kvant_weights::activation_point;

/// A place in the model where activations pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site<'a> {
    /// What the linear layer of this name reads.
    Input(&'a str),
    /// What it gives.
    Output(&'a str),
    /// The queries of a block as they meet the keys.
    Query(usize),
    /// The keys of a block as they are cached, turned.
    Key(usize),
    /// The values of a block as they are cached.
    Value(usize),
    /// The weights of attention of a block.
    Probabilities(usize),
}

impl From<Site<'_>> for activation_point::Site {
    fn from(site: Site<'_>) -> activation_point::Site {
        match site {
            Site::Input(module) => activation_point::Site::Input(module.to_owned()),
            Site::Output(module) => activation_point::Site::Output(module.to_owned()),
            Site::Query(block) => activation_point::Site::Query(block),
            Site::Key(block) => activation_point::Site::Key(block),
            Site::Value(block) => activation_point::Site::Value(block),
            Site::Probabilities(block) => activation_point::Site::Probabilities(block),
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

/// Who looks.
pub trait ActivationHook: Sync {
    /// Whether [`ActivationHook::see`] shall be called for a site: what nobody wants need not be gathered.
    fn wants(&self, site: Site<'_>) -> bool;

    /// Takes the rows in. Experts of a block call from several threads, each with a site of its own.
    fn see(&self, site: Site<'_>, rows: Rows<'_>);
}

/// Several who look.
impl<H: ActivationHook, const N: usize> ActivationHook for [H; N] {
    fn wants(&self, site: Site<'_>) -> bool {
        self.iter().any(|hook| hook.wants(site))
    }

    fn see(&self, site: Site<'_>, rows: Rows<'_>) {
        self.iter().for_each(|hook| hook.see(site, rows));
    }
}
