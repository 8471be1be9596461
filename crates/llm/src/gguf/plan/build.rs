//! Making a plan: from a checkpoint's headers, its config.json, its tokenizer and a recipe.

use super::types::{Candidate, choose_type};
use super::{Content, GgufPlan, GgufPlanError, PlannedTensor, RowMap, Slab};
use crate::family::Family;
use crate::gguf::architecture::Architecture;
use crate::gguf::metadata::{self, Facts};
use crate::gguf::mix::{Category, Model};
use crate::gguf::recipe::GgufRecipe;
use crate::gguf::source::{source_type, stored_type};
use crate::gguf::tokenizer::{self, Habits};
use crate::gguf::{names, rope};
use crate::import::{self, ImportedTensor, Stored};
use crate::model_config::ModelConfig;
use crate::network::{Network, Notice, Place, Reason as Unplaced, TensorMeta};
use crate::plan::{DroppedTensor, source_text};
use kvant_container::Checkpoint;
use kvant_container::gguf::{GgufDeclaration, GgufLayout, Metadata, TensorType};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_128;

impl GgufPlan {
    /// Plans the file `file_name` that a recipe makes of a checkpoint.
    ///
    /// # Errors
    /// Whatever can be refused: see [`GgufPlanError`].
    pub fn new(checkpoint: &Checkpoint, recipe: GgufRecipe, file_name: &str) -> Result<GgufPlan, GgufPlanError> {
        let json = checkpoint.config()?.ok_or(GgufPlanError::NoConfig)?;
        let config = ModelConfig::from_json(&json)?;
        let tensors = import::open(checkpoint)?.into_tensors();
        refuse_quantized(&tensors, &config)?;
        let metas: Vec<TensorMeta> = tensors.iter().map(|tensor| tensor.meta.clone()).collect();
        let network = Network::recognise(&config, &metas);
        let (family, architecture) = architecture(&network, &config)?;
        if let Some(kind) = rope::unknown_scaling(&config.rope.main) {
            return Err(GgufPlanError::Scaling(kind.to_owned()));
        }
        let mut builder = Builder {
            tensors: &tensors,
            network: &network,
            config: &config,
            family,
            architecture,
            drafts: Vec::new(),
            dropped: Vec::new(),
            taken: BTreeSet::new(),
        };
        builder.add_all()?;
        builder.finish(checkpoint, recipe, file_name)
    }
}

/// Sources whose codes mean something to a loader of their own are not silently made coarser. fp8 is how some models are
/// published.
fn refuse_quantized(tensors: &[ImportedTensor<'_>], config: &ModelConfig) -> Result<(), GgufPlanError> {
    let stated = config.quantization.as_ref().and_then(|stated| stated.get("quant_method")?.as_str());
    let method = stated.unwrap_or("fp8");
    let packed = tensors.iter().find(|tensor| matches!(tensor.stored, Stored::Packed(_)));
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
pub(super) struct Draft {
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

/// A plan in the making.
pub(super) struct Builder<'a, 'c> {
    pub tensors: &'a [ImportedTensor<'c>],
    pub network: &'a Network,
    pub config: &'a ModelConfig,
    pub family: &'static Family,
    pub architecture: &'static Architecture,
    pub drafts: Vec<Draft>,
    pub dropped: Vec<DroppedTensor>,
    /// Positions of tensors that have found their place.
    pub taken: BTreeSet<usize>,
}

impl Builder<'_, '_> {
    /// The rows of a matrix: of the only one of a tensor, or one of several. Whatever is read later is checked here.
    pub fn slab(
        &mut self,
        tensor: usize,
        (matrix, matrices): (usize, usize),
        size: (usize, usize),
        rows: RowMap,
    ) -> Result<Slab, GgufPlanError> {
        let ImportedTensor { meta, stored } = &self.tensors[tensor];
        let elements = meta.shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let expected = size.0.checked_mul(size.1).and_then(|one| one.checked_mul(matrices));
        let fits = match stored {
            Stored::Plain(view) => source_type(view.dtype()).is_some(),
            Stored::Packed(all) => all.get(matrix).is_some_and(|one| (one.rows(), one.columns()) == size),
        };
        if !fits {
            let (tensor, dtype) = (meta.name.clone(), meta.dtype.clone());
            return Err(GgufPlanError::SourceType { tensor, dtype });
        }
        if elements.is_none() || elements != expected || rows.count() == 0 {
            let reason = format!("{matrices} of {} x {} are expected", size.0, size.1);
            return Err(self.shape_error(tensor, reason));
        }
        self.taken.insert(tensor);
        Ok(Slab { tensor, matrix, size, input_major: false, rows, transposed: false, offset: 0.0 })
    }

    pub fn shape_error(&self, tensor: usize, reason: impl Into<String>) -> GgufPlanError {
        let TensorMeta { name, shape, .. } = &self.tensors[tensor].meta;
        GgufPlanError::Shape { tensor: name.clone(), shape: shape.clone(), reason: reason.into() }
    }

    /// The two dimensions of a tensor that must be a matrix.
    fn matrix_shape(&self, tensor: usize) -> Result<(usize, usize), GgufPlanError> {
        match *self.tensors[tensor].meta.shape.as_slice() {
            [rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns)),
            _ => Err(self.shape_error(tensor, "it is no matrix")),
        }
    }

    pub fn drop_tensor(&mut self, tensor: usize, reason: &'static str) {
        if self.taken.insert(tensor) {
            self.dropped.push(DroppedTensor { name: self.tensors[tensor].meta.name.clone(), reason });
        }
    }

    fn add_all(&mut self) -> Result<(), GgufPlanError> {
        self.add_embedding()?;
        self.add_linears()?;
        self.add_fused_experts()?;
        self.add_norms()?;
        self.add_rest()
    }

    /// The embedding, as the head too where loaders insist on one.
    fn add_embedding(&mut self) -> Result<(), GgufPlanError> {
        let position = self.network.places().iter().position(|place| *place == Place::Embedding);
        let Some(position) = position else {
            return Err(GgufPlanError::NoPlace {
                tensor: format!("{} (which is missing)", self.family.trunk.embedding),
                architecture: self.architecture.name,
            });
        };
        let size = self.matrix_shape(position)?;
        let slab = self.slab(position, (0, 1), size, RowMap::all(size.0))?;
        let name = &self.tensors[position].meta.name;
        let module = name.strip_suffix(".weight").unwrap_or(name).to_owned();
        let draft = |name: &str, category| Draft {
            name: name.to_owned(),
            shape: vec![size.0, size.1],
            content: Content::Slabs(vec![slab]),
            block: None,
            category,
            modules: vec![module.clone()],
            fixed: false,
        };
        self.drafts.push(draft("token_embd.weight", Category::Embedding));
        if self.network.is_tied() && self.architecture.needs_head {
            self.drafts.push(draft("output.weight", Category::Head));
        }
        Ok(())
    }

    /// What is no layer and no norm: positions, small parameters, and what files do not hold.
    fn add_rest(&mut self) -> Result<(), GgufPlanError> {
        for tensor in 0..self.tensors.len() {
            if self.taken.contains(&tensor) {
                continue;
            }
            match self.network.places()[tensor] {
                Place::Positions => self.add_positions(tensor)?,
                Place::Parameter => self.add_parameter(tensor)?,
                Place::Other(Unplaced::Buffer) => self.drop_tensor(tensor, "computed by loaders"),
                Place::Other(Unplaced::Modality) => self.drop_tensor(tensor, "vision or audio"),
                Place::Other(Unplaced::ExtraLayer) => self.drop_tensor(tensor, "predicts further tokens"),
                _ => return Err(self.no_place(tensor)),
            }
        }
        Ok(())
    }

    pub fn no_place(&self, tensor: usize) -> GgufPlanError {
        let tensor = self.tensors[tensor].meta.name.clone();
        GgufPlanError::NoPlace { tensor, architecture: self.architecture.name }
    }

    fn add_positions(&mut self, tensor: usize) -> Result<(), GgufPlanError> {
        let size = self.matrix_shape(tensor)?;
        let slab = self.slab(tensor, (0, 1), size, RowMap::all(size.0))?;
        self.add_small("position_embd.weight".to_owned(), None, vec![size.0, size.1], vec![slab]);
        Ok(())
    }

    fn add_parameter(&mut self, tensor: usize) -> Result<(), GgufPlanError> {
        let TensorMeta { name, shape, .. } = &self.tensors[tensor].meta;
        let block = name.split('.').find_map(|part| part.parse().ok());
        let stem = names::of_parameter(name.rsplit('.').next().unwrap_or(name));
        let (Some(stem), &[length]) = (stem, shape.as_slice()) else { return Err(self.no_place(tensor)) };
        let slab = self.slab(tensor, (0, 1), (length, 1), RowMap::all(length))?;
        self.add_small(names::in_block(block, stem), block, vec![length], vec![slab]);
        Ok(())
    }

    /// A tensor that is F32 in all files.
    pub fn add_small(&mut self, name: String, block: Option<usize>, shape: Vec<usize>, slabs: Vec<Slab>) {
        let content = Content::Slabs(slabs);
        let category = Category::Other;
        self.drafts.push(Draft { name, shape, content, block, category, modules: Vec::new(), fixed: true });
    }

    fn finish(
        mut self,
        checkpoint: &Checkpoint,
        recipe: GgufRecipe,
        file_name: &str,
    ) -> Result<GgufPlan, GgufPlanError> {
        let vocabulary = self.drafts.iter().find(|draft| draft.category == Category::Embedding);
        let vocabulary = vocabulary.map_or(0, |draft| draft.shape[0]);
        let (config, family, architecture) = (self.config, self.family, self.architecture);
        let blocks = self.network.blocks().len();
        let facts = Facts { config, family, architecture, blocks, vocabulary };
        for (name, values) in rope::factors(&facts)? {
            let (shape, content) = (vec![values.len()], Content::Values(values));
            let (name, category) = (name.to_owned(), Category::Other);
            self.drafts.push(Draft { name, shape, content, block: None, category, modules: Vec::new(), fixed: true });
        }
        let mut metadata = metadata::of_model(&facts, &model_name(checkpoint), recipe.mix().row().file_type)?;
        let habits = Habits { family: family.name, rows: vocabulary };
        let mut notices = tokenizer::describe(checkpoint, habits, &mut metadata)?;
        notices.extend(self.notices(&recipe));
        if let Some(importance) = recipe.importance() {
            importance.describe(&mut metadata);
        }
        let tensors = self.typed(&recipe)?;
        check_importance(&recipe, &tensors)?;
        notices.extend(importance_notice(&recipe, &tensors));
        let layout = GgufLayout::new(file_name, &metadata, tensors.iter().map(declaration).collect())
            .map_err(kvant_container::Error::from)?;
        Ok(GgufPlan {
            family: family.name,
            architecture: architecture.name,
            fingerprint: fingerprint(checkpoint, &recipe, &layout),
            sources: self.tensors.iter().map(|tensor| tensor.meta.name.clone()).collect(),
            source_bytes: checkpoint.tensors().map(|tensor| tensor.byte_len()).sum(),
            dropped: self.dropped,
            recipe,
            metadata,
            tensors,
            layout,
            notices,
        })
    }

    fn notices(&self, recipe: &GgufRecipe) -> Vec<String> {
        let mut notices: Vec<String> =
            self.network.notices().iter().filter(|n| tells(n)).map(Notice::to_string).collect();
        let others = self.dropped.iter().filter(|tensor| tensor.reason == "vision or audio").count();
        if others > 0 {
            notices
                .push(format!("{others} tensors of vision or audio are left out: the file holds the language model"));
        }
        let names: Vec<Vec<&str>> = self.drafts.iter().map(all_names).collect();
        notices.extend(recipe.idle_rules(&names).into_iter().map(|rule| format!("no tensor matches `{rule}`")));
        notices
    }

    /// All tensors with their types, in the order of the file: the embedding, block after block, what stands behind.
    fn typed(&mut self, recipe: &GgufRecipe) -> Result<Vec<PlannedTensor>, GgufPlanError> {
        let mut drafts = std::mem::take(&mut self.drafts);
        drafts.sort_by_key(|draft| (order(draft), draft.block));
        let model = self.model(&drafts, recipe);
        let mut values = 0;
        let mut typed = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let candidate = Candidate {
                name: &draft.name,
                modules: &draft.modules,
                category: draft.category,
                value: values,
                block: draft.block.unwrap_or(0),
                shape: &draft.shape,
                stored: self.stored(&draft.content),
                fixed: draft.fixed,
            };
            let (kind, reason) = choose_type(recipe, &model, &candidate)?;
            values += usize::from(matches!(draft.category, Category::Value { .. }));
            let Draft { name, shape, content, block, modules, .. } = draft;
            typed.push(PlannedTensor { name, kind, shape, content, reason, block, modules });
        }
        Ok(typed)
    }

    fn model(&self, drafts: &[Draft], recipe: &GgufRecipe) -> Model {
        let (heads, groups) = (self.config.num_heads.unwrap_or(1), self.config.num_kv_heads().unwrap_or(1));
        let blocks = self.network.blocks().len();
        let is_value = |draft: &&Draft| matches!(draft.category, Category::Value { .. });
        Model {
            blocks,
            experts: self.config.experts.as_ref().map_or(0, |experts| experts.count),
            heads_per_group: heads / groups.max(1),
            values: drafts.iter().filter(is_value).count(),
            tied: !drafts.iter().any(|draft| draft.category == Category::Head),
            is_70b: blocks == 80 && matches!(self.architecture.name, "llama" | "qwen2") && heads != groups,
            has_importance: recipe.has_importance(),
        }
    }

    /// The type of the source's floats.
    fn stored(&self, content: &Content) -> TensorType {
        match content {
            Content::Slabs(slabs) => {
                slabs.first().map_or(TensorType::F32, |slab| stored_type(&self.tensors[slab.tensor]))
            }
            Content::Values(_) => TensorType::F32,
        }
    }
}

/// Whether a notice is news here: what is quantized or left out is told in other words.
fn tells(notice: &&Notice) -> bool {
    matches!(notice, Notice::ExtraLayers { .. })
}

/// All names by which a tensor can be called.
fn all_names(draft: &Draft) -> Vec<&str> {
    let stem = draft.name.strip_suffix(".weight").unwrap_or(&draft.name);
    [draft.name.as_str(), stem].into_iter().chain(draft.modules.iter().map(String::as_str)).collect()
}

/// Where a tensor stands in the file.
fn order(draft: &Draft) -> u8 {
    match (draft.block, draft.name.starts_with("output")) {
        (None, false) => 0,
        (Some(_), _) => 1,
        (None, true) => 2,
    }
}

fn declaration(tensor: &PlannedTensor) -> GgufDeclaration {
    GgufDeclaration { name: tensor.name.clone(), kind: tensor.kind, shape: tensor.shape.clone() }
}

/// The name of the model: that of its directory.
fn model_name(checkpoint: &Checkpoint) -> String {
    let path = checkpoint.path().canonicalize().unwrap_or_else(|_| checkpoint.path().to_path_buf());
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
    name.unwrap_or_else(|| "model".to_owned())
}

/// Importance must be that of this model.
fn check_importance(recipe: &GgufRecipe, tensors: &[PlannedTensor]) -> Result<(), GgufPlanError> {
    let Some(importance) = recipe.importance() else { return Ok(()) };
    for tensor in tensors.iter().filter(|tensor| tensor.is_quantized()) {
        let matrices = if tensor.shape.len() > 2 { tensor.shape[0] } else { 1 };
        let expected = tensor.columns() * matrices;
        let found = importance.len_of(&tensor.name);
        if let Some(found) = found.filter(|found| *found != expected) {
            return Err(GgufPlanError::Importance { tensor: tensor.name.clone(), found, expected });
        }
    }
    Ok(())
}

/// Tensors that nothing is known of weigh all inputs the same.
fn importance_notice(recipe: &GgufRecipe, tensors: &[PlannedTensor]) -> Option<String> {
    let importance = recipe.importance()?;
    let unknown = |tensor: &&PlannedTensor| tensor.is_quantized() && importance.len_of(&tensor.name).is_none();
    let (embedding, others): (Vec<_>, Vec<_>) =
        tensors.iter().filter(unknown).partition(|tensor| tensor.name.starts_with("token_embd"));
    let first = others.first().or(embedding.first().filter(|_| others.len() > 1))?;
    Some(format!(
        "the importance of {} tensors is not known, `{}` the first: their inputs weigh the same",
        others.len(),
        first.name
    ))
}

fn fingerprint(checkpoint: &Checkpoint, recipe: &GgufRecipe, layout: &GgufLayout) -> String {
    let mut bytes = source_text(checkpoint, &recipe.canonical()).into_bytes();
    bytes.extend_from_slice(layout.header());
    if let Some(importance) = recipe.importance() {
        bytes.extend_from_slice(&importance.hash().to_le_bytes());
    }
    format!("{:032x}", xxh3_128(&bytes))
}

/// Groups that become one tensor, in order.
pub(super) type Grouped<K, V> = BTreeMap<K, Vec<V>>;
