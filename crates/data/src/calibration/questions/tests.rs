use super::*;
use kvant_container::{Diagnostic, ErrorKind};
use serde_json::json;

fn read(name: &str, text: &[u8], most: Option<usize>) -> Result<Questions, CalibrationDataError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(name);
    std::fs::write(&file, text).unwrap();
    Questions::read(&file, most)
}

fn one(row: Value) -> (QuestionForm, Question) {
    let found = read("a.jsonl", row.to_string().as_bytes(), None).unwrap_or_else(|error| panic!("{row}: {error}"));
    assert_eq!(found.questions.len(), 1);
    (found.form, found.questions[0].clone())
}

fn refusal(row: Value) -> String {
    let error = read("a.jsonl", row.to_string().as_bytes(), None).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.hint().is_some(), "{row}: {error}");
    error.to_string()
}

fn continuations(question: &Question) -> Vec<&str> {
    question.choices.iter().map(|choice| choice.continuation.as_str()).collect()
}

const ARC: &str = r#"{"id": "M1", "question": "Which is hot?", "choices": {"text": ["ice", "fire"], "label": ["A", "B"]}, "answerKey": "B"}"#;

#[test]
fn arc_is_asked_as_the_harness_does() {
    let (form, question) = one(serde_json::from_str(ARC).unwrap());
    assert_eq!((form, question.answer), (QuestionForm::Arc, 1));
    assert_eq!(question.choices[0].context, "Question: Which is hot?\nAnswer:");
    assert_eq!(continuations(&question), [" ice", " fire"]);
    assert_eq!(question.choices[1].characters, 4);
    let numbered =
        json!({"question": "q", "choices": {"text": ["a", "b", "c"], "label": ["1", "2", "3"]}, "answerKey": "3"});
    assert_eq!(one(numbered).1.answer, 2);
    let of_ai2 = json!({"id": "x", "question": {"stem": "Which is hot?", "choices": [{"text": "ice", "label": "A"},
        {"text": "fire", "label": "B"}]}, "answerKey": "B"});
    assert_eq!(one(of_ai2), (form, question));
}

#[test]
fn hellaswag_loses_its_markup() {
    let row = json!({"ind": 4, "activity_label": "Baking", "ctx_a": "A man [header] How to bake [title] Mix it.",
        "ctx_b": "the Baker", "ctx": "unused", "endings": ["stirs [substeps] it.", "sings", "runs", "é"], "label": "3"});
    let (form, question) = one(row);
    assert_eq!((form, question.answer), (QuestionForm::HellaSwag, 3));
    assert_eq!(question.choices[0].context, "Baking: A man How to bake. Mix it. The baker");
    assert_eq!(continuations(&question), [" stirs it.", " sings", " runs", " é"]);
    assert_eq!(question.choices[3].characters, 1, "characters, not bytes");
    let plain = json!({"activity_label": "A", "ctx": "b [c\n] d [e", "endings": ["x", "y"], "label": 0});
    assert_eq!(one(plain).1.choices[0].context, "A: b [c\n] d [e");
}

#[test]
fn mmlu_has_letters_and_its_subject() {
    let row = json!({"question": " What is 1 + 1? ", "subject": "abstract_algebra", "choices": ["1", "2", "3", "4"], "answer": 1});
    let (form, question) = one(row.clone());
    assert_eq!((form, question.answer), (QuestionForm::Mmlu, 1));
    let expected = "The following are multiple choice questions (with answers) about abstract algebra.\n\nWhat is 1 + 1?\nA. 1\nB. 2\n\
                    C. 3\nD. 4\nAnswer:";
    assert_eq!(question.choices[0].context, expected);
    assert_eq!(continuations(&question), [" A", " B", " C", " D"]);
    let mut lettered = row;
    lettered["answer"] = "D".into();
    assert_eq!(one(lettered).1.answer, 3);
}

#[test]
fn winogrande_scores_what_follows_the_blank() {
    let row = json!({"sentence": "Ian helped Dennis because _ was kind.", "option1": "Ian", "option2": "Dennis", "answer": "1"});
    let (form, question) = one(row);
    assert_eq!((form, question.answer), (QuestionForm::WinoGrande, 0));
    let contexts: Vec<&str> = question.choices.iter().map(|choice| choice.context.as_str()).collect();
    assert_eq!(contexts, ["Ian helped Dennis because Ian", "Ian helped Dennis because Dennis"]);
    assert_eq!(continuations(&question), [" was kind.", " was kind."]);
}

#[test]
fn piqa_and_plain_questions_are_asked_alike() {
    let (form, question) = one(json!({"goal": "Boil water", "sol1": "Heat it", "sol2": "Cool it", "label": 0}));
    assert_eq!((form, question.answer), (QuestionForm::Piqa, 0));
    assert_eq!(question.choices[1].context, "Question: Boil water\nAnswer:");
    for answer in [json!(1), json!("B"), json!("green"), json!("1")] {
        let (form, question) = one(json!({"question": "Grass?", "choices": ["red", "green"], "answer": answer}));
        assert_eq!((form, question.answer), (QuestionForm::Plain, 1), "{answer}");
    }
    let digits = json!({"question": "1 + 1?", "choices": ["1", "2", "3"], "answer": "2"});
    assert_eq!(one(digits).1.answer, 1, "the text of a choice before its number");
}

#[test]
fn json_lists_and_compressed_lines_are_read() {
    let list = format!("[{ARC}, {ARC}]");
    assert_eq!(read("a.json", list.as_bytes(), None).unwrap().questions.len(), 2);
    assert_eq!(read("a.json", format!("{{\"data\": {list}}}").as_bytes(), None).unwrap().questions.len(), 2);
    assert_eq!(read("a.json", ARC.as_bytes(), None).unwrap().questions.len(), 1);
    let lines = format!("{ARC}\n\n{ARC}\n{ARC}");
    assert_eq!(read("a.jsonl", lines.as_bytes(), Some(2)).unwrap().questions.len(), 2);
    assert_eq!(read("a.JSON", lines.as_bytes(), None).unwrap().questions.len(), 3);
}

#[test]
fn unknown_forms_name_what_was_found_and_what_is_known() {
    let error = read("a.jsonl", b"{\"prompt\": \"x\", \"gold\": 1}", None).unwrap_err();
    assert!(
        error.to_string().contains("row 1") && error.to_string().contains("its fields are prompt, gold"),
        "{error}"
    );
    let hint = error.hint().unwrap();
    assert!(QuestionForm::ALL.iter().all(|form| hint.contains(form.name())), "{hint}");
    assert!(matches!(read("a.jsonl", b"[1, 2]", None), Err(CalibrationDataError::UnknownQuestion { row: 1, .. })));
    assert!(matches!(read("a.jsonl", b"", None), Err(CalibrationDataError::NoQuestion { .. })));
    assert!(matches!(read("a.json", b"[]", None), Err(CalibrationDataError::NoQuestion { .. })));
    for name in ["a.txt", "a.npy", "questions", "a.gz"] {
        assert!(matches!(read(name, ARC.as_bytes(), None), Err(CalibrationDataError::QuestionFormat { .. })), "{name}");
    }
}

#[test]
fn questions_that_cannot_be_asked_are_refused_by_row() {
    let plain = |choices: Value, answer: Value| json!({"question": "q", "choices": choices, "answer": answer});
    for (row, words) in [
        (plain(json!(["a"]), json!(0)), "at least two choices"),
        (plain(json!(["a", ""]), json!(0)), "choice 2 is empty"),
        (plain(json!(["a", "b"]), json!(2)), "`answer` does not state the right choice"),
        (plain(json!(["a", "b"]), json!(null)), "`answer`"),
        (plain(json!(["a", 3]), json!(0)), "`choices` is not a list of texts"),
        (json!({"goal": "g", "sol1": "a", "sol2": "b", "label": -1}), "`label`"),
        (json!({"goal": "g", "sol1": "a", "sol2": "b"}), "`label`"),
        (json!({"sentence": "no blank", "option1": "a", "option2": "b", "answer": "1"}), "a blank `_`"),
        (json!({"sentence": "ends in _", "option1": "a", "option2": "b", "answer": "1"}), "behind its blank"),
        (json!({"sentence": "a _ b", "option1": "a", "option2": "b", "answer": ""}), "`answer`"),
        (
            json!({"question": "q", "choices": {"text": ["a", "b"], "label": ["A", "B"]}, "answerKey": "C"}),
            "`answerKey`",
        ),
        (json!({"question": "q", "choices": {"text": ["a", "b"], "label": ["A"]}, "answerKey": "A"}), "as many labels"),
        (json!({"activity_label": "a", "ctx": "b", "endings": ["c", "d"], "label": ""}), "`label`"),
    ] {
        let message = refusal(row);
        assert!(message.contains("a.jsonl, row 1: ") && message.contains(words), "{message}");
    }
    let mixed = format!("{ARC}\n{}", json!({"goal": "g", "sol1": "a", "sol2": "b", "label": 1}));
    let error = read("a.jsonl", mixed.as_bytes(), None).unwrap_err();
    assert!(error.to_string().contains("row 2: a question of PIQA, and the first one is of ARC"), "{error}");
    for (line, words) in
        [(&b"no JSON"[..], "row 2: it is not JSON"), (b"{\"question\": \"\xff\"}", "row 2: it is not UTF-8")]
    {
        let error = read("a.jsonl", &[ARC.as_bytes(), b"\n", line, b"\n"].concat(), None).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}
