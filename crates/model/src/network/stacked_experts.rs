//! Experts of an architecture without a description: three-dimensional tensors under a module called `experts`, whose projections fit
//! each other in one orientation alone.

use std::collections::BTreeMap;

use super::by_shape::{index_after, role_of_leaf};
use super::{ExpertsId, ExpertsStorage, FusedExperts, Place, Reason, Slot, TensorMeta};
use crate::family::{Orientation, Role, RowOrder, leaf};

/// Last parts of names that only projections of experts have.
const LEAVES: &[(&str, Role)] = &[("w13", Role::GateUp), ("input_linear", Role::GateUp), ("output_linear", Role::Down)];

/// A tensor that may hold all experts of a block.
#[derive(Clone, Copy, Debug)]
struct Candidate<'t> {
    tensor: usize,
    module: &'t str,
    role: Role,
    block: usize,
    shape: [usize; 3],
}

impl Candidate<'_> {
    /// Outputs and inputs of a projection, stored in an orientation.
    fn size(&self, orientation: Orientation) -> (usize, usize) {
        match orientation {
            Orientation::OutIn => (self.shape[1], self.shape[2]),
            Orientation::InOut => (self.shape[2], self.shape[1]),
        }
    }
}

/// Finds the experts, and gives their tensors their places. `hidden` is the width that config.json states. They are kept unless a recipe
/// names them: classes of transformers that hold all experts in one tensor do not find them one by one.
pub(super) fn find(tensors: &[TensorMeta], hidden: Option<usize>, places: &mut [Place]) -> Vec<FusedExperts> {
    let mut modules: BTreeMap<&str, Vec<Candidate<'_>>> = BTreeMap::new();
    for (at, tensor) in tensors.iter().enumerate().filter(|(at, _)| places[*at] == Place::Other(Reason::NotLinear)) {
        if let Some((above, candidate)) = candidate(at, tensor) {
            modules.entry(above).or_default().push(candidate);
        }
    }
    let mut experts = Vec::new();
    for candidates in modules.values() {
        let Some(orientation) = orientation(candidates, hidden) else { continue };
        for candidate in candidates {
            let bias = bias_of(candidate, orientation, tensors);
            let id = ExpertsId(experts.len());
            places[candidate.tensor] = Place::Experts(id, Slot::Weight);
            if let Some(bias) = bias {
                places[bias] = Place::Experts(id, Slot::Bias);
            }
            let (out_features, in_features) = candidate.size(orientation);
            experts.push(FusedExperts {
                module: candidate.module.to_owned(),
                role: candidate.role,
                block: candidate.block,
                experts: candidate.shape[0],
                orientation,
                rows: RowOrder::Stacked,
                in_features,
                out_features,
                storage: ExpertsStorage::Float { weight: candidate.tensor },
                bias,
                kept: true,
            });
        }
    }
    experts
}

/// A tensor as a candidate, and the module above it.
fn candidate(at: usize, tensor: &TensorMeta) -> Option<(&str, Candidate<'_>)> {
    let &[first, second, third] = tensor.shape.as_slice() else { return None };
    let module = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
    let (above, last) = module.rsplit_once('.')?;
    let own = LEAVES.iter().find(|(name, _)| *name == last).map(|(_, role)| *role);
    let role = own.or_else(|| role_of_leaf(last));
    let role = role.filter(|role| matches!(role, Role::GateUp | Role::Gate | Role::Up | Role::Down))?;
    let shape = [first, second, third];
    if leaf(above) != "experts" || shape.contains(&0) || !tensor.is_float() {
        return None;
    }
    Some((above, Candidate { tensor: at, module, role, block: index_after(module, |_| true)?, shape }))
}

/// The one orientation in which the projections of a module fit each other: all read the hidden size and give hidden values, of which
/// gate and up in one matrix give twice as many, and the last turns these back.
fn orientation(candidates: &[Candidate<'_>], hidden: Option<usize>) -> Option<Orientation> {
    let of = |role: Role| candidates.iter().find(|candidate| candidate.role == role);
    let down = of(Role::Down)?;
    let is_complete = candidates.len() >= 2 && candidates.iter().all(|other| other.shape[0] == down.shape[0]);
    let fits = |orientation: &Orientation| {
        let (width, inner) = down.size(*orientation);
        let fits = |candidate: &Candidate<'_>| match candidate.role {
            Role::Down => true,
            Role::GateUp => candidate.size(*orientation) == (2 * inner, width),
            _ => candidate.size(*orientation) == (inner, width),
        };
        candidates.iter().all(fits) && hidden.is_none_or(|hidden| hidden == width)
    };
    let mut fitting = [Orientation::OutIn, Orientation::InOut].into_iter().filter(fits);
    let first = fitting.next().filter(|_| is_complete)?;
    fitting.next().is_none().then_some(first)
}

/// The tensor with a bias of each expert.
fn bias_of(candidate: &Candidate<'_>, orientation: Orientation, tensors: &[TensorMeta]) -> Option<usize> {
    let names = [format!("{}_bias", candidate.module), format!("{}.bias", candidate.module)];
    let shape = [candidate.shape[0], candidate.size(orientation).0];
    tensors.iter().position(|tensor| names.contains(&tensor.name) && tensor.shape == shape)
}
