//! Plans for GGUF files in words.

use super::plan::cost_lines;
use super::{Section, pattern};
use crate::checkpoint::plan::CheckpointPlan;
use crate::memory::PeakMemory;
use crate::text::counts::{self, Line};
use crate::text::{Align, Table, size};
use kvant_checkpoint::gguf::GgufPlan;
use kvant_checkpoint::gguf::plan::PlannedTensor;
use kvant_quant::counts::number;

/// The plan of a file, and of its codes if the run computes them first.
pub fn sections(plan: &GgufPlan, codes: Option<&CheckpointPlan>, memory: PeakMemory, all: bool) -> Vec<Section> {
    let table = if all { table_of_all(plan) } else { table_of_groups(plan) };
    let family = plan.family.unwrap_or("unknown");
    let scheme = codes.map_or_else(|| plan.recipe.ftype().to_string(), |codes| codes.plan.recipe().scheme_name());
    let title = format!("family {family} to {scheme}, format gguf ({})", plan.architecture);
    vec![Section::Text(title), Section::Table(table), Section::Lines(totals(plan, codes, memory))]
}

/// Each tensor with its bytes, and the tensors of the source that are left out.
fn rows(plan: &GgufPlan) -> impl Iterator<Item = (String, [String; 4], u64)> {
    let made = plan.tensors.iter().zip(plan.layout.places()).map(|(tensor, place)| {
        let key =
            [source_text(plan, tensor), size::shape(&tensor.shape), tensor.kind.to_string(), tensor.reason.text()];
        (tensor.name.clone(), key, place.len)
    });
    let dropped = plan.dropped.iter().map(|tensor| {
        let key = [tensor.name.clone(), String::new(), "left out".to_owned(), tensor.reason.to_owned()];
        ("-".to_owned(), key, 0)
    });
    made.chain(dropped)
}

/// The source of a tensor: the first source tensor, and how many more there are.
fn source_text(plan: &GgufPlan, tensor: &PlannedTensor) -> String {
    match plan.sources_of(tensor).as_slice() {
        [] => "config.json".to_owned(),
        [one] => (*one).to_owned(),
        [first, more @ ..] => format!("{first} and {} more", more.len()),
    }
}

fn table_of_all(plan: &GgufPlan) -> Table {
    use Align::{Left, Right};
    let titles = [("tensor", Left), ("from", Left), ("shape", Left), ("type", Left), ("why", Left), ("bytes", Right)];
    let mut table = Table::new(&titles);
    for (name, [from, shape, kind, why], bytes) in rows(plan) {
        table.push([name, from, shape, kind, why, size::bytes(bytes)]);
    }
    table
}

fn table_of_groups(plan: &GgufPlan) -> Table {
    use Align::{Left, Right};
    let titles = [("tensors", Left), ("n", Right), ("shape", Left), ("type", Left), ("why", Left), ("bytes", Right)];
    let mut table = Table::new(&titles);
    let item = |(name, [from, shape, kind, why], bytes): (String, [String; 4], u64)| {
        let name = if name == "-" { from } else { name };
        (name, [shape, kind, why], bytes)
    };
    for group in pattern::group(rows(plan).map(item)) {
        let [shape, kind, why] = &group.key;
        table.push([&group.to_string(), &group.count.to_string(), shape, kind, why, &size::bytes(group.bytes)]);
    }
    table
}

fn totals(plan: &GgufPlan, codes: Option<&CheckpointPlan>, memory: PeakMemory) -> Vec<Line> {
    let (title, tensors) = counts::tensors(plan);
    let lines = [
        (title, format!("{tensors}; {} of the source left out", plan.dropped.len())),
        counts::sizes(plan.source_bytes, plan.layout.total_size()),
        counts::bits(plan.bits_per_weight(), "tensors"),
        ("memory", format!("{} at most with {}", size::bytes(memory.bytes), number(memory.threads, "thread"))),
        ("loads with", plan.loaders().join(", ")),
    ];
    lines.into_iter().chain(codes.map(cost_lines).unwrap_or_default()).collect()
}
