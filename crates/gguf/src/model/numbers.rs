//! Numbers of blocks that the metadata state and the source holds as tensors of one element: the parameters of xIELU. Not their values, which
//! are read when the metadata are written.
//!
//! Source: `ApertusModel.modify_tensors` in `conversion/llama.py` of llama.cpp.

use super::GgufPlanError;
use super::drafts::Builder;

/// A key of the metadata with a number for each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNumbers {
    /// The whole key: it does not begin with the architecture.
    pub key: &'static str,
    /// The tensor of each block, which has one element: positions in the source.
    pub tensors: Vec<usize>,
}

/// The numbers of an architecture: the name of a tensor within its block, and the key.
const NUMBERS: [(&str, &str, &str); 4] = [
    ("apertus", "mlp.act_fn.alpha_n", "xielu.alpha_n"),
    ("apertus", "mlp.act_fn.alpha_p", "xielu.alpha_p"),
    ("apertus", "mlp.act_fn.beta", "xielu.beta"),
    ("apertus", "mlp.act_fn.eps", "xielu.eps"),
];

impl Builder<'_> {
    /// Takes the tensors that are numbers of the metadata. Loaders want one for every block.
    pub(crate) fn add_numbers(&mut self) -> Result<(), GgufPlanError> {
        let trunk = self.family.trunk;
        for (_, local, key) in NUMBERS.iter().filter(|(architecture, ..)| *architecture == self.architecture.name) {
            let mut tensors = Vec::with_capacity(self.network.blocks().len());
            for block in 0..self.network.blocks().len() {
                let end = format!("{}.{block}.{local}", trunk.blocks);
                let is_named = |name: &str| {
                    name.strip_suffix(&end).is_some_and(|before| before.is_empty() || before.ends_with('.'))
                };
                let position = self.tensors.iter().position(|tensor| is_named(&tensor.name));
                let Some(position) = position else {
                    let reason = format!("there are no numbers `{local}` in block {block}");
                    return Err(GgufPlanError::Form { architecture: self.architecture.name, reason });
                };
                if self.tensors[position].shape.iter().any(|dim| *dim != 1) {
                    return Err(self.shape_error(position, "one number is expected"));
                }
                self.taken.insert(position);
                tensors.push(position);
            }
            self.numbers.push(BlockNumbers { key, tensors });
        }
        Ok(())
    }
}
