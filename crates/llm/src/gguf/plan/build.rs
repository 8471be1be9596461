//! Making a plan: from a checkpoint's headers, its config.json, its tokenizer and a recipe.

use super::finish::Names;
use super::of_file::Source;
use super::{Content, GgufPlan, GgufPlanError, RowMap, Slab};
use crate::family::Family;
use crate::ftype::Category;
use crate::gguf::architecture::Architecture;
use crate::gguf::names;
use crate::gguf::recipe::GgufRecipe;
use crate::gguf::rope;
use crate::gguf::source::source_type;
use crate::import;
use crate::model_config::ModelConfig;
use crate::network::{Network, TensorMeta};
use crate::plan::DroppedTensor;
use crate::weight::{ImportedTensor, Stored};
use kvant_container::Checkpoint;
use std::collections::{BTreeMap, BTreeSet};

impl GgufPlan {
    /// Plans the file `file_name` that a recipe makes of a checkpoint, or of another file.
    ///
    /// # Errors
    /// Whatever can be refused: see [`GgufPlanError`].
    pub fn new(checkpoint: &Checkpoint, recipe: GgufRecipe, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        if let Some(file) = checkpoint.gguf() {
            return Source::new(checkpoint, file)?.requantized(recipe, file_name);
        }
        let opened = opened(checkpoint)?;
        if !recipe.requantizes() {
            refuse_quantized(&opened.tensors, &opened.config)?;
        }
        let network = Network::recognise(&opened.config, &opened.metas);
        let builder = Builder::of_network(&opened.config, &opened.metas, &network)?;
        builder.check_sources(&opened.tensors)?;
        let names = Names { file: file_name, model: checkpoint.directory().unwrap_or_else(|| checkpoint.path()) };
        let mix = recipe.mix();
        let plan = builder.finish(&opened.tensors, checkpoint, recipe, None, names)?;
        match mix.is_float() || plan.quantized() > 0 {
            true => Ok(plan),
            false => Err(GgufPlanError::NothingFits { mix }),
        }
    }
}

/// A checkpoint, seen as a model of floats.
pub(super) struct Opened<'a> {
    pub config: ModelConfig,
    pub tensors: Vec<ImportedTensor<'a>>,
    pub metas: Vec<TensorMeta>,
    /// Whether anything but weights is quantized.
    pub activations: bool,
}

pub(super) fn opened(checkpoint: &Checkpoint) -> Result<Opened<'_>, GgufPlanError> {
    let json = checkpoint.config()?.ok_or(GgufPlanError::NoConfig)?;
    let config = ModelConfig::from_json(&json)?;
    let import = import::open(checkpoint)?;
    let activations = import.quantizes_activations();
    let tensors = import.into_tensors();
    let metas = tensors.iter().map(|tensor| tensor.meta.clone()).collect();
    Ok(Opened { config, tensors, metas, activations })
}

/// A draft with the rows of the source that it is made of, if it is.
pub(super) fn drafts_of(draft: &Draft) -> Option<(&Draft, &[Slab])> {
    match &draft.content {
        Content::Slabs(slabs) => Some((draft, slabs)),
        Content::Taken(_) | Content::Values(_) => None,
    }
}

/// The tensors of the file that these tensors of a model become, without their types: what is read to find a file's tensors
/// in a model, too.
///
/// # Errors
/// As [`GgufPlan::new`].
pub(in crate::gguf) fn drafts(config: &ModelConfig, metas: &[TensorMeta]) -> Result<Vec<Draft>, GgufPlanError> {
    let network = Network::recognise(config, metas);
    Ok(Builder::of_network(config, metas, &network)?.drafts)
}

/// Sources whose codes mean something to a loader of their own are not silently made coarser. fp8 is how some models are
/// published.
fn refuse_quantized(tensors: &[ImportedTensor<'_>], config: &ModelConfig) -> Result<(), GgufPlanError> {
    let stated = config.quantization.as_ref().and_then(|stated| stated.get("quant_method")?.as_str());
    let method = stated.unwrap_or("fp8");
    let has_codes = |tensor: &&ImportedTensor<'_>| match &tensor.stored {
        Stored::Packed(matrices) => matrices.iter().any(|matrix| !matrix.is_float()),
        Stored::Plain(_) => false,
    };
    let packed = tensors.iter().find(has_codes);
    match packed.filter(|_| method != "fp8") {
        Some(tensor) => {
            Err(GgufPlanError::AlreadyQuantized { method: method.to_owned(), tensor: tensor.meta.name.clone() })
        }
        None => Ok(()),
    }
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
pub(in crate::gguf) struct Draft {
    pub name: String,
    pub shape: Vec<usize>,
    pub content: Content,
    pub block: Option<usize>,
    pub category: Category,
    /// The modules of the source that it is made of.
    pub modules: Vec<String>,
    /// Whether loaders take it as F32 only.
    pub fixed: bool,
}

impl Draft {
    /// The scales that the graph multiplies its products with, one a matrix.
    pub(super) fn scales(&self, scales: Vec<f32>) -> Draft {
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

/// A plan in the making.
pub(super) struct Builder<'a> {
    pub tensors: &'a [TensorMeta],
    pub network: &'a Network,
    pub config: &'a ModelConfig,
    pub family: &'static Family,
    pub architecture: &'static Architecture,
    pub drafts: Vec<Draft>,
    pub dropped: Vec<DroppedTensor>,
    /// Positions of tensors that have found their place.
    pub taken: BTreeSet<usize>,
}

impl<'a> Builder<'a> {
    /// All tensors of a model whose family is known, with their places.
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

    /// Checks that all that will be read can be: types of floats, sizes of packed matrices.
    pub fn check_sources(&self, tensors: &[ImportedTensor<'_>]) -> Result<(), GgufPlanError> {
        for slab in self.drafts.iter().filter_map(drafts_of).flat_map(|(_, slabs)| slabs) {
            let ImportedTensor { meta, stored } = &tensors[slab.tensor];
            let fits = match stored {
                Stored::Plain(view) => source_type(view.dtype()).is_some(),
                Stored::Packed(all) => all.get(slab.matrix).is_some_and(|one| (one.rows(), one.columns()) == slab.size),
            };
            if !fits {
                let (tensor, dtype) = (meta.name.clone(), meta.dtype.clone());
                return Err(GgufPlanError::SourceType { tensor, dtype });
            }
        }
        Ok(())
    }

    /// The rows of a matrix: of the only one of a tensor, or one of several.
    pub fn slab(
        &mut self,
        tensor: usize,
        (matrix, matrices): (usize, usize),
        size: (usize, usize),
        rows: RowMap,
    ) -> Result<Slab, GgufPlanError> {
        let elements = self.tensors[tensor].shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let expected = size.0.checked_mul(size.1).and_then(|one| one.checked_mul(matrices));
        if elements.is_none() || elements != expected || rows.count() == 0 {
            let reason = format!("{matrices} of {} x {} are expected", size.0, size.1);
            return Err(self.shape_error(tensor, reason));
        }
        self.taken.insert(tensor);
        Ok(Slab { tensor, matrix, size, input_major: false, rows, transposed: false, offset: 0.0 })
    }

    pub fn shape_error(&self, tensor: usize, reason: impl Into<String>) -> GgufPlanError {
        let TensorMeta { name, shape, .. } = &self.tensors[tensor];
        GgufPlanError::Shape { tensor: name.clone(), shape: shape.clone(), reason: reason.into() }
    }

    /// The two dimensions of a tensor that must be a matrix.
    pub fn matrix_shape(&self, tensor: usize) -> Result<(usize, usize), GgufPlanError> {
        match *self.tensors[tensor].shape.as_slice() {
            [rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns)),
            _ => Err(self.shape_error(tensor, "it is no matrix")),
        }
    }

    pub fn drop_tensor(&mut self, tensor: usize, reason: &'static str) {
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

    pub fn no_place(&self, tensor: usize) -> GgufPlanError {
        let tensor = self.tensors[tensor].name.clone();
        GgufPlanError::NoPlace { tensor, architecture: self.architecture.name }
    }

    /// A tensor that is F32 in all files.
    pub fn add_small(&mut self, name: String, block: Option<usize>, shape: Vec<usize>, slabs: Vec<Slab>) {
        let content = Content::Slabs(slabs);
        let category = Category::Other;
        self.drafts.push(Draft { name, shape, content, block, category, modules: Vec::new(), fixed: true });
    }
}

/// Groups that become one tensor, in order.
pub(super) type Grouped<K, V> = BTreeMap<K, Vec<V>>;
