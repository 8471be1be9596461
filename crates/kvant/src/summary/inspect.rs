//! The contents of models in words.

use super::pattern::{self, Group};
use super::{Section, inspect_gguf, inspect_graph};
use crate::inspect::{CheckpointInspection, Inspection, PipelineInspection, TypeShare};
use crate::text::counts::number;
use crate::text::{Align, Table, size};

impl Inspection {
    /// The inspection in sections; `all` lists each tensor instead of one for those that differ only in numbers.
    pub fn sections(&self, all: bool) -> Vec<Section> {
        match self {
            Inspection::Checkpoint(found) => checkpoint(found, all),
            Inspection::Gguf(file) => inspect_gguf::sections(file, all),
            Inspection::Graph(found) => inspect_graph::sections(&found.model, all),
            Inspection::Pipeline(found) => pipeline(found, all),
        }
    }

    /// Notices about the model.
    pub fn notices(&self) -> Vec<String> {
        match self {
            Inspection::Checkpoint(found) => found.notices(),
            Inspection::Gguf(_) => Vec::new(),
            Inspection::Graph(found) => found.problem.iter().cloned().collect(),
            Inspection::Pipeline(found) => found.notices(),
        }
    }
}

fn checkpoint(found: &CheckpointInspection, all: bool) -> Vec<Section> {
    let shares = found.shares();
    let types = types(shares.iter().map(|(dtype, share)| (dtype.as_str(), *share)));
    vec![head(found), Section::Table(types), Section::Table(tensors(tensor_rows(found), all))]
}

/// A row for each component; `all` lists their tensors too.
fn pipeline(found: &PipelineInspection, all: bool) -> Vec<Section> {
    use Align::{Left, Right};
    let class = found.pipeline.class.as_deref().unwrap_or("a pipeline");
    let title = format!("{class}, {}, {}", number(found.components.len(), "component"), size::bytes(found.bytes()));
    let titles = [
        ("component", Left),
        ("class", Left),
        ("types", Left),
        ("linear layers", Right),
        ("bytes", Right),
        ("quantization", Left),
    ];
    let mut components = Table::new(&titles);
    for (component, found) in &found.components {
        let types: Vec<String> = found.shares().into_keys().collect();
        let quantization = found.quantization.as_ref().map_or("none", |quantization| &quantization.method);
        components.push([
            &component.name,
            &component.class,
            &types.join(", "),
            &linears(found),
            &size::bytes(found.bytes()),
            quantization,
        ]);
    }
    let mut sections = vec![Section::Text(title), Section::Table(components)];
    if all {
        let rows = found.components.iter().flat_map(|(component, found)| {
            let name = |tensor: &str| format!("{}/{tensor}", component.name);
            tensor_rows(found).map(move |row| TensorRow { name: name(&row.name), ..row })
        });
        sections.push(Section::Table(tensors(rows, all)));
    }
    sections
}

fn tensor_rows(found: &CheckpointInspection) -> impl Iterator<Item = TensorRow> {
    found.checkpoint.tensors().map(|tensor| TensorRow {
        name: tensor.name().to_owned(),
        dtype: tensor.dtype().to_string(),
        shape: size::shape(tensor.shape()),
        bytes: tensor.byte_len(),
    })
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
