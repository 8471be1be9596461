//! Messages of several conventions brought to one: objects with `role` and `content`, the content a text. No rendering.

use super::document::{Document, Skip};
use serde_json::{Map, Value, json};

/// Roles of ShareGPT and similar formats, and their names in chat templates. Others are kept.
const ROLES: &[(&str, &str)] = &[
    ("human", "user"),
    ("gpt", "assistant"),
    ("chatgpt", "assistant"),
    ("bing", "assistant"),
    ("bard", "assistant"),
    ("model", "assistant"),
    ("bot", "assistant"),
    ("function_response", "tool"),
    ("observation", "tool"),
];

/// A message.
pub(super) fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// The conversation in a list of messages, a system message put before it where it has none.
pub(super) fn read(list: &[Value], system: Option<&str>) -> Result<Document, Skip> {
    let mut messages: Vec<Value> = list.iter().map(normal).collect::<Option<_>>().ok_or(Skip::NotAConversation)?;
    let starts_with_system = messages.first().is_some_and(|first| first["role"] == "system");
    if let Some(system) = system.filter(|_| !starts_with_system) {
        messages.insert(0, message("system", system));
    }
    if messages.is_empty() { Err(Skip::Empty) } else { Ok(Document::Conversation(messages)) }
}

/// A message with its other fields (calls of tools, reasoning) kept; `None` where it has no role or no text.
fn normal(message: &Value) -> Option<Value> {
    let fields = message.as_object()?;
    let role = fields.get("role").or(fields.get("from"))?.as_str()?;
    let role = ROLES.iter().find(|(theirs, _)| *theirs == role).map_or(role, |(_, ours)| ours);
    let content = fields.get("content").or(fields.get("value")).unwrap_or(&Value::Null);
    let mut normal = Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), text(content)?)]);
    let known = ["role", "from", "content", "value"];
    // Parquet files give every message the fields of all, with nulls.
    let others = fields.iter().filter(|(name, value)| !known.contains(&name.as_str()) && !value.is_null());
    normal.extend(others.map(|(name, value)| (name.clone(), value.clone())));
    (normal.len() > 2 || !normal["content"].is_null()).then_some(Value::Object(normal))
}

/// A content as one text: parts of type `text` are joined by line ends. Nothing said at all is null.
fn text(content: &Value) -> Option<Value> {
    match content {
        Value::String(_) | Value::Null => Some(content.clone()),
        Value::Array(parts) => {
            let parts: Vec<&str> = parts.iter().map(part).collect::<Option<_>>()?;
            Some(parts.join("\n").into())
        }
        _ => None,
    }
}

fn part(part: &Value) -> Option<&str> {
    if let Value::String(text) = part {
        return Some(text);
    }
    let is_text = part.get("type").is_none_or(|kind| kind == "text");
    part.get("text")?.as_str().filter(|_| is_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(list: Value) -> Result<Document, Skip> {
        read(list.as_array().unwrap(), None)
    }

    #[test]
    fn sharegpt_roles_are_mapped() {
        let shared =
            json!([{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}, {"from": "critic", "value": "c"}]);
        let expected = vec![message("user", "q"), message("assistant", "a"), message("critic", "c")];
        assert_eq!(read_all(shared), Ok(Document::Conversation(expected)));
    }

    #[test]
    fn multipart_contents_are_joined() {
        let parts =
            json!([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, "c"]}]);
        assert_eq!(read_all(parts), Ok(Document::Conversation(vec![message("user", "a\nb\nc")])));
        let image = json!([{"role": "user", "content": [{"type": "image", "text": "a"}]}]);
        assert_eq!(read_all(image), Err(Skip::NotAConversation));
    }

    #[test]
    fn system_prompt_is_prepended_once() {
        let list = [message("user", "q")];
        let with = Document::Conversation(vec![message("system", "s"), message("user", "q")]);
        assert_eq!(read(&list, Some("s")), Ok(with));
        let own = [message("system", "mine"), message("user", "q")];
        assert_eq!(read(&own, Some("s")), Ok(Document::Conversation(own.to_vec())));
    }

    #[test]
    fn tool_calls_are_kept_and_nulls_dropped() {
        let call = json!([{"role": "assistant", "content": null, "tool_calls": [1], "name": null}]);
        let expected = json!({"role": "assistant", "content": null, "tool_calls": [1]});
        assert_eq!(read_all(call), Ok(Document::Conversation(vec![expected])));
    }

    #[test]
    fn malformed_conversations_are_skipped() {
        for list in
            [json!([1]), json!(["a"]), json!([{"role": "user"}]), json!([{"content": "a"}]), json!([{"role": 1}])]
        {
            assert_eq!(read_all(list.clone()), Err(Skip::NotAConversation), "{list}");
        }
        assert_eq!(read_all(json!([])), Err(Skip::Empty));
    }
}
