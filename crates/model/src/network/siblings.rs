//! Fused siblings: linear layers that read the same input and that inference engines load as one matrix, so that they
//! must be quantized alike and, with a second-level scale, share it. Derived from roles; a family lists none.

use std::collections::HashMap;

use super::{Linear, LinearId, SiblingsId};
use crate::family::{Part, Role};

/// Roles that engines fuse, and the name of the fused module.
const FUSED: &[(&str, &[Role])] = &[
    ("qkv_proj", &[Role::Query, Role::Key, Role::Value]),
    ("gate_up_proj", &[Role::Gate, Role::Up]),
    ("fused_qkv_a_proj", &[Role::QueryDown, Role::KeyValueDown]),
    ("in_proj_qkvz", &[Role::RecurrentInput, Role::RecurrentGate]),
    ("in_proj_ba", &[Role::RecurrentStrength, Role::RecurrentDecay]),
];

/// A group of at least two linear layers under one parent module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Siblings {
    /// The module that the engines make of them, e.g. `model.layers.0.self_attn.qkv_proj`.
    pub fused: String,
    /// The members in the order of the source.
    pub members: Vec<LinearId>,
}

/// Finds the groups and notes each member's.
pub(super) fn assign(linears: &mut [Linear]) -> Vec<Siblings> {
    let mut groups = candidates(linears);
    groups.retain(|group| is_fusible(group, linears));
    for (at, group) in groups.iter().enumerate() {
        for member in &group.members {
            linears[member.0].siblings = Some(SiblingsId(at));
        }
    }
    groups
}

/// Layers of one parent whose roles are in one row of [`FUSED`], in order of first appearance.
fn candidates(linears: &[Linear]) -> Vec<Siblings> {
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut groups: Vec<Siblings> = Vec::new();
    // Queries of attention to an encoder read something else than its keys and values.
    let alike = linears.iter().enumerate().filter(|(_, linear)| linear.part != Part::CrossAttention);
    for (at, linear) in alike {
        let Some((fused, _)) = FUSED.iter().find(|(_, roles)| roles.contains(&linear.role)) else {
            continue;
        };
        let parent = linear.module.rsplit_once('.').map_or("", |(parent, _)| parent);
        let fused = format!("{parent}.{fused}").trim_start_matches('.').to_owned();
        let group = *index.entry(fused.clone()).or_insert_with(|| {
            groups.push(Siblings { fused, members: Vec::new() });
            groups.len() - 1
        });
        groups[group].members.push(LinearId(at));
    }
    groups
}

/// Members read the same input, and there are at least two, each with another role.
fn is_fusible(group: &Siblings, linears: &[Linear]) -> bool {
    let first = &linears[group.members[0].0];
    let same_input = |id: &LinearId| linears[id.0].in_features == first.in_features;
    let roles: std::collections::HashSet<Role> = group.members.iter().map(|id| linears[id.0].role).collect();
    roles.len() >= 2 && roles.len() == group.members.len() && group.members.iter().all(same_input)
}
