//! The arguments of `kvant eval`.

use super::calibration::precision_parser;
use super::onnx::EngineArgs;
use super::run::{AdapterArgs, PageArgs, RunArgs};
use super::value::count_from;
use clap::{Args, ValueHint};
use kvant::Precision;
use kvant_checkpoint::byte_size::ByteSize;
use std::path::PathBuf;

const EVAL: &str = "\
Examples:
  kvant eval Llama-3.2-1B --data wikitext.txt
  kvant eval Llama-3.2-1B-int4 --reference Llama-3.2-1B --data wikitext.txt
      the distance of a quantized model from the original, by token and by block
  kvant eval Llama-3.2-1B --data wikitext.txt --seq-len 512 --json | jq .perplexity
  kvant eval Llama-3.2-1B-int4 Llama-3.2-1B-int3 model-Q4_K_M.gguf --reference Llama-3.2-1B --data wikitext.txt --num-samples 50
      several models in one table, on the first 50 windows
  kvant eval Llama-3.2-1B-int4 --reference Llama-3.2-1B --choices arc_easy.jsonl
      accuracy on multiple-choice questions, and how many answers change
  kvant eval resnet50.int8.onnx --reference resnet50.onnx --time
      how long an inference takes in ONNX Runtime, and the ratio to that of the float graph
  kvant eval onnx/model.int8.onnx --reference onnx/model.onnx --data wikitext.txt
      the same for the ONNX graph of a decoder

A text is tokenized as a whole and cut into consecutive windows; a shorter tail is dropped. Rows of a file are texts of their own, \
and one that does not fill a window is a shorter window. Tokens (input_ids) need no tokenizer. Every token of a window \
except the first is scored given the tokens before it in the window, and perplexity is the exponential of the mean loss. \
With --stride, windows overlap, and each window scores only the tokens that the previous one did not.

Standard errors are over windows, because the tokens of one are correlated; they are unknown for a single window.

With --reference, the output also has the Kullback-Leibler divergence from the reference in nats, the share of tokens \
for which both models agree on the most likely token, and the signal-to-noise ratio (SQNR) of each block's output. A \
drop after a block shows that quantization hurts that block.

Several models are measured on the same tokens, and the reference runs once beside decoders of text. Models whose vocabularies or \
tokenizers differ are refused.

Questions with choices (--choices) are asked as lm-evaluation-harness asks them without examples: the model chooses the text that it finds \
likeliest (accuracy), or the likeliest per character (accuracy by length). With --reference, flips are the answers that differ.

Encoders (BERT, ViT, wav2vec 2.0 and others) predict no next token and need --reference: the output has the cosine of the embedding of each \
text, image or sound and that of the reference, and the SQNR of the last hidden states, of each block's output and of pooled states and logits.

The ONNX graph of a decoder (input_ids to logits, as Kvant, Optimum and onnxruntime-genai export it) is evaluated on text \
in the same way, without blocks. Its tokenizer.json is that beside the graph, in the directory above, or in --tokenizer.";

/// `kvant eval`.
#[derive(Debug, Args)]
#[command(after_help = EVAL)]
pub struct EvalArgs {
    /// Hugging Face directory, GGUF file or ONNX graph; several are compared
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    pub model: Vec<PathBuf>,
    /// Adapters.
    #[command(flatten)]
    pub adapters: AdapterArgs,
    /// Data to measure the model on: text, JSON, Parquet or tokens; arrays, images or sounds for models of these and ONNX graphs
    ///
    /// For language models .json, .jsonl, .parquet, .npy or .safetensors, with the rows of calibration data, or text in UTF-8; text and
    /// JSON also as .gz and .zst. For models of sounds .wav files, with what is said in a.wav in a.txt, or a directory of them. For models of images and ONNX graphs .npz, .npy, .safetensors, a directory of them or of images; text, JSON and Parquet for
    /// graphs of decoders.
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::AnyPath, required_unless_present_any = ["choices", "time"])]
    pub data: Option<PathBuf>,
    /// Multiple-choice questions to answer instead of --data: JSON, JSON lines or Parquet
    ///
    /// Rows as ARC, HellaSwag, MMLU, WinoGrande and PIQA are published, or with the fields question, choices and answer.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "data")]
    pub choices: Option<PathBuf>,
    /// The field or column with the text, conversation or tokens [default: found by its name]
    #[arg(long, value_name = "NAME")]
    pub column: Option<String>,
    /// The original model, to compare with
    #[arg(long, short_alias = 'r', value_name = "MODEL", value_hint = ValueHint::AnyPath)]
    pub reference: Option<PathBuf>,
    /// Directory of tokenizer.json [default: the model]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::AnyPath)]
    pub tokenizer: Option<PathBuf>,
    /// Tokens per window [default: 2048, or the model's longest context if that is shorter]
    #[arg(long, value_name = "N", value_parser = count_from(2))]
    pub seq_len: Option<usize>,
    /// Tokens between the starts of two windows [default: the window]
    #[arg(long, value_name = "N", value_parser = count_from(1))]
    pub stride: Option<usize>,
    /// Number of sequences or samples to use [default: all]
    ///
    /// The first windows of a text, questions, images, sounds, or samples of a graph.
    #[arg(long, value_name = "N", value_parser = count_from(1))]
    pub num_samples: Option<usize>,
    /// Show losses by position in the window, to see how long contexts fare
    #[arg(long, conflicts_with = "choices")]
    pub by_position: bool,
    /// Precision of activations: f32, or bf16, which computes as a bf16 model does in torch and is faster
    #[arg(long, value_name = "PRECISION", default_value = "f32", hide_possible_values = true, value_parser = precision_parser())]
    pub precision: Precision,
    /// Memory for activations and Hessians, e.g. 500MB
    ///
    /// Further activations go to a temporary file.
    #[arg(long, value_name = "SIZE", default_value = "1GB")]
    pub max_memory: ByteSize,
    /// Array of the data with the class of each sample, for accuracy
    #[arg(long, value_name = "NAME", help_heading = "ONNX graphs")]
    pub labels: Option<String>,
    /// Steps from the images of a directory to inputs, e.g. size=256,crop=224,mean=0.485:0.456:0.406,std=0.229:0.224:0.225
    #[arg(long, value_name = "STEPS", help_heading = "ONNX graphs")]
    pub preprocess: Option<String>,
    /// Measure the time of an inference in ONNX Runtime, also of the reference
    ///
    /// Both graphs take turns after a warm-up; the output has medians, quartiles and their ratio. One thread, unless --threads says more. Without
    /// --data, inputs are made up and nothing else is measured.
    #[arg(long, help_heading = "ONNX graphs", conflicts_with = "choices")]
    pub time: bool,
    /// The engine that runs graphs.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// A report for people.
    #[command(flatten)]
    pub page: PageArgs,
    /// How the command runs.
    #[command(flatten)]
    pub run: RunArgs,
}
