//! How to load a result: a line to copy for each loader of a format. The format lists its loaders.

use crate::error::{Error, ErrorKind};
use crate::job::SourceKind;
use crate::text::shell_word;
use kvant_checkpoint::plan::Plan;
use kvant_container::{Checkpoint, Remedy, directory_of};
use kvant_formats::format::OutputFormat;
use serde_json::{Value, json};
use std::path::Path;

/// The loader of tensors without a model.
pub const NO_RUNTIME: &str = "no runtime loads it as a model: its files describe codes and scales of single tensors";

/// Refuses a checkpoint that no known loader takes; `remedy` is what to write instead.
///
/// # Errors
/// Names every loader of the format, and its reason.
pub fn refuse_unloadable(plan: &Plan, remedy: impl FnOnce() -> Remedy) -> Result<(), Error> {
    let refusals = plan.loader_refusals();
    if refusals.is_empty() {
        return Ok(());
    }
    let reasons: Vec<String> =
        refusals.iter().map(|refusal| format!("{}: {}", refusal.loader, refusal.reason)).collect();
    let written = match plan.format() {
        OutputFormat::PlainFloats => "as plain floats".to_owned(),
        format => format!("in the format {}", format.name()),
    };
    let message = format!("no known loader takes this model {written}: {}", reasons.join("; "));
    let ways = vec![remedy(), Remedy::SkipVerification("write it anyway")];
    Err(Error::new(ErrorKind::Unsupported, message).with_remedies(ways))
}

/// Each loader, and the line that loads the checkpoint at `path`, if there is one.
pub fn lines(loaders: &[&'static str], path: &Path) -> Vec<(&'static str, Option<String>)> {
    lines_of(loaders, path, path)
}

/// The same for a checkpoint at `path` that readers will have as `name`.
pub(crate) fn lines_of(loaders: &[&'static str], path: &Path, name: &Path) -> Vec<(&'static str, Option<String>)> {
    loaders.iter().map(|loader| (*loader, line(loader, path, name))).collect()
}

/// The same as JSON.
pub fn json(loaders: &[&'static str], path: &Path) -> Value {
    lines(loaders, path).into_iter().map(|(loader, line)| json!({ "loader": loader, "line": line })).collect()
}

fn line(loader: &str, file: &Path, name: &Path) -> Option<String> {
    let path = shell_word(name);
    match loader {
        "vLLM" => Some(format!("vllm serve {}", path)),
        "SGLang" => Some(format!("python -m sglang.launch_server --model-path {}", path)),
        "llama.cpp" => Some(format!("llama-cli -m {}", path)),
        "Ollama" => Some(format!("echo FROM {} > Modelfile && ollama create NAME", path)),
        "ComfyUI" => {
            let weights = shell_word(&name.join("model.safetensors"));
            let folder = if holds_pipeline(file) { "checkpoints" } else { "diffusion_models" };
            Some(format!("cp {weights} ComfyUI/models/{folder}/NAME.safetensors"))
        }
        "LM Studio" => Some(format!("lms import {}", path)),
        "mlx-lm" => Some(format!("mlx_lm.load({})", python(name))),
        "amd-quark" => Some(format!("quark.torch.import_model_from_safetensors(model, {})", python(name))),
        "diffusers" => Some(format!("DiffusionPipeline.from_pretrained({})", python(name))),
        _ if loader.starts_with("diffusers") => Some(format!("diffusers.AutoModel.from_pretrained({})", python(name))),
        _ if loader.starts_with("transformers") => transformers(file, name),
        _ => None,
    }
}

/// Returns whether a file holds the network that denoises and what turns its latents into pictures.
fn holds_pipeline(path: &Path) -> bool {
    let Ok(checkpoint) = Checkpoint::open(path) else { return false };
    checkpoint
        .tensors()
        .any(|tensor| ["first_stage_model.", "vae."].iter().any(|first| tensor.name().starts_with(first)))
}

/// A GGUF file is named apart from its directory.
fn transformers(path: &Path, name: &Path) -> Option<String> {
    if SourceKind::named(name) == Some(SourceKind::Gguf) {
        let file = name.file_name()?;
        let (directory, file) = (python(directory_of(name)), python(Path::new(file)));
        return Some(format!("AutoModelForCausalLM.from_pretrained({directory}, gguf_file={file})"));
    }
    Some(format!("{}.from_pretrained({})", class(path), python(name)))
}

/// The ends of architectures' names for which transformers has a class that chooses among them by that end.
const TASKS: [&str; 8] = [
    "ForAudioClassification",
    "ForCTC",
    "ForImageClassification",
    "ForMaskedLM",
    "ForMultipleChoice",
    "ForQuestionAnswering",
    "ForSequenceClassification",
    "ForTokenClassification",
];

/// transformers' class for the architecture that config.json names.
fn class(directory: &Path) -> String {
    let config = std::fs::read(directory.join("config.json")).unwrap_or_default();
    let config: Value = serde_json::from_slice(&config).unwrap_or_default();
    let architecture = config["architectures"][0].as_str().unwrap_or_default();
    if let Some(task) = TASKS.iter().find(|task| architecture.ends_with(**task)) {
        return format!("AutoModel{task}");
    }
    let class = match architecture {
        "WhisperForConditionalGeneration" => "AutoModelForSpeechSeq2Seq",
        name if !name.ends_with("ForConditionalGeneration") && name.ends_with("Model") => "AutoModel",
        name if !name.ends_with("ForConditionalGeneration") => "AutoModelForCausalLM",
        _ if config["vision_config"].is_object() => "AutoModelForImageTextToText",
        _ if config["is_encoder_decoder"] == true => "AutoModelForSeq2SeqLM",
        _ => "AutoModelForCausalLM",
    };
    class.to_owned()
}

/// A string for Python; of a path that is not UTF-8 the one that Python itself makes of it.
fn python(path: &Path) -> String {
    let mut literal = String::new();
    for chunk in path.as_os_str().as_encoded_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' | '"' => literal.extend(['\\', c]),
                c if c.is_control() => literal.push_str(&format!("\\u{:04x}", u32::from(c))),
                c => literal.push(c),
            }
        }
        // What Python's decoder (`surrogateescape`) makes of such a byte.
        chunk.invalid().iter().for_each(|byte| literal.push_str(&format!("\\udc{byte:02x}")));
    }
    format!("\"{literal}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_has_a_load_line_for_every_loader() {
        for format in OutputFormat::all().filter(|format| *format != OutputFormat::PlainFloats) {
            assert!(
                lines(&format.loaders(), Path::new("out")).iter().all(|(_, line)| line.is_some()),
                "{}",
                format.name()
            );
        }
    }

    #[test]
    fn transformers_load_lines_handle_gguf_and_modalities() {
        let call = |path: &Path| line("transformers", path, path).unwrap();
        let files = [("m.gguf", ".", "m.gguf"), ("out/m.gguf", "out", "m.gguf"), ("M.GGUF", ".", "M.GGUF")];
        for (path, directory, name) in files {
            let expected = format!("AutoModelForCausalLM.from_pretrained(\"{directory}\", gguf_file=\"{name}\")");
            assert_eq!(call(Path::new(path)), expected);
        }
        let model = tempfile::tempdir().unwrap();
        for (architecture, class) in [
            ("Qwen2VLForConditionalGeneration", "AutoModelForImageTextToText"),
            ("BertForMaskedLM", "AutoModelForMaskedLM"),
            ("BertModel", "AutoModel"),
            ("LlamaForCausalLM", "AutoModelForCausalLM"),
        ] {
            let config = format!(r#"{{"architectures": ["{architecture}"], "vision_config": {{}}}}"#);
            std::fs::write(model.path().join("config.json"), config).unwrap();
            assert!(call(model.path()).starts_with(&format!("{class}.from_pretrained(")), "{architecture}");
        }
    }

    #[test]
    fn unusual_paths_are_quoted() {
        let path = Path::new("my model's \"x\"");
        let lines = lines(&["vLLM", "transformers"], path);
        assert_eq!(lines[0].1.as_deref().unwrap(), "vllm serve 'my model'\\''s \"x\"'");
        assert_eq!(lines[1].1.as_deref().unwrap(), "AutoModelForCausalLM.from_pretrained(\"my model's \\\"x\\\"\")");
    }
}
