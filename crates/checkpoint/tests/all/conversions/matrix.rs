//! The matrix.

use super::sources::{SOURCES, Source, convert, open, targets, write_file};
use kvant_checkpoint::conversion::measure;
use kvant_checkpoint::gguf::{self, Accepted, GgufPlan};
use kvant_checkpoint::plan::PlanError;
use kvant_container::Checkpoint;
use kvant_formats::import;
use kvant_formats::transcode::ConversionTarget;
use kvant_gguf::model::GgufPlanError;
use kvant_numeric::simd::Isa;
use kvant_weights::weight::Band;
use kvant_weights::weight::Stored;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::path::{Path, PathBuf};

const FAMILIES: [&str; 5] = ["nano_llama", "nano_qwen3", "nano_mixtral", "nano_opt", "nano_gemma2"];

/// The result of converting a source to a target.
#[derive(Clone, Debug, PartialEq)]
enum Cell {
    Exact,
    /// The largest relative error of a layer, with `--requantize`; refused without. The least of all models, and the most.
    Loses(f64, f64),
    /// Exact for some models, and the error of the others.
    Varies(f64),
    /// Refused in any case.
    Refused,
}

#[test]
fn conversion_matrix_matches_its_documentation() {
    let mut all: HashMap<(&str, String), Cell> = HashMap::new();
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let models: Vec<PathBuf> = FAMILIES.iter().filter_map(|name| find(name)).collect();
    assert!(!models.is_empty());
    for model in &models {
        for source in SOURCES {
            for (target, (cell, reason)) in row(model, source) {
                if let Some(reason) = reason {
                    let pairs = reasons.entry(reason).or_default();
                    let pair = format!("{} to {target}", source.name);
                    if !pairs.contains(&pair) {
                        pairs.push(pair);
                    }
                }
                let key = (source.name, target);
                let joined = match all.remove(&key) {
                    Some(known) => join(known, cell, &key),
                    None => cell,
                };
                all.insert(key, joined);
            }
        }
    }
    let text = table(&all) + &list(&reasons);
    check_docs(&text, models.len() == FAMILIES.len());
    assert_eq!(all[&("awq, 4 bits", "gptq_v2".to_owned())], Cell::Exact);
    assert_eq!(all[&("gptq, activation order", "compressed-tensors".to_owned())], Cell::Exact);
    assert!(matches!(all[&("gptq, activation order", "awq".to_owned())], Cell::Loses(..)));
    assert_eq!(all[&("gptq, 4 bits", "gguf".to_owned())], Cell::Exact);
    assert_eq!(all[&("gguf Q4_0", "gptq".to_owned())], Cell::Exact);
    for source in SOURCES.iter().filter(|source| source.name.starts_with("gguf")) {
        let found = all.get(&(source.name, GGUF.to_owned()));
        assert!(found.is_none_or(|cell| *cell == Cell::Exact), "{}: {found:?}", source.name);
    }
    assert_eq!(all[&("gguf NVFP4 of quark", "quark".to_owned())], Cell::Exact);
}

fn find(name: &str) -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let shared = std::env::var_os("KVANT_MODELS").map(PathBuf::from);
    let places = [Some(root.join("tests/models")), shared, Some(root.join("../shared/models"))];
    places.into_iter().flatten().map(|place| place.join(name)).find(|dir| dir.join("config.json").exists())
}

/// Families may differ in how much is lost, in nothing else.
fn join(a: Cell, b: Cell, key: &(&str, String)) -> Cell {
    match (a, b) {
        (Cell::Loses(least, most), Cell::Loses(a, b)) => Cell::Loses(least.min(a), most.max(b)),
        (a, b) if a == b => a,
        // Whether a scale is exact in another type depends on the model, and whether a graph reads it on the family.
        (Cell::Exact, Cell::Loses(_, a) | Cell::Varies(a)) | (Cell::Loses(_, a) | Cell::Varies(a), Cell::Exact) => {
            Cell::Varies(a)
        }
        (Cell::Varies(a), Cell::Loses(_, b)) | (Cell::Loses(_, a), Cell::Varies(b)) => Cell::Varies(a.max(b)),
        (a, b) => panic!("{key:?}: {a:?} and {b:?}"),
    }
}

/// A source's cells, with the reason where the target does not hold it.
fn row(model: &Path, source: &Source) -> Vec<(String, (Cell, Option<String>))> {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("source");
    if !source.make(model, &from) {
        return Vec::new();
    }
    let file = file_cell(&from, dir.path()).map(|cell| (GGUF.to_owned(), cell));
    let cells = targets().into_iter().map(|target| (target.to_string(), cell(&from, dir.path(), target)));
    cells.chain(file).collect()
}

/// The name of the target that is a file.
const GGUF: &str = "gguf";

/// What becomes of a source in a GGUF file; `None` of families that it does not hold.
fn file_cell(from: &Path, dir: &Path) -> Option<(Cell, Option<String>)> {
    let source = open(from);
    let error_of = |requantize: bool| {
        let plan = GgufPlan::convert(&source, Accepted::requantizing(requantize), "out.gguf")?;
        let out = dir.join(if requantize { "lossy.gguf" } else { "out.gguf" });
        write_file(&plan, &source, from, &out);
        let errors = gguf::measure(&plan, &source, &out).unwrap();
        assert!(!errors.is_empty());
        Ok(errors.iter().map(|error| error.relative).fold(0.0, f64::max))
    };
    match error_of(false) {
        Ok(error) => {
            assert_eq!(error, 0.0);
            Some((Cell::Exact, None))
        }
        Err(GgufPlanError::Family { .. }) => None,
        Err(GgufPlanError::Conversion { reason, .. }) => match error_of(true) {
            Ok(error) => Some((Cell::Loses(error, error), Some(reason))),
            Err(GgufPlanError::Conversion { .. }) => Some((Cell::Refused, Some(reason))),
            Err(other) => panic!("{other}"),
        },
        Err(other) => panic!("{other}"),
    }
}

fn cell(from: &Path, dir: &Path, target: ConversionTarget) -> (Cell, Option<String>) {
    let out = dir.join(target.to_string());
    match convert(from, &out, target, false, 2) {
        Ok(plan) => {
            let (source, made) = (open(from), Checkpoint::open(&out).unwrap());
            match target {
                ConversionTarget::Float(_) | ConversionTarget::Fake => assert_floats(&source, &made),
                ConversionTarget::Codes(_) => {
                    let errors = measure(&plan, &source, &made).unwrap();
                    assert!(!errors.is_empty() && errors.iter().all(|error| error.max == 0.0), "{target}: {errors:?}");
                }
            }
            (Cell::Exact, None)
        }
        Err(PlanError::Conversion { reason, .. }) => (lossy(from, dir, target), Some(reason)),
        Err(PlanError::CannotHold { problem, .. }) => (lossy(from, dir, target), Some(problem.reason)),
        Err(other) => panic!("{target}: {other}"),
    }
}

fn lossy(from: &Path, dir: &Path, target: ConversionTarget) -> Cell {
    let out = dir.join(format!("{target}-requantized"));
    match convert(from, &out, target, true, 2) {
        Ok(plan) => {
            let (source, made) = (open(from), Checkpoint::open(&out).unwrap());
            let errors = measure(&plan, &source, &made).unwrap();
            let most = errors.iter().map(|error| error.relative).fold(0.0, f64::max);
            Cell::Loses(most, most)
        }
        Err(PlanError::Conversion { .. } | PlanError::CannotHold { .. }) => Cell::Refused,
        Err(other) => panic!("{target}: {other}"),
    }
}

/// Every packed weight of the source is the float tensor of its name, bit for bit.
fn assert_floats(source: &Checkpoint, made: &Checkpoint) {
    let import = import::open(source).unwrap();
    let floats: HashMap<String, Vec<u8>> = import::open(made)
        .unwrap()
        .tensors()
        .iter()
        .map(|tensor| match &tensor.stored {
            Stored::Plain(view) => (tensor.meta.name.clone(), view.bytes().to_vec()),
            Stored::Packed(_) => panic!("{} is packed", tensor.meta.name),
        })
        .collect();
    let mut count = 0;
    for tensor in import.tensors() {
        let Stored::Packed(matrices) = &tensor.stored else { continue };
        let [matrix] = matrices.as_slice() else { panic!("several matrices") };
        let (mut values, rows, columns) = (Vec::new(), matrix.rows(), matrix.columns());
        matrix.read(Isa::best(), &Band { rows: 0..rows, columns: 0..columns }, &mut values);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        // Quark calls modules as they are in memory.
        let name = tensor.meta.name.replace("mlp.experts", "block_sparse_moe.experts");
        let name = [("gate_proj", "w1"), ("down_proj", "w2"), ("up_proj", "w3")].iter().fold(
            name.clone(),
            |name, (memory, disk)| if name.contains("experts") { name.replace(memory, disk) } else { name },
        );
        assert!(floats[&name] == bytes, "{name}");
        count += 1;
    }
    assert!(count > 0);
}

fn table(cells: &HashMap<(&str, String), Cell>) -> String {
    let mut targets: Vec<String> = targets().iter().map(ConversionTarget::to_string).collect();
    targets.push(GGUF.to_owned());
    let mut text = format!("| from \\ to | {} |\n|---|{}\n", targets.join(" | "), "---|".repeat(targets.len()));
    let made = |source: &&Source| cells.contains_key(&(source.name, GGUF.to_owned()));
    for source in SOURCES.iter().filter(made) {
        let cell = |target: &String| match &cells[&(source.name, target.clone())] {
            Cell::Exact => "exact".to_owned(),
            Cell::Loses(_, 0.0) => "loses only inputs".to_owned(),
            Cell::Loses(least, most) if most > &(100.0 * least) => format!("loses {} to {}", loss(*least), loss(*most)),
            Cell::Loses(_, most) => format!("loses {}", loss(*most)),
            Cell::Varies(error) => format!("exact or loses {}", loss(*error)),
            Cell::Refused => "-".to_owned(),
        };
        let row: Vec<String> = targets.iter().map(cell).collect();
        writeln!(text, "| {} | {} |", source.name, row.join(" | ")).unwrap();
    }
    text
}

fn loss(error: f64) -> String {
    if error < 1e-3 { format!("{error:.0e}") } else { format!("{:.1} %", error * 100.0) }
}

/// Why cells are not exact, without the schemes and numbers of one model.
fn list(reasons: &BTreeMap<String, Vec<String>>) -> String {
    let is_number = |word: &str| word.contains('e') && word.starts_with(|c: char| c.is_ascii_digit());
    let mut merged: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (reason, pairs) in reasons {
        let quoted = reason.split('`').enumerate().map(|(i, part)| if i % 2 == 1 { "such codes" } else { part });
        let plain = quoted.collect::<String>().replace(", not such codes", "");
        let plain: Vec<String> =
            plain.split(' ').map(|word| if is_number(word) { "S" } else { word }.to_owned()).collect();
        merged.entry(plain.join(" ")).or_default().extend(pairs.iter().cloned());
    }
    let line = |(reason, pairs): (String, BTreeSet<String>)| {
        format!("* {reason}: {}.\n", pairs.into_iter().collect::<Vec<_>>().join("; "))
    };
    format!("\nWhy:\n\n{}", merged.into_iter().map(line).collect::<String>())
}

const BEGIN: &str = "<!-- matrix: written by crates/checkpoint/tests/all/conversions, KVANT_UPDATE_DOCS=1 -->\n";
const END: &str = "<!-- end of matrix -->\n";

/// The table in the docs is the one found here; some models alone have no table.
fn check_docs(text: &str, is_whole: bool) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/conversions.md");
    let docs = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = docs.split_once(BEGIN).unwrap();
    let (found, after) = rest.split_once(END).unwrap();
    if !is_whole {
        return;
    }
    if std::env::var_os("KVANT_UPDATE_DOCS").is_some() {
        return std::fs::write(&path, format!("{before}{BEGIN}{text}{END}{after}")).unwrap();
    }
    assert!(
        found == text,
        "docs/reference/conversions.md has another matrix; KVANT_UPDATE_DOCS=1 writes it anew:\n{text}"
    );
}
