//! `kvant inspect`: what a model holds.

use super::{inspect_gguf, inspect_graph};
use crate::args::InspectArgs;
use crate::printer::Printer;
use crate::table::{Align, Table};
use crate::{interrupt, pattern};
use kvant::inspect::CheckpointInspection;
use kvant::text::counts::number;
use kvant::text::{printable, size};
use kvant::{Error, Inspection, inspect, json};
use kvant_container::TensorView;

/// Looks at a model; reads headers and configurations only.
///
/// # Errors
/// Whatever is wrong with the files.
pub fn run(args: &InspectArgs, printer: &Printer) -> Result<(), Error> {
    interrupt::exit_on_signal();
    let inspection = inspect(&args.model)?;
    let (all, width, is_json) = (args.all, printer.width(), printer.is_json());
    match &inspection {
        Inspection::Graph(found) => {
            match is_json {
                true => printer.json("inspect", &inspection.to_json())?,
                false => printer.data(&inspect_graph::text(&found.model, all, width))?,
            }
            found.problem.iter().for_each(|problem| printer.note(problem));
            Ok(())
        }
        _ if is_json => {
            let tensors = inspection.tensors_json().into_iter();
            printer.data(&json::object("inspect", &inspection.to_json(), "tensors", tensors))
        }
        Inspection::Gguf(file) => printer.data(&inspect_gguf::text(file, all, width)),
        Inspection::Checkpoint(found) => {
            let tensors = if all { table_of_all(found) } else { table_of_groups(found) };
            let types = table_of_types(found);
            printer.data(&format!("{}\n\n{}\n\n{}", head(found), types.render(width), tensors.render(width)))?;
            found.notices().iter().for_each(|notice| printer.note(notice));
            Ok(())
        }
    }
}

fn head(found: &CheckpointInspection) -> String {
    let files = found.checkpoint.shards().len();
    let tied = found.tied().map(|tied| if tied { "yes" } else { "no" });
    let size = format!("{} in {}", size::bytes(found.bytes()), number(files, "file"));
    let lines = [
        ("architecture", found.architecture().unwrap_or("unknown").to_owned()),
        ("family", found.family().unwrap_or("unknown").to_owned()),
        ("tied head", tied.unwrap_or("unknown").to_owned()),
        ("linear layers", linears_text(found)),
        ("size", size),
        ("quantization", quantization_text(found)),
    ];
    printable(&lines.map(|(name, value)| format!("{name:<13}  {value}")).join("\n"))
}

fn linears_text(found: &CheckpointInspection) -> String {
    let linears = found.network.linears().len();
    match (found.network.experts().len(), &found.quantization) {
        (0, None) => linears.to_string(),
        (0, Some(_)) => format!("{linears} with weights in floats"),
        (experts, _) => format!("{linears}, and {experts} tensors of experts"),
    }
}

fn quantization_text(found: &CheckpointInspection) -> String {
    let Some(quantization) = &found.quantization else {
        return "none".to_owned();
    };
    let evidence =
        quantization.evidence.iter().map(|(sign, count)| format!("{count} {sign}")).collect::<Vec<_>>().join(", ");
    let lines = quantization.details.iter().cloned().chain((!evidence.is_empty()).then_some(evidence));
    lines.fold(quantization.method.clone(), |text, line| format!("{text}\n{:<13}    {line}", ""))
}

fn table_of_types(found: &CheckpointInspection) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("type", Left), ("tensors", Right), ("elements", Right), ("bytes", Right)]);
    for (dtype, share) in found.shares() {
        table.push([dtype, share.tensors.to_string(), share.elements.to_string(), size::bytes(share.bytes)]);
    }
    table
}

fn table_of_all(found: &CheckpointInspection) -> Table {
    use Align::{Left, Right};
    let mut table = Table::new(&[("tensor", Left), ("type", Left), ("shape", Left), ("bytes", Right)]);
    for tensor in found.checkpoint.tensors() {
        let (dtype, shape) = (tensor.dtype().to_string(), size::shape(tensor.shape()));
        table.push([tensor.name().to_owned(), dtype, shape, size::bytes(tensor.byte_len())]);
    }
    table
}

fn table_of_groups(found: &CheckpointInspection) -> Table {
    use Align::{Left, Right};
    let titles = [("tensors", Left), ("n", Right), ("type", Left), ("shape", Left), ("bytes", Right)];
    let mut table = Table::new(&titles);
    let key = |tensor: &TensorView<'_>| (tensor.dtype().to_string(), size::shape(tensor.shape()));
    let item = |tensor: TensorView<'_>| (tensor.name().to_owned(), key(&tensor), tensor.byte_len());
    for group in pattern::group(found.checkpoint.tensors().map(item)) {
        let (dtype, shape) = &group.key;
        table.push([&group.to_string(), &group.count.to_string(), dtype, shape, &size::bytes(group.bytes)]);
    }
    table
}
