//! Features that templates in use rely on, and limits of hostile ones.

use super::*;
use serde_json::{Value as Json, json};

fn open(source: &str) -> Result<ChatTemplate, CalibrationDataError> {
    let dir = tempfile::tempdir().unwrap();
    let config =
        json!({"chat_template": source, "bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false}});
    std::fs::write(dir.path().join("tokenizer_config.json"), config.to_string()).unwrap();
    Ok(ChatTemplate::open(dir.path())?.unwrap())
}

fn render(source: &str, messages: &Json) -> String {
    match open(source).unwrap().render(messages.as_array().unwrap()).unwrap() {
        Rendered::Text(text) => text,
        Rendered::Refused(why) => panic!("{why}"),
    }
}

fn hello() -> Json {
    json!([{"role": "user", "content": " Hi <b> "}, {"role": "assistant", "content": "Hello\n"}])
}

#[test]
fn template_renders_messages_and_special_tokens() {
    let source =
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content | trim }}{% endfor %}{{ eos_token }}";
    assert_eq!(render(source, &hello()), "<s>[user]Hi <b>[assistant]Hello</s>");
}

#[test]
fn template_blocks_leave_no_whitespace() {
    let source = "{% for m in messages %}\n    {% if m.role == 'user' %}\nU\n    {% endif %}\n{% endfor %}\nend\n";
    assert_eq!(render(source, &hello()), "U\nend");
}

#[test]
fn python_methods_in_templates_work() {
    let cases = [
        ("{{ messages[0].content.strip().upper() }}", "HI <B>"),
        ("{{ messages[1:][0]['content'].rstrip('\\n') }}", "Hello"),
        ("{{ 'a</think>b'.split('</think>')[-1] }}{{ 'ab'.startswith('a') }}", "bTrue"),
        ("{{ none }} {{ true }} {{ 1 }} {{ 'x' }} {{ 1.0 }}", "None True 1 x 1.0"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}",
            "assistant",
        ),
        ("{% if tools is defined and tools %}T{% endif %}{% if not add_generation_prompt %}N{% endif %}", "N"),
        ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " Hi <b> "}"#),
        (
            "{{ {'b': [1, 'é'], 'a': {}} | tojson(indent=2, sort_keys=true) }}",
            "{\n  \"a\": {},\n  \"b\": [\n    1,\n    \"é\"\n  ]\n}",
        ),
        ("{{ strftime_now('%d %b %Y, %A %%') }}", "26 Jul 2024, Friday %"),
        ("{%- generation -%} a {%- endgeneration %}b", "ab"),
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f(1) }}", "<1>"),
    ];
    for (source, expected) in cases {
        assert_eq!(render(source, &hello()), expected, "{source}");
    }
}

#[test]
fn template_refusals_keep_their_message() {
    let refused = open("a\n{{ raise_exception('roles must alternate') }}").unwrap().render(&[]).unwrap();
    assert_eq!(refused, Rendered::Refused("the chat template, line 2: roles must alternate".to_owned()));
    let unknown = open("{{ messages.nothing.more }}").unwrap().render(&[]).unwrap();
    assert!(matches!(unknown, Rendered::Refused(_)), "{unknown:?}");
}

#[test]
fn unparsable_templates_are_refused() {
    let error = open("a\n{% if %}").unwrap_err();
    assert!(matches!(&error, CalibrationDataError::Template { message, .. } if message.contains("line 2")), "{error}");
}

#[test]
fn endless_templates_are_stopped() {
    let many = "{% for i in range(9999) %}{% for i in range(9999) %}{% endfor %}{% endfor %}";
    let long = "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}";
    for source in [many, long] {
        let error = open(source).unwrap().render(&[]).unwrap_err();
        assert!(
            matches!(&error, CalibrationDataError::Template { message, .. } if message.contains("no end")),
            "{error}"
        );
    }
    let deep = "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}";
    assert!(matches!(open(deep).unwrap().render(&[]), Ok(Rendered::Refused(_))));
}

#[test]
fn templates_are_found_where_transformers_finds_them() {
    let dir = tempfile::tempdir().unwrap();
    let found = || ChatTemplate::open(dir.path()).unwrap().map(|template| template.render(&[]).unwrap());
    assert_eq!(found(), None);
    std::fs::write(dir.path().join("chat_template.json"), r#"{"chat_template": "old"}"#).unwrap();
    assert_eq!(found(), Some(Rendered::Text("old".into())));
    let named = json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
    std::fs::write(dir.path().join("tokenizer_config.json"), named.to_string()).unwrap();
    assert_eq!(found(), Some(Rendered::Text("d".into())));
    std::fs::write(dir.path().join("chat_template.jinja"), "j{{ bos_token }}").unwrap();
    std::fs::write(dir.path().join("special_tokens_map.json"), r#"{"bos_token": {"content": "<s>"}}"#).unwrap();
    assert_eq!(found(), Some(Rendered::Text("j<s>".into())));
}

#[test]
fn gguf_template_is_read_from_metadata() {
    use kvant_container::gguf::{GgufLayout, Metadata, Text};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.gguf");
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.tokens", vec![Text::from("<s>"), Text::from("a")]);
    metadata.set("tokenizer.ggml.bos_token_id", 0u32);
    let write = |metadata: &Metadata| {
        let layout = GgufLayout::new("model.gguf", metadata, Vec::new()).unwrap();
        std::fs::write(&path, &layout.files()[0].header).unwrap();
    };
    write(&metadata);
    assert!(ChatTemplate::open(&path).unwrap().is_none());
    metadata.set("tokenizer.chat_template", "{{ bos_token }}{{ messages[0].content }}");
    write(&metadata);
    let template = ChatTemplate::open(&path).unwrap().unwrap();
    let messages = [json!({"role": "user", "content": "hello"})];
    assert_eq!(template.render(&messages).unwrap(), Rendered::Text("<s>hello".into()));
}
