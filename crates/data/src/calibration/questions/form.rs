//! The forms in which benchmarks publish their questions, and the texts of each.

use super::{Question, ScoredText};
use serde_json::{Map, Value};

/// Fields of which a question has one in every form.
pub(super) const MARKS: &[&str] = &["question", "endings", "sentence", "goal"];

/// A form of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionForm {
    /// ARC: `question`, `choices` with lists `text` and `label`, `answerKey`. Also CommonsenseQA.
    Arc,
    /// HellaSwag: `ctx_a` and `ctx_b` or `ctx`, `activity_label`, `endings`, `label`.
    HellaSwag,
    /// MMLU: `question`, `subject`, `choices`, `answer`.
    Mmlu,
    /// WinoGrande: `sentence` with a blank `_`, `option1`, `option2`, `answer`.
    WinoGrande,
    /// PIQA: `goal`, `sol1`, `sol2`, `label`.
    Piqa,
    /// Any other: `question`, `choices`, `answer`.
    Plain,
}

/// Why a row cannot be asked.
pub(super) struct Problem {
    pub(super) what: String,
    pub(super) hint: &'static str,
}

const ANSWERS: &str = "test splits are often published without answers: give the validation split";
const REPAIR: &str = "leave the question out, or repair it";

impl Problem {
    fn no_answer(field: &str) -> Problem {
        Problem { what: format!("`{field}` does not state the right choice"), hint: ANSWERS }
    }

    fn field(field: &str, expected: &str) -> Problem {
        Problem { what: format!("`{field}` is not {expected}"), hint: REPAIR }
    }
}

impl QuestionForm {
    /// All of them.
    pub(super) const ALL: [QuestionForm; 6] = [
        QuestionForm::Arc,
        QuestionForm::HellaSwag,
        QuestionForm::Mmlu,
        QuestionForm::WinoGrande,
        QuestionForm::Piqa,
        QuestionForm::Plain,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            QuestionForm::Arc => "ARC",
            QuestionForm::HellaSwag => "HellaSwag",
            QuestionForm::Mmlu => "MMLU",
            QuestionForm::WinoGrande => "WinoGrande",
            QuestionForm::Piqa => "PIQA",
            QuestionForm::Plain => "plain questions",
        }
    }

    /// The fields, for people.
    pub(super) fn fields(self) -> &'static str {
        match self {
            QuestionForm::Arc => "question, choices with text and label, answerKey",
            QuestionForm::HellaSwag => "ctx, activity_label, endings, label",
            QuestionForm::Mmlu => "question, subject, choices, answer",
            QuestionForm::WinoGrande => "sentence, option1, option2, answer",
            QuestionForm::Piqa => "goal, sol1, sol2, label",
            QuestionForm::Plain => "question, choices, answer",
        }
    }

    /// The form of a row; `None` for others.
    pub(super) fn of(fields: &Map<String, Value>) -> Option<QuestionForm> {
        let has = |names: &[&str]| names.iter().all(|name| fields.contains_key(*name));
        let is_list = |name: &str| fields.get(name).is_some_and(Value::is_array);
        match () {
            () if is_list("endings") && (has(&["ctx"]) || has(&["ctx_a", "ctx_b"])) => Some(QuestionForm::HellaSwag),
            () if has(&["sentence", "option1", "option2"]) => Some(QuestionForm::WinoGrande),
            () if has(&["goal", "sol1", "sol2"]) => Some(QuestionForm::Piqa),
            // As AI2 publishes ARC, the choices are inside of the question.
            () if has(&["question", "choices", "answerKey"]) => Some(QuestionForm::Arc),
            () if has(&["answerKey"]) && fields.get("question").is_some_and(Value::is_object) => {
                Some(QuestionForm::Arc)
            }
            () if is_list("choices") && has(&["question", "answer", "subject"]) => Some(QuestionForm::Mmlu),
            () if is_list("choices") && has(&["question", "answer"]) => Some(QuestionForm::Plain),
            () => None,
        }
    }

    /// The question of a row.
    pub(super) fn question(self, row: &Row<'_>) -> Result<Question, Problem> {
        match self {
            QuestionForm::Arc => arc(row),
            QuestionForm::HellaSwag => hellaswag(row),
            QuestionForm::Mmlu => mmlu(row),
            QuestionForm::WinoGrande => winogrande(row),
            QuestionForm::Piqa => piqa(row),
            QuestionForm::Plain => plain(row),
        }
    }
}

/// The fields of a row.
pub(super) struct Row<'r>(pub(super) &'r Map<String, Value>);

impl<'r> Row<'r> {
    fn text(&self, field: &str) -> Result<&'r str, Problem> {
        self.0.get(field).and_then(Value::as_str).ok_or_else(|| Problem::field(field, "a text"))
    }

    fn texts(&self, field: &str) -> Result<Vec<&'r str>, Problem> {
        let list = self.0.get(field).and_then(Value::as_array);
        let texts = list.and_then(|list| list.iter().map(Value::as_str).collect());
        texts.ok_or_else(|| Problem::field(field, "a list of texts"))
    }

    /// A number of a choice, counted from `first`, as a number or as its digits.
    fn index(&self, field: &str, first: u64, choices: usize) -> Result<usize, Problem> {
        let number = match self.0.get(field) {
            Some(Value::String(digits)) => digits.trim().parse::<u64>().ok(),
            value => value.and_then(Value::as_u64),
        };
        let index = number.and_then(|number| usize::try_from(number.checked_sub(first)?).ok());
        index.filter(|index| *index < choices).ok_or_else(|| Problem::no_answer(field))
    }
}

/// Choices behind one context.
fn choices<'t>(context: &str, texts: impl IntoIterator<Item = &'t str>) -> Vec<ScoredText> {
    let choice = |text: &str| ScoredText {
        context: context.to_owned(),
        continuation: format!(" {text}"),
        characters: text.chars().count(),
    };
    texts.into_iter().map(choice).collect()
}

fn asked(question: &str) -> String {
    format!("Question: {question}\nAnswer:")
}

fn arc(row: &Row<'_>) -> Result<Question, Problem> {
    let (question, labelled) = match row.0.get("question") {
        Some(Value::Object(inner)) => {
            let inner = Row(inner);
            let list = inner.0.get("choices").and_then(Value::as_array);
            let list = list.ok_or_else(|| Problem::field("choices", "a list"))?;
            let choice = |choice: &'_ Value| Some((choice["text"].as_str()?.to_owned(), label(&choice["label"])?));
            (inner.text("stem")?, list.iter().map(choice).collect::<Option<Vec<_>>>())
        }
        _ => {
            let parts = row.0.get("choices").and_then(|choices| Some((choices.get("text")?, choices.get("label")?)));
            let lists = parts.and_then(|(texts, labels)| Some((texts.as_array()?, labels.as_array()?)));
            let (texts, labels) =
                lists.ok_or_else(|| Problem::field("choices", "an object with lists `text` and `label`"))?;
            if texts.len() != labels.len() {
                return Err(Problem::field("choices", "as many labels as texts"));
            }
            let both = texts.iter().zip(labels).map(|(text, name)| Some((text.as_str()?.to_owned(), label(name)?)));
            (row.text("question")?, both.collect::<Option<Vec<_>>>())
        }
    };
    let labelled = labelled.ok_or_else(|| Problem::field("choices", "texts with labels"))?;
    let key = row.0.get("answerKey").and_then(label).ok_or_else(|| Problem::no_answer("answerKey"))?;
    let answer = labelled.iter().position(|(_, label)| *label == key);
    let answer = answer.ok_or_else(|| Problem::no_answer("answerKey"))?;
    Ok(Question { choices: choices(&asked(question), labelled.iter().map(|(text, _)| text.as_str())), answer })
}

/// A letter or a number.
fn label(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn hellaswag(row: &Row<'_>) -> Result<Question, Problem> {
    let context = match (row.text("ctx_a"), row.text("ctx_b")) {
        (Ok(first), Ok(second)) => format!("{first} {}", capitalized(second)),
        _ => row.text("ctx")?.to_owned(),
    };
    let query = cleaned(&format!("{}: {context}", row.text("activity_label")?));
    let endings: Vec<String> = row.texts("endings")?.into_iter().map(cleaned).collect();
    let answer = row.index("label", 0, endings.len())?;
    Ok(Question { choices: choices(&query, endings.iter().map(String::as_str)), answer })
}

/// The first letter large and the others small, as `str.capitalize` of Python.
fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().collect::<String>()).unwrap_or_default();
    first + &letters.as_str().to_lowercase()
}

/// Without what WikiHow's markup left in the text.
fn cleaned(text: &str) -> String {
    let text = text.trim().replace(" [title]", ". ");
    let (mut kept, mut rest) = (String::new(), text.as_str());
    while let Some(open) = rest.find('[') {
        let inside = &rest[open..];
        // Brackets are closed on their line.
        let close = inside.find(']').filter(|close| !inside[..*close].contains('\n'));
        kept.push_str(&rest[..open]);
        let end = close.map_or(1, |close| close + 1);
        kept.push_str(if close.is_none() { "[" } else { "" });
        rest = &inside[end..];
    }
    (kept + rest).replace("  ", " ")
}

/// The letters of choices.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

fn mmlu(row: &Row<'_>) -> Result<Question, Problem> {
    let texts = row.texts("choices")?;
    if texts.len() > LETTERS.len() {
        return Err(Problem::field("choices", "a list of at most 26 texts"));
    }
    let subject = row.text("subject")?.replace('_', " ");
    let about = match subject.is_empty() {
        true => String::new(),
        false => format!("The following are multiple choice questions (with answers) about {subject}.\n\n"),
    };
    let letters: Vec<String> = LETTERS.chars().take(texts.len()).map(String::from).collect();
    let lines: String = letters.iter().zip(&texts).map(|(letter, text)| format!("\n{letter}. {text}")).collect();
    let context = format!("{about}{}{lines}\nAnswer:", row.text("question")?.trim());
    let answer = row.0.get("answer").and_then(Value::as_str).map(str::trim);
    let answer = letters.iter().position(|letter| Some(letter.as_str()) == answer);
    let answer = answer.map_or_else(|| row.index("answer", 0, texts.len()), Ok)?;
    Ok(Question { choices: choices(&context, letters.iter().map(String::as_str)), answer })
}

/// The text behind the blank is scored with each option in the blank.
fn winogrande(row: &Row<'_>) -> Result<Question, Problem> {
    let sentence = row.text("sentence")?;
    let (before, behind) =
        sentence.split_once('_').ok_or_else(|| Problem::field("sentence", "a text with a blank `_`"))?;
    let target = behind.trim();
    if target.is_empty() {
        return Err(Problem::field("sentence", "a text with words behind its blank"));
    }
    let choice = |option: &str| ScoredText {
        context: format!("{before}{option}"),
        continuation: format!(" {target}"),
        characters: if option.is_empty() { 0 } else { target.chars().count() },
    };
    let options = [row.text("option1")?, row.text("option2")?];
    Ok(Question { choices: options.map(choice).to_vec(), answer: row.index("answer", 1, 2)? })
}

fn piqa(row: &Row<'_>) -> Result<Question, Problem> {
    let context = asked(row.text("goal")?);
    let answer = row.index("label", 0, 2)?;
    Ok(Question { choices: choices(&context, [row.text("sol1")?, row.text("sol2")?]), answer })
}

/// The answer is the text of a choice, its letter, or its number from 0 on.
fn plain(row: &Row<'_>) -> Result<Question, Problem> {
    let texts = row.texts("choices")?;
    let answer = row.0.get("answer").and_then(Value::as_str).map(str::trim);
    let is_letter = |(letter, _): (char, &&str)| Some(letter.to_string().as_str()) == answer;
    let answer = texts.iter().position(|text| Some(text.trim()) == answer);
    let answer = answer.or_else(|| LETTERS.chars().zip(&texts).position(is_letter));
    let answer = answer.map_or_else(|| row.index("answer", 0, texts.len()), Ok)?;
    Ok(Question { choices: choices(&asked(row.text("question")?), texts), answer })
}
