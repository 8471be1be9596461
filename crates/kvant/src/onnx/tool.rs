//! Tools for graphs as a request: a graph is read, changed and written under another name.

use super::quantize::{check_output, model_size};
use super::staged::{Staged, made_or_left};
use super::{read, recover};
use crate::cancel::CancelToken;
use crate::delivery::claim;
use crate::ending::{Stopped, concluded};
use crate::error::{Error, ErrorKind};
use crate::events::{Events, Reporter};
use crate::job::{Commit, Sinks, SourceKind};
use crate::json::path as path_json;
use crate::paths::{MODEL, Paths, follow, full_path, refuse_missing};
use crate::text::{printable, shown, size};
use kvant_checkpoint::engine::Options;
use kvant_container::directory_of;
use kvant_container::onnx::{ExternalData, ModelProto, Spill, external_files};
use kvant_container::unfinished::{self, Claim, Room};
use kvant_onnx::count;
use kvant_onnx::graph::check;
use kvant_onnx::pass::{Context, PassError, Selection, simplify};
use kvant_onnx::recipe::FloatType;
use kvant_onnx::tool::{
    Cut, FixedDim, FixedShape, RenamedDomain, RetypeRequest, clip_infinities, convert_opset, dequantize, extract,
    fix_shapes, rename_domain, retype, to_float, to_qdq, to_qoperator,
};
use kvant_quant::counts::number;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A change of an ONNX graph, which is written to another file.
#[derive(Clone, Debug)]
pub struct GraphEdit {
    /// The graph.
    pub model: PathBuf,
    /// What becomes of it.
    pub tool: GraphTool,
    /// The file to write. The result has external data if the graph has some, or if it is too large for one file.
    pub output: PathBuf,
    /// Whether a graph of that name is replaced.
    pub overwrite: bool,
}

/// What a graph can become.
#[derive(Clone, Debug)]
pub enum GraphTool {
    /// A graph simplified by passes.
    Simplify {
        /// Passes that run besides the default ones.
        enable: Vec<String>,
        /// Passes that do not run.
        disable: Vec<String>,
    },
    /// A graph of a newer opset.
    ConvertOpset {
        /// The version.
        opset: i64,
    },
    /// The part between tensors.
    Extract(Cut),
    /// A graph with shapes of inputs and sizes of named dimensions.
    FixShapes {
        /// Shapes of inputs.
        shapes: Vec<FixedShape>,
        /// Sizes of dimensions.
        dims: Vec<FixedDim>,
    },
    /// The float graph of a quantized one.
    Dequantize,
    /// A graph of integer operators in place of Q/DQ pairs.
    ToQOperator,
    /// A graph of Q/DQ pairs in place of integer operators.
    ToQdq,
    /// A graph with other types of codes.
    Retype(RetypeRequest),
    /// A graph without infinite constants.
    ClipInfinities {
        /// The largest value; `None` is the largest of the type.
        limit: Option<f64>,
    },
    /// A graph with operators in another domain.
    RenameDomain(RenamedDomain),
    /// A graph in float16.
    ToFloat16,
    /// A graph in bfloat16.
    ToBfloat16,
}

impl GraphTool {
    /// The name of the tool, as `kvant graph` has it.
    pub fn name(&self) -> &'static str {
        match self {
            GraphTool::Simplify { .. } => "simplify",
            GraphTool::ConvertOpset { .. } => "convert-opset",
            GraphTool::Extract(_) => "extract",
            GraphTool::FixShapes { .. } => "fix-shapes",
            GraphTool::Dequantize => "dequantize",
            GraphTool::ToQOperator => "to-qoperator",
            GraphTool::ToQdq => "to-qdq",
            GraphTool::Retype(_) => "retype",
            GraphTool::ClipInfinities { .. } => "clip-infinities",
            GraphTool::RenameDomain(_) => "rename-domain",
            GraphTool::ToFloat16 => "to-float16",
            GraphTool::ToBfloat16 => "to-bfloat16",
        }
    }
}

/// A graph that was changed and written.
#[derive(Clone, Debug)]
pub struct GraphEditReport {
    /// The name of the tool.
    pub tool: &'static str,
    /// The graph.
    pub model: PathBuf,
    /// The file that was written.
    pub output: PathBuf,
    /// Bytes of the files of the source.
    pub source_bytes: u64,
    /// Bytes of the files of the output.
    pub output_bytes: u64,
    /// Nodes of the source, those in bodies included.
    pub nodes_before: usize,
    /// Nodes of the output.
    pub nodes: usize,
    /// What was changed, by kind: rewrites by pass, sizes by dimension, numbers of things.
    pub changes: BTreeMap<String, i64>,
    /// The same in words.
    what: String,
}

/// What a tool did.
struct Done {
    changes: BTreeMap<String, i64>,
    what: String,
}

impl Done {
    fn of<'n>(changes: impl IntoIterator<Item = (&'n str, usize)>, what: String) -> Done {
        let changes = changes.into_iter().map(|(name, n)| (name.to_owned(), i64::try_from(n).unwrap_or(i64::MAX)));
        Done { changes: changes.collect(), what }
    }
}

impl GraphEdit {
    /// Changes the graph and writes it.
    ///
    /// # Errors
    /// Files that are no graphs or not to be replaced, graphs that do not pass the checks, requests that the graph does not fulfil, and the
    /// system's. Nothing is written then.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<GraphEditReport, Error> {
        concluded(|| Stopped::StartsOver, || self.carry_out(&Reporter::new(events, cancel)))
    }

    fn carry_out(&self, reporter: &Reporter<'_>) -> Result<GraphEditReport, Error> {
        let output = follow(Some(self.output.clone()))?.unwrap_or_default();
        let commit = Commit { overwrite: self.overwrite, ..Commit::default() };
        recover(&Sinks { output: Some(output.clone()), commit, ..Sinks::default() })?;
        refuse_missing([(MODEL, self.model.as_path())])?;
        let mut paths = Paths::new(self.overwrite, true);
        paths.reads_model(&self.model);
        paths.writes_model(Some(&output));
        paths.check()?;
        refuse_other_models(&self.model)?;
        check_output(&output, self.overwrite)?;
        reporter.started();
        let claim = claim(&output, &Options::new(), commit)?;
        let made = self.make(&output, &claim, reporter);
        // Of an error, too, a file that was rewritten is the cause.
        let made = reporter.refuse_lost().and(made);
        let ((report, staged), claim) = made_or_left(claim, made, false)?;
        staged.place(claim, false)?;
        Ok(report)
    }

    /// Does the work, all but the name of the output.
    fn make(&self, output: &Path, claim: &Claim, reporter: &Reporter<'_>) -> Result<(GraphEditReport, Staged), Error> {
        let mut model = read(&self.model)?;
        check(&model)?;
        let nodes_before = count::nodes(&model.graph);
        let spill = Spill::new(directory_of(output))?.cancelled_by(reporter.cancel().flag().clone());
        let Done { changes, what } = self.change(&mut model, &spill, reporter)?;
        check(&model)?;
        let nodes = count::nodes(&model.graph);
        let mut room = Room::default();
        room.output(&unfinished::Paths::of(output)?, count::constants(&model.graph, count::size));
        room.check()?;
        let is_external = !external_files(&self.model)?.is_empty();
        let external = if is_external { ExternalData::Always } else { ExternalData::Auto };
        let mut staged = Staged::begin(claim, [output])?;
        let made = staged.write(model, output, external, reporter.cancel())?;
        check_output(output, self.overwrite)?;
        let report = GraphEditReport {
            tool: self.tool.name(),
            model: self.model.clone(),
            output: full_path(output),
            source_bytes: model_size(&self.model),
            output_bytes: model_size(&made),
            nodes_before,
            nodes,
            changes,
            what,
        };
        Ok((report, staged))
    }

    fn change(&self, model: &mut ModelProto, spill: &Spill, reporter: &Reporter<'_>) -> Result<Done, Error> {
        let spill = Some(spill);
        Ok(match &self.tool {
            GraphTool::Simplify { enable, disable } => {
                let mut selection = Selection::default();
                let usage = |error: PassError| Error { kind: ErrorKind::Usage, ..error.into() };
                selection.change(enable, disable).map_err(usage)?;
                let counts = simplify(model, &selection, &Context { spill, ..Context::default() })?;
                let counts: Vec<_> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
                let words: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
                let what = if words.is_empty() { "nothing to simplify".to_owned() } else { words.join(", ") };
                Done::of(counts, what)
            }
            GraphTool::ConvertOpset { opset } => {
                let from = convert_opset(model, *opset)?;
                let changes = [("opset_before".to_owned(), from), ("opset".to_owned(), *opset)];
                Done { changes: changes.into(), what: format!("opset {from} became {opset}") }
            }
            GraphTool::Extract(cut) => {
                extract(model, cut)?;
                let (inputs, outputs) = (model.graph.input.len(), model.graph.output.len());
                let what = format!("{} and {}", number(inputs, "input"), number(outputs, "output"));
                Done::of([("inputs", inputs), ("outputs", outputs)], what)
            }
            GraphTool::FixShapes { shapes, dims } => {
                let fixed = fix_shapes(model, shapes, dims)?;
                if !fixed.open.is_empty() {
                    reporter.note(&format!("inputs that still have open dimensions: {}", fixed.open.join(", ")));
                }
                let inputs = (!shapes.is_empty()).then(|| format!("shapes of {}", number(shapes.len(), "input")));
                let sizes = fixed.dims.iter().map(|(name, size)| format!("{name} = {size}"));
                let what = inputs.into_iter().chain(sizes).collect::<Vec<_>>().join(", ");
                Done::of(fixed.dims.iter().map(|(name, size)| (name.as_str(), *size)), what)
            }
            GraphTool::Dequantize => {
                let done = dequantize(model, spill)?;
                warn_of_left(&done.left, reporter);
                let (constants, activations) = (done.constants, done.activations);
                let what = format!(
                    "{} dequantized, {} without quantization",
                    number(constants, "constant"),
                    number(activations, "activation")
                );
                Done::of([("constants", constants), ("activations", activations), ("left", done.left.len())], what)
            }
            GraphTool::ToQOperator => {
                let done = to_qoperator(model)?;
                let what = format!(
                    "{}{}",
                    number(done.operators, "integer operator"),
                    still(&done.left, "between Q/DQ pairs")
                );
                Done::of([("operators", done.operators), ("left", done.left.len())], what)
            }
            GraphTool::ToQdq => {
                let done = to_qdq(model)?;
                let what = format!(
                    "{} between Q/DQ pairs{}",
                    number(done.operators, "operator"),
                    still(&done.left, "with integer operators")
                );
                Done::of([("operators", done.operators), ("left", done.left.len())], what)
            }
            GraphTool::Retype(request) => {
                let done = retype(model, request, spill)?;
                let biases = if done.biases == 1 { "1 bias".to_owned() } else { format!("{} biases", done.biases) };
                let counts = [
                    (done.activations, number(done.activations, "activation")),
                    (done.constants, number(done.constants, "constant")),
                    (done.biases, biases),
                ];
                let words: Vec<String> =
                    counts.into_iter().filter(|(count, _)| *count > 0).map(|(_, words)| words).collect();
                if let Some(first) = first_of(&done.left) {
                    reporter.warning(&format!(
                        "{} with codes keep their type: inputs and outputs of the graph, or read by operators of one type ({first})",
                        number(done.left.len(), "tensor"),
                    ));
                }
                if let (Some(types), Some(first)) = (request.codes, first_of(&done.of_other_widths)) {
                    reporter.note(&format!(
                        "{} with codes of another width than {types} keep their type ({first})",
                        number(done.of_other_widths.len(), "tensor"),
                    ));
                }
                let changes = [
                    ("activations", done.activations),
                    ("constants", done.constants),
                    ("biases", done.biases),
                    ("left", done.left.len()),
                ];
                Done::of(changes, format!("{} retyped", words.join(", ")))
            }
            GraphTool::ClipInfinities { limit } => {
                let done = clip_infinities(model, *limit, spill)?;
                let what = format!(
                    "{} in {} clipped",
                    number(done.values, "infinite value"),
                    number(done.constants, "constant")
                );
                Done::of([("constants", done.constants), ("values", done.values)], what)
            }
            GraphTool::RenameDomain(renamed) => {
                let nodes = rename_domain(model, renamed)?;
                let what = format!("{} moved from {} to {}", number(nodes, "node"), renamed.from, renamed.to);
                Done::of([("nodes", nodes)], what)
            }
            GraphTool::ToFloat16 => narrowed(model, FloatType::Float16, spill, reporter)?,
            GraphTool::ToBfloat16 => narrowed(model, FloatType::BFloat16, spill, reporter)?,
        })
    }
}

/// The first of some names, with a sign that there are more; None without any.
fn first_of(names: &[String]) -> Option<String> {
    let more = if names.len() > 1 { " ..." } else { "" };
    names.first().map(|first| format!("{}{more}", printable(first)))
}

/// The nodes that a conversion leaves as they are, as the end of a sentence.
fn still(left: &[String], how: &str) -> String {
    first_of(left).map_or_else(String::new, |first| format!(", {} still {how} ({first})", number(left.len(), "node")))
}

/// Converts a graph to 16-bit floats, and warns of values that do not survive it.
fn narrowed(
    model: &mut ModelProto,
    to: FloatType,
    spill: Option<&Spill>,
    reporter: &Reporter<'_>,
) -> Result<Done, Error> {
    let done = to_float(model, to, spill)?;
    let name = to.name();
    if !done.limited.is_empty() {
        let constants = number(done.limited.len(), "constant");
        reporter.warning(&format!("values beyond the range of {name} were limited to it in {constants}"));
    }
    if !done.raised.is_empty() {
        let constants = number(done.raised.len(), "constant");
        reporter.warning(&format!("most values are too small for {name} in {constants}"));
    }
    let what = match done.left.len() {
        0 => format!("{} in {name}", number(done.nodes, "node")),
        left => format!("{} in {name}, {left} in float32 between casts", number(done.nodes, "node")),
    };
    Ok(Done::of([("nodes", done.nodes), ("left", done.left.len())], what))
}

fn warn_of_left(left: &[String], reporter: &Reporter<'_>) {
    let Some(first) = first_of(left) else { return };
    reporter.warning(&format!(
        "{} with codes stay: inputs or outputs of the graph have codes, or a scale is computed ({first})",
        number(left.len(), "node"),
    ));
}

fn refuse_other_models(model: &Path) -> Result<(), Error> {
    if SourceKind::of(model) == SourceKind::Graph {
        return Ok(());
    }
    let error = Error::new(ErrorKind::Usage, format!("{} is not an ONNX graph", shown(model)));
    Err(error.with_hint(Some("name a file that ends in .onnx".to_owned())))
}

impl GraphEditReport {
    /// What was changed, in a line.
    pub fn line(&self) -> String {
        let nodes = match self.nodes_before == self.nodes {
            true => number(self.nodes, "node"),
            false => format!("{} nodes before, {} now", self.nodes_before, self.nodes),
        };
        let sizes = format!("{} before, {} now", size::bytes(self.source_bytes), size::bytes(self.output_bytes));
        format!("{}: {}; {nodes}; {sizes}", self.tool, printable(&self.what))
    }

    /// The report as an object of `docs/schemas/graph.schema.json`, without its `schema` key.
    pub fn to_json(&self) -> Value {
        json!({
            "tool": self.tool,
            "model": path_json(&self.model),
            "output": path_json(&self.output),
            "source_bytes": self.source_bytes,
            "output_bytes": self.output_bytes,
            "nodes_before": self.nodes_before,
            "nodes": self.nodes,
            "changes": self.changes,
        })
    }
}
