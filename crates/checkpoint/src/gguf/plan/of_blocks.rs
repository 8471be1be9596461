//! Blocks whose codes algorithms choose: the schemes of layers follow from the types of the file's tensors, and the file is planned again
//! from the checkpoint that holds the blocks.

use super::build::{Planner, opened};
use super::convert::{Fits, packed};
use super::finish::Names;
use super::{GgufPlan, GgufPlanError, PlannedTensor};
use crate::gguf::carried::{Carried, Fit};
use crate::gguf::recipe::GgufRecipe;
use kvant_container::Checkpoint;
use kvant_gguf::model::codec;
use kvant_gguf::model::{Builder, Content, TensorSlice, drafts_of};
use kvant_model::network::{Network, expert_module};
use kvant_numeric::ggml::GroupedType;
use kvant_weights::weight::{ImportedTensor, PackedMatrix};
use std::collections::BTreeMap;
use std::path::Path;

impl GgufPlan {
    /// The types of the modules whose codes algorithms can choose: layers of decoder blocks, whose rows are rows of the file.
    pub fn types_of_modules(&self) -> BTreeMap<String, GroupedType> {
        let mut types: BTreeMap<String, Option<GroupedType>> = BTreeMap::new();
        for tensor in self.tensors.iter().filter(|tensor| tensor.block.is_some() && tensor.is_weight()) {
            let blocks = codec::of(tensor.kind).and_then(GroupedType::of).filter(|_| is_by_rows(tensor));
            for module in modules_of(tensor) {
                // A layer that becomes several tensors has one scheme only where they have one type.
                types.entry(module).and_modify(|known| *known = known.filter(|_| *known == blocks)).or_insert(blocks);
            }
        }
        types.into_iter().filter_map(|(module, blocks)| Some((module, blocks?))).collect()
    }

    /// A note on the quantized layers of decoder blocks whose codes algorithms do not choose.
    pub fn note_of_nearest(&self, types: &BTreeMap<String, GroupedType>) -> Option<String> {
        let layers = self.tensors.iter().filter(|tensor| tensor.block.is_some() && tensor.is_weight());
        let is_chosen = |tensor: &PlannedTensor| modules_of(tensor).iter().any(|module| types.contains_key(module));
        let mut nearest = layers.filter(|tensor| tensor.is_quantized() && !is_chosen(tensor));
        let first = nearest.next()?;
        let more = match nearest.count() {
            0 => String::new(),
            count => format!(" and {count} more"),
        };
        Some(format!("`{}`{more} ({}): no algorithm chooses its codes, which are the nearest", first.name, first.kind))
    }

    /// Plans the file of a checkpoint whose layers are blocks; `model` is the directory that gives the model its name. Other
    /// tensors get the types that the recipe has for them.
    ///
    /// # Errors
    /// As [`GgufPlan::new`].
    pub fn of_blocks(
        checkpoint: &Checkpoint,
        model: &Path,
        recipe: GgufRecipe,
        file_name: &str,
    ) -> Result<GgufPlan, GgufPlanError> {
        let opened = opened(checkpoint)?;
        let network = Network::recognise(&opened.config, &opened.metas);
        let planner = Planner { model: Builder::of_network(&opened.config, &opened.metas, &network)? };
        planner.check_sources(&opened.tensors)?;
        let fits = planner.fits_of_blocks(&opened.tensors);
        planner.finish(&opened.tensors, checkpoint, recipe, Some(&fits), Names { file: file_name, model })
    }
}

impl Planner<'_> {
    /// The tensors that are copied, as all of their parts are blocks of one type.
    fn fits_of_blocks(&self, tensors: &[ImportedTensor<'_>]) -> Fits {
        let mut fits = Fits::new();
        for (draft, slabs) in self.model.drafts.iter().filter(|draft| !draft.fixed).filter_map(drafts_of) {
            let kinds =
                slabs.iter().map(|slab| packed(tensors, slab).and_then(blocks_of).filter(|_| slab.is_by_rows()));
            let mut kinds: Vec<Option<GroupedType>> = kinds.collect();
            kinds.dedup();
            if let [Some(blocks)] = kinds[..] {
                let carried = Carried::Blocks(blocks);
                fits.insert(draft.name.clone(), Fit { kind: carried.kind(), carried: Some(carried), loss: None });
            }
        }
        fits
    }
}

/// The type of a matrix of blocks.
fn blocks_of(matrix: &PackedMatrix<'_>) -> Option<GroupedType> {
    match matrix {
        PackedMatrix::Blocks(matrix) => GroupedType::of(matrix.kind()?),
        _ => None,
    }
}

fn is_by_rows(tensor: &PlannedTensor) -> bool {
    match &tensor.content {
        Content::Slabs(slabs) => slabs.iter().all(TensorSlice::is_by_rows),
        Content::Taken(_) => true,
        Content::Values(_) | Content::Integers(_) => false,
    }
}

/// Its modules; those of experts also one by one.
fn modules_of(tensor: &PlannedTensor) -> Vec<String> {
    let matrices = if tensor.shape.len() > 2 { tensor.shape[0] } else { 0 };
    let experts = |module: &String| (0..matrices).map(|expert| expert_module(module, expert)).collect::<Vec<_>>();
    match &tensor.modules[..] {
        [all] => std::iter::once(all.clone()).chain(experts(all)).collect(),
        each => each.to_vec(),
    }
}
