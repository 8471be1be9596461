//! Questions with choices: a model chooses the text that it finds likeliest. Texts, tokens and scores are those of lm-evaluation-harness
//! without examples.

use super::models::of_model;
use super::{Evaluation, refuse_given};
use crate::error::{Error, ErrorKind};
use crate::evaluated_data::EvaluatedData;
use crate::events::Reporter;
use crate::generation::language_model::{LanguageModel, TokenPair};
use crate::job::{Source, SourceKind};
use crate::paths::refuse_directory;
use crate::text::shown;
use kvant_container::Remedy;
use kvant_data::calibration::{Question, QuestionForm, Questions, ScoredText};
use kvant_data::tokenizer::ModelTokenizer;
use kvant_forward::evaluation::Mean;
use kvant_forward::forward::Decoder;
use std::path::Path;
use std::time::Instant;

/// The answers of a language model.
pub struct ChoicesReport {
    /// The form of the questions.
    pub form: QuestionForm,
    /// Their number.
    pub questions: usize,
    /// The share for which the right choice has the largest likelihood.
    pub accuracy: Mean,
    /// The share for which it has the largest log-likelihood per character of the choice.
    pub accuracy_norm: Mean,
    /// Time taken, in seconds.
    pub seconds: f64,
    /// The file with the questions.
    pub data: Option<EvaluatedData>,
    /// The activations that are quantized, in words.
    pub activations: Vec<String>,
    /// The answers beside those of the reference, if there is one.
    pub comparison: Option<ChoicesComparison>,
}

/// Answers beside those of the reference.
pub struct ChoicesComparison {
    /// The reference's share of right answers.
    pub accuracy: Mean,
    /// The same by log-likelihood per character.
    pub accuracy_norm: Mean,
    /// Questions that the models answer differently, by likelihood.
    pub flips: usize,
    /// Those that only the model answers right.
    pub flips_to_right: usize,
    /// Those that only the reference answers right.
    pub flips_to_wrong: usize,
    /// The mean over questions of the absolute difference of the probabilities of the right choice, among the choices.
    pub right_probability_change: Mean,
}

/// A question as a model answers it.
struct Answered {
    /// The likeliest choice.
    best: usize,
    is_right: bool,
    is_right_norm: bool,
    /// The probability of the right choice among the choices.
    right_probability: f64,
}

/// A model with the tokens of all choices.
struct Asked {
    model: LanguageModel,
    pairs: Vec<TokenPair>,
    activations: Vec<String>,
}

/// Has all models answer the questions, one after the other; the reference first.
pub(super) fn evaluate(evaluation: &Evaluation, reporter: &Reporter<'_>) -> Result<Vec<ChoicesReport>, Error> {
    refuse_settings(evaluation)?;
    refuse_directory("‹choices›", &evaluation.data)?;
    let all = || evaluation.models().chain(evaluation.reference.as_deref());
    all().try_for_each(refuse_other_models)?;
    let Questions { form, questions } = Questions::read(&evaluation.data, evaluation.num_samples)?;
    // Only the first model has adapters, and only where it is the only one.
    let sources = std::iter::once(evaluation.source.clone()).chain(evaluation.others.iter().map(Source::new));
    let models = sources.map(|source| asked(evaluation, source, &questions)).collect::<Result<Vec<_>, Error>>()?;
    let reference = evaluation.reference.as_deref().map(Source::new);
    let reference = reference.map(|source| asked(evaluation, source, &questions)).transpose()?;
    reporter.started();
    let reference = reference.map(|asked| answers(&asked, &questions, reporter)).transpose()?;
    let report = |asked: &Asked| {
        let start = Instant::now();
        let found = answers(asked, &questions, reporter)?;
        Ok(ChoicesReport {
            form,
            questions: questions.len(),
            accuracy: share(&found, |answered| answered.is_right),
            accuracy_norm: share(&found, |answered| answered.is_right_norm),
            seconds: start.elapsed().as_secs_f64(),
            data: None,
            activations: asked.activations.clone(),
            comparison: reference.as_deref().map(|reference| ChoicesComparison::of(&found, reference)),
        })
    };
    models.iter().map(report).collect()
}

impl ChoicesComparison {
    fn of(model: &[Answered], reference: &[Answered]) -> ChoicesComparison {
        let both = || model.iter().zip(reference);
        let count = |is: fn(&Answered, &Answered) -> bool| both().filter(|(model, other)| is(model, other)).count();
        ChoicesComparison {
            accuracy: share(reference, |answered| answered.is_right),
            accuracy_norm: share(reference, |answered| answered.is_right_norm),
            flips: count(|model, other| model.best != other.best),
            flips_to_right: count(|model, other| model.is_right && !other.is_right),
            flips_to_wrong: count(|model, other| !model.is_right && other.is_right),
            right_probability_change: Mean::of_independent(
                both().map(|(model, other)| (model.right_probability - other.right_probability).abs()),
            ),
        }
    }
}

fn share(answered: &[Answered], is: impl Fn(&Answered) -> bool) -> Mean {
    Mean::of_independent(answered.iter().map(|answered| f64::from(u8::from(is(answered)))))
}

fn refuse_settings(evaluation: &Evaluation) -> Result<(), Error> {
    evaluation.refuse_settings_of_graphs_alone()?;
    let given = [
        (evaluation.seq_len.is_some(), "‹seq-len›"),
        (evaluation.stride.is_some(), "‹stride›"),
        (evaluation.column.is_some(), "‹column›"),
    ];
    refuse_given(&given, "does not apply to questions with choices", "leave it out")
}

/// Refuses what does not predict text.
fn refuse_other_models(model: &Path) -> Result<(), Error> {
    if SourceKind::of(model) != SourceKind::Graph {
        return Ok(());
    }
    let message = format!("{} is an ONNX graph, and only checkpoints and GGUF files answer questions", shown(model));
    let remedy = Remedy::text("give the checkpoint that the graph was made from");
    Err(Error::new(ErrorKind::Unsupported, message).with_remedies(vec![remedy]))
}

/// A model with the tokens of all choices. Refuses encoders, models without a tokenizer, and choices that are too long.
fn asked(evaluation: &Evaluation, source: Source, questions: &[Question]) -> Result<Asked, Error> {
    let name = source.model.clone();
    let named = |error: Error| of_model(&name, error);
    let checkpoint = source.open()?;
    let activations = Decoder::open(&checkpoint).map_err(|error| named(error.into()))?.quantized_activations();
    let (precision, limits) = (evaluation.precision, evaluation.limits.clone());
    let model =
        LanguageModel { tokenizer: evaluation.tokenizer.clone(), precision, limits, ..LanguageModel::new(source) };
    let (tokenizer, facts) = (model.tokenizer().map_err(named)?, model.facts().map_err(named)?);
    let prefix = facts.begin_token.or_else(|| facts.end_tokens.first().copied());
    let choices = questions.iter().flat_map(|question| &question.choices);
    let pairs =
        choices.map(|choice| pair(&tokenizer, choice, prefix)).collect::<Result<Vec<_>, Error>>().map_err(named)?;
    LanguageModel::check_pairs(&pairs, facts.max_length).map_err(named)?;
    Ok(Asked { model, pairs, activations })
}

/// The tokens of a text, divided where the scored part begins: as lm-evaluation-harness divides it, spaces at the end of the context belong to
/// what follows, and both are tokenized together.
fn pair(tokenizer: &ModelTokenizer, text: &ScoredText, prefix: Option<u32>) -> Result<TokenPair, Error> {
    let before = text.context.trim_end();
    let whole = tokenizer.encode(&format!("{}{}", text.context, text.continuation))?;
    let context = if before.is_empty() { Vec::new() } else { tokenizer.encode(before)? };
    // A token may reach over the border; at least the last one is scored.
    let border = context.len().min(whole.len().saturating_sub(1));
    let context = match (border, prefix) {
        (0, Some(prefix)) => vec![prefix],
        _ => whole[..border].to_vec(),
    };
    Ok(TokenPair { context, continuation: whole[border..].to_vec() })
}

/// What a model answers to each question.
fn answers(asked: &Asked, questions: &[Question], reporter: &Reporter<'_>) -> Result<Vec<Answered>, Error> {
    let found = asked.model.likelihoods(&asked.pairs, reporter)?;
    let mut found = found.into_iter().map(|likelihood| likelihood.log_likelihood);
    let answered = |question: &Question| {
        let scores: Vec<f64> = found.by_ref().take(question.choices.len()).collect();
        let lengths = question.choices.iter().map(|choice| choice.characters as f64);
        let normalised: Vec<f64> = scores.iter().zip(lengths).map(|(score, length)| score / length).collect();
        let best = largest(&scores);
        let sum: f64 = scores.iter().map(|score| (score - scores[best]).exp()).sum();
        Answered {
            best,
            is_right: best == question.answer,
            is_right_norm: largest(&normalised) == question.answer,
            right_probability: (scores[question.answer] - scores[best]).exp() / sum,
        }
    };
    Ok(questions.iter().map(answered).collect())
}

/// The index of the largest value, the first of equal ones.
fn largest(values: &[f64]) -> usize {
    let better = |best: usize, index: usize| if values[index] > values[best] { index } else { best };
    (0..values.len()).fold(0, better)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(best: usize, answer: usize, right_probability: f64) -> Answered {
        Answered { best, is_right: best == answer, is_right_norm: true, right_probability }
    }

    #[test]
    fn flips_count_answers_that_differ() {
        let model = [answered(0, 0, 0.75), answered(1, 0, 0.25), answered(2, 0, 0.1), answered(1, 1, 0.9)];
        let reference = [answered(1, 0, 0.5), answered(0, 0, 0.5), answered(1, 0, 0.2), answered(1, 1, 0.9)];
        let found = ChoicesComparison::of(&model, &reference);
        assert_eq!((found.flips, found.flips_to_right, found.flips_to_wrong), (3, 1, 1));
        assert!((found.right_probability_change.value - (0.25 + 0.25 + 0.1) / 4.0).abs() < 1e-12);
        assert_eq!(found.accuracy.value, 0.5);
        assert!((found.accuracy.error - (0.25f64 / 3.0).sqrt()).abs() < 1e-12, "as the harness: a sample of four");
    }

    #[test]
    fn first_of_equal_choices_wins() {
        assert_eq!(largest(&[-2.0, -1.0, -1.0]), 1);
    }
}
