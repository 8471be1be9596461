//! Runs over graphs that are killed or stopped, and resume.

use crate::kvant::{Place, names};
use crate::onnx::place;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Everything that is kept: ranges, layers that are trained, biases that are corrected.
pub const TRAINED: &str = "adaround:num_iterations=6000:early_stop=off,bias-correction";

pub fn args<'a>(out: &'a str, algorithms: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let line = ["quantize", "float.onnx", "--preset", "A8W8", "--data", "calib.npz", "--runtime", "rten", "-o", out];
    [&line[..], &["--algorithm", algorithms, "--external-data", "always"], more].concat()
}

pub fn spawn(place: &Place, args: &[&str]) -> Child {
    place.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn kept(place: &Place, out: &str) -> Vec<String> {
    let directory = place.path(&format!("{out}.partial.blocks"));
    if directory.exists() { names(&directory) } else { Vec::new() }
}

/// Waits until a result of `out` is kept.
pub fn wait_for(place: &Place, out: &str, name: &str) {
    let begun = Instant::now();
    while !kept(place, out).iter().any(|kept| kept == name) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{name} of {out} is not kept: {:?}", kept(place, out));
        sleep(Duration::from_millis(1));
    }
}

/// Leaves unfinished work with the first layer done.
fn kill_at_work(place: &Place, out: &str) {
    let mut child = spawn(place, &args(out, TRAINED, &[]));
    wait_for(place, out, "layer.0");
    child.kill().unwrap();
    child.wait().unwrap();
}

fn files(place: &Place, out: &str) -> Vec<Vec<u8>> {
    [out.to_owned(), format!("{out}.data")].iter().map(|name| std::fs::read(place.path(name)).unwrap()).collect()
}

/// A graph refers to its external data by their name, so outputs that are compared have the same one.
fn made(place: &Place, args: &[&str]) -> Vec<Vec<u8>> {
    place.succeed(args);
    let made = files(place, "out.onnx");
    for name in ["out.onnx", "out.onnx.data"] {
        std::fs::remove_file(place.path(name)).unwrap();
    }
    made
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

#[test]
fn killed_graph_run_resumes_at_its_layer_with_identical_output() {
    let place = place();
    let line = args("out.onnx", TRAINED, &[]);
    let expected = made(&place, &line);
    kill_at_work(&place, "out.onnx");
    assert!(!place.path("out.onnx").exists());
    let resumed = place.succeed(&line);
    for told in ["resuming with the statistics", "resuming at layer "] {
        assert!(resumed.stderr.contains(told), "{told}: {}", resumed.stderr);
    }
    assert!(files(&place, "out.onnx") == expected);
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx", "out.onnx.data"]);
}

#[test]
fn graph_run_killed_anywhere_gives_identical_output() {
    let place = place();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinytransformer.float.onnx"), place.path("transformer.onnx")).unwrap();
    for (model, data, algorithms) in [
        ("float.onnx", "calib.npz", "adaround:num_iterations=1500:selective_update=on,bias-correction"),
        ("float.onnx", "calib.npz", "cle,adaquant:num_iterations=1500:update_bias=on"),
        ("transformer.onnx", "random", "awq,gptq"),
        ("transformer.onnx", "random", "smoothquant,adaround:num_iterations=300"),
    ] {
        let mut line = args("out.onnx", algorithms, &["--report", "r.json", "--num-samples", "24"]);
        (line[1], line[5]) = (model, data);
        let begun = Instant::now();
        let expected = made(&place, &line);
        let whole = begun.elapsed();
        std::fs::remove_file(place.path("r.json")).unwrap();
        for round in 1..6 {
            let mut child = spawn(&place, &line);
            sleep(whole.mul_f64(f64::from(round) / 6.0));
            child.kill().unwrap();
            child.wait().unwrap();
            // A run that came to its end has an output and no journal.
            if place.path("out.onnx.partial.journal").exists() || !place.path("out.onnx").exists() {
                place.succeed(&line);
            }
            assert!(files(&place, "out.onnx") == expected, "{algorithms} {round}");
            let left = ["calib.npz", "float.onnx", "out.onnx", "out.onnx.data", "r.json", "transformer.onnx"];
            assert_eq!(names(&place.path("")), left);
            for name in ["out.onnx", "out.onnx.data", "r.json"] {
                std::fs::remove_file(place.path(name)).unwrap();
            }
        }
    }
}

#[test]
fn damaged_kept_results_are_recomputed() {
    let place = place();
    let line = args("out.onnx", TRAINED, &[]);
    let expected = made(&place, &line);
    kill_at_work(&place, "out.onnx");
    let layer = place.path("out.onnx.partial.blocks/layer.0");
    let mut bytes = std::fs::read(&layer).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&layer, bytes).unwrap();
    let resumed = place.succeed(&line);
    assert!(!resumed.stderr.contains("resuming at layer"), "{}", resumed.stderr);
    assert!(files(&place, "out.onnx") == expected);
}

#[test]
fn unfinished_graph_work_with_other_settings_is_refused() {
    let place = place();
    kill_at_work(&place, "out.onnx");
    let before = kept(&place, "out.onnx");
    let refused = place.run(&args("out.onnx", TRAINED, &["--num-samples", "3"]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("now --num-samples 3"), "{}", refused.stderr);
    assert!(refused.stderr.contains("--restart"), "{}", refused.stderr);
    let data = std::fs::File::options().append(true).open(place.path("calib.npz")).unwrap();
    data.set_modified(std::time::SystemTime::now() + Duration::from_secs(9)).unwrap();
    let refused = place.run(&args("out.onnx", TRAINED, &[]));
    assert!(refused.code == Some(1) && refused.stderr.contains("calib.npz has changed"), "{refused:?}");
    assert_eq!(kept(&place, "out.onnx"), before, "nothing was touched");
    place.succeed(&args("out.onnx", "bias_correction", &["--restart"]));
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx", "out.onnx.data"]);
}

#[test]
fn concurrent_runs_to_one_graph_are_refused() {
    let place = place();
    let line = args("out.onnx", TRAINED, &[]);
    let mut child = spawn(&place, &line);
    wait_for(&place, "out.onnx", "observation");
    signal(&child, "-STOP");
    let second = place.run(&line);
    signal(&child, "-CONT");
    assert_eq!(second.code, Some(1), "{second:?}");
    assert!(second.stderr.contains(&format!("another run (process {}) is writing", child.id())), "{}", second.stderr);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn interrupted_graph_run_says_it_resumes() {
    if crate::resume::interrupts_are_ignored() {
        return;
    }
    let place = place();
    let line = args("out.onnx", TRAINED, &[]);
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let child = place.command(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for(&place, "out.onnx", "layer.0");
        signal(&child, name);
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.ends_with("Interrupted. Run the same command again to resume.\n"), "{stderr}");
        let left = ["calib.npz", "float.onnx", "out.onnx.partial.blocks", "out.onnx.partial.journal"];
        assert_eq!(names(&place.path("")), left);
        let resumed = place.succeed(&line);
        assert!(resumed.stderr.contains("resuming at layer"), "{}", resumed.stderr);
        for name in ["out.onnx", "out.onnx.data"] {
            std::fs::remove_file(place.path(name)).unwrap();
        }
    }
}
