//! The modules of a block whose weights can be folded, and the tensors they are in.

use kvant_forward::forward::{ForwardError, Projection, Tensors};
use kvant_model::family::Orientation;
use kvant_model::network::expert_module;
use kvant_model::network::{Consumer, ExpertsStorage, FusedExperts, Linear, Network};
use std::collections::BTreeMap;

/// A matrix, alone in its tensor or one of many.
#[derive(Clone, Debug)]
pub(super) struct Module {
    /// The position of the tensor with the weight.
    pub(super) weight: usize,
    /// The position of the tensor with the bias, and where in it the module's begins.
    pub(super) bias: Option<(usize, usize)>,
    /// The layer as the forward pass sees it.
    pub(super) layer: Projection,
}

/// The tensors of a linear layer, or of all experts.
#[derive(Clone, Debug)]
pub(super) struct Place<'n> {
    /// The module's name.
    pub(super) module: &'n str,
    pub(super) weight: usize,
    pub(super) bias: Option<usize>,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Matrices in the tensor.
    pub(super) count: usize,
}

impl<'n> Place<'n> {
    /// The tensors of a consumer; `None` where experts have no tensor of floats.
    pub(super) fn of(network: &'n Network, consumer: Consumer) -> Option<Place<'n>> {
        match consumer {
            Consumer::Linear(id) => Some(Place::of_linear(network.linear(id))),
            Consumer::Experts(id) => Place::of_experts(&network.experts()[id.index()]),
        }
    }

    fn of_linear(linear: &'n Linear) -> Place<'n> {
        let Linear { module, weight, bias, out_features, in_features, .. } = linear;
        Place { module, weight: *weight, bias: *bias, rows: *out_features, columns: *in_features, count: 1 }
    }

    fn of_experts(all: &'n FusedExperts) -> Option<Place<'n>> {
        let ExpertsStorage::Float { weight } = all.storage else { return None };
        let (rows, columns, count) = (all.out_features, all.in_features, all.experts);
        Some(Place { module: &all.module, weight, bias: all.bias, rows, columns, count })
    }
}

/// The tensors of all linear layers of a block, and of its experts.
pub(super) fn places(network: &Network, block: usize) -> impl Iterator<Item = Place<'_>> {
    let linears = network.linears().iter().filter(move |linear| linear.block == Some(block));
    let experts = network.experts().iter().filter(move |all| all.block == block);
    linears.map(Place::of_linear).chain(experts.filter_map(Place::of_experts))
}

/// The modules of a block by their names, those of single experts included. What the forward pass could not read is left out.
pub(super) fn of_block(network: &Network, tensors: &Tensors<'_>, block: usize) -> BTreeMap<String, Module> {
    let linears = network.linears().iter().filter(|linear| linear.block == Some(block));
    let linears = linears.filter_map(|linear| {
        let layer = tensors.projection(linear).ok()?;
        let module = Module { weight: linear.weight, bias: linear.bias.map(|bias| (bias, 0)), layer };
        Some((linear.module.clone(), module))
    });
    let experts = network.experts().iter().filter(|all| all.block == block);
    let places = experts.filter_map(|all| Some((all, Place::of_experts(all)?)));
    let each = places.flat_map(|(all, place)| {
        (0..place.count).filter_map(move |expert| expert_of(tensors, all, &place, expert).ok())
    });
    linears.chain(each).collect()
}

fn expert_of(
    tensors: &Tensors<'_>,
    all: &FusedExperts,
    place: &Place<'_>,
    expert: usize,
) -> Result<(String, Module), ForwardError> {
    let size = (place.rows, place.columns);
    let is_transposed = all.orientation == Orientation::InOut;
    let layer = tensors.slice(&all.module, (place.weight, all.bias), (expert, place.count), size, is_transposed)?;
    let bias = all.bias.map(|bias| (bias, expert * place.rows));
    Ok((expert_module(&all.module, expert), Module { weight: place.weight, bias, layer }))
}
