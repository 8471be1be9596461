//! `kvant list`.

use crate::kvant::Place;
use serde_json::Value;
use std::process::Stdio;

const TOPICS: [&str; 14] = [
    "schemes",
    "dtypes",
    "formats",
    "observers",
    "algorithms",
    "algorithm-options",
    "families",
    "presets",
    "passes",
    "elements",
    "range-formats",
    "checks",
    "loaders",
    "loader-rules",
];

#[test]
fn list_tables() {
    let place = Place::empty();
    for topic in TOPICS {
        insta::assert_snapshot!(format!("list_{topic}"), place.show(&["list", topic]));
    }
}

#[test]
fn list_json_has_the_rows_of_the_table() {
    let place = Place::empty();
    for topic in TOPICS {
        let table = place.succeed(&["list", topic, "--wide"]).stdout;
        let json = place.succeed(&["list", topic, "--json"]).json();
        let names = json["rows"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap());
        let rows: Vec<&str> = table.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
        assert!(names.eq(rows), "{topic}");
    }
}

#[test]
fn tables_fit_the_terminal() {
    let place = Place::empty();
    for (topic, width) in TOPICS.iter().flat_map(|topic| [(topic, 80), (topic, 100), (topic, 132)]) {
        let output = place.command(&["list", topic]).env("COLUMNS", width.to_string()).output().unwrap();
        let table = String::from_utf8(output.stdout).unwrap();
        let long = table.lines().find(|line| line.chars().count() > width);
        assert_eq!(long, None, "{topic} at {width}");
    }
}

#[test]
fn schemes_are_listed_for_every_loader() {
    let place = Place::empty();
    let loaders = place.succeed(&["list", "loaders", "--json"]).json();
    for loader in loaders["rows"].as_array().unwrap() {
        let run = place.succeed(&["list", "schemes", "--for", loader["name"].as_str().unwrap(), "--json"]);
        assert!(!run.json()["rows"].as_array().unwrap().is_empty(), "{loader}");
    }
    let run = place.run(&["list", "families", "--for", "vllm"]);
    assert!(run.code == Some(2) && run.stderr.contains("--for applies only to schemes"), "{run:?}");
}

#[test]
fn all_quark_schemes_are_listed() {
    let json = Place::empty().succeed(&["list", "schemes", "--json"]).json();
    let rows: Vec<&Value> = json["rows"].as_array().unwrap().iter().collect();
    let calibrated = rows.iter().filter(|row| row["calibrated"] == true).count();
    assert!(rows.len() >= 28 && calibrated >= 3 && calibrated < rows.len());
}

#[test]
fn closed_stdout_pipe_is_not_an_error() {
    let place = Place::empty();
    let mut child = place.command(&["list", "families"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
}

#[cfg(target_os = "linux")]
#[test]
fn full_disk_on_stdout_is_an_error() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Place::empty().command(&["list", "families"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: cannot write to stdout: "));
}
