//! A checkpoint read as another model of the same function: some of its tensors, and config.json, differ from what its files hold. What
//! the change is, is not known here.

use super::Checkpoint;
use super::adapter::Replaced;
use crate::tensor_file::{TensorFile, TensorView};
use serde_json::Value;

/// A change that whoever reads weights makes to them.
#[derive(Debug)]
pub struct Rewriting {
    /// Its spelling.
    spelling: String,
    /// config.json of the changed model.
    config: Value,
    replaced: Replaced,
    /// What the spelling does not say.
    parameters: Option<TensorFile>,
}

impl Checkpoint {
    /// The checkpoint with a change, by its spelling. `config` is that of the changed model, and `replaced` holds small tensors that take
    /// the place of those of the same names. `parameters` are kept for whoever makes the change, where its spelling does not say all.
    pub fn with_rewriting(
        self,
        spelling: String,
        config: Value,
        replaced: TensorFile,
        parameters: Option<TensorFile>,
    ) -> Checkpoint {
        let replaced = Replaced::of(replaced);
        Checkpoint { rewriting: Some(Rewriting { spelling, config, replaced, parameters }), ..self }
    }

    /// The checkpoint whose tensors of several matrices are seen as these by whoever reads weights, where their bytes cannot be divided
    /// ([`Checkpoint::divided`]).
    #[must_use]
    pub fn with_regrouped_matrices(self) -> Checkpoint {
        Checkpoint { regroups: true, ..self }
    }

    /// Returns whether tensors of several matrices are seen as these.
    pub fn regroups_matrices(&self) -> bool {
        self.regroups
    }

    /// Returns whether weights are not read as they are in the files: adapters are merged into them, a change is made to them, or
    /// matrices are regrouped.
    pub fn changes_weights(&self) -> bool {
        !self.adapters.is_empty() || self.rewriting.is_some() || self.regroups
    }

    /// The spelling of the change that is to be made to weights.
    pub fn rewriting(&self) -> Option<&str> {
        self.rewriting.as_ref().map(|rewriting| rewriting.spelling.as_str())
    }

    /// The parameters of the change, where its spelling does not say all.
    pub fn rewriting_parameters(&self) -> Option<&TensorFile> {
        self.rewriting.as_ref()?.parameters.as_ref()
    }

    /// A tensor as it is without the change.
    pub fn unchanged_tensor(&self, name: &str) -> Option<TensorView<'_>> {
        if let Some(replaced) = self.replaced.as_ref().and_then(|replaced| replaced.tensor(name)) {
            return Some(replaced);
        }
        let &(shard, position) = self.positions.get(name)?;
        self.shards.get(shard)?.get(position)
    }

    /// config.json of the changed model.
    pub(super) fn changed_config(&self) -> Option<&Value> {
        self.rewriting.as_ref().map(|rewriting| &rewriting.config)
    }

    /// The replacement of a tensor.
    pub(super) fn replaced(&self, name: &str) -> Option<TensorView<'_>> {
        let changed = self.rewriting.as_ref().and_then(|rewriting| rewriting.replaced.tensor(name));
        changed.or_else(|| self.replaced.as_ref()?.tensor(name))
    }
}
