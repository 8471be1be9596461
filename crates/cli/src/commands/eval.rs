//! `kvant eval`: how well a model predicts a text.

use crate::args::{EvalArgs, first_given};
use crate::failure::{Failure, Kind};
use crate::gate::refuse_directory;
use crate::model;
use crate::onnx;
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::table::{Align, Table};
use kvant_llm::evaluation::{Comparison, Evaluation, Options, default_window, evaluate, tokenize};
use kvant_llm::forward::Decoder;
use serde_json::{Value, json};

/// Evaluates a model.
///
/// # Errors
/// Whatever is wrong with the model, its tokenizer or the text.
pub fn run(args: &EvalArgs, printer: &Printer) -> Result<(), Failure> {
    if onnx::is_graph(&args.model) {
        return onnx::eval::run(args, printer);
    }
    refuse_foreign(args)?;
    refuse_directory("--data", &args.data)?;
    let checkpoint = model::open_with(&args.model, &args.lora)?;
    let decoder = Decoder::open(&checkpoint)?;
    let original = args.reference.as_deref().map(model::open).transpose()?;
    let reference = original.as_ref().map(Decoder::open).transpose()?;
    let tokens = tokenize(args.tokenizer.as_deref().unwrap_or(&args.model), &args.data)?;
    let options = Options {
        window: args.seq_len.unwrap_or_else(|| default_window(&decoder)),
        stride: args.stride,
        memory: args.max_memory.0,
    };
    if let Some(longest) = decoder.longest().filter(|longest| options.window > *longest) {
        printer.note(&format!(
            "windows of {} tokens are longer than the {longest} that the model was made for",
            options.window
        ));
    }
    let progress = Progress::new(printer, Unit::Tokens);
    let watch = progress.watch();
    let ops = args.precision.ops();
    let work = || evaluate(&decoder, reference.as_ref(), &ops, &tokens, options, watch);
    let found = model::pool(&args.run)?.install(work)?;
    drop(progress);
    let activations = decoder.quantized_activations();
    match printer.is_json() {
        true => printer.json("eval", &object(&found, &activations)),
        false => printer.data(&text(&found, &activations, printer.width())),
    }
}

/// Refuses what only graphs have, so that no option is silently without effect.
fn refuse_foreign(args: &EvalArgs) -> Result<(), Failure> {
    let given = [
        (args.num_samples.is_some(), "--num-samples"),
        (args.labels.is_some(), "--labels"),
        (args.preprocess.is_some(), "--preprocess"),
    ];
    match first_given(&given) {
        Some(option) => Err(Failure::new(Kind::Usage, format!("{option} applies only to ONNX graphs"))
            .with_hint(Some("leave it out: all windows of the text are evaluated".to_owned()))),
        None => Ok(()),
    }
}

fn object(found: &Evaluation, activations: &[String]) -> Value {
    let mut object = json!({
        "perplexity": found.perplexity,
        "tokens": found.tokens,
        "windows": found.windows,
        "seq_len": found.window,
        "seconds": found.seconds,
        "tokens_per_second": found.tokens_per_second(),
        "quantized_activations": activations,
    });
    if let (Some(comparison), Value::Object(object)) = (&found.comparison, &mut object) {
        object.extend(compared(comparison));
    }
    object
}

fn compared(comparison: &Comparison) -> impl Iterator<Item = (String, Value)> {
    // JSON has no infinity: a block without error has no ratio.
    let blocks = comparison.blocks.iter().enumerate();
    let blocks: Vec<Value> = blocks.map(|(block, decibels)| json!({"block": block, "sqnr_db": decibels})).collect();
    let fields = [
        ("reference_perplexity", json!(comparison.reference_perplexity)),
        ("perplexity_ratio", json!(comparison.perplexity_ratio.value)),
        ("perplexity_ratio_error", json!(comparison.perplexity_ratio.error)),
        ("kl_mean", json!(comparison.kl_mean.value)),
        ("kl_mean_error", json!(comparison.kl_mean.error)),
        ("kl_p99", json!(comparison.kl_p99)),
        ("top1_agreement", json!(comparison.top1_agreement)),
        ("blocks", json!(blocks)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value))
}

fn text(found: &Evaluation, activations: &[String], width: usize) -> String {
    let activations = activations.iter().map(|line| format!("\nquantized activations: {line}"));
    let summary = format!("{}{}", summary(found).render(width), activations.collect::<String>());
    match &found.comparison {
        Some(comparison) => {
            format!("{summary}\n\n{}\n\n{}", distance(comparison).render(width), blocks(comparison).render(width))
        }
        None => summary,
    }
}

fn summary(found: &Evaluation) -> Table {
    let titles = ["perplexity", "tokens", "windows", "seq len", "seconds", "tokens/s"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    table.push([
        format!("{:.4}", found.perplexity),
        found.tokens.to_string(),
        found.windows.to_string(),
        found.window.to_string(),
        format!("{:.2}", found.seconds),
        format!("{:.0}", found.tokens_per_second()),
    ]);
    table
}

fn distance(comparison: &Comparison) -> Table {
    let titles = ["reference perplexity", "ratio", "KL mean", "KL 99 %", "same top token"];
    let mut table = Table::new(&titles.map(|title| (title, Align::Right)));
    table.push([
        format!("{:.4}", comparison.reference_perplexity),
        format!("{:.5} ± {:.5}", comparison.perplexity_ratio.value, comparison.perplexity_ratio.error),
        format!("{:.6} ± {:.6}", comparison.kl_mean.value, comparison.kl_mean.error),
        format!("{:.6}", comparison.kl_p99),
        format!("{:.2} %", comparison.top1_agreement * 100.0),
    ]);
    table
}

fn blocks(comparison: &Comparison) -> Table {
    let mut table = Table::new(&["block", "SQNR dB"].map(|title| (title, Align::Right)));
    for (block, decibels) in comparison.blocks.iter().enumerate() {
        table.push([block.to_string(), format!("{decibels:.2}")]);
    }
    table
}
