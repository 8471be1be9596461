//! Which weight of the model each tensor of an adapter belongs to, and whether it fits.

use super::config::LoraConfig;
use super::names::{Part, parse};
use crate::family::Orientation;
use crate::import::ImportError;
use crate::network::{Network, Place, Slot, TensorMeta};
use crate::plan::in_memory_module;
use kvant_container::{AdapterSource, TensorView};
use std::collections::{BTreeMap, HashMap, HashSet};

/// What an adapter does to a tensor of the model.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    /// The tensor of the model.
    pub tensor: usize,
    /// Whether its matrix stands as `[in, out]`.
    pub input_major: bool,
    pub change: Change<'a>,
    /// The tensor of the adapter, for messages.
    name: String,
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
struct Pair<'a> {
    left: Option<TensorView<'a>>,
    right: Option<TensorView<'a>>,
    embedding: bool,
}

/// What an adapter does to the tensors of a model.
pub(super) fn resolve<'a>(
    adapter: &'a AdapterSource,
    tensors: &[TensorMeta],
    network: &Network,
) -> Result<Vec<Resolved<'a>>, ImportError> {
    let config = LoraConfig::read(adapter.config())?;
    let model = Model::new(tensors, network);
    let (mut resolved, mut pairs): (Vec<Resolved<'a>>, BTreeMap<String, Pair<'a>>) = Default::default();
    for view in adapter.file().tensors() {
        let hint = "merge it with PEFT (merge_and_unload), and quantize the result";
        let Some((module, part)) = parse(view.name()) else {
            return Err(ImportError::unsupported(view.name(), "is not named as PEFT names tensors of a LoRA", hint));
        };
        match part {
            Part::Other(what) => {
                return Err(ImportError::unsupported(view.name(), format!("{what} is not merged"), hint));
            }
            Part::Whole(leaf) => resolved.push(model.whole(view, &format!("{module}.{leaf}"))?),
            Part::Left => pairs.entry(module).or_default().left = Some(view),
            Part::Right => pairs.entry(module).or_default().right = Some(view),
            Part::EmbeddingLeft | Part::EmbeddingRight => {
                let pair = pairs.entry(module).or_default();
                pair.embedding = true;
                *(if part == Part::EmbeddingLeft { &mut pair.left } else { &mut pair.right }) = Some(view);
            }
        }
    }
    for (module, pair) in pairs {
        resolved.push(model.product(&module, &pair, &config)?);
    }
    if resolved.is_empty() {
        return Err(ImportError::invalid(adapter.path().display().to_string(), "the adapter has no tensors"));
    }
    Ok(resolved)
}

/// Refuses tensors that two adapters replace.
pub(super) fn refuse_twice(resolved: &[Resolved<'_>]) -> Result<(), ImportError> {
    let mut seen = HashSet::new();
    let mut replaced = resolved.iter().filter(|one| !matches!(one.change, Change::Product(_)));
    match replaced.find(|one| !seen.insert(one.tensor)) {
        Some(twice) => Err(ImportError::invalid(&twice.name, "replaces a tensor that another adapter replaces too")),
        None => Ok(()),
    }
}

/// The tensors of the model, to be found by the names that they have in memory.
struct Model<'m> {
    tensors: &'m [TensorMeta],
    network: &'m Network,
    names: HashMap<String, Vec<usize>>,
}

impl<'m> Model<'m> {
    fn new(tensors: &'m [TensorMeta], network: &'m Network) -> Model<'m> {
        let mut names: HashMap<String, Vec<usize>> = HashMap::new();
        for (position, tensor) in tensors.iter().enumerate() {
            let known = aliases(&tensor.name, network);
            known.into_iter().for_each(|name| names.entry(name).or_default().push(position));
        }
        Model { tensors, network, names }
    }

    /// The tensor of this name; the name may have one part more or less in front, as models wrap one another.
    fn find(&self, name: &str, of: &str) -> Result<usize, ImportError> {
        let exact = self.tensors.iter().position(|tensor| tensor.name == name);
        let shorter = name.split_once('.').map_or("", |(_, rest)| rest);
        let by_alias = || self.names.get(name).cloned();
        let by_rest = || {
            let found: Vec<usize> =
                self.tensors.iter().enumerate().filter(|(_, t)| t.name == shorter).map(|(at, _)| at).collect();
            (!found.is_empty()).then_some(found)
        };
        let found = exact.map(|at| vec![at]).or_else(by_alias).or_else(by_rest).unwrap_or_default();
        match found.as_slice() {
            [one] => Ok(*one),
            [] if self.network.is_tied() && self.is_head(name) => Err(ImportError::invalid(
                of,
                "is of the head, which the model shares with its embedding: untie them, or merge with PEFT first",
            )),
            [] => Err(ImportError::invalid(of, format!("belongs to no weight of the model: it has no `{name}`"))),
            several => {
                let names: Vec<&str> = several.iter().map(|at| self.tensors[*at].name.as_str()).collect();
                Err(ImportError::invalid(of, format!("may belong to {}", names.join(" or "))))
            }
        }
    }

    fn is_head(&self, name: &str) -> bool {
        let heads = self.network.family().map_or(&["lm_head"][..], |family| family.trunk.heads);
        heads.iter().any(|head| name.ends_with(&format!("{head}.weight")))
    }

    fn whole<'a>(&self, view: TensorView<'a>, name: &str) -> Result<Resolved<'a>, ImportError> {
        let tensor = self.find(name, view.name())?;
        let shape = &self.tensors[tensor].shape;
        if view.shape() != shape.as_slice() {
            let reason = format!("is {:?}, and `{name}` of the model {shape:?}", view.shape());
            return Err(ImportError::invalid(view.name(), reason));
        }
        let change = match shape.len() {
            0 | 1 => Change::Vector(view),
            2 => Change::Matrix(view),
            _ => {
                let hint = "merge it with PEFT (merge_and_unload), and quantize the result";
                return Err(ImportError::unsupported(view.name(), "is no matrix", hint));
            }
        };
        Ok(Resolved { tensor, input_major: false, change, name: view.name().to_owned() })
    }

    fn product<'a>(&self, module: &str, pair: &Pair<'a>, config: &LoraConfig) -> Result<Resolved<'a>, ImportError> {
        let any = pair.left.or(pair.right).map_or(module, |view| view.name()).to_owned();
        let (Some(left), Some(right)) = (pair.left, pair.right) else {
            return Err(ImportError::invalid(any, "has no partner: a product has two factors"));
        };
        let tensor = self.find(&format!("{module}.weight"), &any)?;
        let stored = &self.tensors[tensor].shape;
        let input_major = !pair.embedding && self.input_major(tensor, config);
        // Both factors of an embedding are stored transposed.
        let (rows, columns) = match (left.shape(), right.shape(), pair.embedding) {
            (&[rows, rank], &[other, columns], false) | (&[rank, rows], &[columns, other], true)
                if rank == other && rank > 0 =>
            {
                (rows, columns)
            }
            (a, b, _) => {
                return Err(ImportError::invalid(left.name(), format!("{a:?} and {b:?} do not make a product")));
            }
        };
        let rank = if pair.embedding { left.shape()[0] } else { left.shape()[1] };
        let expected = if input_major { [columns, rows] } else { [rows, columns] };
        if stored.as_slice() != expected {
            let reason =
                format!("makes {expected:?} with its partner, and `{module}.weight` of the model is {stored:?}");
            return Err(ImportError::invalid(left.name(), reason));
        }
        let scale = config.scale(module, rank);
        let factors = Factors { left, right, transposed: pair.embedding, rank, shape: (rows, columns), scale };
        Ok(Resolved { tensor, input_major, change: Change::Product(factors), name: any })
    }

    /// Whether a weight stands as `[in, out]`: the network knows it of its layers, the adapter says it of others.
    fn input_major(&self, tensor: usize, config: &LoraConfig) -> bool {
        match self.network.places().get(tensor) {
            Some(Place::Linear(id, Slot::Weight)) => self.network.linear(*id).orientation == Orientation::InOut,
            _ => config.fan_in_fan_out,
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
