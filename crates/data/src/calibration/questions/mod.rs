//! Questions with choices, as benchmarks publish them: from rows to the texts that a model scores. A model chooses the text that it finds
//! likeliest. Texts are those of lm-evaluation-harness without examples, so that results are comparable with its.

mod form;

pub use form::QuestionForm;

use super::CalibrationDataError;
use super::document::Skip;
use super::error::shorten;
use super::files::{DataFile, Reading};
use form::Row;
use serde_json::Value;
use std::ops::ControlFlow;
use std::path::Path;

/// The most bytes that are read of a file, counted after decompression.
const MOST: u64 = 16 << 30;

/// The questions of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Questions {
    /// The form of all rows.
    pub form: QuestionForm,
    /// The questions, in the order of the file; at least one.
    pub questions: Vec<Question>,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// A text for each choice, at least two.
    pub choices: Vec<ScoredText>,
    /// The index of the right one.
    pub answer: usize,
}

/// A text whose end is scored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoredText {
    /// The text before.
    pub context: String,
    /// The text that is scored, with the space that separates it.
    pub continuation: String,
    /// Characters that a normalised likelihood is divided by, at least one: those of the choice, without the space.
    pub characters: usize,
}

impl Questions {
    /// Reads a file of JSON, JSON lines or Parquet; at most the first `most` questions. All rows have the form of the first.
    ///
    /// # Errors
    ///
    /// Files that are missing, damaged or too large; rows in an unknown form, without a right answer, with fewer than two choices or with
    /// empty ones.
    pub fn read(file: &Path, most: Option<usize>) -> Result<Questions, CalibrationDataError> {
        let unknown = || CalibrationDataError::QuestionFormat { file: file.to_path_buf() };
        let data = DataFile::or_text(file.to_path_buf()).ok_or_else(unknown)?;
        let rows = data.format.rows().ok_or_else(unknown)?;
        let reading = Reading { max_bytes: MOST, max_document: MOST, column: None, marks: Some(form::MARKS) };
        let (mut form, mut questions, mut row) = (None, Vec::new(), 0);
        rows(&data, &reading, &mut |fields| {
            row += 1;
            let (found, question) = question(file, row, fields)?;
            let expected = *form.get_or_insert(found);
            if found != expected {
                let what = format!("a question of {}, and the first one is of {}", found.name(), expected.name());
                return Err(refused(file, row, what, "give a file of each form"));
            }
            questions.push(question);
            Ok(match most.is_some_and(|most| questions.len() >= most) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        })?;
        let form = form.ok_or_else(|| CalibrationDataError::NoQuestion { file: file.to_path_buf() })?;
        Ok(Questions { form, questions })
    }
}

/// The question of a row, with its form.
fn question(
    file: &Path,
    row: u64,
    fields: Result<Value, Skip>,
) -> Result<(QuestionForm, Question), CalibrationDataError> {
    let fields = fields.map_err(|skip| refused(file, row, format!("it is {skip}"), skip.hint()))?;
    let unknown = |found: String| CalibrationDataError::UnknownQuestion { file: file.to_path_buf(), row, found };
    let Value::Object(fields) = fields else { return Err(unknown("it has no fields".to_owned())) };
    let Some(form) = QuestionForm::of(&fields) else {
        let names: Vec<&str> = fields.keys().map(String::as_str).collect();
        return Err(unknown(shorten(&format!("its fields are {}", names.join(", ")))));
    };
    let question = form.question(&Row(&fields)).map_err(|problem| refused(file, row, problem.what, problem.hint))?;
    let what = match &question.choices[..] {
        [] | [_] => "a question needs at least two choices".to_owned(),
        choices => match choices.iter().position(|choice| choice.characters == 0) {
            Some(choice) => format!("choice {} is empty", choice + 1),
            None => return Ok((form, question)),
        },
    };
    Err(refused(file, row, what, "leave the question out, or repair it"))
}

fn refused(file: &Path, row: u64, what: String, hint: &'static str) -> CalibrationDataError {
    CalibrationDataError::Question { file: file.to_path_buf(), row, what: shorten(&what), hint }
}

/// A sentence that names the forms.
pub(super) fn known_forms() -> String {
    let forms = QuestionForm::ALL.map(|form| format!("{} ({})", form.name(), form.fields()));
    format!("known are rows of {}", forms.join("; "))
}

#[cfg(test)]
mod tests;
