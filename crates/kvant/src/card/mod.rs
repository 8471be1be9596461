//! Model cards: the README.md beside a checkpoint, with the front matter that the Hugging Face Hub reads. A card holds no date, no path of
//! the machine and nothing else that differs between runs, so that the same run makes the same bytes.

mod front_matter;
mod plan;
mod recipe;

pub(crate) use plan::CardedPlan;

use crate::error::Error;
use crate::job::Job;
use crate::loading;
use crate::text::{counts, markdown_code, markdown_text, shown};
use front_matter::{FrontMatter, SourceCard};
use kvant_checkpoint::plan::Plan;
use kvant_container::{Checkpoint, is_hub_name};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_numeric::DType;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The name of a card.
pub(crate) const CARD: &str = "README.md";
/// What a card that Kvant wrote has behind its front matter.
const MARK: &str = "<!-- Model card written by Kvant ";
/// The most bytes of a source's card that are taken into that of its quantization.
const LONGEST_CARD: u64 = 1 << 20;
/// What stands for the path of the model in lines that load it.
const PATH: &str = "PATH";

/// What a card says of how a model was made.
#[derive(Clone, Copy)]
pub(crate) enum Made<'a> {
    /// Quantized by a job. Recipe and calibration record are those of the first checkpoint, which all other outputs are converted from.
    Quantized { job: &'a Job, recipe: &'a Value, record: Option<&'a Value> },
    /// Converted from a checkpoint that was quantized before.
    Converted,
}

/// What a model card says of the model's source.
#[derive(Clone, Debug)]
pub(crate) struct CardSource {
    /// Its name on the Hub, if it is known.
    base_model: Option<String>,
    card: SourceCard,
    /// Whether Kvant wrote that card.
    is_own: bool,
    /// Whether the source is quantized itself.
    is_quantized: bool,
}

impl CardSource {
    /// Reads the source's card, with a note for the user where it is unusual. One whose text cannot be taken over is none: it is copied, and
    /// no other takes its place.
    ///
    /// # Errors
    /// Those of listing or reading the source's directory.
    pub fn read(model: &Path, checkpoint: &Checkpoint) -> Result<(Option<CardSource>, Option<String>), Error> {
        let directory = checkpoint.directory();
        let found = checkpoint.extra_files()?;
        let file = found.iter().find(|name| is_card(name)).zip(directory).map(|(name, directory)| directory.join(name));
        let (card, note) = match file {
            None => (SourceCard::default(), None),
            Some(file) => match read_text(&file)? {
                Err(reason) => {
                    let note = format!(
                        "no model card is written, since that of the source is copied: {} {reason}",
                        shown(&file)
                    );
                    return Ok((None, Some(note)));
                }
                Ok(text) => match SourceCard::read(&text) {
                    Ok(card) => (card, None),
                    Err(unread) => {
                        let (card, problem) = *unread;
                        (card, Some(format!("the front matter of {} cannot be read: {problem}", shown(&file))))
                    }
                },
            },
        };
        let config = checkpoint.config().ok().flatten().unwrap_or_default();
        let is_own = card.body.starts_with(MARK);
        let named = config["_name_or_path"].as_str().filter(|name| is_hub_name(name)).map(str::to_owned);
        let base_model = card.quantized_from().or_else(|| name_in_cache(model)).or(named);
        let is_quantized = config["quantization_config"].is_object();
        Ok((Some(CardSource { base_model, card, is_own, is_quantized }), note))
    }

    /// Whether Kvant wrote the source's card, which then does not describe its quantization.
    pub fn is_own(&self) -> bool {
        self.is_own
    }
}

/// Whether a file beside a checkpoint is its card: disks that ignore case hold no other file of that name.
fn is_card(name: &Path) -> bool {
    name.to_str().is_some_and(|name| name.eq_ignore_ascii_case(CARD))
}

/// The text of a card, or the reason that it is none.
fn read_text(file: &Path) -> Result<Result<String, &'static str>, Error> {
    let mut bytes = Vec::new();
    let read = File::open(file).and_then(|file| file.take(LONGEST_CARD + 1).read_to_end(&mut bytes));
    read.map_err(|cause| Error::io(format!("cannot read {}", shown(file)), &cause))?;
    if bytes.len() as u64 > LONGEST_CARD {
        return Ok(Err("is longer than 1 MiB"));
    }
    Ok(String::from_utf8(bytes).map_err(|_| "is not UTF-8"))
}

/// The name of a model in the Hub's cache, whose folders are called `models--ORGANISATION--NAME`.
fn name_in_cache(model: &Path) -> Option<String> {
    let whole = std::path::absolute(model).ok()?;
    let folders = whole.components().filter_map(|part| part.as_os_str().to_str()?.strip_prefix("models--"));
    folders
        .filter_map(|name| name.split_once("--").map(|(org, name)| format!("{org}/{name}")))
        .find(|name| is_hub_name(name))
}

/// What is known of a card before there is a plan of its output.
#[derive(Clone, Copy)]
pub(crate) struct CardRequest<'a> {
    pub source: &'a CardSource,
    pub made: Made<'a>,
}

/// The card of a model.
pub(crate) struct ModelCard<'a> {
    plan: &'a Plan,
    source: &'a CardSource,
    made: Made<'a>,
}

impl ModelCard<'_> {
    /// The text. `directory` holds the model's config.json, and `measured` is what quality limits were checked on.
    pub fn render(&self, directory: &Path, measured: Option<&Value>) -> String {
        let mut parts = vec![self.introduction(), self.quantization()];
        if let Made::Quantized { job, recipe, record } = self.made {
            parts.push(self.repetition(job, recipe, record));
            parts.extend(record.and_then(data));
            parts.extend(quality(measured, record));
        }
        parts.extend(self.loading(directory));
        let own = crate::settings::spelled(&parts.join("\n\n"), |setting| format!("--{setting}"));
        let front = self.front_matter().render(&self.source.card, is_tag_of_quantization);
        let version = env!("CARGO_PKG_VERSION");
        let original = self.original().map(|text| format!("\n\n{text}")).unwrap_or_default();
        format!("{front}\n{MARK}{version} -->\n{own}{original}\n")
    }

    fn introduction(&self) -> String {
        let recipe = match self.made {
            Made::Quantized { recipe, .. } => recipe["scheme"].as_str().map(str::to_owned),
            Made::Converted => None,
        };
        let scheme = recipe.unwrap_or_else(|| self.schemes());
        let base = self.source.base_model.as_deref();
        let name = base.and_then(|base| base.split('/').next_back()).unwrap_or(self.plan.architecture());
        let title = format!("# {}, {}", markdown_text(name), markdown_text(&scheme));
        let of = base.map_or_else(
            || format!("a model of the architecture {}", markdown_text(self.plan.architecture())),
            |base| format!("[{base}](https://huggingface.co/{base})"),
        );
        let how = match self.made {
            Made::Quantized { .. } => "made",
            Made::Converted => "converted from another format",
        };
        let again = match self.made {
            Made::Quantized { .. } if self.source.is_quantized => {
                " The model that was quantized had been quantized before."
            }
            _ => "",
        };
        format!("{title}\n\nA quantization of {of}, {how} with Kvant {}.{again}", env!("CARGO_PKG_VERSION"))
    }

    /// The schemes of layers, the most frequent first.
    fn schemes(&self) -> String {
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        self.plan.layers().iter().for_each(|layer| *found.entry(layer.scheme.to_string()).or_default() += 1);
        let mut found: Vec<(String, usize)> = found.into_iter().collect();
        found.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let names: Vec<String> = found.into_iter().map(|(scheme, _)| scheme).collect();
        if names.is_empty() { "floats".to_owned() } else { names.join(", ") }
    }

    fn quantization(&self) -> String {
        let plan = self.plan;
        let (_, layers) = counts::layers(plan);
        let (_, sizes) = counts::sizes(plan.source_bytes(), plan.layout().total_size());
        let format = match plan.format() {
            OutputFormat::PlainFloats => "floats".to_owned(),
            format => format.name().to_owned(),
        };
        let algorithms = match self.made {
            Made::Quantized { recipe, .. } => {
                let names: Vec<&str> =
                    recipe["algorithm"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                Some(names.join(", ")).filter(|names| !names.is_empty())
            }
            Made::Converted => None,
        };
        let bits = (!plan.layers().is_empty()).then(|| counts::bits(plan.bits_per_weight(), "layers").1);
        let rows = [
            ("schemes", Some(self.schemes())),
            ("format", Some(format)),
            ("algorithms", algorithms),
            ("layers", Some(layers)),
            ("size of the tensors", Some(sizes)),
            ("bits per weight", bits),
        ];
        let rows = rows.into_iter().filter_map(|(name, value)| Some(format!("* {name}: {}", markdown_text(&value?))));
        format!("## Quantization\n\n{}", rows.collect::<Vec<_>>().join("\n"))
    }

    /// The recipe, and the command that repeats the run.
    fn repetition(&self, job: &Job, recipe: &Value, record: Option<&Value>) -> String {
        let reads_data = record.is_some_and(|record| record["data"].is_object());
        // What was quantized again is not the base, but a quantization of it.
        let model = self.source.base_model.as_deref().filter(|_| !self.source.is_quantized).unwrap_or("MODEL");
        let command = recipe::command(job, model, reads_data);
        let file = recipe::recipe_file(recipe);
        format!(
            "## Recipe\n\nWith this text in `recipe.toml`\n\n{}\n\nthe model is made by\n\n{}",
            markdown_code("toml", file.trim_end()),
            markdown_code("sh", &command)
        )
    }

    fn loading(&self, directory: &Path) -> Option<String> {
        let lines = loading::lines_of(&self.plan.loaders(), directory, Path::new(PATH));
        let lines = lines.into_iter().map(|(loader, line)| match line {
            Some(line) => format!("* {}: `{line}`", markdown_text(loader)),
            None => format!("* {}", markdown_text(loader)),
        });
        let lines: Vec<String> = lines.collect();
        let what = format!("{PATH} is the folder of the model, or its name on the Hub.");
        (!lines.is_empty()).then(|| format!("## How to load it\n\n{}\n\n{what}", lines.join("\n")))
    }

    /// The source's card: none of its text is lost.
    fn original(&self) -> Option<String> {
        let SourceCard { yaml, body, .. } = &self.source.card;
        if yaml.is_empty() && body.is_empty() {
            return None;
        }
        let yaml = (!yaml.is_empty()).then(|| markdown_code("yaml", yaml));
        let body = (!body.is_empty()).then(|| body.clone());
        let done = match self.made {
            Made::Quantized { .. } => "quantized",
            Made::Converted => "converted",
        };
        let what = format!("The following is the card of the model that was {done}.");
        let parts = ["## Original model card".to_owned(), what].into_iter().chain(yaml).chain(body);
        Some(parts.collect::<Vec<_>>().join("\n\n"))
    }

    fn front_matter(&self) -> FrontMatter {
        let loaders = self.plan.loaders();
        let is_loaded_by = |first: &str| loaders.iter().any(|loader| loader.starts_with(first));
        let libraries = [("transformers", "transformers"), ("diffusers", "diffusers"), ("mlx-lm", "mlx")];
        let library = libraries.into_iter().find(|(loader, _)| is_loaded_by(loader)).map(|(_, library)| {
            // Another library that loads what transformers does. Other names are those of the source's form, such as an adapter's.
            let own = self.source.card.text("library_name").filter(|own| own == "sentence-transformers");
            let own = own.filter(|_| library == "transformers");
            own.unwrap_or_else(|| library.to_owned())
        });
        let has_adapters = matches!(self.made, Made::Quantized { job, .. } if !job.source.adapters.is_empty());
        FrontMatter {
            base_model: self.source.base_model.clone(),
            is_quantized: !self.plan.layers().is_empty() && !has_adapters,
            library,
            task: task(self.plan).map(str::to_owned),
            tags: self.tags(),
        }
    }

    /// The method by which loaders know the format, the type of most weights, and its bits.
    fn tags(&self) -> Vec<String> {
        let Some(format) = self.plan.format().checkpoint() else { return Vec::new() };
        let mut sizes: BTreeMap<DTypeName, usize> = BTreeMap::new();
        for layer in self.plan.layers() {
            *sizes.entry(dtype_name(layer.scheme.weight.format())).or_default() += layer.rows * layer.columns;
        }
        let most = sizes.into_iter().max_by_key(|(_, size)| *size).map(|(name, _)| name);
        let of_type = most.into_iter().flat_map(|name| [name.tag, bits_tag(name.bits)]);
        std::iter::once(format.capabilities().method.to_owned())
            .filter(|method| !method.is_empty())
            .chain(of_type)
            .collect()
    }
}

/// An element type as the Hub's users call it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DTypeName {
    tag: String,
    bits: u32,
}

fn dtype_name(dtype: DType) -> DTypeName {
    let bits = dtype.bits();
    let tag = match dtype {
        DType::Int(_) => format!("int{bits}"),
        DType::MiniFloat(_) => format!("fp{bits}"),
        dtype => dtype.to_string(),
    };
    DTypeName { tag, bits }
}

fn bits_tag(bits: u32) -> String {
    format!("{bits}-bit")
}

/// Whether a tag names a quantization.
fn is_tag_of_quantization(tag: &str) -> bool {
    let is_method =
        FormatHandle::all().iter().any(|format| [format.name(), format.capabilities().method].contains(&tag));
    let is_type =
        (1..=16).any(|bits| tag == format!("int{bits}") || tag == format!("fp{bits}") || tag == bits_tag(bits));
    is_method || is_type
}

/// The Hub's name of what models of an architecture do, where one name fits all of them.
fn task(plan: &Plan) -> Option<&'static str> {
    let tasks = [
        ("ForCausalLM", "text-generation"),
        ("ForMaskedLM", "fill-mask"),
        ("ForSequenceClassification", "text-classification"),
        ("ForTokenClassification", "token-classification"),
        ("ForQuestionAnswering", "question-answering"),
        ("ForImageClassification", "image-classification"),
        ("ForAudioClassification", "audio-classification"),
        ("ForCTC", "automatic-speech-recognition"),
        ("WhisperForConditionalGeneration", "automatic-speech-recognition"),
    ];
    let architecture = plan.architecture();
    let found = tasks.into_iter().find(|(end, _)| architecture.ends_with(end)).map(|(_, task)| task);
    let has_images = plan.config().is_some_and(|config| config["vision_config"].is_object());
    found.or_else(|| (has_images && architecture.ends_with("ForConditionalGeneration")).then_some("image-text-to-text"))
}

/// The calibration data by name and hash.
fn data(record: &Value) -> Option<String> {
    let (data, statistics) = (&record["data"], &record["statistics"]);
    let files = data["files"].as_array().into_iter().flatten();
    let files = files.chain(statistics.is_object().then_some(statistics));
    let rows: Vec<String> = files
        .filter_map(|file| {
            let (name, hash) = (file["name"].as_str()?, file["xxh3_128"].as_str().unwrap_or("-"));
            Some(format!("| {} | {} | {} |", markdown_text(name), markdown_text(hash), file["bytes"]))
        })
        .collect();
    if rows.is_empty() {
        return None;
    }
    let heading = if statistics.is_object() { "Statistics of inputs" } else { "Calibration data" };
    let extent = data["tokens"].as_u64().zip(data["samples"].as_u64());
    let extent = extent
        .map(|(tokens, samples)| format!("\n\n{samples} samples with {tokens} tokens were used."))
        .unwrap_or_default();
    Some(format!(
        "## {heading}\n\n| file | XXH3 hash (128 bits) | bytes |\n| --- | --- | ---: |\n{}{extent}",
        rows.join("\n")
    ))
}

/// What the run measured: the distance from the source, and what algorithms have left of the error of layers.
fn quality(measured: Option<&Value>, record: Option<&Value>) -> Option<String> {
    let mut rows = Vec::new();
    if let Some(found) = measured {
        let number = |key: &str, digits: usize| found[key].as_f64().map(|value| format!("{value:.digits$}"));
        let data = found["data"].as_str().map(|data| recipe::name(&PathBuf::from(data)));
        let tokens = data.map(|data| format!("{} tokens of {data}", found["tokens"]));
        let agreement = found["top1_agreement"].as_f64().map(|share| format!("{:.2} %", 100.0 * share));
        rows.extend([
            ("measured on", tokens),
            ("KL divergence from the source, nats", number("kl_mean", 6)),
            ("perplexity", number("perplexity", 4)),
            ("perplexity of the source", number("reference_perplexity", 4)),
            ("same top token as the source", agreement),
        ]);
        let blocks = found["blocks_sqnr_db"].as_array();
        let last = blocks.and_then(|blocks| blocks.last()?.as_f64());
        rows.push(("signal-to-noise ratio after the last block", last.map(|decibels| format!("{decibels:.1} dB"))));
    }
    rows.push(("error of layers' outputs beside rounding to nearest", record.and_then(share_of_error)));
    let rows = rows.into_iter().filter_map(|(name, value)| Some(format!("* {name}: {}", markdown_text(&value?))));
    let rows: Vec<String> = rows.collect();
    (!rows.is_empty()).then(|| format!("## Quality\n\n{}", rows.join("\n")))
}

/// The geometric mean of the shares of layers, as a percentage.
fn share_of_error(record: &Value) -> Option<String> {
    let share = |layer: &Value| Some(layer["loss"].as_f64()? / layer["loss_rtn"].as_f64().filter(|loss| *loss > 0.0)?);
    let shares = record["layers"].as_array()?.iter().filter_map(share).filter(|share| *share > 0.0);
    let logarithms: Vec<f64> = shares.map(f64::ln).collect();
    let mean = logarithms.iter().sum::<f64>() / logarithms.len() as f64;
    (!logarithms.is_empty()).then(|| format!("{:.1} %, layer average", 100.0 * mean.exp()))
}
