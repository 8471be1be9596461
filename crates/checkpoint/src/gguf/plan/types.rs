//! The type of a tensor: by the ftype, the user's overrides, the loaders' requirements, and the block size that divides its columns.

use super::{GgufPlanError, Reason};
use crate::gguf::recipe::{GgufRecipe, TypeChoice};
use kvant_container::gguf::TensorType;
use kvant_gguf::ftype::{Category, Ftype, Model, RuledTensor, choose, fitting};
use kvant_gguf::model::codec;
use kvant_quant::glob::nearest_names;
use std::collections::BTreeSet;

/// The facts that decide the type of a tensor.
pub(super) struct Candidate<'a> {
    pub name: &'a str,
    /// Its source modules.
    pub modules: &'a [String],
    pub category: Category,
    /// Its position among tensors of values.
    pub value: usize,
    pub block: usize,
    pub shape: &'a [usize],
    /// The type of the source's elements.
    pub stored: TensorType,
    /// Whether loaders take it as F32 only.
    pub fixed: bool,
}

/// Notes on a recipe for the user. Patterns that match none of these tensors, each given by all its names, are refused, unless
/// another tool has written them for tensors to keep.
///
/// # Errors
/// [`GgufPlanError::IdleOverride`].
pub(super) fn recipe_notices(recipe: &GgufRecipe, names: &[Vec<&str>]) -> Result<Vec<String>, GgufPlanError> {
    let idle = recipe.idle_rules(names);
    let Some(wrong) = idle.iter().find(|rule| !rule.may_be_idle) else {
        let idle = idle.into_iter().map(|rule| format!("no tensor matches `{}`", rule.tensors));
        return Ok(recipe.notes().iter().cloned().chain(idle).collect());
    };
    let stems = || names.iter().flatten().map(|name| name.strip_suffix(".weight").unwrap_or(name));
    let ends: BTreeSet<&str> = stems().filter_map(|stem| stem.rsplit('.').next()).collect();
    Err(GgufPlanError::IdleOverride {
        pattern: wrong.tensors.pattern().to_owned(),
        excludes: wrong.kind.is_none(),
        nearest: nearest_names(&wrong.tensors, stems()),
        ends: ends.into_iter().map(str::to_owned).collect(),
    })
}

/// The type of a tensor, and why.
pub(super) fn choose_type(
    recipe: &GgufRecipe,
    model: &Model,
    candidate: &Candidate<'_>,
) -> Result<(TensorType, Reason), GgufPlanError> {
    if candidate.fixed || candidate.shape.len() < 2 {
        return Ok((TensorType::F32, Reason::Fixed));
    }
    let columns = candidate.shape.last().copied().unwrap_or(1);
    let (kind, reason) = match recipe.type_choice(candidate.name, candidate.modules) {
        TypeChoice::Keep => (candidate.stored, Reason::Excluded),
        TypeChoice::Type(kind) => (asked(candidate, kind, columns)?, Reason::Override),
        TypeChoice::Nothing => of_ftype(recipe.ftype(), model, candidate, columns),
    };
    match codec::of(kind) {
        Some(_) => Ok((kind, reason)),
        None => Err(GgufPlanError::Type { tensor: candidate.name.to_owned(), kind }),
    }
}

/// An explicitly requested type is not replaced by another.
fn asked(candidate: &Candidate<'_>, kind: TensorType, columns: usize) -> Result<TensorType, GgufPlanError> {
    match columns.is_multiple_of(kind.block_elements()) {
        true => Ok(kind),
        false => Err(GgufPlanError::Columns { tensor: candidate.name.to_owned(), columns, kind }),
    }
}

fn of_ftype(ftype: Ftype, model: &Model, candidate: &Candidate<'_>, columns: usize) -> (TensorType, Reason) {
    let subject = RuledTensor {
        category: candidate.category,
        value: candidate.value,
        block: candidate.block,
        experts: candidate.shape.len() > 2,
        columns,
    };
    let wanted = choose(ftype, model, &subject);
    match fitting(wanted, columns) {
        kind if kind == wanted => (kind, Reason::Ftype),
        kind => (kind, Reason::FallBack { wanted }),
    }
}
