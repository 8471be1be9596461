//! The tensors of a model's GGUF file, without their types: each with its source rows.

use super::content::{Content, TensorSlice};
use super::{GgufPlanError, names, rope};
use crate::ftype::Category;
use crate::model::architecture::Architecture;
use kvant_model::family::Family;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{DroppedTensor, Network, TensorMeta};
use kvant_weights::weight::RowMap;
use std::collections::{BTreeMap, BTreeSet};

/// A draft with its source rows, if any.
pub fn drafts_of(draft: &Draft) -> Option<(&Draft, &[TensorSlice])> {
    match &draft.content {
        Content::Slabs(slabs) => Some((draft, slabs)),
        Content::Taken(_) | Content::Values(_) => None,
    }
}

/// The file tensors for these tensors of a model, without their types; also used to find a file's tensors
/// in a model.
///
/// # Errors
/// [`GgufPlanError`] where the family or a tensor is unsupported in such files.
pub(crate) fn drafts(config: &ModelConfig, metas: &[TensorMeta]) -> Result<Vec<Draft>, GgufPlanError> {
    let network = Network::recognise(config, metas);
    Ok(Builder::of_network(config, metas, &network)?.drafts)
}

fn architecture(
    network: &Network,
    config: &ModelConfig,
) -> Result<(&'static Family, &'static Architecture), GgufPlanError> {
    let found = network.family().and_then(|family| Some((family, Architecture::of(family)?)));
    found.ok_or_else(|| {
        let name = config.architectures.first().or(config.model_types.first());
        GgufPlanError::Family {
            architecture: name.cloned().unwrap_or_else(|| "an unknown architecture".to_owned()),
            families: Architecture::families().join(", "),
        }
    })
}

/// A tensor of the file whose type is still to be chosen.
pub struct Draft {
    /// Its name in the file.
    pub name: String,
    /// Its dimensions, the slowest first.
    pub shape: Vec<usize>,
    /// What it is made of.
    pub content: Content,
    /// The decoder block that it belongs to.
    pub block: Option<usize>,
    /// What the rules that choose types take it for.
    pub category: Category,
    /// Its source modules.
    pub modules: Vec<String>,
    /// Whether loaders take it as F32 only.
    pub fixed: bool,
}

impl Draft {
    /// The scales that the graph multiplies its products with, one a matrix.
    pub fn scales(&self, scales: Vec<f32>) -> Draft {
        Draft {
            name: names::of_scale(&self.name),
            shape: vec![scales.len()],
            content: Content::Values(scales),
            block: self.block,
            category: Category::Other,
            modules: Vec::new(),
            fixed: true,
        }
    }
}

/// A plan being built.
pub struct Builder<'a> {
    /// The tensors of the source.
    pub tensors: &'a [TensorMeta],
    /// The model that they are.
    pub network: &'a Network,
    /// Its config.json.
    pub config: &'a ModelConfig,
    /// Its family.
    pub family: &'static Family,
    /// The architecture of the file.
    pub architecture: &'static Architecture,
    /// The tensors of the file.
    pub drafts: Vec<Draft>,
    /// The tensors of the source that have no place in the file.
    pub dropped: Vec<DroppedTensor>,
    /// Positions of tensors that have found their place.
    pub(crate) taken: BTreeSet<usize>,
}

impl<'a> Builder<'a> {
    /// All tensors of a model of a known family, with their positions.
    ///
    /// # Errors
    /// [`GgufPlanError`] where the family or a tensor is unsupported in such files.
    pub fn of_network(
        config: &'a ModelConfig,
        tensors: &'a [TensorMeta],
        network: &'a Network,
    ) -> Result<Builder<'a>, GgufPlanError> {
        let (family, architecture) = architecture(network, config)?;
        if let Some(kind) = rope::unknown_scaling(&config.rope.main, architecture.name) {
            return Err(GgufPlanError::Scaling(kind.to_owned()));
        }
        let (drafts, dropped, taken) = (Vec::new(), Vec::new(), BTreeSet::new());
        let mut builder = Builder { tensors, network, config, family, architecture, drafts, dropped, taken };
        builder.add_all()?;
        Ok(builder)
    }

    /// The rows of a matrix: of the only one of a tensor, or one of several.
    pub(crate) fn slab(
        &mut self,
        tensor: usize,
        (matrix, matrices): (usize, usize),
        size: (usize, usize),
        rows: RowMap,
    ) -> Result<TensorSlice, GgufPlanError> {
        let elements = self.tensors[tensor].shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let expected = size.0.checked_mul(size.1).and_then(|one| one.checked_mul(matrices));
        if elements.is_none() || elements != expected || rows.count() == 0 {
            let reason = format!("{matrices} of {} x {} are expected", size.0, size.1);
            return Err(self.shape_error(tensor, reason));
        }
        self.taken.insert(tensor);
        Ok(TensorSlice { tensor, matrix, size, is_transposed: false, rows, transposed: false, offset: 0.0 })
    }

    pub(crate) fn shape_error(&self, tensor: usize, reason: impl Into<String>) -> GgufPlanError {
        let TensorMeta { name, shape, .. } = &self.tensors[tensor];
        GgufPlanError::Shape { tensor: name.clone(), shape: shape.clone(), reason: reason.into() }
    }

    /// The two dimensions of a tensor that must be a matrix.
    pub(crate) fn matrix_shape(&self, tensor: usize) -> Result<(usize, usize), GgufPlanError> {
        match *self.tensors[tensor].shape.as_slice() {
            [rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns)),
            _ => Err(self.shape_error(tensor, "it is not a matrix")),
        }
    }

    pub(crate) fn drop_tensor(&mut self, tensor: usize, reason: &'static str) {
        if self.taken.insert(tensor) {
            self.dropped.push(DroppedTensor { name: self.tensors[tensor].name.clone(), reason });
        }
    }

    fn add_all(&mut self) -> Result<(), GgufPlanError> {
        self.add_embedding()?;
        self.add_linears()?;
        self.add_fused_experts()?;
        self.add_norms()?;
        self.add_rest()
    }

    pub(crate) fn no_place(&self, tensor: usize) -> GgufPlanError {
        let tensor = self.tensors[tensor].name.clone();
        GgufPlanError::NoPlace { tensor, architecture: self.architecture.name }
    }

    /// A tensor that is F32 in all files.
    pub(crate) fn add_small(&mut self, name: String, block: Option<usize>, shape: Vec<usize>, slabs: Vec<TensorSlice>) {
        let content = Content::Slabs(slabs);
        let category = Category::Other;
        self.drafts.push(Draft { name, shape, content, block, category, modules: Vec::new(), fixed: true });
    }
}

/// Groups that become one tensor, in order.
pub(crate) type Grouped<K, V> = BTreeMap<K, Vec<V>>;
