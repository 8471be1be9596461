//! Evaluations as objects of `docs/schemas/eval.schema.json`.

use super::changed;
use super::choices::ChoicesReport;
use super::models::{ModelSize, ModelsReport};
use super::{EncoderReport, EvaluationReport, TextReport, TextRun};
use crate::json::path;
use kvant_forward::evaluation::{Comparison, ContextRange, RangeComparison, ReadoutComparison};
use serde_json::{Value, json};

impl EvaluationReport {
    /// The report as an object of `docs/schemas/eval.schema.json`, without its `schema` key.
    pub fn to_json(&self) -> Value {
        match self {
            EvaluationReport::Text(report) => report.to_json(),
            EvaluationReport::Encoder(report) => report.to_json(),
            EvaluationReport::Graph(report) => json!(report),
            EvaluationReport::Time(time) => json!({ "time": time }),
            EvaluationReport::Choices(report) => report.to_json(),
            EvaluationReport::Models(report) => report.to_json(),
        }
    }
}

impl TextReport {
    fn to_json(&self) -> Value {
        let found = &self.found;
        let mut object = json!({
            "perplexity": found.perplexity,
            "perplexity_error": found.perplexity_error,
            "tokens": found.tokens,
            "windows": found.windows,
            "seq_len": found.window,
            "seconds": found.seconds,
            "tokens_per_second": found.tokens_per_second(),
            "data": self.data,
            "positions": found.ranges.iter().map(position_range).collect::<Value>(),
        });
        if let (Some(comparison), Value::Object(object)) = (&found.comparison, &mut object) {
            object.extend(compared(comparison));
            object.insert("changed_tokens".to_owned(), changed::to_json(&comparison.changed, &self.changed));
        }
        match &self.run {
            TextRun::Forward { activations } => {
                object["quantized_activations"] = json!(activations);
                if let Some(comparison) = &found.comparison {
                    object["blocks"] = blocks(&comparison.blocks);
                }
            }
            TextRun::Engine(name) => object["engine"] = json!(name),
        }
        object
    }
}

impl EncoderReport {
    fn to_json(&self) -> Value {
        let found = &self.found;
        let readout = |readout: &ReadoutComparison| json!({"name": readout.name, "sqnr_db": readout.decibels, "top1_agreement": readout.agreement});
        json!({
            "sequences": found.sequences,
            "tokens": found.tokens,
            "seq_len": found.window,
            "seconds": found.seconds,
            "tokens_per_second": found.tokens_per_second(),
            "pooling": found.pooling.name(),
            "embedding_cosine_mean": found.mean_cosine,
            "embedding_cosine_min": found.least_cosine,
            "hidden_sqnr_db": found.hidden_decibels,
            "outputs": found.readouts.iter().map(readout).collect::<Value>(),
            "blocks": blocks(&found.blocks),
            "quantized_activations": self.activations,
        })
    }
}

/// The tokens at some positions of their windows.
fn position_range(range: &ContextRange) -> Value {
    let mut object = json!({
        "from": range.from,
        "to": range.to,
        "tokens": range.tokens,
        "loss_mean": range.loss.value,
        "loss_mean_error": range.loss.error,
    });
    if let Some(RangeComparison { reference_loss, kl }) = range.comparison {
        object["reference_loss_mean"] = json!(reference_loss.value);
        object["kl_mean"] = json!(kl.value);
        object["kl_mean_error"] = json!(kl.error);
    }
    object
}

fn blocks(decibels: &[f64]) -> Value {
    // JSON has no infinity: a block without error has no ratio.
    decibels.iter().enumerate().map(|(block, decibels)| json!({"block": block, "sqnr_db": decibels})).collect()
}

fn compared(comparison: &Comparison) -> impl Iterator<Item = (String, Value)> {
    let fields = [
        ("reference_perplexity", json!(comparison.reference_perplexity)),
        ("perplexity_ratio", json!(comparison.perplexity_ratio.value)),
        ("perplexity_ratio_error", json!(comparison.perplexity_ratio.error)),
        ("kl_mean", json!(comparison.kl_mean.value)),
        ("kl_mean_error", json!(comparison.kl_mean.error)),
        ("kl_p99", json!(comparison.kl_p99)),
        ("top1_agreement", json!(comparison.top1_agreement)),
        ("top1_agreement_error", json!(comparison.top1_agreement_error)),
    ];
    fields.into_iter().map(|(name, value)| (name.to_owned(), value))
}

impl ChoicesReport {
    fn to_json(&self) -> Value {
        let mut object = json!({
            "form": self.form.name(),
            "questions": self.questions,
            "accuracy": self.accuracy.value,
            "accuracy_error": self.accuracy.error,
            "accuracy_norm": self.accuracy_norm.value,
            "accuracy_norm_error": self.accuracy_norm.error,
            "seconds": self.seconds,
            "data": self.data,
            "quantized_activations": self.activations,
        });
        if let Some(comparison) = &self.comparison {
            object["reference_accuracy"] = json!(comparison.accuracy.value);
            object["reference_accuracy_error"] = json!(comparison.accuracy.error);
            object["reference_accuracy_norm"] = json!(comparison.accuracy_norm.value);
            object["reference_accuracy_norm_error"] = json!(comparison.accuracy_norm.error);
            object["flips"] = json!(comparison.flips);
            object["flips_to_right"] = json!(comparison.flips_to_right);
            object["flips_to_wrong"] = json!(comparison.flips_to_wrong);
            object["right_probability_change"] = json!(comparison.right_probability_change.value);
            object["right_probability_change_error"] = json!(comparison.right_probability_change.error);
        }
        object
    }
}

impl ModelsReport {
    fn to_json(&self) -> Value {
        let models = self.models.iter().map(|model| {
            let mut object = model.size.to_json();
            if let (Value::Object(object), Value::Object(found)) = (&mut object, model.report.to_json()) {
                // Models that run together have no time of their own.
                object.extend(
                    found.into_iter().filter(|(key, _)| !["seconds", "tokens_per_second"].contains(&key.as_str())),
                );
            }
            object
        });
        let mut object = json!({"models": models.collect::<Value>(), "seconds": self.seconds});
        if let Some(reference) = &self.reference {
            object["reference"] = reference.to_json();
        }
        object
    }
}

impl ModelSize {
    fn to_json(&self) -> Value {
        json!({"model": path(&self.path), "bytes": self.bytes, "bits_per_weight": self.bits_per_weight})
    }
}
