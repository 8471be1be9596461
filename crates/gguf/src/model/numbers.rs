//! Numbers of blocks that the metadata state and the source holds as tensors of one element: the parameters of xIELU. Not their values, which
//! are read when the metadata are written.
//!
//! Source: `ApertusModel.modify_tensors` in `conversion/llama.py` of llama.cpp.

use super::GgufPlanError;
use super::drafts::Builder;
use kvant_container::gguf::{Array, Metadata, Value};

/// A key of the metadata with a number for each block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockNumbers {
    /// The whole key: it does not begin with the architecture.
    pub key: &'static str,
    /// The tensor of each block, which has one element: positions in the source.
    pub tensors: Vec<usize>,
}

/// A number of the blocks of an architecture.
struct Number {
    architecture: &'static str,
    /// The name of its tensor within a block.
    local: &'static str,
    /// The dimensions of that tensor, all of size 1.
    dimensions: usize,
    key: &'static str,
}

const fn of_apertus(local: &'static str, dimensions: usize, key: &'static str) -> Number {
    Number { architecture: "apertus", local, dimensions, key }
}

const NUMBERS: [Number; 4] = [
    of_apertus("mlp.act_fn.alpha_n", 1, "xielu.alpha_n"),
    of_apertus("mlp.act_fn.alpha_p", 1, "xielu.alpha_p"),
    of_apertus("mlp.act_fn.beta", 0, "xielu.beta"),
    of_apertus("mlp.act_fn.eps", 0, "xielu.eps"),
];

fn of(architecture: &str) -> impl Iterator<Item = &'static Number> {
    NUMBERS.iter().filter(move |number| number.architecture == architecture)
}

/// The tensors of each block that are numbers of a file's metadata: their names within the block, and their shapes.
pub(crate) fn stated(architecture: &str, metadata: &Metadata) -> Vec<(&'static str, Vec<usize>)> {
    let stated = of(architecture).filter(|number| metadata.get(number.key).is_some());
    stated.map(|number| (number.local, vec![1; number.dimensions])).collect()
}

/// The number of a block that metadata state, alone for all blocks or in a list.
pub(crate) fn value(metadata: &Metadata, key: &str, block: usize) -> Option<f32> {
    match metadata.get(key)? {
        Value::Array(Array::F32(numbers)) => numbers.get(block).copied(),
        Value::F32(number) => Some(*number),
        _ => None,
    }
}

impl Builder<'_> {
    /// Takes the tensors that are numbers of the metadata. Loaders want one for every block.
    pub(crate) fn add_numbers(&mut self) -> Result<(), GgufPlanError> {
        let trunk = self.family.trunk;
        for Number { local, key, .. } in of(self.architecture.name) {
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
