//! The front matter of a model card: the YAML between two lines of dashes that the Hugging Face Hub reads. Cards of sources are hostile
//! input: their YAML is bounded, and what is kept of it is short text without control characters.

use kvant_checkpoint::recipe::read_yaml;
use kvant_container::is_hub_name;
use serde_json::Value;

/// Keys that say the same of a quantized model as of its source.
const KEPT: [&str; 5] = ["license", "license_name", "license_link", "language", "datasets"];
/// The most values of a list that are kept.
const MOST_VALUES: usize = 64;
/// The most bytes of a value that is kept.
const LONGEST_VALUE: usize = 200;
/// Words that YAML does not read as text.
const WORDS: [&str; 9] = ["y", "n", "yes", "no", "on", "off", "true", "false", "null"];

/// The card of a source, in its two parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct SourceCard {
    /// The front matter as text.
    pub yaml: String,
    /// Its fields, if they could be read.
    fields: Value,
    /// Everything behind it.
    pub body: String,
}

impl SourceCard {
    /// Takes a card apart. Without front matter, or with one that never ends, all of it is the body.
    ///
    /// # Errors
    /// The card with the problem, if the front matter is not the YAML of a mapping: its text is kept.
    pub fn read(text: &str) -> Result<SourceCard, Box<(SourceCard, String)>> {
        let text = text.trim_start_matches('\u{feff}').replace("\r\n", "\n");
        let whole = || SourceCard { body: text.trim().to_owned(), ..SourceCard::default() };
        let Some(behind) = text.strip_prefix("---\n") else { return Ok(whole()) };
        let mut at = 0;
        let end = behind.split_inclusive('\n').find_map(|line| {
            let start = at;
            at += line.len();
            (line.trim_end() == "---").then_some((start, at))
        });
        let Some((yaml_end, body)) = end else { return Ok(whole()) };
        let (yaml, body) = (behind[..yaml_end].trim_end().to_owned(), behind[body..].trim().to_owned());
        let card = SourceCard { yaml, fields: Value::Null, body };
        if card.yaml.trim().is_empty() {
            return Ok(card);
        }
        match read_yaml(&card.yaml) {
            Ok(fields @ Value::Object(_)) => Ok(SourceCard { fields, ..card }),
            Ok(_) => Err(Box::new((card, "it is no mapping".to_owned()))),
            Err(problem) => Err(Box::new((card, problem))),
        }
    }

    /// The short texts of a field, whether it is one or a list.
    fn texts(&self, key: &str) -> Vec<String> {
        let values: Vec<&Value> = match &self.fields[key] {
            Value::Array(values) => values.iter().take(MOST_VALUES).collect(),
            value => vec![value],
        };
        values.into_iter().filter_map(|value| short_text(key, value)).collect()
    }

    /// The text of a field.
    pub fn text(&self, key: &str) -> Option<String> {
        short_text(key, &self.fields[key])
    }

    /// The model that the source was quantized from, where its card says so: that is also the base of its conversions.
    pub fn quantized_from(&self) -> Option<String> {
        let is_quantized = self.fields["base_model_relation"] == "quantized";
        self.texts("base_model").into_iter().find(|name| is_quantized && is_hub_name(name))
    }
}

fn short_text(key: &str, value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        // Norwegian, which YAML reads as a word for false.
        Value::Bool(false) if key == "language" => "no".to_owned(),
        _ => return None,
    };
    let is_plain = !text.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{feff}'));
    (is_plain && !text.trim().is_empty() && text.len() <= LONGEST_VALUE).then_some(text)
}

/// The front matter of a card to be written.
#[derive(Clone, Debug, Default)]
pub(super) struct FrontMatter {
    /// The model that was quantized.
    pub base_model: Option<String>,
    /// Whether the result is a quantization of it, and not floats, or the sum of it and adapters.
    pub is_quantized: bool,
    /// The library that loads the result.
    pub library: Option<String>,
    /// The task of the model.
    pub task: Option<String>,
    /// Tags of the quantization.
    pub tags: Vec<String>,
}

impl FrontMatter {
    /// The front matter with what it keeps of the source's, its lines of dashes included. Tags of the source that `is_outdated` names, of
    /// another quantization, are left out.
    pub fn render(&self, source: &SourceCard, is_outdated: impl Fn(&str) -> bool) -> String {
        let mut text = "---\n".to_owned();
        for key in KEPT {
            put(&mut text, key, &source.texts(key));
        }
        put(&mut text, "base_model", self.base_model.as_slice());
        if self.base_model.is_some() && self.is_quantized {
            text.push_str("base_model_relation: quantized\n");
        }
        put(&mut text, "library_name", self.library.as_slice());
        put(&mut text, "pipeline_tag", source.text("pipeline_tag").or_else(|| self.task.clone()).as_slice());
        let kept = source.texts("tags").into_iter().filter(|tag| !is_outdated(tag));
        let mut tags: Vec<String> = Vec::new();
        for tag in kept.chain(self.tags.iter().cloned()) {
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        if !tags.is_empty() {
            text.push_str("tags:\n");
            tags.iter().for_each(|tag| text.push_str(&format!("- {}\n", scalar(tag))));
        }
        text.push_str("---\n");
        text
    }
}

/// A field with one value, or with a list of several.
fn put(text: &mut String, key: &str, values: &[String]) {
    match values {
        [] => {}
        [one] => text.push_str(&format!("{key}: {}\n", scalar(one))),
        all => {
            text.push_str(&format!("{key}:\n"));
            all.iter().for_each(|value| text.push_str(&format!("- {}\n", scalar(value))));
        }
    }
}

/// A text as YAML: bare where nothing in it has a meaning, else in quotes, as in JSON.
fn scalar(text: &str) -> String {
    let is_bare = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '+'))
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    if is_bare { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(text: &str) -> SourceCard {
        SourceCard::read(text).unwrap()
    }

    #[test]
    fn front_matter_and_body_of_a_source_are_separated() {
        let found = card("\u{feff}---\r\nlicense: mit\r\nlanguage:\r\n- en\r\n- no\r\n---\r\n\r\n# A\r\n---\r\nb\r\n");
        assert_eq!((found.yaml.as_str(), found.body.as_str()), ("license: mit\nlanguage:\n- en\n- no", "# A\n---\nb"));
        assert_eq!(
            (found.text("license").as_deref(), found.texts("language")),
            (Some("mit"), vec!["en".to_owned(), "no".to_owned()])
        );
        for whole in ["# A\n\ntext", "---\nlicense: mit\nit never ends", "----\nx\n---"] {
            assert_eq!(card(whole), SourceCard { body: whole.to_owned(), ..SourceCard::default() });
        }
        assert_eq!(card("---\n---\nb").body, "b");
    }

    #[test]
    fn hostile_front_matter_is_text_and_nothing_else() {
        for yaml in ["a: !!python/object:os.system x", "- a\n- b", "a: [", "a: 1\na: 2", &"[".repeat(10_000)] {
            let (found, problem) = *SourceCard::read(&format!("---\n{yaml}\n---\nbody")).unwrap_err();
            assert!(!problem.is_empty() && found.yaml == yaml && found.body == "body", "{yaml:.40}");
            assert_eq!(found.text("a"), None);
        }
        let long = "x".repeat(LONGEST_VALUE + 1);
        let found = card(&format!(
            "---\nlicense: {long}\ntags: [a, {{b: c}}, \"d\\n---\\ne\", {long}]\nlicense_name: [x, y]\n---\n"
        ));
        assert_eq!(
            (found.text("license"), found.texts("tags"), found.text("license_name")),
            (None, vec!["a".to_owned()], None)
        );
        let many: Vec<String> = (0..1000).map(|n| format!("t{n}")).collect();
        assert_eq!(card(&format!("---\ntags: [{}]\n---\n", many.join(","))).texts("tags").len(), MOST_VALUES);
    }

    #[test]
    fn names_on_the_hub_are_no_paths() {
        for name in ["meta-llama/Llama-3.2-1B", "Qwen/Qwen3-8B", "a/b_c.d"] {
            assert!(is_hub_name(name), "{name}");
        }
        for path in [
            "",
            "llama",
            "./llama",
            "../a/b",
            "/root/a",
            "models/llama",
            "a/b/c",
            "a/",
            "a b/c",
            "a/b:c",
            "C:\\a/b",
            "a/..b",
        ] {
            assert!(!is_hub_name(path), "{path}");
        }
    }

    #[test]
    fn written_front_matter_reads_back() {
        let source = card(
            "---\nlicense: other\nlicense_name: \"x: y\"\nlanguage: no\ntags: [chat, awq, 4-bit]\nbase_model: a/parent\n---\n",
        );
        let made = FrontMatter {
            base_model: Some("org/name".to_owned()),
            is_quantized: true,
            library: Some("transformers".to_owned()),
            task: Some("text-generation".to_owned()),
            tags: ["gptq", "4-bit"].map(str::to_owned).to_vec(),
        };
        let text = made.render(&source, |tag| ["awq", "4-bit"].contains(&tag));
        let expected = "---\nlicense: other\nlicense_name: \"x: y\"\nlanguage: \"no\"\nbase_model: org/name\nbase_model_relation: quantized\n\
                        library_name: transformers\npipeline_tag: text-generation\ntags:\n- chat\n- gptq\n- \"4-bit\"\n---\n";
        assert_eq!(text, expected);
        let again = card(&text);
        assert_eq!(again.quantized_from().as_deref(), Some("org/name"));
        assert_eq!((again.texts("language"), again.texts("tags").len()), (vec!["no".to_owned()], 3));
        assert_eq!(source.quantized_from(), None, "the parent of a finetuned source is not what was quantized");
    }
}
