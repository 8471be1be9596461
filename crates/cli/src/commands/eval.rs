//! `kvant eval`: how well a model predicts a text.

use crate::args::EvalArgs;
use crate::failure::Failure;
use crate::model;
use crate::printer::Printer;
use crate::table::{Align, Table};
use kvant_llm::evaluation::{Perplexity, default_window, perplexity, tokenize};
use kvant_llm::forward::{Decoder, cpu::Cpu};
use serde_json::json;

/// Evaluates a model.
///
/// # Errors
/// Whatever is wrong with the model, its tokenizer or the text.
pub fn run(args: &EvalArgs, printer: &Printer) -> Result<(), Failure> {
    let checkpoint = model::open(&args.model)?;
    let decoder = Decoder::open(&checkpoint)?;
    let tokens = tokenize(&args.model, &args.data)?;
    let window = args.seq_len.unwrap_or_else(|| default_window(&decoder));
    let threads = rayon::ThreadPoolBuilder::new().num_threads(model::threads(&args.run)).build();
    let threads = threads.map_err(|error| Failure::system(format!("cannot start threads: {error}")))?;
    let watch = |done: usize, all: usize| printer.detail(&format!("{done} of {all} windows"));
    let found = threads.install(|| perplexity(&decoder, &Cpu::default(), &tokens, window, watch))?;
    if printer.is_json() { printer.json(&object(&found)) } else { printer.data(&table(&found).render()) }
}

fn object(found: &Perplexity) -> serde_json::Value {
    json!({
        "perplexity": found.perplexity,
        "tokens": found.tokens,
        "windows": found.windows,
        "seq_len": found.window,
        "seconds": found.seconds,
        "tokens_per_second": found.tokens_per_second(),
    })
}

fn table(found: &Perplexity) -> Table {
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
