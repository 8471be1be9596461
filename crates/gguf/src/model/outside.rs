//! Tensors other than linear layers and norms: embedding, positions, small parameters, and omitted ones.

use super::drafts::{Builder, Draft};
use super::recurrent::with;
use super::{Content, GgufPlanError};
use crate::ftype::Category;
use crate::model::names;
use kvant_model::network::{Place, Reason as Unplaced, TensorMeta};
use kvant_weights::weight::RowMap;

/// The end of the name of a table of the experts that tokens choose.
const EXPERTS_OF_TOKENS: &str = ".tid2eid";

impl Builder<'_> {
    /// The embedding, as the head too where loaders insist on one.
    pub(crate) fn add_embedding(&mut self) -> Result<(), GgufPlanError> {
        let position = self.network.places().iter().position(|place| *place == Place::Embedding);
        let Some(position) = position else {
            return Err(GgufPlanError::NoPlace {
                tensor: format!("{} (which is missing)", self.family.trunk.embedding),
                architecture: self.architecture.name,
            });
        };
        let size = self.matrix_shape(position)?;
        let slab = self.slab(position, (0, 1), size, RowMap::all(size.0))?;
        let module = names::stem_of(&self.tensors[position].name).to_owned();
        // Factors on embeddings and on logits, which graphs do not have (Falcon-H1).
        let factors = self.family.math.branch_multipliers;
        let number = |key: &str| match factors {
            true => Ok::<_, GgufPlanError>(self.config.number(key)?.unwrap_or(1.0)),
            false => Ok(1.0),
        };
        let (entering, leaving) = (number("embedding_multiplier")?, number("lm_head_multiplier")?);
        let draft = |name: &str, category, factor| Draft {
            name: name.to_owned(),
            shape: vec![size.0, size.1],
            content: Content::Slabs(vec![with(slab, factor)]),
            block: None,
            category,
            modules: vec![module.clone()],
            fixed: false,
        };
        let (embedding, head) = (
            draft("token_embd.weight", Category::Embedding, entering),
            draft("output.weight", Category::Head, leaving),
        );
        self.drafts.push(embedding);
        if self.network.is_tied() && (self.architecture.needs_head || entering != leaving) {
            self.drafts.push(head);
        }
        match self.network.tied_head_bias() {
            // The graphs that take the embedding for a head that is missing have no bias there.
            Some(bias) if !self.architecture.needs_head => Err(self.no_place(bias)),
            Some(bias) => {
                let slab = self.slab(bias, (0, 1), (size.0, 1), RowMap::all(size.0))?;
                self.add_small("output.bias".to_owned(), None, vec![size.0], vec![slab]);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Tensors other than layers and norms: positions, small parameters, and omitted ones.
    pub(crate) fn add_rest(&mut self) -> Result<(), GgufPlanError> {
        for tensor in 0..self.tensors.len() {
            if self.taken.contains(&tensor) {
                continue;
            }
            match self.network.places()[tensor] {
                Place::Positions => self.add_positions(tensor)?,
                Place::LayerInputs => self.add_layer_inputs(tensor)?,
                Place::Parameter => self.add_parameter(tensor)?,
                Place::Other(Unplaced::Buffer) => self.drop_tensor(tensor, "computed by loaders"),
                Place::Other(Unplaced::Modality) => self.drop_tensor(tensor, "vision or audio"),
                Place::Other(Unplaced::ExtraLayer) => self.drop_tensor(tensor, "predicts further tokens"),
                _ => return Err(self.no_place(tensor)),
            }
        }
        Ok(())
    }

    fn add_positions(&mut self, tensor: usize) -> Result<(), GgufPlanError> {
        let size = self.matrix_shape(tensor)?;
        let slab = self.slab(tensor, (0, 1), size, RowMap::all(size.0))?;
        self.add_small("position_embd.weight".to_owned(), None, vec![size.0, size.1], vec![slab]);
        Ok(())
    }

    /// The embeddings that every block reads, those of a token side by side. Loaders want those of every token, and the last tokens of Gemma 3n
    /// have the first row.
    fn add_layer_inputs(&mut self, tensor: usize) -> Result<(), GgufPlanError> {
        const MOST_WITHOUT: usize = 4096;
        let size = self.matrix_shape(tensor)?;
        let tokens =
            self.drafts.iter().find(|draft| draft.name == "token_embd.weight").map_or(0, |draft| draft.shape[0]);
        let without = tokens.checked_sub(size.0).filter(|without| *without <= MOST_WITHOUT);
        let without = without.ok_or_else(|| self.shape_error(tensor, format!("{tokens} rows are expected")))?;
        let mut slabs = vec![self.slab(tensor, (0, 1), size, RowMap::all(size.0))?];
        let first = self.slab(tensor, (0, 1), size, RowMap::Run { first: 0, count: 1 })?;
        slabs.extend(std::iter::repeat_n(first, without));
        let module = names::stem_of(&self.tensors[tensor].name).to_owned();
        self.drafts.push(Draft {
            name: "per_layer_token_embd.weight".to_owned(),
            shape: vec![tokens, size.1],
            content: Content::Slabs(slabs),
            block: None,
            category: Category::Embedding,
            modules: vec![module],
            fixed: false,
        });
        Ok(())
    }

    /// The experts that each token chooses by itself, as integers (DeepSeek V4).
    fn add_experts_of_tokens(&mut self, tensor: usize, block: Option<usize>) -> Result<(), GgufPlanError> {
        let (tokens, experts) = self.matrix_shape(tensor)?;
        let used = self.config.experts.as_ref().and_then(|experts| experts.per_token);
        if used.is_some_and(|used| used != experts) {
            return Err(self.shape_error(tensor, "as many columns as experts of a token are expected"));
        }
        self.taken.insert(tensor);
        self.drafts.push(Draft {
            name: names::in_block(block, "ffn_gate_tid2eid.weight"),
            shape: vec![tokens, experts],
            content: Content::Integers(tensor),
            block,
            category: Category::Other,
            modules: Vec::new(),
            fixed: true,
        });
        Ok(())
    }

    fn add_parameter(&mut self, tensor: usize) -> Result<(), GgufPlanError> {
        if self.add_recurrent_parameter(tensor)?.is_some() {
            return Ok(());
        }
        let TensorMeta { name, shape, .. } = &self.tensors[tensor];
        let block = name.split('.').find_map(|part| part.parse().ok());
        let stem = names::of_parameter(name);
        // Its loader alone wants the name without an ending.
        let stem =
            stem.map(|stem| if self.architecture.name == "hy_v3" { stem.trim_end_matches(".bias") } else { stem });
        if name.ends_with(EXPERTS_OF_TOKENS) {
            return self.add_experts_of_tokens(tensor, block);
        }
        // Experts that tokens choose have no correction.
        let is_hashed = |block| self.config.compressed.as_ref().is_some_and(|compressed| compressed.hashes(block));
        if stem == Some("exp_probs_b.bias") && block.is_some_and(is_hashed) {
            self.drop_tensor(tensor, "not used by loaders");
            return Ok(());
        }
        if let (Some(stem), &[rows, columns]) = (stem.filter(|stem| names::is_matrix(stem)), shape.as_slice()) {
            let slab = self.slab(tensor, (0, 1), (rows, columns), RowMap::all(rows))?;
            self.add_small(names::in_block(block, stem), block, vec![rows, columns], vec![slab]);
            return Ok(());
        }
        let (Some(stem), &[length] | &[1, length]) = (stem, shape.as_slice()) else {
            return Err(self.no_place(tensor));
        };
        let slab = self.slab(tensor, (0, 1), (length, 1), RowMap::all(length))?;
        self.add_small(names::in_block(block, stem), block, vec![length], vec![slab]);
        Ok(())
    }
}
