//! The arguments of `kvant generate`.

use super::calibration::precision_parser;
use super::run::{AdapterArgs, PageArgs, RunArgs};
use super::value::{count_from, not_negative};
use clap::{ArgGroup, Args, ValueHint};
use kvant::Precision;
use kvant_checkpoint::byte_size::ByteSize;
use std::path::PathBuf;

const GENERATE: &str = "\
Examples:
  kvant generate Llama-3.2-1B-int4 --prompt 'The capital of France is'
  kvant generate Llama-3.2-1B-int4 --reference Llama-3.2-1B --prompt 'The capital of France is'
      the texts of both models, and after how many tokens they first differ
  kvant generate Llama-3.2-1B-int4 --reference Llama-3.2-1B --prompt-file questions.txt --report texts.html
      the same side by side in a page
  kvant generate Qwen3-0.6B-Q4_K_M.gguf --chat --prompt 'Name three rivers.' --max-new-tokens 200
  kvant generate Llama-3.2-1B --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95 --seed 7

Text goes to stdout, everything else to stderr. Without --temperature, the likeliest token is chosen always. The same \
options give the same text, whatever the number of threads and whatever other prompts there are. A text ends at the end \
token of generation_config.json, config.json or the tokenizer, and after --max-new-tokens.

Activations and the KV cache are quantized where the checkpoint says so, as in `kvant eval`.";

/// `kvant generate`.
#[derive(Debug, Args)]
#[command(after_help = GENERATE, group(ArgGroup::new("prompts").args(["prompt", "prompt_file"]).required(true).multiple(true)))]
pub struct GenerateArgs {
    /// Hugging Face directory or GGUF file
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// Text to continue; repeatable
    #[arg(short, long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// File with a text to continue, in UTF-8; repeatable
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub prompt_file: Vec<PathBuf>,
    /// Put each prompt into the model's chat template, as a message of the user
    #[arg(long)]
    pub chat: bool,
    /// The original model, to compare with
    ///
    /// It continues the same prompts.
    #[arg(long, short_alias = 'r', value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub reference: Option<PathBuf>,
    /// Tokens to generate at most [default: 64, or what the prompt leaves of the model's context if that is less]
    #[arg(long, visible_alias = "max-tokens", short = 'n', value_name = "N", value_parser = count_from(1))]
    pub max_new_tokens: Option<usize>,
    /// Text that ends a continuation; repeatable
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Directory of tokenizer.json [default: the model]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub tokenizer: Option<PathBuf>,
    /// Precision of activations: f32, or bf16, which computes as a bf16 model does in torch and is faster
    #[arg(long, value_name = "PRECISION", default_value = "f32", hide_possible_values = true, value_parser = precision_parser())]
    pub precision: Precision,
    /// Memory for activations and Hessians, e.g. 500MB
    ///
    /// Here for keys, values and quantized weights. Weights that do not fit are read from the file for every token.
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    pub max_memory: ByteSize,
    /// How tokens are chosen.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Adapters.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// A report for people.
    #[command(flatten)]
    pub page: PageArgs,
    /// How the command runs.
    #[command(flatten)]
    pub run: RunArgs,
}

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Divisor of logits before a token is drawn; 0 chooses the likeliest token
    #[arg(long, value_name = "T", default_value = "0", value_parser = not_negative, allow_negative_numbers = true)]
    pub temperature: f64,
    /// Draw from the K likeliest tokens only
    #[arg(long, value_name = "K", requires = "temperature", value_parser = count_from(1))]
    pub top_k: Option<usize>,
    /// Draw from the likeliest tokens with this probability together
    #[arg(long, value_name = "P", requires = "temperature", allow_negative_numbers = true)]
    pub top_p: Option<f64>,
    /// Seed of everything random
    #[arg(long, value_name = "N", default_value = "0", requires = "temperature")]
    pub seed: u64,
}
