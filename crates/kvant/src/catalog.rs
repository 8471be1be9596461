//! Everything that can be chosen: schemes, formats, algorithms, families and the rest, as tables.

use crate::pipeline::quantize::LOADER as PIPELINE_LOADER;
use crate::text;
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_formats::algorithm::{Algorithm, AlgorithmRow};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::verify::{CHECKS, Check, GGUF_CHECKS, GgufCheck, Loader, Reads};
use kvant_gguf::ftype::IMATRIX;
use kvant_gguf::ftype::{FTYPES, FtypeRow};
use kvant_gguf::model::architecture::Architecture;
use kvant_model::family;
use kvant_numeric::format::{DTYPES, DTypeRow};
use kvant_onnx::algorithm::{Stage, algorithms as graph_algorithms};
use kvant_quant::observer::{ObserverRow, observers as all_observers};
use kvant_quant::scheme::{EVALUATION_ONLY, PRESETS, Preset, is_for_evaluation_only};
use serde_json::{Map, Value, json};

/// A table. Cells are JSON values: strings, numbers, booleans, or arrays of strings.
#[derive(Clone, Debug)]
pub struct Table {
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, with a cell for each column.
    pub rows: Vec<Vec<Value>>,
}

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// Whether its cells are numbers.
    pub is_number: bool,
}

/// A table that can be listed.
#[derive(Clone, Copy, Debug)]
pub struct Topic {
    /// Its name.
    pub name: &'static str,
    /// Its entries.
    pub about: &'static str,
    list: fn() -> Table,
}

impl Topic {
    /// The table.
    pub fn table(self) -> Table {
        (self.list)()
    }
}

impl Table {
    /// The table in words.
    pub fn text(&self) -> text::Table {
        let align = |is_number: bool| if is_number { text::Align::Right } else { text::Align::Left };
        let columns: Vec<_> = self.columns.iter().map(|column| (column.name, align(column.is_number))).collect();
        let mut table = text::Table::new(&columns);
        self.rows.iter().for_each(|row| table.push(row.iter().map(words)));
        table
    }

    /// The rows as objects.
    pub fn objects(&self) -> Value {
        let object = |row: &Vec<Value>| -> Map<String, Value> {
            self.columns.iter().zip(row).map(|(column, value)| (column.name.to_owned(), value.clone())).collect()
        };
        self.rows.iter().map(object).collect()
    }
}

/// A cell in words.
pub fn words(cell: &Value) -> String {
    match cell {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(words).collect::<Vec<_>>().join(", "),
        Value::Bool(yes) => (if *yes { "yes" } else { "no" }).to_owned(),
        other => other.to_string(),
    }
}

const fn text(name: &'static str) -> Column {
    Column { name, is_number: false }
}

const fn number(name: &'static str) -> Column {
    Column { name, is_number: true }
}

const fn topic(name: &'static str, about: &'static str, list: fn() -> Table) -> Topic {
    Topic { name, about, list }
}

/// All tables.
pub const TOPICS: &[Topic] = &[
    topic("schemes", "Schemes with names, for ‹scheme› and ‹override›", schemes),
    topic("dtypes", "Number formats, the first part of a scheme's spelling", dtypes),
    topic("formats", "Checkpoint formats and other outputs, for ‹format›", formats),
    topic("observers", "How ranges are found, in schemes and for graphs", observers),
    topic("algorithms", "Algorithms that make quantized weights better, for ‹algorithm›", algorithms),
    topic("algorithm-options", "The options of algorithms, with their defaults", algorithm_options),
    topic("families", "Supported model architectures", families),
    topic("presets", "Recipes for ONNX graphs, for ‹preset›", presets),
    topic("passes", "Rewrites of ONNX graphs, for ‹enable-pass› and ‹disable-pass›", passes),
    topic("elements", "Element types of ONNX graphs, for ‹activation› and ‹weight›", elements),
    topic(
        "range-formats",
        "Files with ranges of ONNX graphs' tensors, for ‹ranges› and ‹ranges-format›",
        range_formats,
    ),
    topic("checks", "The checks of `kvant verify`", checks),
    topic("loaders", "Loaders that `kvant verify` knows, and the versions that its rules were read from", loaders),
    topic("loader-rules", "What each loader reads and refuses, by format", loader_rules),
];

fn presets() -> Table {
    let columns = vec![text("name"), text("aliases"), text("calibrated"), text("about")];
    let row = |preset: &kvant_onnx::preset::Preset| {
        let calibrated = preset.recipe().needs_data();
        vec![json!(preset.name), json!(preset.aliases), json!(calibrated), json!(preset.about)]
    };
    Table { columns, rows: kvant_onnx::preset::PRESETS.iter().map(row).collect() }
}

fn passes() -> Table {
    let columns = vec![text("name"), text("default"), text("about")];
    let row = |pass: &kvant_onnx::pass::Pass| vec![json!(pass.name), json!(pass.default), json!(pass.about)];
    Table { columns, rows: kvant_onnx::pass::ALL.iter().map(row).collect() }
}

fn elements() -> Table {
    let columns = vec![text("name"), number("bits"), text("stored as")];
    let row = |row: &kvant_onnx::element::Row| {
        let stored = row.data_type.map_or_else(|| "floats".to_owned(), kvant_container::onnx::data_type_name);
        let bits = row.element.integer_bits().map_or_else(|| json!(""), |bits| json!(bits));
        vec![json!(row.name), bits, json!(stored)]
    };
    Table { columns, rows: kvant_onnx::element::ELEMENTS.iter().map(row).collect() }
}

fn range_formats() -> Table {
    let columns = vec![text("name"), text("endings"), text("weights"), text("about")];
    let row = |format: &kvant_onnx::ranges::RangesFormat| {
        let endings: Vec<String> = format.endings.iter().map(|ending| format!(".{ending}")).collect();
        vec![json!(format.name), json!(endings), json!(format.has_constants), json!(format.about)]
    };
    Table { columns, rows: kvant_onnx::ranges::FORMATS.iter().map(row).collect() }
}

fn checks() -> Table {
    let columns = vec![text("name"), text("subject"), text("reads"), text("about")];
    let row =
        |check: &Check| vec![json!(check.id), json!(check.subject), json!(check.reads.name()), json!(check.about)];
    let file_row =
        |check: &GgufCheck| vec![json!(check.id), json!("GGUF file"), json!(check.reads.name()), json!(check.about)];
    // Graphs are read whole.
    let graph_row = |check: &kvant_onnx::verify::Check| {
        vec![json!(check.id), json!("ONNX graph"), json!(Reads::Weights.name()), json!(check.about)]
    };
    let graphs = kvant_onnx::verify::CHECKS.iter().map(graph_row);
    Table { columns, rows: CHECKS.iter().map(row).chain(GGUF_CHECKS.iter().map(file_row)).chain(graphs).collect() }
}

fn loaders() -> Table {
    let columns = vec![text("name"), text("loader"), text("version"), text("layouts"), text("source")];
    let row = |loader: &Loader| {
        let layouts: Vec<&str> = loader.layout.iter().map(|layout| layout.method.as_str()).collect();
        [json!(loader.id), json!(loader.name), json!(loader.version), json!(layouts), json!(loader.source)].to_vec()
    };
    Table { columns, rows: kvant_formats::verify::loaders().iter().map(row).collect() }
}

fn loader_rules() -> Table {
    let columns = vec![text("name"), text("format"), text("needs"), text("schemes"), text("refuses")];
    let rows = kvant_formats::verify::loaders().iter().flat_map(|loader| {
        loader.layout.iter().map(|layout| {
            let schemes = layout.knows.as_deref().unwrap_or("all of the format");
            let refuses = loader.refusals(layout);
            vec![
                json!(loader.id),
                json!(layout.method),
                json!(layout.needs.as_deref().unwrap_or_default()),
                json!(schemes),
                json!(refuses),
            ]
        })
    });
    Table { columns, rows: rows.collect() }
}

fn schemes() -> Table {
    let columns = vec![text("name"), text("spelling"), text("format"), text("calibrated"), text("about")];
    let mixes = FTYPES.iter().map(mix_row);
    Table { columns, rows: PRESETS.iter().map(scheme_row).chain(mixes).collect() }
}

/// The schemes that a loader reads in their default format, for dense language models; for diffusers those of components in torchao's
/// format, which pipelines get; for ONNX Runtime the presets of graphs.
/// `loader` is its id.
pub fn schemes_for(loader: &str) -> Table {
    let known = kvant_formats::verify::loaders().iter().find(|known| known.id == loader);
    let names = |name: &&str| {
        known.is_some_and(|known| **name == *known.name || name.starts_with(&format!("{} with", known.name)))
    };
    let of_one_format = OF_ONE_FORMAT.iter().find(|(known, _)| *known == loader);
    let takes = |preset: &Preset| {
        if let Some((_, format)) = of_one_format {
            return preset.scheme().is_ok_and(|scheme| OutputFormat::Checkpoint(*format).holds(scheme));
        }
        let settings = Settings { scheme: Some(preset.name.to_owned()), ..Settings::default() };
        let recipe = Recipe::resolve(&settings, &Settings::default());
        let loaders = recipe.ok().zip(preset.scheme().ok()).map(|(recipe, scheme)| recipe.format().loaders_of(scheme));
        loaders.is_some_and(|loaders| loaders.iter().any(names))
    };
    let ftypes = FTYPES.iter().filter(|_| OutputFormat::Gguf.loaders().iter().any(names));
    let of_graphs = kvant_onnx::preset::PRESETS.iter().filter(|_| loader == GRAPH_LOADER).map(graph_scheme_row);
    let mut table = schemes();
    let of_checkpoints = PRESETS.iter().filter(|preset| takes(preset)).map(scheme_row).chain(ftypes.map(mix_row));
    table.rows = of_checkpoints.chain(of_graphs).collect();
    table
}

/// The loaders whose formats no scheme has by default, and the format that decides.
const OF_ONE_FORMAT: [(&str, FormatHandle); 3] =
    [(PIPELINE_LOADER, FormatHandle::TORCHAO), ("comfyui", FormatHandle::COMFYUI), ("mlx-lm", FormatHandle::MLX)];

/// The loader of graphs, whose schemes are presets.
const GRAPH_LOADER: &str = "onnxruntime";

fn graph_scheme_row(preset: &kvant_onnx::preset::Preset) -> Vec<Value> {
    vec![json!(preset.name), json!(""), json!("onnx"), json!(preset.recipe().needs_data()), json!(preset.about)]
}

/// A scheme of GGUF, which has no spelling but its name.
fn mix_row(row: &FtypeRow) -> Vec<Value> {
    vec![json!(row.name), json!(""), json!(OutputFormat::Gguf.name()), json!(false), json!(row.about)]
}

fn scheme_row(preset: &Preset) -> Vec<Value> {
    let settings = Settings { scheme: Some(preset.name.to_owned()), ..Settings::default() };
    let format = Recipe::resolve(&settings, &Settings::default()).map(|recipe| recipe.format().to_string());
    let needs_data = preset.scheme().is_ok_and(|scheme| scheme.needs_calibration());
    let format = json!(format.unwrap_or_default());
    let is_evaluated = preset.scheme().is_ok_and(|scheme| scheme.weight.is_for_evaluation_only());
    let about = about(preset.about, is_evaluated);
    vec![json!(preset.name), json!(preset.spelling), format, json!(needs_data), json!(about)]
}

/// A description with the remark that no loader supports the scheme.
fn about(text: &str, is_for_evaluation_only: bool) -> String {
    if is_for_evaluation_only { format!("{text}; {EVALUATION_ONLY}; use ‹format› fake") } else { text.to_owned() }
}

fn dtypes() -> Table {
    let of_row = |row: &DTypeRow| about(row.about, is_for_evaluation_only(row.dtype));
    let rows = DTYPES.iter().map(|row| vec![json!(row.name), json!(row.dtype.bits()), json!(of_row(row))]);
    Table { columns: vec![text("name"), number("bits"), text("about")], rows: rows.collect() }
}

fn formats() -> Table {
    let rows =
        OutputFormat::all().map(|format| vec![json!(format.name()), json!(format.about()), json!(format.loaders())]);
    let about = "an ONNX graph of the decoder with its cache: MatMulNBits, or DequantizeLinear";
    let graph = vec![json!("onnx"), json!(about), json!(["onnxruntime"])];
    let columns = vec![text("name"), text("about"), text("loaders")];
    Table { columns, rows: rows.chain([graph]).collect() }
}

fn families() -> Table {
    let columns = vec![text("name"), text("model_types"), text("gguf"), text("about")];
    let rows = family::all().into_iter().map(|family| {
        let has_gguf = Architecture::is_known(family.name);
        vec![json!(family.name), json!(family.model_types), json!(has_gguf), json!(family.summary)]
    });
    Table { columns, rows: rows.collect() }
}

fn algorithms() -> Table {
    let columns = vec![
        text("name"),
        text("models"),
        text("kind"),
        text("paper"),
        text("needs"),
        text("cost"),
        text("options"),
        text("about"),
    ];
    let graphs = graph_algorithms();
    let of_graphs = graphs.iter().map(|row| graph_algorithm_row(row));
    let of_checkpoints = Algorithm::table().into_iter().map(|row| algorithm_row(&row));
    Table { columns, rows: of_checkpoints.chain([importance_row()]).chain(of_graphs).collect() }
}

/// The counterpart of rounding algorithms for GGUF files.
fn importance_row() -> Vec<Value> {
    let about = "errors of GGUF's own types weigh as much as the mean square of the input they meet";
    [
        json!(IMATRIX),
        json!("gguf"),
        json!("weighing"),
        json!(""),
        json!("mean squares of inputs"),
        json!("a run of the float model"),
        json!([]),
        json!(about),
    ]
    .to_vec()
}

fn algorithm_row(row: &AlgorithmRow) -> Vec<Value> {
    let kind = match row.algorithm {
        Algorithm::Rotation(_) => "rotation",
        Algorithm::Transform(_) => "transform",
        Algorithm::Rounding(_) => "rounding",
        Algorithm::Tuning(_) => "tuning",
        Algorithm::Correction(_) => "correction",
    };
    let options = row.options.iter().map(|(option, value)| json!(format!("{}={value}", option.name)));
    let options: Vec<Value> = options.collect();
    let paper = row.paper.clone().unwrap_or_default();
    let (needs, cost) = (row.algorithm.needs(), row.algorithm.cost());
    [
        json!(row.name),
        json!("checkpoint"),
        json!(kind),
        json!(paper),
        json!(needs),
        json!(cost),
        json!(options),
        json!(row.about),
    ]
    .to_vec()
}

fn graph_algorithm_row(row: &kvant_onnx::algorithm::AlgorithmRow) -> Vec<Value> {
    let kind = match row.default.stage() {
        Stage::Float => "transform",
        Stage::Rounding => "rounding",
        Stage::Tuning => "tuning",
        Stage::Correction => "correction",
    };
    let settings = row.default.settings();
    let options: Vec<Value> = settings.iter().map(|(name, value)| json!(format!("{name}={value}"))).collect();
    let (needs, cost) = (row.default.needs(), row.default.cost());
    let paper = row.paper.as_deref().unwrap_or_default();
    let cells = [json!(row.name), json!("onnx"), json!(kind), json!(paper), json!(needs), json!(cost)];
    cells.into_iter().chain([json!(options), json!(row.about)]).collect()
}

/// One row for each option of each algorithm, spelled so that it can be copied.
fn algorithm_options() -> Table {
    let columns = vec![text("name"), text("models"), text("values"), text("about")];
    let row = |algorithm: AlgorithmRow| {
        let name = algorithm.name;
        algorithm.options.into_iter().map(move |(option, value)| {
            let spelling = format!("{name}:{}={value}", option.name);
            vec![json!(spelling), json!("checkpoint"), json!(option.values.text), json!(option.about)]
        })
    };
    let of_graph = |row: std::sync::Arc<kvant_onnx::algorithm::AlgorithmRow>| {
        let settings = row.default.settings();
        let value = move |name: &str| settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let cells = row.options.iter().map(|option| {
            let spelling = format!("{}:{}={}", row.name, option.name, value(option.name).unwrap_or_default());
            vec![json!(spelling), json!("onnx"), json!(option.values.text), json!(option.about)]
        });
        cells.collect::<Vec<_>>()
    };
    let of_checkpoints = Algorithm::table().into_iter().flat_map(row);
    Table { columns, rows: of_checkpoints.chain(graph_algorithms().into_iter().flat_map(of_graph)).collect() }
}

fn observers() -> Table {
    let row = |row: &ObserverRow| vec![json!(row.example), json!(row.aliases), json!(row.about)];
    Table {
        columns: vec![text("name"), text("aliases"), text("about")],
        rows: all_observers().iter().map(row).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_schemes_are_those_the_loader_reads() {
        let names = |loader: &str| -> Vec<String> {
            let rows = schemes_for(loader).rows;
            rows.iter().filter_map(|row| row[0].as_str().map(str::to_owned)).collect()
        };
        let has = |loader: &str, scheme: &str| names(loader).iter().any(|name| name == scheme);
        assert!(has("vllm", "int4_wo_128") && !has("sglang", "int4_wo_128"));
        assert!(has("sglang", "FP8_DYNAMIC") && !has("sglang", "MXFP4A16") && !has("vllm", "Q4_K_M"));
        assert!(has("transformers", "W4A16") && has("amd-quark", "mxfp4"));
        assert!(has("llama.cpp", "Q4_K_M") && !has("llama.cpp", "W4A16"));
        assert!(has("diffusers", "W8A8") && !has("diffusers", "W4A16"));
        assert!(has("onnxruntime", "U8S8_AAWS") && !has("onnxruntime", "W4A16"));
        for loader in kvant_formats::verify::loaders() {
            assert!(!names(&loader.id).is_empty(), "{}", loader.id);
        }
    }

    #[test]
    fn catalog_rows_fill_their_columns() {
        for topic in TOPICS {
            let table = topic.table();
            let is_full = table.rows.iter().all(|row| row.len() == table.columns.len());
            assert!(!table.rows.is_empty() && is_full, "{topic:?}");
        }
    }
}
