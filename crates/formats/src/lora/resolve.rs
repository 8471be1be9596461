//! Which weight of the model each tensor of an adapter belongs to, and whether it fits.

use super::agreement::{Agreement, is_named};
use super::config::LoraConfig;
use super::names::{Part, parse};
use super::wrong;
use kvant_container::shown;
use kvant_container::{AdapterSource, TensorView};
use kvant_model::family::Orientation;
use kvant_model::network::in_memory_module;
use kvant_model::network::{Network, Place, Slot, TensorMeta};
use kvant_weights::import_error::ImportError;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The effect of an adapter on a tensor of the model.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    /// The tensor of the model.
    pub tensor: usize,
    /// Whether its matrix stands as `[in, out]`.
    pub is_transposed: bool,
    pub change: Change<'a>,
    /// A tensor of the adapter that the change is made of, for messages.
    view: TensorView<'a>,
}

/// A change.
#[derive(Debug)]
pub(super) enum Change<'a> {
    /// Another vector in its place.
    Vector(TensorView<'a>),
    /// Another matrix in its place.
    Matrix(TensorView<'a>),
    /// A product that is added.
    Product(Factors<'a>),
}

/// The factors of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Factors<'a> {
    pub left: TensorView<'a>,
    pub right: TensorView<'a>,
    /// Whether both are stored transposed, as those of embeddings are.
    pub transposed: bool,
    pub rank: usize,
    /// Output and input channels.
    pub shape: (usize, usize),
    pub scale: f32,
}

/// The factors of a module that have been found.
#[derive(Default)]
struct FactorPair<'a> {
    left: Option<TensorView<'a>>,
    right: Option<TensorView<'a>>,
}

/// Factors by module, those that are named as an embedding's apart from others.
type Pairs<'a> = BTreeMap<(String, bool), FactorPair<'a>>;

/// The effect of an adapter on the tensors of a model.
pub(super) fn resolve<'a>(
    adapter: &'a AdapterSource,
    tensors: &[TensorMeta],
    network: &Network,
) -> Result<Vec<Resolved<'a>>, ImportError> {
    let config = LoraConfig::read(adapter.config())?;
    let stated = Agreement::read(adapter.config());
    let model = Model::new(tensors, network);
    let mut saved: Vec<String> = Vec::new();
    let (mut resolved, mut pairs): (Vec<Resolved<'a>>, Pairs<'a>) = Default::default();
    for view in adapter.file().tensors() {
        let hint = "merge it with PEFT (merge_and_unload), and quantize the result";
        let Some((module, part)) = parse(view.name()) else {
            return Err(ImportError::unsupported(view.name(), "is not named as PEFT names tensors of a LoRA", hint));
        };
        match part {
            Part::Other(what) => {
                return Err(ImportError::unsupported(view.name(), format!("{what} is not merged"), hint));
            }
            Part::Whole(leaf) => {
                resolved.push(model.whole(view, &format!("{module}.{leaf}"))?);
                saved.push(module);
            }
            Part::Left | Part::Right | Part::EmbeddingLeft | Part::EmbeddingRight => {
                let embedding = matches!(part, Part::EmbeddingLeft | Part::EmbeddingRight);
                let pair = pairs.entry((module, embedding)).or_default();
                let left = matches!(part, Part::Left | Part::EmbeddingLeft);
                let factor = if left { &mut pair.left } else { &mut pair.right };
                if let Some(first) = factor.replace(view) {
                    return Err(wrong(view, format!("is the same factor as `{}`", first.name())));
                }
            }
        }
    }
    let mut products: HashMap<usize, TensorView<'a>> = HashMap::new();
    for ((module, embedding), pair) in pairs {
        let product = model.product(&module, embedding, &pair, &config)?;
        if let Change::Product(factors) = &product.change {
            stated.check_product(&module, factors.rank, product.view)?;
        }
        if let Some(first) = products.insert(product.tensor, product.view) {
            return Err(wrong(product.view, format!("changes the same weight as `{}`", first.name())));
        }
        resolved.push(product);
    }
    stated.check_saved(
        &shown(adapter.file().path()),
        |name| saved.iter().any(|module| is_named(module, name)),
        |name| {
            tensors.iter().filter_map(|tensor| tensor.name.rsplit_once('.')).any(|(module, _)| is_named(module, name))
        },
    )?;
    if resolved.is_empty() {
        return Err(ImportError::adapter(shown(adapter.path()), "the adapter has no tensors"));
    }
    Ok(resolved)
}

/// Refuses tensors that are replaced twice, by one adapter or by two.
pub(super) fn refuse_twice(resolved: &[Resolved<'_>]) -> Result<(), ImportError> {
    let mut seen = HashSet::new();
    let mut replaced = resolved.iter().filter(|one| !matches!(one.change, Change::Product(_)));
    match replaced.find(|one| !seen.insert(one.tensor)) {
        Some(twice) => Err(wrong(twice.view, "replaces a tensor of the model that is replaced already")),
        None => Ok(()),
    }
}

/// The tensors of the model, to be found by the names that they have in memory.
struct Model<'m> {
    tensors: &'m [TensorMeta],
    network: &'m Network,
    names: HashMap<&'m str, usize>,
    aliases: HashMap<String, Vec<usize>>,
}

impl<'m> Model<'m> {
    fn new(tensors: &'m [TensorMeta], network: &'m Network) -> Model<'m> {
        let names = tensors.iter().enumerate().map(|(position, tensor)| (tensor.name.as_str(), position)).collect();
        let mut by_alias: HashMap<String, Vec<usize>> = HashMap::new();
        for (position, tensor) in tensors.iter().enumerate() {
            let known = aliases(&tensor.name, network);
            known.into_iter().for_each(|name| by_alias.entry(name).or_default().push(position));
        }
        Model { tensors, network, names, aliases: by_alias }
    }

    /// The tensor of this name, which a tensor of the adapter is of; the name may have one part more or less in front, as models
    /// wrap one another.
    fn find(&self, name: &str, of: TensorView<'_>) -> Result<usize, ImportError> {
        let shorter = name.split_once('.').map_or("", |(_, rest)| rest);
        let named = |name: &str| self.names.get(name).map(|at| vec![*at]);
        let found = named(name).or_else(|| self.aliases.get(name).cloned()).or_else(|| named(shorter));
        match found.unwrap_or_default().as_slice() {
            [one] => Ok(*one),
            [] if self.network.is_tied() && self.is_head(name) => Err(wrong(
                of,
                "is of the head, which the model shares with its embedding: untie them, or merge with PEFT first",
            )),
            [] => Err(wrong(of, format!("belongs to no weight of the model: it has no `{name}`"))),
            several => {
                let names: Vec<&str> = several.iter().map(|at| self.tensors[*at].name.as_str()).collect();
                Err(wrong(of, format!("may belong to {}", names.join(" or "))))
            }
        }
    }

    fn is_head(&self, name: &str) -> bool {
        let heads = self.network.family().map_or(&["lm_head"][..], |family| family.trunk.heads);
        heads.iter().any(|head| name.ends_with(&format!("{head}.weight")))
    }

    fn whole<'a>(&self, view: TensorView<'a>, name: &str) -> Result<Resolved<'a>, ImportError> {
        let tensor = self.find(name, view)?;
        let shape = &self.tensors[tensor].shape;
        if view.shape() != shape.as_slice() {
            return Err(wrong(view, format!("is {:?}, and `{name}` of the model {shape:?}", view.shape())));
        }
        let change = match shape.len() {
            0 | 1 => Change::Vector(view),
            2 => Change::Matrix(view),
            _ => {
                let hint = "merge it with PEFT (merge_and_unload), and quantize the result";
                return Err(ImportError::unsupported(view.name(), "is no matrix", hint));
            }
        };
        Ok(Resolved { tensor, is_transposed: self.is_input_major(tensor), change, view })
    }

    fn product<'a>(
        &self,
        module: &str,
        embedding: bool,
        pair: &FactorPair<'a>,
        config: &LoraConfig,
    ) -> Result<Resolved<'a>, ImportError> {
        let (left, right) = match (pair.left, pair.right) {
            (Some(left), Some(right)) => (left, right),
            (Some(alone), None) | (None, Some(alone)) => {
                return Err(wrong(alone, "has no partner: a product has two factors"));
            }
            (None, None) => return Err(ImportError::adapter(module, "has no factors")),
        };
        let tensor = self.find(&format!("{module}.weight"), left)?;
        let stored = &self.tensors[tensor].shape;
        let is_transposed = self.is_input_major(tensor);
        // `(B A)^T = A^T B^T`: a weight that stands as `[in, out]`, and is not known to, is read as it stands.
        let turned = !embedding && !is_transposed && !self.is_layer(tensor) && config.fan_in_fan_out;
        let (left, right) = if turned { (right, left) } else { (left, right) };
        // Both factors of an embedding are stored transposed.
        let transposed = embedding || turned;
        let (rows, columns, rank) = match (left.shape(), right.shape(), transposed) {
            (&[rows, rank], &[other, columns], false) | (&[rank, rows], &[columns, other], true)
                if rank == other && rank > 0 =>
            {
                (rows, columns, rank)
            }
            (a, b, _) => return Err(wrong(left, format!("{a:?} and {b:?} do not make a product"))),
        };
        let expected = if is_transposed { [columns, rows] } else { [rows, columns] };
        if stored.as_slice() != expected {
            let reason =
                format!("makes {expected:?} with its partner, and `{module}.weight` of the model is {stored:?}");
            return Err(wrong(left, reason));
        }
        let scale = config.scale(module, rank);
        if !scale.is_finite() {
            return Err(wrong(
                left,
                format!("is scaled by {scale}, which follows from lora_alpha and the rank {rank}"),
            ));
        }
        let factors = Factors { left, right, transposed, rank, shape: (rows, columns), scale };
        Ok(Resolved { tensor, is_transposed, change: Change::Product(factors), view: left })
    }

    /// Returns whether a tensor is the weight of a layer that the network knows.
    fn is_layer(&self, tensor: usize) -> bool {
        matches!(self.network.places().get(tensor), Some(Place::Linear(_, Slot::Weight)))
    }

    /// Returns whether a weight stands as `[in, out]`, and is read the other way round.
    fn is_input_major(&self, tensor: usize) -> bool {
        match self.network.places().get(tensor) {
            Some(Place::Linear(id, Slot::Weight)) => self.network.linear(*id).orientation == Orientation::InOut,
            _ => false,
        }
    }
}

/// Further names that a tensor may have in memory.
fn aliases(name: &str, network: &Network) -> Vec<String> {
    let mut aliases: Vec<String> = Vec::new();
    if let (Some(family), Some((module, leaf))) = (network.family(), name.rsplit_once('.')) {
        aliases.push(format!("{}.{leaf}", in_memory_module(family, module)));
    }
    aliases.extend(name.split_once('.').map(|(_, rest)| rest.to_owned()));
    let nested = name.strip_prefix("language_model.model.").map(|rest| format!("model.language_model.{rest}"));
    aliases.extend(nested);
    aliases.retain(|alias| alias != name);
    aliases
}
