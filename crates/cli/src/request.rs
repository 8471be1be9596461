//! From arguments to the requests of the library.

use crate::args::{
    AccuracyArgs, CalibrationArgs, Command, ConvertArgs, EngineArgs, EvalArgs, FinishArgs, GateArgs, GenerateArgs,
    GlobalArgs, GraphCommand, GraphFiles, OnnxArgs, OverwriteArgs, PlanArgs, QuantizeArgs, RecipeArgs, RunArgs,
    SamplingArgs, SearchArgs, SensitivityArgs, VerifyArgs, WorkerNumber,
};
use crate::failure::usage;
use crate::parse::{parse, usage_error};
use kvant::page::PageFormat;
use kvant::{
    Commit, Conversion, Data, Error, Evaluation, Generation, GivenStatistics, GraphEdit, GraphEngine, GraphRecipe,
    GraphTool, Job, Limits, Metric, MixTarget, Prompt, QualityLimits, Recipe, Sampling, Search, Sensitivity, Sharing,
    Sinks, Source, Verification,
};
use kvant_checkpoint::byte_size::ByteSize;
use kvant_checkpoint::recipe::LayerTypeText;
use kvant_data::calibration::SharedFile;
use kvant_model::network::LayerKind;
use kvant_onnx::recipe::BiasKind;
use kvant_onnx::sensitivity::Target;
use kvant_onnx::tool::{Cut, RetypeRequest};
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::sync::OnceLock;

/// A request of the library, as the options of a command describe it.
#[derive(Debug)]
pub enum Request {
    /// Quantize a model.
    Quantize(Box<Job>),
    /// Preview a quantization.
    Plan(Box<Job>),
    /// Convert a quantized model.
    Convert(Box<Conversion>),
    /// Measure a model.
    Evaluate(Box<Evaluation>),
    /// Check a model.
    Verify(Verification),
    /// Show the contents of a model.
    Inspect(PathBuf),
    /// Rank the layers of a graph.
    Sensitivity(Box<Sensitivity>),
    /// Search for a mix of schemes.
    Search(Box<Search>),
    /// Continue prompts.
    Generate(Box<Generation>),
}

impl Request {
    /// The request of `kvant COMMAND ARGS`.
    ///
    /// # Errors
    /// [`Usage`](kvant::ErrorKind::Usage) if clap refuses the arguments, or if they are none of a request.
    pub fn parse(command: &str, args: impl IntoIterator<Item = OsString>) -> Result<Request, Error> {
        let args: Vec<OsString> = std::iter::once(command.into()).chain(args).collect();
        let cli = parse(&args).map_err(|error| usage_error(&error))?;
        Ok(match cli.command {
            Command::Quantize(args) => Request::Quantize(Box::new((*args).into())),
            Command::Plan(args) => Request::Plan(Box::new((*args).into())),
            Command::Convert(args) => Request::Convert(Box::new(args.into())),
            Command::Eval(args) => Request::Evaluate(Box::new(args.into())),
            Command::Verify(args) => Request::Verify((&args).into()),
            Command::Inspect(args) => Request::Inspect(args.model),
            Command::Sensitivity(args) => Request::Sensitivity(Box::new((*args).try_into()?)),
            Command::Search(args) => Request::Search(Box::new((*args).try_into()?)),
            Command::Generate(args) => Request::Generate(Box::new((*args).into())),
            other => return Err(usage(&format!("`{}` is no request", other.name()), "use the command line")),
        })
    }

    /// Gives the calibration data an identity other than their path: a run resumes the work of a run with the same one.
    pub fn identify_data(&mut self, identity: String) {
        if let Request::Quantize(job) = self {
            job.sinks.settings.insert("--calib".to_owned(), identity);
        }
    }
}

/// The largest model that is downloaded without a yes on a terminal.
const DOWNLOADED_UNASKED: ByteSize = ByteSize(50_000_000_000);

/// The command line that the current process was started with, up to the name of a command.
static PROGRAM: OnceLock<Vec<OsString>> = OnceLock::new();

/// States how another process of this program is started, for a process whose executable is not `kvant`: the executable and its first
/// arguments, which come before the name of a command. Only the first call has an effect.
pub fn set_program(program: Vec<OsString>) {
    _ = PROGRAM.set(program);
}

impl From<QuantizeArgs> for Job {
    fn from(args: QuantizeArgs) -> Job {
        let mut job = job(args.recipe, &args.run);
        let GateArgs { max_kl, max_perplexity_increase, eval } = args.gate;
        let quality = &mut job.limits.quality;
        let AccuracyArgs { max_drop, metric, lower_is_better, metric_timeout, labels, auto } = args.accuracy;
        let timeout = metric_timeout.map(|seconds| seconds as u64);
        let metric = metric.map(|command| Metric { command, lower_is_better, timeout });
        let min_sqnr = quality.min_sqnr;
        *quality = QualityLimits { max_kl, max_perplexity_increase, eval, min_sqnr, max_drop, metric, labels };
        job.recipe.graph.auto = auto;
        // A program that runs the command cannot be asked.
        let asks = !args.confirm.yes && io::stderr().is_terminal();
        job.limits.max_download = asks.then_some(DOWNLOADED_UNASKED);
        job.sinks.output = args.output.output;
        job.sinks.no_model_card = args.no_model_card;
        if let Some(WorkerNumber(worker)) = args.worker.worker {
            job.sharing = Sharing::Worker { worker, command: args.worker.command };
        }
        job.sinks.commit = commit(args.finish);
        job
    }
}

impl From<PlanArgs> for Job {
    fn from(args: PlanArgs) -> Job {
        let mut job = job(args.recipe, &args.run);
        job.sinks.output = args.output;
        job.sinks.commit = Commit { overwrite: args.replace.overwrite, no_verify: args.no_verify, ..Commit::default() };
        job
    }
}

impl TryFrom<SensitivityArgs> for Sensitivity {
    type Error = Error;

    fn try_from(args: SensitivityArgs) -> Result<Sensitivity, Error> {
        if args.max_drop.is_some() && args.labels.is_none() {
            let hint = "name their array in the data with --labels";
            return Err(usage("--max-drop needs the classes of the held-out samples", hint));
        }
        let drop = args.max_drop.map(|share| Target::Drop(100.0 * share));
        Ok(Sensitivity {
            job: job(args.recipe, &args.run),
            test: args.eval,
            test_samples: args.eval_samples,
            labels: args.labels,
            candidates: args.candidates,
            target: args.target_sqnr.map(Target::Sqnr).or(args.target_size.map(Target::Size)).or(drop),
            leave_one_out: args.leave_one_out,
            output: args.output,
            overwrite: args.replace.overwrite,
        })
    }
}

impl TryFrom<SearchArgs> for Search {
    type Error = Error;

    fn try_from(args: SearchArgs) -> Result<Search, Error> {
        let then = then(&args)?;
        let source = Source { model: args.model, adapters: args.adapters.lora };
        let target = args.target_size.map(MixTarget::Size).or(args.target_bpw.map(MixTarget::BitsPerWeight));
        let limit = args.max_kl.map(MixTarget::MaxKl).or(args.min_top1.map(MixTarget::MinTop1));
        let memory = args.calibration.max_memory;
        let mut job = Job { source, data: data(args.calibration, None), ..Job::new("") };
        job.limits = Limits { threads: args.run.threads, memory, engine: default_engine(), ..Limits::default() };
        job.recipe.weights_only = args.weights_only;
        job.recipe.scales = args.scales;
        job.recipe.no_keep_defaults = args.no_keep_defaults;
        job.sinks.formats = args.format;
        job.sinks.page = args.page.report;
        job.sinks.commit.overwrite = args.replace.overwrite;
        Ok(Search {
            job,
            options: args.options,
            loader: args.loader,
            target: target.or(limit),
            method: args.method,
            eval: args.eval,
            output: args.output,
            sensitivities: args.sensitivities,
            then: then.map(Box::new),
        })
    }
}

/// The job of the command behind a search, with the recipe that it writes.
fn then(args: &SearchArgs) -> Result<Option<Job>, Error> {
    let [command, rest @ ..] = &args.then[..] else { return Ok(None) };
    if command != "quantize" {
        let name = command.to_string_lossy();
        return Err(usage(&format!("--then takes `quantize`, not `{name}`"), "write --then quantize -o OUT"));
    }
    let recipe = args.output.as_ref().map(|output| ["--recipe".into(), output.as_os_str().to_owned()]);
    let adapters = args.adapters.lora.iter().flat_map(|adapter| ["--lora".into(), adapter.as_os_str().to_owned()]);
    // Without a recipe the library says what is missing.
    let recipe = recipe.unwrap_or_else(|| ["--scheme".into(), "keep".into()]);
    let line = ["quantize".into(), args.model.as_os_str().to_owned()];
    let line: Vec<OsString> = line.into_iter().chain(recipe).chain(adapters).chain(rest.iter().cloned()).collect();
    let cli = parse(&line).map_err(|error| {
        let mut error = usage_error(&error);
        error.message = format!("behind --then: {}", error.message);
        error
    })?;
    let GlobalArgs { json, wide, quiet, verbose, .. } = cli.global;
    let given = [(json, "--json"), (wide, "--wide"), (quiet, "--quiet"), (verbose, "--verbose")];
    if let Some((_, option)) = given.into_iter().find(|(given, _)| *given) {
        return Err(usage(&format!("{option} behind --then applies to nothing"), "write it in front of --then"));
    }
    match cli.command {
        Command::Quantize(quantize) if quantize.output.dry_run => {
            Err(usage("--dry-run has no meaning behind --then", "leave it out: a search writes a recipe to look at"))
        }
        Command::Quantize(quantize) => Ok(Some((*quantize).into())),
        other => Err(usage(&format!("`{}` does not read a recipe", other.name()), "write --then quantize -o OUT")),
    }
}

impl From<ConvertArgs> for Conversion {
    fn from(args: ConvertArgs) -> Conversion {
        let sinks = Sinks {
            output: args.output.output,
            max_shard_size: args.shards.max_shard_size,
            commit: commit(args.finish),
            settings: args.typed,
            ..Sinks::default()
        };
        Conversion {
            dtype: args.dtype,
            requantize: args.requantize,
            weights_only: args.weights_only,
            sinks,
            limits: Limits { threads: args.run.threads, engine: default_engine(), ..Limits::default() },
            ..Conversion::new(Source { model: args.model, adapters: args.adapters.lora }, args.to)
        }
    }
}

impl From<EvalArgs> for Evaluation {
    fn from(args: EvalArgs) -> Evaluation {
        // There is a model, and one of both files.
        let mut models = args.model.into_iter();
        let source = Source { model: models.next().unwrap_or_default(), adapters: args.adapters.lora };
        let choices = args.choices.is_some();
        let data = args.choices.or(args.data).unwrap_or_default();
        Evaluation {
            others: models.collect(),
            choices,
            column: args.column,
            reference: args.reference,
            tokenizer: args.tokenizer,
            seq_len: args.seq_len,
            stride: args.stride,
            precision: args.precision,
            labels: args.labels,
            num_samples: args.num_samples,
            page: args.page.report,
            preprocess: args.preprocess,
            time: args.time,
            limits: limits(&args.run, args.max_memory, args.engine),
            ..Evaluation::new(source, data)
        }
    }
}

impl From<GenerateArgs> for Generation {
    fn from(args: GenerateArgs) -> Generation {
        let texts = args.prompt.into_iter().map(Prompt::Text);
        let files = args.prompt_file.into_iter().map(Prompt::File);
        let SamplingArgs { temperature, top_k, top_p, seed } = args.sampling;
        Generation {
            prompts: texts.chain(files).collect(),
            max_new_tokens: args.max_new_tokens,
            sampling: Sampling { temperature, top_k, top_p, seed },
            stop: args.stop,
            chat: args.chat,
            reference: args.reference,
            tokenizer: args.tokenizer,
            precision: args.precision,
            page: args.page.report,
            limits: Limits { threads: args.run.threads, memory: args.max_memory, ..Limits::default() },
            ..Generation::new(Source { model: args.model, adapters: args.adapters.lora }, String::new())
        }
    }
}

impl From<GraphCommand> for Option<GraphEdit> {
    /// A graph that is only shown is not edited.
    fn from(command: GraphCommand) -> Option<GraphEdit> {
        let (files, tool) = match command {
            GraphCommand::Show(_) => return None,
            GraphCommand::Simplify(args) => {
                (args.files, GraphTool::Simplify { enable: args.enable_pass, disable: args.disable_pass })
            }
            GraphCommand::ConvertOpset(args) => (args.files, GraphTool::ConvertOpset { opset: args.opset }),
            GraphCommand::Extract(args) => {
                (args.files, GraphTool::Extract(Cut { inputs: args.inputs, outputs: args.outputs }))
            }
            GraphCommand::FixShapes(args) => {
                (args.files, GraphTool::FixShapes { shapes: args.input_shape, dims: args.dim })
            }
            GraphCommand::Dequantize(files) => (files, GraphTool::Dequantize),
            GraphCommand::ToQoperator(files) => (files, GraphTool::ToQOperator),
            GraphCommand::ToQdq(files) => (files, GraphTool::ToQdq),
            GraphCommand::Retype(args) => {
                (args.files, GraphTool::Retype(RetypeRequest { codes: args.to, bias: args.bias }))
            }
            GraphCommand::ClipInfinities(args) => (args.files, GraphTool::ClipInfinities { limit: args.limit }),
            GraphCommand::RenameDomain(args) => (args.files, GraphTool::RenameDomain(args.domain)),
            GraphCommand::ToFloat16(files) => (files, GraphTool::ToFloat16),
            GraphCommand::ToBfloat16(files) => (files, GraphTool::ToBfloat16),
        };
        let GraphFiles { model, output, replace: OverwriteArgs { overwrite } } = files;
        Some(GraphEdit { model, tool, output, overwrite })
    }
}

impl From<&VerifyArgs> for Verification {
    fn from(args: &VerifyArgs) -> Verification {
        Verification {
            model: args.model.clone(),
            loader: args.loader.clone(),
            tensor_parallel: args.tensor_parallel,
            quick: args.quick,
            fusions: args.fusions,
            engine: default_engine(),
        }
    }
}

fn of_towers(scheme: String) -> LayerTypeText {
    LayerTypeText { kind: LayerKind::Tower, scheme }
}

fn job(args: RecipeArgs, run: &RunArgs) -> Job {
    let max_memory = args.calibration.max_memory;
    let OnnxArgs { preprocess, min_sqnr, external_data, engine, .. } = args.onnx;
    let (page, report) = match args.page.report {
        Some(path) if PageFormat::of(&path).is_some() => (Some(path), None),
        // The object that programs read, of graphs.
        path => (None, path),
    };
    let mut limits = limits(run, max_memory, engine);
    limits.quality.min_sqnr = min_sqnr;
    // Other words than those of graphs are schemes.
    let kind_of_bias = args.onnx.bias.as_ref().and_then(|text| text.parse::<BiasKind>().ok());
    Job {
        source: Source { model: args.model, adapters: args.adapters.lora },
        recipe: Recipe {
            scheme: args.scheme,
            file: args.recipe,
            algorithm: args.algorithm,
            exclude: args.exclude,
            overrides: args.overrides,
            layer_types: args.layer_types.into_iter().chain(args.towers.map(of_towers)).collect(),
            components: args.components,
            pack_method: args.pack_method,
            weights_only: args.weights_only,
            quality: args.quality,
            scales: args.scales,
            kv_cache: args.kv_cache,
            kv_cache_post_rope: args.kv_cache_post_rope,
            min_kv_scale: args.min_kv_scale,
            attention: args.attention,
            no_keep_defaults: args.no_keep_defaults,
            requantize: args.requantize,
            imatrix: args.gguf.imatrix,
            statistics: args.statistics.map(GivenStatistics::of_file),
            bias: args.onnx.bias.filter(|_| kind_of_bias.is_none()),
            graph: GraphRecipe {
                activation: args.onnx.activation,
                weight: args.onnx.weight,
                symmetric: args.onnx.symmetric,
                per_channel: args.onnx.per_channel,
                per_channel_activations: args.onnx.per_channel_activations,
                equalize: args.onnx.equalize,
                reduce_range: args.onnx.reduce_range,
                calibration_method: args.onnx.calibration_method,
                weight_method: args.onnx.weight_method,
                percentile: args.onnx.percentile,
                ranges: args.onnx.ranges,
                bias: kind_of_bias,
                form: args.onnx.form,
                boundary: args.onnx.boundary,
                auto: false,
                op_types: args.onnx.op_types,
                more_op_types: args.onnx.more_op_types,
                exclude_op_types: args.onnx.exclude_op_types,
                nodes: args.onnx.nodes,
                exclude_subgraph: args.onnx.exclude_subgraph,
                enable_pass: args.onnx.enable_pass,
                disable_pass: args.onnx.disable_pass,
            },
        },
        data: data(args.calibration, preprocess),
        sinks: Sinks {
            output: None,
            formats: args.format,
            max_shard_size: args.shards.max_shard_size,
            commit: Commit::default(),
            save_imatrix: args.gguf.save_imatrix,
            graph_formats: args.onnx.layout,
            save_ranges: args.onnx.save_ranges,
            ranges_format: args.onnx.ranges_format,
            report,
            page,
            no_model_card: false,
            external_data,
            settings: args.typed,
        },
        limits,
        sharing: Sharing::Alone,
    }
}

fn data(args: CalibrationArgs, preprocess: Option<String>) -> Data {
    let files: Vec<SharedFile> = args.calib.iter().flat_map(|text| SharedFile::list(text.as_os_str())).collect();
    Data {
        shares: files.iter().filter_map(|file| file.share).collect(),
        files: files.into_iter().map(|file| file.path).collect(),
        num_samples: args.num_samples,
        seq_len: args.seq_len,
        packing: args.packing,
        column: args.column,
        shuffle: args.shuffle,
        seed: args.seed,
        precision: args.precision,
        propagate: args.propagate,
        preprocess,
    }
}

fn limits(run: &RunArgs, memory: ByteSize, engine: EngineArgs) -> Limits {
    let engine = GraphEngine { choice: engine.runtime, library: engine.runtime_library, ..default_engine() };
    Limits { threads: run.threads, memory, engine, ..Limits::default() }
}

/// Graphs are opened by another process of this program.
fn default_engine() -> GraphEngine {
    let program = || std::env::current_exe().ok().map(OsString::from).into_iter().collect();
    GraphEngine { prober: PROGRAM.get_or_init(program).clone(), ..GraphEngine::default() }
}

fn commit(args: FinishArgs) -> Commit {
    let FinishArgs { replace: OverwriteArgs { overwrite }, restart, sync, no_verify } = args;
    Commit { overwrite, restart, sync, no_verify }
}
