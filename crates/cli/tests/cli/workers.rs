//! Several workers that share a quantization.

use crate::kvant::{Place, Run, contents, names};
use crate::made_model::MadeModel;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn place() -> Place {
    let place = Place::empty();
    let model = MadeModel { layers: 4, hidden: 256, intermediate: 768, vocabulary: 2048, max_shard_size: 4_000_000 };
    model.write(&place.path("model"));
    place
}

/// Layers that share scales, and files of which most are written by several workers.
const OPTIONS: [&str; 9] =
    ["quantize", "model", "--scheme", "nvfp4", "--weights-only", "--max-shard-size", "700KB", "--threads", "2"];

fn line<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&OPTIONS[..], &["--json", "-o", out], more].concat()
}

fn work(place: &Place, out: &str, worker: &str) -> Run {
    place.succeed(&line(out, &["--worker", worker]))
}

fn spawn(place: &Place, out: &str, worker: &str) -> Child {
    let line = line(out, &["--worker", worker]);
    place.command(&line).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn part(place: &Place, out: &str, worker: &str) -> PathBuf {
    place.path(&format!(".{out}.kvant-part-worker-{}", worker.replace('/', "-of-")))
}

fn beside(place: &Place, out: &str) -> Vec<String> {
    names(&place.path("")).into_iter().filter(|name| name.contains(out) && name != out).collect()
}

#[test]
fn any_number_of_workers_makes_the_same_bytes() {
    let place = place();
    place.succeed(&line("whole", &[]));
    let expected = contents(&place.path("whole"));
    for count in [1, 3, 16] {
        let out = format!("out{count}");
        // In no particular order.
        for index in (0..count).map(|index| (index * 5 + 2) % count).collect::<Vec<_>>() {
            assert!(!place.path(&out).exists());
            let found = work(&place, &out, &format!("{index}/{count}")).json();
            if !place.path(&out).exists() {
                assert!(
                    found["missing_workers"].as_array().unwrap().len() < count && found["output"].is_null(),
                    "{found}"
                );
            }
        }
        assert!(contents(&place.path(&out)) == expected, "{count} workers");
        assert_eq!(beside(&place, &out), Vec::<String>::new());
    }
    let plan = ["plan", "model", "--scheme", "nvfp4", "--weights-only", "--workers", "3", "--json"];
    let plan = place.succeed(&plan).json();
    let sum =
        |key: &str| plan["workers"].as_array().unwrap().iter().map(|share| share[key].as_u64().unwrap()).sum::<u64>();
    assert_eq!(
        (sum("source_bytes"), sum("part_bytes")),
        (plan["source_bytes"].as_u64().unwrap(), plan["output_bytes"].as_u64().unwrap())
    );
}

#[test]
fn killed_workers_resume_with_identical_output() {
    let place = place();
    place.succeed(&line("whole", &[]));
    let expected = contents(&place.path("whole"));
    for round in 0..4 {
        let out = format!("out{round}");
        let begun = Instant::now();
        for index in 0..4 {
            let worker = format!("{index}/4");
            // The last one may be killed while it completes the output.
            let mut child = spawn(&place, &out, &worker);
            sleep(Duration::from_millis(7 * (round * 4 + index)));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        for index in 0..4 {
            if !place.path(&out).exists() {
                work(&place, &out, &format!("{index}/4"));
            }
        }
        assert!(contents(&place.path(&out)) == expected, "round {round}");
        assert_eq!(beside(&place, &out), Vec::<String>::new());
        if begun.elapsed() > Duration::from_secs(10) {
            break;
        }
    }
}

/// Changes a byte in the middle of a file.
fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn damaged_parts_are_found_and_made_again() {
    let place = place();
    place.succeed(&line("whole", &[]));
    let expected = contents(&place.path("whole"));
    work(&place, "out", "0/3");
    work(&place, "out", "1/3");
    let files: Vec<PathBuf> =
        fs::read_dir(part(&place, "out", "1/3")).unwrap().map(|entry| entry.unwrap().path()).collect();
    let ends = |end: &str| {
        files.iter().find(|path| path.to_string_lossy().ends_with(end)).unwrap_or_else(|| panic!("{files:?}"))
    };
    damage(ends(".safetensors"));
    damage(ends(".piece"));
    fs::write(part(&place, "out", "0/3").join("part.json"), "{").unwrap();
    let last = work(&place, "out", "2/3");
    assert_eq!(last.json()["missing_workers"], serde_json::json!([0]), "a part without its record is none");
    let found = work(&place, "out", "0/3");
    assert!(
        found.stderr.contains("damaged, and made again: ") && found.stderr.contains("worker 1/3"),
        "{}",
        found.stderr
    );
    assert!(contents(&place.path("out")) == expected);
    assert_eq!(beside(&place, "out"), Vec::<String>::new());

    // A file that is cut short, found by a run without workers.
    work(&place, "cut", "0/2");
    for file in fs::read_dir(part(&place, "cut", "0/2")).unwrap().map(|entry| entry.unwrap().path()) {
        if file.extension().is_some_and(|end| end == "safetensors") {
            fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(100).unwrap();
        }
    }
    let found = place.succeed(&line("cut", &[]));
    assert!(found.stderr.contains("damaged") && found.json()["resumed_jobs"].as_u64().is_some(), "{}", found.stderr);
    assert!(contents(&place.path("cut")) == expected);
}

#[test]
fn output_can_be_finished_from_anywhere() {
    let place = place();
    place.succeed(&line("whole", &[]));
    work(&place, "out", "0/2");
    let (first, kept) = (part(&place, "out", "0/2"), place.path("kept"));
    let copy = |from: &Path, to: &Path| crate::kvant::copy_dir(from, to);
    copy(&first, &kept);
    let lacking = place.run(&["finish", "out"]);
    assert_eq!(lacking.code, Some(1));
    assert!(
        lacking.stderr.contains("lacks the parts of 1 worker of 2: 1") && lacking.stderr.contains("with worker 1/2"),
        "{lacking:?}"
    );
    work(&place, "out", "1/2");
    fs::remove_dir_all(place.path("out")).unwrap();
    // All parts are there, and nobody has completed the output.
    work(&place, "out", "1/2");
    copy(&kept, &first);
    let mut finish = place.command(&["finish", place.path("out").to_str().unwrap(), "--json"]);
    let found = finish.current_dir(std::env::temp_dir()).output().unwrap();
    assert_eq!(found.status.code(), Some(0), "{}", String::from_utf8_lossy(&found.stderr));
    let found: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(found["resumed_jobs"], found["jobs"], "nothing is done again");
    assert!(contents(&place.path("out")) == contents(&place.path("whole")));
    assert_eq!(beside(&place, "out"), Vec::<String>::new());
    let nothing = place.run(&["finish", "out"]);
    assert!(nothing.code == Some(1) && nothing.stderr.contains("out is complete"), "{nothing:?}");
}

#[test]
fn workers_refuse_what_they_cannot_share() {
    let place = place();
    fs::write(place.path("text.txt"), "words ".repeat(2000)).unwrap();
    for (more, reason) in [
        (&["--algorithm", "gptq", "--calib", "text.txt"][..], "that depend on data"),
        (&["--format", "quark", "--format", "fake"], "several formats"),
        (&["--format", "onnx"], "an ONNX graph"),
        (&["--format", "gguf"], "a GGUF file"),
    ] {
        let line = ["quantize", "model", "--scheme", "int4:g32", "-o", "out", "--worker", "0/2"];
        let refused = place.run(&[&line[..], more].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("workers cannot share") && refused.stderr.contains(reason), "{refused:?}");
    }
    for worker in ["2/2", "x", "auto"] {
        assert_eq!(place.run(&line("out", &["--worker", worker])).code, Some(2), "{worker}");
    }
    assert_eq!(beside(&place, "out"), Vec::<String>::new());
    // The part of a run with another scheme is kept.
    work(&place, "out", "0/2");
    let other = ["quantize", "model", "--scheme", "int4:g32", "-o", "out", "--worker", "0/2"];
    let refused = place.run(&other);
    assert!(refused.code == Some(1) && part(&place, "out", "0/2").exists(), "{refused:?}");
    place.succeed(&[&other[..], &["--restart"]].concat());
    let refused = place.run(&["finish", "out"]);
    assert!(refused.stderr.contains("lacks the parts"), "{refused:?}");
    // An output that is there is not replaced.
    place.succeed(&line("done", &[]));
    let refused = place.run(&line("done", &["--worker", "0/2"]));
    assert!(refused.code == Some(1) && refused.stderr.contains("exists"), "{refused:?}");
    place.succeed(&line("done", &["--worker", "0/1", "--overwrite"]));
}

#[test]
fn workers_of_the_same_number_do_no_harm() {
    let place = place();
    place.succeed(&line("whole", &[]));
    let mut both = [spawn(&place, "out", "0/2"), spawn(&place, "out", "0/2")];
    let ended: Vec<bool> = both.iter_mut().map(|child| child.wait().unwrap().success()).collect();
    assert!(ended.contains(&true), "one of them does the work");
    let number = [("JOB_COMPLETION_INDEX", "1"), ("KVANT_WORKERS", "2")];
    let last = place.command(&line("out", &["--worker", "auto"])).envs(number).output().unwrap();
    assert!(last.status.success(), "{}", String::from_utf8_lossy(&last.stderr));
    assert!(contents(&place.path("out")) == contents(&place.path("whole")));
}

#[test]
fn files_for_schedulers_start_the_workers() {
    let place = place();
    let plan =
        ["plan", "model", "-s", "nvfp4", "--weights-only", "-o", "out", "--workers", "2", "--write-jobs", "jobs"];
    let shown = place.succeed(&plan);
    assert!(shown.stdout.contains("units of work"), "{}", shown.stdout);
    let script = fs::read_to_string(place.path("jobs/slurm.sh")).unwrap();
    assert!(script.contains("kvant quantize model -s nvfp4 --weights-only -o out --worker auto/2"), "{script}");
    let refused = place.run(&plan);
    assert!(refused.code == Some(2) && refused.stderr.contains("exists already"), "{refused:?}");
    place.succeed(&[&plan[..], &["--overwrite"]].concat());
    // As Slurm runs it.
    let binary = Path::new(env!("CARGO_BIN_EXE_kvant")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    for task in ["0", "1"] {
        let variables = [("SLURM_ARRAY_TASK_ID", task), ("SLURM_ARRAY_TASK_COUNT", "2"), ("PATH", &path)];
        let run = std::process::Command::new("sh").arg(place.path("jobs/slurm.sh")).envs(variables).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
    assert!(place.path("out/config.json").exists());
}

#[test]
fn output_is_finished_after_its_last_worker_was_killed() {
    let place = place();
    place.succeed(&line("whole", &[]));
    let expected = contents(&place.path("whole"));
    let mut finished = 0;
    for round in 0..12 {
        let out = format!("out{round}");
        work(&place, &out, "0/3");
        work(&place, &out, "1/3");
        let mut last = spawn(&place, &out, "2/3");
        let begun = Instant::now();
        // From here on the parts of all become one.
        while !place.path(&format!("{out}.partial.journal")).exists() && begun.elapsed() < Duration::from_secs(20) {
            sleep(Duration::from_micros(200));
        }
        sleep(Duration::from_millis(3 * round));
        last.kill().unwrap();
        last.wait().unwrap();
        if !place.path(&out).exists() {
            // The worker that runs again completes the output like `kvant finish`.
            match round % 2 {
                0 => place.succeed(&["finish", &out]),
                _ => work(&place, &out, "2/3"),
            };
            finished += 1;
        }
        assert!(contents(&place.path(&out)) == expected, "round {round}");
        let left = beside(&place, &out);
        assert!(left.iter().all(|name| name.ends_with(".partial.journal")), "{left:?}");
    }
    assert!(finished > 0, "no worker was killed while it completed the output");
}

#[test]
fn workers_restart_and_report_alone() {
    let place = place();
    work(&place, "out", "0/2");
    let report = ["--report", "report.md"];
    place.succeed(&line("out", &[&["--worker", "0/2"], &report[..]].concat()));
    assert!(!place.path("report.md").exists(), "there is nothing to report yet");
    let last = place.succeed(&line("out", &[&["--worker", "1/2", "--restart"], &report[..]].concat()));
    assert!(last.json()["resumed_jobs"].as_u64().unwrap() > 0 && place.path("report.md").exists(), "{last:?}");
    // A part of another plan is not waited for.
    work(&place, "other", "0/2");
    let other = ["quantize", "model", "--scheme", "int4:g32", "-o", "other", "--worker", "1/2"];
    let refused = place.run(&other);
    assert!(
        refused.code == Some(1) && refused.stderr.contains("worker 0/2 has made a part with other options"),
        "{refused:?}"
    );
    // Nor does a file of the user's get lost.
    fs::write(part(&place, "other", "0/2").join("mine"), "mine").unwrap();
    let refused = place.run(&line("other", &["--worker", "1/2", "--restart"]));
    assert!(
        refused.code == Some(1)
            && refused.stderr.contains("mine")
            && part(&place, "other", "0/2").join("mine").exists(),
        "{refused:?}"
    );
}
