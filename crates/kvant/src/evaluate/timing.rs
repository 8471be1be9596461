//! How long a graph takes in ONNX Runtime, alone or beside its reference.

use super::{Evaluation, EvaluationReport, reference_is_directory};
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::SourceKind;
use crate::onnx::data::{is_text, of_path};
use crate::onnx::read;
use crate::text::printable;
use kvant_container::Remedy;
use kvant_container::onnx::ModelProto;
use kvant_onnx::data::{Axis, DataOptions, Distribution, Input, SampleSource, Samples, display_axes, inputs};
use kvant_onnx::error::QuantizeError;
use kvant_onnx::evaluation::{Timing, time};
use kvant_onnx::graph::check as check_graph;
use kvant_onnx::runtime::{RuntimeChoice, RuntimeOptions};

/// Refuses to time what is no single graph, and on an engine that is not the one that programs run.
///
/// # Errors
/// Names the setting.
pub(super) fn check(evaluation: &Evaluation) -> Result<(), Error> {
    if !evaluation.time {
        return Ok(());
    }
    let refused = |message: &str, remedy: Remedy| {
        Err(Error::new(ErrorKind::Usage, message.to_owned()).with_remedies(vec![remedy]))
    };
    if evaluation.source.kind() != SourceKind::Graph || evaluation.choices {
        return refused("‹time› applies only to ONNX graphs", Remedy::leave_out("time"));
    }
    if !evaluation.others.is_empty() {
        let way = Remedy::text("evaluate one graph at a time, with its float graph as ‹reference›");
        return refused("‹time› takes one graph", way);
    }
    if evaluation.limits.engine.choice == RuntimeChoice::Rten {
        let message = "‹time› measures in ONNX Runtime, and ‹runtime› asks for rten";
        return refused(message, Remedy::setting_to("runtime", "ort", "leave ‹runtime› out"));
    }
    if evaluation.has_data() && is_text(&evaluation.data) {
        let way = Remedy::text("leave ‹data› out to time the graph on made-up inputs, or leave ‹time› out");
        return refused("‹time› does not apply to text", way);
    }
    if !evaluation.has_data() && evaluation.page.is_some() {
        let way = Remedy::setting("data", "give samples with ‹data›, or leave ‹report› out");
        return refused("‹report› shows how far a graph is from its float graph, which needs samples", way);
    }
    Ok(())
}

/// Compares a graph with its reference on the data, if there are any, and measures the time of both.
pub(super) fn evaluate(evaluation: &Evaluation, reporter: &Reporter<'_>) -> Result<EvaluationReport, Error> {
    let has_comparison = evaluation.has_data() && evaluation.reference.is_some();
    let compared = if has_comparison { Some(evaluation.graph(reporter)?) } else { None };
    let found = measured(evaluation, reporter)?;
    Ok(match compared {
        Some(mut report) => {
            report.time = Some(found);
            EvaluationReport::Graph(Box::new(report))
        }
        None => EvaluationReport::Time(Box::new(found)),
    })
}

fn measured(evaluation: &Evaluation, reporter: &Reporter<'_>) -> Result<Timing, Error> {
    evaluation.refuse_text_settings()?;
    let model = read(&evaluation.source.model)?;
    let reference = evaluation.reference.as_deref().map(|path| match path.is_dir() {
        true => Err(reference_is_directory(path)),
        false => read(path),
    });
    let reference = reference.transpose()?;
    for graph in std::iter::once(&model).chain(&reference) {
        check_graph(graph).map_err(QuantizeError::from)?;
    }
    let mut samples = samples(evaluation, reference.as_ref().unwrap_or(&model), reporter)?;
    let limits = &evaluation.limits;
    let threads = Some(limits.threads.map_or(1, usize::from));
    let options = RuntimeOptions { threads, ..limits.runtime() };
    reporter.started();
    let progress = reporter.stage(Stage::Evaluation, Unit::Samples);
    let mut watch = progress.watch_cancelled();
    let progress = &mut |done: usize, all: usize| watch(done as u64, all as u64);
    Ok(time(&model, reference.as_ref(), &mut samples, &options, progress)?)
}

/// The data, or one made-up sample.
fn samples(evaluation: &Evaluation, graph: &ModelProto, reporter: &Reporter<'_>) -> Result<Samples, Error> {
    let inputs = inputs(&graph.graph);
    if evaluation.has_data() {
        return Ok(of_path(&evaluation.data).open(&inputs, &evaluation.data_options()?)?);
    }
    let open: Vec<&Input> = inputs.iter().filter(|input| has_open_axis(input)).collect();
    if !open.is_empty() {
        let spelled = |input: &&Input| {
            let axes = input.axes.as_deref().map(display_axes).unwrap_or_default();
            format!("`{}` {axes}", printable(&input.name))
        };
        let open: Vec<String> = open.iter().map(spelled).collect();
        reporter.note(&format!("open axes count as 1 in {}; ‹data› gives inputs of other sizes", open.join(", ")));
    }
    let inputs: Vec<Input> = inputs.into_iter().map(of_one).collect();
    let options = DataOptions { num_samples: Some(1), ..DataOptions::default() };
    Ok(SampleSource::Random(Distribution::Normal).open(&inputs, &options)?)
}

fn has_open_axis(input: &Input) -> bool {
    input.axes.iter().flatten().any(|axis| matches!(axis, Axis::Open(_)))
}

/// The input with open axes of size 1.
fn of_one(input: Input) -> Input {
    let fixed = |axis: Axis| Axis::Fixed(if let Axis::Fixed(size) = axis { size } else { 1 });
    Input { axes: input.axes.map(|axes| axes.into_iter().map(fixed).collect()), ..input }
}
