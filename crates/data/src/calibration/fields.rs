//! The fields of a row that hold its text: a table of names, and the conversion of a row to a document.

use super::document::{Document, Sink, Skip};
use super::{CalibrationDataError, conversation};
use serde_json::{Map, Value};
use std::ops::ControlFlow;

/// The conversion of a row's fields to a document.
enum Rule {
    /// A field with a text, a conversation or tokens.
    Whole(&'static str),
    /// A text and its continuation, joined as they are; or two parts of a conversation.
    Joined(&'static str, &'static str),
    /// A user's question and an assistant's answer.
    Turn(&'static str, &'static str),
}

/// The rules, tried in this order. Names are those of the data sets in use: ShareGPT, Alpaca, Dolly, UltraChat, GSM8K and
/// preference data, of which the chosen answer counts.
const RULES: &[Rule] = &[
    Rule::Whole("input_ids"),
    Rule::Whole("messages"),
    Rule::Whole("conversations"),
    Rule::Whole("conversation"),
    Rule::Whole("text"),
    Rule::Whole("content"),
    Rule::Joined("prompt", "completion"),
    Rule::Turn("instruction", "output"),
    Rule::Turn("instruction", "response"),
    Rule::Turn("question", "answer"),
    Rule::Turn("query", "response"),
    Rule::Turn("prompt", "response"),
    Rule::Turn("prompt", "chosen"),
    Rule::Turn("problem", "solution"),
    Rule::Whole("chosen"),
];

/// Fields that add to another: what an instruction is about, and what stands before a conversation.
const ADDED: &[&str] = &["input", "context", "system", MASK];
/// Which tokens of `input_ids` count.
const MASK: &str = "attention_mask";

/// Fields with images that the text of a row names, as data of LLaVA and LLaMA-Factory have them.
const IMAGES: [&str; 2] = ["image", "images"];

/// Returns whether a field can matter to [`document`].
pub(super) fn is_relevant(name: &str, column: Option<&str>) -> bool {
    match column {
        Some(column) => name == column || ADDED.contains(&name),
        None => ADDED.contains(&name) || RULES.iter().any(|rule| rule.names().contains(&name)),
    }
}

/// Takes rows with their fields, and hands them on as documents.
pub(super) fn documents(
    column: Option<&str>,
    sink: &mut Sink<'_>,
) -> impl FnMut(Result<Value, Skip>) -> Result<ControlFlow<()>, CalibrationDataError> {
    move |row| sink(row.and_then(|row| document(&row, column)).into())
}

/// A row as a document: a bare text, a bare conversation, or an object whose fields are known or named by `column`.
pub(super) fn document(row: &Value, column: Option<&str>) -> Result<Document, Skip> {
    let Value::Object(fields) = row else { return whole(row, &Map::new()).ok_or(Skip::NoFields)? };
    let found = match column {
        Some(column) => fields.get(column).and_then(|value| whole(value, fields)),
        None => RULES.iter().find_map(|rule| rule.apply(fields)),
    };
    let found = found.ok_or(Skip::NoText)??;
    match IMAGES.iter().any(|name| fields.get(*name).is_some_and(is_given)) && !found.has_images() {
        true => Err(Skip::ImagesBeside),
        false => Ok(found),
    }
}

/// Returns whether a field states something.
fn is_given(value: &Value) -> bool {
    match value {
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

impl Rule {
    fn names(&self) -> [&'static str; 2] {
        match *self {
            Rule::Whole(name) => [name, name],
            Rule::Joined(first, second) | Rule::Turn(first, second) => [first, second],
        }
    }

    /// `None` where the rule is not for this row.
    fn apply(&self, fields: &Map<String, Value>) -> Option<Result<Document, Skip>> {
        match *self {
            Rule::Whole(name) => whole(fields.get(name)?, fields),
            Rule::Joined(first, second) => joined(fields.get(first)?, fields.get(second)?),
            Rule::Turn(ask, reply) => {
                let (ask, reply) = (fields.get(ask)?.as_str()?, fields.get(reply)?.as_str()?);
                Some(Ok(turn(ask, reply, fields)))
            }
        }
    }
}

fn whole(value: &Value, fields: &Map<String, Value>) -> Option<Result<Document, Skip>> {
    match value {
        Value::String(text) => Some(Ok(Document::Text(text.clone()))),
        Value::Array(list) if list.first().is_some_and(Value::is_number) => {
            Some(tokens(list, fields.get(MASK)).ok_or(Skip::NoText))
        }
        Value::Array(list) => Some(conversation::read(list, text_of(fields, "system"))),
        _ => None,
    }
}

fn joined(first: &Value, second: &Value) -> Option<Result<Document, Skip>> {
    match (first, second) {
        (Value::String(first), Value::String(second)) => Some(Ok(Document::Text(format!("{first}{second}")))),
        (Value::Array(first), Value::Array(second)) => Some(conversation::read(&[&first[..], second].concat(), None)),
        _ => None,
    }
}

fn turn(ask: &str, reply: &str, fields: &Map<String, Value>) -> Document {
    let about = text_of(fields, "input").or(text_of(fields, "context"));
    let ask = about.map_or(ask.to_owned(), |about| format!("{ask}\n\n{about}"));
    let system = text_of(fields, "system").map(|text| conversation::message("system", text));
    let turns = [conversation::message("user", &ask), conversation::message("assistant", reply)];
    Document::Conversation(system.into_iter().chain(turns).collect())
}

fn text_of<'a>(fields: &'a Map<String, Value>, name: &str) -> Option<&'a str> {
    fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty())
}

/// Numbers that no token can be stay out of every vocabulary.
fn tokens(list: &[Value], mask: Option<&Value>) -> Option<Document> {
    let tokens: Vec<i64> = list.iter().map(Value::as_i64).collect::<Option<_>>()?;
    let Some(mask) = mask.and_then(Value::as_array) else { return Some(Document::Tokens(tokens)) };
    let counts = mask.iter().map(|bit| bit.as_i64() != Some(0));
    Some(Document::Tokens(
        tokens.into_iter().zip(counts).filter_map(|(token, counts)| counts.then_some(token)).collect(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn text(row: Value) -> String {
        match document(&row, None) {
            Ok(Document::Text(text)) => text,
            other => panic!("{row}: {other:?}"),
        }
    }

    fn turns(row: Value) -> Vec<(String, String)> {
        let Ok(Document::Conversation(messages)) = document(&row, None) else { panic!("{row}") };
        let get = |message: &Value, key: &str| message[key].as_str().unwrap().to_owned();
        messages.iter().map(|message| (get(message, "role"), get(message, "content"))).collect()
    }

    fn pairs(turns: &[(&str, &str)]) -> Vec<(String, String)> {
        turns.iter().map(|&(role, content)| (role.to_owned(), content.to_owned())).collect()
    }

    #[test]
    fn rows_with_images_in_a_field_are_not_read_as_text() {
        let turns = json!([{"from": "human", "value": "<image>What is it?"}, {"from": "gpt", "value": "A cat."}]);
        for images in [json!({"image": "a.png"}), json!({"images": ["a.png"]}), json!({"image": {"path": "a.png"}})] {
            let mut row = images.as_object().unwrap().clone();
            row.insert("conversations".to_owned(), turns.clone());
            assert_eq!(document(&Value::Object(row), None), Err(Skip::ImagesBeside), "{images}");
        }
        for row in [json!({"text": "a", "images": []}), json!({"text": "a", "image": null, "images": ""})] {
            assert_eq!(text(row), "a");
        }
        let inside = json!([{"role": "user", "content": [{"type": "image", "image": "a.png"}]}]);
        assert!(document(&json!({"messages": inside, "image": "a.png"}), None).unwrap().has_images());
    }

    #[test]
    fn text_fields_are_found_by_name() {
        assert_eq!(text(json!("bare")), "bare");
        assert_eq!(text(json!({"id": 1, "text": "a", "content": "b"})), "a");
        assert_eq!(text(json!({"text": null, "content": "b"})), "b");
        assert_eq!(text(json!({"prompt": "2 + 2 =", "completion": " 4"})), "2 + 2 = 4");
    }

    #[test]
    fn question_and_answer_fields_become_conversations() {
        let asked = pairs(&[("user", "q"), ("assistant", "a")]);
        assert_eq!(turns(json!({"question": "q", "answer": "a"})), asked);
        assert_eq!(turns(json!({"prompt": "q", "chosen": "a", "rejected": "b"})), asked);
        assert_eq!(turns(json!({"instruction": "q", "input": "", "output": "a"})), asked);
        let alpaca = json!({"instruction": "Sum up", "input": "this", "output": "a", "system": "Be brief"});
        assert_eq!(turns(alpaca), pairs(&[("system", "Be brief"), ("user", "Sum up\n\nthis"), ("assistant", "a")]));
    }

    #[test]
    fn message_lists_become_conversations() {
        let list = json!([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]);
        let asked = pairs(&[("user", "q"), ("assistant", "a")]);
        for row in [json!({"messages": list, "prompt": "q"}), json!({"chosen": list, "prompt": "q"}), list.clone()] {
            assert_eq!(turns(row), asked);
        }
        assert_eq!(turns(json!({"prompt": [list[0]], "completion": [list[1]]})), asked);
    }

    #[test]
    fn tokens_are_taken_without_padding() {
        let row = json!({"input_ids": [5, 6, 0, 0], "attention_mask": [1, 1, 0, 0]});
        assert_eq!(document(&row, None), Ok(Document::Tokens(vec![5, 6])));
        assert_eq!(document(&json!([5, -6]), None), Ok(Document::Tokens(vec![5, -6])));
        assert_eq!(document(&json!({"input_ids": [5, 0.5]}), None), Err(Skip::NoText));
    }

    #[test]
    fn named_column_wins() {
        let row = json!({"text": "a", "body": "b", "talk": [{"role": "user", "content": "q"}]});
        assert_eq!(document(&row, Some("body")), Ok(Document::Text("b".into())));
        assert!(matches!(document(&row, Some("talk")), Ok(Document::Conversation(_))));
        assert_eq!(document(&row, Some("no")), Err(Skip::NoText));
    }

    #[test]
    fn rows_without_text_are_skipped_with_a_reason() {
        for row in [json!({"a": 1}), json!({"text": {"x": 1}}), json!({"question": "q"})] {
            assert_eq!(document(&row, None), Err(Skip::NoText), "{row}");
        }
        for row in [json!(7), json!(null)] {
            assert_eq!(document(&row, None), Err(Skip::NoFields), "{row}");
        }
    }
}
