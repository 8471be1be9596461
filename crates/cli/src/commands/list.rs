//! `kvant list`: the tables of the libraries, for people and as JSON.

use crate::args::{ListArgs, Topic};
use crate::failure::Failure;
use crate::printer::Printer;
use crate::table::{Align, Table};
use clap::ValueEnum;
use kvant_llm::export::{EXPORTS, Export};
use kvant_llm::family::FAMILIES;
use kvant_llm::gguf::recipe::IMATRIX;
use kvant_llm::gguf::{MIXES, MixRow};
use kvant_llm::recipe::{Algorithm, AlgorithmRow, Recipe, Settings};
use kvant_llm::verify::{CHECKS, Check, GGUF_CHECKS, GgufCheck, Loader, Reads};
use kvant_numeric::format::{FORMATS, FormatRow};
use kvant_onnx::algorithm::{ALGORITHMS, Stage};
use kvant_quant::observer::OBSERVERS;
use kvant_quant::scheme::{EVALUATION_ONLY, PRESETS, Preset, is_for_evaluation_only};
use serde_json::{Map, Value, json};

/// Prints a table.
///
/// # Errors
/// When stdout cannot be written.
pub fn run(args: &ListArgs, printer: &Printer) -> Result<(), Failure> {
    let list = list(args.topic);
    let topic = args.topic.to_possible_value();
    let topic = topic.as_ref().map_or("", |topic| topic.get_name());
    let object = json!({ "topic": topic, "rows": list.objects() });
    if printer.is_json() { printer.json("list", &object) } else { printer.data(&list.table().render(printer.width())) }
}

/// A table whose cells are JSON values: strings, numbers, or arrays of strings.
struct List {
    columns: &'static [(&'static str, Align)],
    rows: Vec<Vec<Value>>,
}

impl List {
    fn objects(&self) -> Value {
        let object = |row: &Vec<Value>| -> Map<String, Value> {
            self.columns.iter().zip(row).map(|((name, _), value)| ((*name).to_owned(), value.clone())).collect()
        };
        self.rows.iter().map(object).collect()
    }

    fn table(&self) -> Table {
        let mut table = Table::new(self.columns);
        self.rows.iter().for_each(|row| table.push(row.iter().map(text)));
        table
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(text).collect::<Vec<_>>().join(", "),
        Value::Bool(yes) => (if *yes { "yes" } else { "no" }).to_owned(),
        other => other.to_string(),
    }
}

const NAME_ABOUT: &[(&str, Align)] = &[("name", Align::Left), ("about", Align::Left)];

fn list(topic: Topic) -> List {
    match topic {
        Topic::Schemes => schemes(),
        Topic::Formats => formats(),
        Topic::Exports => exports(),
        Topic::Observers => pairs(OBSERVERS),
        Topic::Algorithms => algorithms(),
        Topic::AlgorithmOptions => algorithm_options(),
        Topic::Families => families(),
        Topic::Presets => onnx_presets(),
        Topic::Passes => passes(),
        Topic::Elements => elements(),
        Topic::CalibrationMethods => calibration_methods(),
        Topic::Checks => checks(),
        Topic::Loaders => loaders(),
    }
}

fn onnx_presets() -> List {
    let columns =
        &[("name", Align::Left), ("aliases", Align::Left), ("calibrated", Align::Left), ("about", Align::Left)];
    let row = |preset: &kvant_onnx::preset::Preset| {
        let calibrated = preset.recipe().needs_data();
        vec![json!(preset.name), json!(preset.aliases), json!(calibrated), json!(preset.about)]
    };
    List { columns, rows: kvant_onnx::preset::PRESETS.iter().map(row).collect() }
}

fn passes() -> List {
    let columns = &[("name", Align::Left), ("default", Align::Left), ("about", Align::Left)];
    let row = |pass: &kvant_onnx::pass::Pass| vec![json!(pass.name), json!(pass.default), json!(pass.about)];
    List { columns, rows: kvant_onnx::pass::ALL.iter().map(row).collect() }
}

fn elements() -> List {
    let columns = &[("name", Align::Left), ("bits", Align::Right), ("stored as", Align::Left)];
    let row = |row: &kvant_onnx::element::Row| {
        let stored = row.data_type.map_or_else(|| "floats".to_owned(), kvant_container::onnx::data_type_name);
        let bits = row.element.integer_bits().map_or_else(|| json!(""), |bits| json!(bits));
        vec![json!(row.name), bits, json!(stored)]
    };
    List { columns, rows: kvant_onnx::element::ELEMENTS.iter().map(row).collect() }
}

fn calibration_methods() -> List {
    let columns = &[("name", Align::Left), ("aliases", Align::Left), ("about", Align::Left)];
    let row = |row: &kvant_onnx::calibration::MethodRow| vec![json!(row.name), json!(row.aliases), json!(row.about)];
    List { columns, rows: kvant_onnx::calibration::METHODS.iter().map(row).collect() }
}

fn checks() -> List {
    let columns = &[("name", Align::Left), ("subject", Align::Left), ("reads", Align::Left), ("about", Align::Left)];
    let row =
        |check: &Check| vec![json!(check.id), json!(check.subject), json!(check.reads.name()), json!(check.about)];
    let file_row =
        |check: &GgufCheck| vec![json!(check.id), json!("GGUF file"), json!(check.reads.name()), json!(check.about)];
    // Graphs are read whole.
    let graph_row = |check: &kvant_onnx::verify::Check| {
        vec![json!(check.id), json!("ONNX graph"), json!(Reads::Weights.name()), json!(check.about)]
    };
    let graphs = kvant_onnx::verify::CHECKS.iter().map(graph_row);
    List { columns, rows: CHECKS.iter().map(row).chain(GGUF_CHECKS.iter().map(file_row)).chain(graphs).collect() }
}

fn loaders() -> List {
    let columns = &[
        ("name", Align::Left),
        ("loader", Align::Left),
        ("version", Align::Left),
        ("layouts", Align::Left),
        ("source", Align::Left),
    ];
    let row = |loader: &Loader| {
        let layouts: Vec<&str> = loader.layout.iter().map(|layout| layout.method.as_str()).collect();
        [json!(loader.id), json!(loader.name), json!(loader.version), json!(layouts), json!(loader.source)].to_vec()
    };
    List { columns, rows: kvant_llm::verify::loaders().iter().map(row).collect() }
}

fn schemes() -> List {
    let columns = &[
        ("name", Align::Left),
        ("spelling", Align::Left),
        ("export", Align::Left),
        ("calibrated", Align::Left),
        ("about", Align::Left),
    ];
    let mixes = MIXES.iter().map(mix_row);
    List { columns, rows: PRESETS.iter().map(scheme_row).chain(mixes).collect() }
}

/// A scheme of GGUF, which has no spelling but its name.
fn mix_row(row: &MixRow) -> Vec<Value> {
    vec![json!(row.name), json!(""), json!(Export::Gguf.row().name), json!(false), json!(row.about)]
}

fn scheme_row(preset: &Preset) -> Vec<Value> {
    let settings = Settings { scheme: Some(preset.name.to_owned()), ..Settings::default() };
    let export = Recipe::resolve(&settings, &Settings::default()).map(|recipe| recipe.export().to_string());
    let needs_data = preset.scheme().is_ok_and(|scheme| scheme.needs_calibration());
    let export = json!(export.unwrap_or_default());
    let is_evaluated = preset.scheme().is_ok_and(|scheme| scheme.weight.is_for_evaluation_only());
    let about = about(preset.about, is_evaluated);
    vec![json!(preset.name), json!(preset.spelling), export, json!(needs_data), json!(about)]
}

/// A description, and that no loader supports what it describes.
fn about(text: &str, is_for_evaluation_only: bool) -> String {
    if is_for_evaluation_only { format!("{text}; {EVALUATION_ONLY}") } else { text.to_owned() }
}

fn formats() -> List {
    let of_row = |row: &FormatRow| about(row.about, is_for_evaluation_only(row.format));
    let rows = FORMATS.iter().map(|row| vec![json!(row.name), json!(row.format.bits()), json!(of_row(row))]);
    List { columns: &[("name", Align::Left), ("bits", Align::Right), ("about", Align::Left)], rows: rows.collect() }
}

fn exports() -> List {
    let rows = EXPORTS.iter().map(|row| vec![json!(row.name), json!(row.about), json!(row.export.loaders())]);
    let about = "an ONNX graph of the decoder with its cache: MatMulNBits, or DequantizeLinear";
    let graph = vec![json!("onnx"), json!(about), json!(["onnxruntime"])];
    let columns = &[("name", Align::Left), ("about", Align::Left), ("loaders", Align::Left)];
    List { columns, rows: rows.chain([graph]).collect() }
}

fn families() -> List {
    let columns = &[("name", Align::Left), ("model_types", Align::Left), ("about", Align::Left)];
    let rows = FAMILIES.iter().map(|family| vec![json!(family.name), json!(family.model_types), json!(family.summary)]);
    List { columns, rows: rows.collect() }
}

fn algorithms() -> List {
    let columns = &[
        ("name", Align::Left),
        ("models", Align::Left),
        ("kind", Align::Left),
        ("paper", Align::Left),
        ("needs", Align::Left),
        ("cost", Align::Left),
        ("options", Align::Left),
        ("about", Align::Left),
    ];
    let of_graphs = ALGORITHMS.iter().map(graph_algorithm_row);
    let of_checkpoints = Algorithm::table().map(|row| algorithm_row(&row));
    List { columns, rows: of_checkpoints.chain([importance_row()]).chain(of_graphs).collect() }
}

/// What GGUF files have in place of algorithms that choose codes.
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
    let kind = if matches!(row.algorithm, Algorithm::Transform(_)) { "transform" } else { "rounding" };
    let options = row.algorithm.options().map(|(option, value)| json!(format!("{}={value}", option.name)));
    let options: Vec<Value> = options.collect();
    let paper = row.paper.unwrap_or_default();
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
    let kind = match row.stage {
        Stage::Float => "transform",
        Stage::Rounding => "rounding",
        Stage::Correction => "correction",
    };
    let value = |option: &kvant_onnx::algorithm::AlgorithmOption| (option.get)(&row.usual).unwrap_or_default();
    let options: Vec<Value> = row.options.iter().map(|o| json!(format!("{}={}", o.name, value(o)))).collect();
    let (needs, cost) = (row.needs(), row.cost);
    let cells = [json!(row.name), json!("onnx"), json!(kind), json!(row.paper), json!(needs), json!(cost)];
    cells.into_iter().chain([json!(options), json!(row.about)]).collect()
}

/// One row for each option of each algorithm, spelled so that it can be copied.
fn algorithm_options() -> List {
    let columns = &[("name", Align::Left), ("models", Align::Left), ("values", Align::Left), ("about", Align::Left)];
    let row = |algorithm: AlgorithmRow| {
        let options = algorithm.algorithm.options();
        options.map(move |(option, value)| {
            let spelling = format!("{}:{}={value}", algorithm.name, option.name);
            vec![json!(spelling), json!("checkpoint"), json!(option.values), json!(option.about)]
        })
    };
    let of_graph = |row: &'static kvant_onnx::algorithm::AlgorithmRow| {
        row.options.iter().map(|option| {
            let spelling = format!("{}:{}={}", row.name, option.name, (option.get)(&row.usual).unwrap_or_default());
            vec![json!(spelling), json!("onnx"), json!(option.values), json!(option.about)]
        })
    };
    List { columns, rows: Algorithm::table().flat_map(row).chain(ALGORITHMS.iter().flat_map(of_graph)).collect() }
}

fn pairs(rows: &[(&str, &str)]) -> List {
    List { columns: NAME_ABOUT, rows: rows.iter().map(|(name, about)| vec![json!(name), json!(about)]).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_fill_their_columns() {
        for topic in Topic::value_variants() {
            let list = list(*topic);
            assert!(!list.rows.is_empty() && list.rows.iter().all(|row| row.len() == list.columns.len()), "{topic:?}");
        }
    }
}
