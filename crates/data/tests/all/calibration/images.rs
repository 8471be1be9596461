//! Conversations with images: what becomes of them, and what is refused.

use super::{Files, VOCABULARY, model};
use kvant_container::Diagnostic;
use kvant_data::calibration::{CalibrationData, CalibrationDataError, Documents, Options, Packing, Skip};
use kvant_data::images::{TextImageFormat, TextImages};
use kvant_data::tokenizer::ModelTokenizer;
use kvant_model::vision::ImageReading;
use serde_json::{Value, json};
use std::path::Path;

/// The token that stands for a row.
const IMAGE: u32 = VOCABULARY as u32;
/// Rows of an image.
const ROWS: usize = 3;
/// Renders contents that are texts or lists, as templates of models for images do.
const TEMPLATE: &str = "{% for m in messages %}{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for p in m['content'] %}\
    {% if p['type'] == 'image' %}<image>{% else %}{{ p['text'] }}{% endif %}{% endfor %}{% endif %}{% endfor %}";

/// The tokenizer of the small model with a token for images, in a directory with all that conversations with images need.
fn with_images(files: &Files, template: Option<&str>) -> TextImages {
    let mut tokenizer: Value = serde_json::from_slice(&std::fs::read(model().join("tokenizer.json")).unwrap()).unwrap();
    let added = json!({"id": IMAGE, "content": "<image>", "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true});
    tokenizer["added_tokens"].as_array_mut().unwrap().push(added);
    files.add("tokenizer.json", tokenizer.to_string());
    files.add("preprocessor_config.json", r#"{"image_processor_type": "CLIPImageProcessor", "crop_size": 2}"#);
    files.add("a.png", "not looked into yet");
    files.add("b.png", "nor this");
    template.map(|template| files.add("chat_template.jinja", template));
    let llava = ImageReading::all().iter().find(|row| row.name == "llava").unwrap();
    let config = json!({"model_type": "llava", "image_token_index": IMAGE});
    let format = TextImageFormat::open(files.0.path(), llava, &config, ([3, 2, 2], ROWS)).unwrap();
    TextImages::new(format, VOCABULARY)
}

/// A row with a conversation of one message.
fn row(parts: Value) -> String {
    format!("{}\n", json!({"messages": [{"role": "user", "content": parts}]}))
}

fn image(name: &str) -> Value {
    json!({"type": "image", "image": name})
}

fn documents(files: &Files, lines: &str) -> Result<Documents, CalibrationDataError> {
    let images = with_images(files, Some(TEMPLATE));
    Documents::load_with_images(&files.add("chats.jsonl", lines), None, files.0.path(), VOCABULARY, images)
}

#[test]
fn images_become_rows_behind_the_vocabulary() {
    let files = Files::new();
    let lines = [
        row(json!(["Once upon", image("a.png"), image("b.png"), " a time"])),
        row(json!([image("b.png"), {"type": "text", "text": "The end"}])),
        row(json!("No image")),
    ];
    let found = documents(&files, &lines.concat()).unwrap();
    let tokenizer = ModelTokenizer::open(&model()).unwrap();
    let encoded = |text: &str| tokenizer.encode(text).unwrap();
    let rows = |image: u32| (IMAGE + image * ROWS as u32..IMAGE + (image + 1) * ROWS as u32).collect::<Vec<u32>>();
    let expected =
        [[encoded("Once upon"), rows(0), rows(1), encoded(" a time")].concat(), [rows(1), encoded("The end")].concat()];
    assert_eq!(found.documents[0].tokens, expected[0]);
    assert_eq!(found.documents[1].tokens, expected[1]);
    assert_eq!(found.documents.iter().map(|document| document.has_images).collect::<Vec<_>>(), [true, true, false]);
    assert_eq!((found.images.len(), found.images.places(&expected[0])[1].clone().0), (2, 1));
}

#[test]
fn sequences_are_cut_between_images() {
    let files = Files::new();
    let images = with_images(&files, Some(TEMPLATE));
    let data = files.add("chats.jsonl", row(json!([image("a.png"), "one two three", image("b.png"), "four"])));
    let load = |packing| {
        let options = Options { packing, ..Options::new([data.clone()], 4, 2) };
        CalibrationData::load_with_images(&options, files.0.path(), VOCABULARY, images.clone(), |_, _| {})
    };
    let found = load(None).unwrap();
    assert_eq!((found.sequences.len(), found.sequences[0].len()), (1, ROWS + 2));
    assert_eq!(found.provenance.images.as_ref().map(|images| images.files), Some(1));
    for packing in Packing::ALL.into_iter().filter(|packing| *packing != Packing::Sample) {
        let error = load(Some(packing)).unwrap_err();
        assert!(matches!(error, CalibrationDataError::ImagesCut { row: 1, .. }) && error.hint().is_some(), "{error}");
    }
}

#[test]
fn images_that_are_not_files_are_refused_by_name() {
    let of = |part: Value| documents(&Files::new(), &row(json!(["a", part]))).unwrap_err();
    for address in ["https://example.org/a.png", "data:image/png;base64,AAAA", "file:///a.png"] {
        let error = of(json!({"type": "image_url", "image_url": {"url": address}}));
        assert!(matches!(error, CalibrationDataError::ImageAddress { row: 1, .. }), "{error}");
        assert!(error.to_string().contains(address) && error.hint().unwrap().contains("a.png"), "{error}");
    }
    let nameless = of(json!({"type": "image"}));
    assert!(
        matches!(nameless, CalibrationDataError::ImageWithoutFile { .. }) && nameless.hint().is_some(),
        "{nameless}"
    );
    let missing = of(image("c.png"));
    assert!(
        matches!(missing, CalibrationDataError::Image { .. }) && missing.to_string().contains("c.png"),
        "{missing}"
    );
}

#[test]
fn models_without_what_images_need_are_refused_by_name() {
    let files = Files::new();
    let lines = files.add("chats.jsonl", row(json!(["a", image("a.png")])));
    let text = Documents::load(&lines, None, &model(), VOCABULARY).unwrap_err();
    assert!(matches!(text, CalibrationDataError::ImagesUnread { row: 1, .. }), "{text}");
    assert!(text.hint().unwrap().contains("text alone"), "{text}");
    let images = with_images(&files, None);
    let bare = Documents::load_with_images(&lines, None, files.0.path(), VOCABULARY, images).unwrap_err();
    assert!(matches!(bare, CalibrationDataError::ImagesWithoutTemplate { .. }), "{bare}");
    let mute = with_images(&files, Some("{% for m in messages %}a{% endfor %}"));
    let mute = Documents::load_with_images(&lines, None, files.0.path(), VOCABULARY, mute).unwrap_err();
    assert!(matches!(mute, CalibrationDataError::NoDocument { most: Some(Skip::OtherImages), .. }), "{mute}");
}

#[test]
fn processors_that_expect_other_rows_are_refused() {
    let files = Files::new();
    with_images(&files, None);
    let llava = ImageReading::all().iter().find(|row| row.name == "llava").unwrap();
    let open = |processor: &str| {
        files.add("processor_config.json", processor);
        TextImageFormat::open(files.0.path(), llava, &json!({}), ([3, 2, 2], ROWS))
    };
    let stated = r#"{"patch_size": 1, "num_additional_image_tokens": 1, "vision_feature_select_strategy": "default"}"#;
    let error = open(stated).unwrap_err();
    assert!(error.to_string().contains("an image has 4 rows") && error.to_string().ends_with("makes 3"), "{error}");
    assert!(open("{}").is_ok() && open(r#"{"patch_size": null}"#).is_ok());
    assert!(Path::new(&files.0.path().join("preprocessor_config.json")).is_file());
}
