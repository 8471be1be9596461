//! Generated text in words.

use super::Remark;
use crate::generation::report::{GeneratedPrompt, GeneratedText, GenerationReport, Speed};
use kvant_quant::counts::number;

impl GenerationReport {
    /// The texts. One without a reference stands alone.
    pub fn text(&self) -> String {
        match self.prompts.as_slice() {
            [only] if only.reference.is_none() => only.model.text.clone(),
            prompts => prompts.iter().map(block).collect::<Vec<_>>().join("\n\n"),
        }
    }

    /// How fast it was, and where the texts of both models differ.
    pub fn remarks(&self) -> Vec<Remark> {
        let mut lines: Vec<String> =
            self.prompts.iter().enumerate().filter_map(|(i, prompt)| self.compared(i, prompt)).collect();
        lines.push(speed("model", &self.speed));
        lines.extend(self.reference_speed.as_ref().map(|speed_| speed("reference", speed_)));
        let activations = self.activations.iter().map(|line| format!("quantized activations: {line}"));
        lines.into_iter().map(Remark::Summary).chain(activations.map(Remark::Detail)).collect()
    }

    fn compared(&self, index: usize, prompt: &GeneratedPrompt) -> Option<String> {
        prompt.reference.as_ref()?;
        let place = if self.prompts.len() > 1 { format!("prompt {}: ", index + 1) } else { String::new() };
        Some(match prompt.first_difference() {
            None => format!("{place}both texts are the same {}", number(prompt.model.tokens.len(), "token")),
            Some(same) => format!("{place}the texts first differ after {}", number(same, "token")),
        })
    }
}

/// A prompt, and what each model says.
fn block(prompt: &GeneratedPrompt) -> String {
    let part = |title: &str, text: &GeneratedText| format!("{title}\n{}", text.text);
    let mut parts = vec![format!("[prompt]\n{}", prompt.prompt), part("[model]", &prompt.model)];
    parts.extend(prompt.reference.as_ref().map(|reference| part("[reference]", reference)));
    parts.join("\n")
}

fn speed(whose: &str, speed: &Speed) -> String {
    format!(
        "{whose}: {} in {:.2} s, {:.1} tokens/s after the prompt",
        number(speed.new_tokens, "token"),
        speed.seconds,
        speed.tokens_per_second()
    )
}
