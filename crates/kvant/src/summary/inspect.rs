//! The contents of models in words.

use super::pattern::{self, Group};
use super::{Section, inspect_gguf, inspect_graph};
use crate::inspect::{CheckpointInspection, Inspection, TypeShare};
use crate::text::counts::number;
use crate::text::{Align, Table, size};

impl Inspection {
    /// The inspection in sections; `all` lists each tensor instead of one for those that differ only in numbers.
    pub fn sections(&self, all: bool) -> Vec<Section> {
        match self {
            Inspection::Checkpoint(found) => checkpoint(found, all),
            Inspection::Gguf(file) => inspect_gguf::sections(file, all),
            Inspection::Graph(found) => inspect_graph::sections(&found.model, all),
        }
    }

    /// Notices about the model.
    pub fn notices(&self) -> Vec<String> {
        match self {
            Inspection::Checkpoint(found) => found.notices(),
            Inspection::Gguf(_) => Vec::new(),
            Inspection::Graph(found) => found.problem.iter().cloned().collect(),
        }
    }
}

fn checkpoint(found: &CheckpointInspection, all: bool) -> Vec<Section> {
    let shares = found.shares();
    let rows = found.checkpoint.tensors().map(|tensor| TensorRow {
        name: tensor.name().to_owned(),
        dtype: tensor.dtype().to_string(),
        shape: size::shape(tensor.shape()),
        bytes: tensor.byte_len(),
    });
    let types = types(shares.iter().map(|(dtype, share)| (dtype.as_str(), *share)));
    vec![head(found), Section::Table(types), Section::Table(tensors(rows, all))]
}

fn head(found: &CheckpointInspection) -> Section {
    let files = found.checkpoint.shards().len();
    let tied = found.tied().map(|tied| if tied { "yes" } else { "no" });
    Section::Lines(vec![
        ("architecture", found.architecture().unwrap_or("unknown").to_owned()),
        ("family", found.family().unwrap_or("unknown").to_owned()),
        ("tied head", tied.unwrap_or("unknown").to_owned()),
        ("linear layers", linears(found)),
        ("size", format!("{} in {}", size::bytes(found.bytes()), number(files, "file"))),
        ("quantization", quantization(found)),
    ])
}

fn linears(found: &CheckpointInspection) -> String {
    let linears = found.network.linears().len();
    match (found.network.experts().len(), &found.quantization) {
        (0, None) => linears.to_string(),
        (0, Some(_)) => format!("{linears} with float weights"),
        (experts, _) => format!("{linears}, and {} of experts", number(experts, "tensor")),
    }
}

fn quantization(found: &CheckpointInspection) -> String {
    let Some(quantization) = &found.quantization else {
        return "none".to_owned();
    };
    let evidence =
        quantization.evidence.iter().map(|(sign, count)| format!("{count} {sign}")).collect::<Vec<_>>().join(", ");
    let lines = quantization.details.iter().cloned().chain((!evidence.is_empty()).then_some(evidence));
    lines.fold(quantization.method.clone(), |text, line| format!("{text}\n{:<15}    {line}", ""))
}

/// Tensors, elements and bytes of each type.
pub(super) fn types<'a>(shares: impl Iterator<Item = (&'a str, TypeShare)>) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("type", Left), ("tensors", Right), ("elements", Right), ("bytes", Right)]);
    for (dtype, share) in shares {
        table.push([dtype, &share.tensors.to_string(), &share.elements.to_string(), &size::bytes(share.bytes)]);
    }
    table
}

/// A tensor as it is listed.
pub(super) struct TensorRow {
    pub name: String,
    pub dtype: String,
    pub shape: String,
    pub bytes: u64,
}

/// Each tensor, or one row for tensors of the same type and shape whose names differ only in numbers.
pub(super) fn tensors(rows: impl Iterator<Item = TensorRow>, all: bool) -> Table {
    use Align::{Left, Right};
    if all {
        let mut table = Table::new(&[("tensor", Left), ("type", Left), ("shape", Left), ("bytes", Right)]);
        rows.for_each(|row| table.push([row.name, row.dtype, row.shape, size::bytes(row.bytes)]));
        return table;
    }
    let titles = [("tensors", Left), ("n", Right), ("type", Left), ("shape", Left), ("bytes", Right)];
    let mut table = Table::new(&titles);
    let groups: Vec<Group<_>> = pattern::group(rows.map(|row| (row.name, (row.dtype, row.shape), row.bytes)));
    for group in groups {
        let (dtype, shape) = &group.key;
        table.push([&group.to_string(), &group.count.to_string(), dtype, shape, &size::bytes(group.bytes)]);
    }
    table
}
