//! `kvant eval`: what can be typed behind it.

use super::calibration::precision_parser;
use super::number::count_from;
use super::onnx::EngineArgs;
use super::run::RunArgs;
use clap::{Args, ValueHint};
use kvant::Precision;
use kvant_llm::byte_size::ByteSize;
use std::path::PathBuf;

const EVAL: &str = "\
Examples:
  kvant eval Llama-3.2-1B --data wikitext.txt
  kvant eval Llama-3.2-1B-int4 --reference Llama-3.2-1B --data wikitext.txt
      how far a quantized model is from the original, token by token and block by block
  kvant eval Llama-3.2-1B --data wikitext.txt --seq-len 512 --json | jq .perplexity

The text is tokenized as a whole and cut into consecutive windows; a shorter tail is dropped. Every token of a window \
but the first is scored, given those before it in the window; perplexity is the exponential of the mean. With --stride \
windows overlap, and each scores the tokens that the one before did not reach.

With --reference, the Kullback-Leibler divergence of the model's distribution from the reference's is given in nats, \
how often both hold the same token for the likeliest, and for each block the signal-to-noise ratio (SQNR) of what comes \
out of it: a block behind which it drops is one that quantization hurts.";

/// `kvant eval`.
#[derive(Debug, Args)]
#[command(after_help = EVAL)]
pub struct EvalArgs {
    /// A Hugging Face directory, a GGUF file, or an ONNX graph
    #[arg(value_hint = ValueHint::AnyPath)]
    pub model: PathBuf,
    /// A LoRA adapter (a folder as PEFT saves it) to merge into the weights as they are read; may be given often
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub lora: Vec<PathBuf>,
    /// A text file in UTF-8; for an ONNX graph .npz, .npy, .safetensors, a directory of them or of images
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    pub data: PathBuf,
    /// The model that this one was made from, to be compared with
    #[arg(short, long, value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub reference: Option<PathBuf>,
    /// Where tokenizer.json is [default: the model]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub tokenizer: Option<PathBuf>,
    /// Tokens of a window [default: the smaller of 2048 and the model's longest context]
    #[arg(long, value_name = "N", value_parser = count_from(2))]
    pub seq_len: Option<usize>,
    /// Tokens from the start of one window to that of the next [default: as long as a window]
    #[arg(long, value_name = "N", value_parser = count_from(1))]
    pub stride: Option<usize>,
    /// The precision of activations, f32 or bf16: the latter is what a bf16 model computes in torch, and faster
    #[arg(long, value_name = "PRECISION", default_value = "f32", hide_possible_values = true, value_parser = precision_parser())]
    pub precision: Precision,
    /// Activations kept in memory, e.g. 500MB; more go to a temporary file
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    pub max_memory: ByteSize,
    /// The array of the data with the class of each sample, for accuracy (ONNX graphs)
    #[arg(long, value_name = "NAME", help_heading = "ONNX graphs")]
    pub labels: Option<String>,
    /// Samples to take, all if not said (ONNX graphs)
    #[arg(long, value_name = "N", help_heading = "ONNX graphs", value_parser = count_from(1))]
    pub num_samples: Option<usize>,
    /// How images of a folder become inputs (see `kvant quantize --help`)
    #[arg(long, value_name = "STEPS", help_heading = "ONNX graphs")]
    pub preprocess: Option<String>,
    /// What the graphs are run with.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// How to run it.
    #[command(flatten)]
    pub run: RunArgs,
}
