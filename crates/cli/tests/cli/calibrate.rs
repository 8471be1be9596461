//! `kvant quantize --calib` and `kvant eval` of what it makes.

use crate::kvant::{Place, contents, names};

const TEXT: &str = "The tower stood where the river turns. Nobody had seen who built it, and nobody asked any more. ";
const DATA: [&str; 6] = ["--calib", "text.txt", "--num-samples", "4", "--seq-len", "64"];

fn place() -> Place {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(40));
    place
}

fn quantize<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["quantize", "nano_llama"], more, &DATA].concat()
}

#[test]
fn every_static_scheme_is_whole_and_evaluates() {
    let place = place();
    for (name, options) in [
        ("int8", &["-s", "int8"][..]),
        ("fp8", &["-s", "fp8"]),
        ("nvfp4", &["-s", "nvfp4"]),
        ("mxfp4_fp8", &["-s", "mxfp4_fp8"]),
        ("FP8", &["-s", "FP8"]),
        ("NVFP4", &["-s", "NVFP4"]),
        ("cache", &["-s", "fp8", "--kv-cache", "fp8"]),
        ("post_rope", &["-s", "int4_wo_128", "--kv-cache", "fp8", "--kv-cache-post-rope"]),
        ("attention", &["-s", "fp8", "--kv-cache", "fp8", "--attention", "fp8"]),
    ] {
        place.succeed(&quantize(&[options, &["-o", name]].concat()));
        let record: serde_json::Value =
            serde_json::from_slice(&std::fs::read(place.path(name).join("calibration.json")).unwrap()).unwrap();
        assert_eq!((&record["data"]["samples"], &record["data"]["tokens"]), (&4.into(), &256.into()), "{name}");
        let eval = ["eval", name, "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--json"];
        let found = place.succeed(&eval).json();
        let divergence = found["kl_mean"].as_f64().unwrap();
        assert!(divergence > 1e-6 && divergence < 0.2, "{name}: {found}");
    }
    assert!(!names(&place.path("")).iter().any(|name| name.contains(".partial")));
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_memory() {
    let place = place();
    let run = |out: &str, options: &[&str]| {
        place.succeed(&quantize(&[&["-s", "nvfp4", "--kv-cache", "fp8", "-o", out], options].concat()));
        contents(&place.path(out))
    };
    let one = run("one", &["--threads", "1"]);
    assert_eq!(run("three", &["--threads", "3"]), one);
    assert_eq!(run("spilled", &["--max-memory", "1KB"]), one);
}

#[test]
fn a_run_that_was_stopped_goes_on_with_its_statistics() {
    let place = place();
    let args = quantize(&["-s", "fp8", "-o", "out"]);
    place.succeed(&args);
    let whole = contents(&place.path("out"));
    std::fs::remove_dir_all(place.path("out")).unwrap();
    // A directory in the way of the journal ends the run after its statistics are kept.
    std::fs::create_dir(place.path("out.partial.journal")).unwrap();
    assert_ne!(place.run(&args).code, Some(0));
    assert!(place.path("out.partial.statistics").exists());
    std::fs::remove_dir(place.path("out.partial.journal")).unwrap();
    let again = place.succeed(&args);
    assert!(again.stderr.contains("statistics that an earlier run gathered"), "{again:?}");
    assert_eq!(contents(&place.path("out")), whole);
    assert_eq!(names(&place.path("")), ["nano_llama", "out", "text.txt"]);
}

#[test]
fn what_cannot_succeed_is_refused_before_anything_is_written() {
    let place = place();
    place.write("empty.txt", "");
    place.write("broken.jsonl", "{\"text\": \n[]\n");
    for (options, words) in [
        (&["-s", "fp8"][..], "--calib"),
        (&["-s", "fp8", "--calib", "missing.txt"], "missing.txt"),
        (&["-s", "fp8", "--calib", "empty.txt"], "1 empty"),
        (&["-s", "fp8", "--calib", "broken.jsonl"], "no sample"),
        (&["-s", "fp8", "--calib", "text.txt", "--seq-len", "513"], "513"),
        (&["-s", "int4_wo_128", "--kv-cache", "fp8"], "--calib"),
    ] {
        let run = place.run(&[&["quantize", "nano_llama", "-o", "out"], options].concat());
        assert!(run.code == Some(1) || run.code == Some(2), "{options:?}: {run:?}");
        assert!(run.stderr.contains(words), "{options:?}: {run:?}");
        assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")), "{options:?}");
    }
    let unused = place.succeed(&quantize(&["-s", "int4_wo_128", "-o", "out"]));
    assert!(unused.stderr.contains("not read"), "{unused:?}");
}

#[test]
fn evaluations_that_make_no_sense_are_refused() {
    let place = place();
    for (options, words) in [
        (&["--seq-len", "1"][..], "--seq-len"),
        (&["--seq-len", "64", "--stride", "65"], "--stride"),
        (&["--seq-len", "100000"], "--seq-len"),
        (&["--reference", "missing"], "missing"),
    ] {
        let run = place.run(&[&["eval", "nano_llama", "--data", "text.txt"], options].concat());
        assert!(run.code != Some(0) && run.stderr.contains(words), "{options:?}: {run:?}");
    }
}
