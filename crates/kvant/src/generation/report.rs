//! What was generated, as values and as JSON.

use kvant_forward::generation::Finish;
use serde_json::{Value, json};
use std::time::Duration;

/// The continuations of all prompts.
#[derive(Clone, Debug)]
pub struct GenerationReport {
    /// The prompts, in their order.
    pub prompts: Vec<GeneratedPrompt>,
    /// The speed of the model.
    pub speed: Speed,
    /// That of the reference.
    pub reference_speed: Option<Speed>,
    /// The activations that are quantized, in words.
    pub activations: Vec<String>,
}

/// A continued prompt.
#[derive(Clone, Debug)]
pub struct GeneratedPrompt {
    /// The prompt.
    pub prompt: String,
    /// Its tokens, the chat template's included.
    pub prompt_tokens: usize,
    /// What the model says.
    pub model: GeneratedText,
    /// What the reference says.
    pub reference: Option<GeneratedText>,
}

/// A continuation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GeneratedText {
    /// The text behind the prompt, without the text that ended it.
    pub text: String,
    /// The tokens behind the prompt, those of the text that ended it included.
    pub tokens: Vec<u32>,
    /// Why it ends.
    pub finish: Finish,
}

/// The speed of a model.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// New tokens.
    pub new_tokens: usize,
    /// Prompts, whose first new token follows from reading them.
    pub prompts: usize,
    /// The duration.
    pub seconds: f64,
    /// The part of it in which prompts were read.
    pub reading: Duration,
}

impl Speed {
    /// New tokens per second, without the time in which prompts were read and the tokens that follow from that.
    pub fn tokens_per_second(&self) -> f64 {
        let tokens = self.new_tokens.saturating_sub(self.prompts) as f64;
        tokens / (self.seconds - self.reading.as_secs_f64()).max(1e-9)
    }
}

impl GeneratedPrompt {
    /// Tokens before the first that differs from the reference's; `None` without a reference, or where all are the same.
    pub fn first_difference(&self) -> Option<usize> {
        let (ours, theirs) = (&self.model.tokens, &self.reference.as_ref()?.tokens);
        let same = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
        (same < ours.len().max(theirs.len())).then_some(same)
    }
}

impl GenerationReport {
    /// The report as an object of `docs/schemas/generate.schema.json`, without its `schema` key.
    pub fn to_json(&self) -> Value {
        let text =
            |text: &GeneratedText| json!({"text": text.text, "tokens": text.tokens, "finish": finish(text.finish)});
        let prompt = |prompt: &GeneratedPrompt| {
            let mut object = text(&prompt.model);
            object["prompt"] = json!(prompt.prompt);
            object["prompt_tokens"] = json!(prompt.prompt_tokens);
            if let Some(reference) = &prompt.reference {
                object["reference"] = text(reference);
                object["first_difference"] = json!(prompt.first_difference());
            }
            object
        };
        let mut object = json!({
            "prompts": self.prompts.iter().map(prompt).collect::<Vec<_>>(),
            "new_tokens": self.speed.new_tokens,
            "seconds": self.speed.seconds,
            "tokens_per_second": self.speed.tokens_per_second(),
            "quantized_activations": self.activations,
        });
        if let Some(speed) = &self.reference_speed {
            object["reference_tokens_per_second"] = json!(speed.tokens_per_second());
        }
        object
    }
}

fn finish(finish: Finish) -> &'static str {
    match finish {
        Finish::EndOfText => "eos",
        Finish::Length => "length",
        Finish::Stopped => "stop",
    }
}
