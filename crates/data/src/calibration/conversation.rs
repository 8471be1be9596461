//! Messages of several conventions brought to one: objects with `role` and `content`, the content a text, or a list of texts and images.
//! No rendering.

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
    let mut normal =
        Map::from_iter([("role".to_owned(), role.into()), ("content".to_owned(), self::content(content)?)]);
    let known = ["role", "from", "content", "value"];
    // Parquet files give every message the fields of all, with nulls.
    let others = fields.iter().filter(|(name, value)| !known.contains(&name.as_str()) && !value.is_null());
    normal.extend(others.map(|(name, value)| (name.clone(), value.clone())));
    (normal.len() > 2 || !normal["content"].is_null()).then_some(Value::Object(normal))
}

/// A content as one text: parts of type `text` are joined by line ends. Where some are images, it is a list of parts: texts, and images with
/// the path that they name, or null. Nothing said at all is null.
fn content(content: &Value) -> Option<Value> {
    match content {
        Value::String(_) | Value::Null => Some(content.clone()),
        Value::Array(parts) => {
            let parts: Vec<Part> = parts.iter().map(part).collect::<Option<_>>()?;
            match parts.iter().map(Part::text).collect::<Option<Vec<&str>>>() {
                Some(texts) => Some(texts.join("\n").into()),
                None => Some(parts.into_iter().map(Part::into_value).collect()),
            }
        }
        _ => None,
    }
}

/// A part of a content.
enum Part<'p> {
    Text(&'p str),
    /// An image with its path or address; null if it states neither.
    Image(Value),
}

impl<'p> Part<'p> {
    fn text(&self) -> Option<&'p str> {
        if let Part::Text(text) = self { Some(text) } else { None }
    }

    fn into_value(self) -> Value {
        match self {
            Part::Text(text) => json!({"type": "text", "text": text}),
            Part::Image(path) => json!({"type": IMAGE, IMAGE: path}),
        }
    }
}

/// The type of parts that are images, and their key with the path.
const IMAGE: &str = "image";

/// The paths or addresses of the images in messages, in their order; null for an image that states neither.
pub(super) fn images(messages: &[Value]) -> impl Iterator<Item = &Value> {
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    parts.filter(|part| part["type"] == IMAGE).map(|part| &part[IMAGE])
}

/// Messages as chat templates take them where some have images: each content is a list of parts, those of images without a path.
pub(super) fn in_parts(messages: &[Value]) -> Vec<Value> {
    let of_message = |message: &Value| {
        let mut message = message.clone();
        match &mut message["content"] {
            Value::Array(parts) => parts.iter_mut().filter(|part| part["type"] == IMAGE).for_each(|part| {
                *part = json!({"type": IMAGE});
            }),
            text @ Value::String(_) => *text = json!([{"type": "text", "text": text.take()}]),
            _ => {}
        }
        message
    };
    messages.iter().map(of_message).collect()
}

fn part(part: &Value) -> Option<Part<'_>> {
    if let Value::String(text) = part {
        return Some(Part::Text(text));
    }
    match part.get("type").map(|kind| kind.as_str()) {
        Some(Some(kind @ ("image" | "image_url"))) => {
            // Parquet files give every part the fields of all, with nulls.
            let stated = |key: &str| part.get(key).filter(|value| !value.is_null());
            let named = [kind, "image", "image_url", "path", "url"].into_iter().find_map(stated);
            // The address in an object, as OpenAI's interface has it.
            let inner = |named: &Value| named.get("url").or(named.get("path")).cloned();
            let path = named.map_or(Value::Null, |named| inner(named).unwrap_or_else(|| named.clone()));
            Some(Part::Image(if path.is_string() { path } else { Value::Null }))
        }
        None | Some(Some("text")) => part.get("text")?.as_str().map(Part::Text),
        Some(_) => None,
    }
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
        let sound = json!([{"role": "user", "content": [{"type": "audio", "text": "a"}]}]);
        assert_eq!(read_all(sound), Err(Skip::NotAConversation));
    }

    #[test]
    fn images_stay_parts_with_the_path_that_they_name() {
        let of = |part: Value| {
            let messages = json!([{"role": "user", "content": [part, "a"]}, {"role": "assistant", "content": "b"}]);
            let Ok(Document::Conversation(messages)) = read_all(messages) else { panic!() };
            (images(&messages).cloned().collect::<Vec<Value>>(), in_parts(&messages))
        };
        for part in [
            json!({"type": "image", "image": "x.png"}),
            json!({"type": "image", "path": "x.png"}),
            json!({"type": "image_url", "image_url": {"url": "x.png"}}),
            json!({"type": "image_url", "image_url": "x.png"}),
        ] {
            let (named, rendered) = of(part);
            assert_eq!(named, [json!("x.png")]);
            assert_eq!(rendered[0]["content"], json!([{"type": "image"}, {"type": "text", "text": "a"}]));
            assert_eq!(rendered[1]["content"], json!([{"type": "text", "text": "b"}]));
        }
        assert_eq!(of(json!({"type": "image", "image": null, "path": "x.png", "text": null})).0, [json!("x.png")]);
        assert_eq!(of(json!({"type": "image"})).0, [Value::Null]);
        assert_eq!(of(json!({"type": "image", "image": {"bytes": [1]}})).0, [Value::Null]);
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
