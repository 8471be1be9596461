//! Runs that are killed or stopped, and resume.

use crate::kvant::{Place, contents, names};
use crate::made_model::MadeModel;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Layers that share scales, and others that are slow enough to be killed in the middle.
const OPTIONS: [&str; 5] =
    ["--scheme", "nvfp4", "--weights-only", "--override", "*.down_proj=e4m3:channel:percentile99"];

fn place() -> Place {
    let place = Place::empty();
    let model = MadeModel { layers: 6, hidden: 512, intermediate: 1536, vocabulary: 8192, max_shard_size: 16_000_000 };
    model.write(&place.path("model"));
    place
}

fn args(out: &str) -> Vec<&str> {
    let run = ["--threads", "2", "--max-shard-size", "4MB", "--json", "-o", out];
    [&["quantize", "model"], &OPTIONS[..], &run[..]].concat()
}

fn spawn(place: &Place, out: &str) -> Child {
    place.command(&args(out)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// Waits until some work on `out` is recorded.
fn wait_for_work(place: &Place, out: &str) {
    let journal = place.path(&format!("{out}.partial.journal"));
    let begun = Instant::now();
    while std::fs::read_to_string(&journal).unwrap_or_default().matches("\"job\"").count() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(20), "no work on {out}");
        sleep(Duration::from_millis(1));
    }
}

/// Leaves unfinished work on `out`.
fn kill_at_work(place: &Place, out: &str) {
    let mut child = spawn(place, out);
    wait_for_work(place, out);
    child.kill().unwrap();
    child.wait().unwrap();
}

fn signal(child: &Child, name: &str) {
    assert!(Command::new("kill").args([name, &child.id().to_string()]).status().unwrap().success());
}

/// Numbers from 0 to 1 that differ from run to run.
fn random() -> impl FnMut() -> f64 {
    let mut state = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[test]
fn killed_run_resumes_with_identical_output() {
    let place = place();
    let begun = Instant::now();
    place.succeed(&args("whole"));
    let whole = begun.elapsed();
    let expected = contents(&place.path("whole"));
    let (mut random, mut resumed) = (random(), 0);
    for round in 0..10 {
        let out = format!("out{round}");
        // Some are killed more than once.
        for _ in 0..1 + round % 3 {
            let moment = whole.mul_f64(random());
            let mut child = spawn(&place, &out);
            sleep(moment);
            child.kill().unwrap();
            child.wait().unwrap();
        }
        // Only a run that came to its very end has an output and no journal.
        let journal = place.path(&format!("{out}.partial.journal"));
        if journal.exists() || !place.path(&out).exists() {
            resumed += place.succeed(&args(&out)).json()["resumed_jobs"].as_u64().unwrap();
        }
        assert!(contents(&place.path(&out)) == expected, "round {round}");
        let left: Vec<_> =
            names(&place.path("")).into_iter().filter(|name| name.starts_with(&format!("{out}."))).collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
        std::fs::remove_dir_all(place.path(&out)).unwrap();
        if begun.elapsed() > Duration::from_secs(15) {
            break;
        }
    }
    assert!(resumed > 0, "no run was killed in the middle");
}

#[test]
fn killed_run_resumes_with_identical_gguf_files() {
    let place = Place::new();
    let line = |out: &'static str| {
        ["quantize", "nano_llama", "-s", "Q4_K_M", "--scales", "search", "--max-shard-size", "100KB", "-o", out]
    };
    let begun = Instant::now();
    place.succeed(&line("folder/split"));
    let whole = begun.elapsed();
    let expected = contents(&place.path("folder/split"));
    let mut random = random();
    for round in 0..8 {
        for _ in 0..2 {
            let mut child = place.command(&line("split")).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            sleep(whole.mul_f64(random()));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        if place.path("split.partial.journal").exists() || !place.path("split").exists() {
            place.succeed(&line("split"));
        }
        assert!(contents(&place.path("split")) == expected, "round {round}");
        let left: Vec<_> = names(&place.path("")).into_iter().filter(|name| name.starts_with("split.")).collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
        std::fs::remove_dir_all(place.path("split")).unwrap();
    }
}

#[test]
fn unfinished_work_of_another_recipe_is_refused() {
    let place = place();
    kill_at_work(&place, "out");
    let other = |out: &'static str, more: &[&'static str]| {
        let line =
            [&["quantize", "model"], &OPTIONS[..], &["--max-shard-size", "5MB", "--json", "-o", out], more].concat();
        place.run(&line)
    };
    let before = names(&place.path("out.partial"));
    for more in [&[][..], &["--overwrite"]] {
        let refused = other("out", more);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let told = "unfinished run with other options: --max-shard-size 4MB, now --max-shard-size 5MB";
        assert!(refused.stderr.contains(told) && refused.stderr.contains("--restart"), "{}", refused.stderr);
        assert!(!refused.stderr.contains("--scheme"), "options that agree are not told: {}", refused.stderr);
        assert_eq!(names(&place.path("out.partial")), before);
    }
    let scheme = ["--scheme", "int4:g32", "--max-shard-size", "4MB", "-o", "out"];
    let refused = place.run(&[&["quantize", "model"], &OPTIONS[2..], &scheme].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    let told = "unfinished run with other options: --scheme nvfp4, now --scheme int4:g32";
    assert!(refused.stderr.contains(told) && refused.stderr.contains("--restart"), "{}", refused.stderr);
    assert_eq!(names(&place.path("out.partial")), before);
    let restarted = other("out", &["--restart"]);
    assert_eq!((restarted.code, &restarted.json()["resumed_jobs"]), (Some(0), &0.into()));
    other("fresh", &[]);
    assert!(contents(&place.path("out")) == contents(&place.path("fresh")));
}

#[test]
fn user_files_in_unfinished_work_are_refused() {
    let place = place();
    kill_at_work(&place, "out");
    place.write("out.partial/mine.txt", "mine");
    let refused = place.run(&args("out"));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("mine.txt") && refused.stderr.contains("hint: move"), "{}", refused.stderr);
    assert!(!place.path("out").exists());
    std::fs::rename(place.path("out.partial/mine.txt"), place.path("mine.txt")).unwrap();
    place.succeed(&args("out"));
    assert!(!names(&place.path("out")).iter().any(|name| name == "mine.txt"));
}

#[test]
fn source_modified_during_the_run_is_detected() {
    use std::io::{Seek, SeekFrom, Write};
    let place = place();
    let child = place.command(&args("out")).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for_work(&place, "out");
    signal(&child, "-STOP");
    let shard = names(&place.path("model")).into_iter().find(|name| name.ends_with(".safetensors")).unwrap();
    let mut file = std::fs::OpenOptions::new().write(true).open(place.path("model").join(&shard)).unwrap();
    file.seek(SeekFrom::End(-64)).unwrap();
    file.write_all(&[0x11; 64]).unwrap();
    drop(file);
    signal(&child, "-CONT");
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && stderr.contains(&format!("{shard} has changed")), "{stderr}");
    assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")), "a mixture is of no use");
    place.succeed(&args("out"));
}

/// A mapped file that is cut short ends a process that does not expect it with a bus error.
#[test]
fn source_truncated_during_the_run_is_named() {
    let place = Place::new();
    let model = MadeModel { layers: 6, hidden: 512, intermediate: 1536, vocabulary: 8192, max_shard_size: 16_000_000 };
    model.write(&place.path("model"));
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(1000));
    let calibrated =
        ["quantize", "nano_llama", "-s", "int4:g32", "--algorithm", "gptq", "--calib", "text.txt", "-o", "out"];
    let evaluated = ["eval", "nano_llama", "--data", "text.txt", "--seq-len", "64"];
    let small = "nano_llama/model.safetensors";
    let shard = names(&place.path("model")).into_iter().rfind(|name| name.ends_with(".safetensors")).unwrap();
    let shard = format!("model/{shard}");
    for (line, file) in [(&args("out")[..], &shard[..]), (&calibrated, small), (&evaluated, small)] {
        let whole = std::fs::read(place.path(file)).unwrap();
        let child = place.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_map(&child, &place.path(file));
        signal(&child, "-STOP");
        std::fs::OpenOptions::new().write(true).open(place.path(file)).unwrap().set_len(2_000).unwrap();
        signal(&child, "-CONT");
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line:?}: {:?} {stderr}", output.status);
        assert!(stderr.contains(&format!("{file} was cut short")), "{line:?}: {stderr}");
        assert!(!place.path("out").exists(), "{line:?}");
        std::fs::write(place.path(file), whole).unwrap();
        let left = names(&place.path("")).into_iter().filter(|name| name.contains(".partial"));
        left.for_each(|name| {
            _ = std::fs::remove_dir_all(place.path(&name)).or_else(|_| std::fs::remove_file(place.path(&name)))
        });
    }
}

/// Whatever was read of a file that was rewritten meanwhile may be of both versions: no command reports it as a result.
#[test]
fn results_of_a_source_that_is_rewritten_while_it_is_read_are_not_reported() {
    use std::io::{Seek, SeekFrom, Write};
    let place = Place::new();
    let model = MadeModel { layers: 6, hidden: 512, intermediate: 1536, vocabulary: 8192, max_shard_size: u64::MAX };
    model.write(&place.path("model"));
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(1000));
    place.succeed(&["quantize", "model", "-s", "int4:g32", "-o", "int4"]);
    place.succeed(&["quantize", "nano_llama", "-s", "F16", "-o", "f16.gguf"]);
    let (made, int4) = ("model/model.safetensors", "int4/model.safetensors");
    let lines: [(&[&str], &str); 6] = [
        (&["verify", "model"], made),
        (&["verify", "int4"], int4),
        (&["convert", "int4", "--to", "float", "-o", "out"], int4),
        (&["eval", "nano_llama", "--data", "text.txt", "--seq-len", "64"], "nano_llama/model.safetensors"),
        (&["eval", "f16.gguf", "--data", "text.txt", "--seq-len", "64"], "f16.gguf"),
        (&["eval", "nano_llama", "--reference", "f16.gguf", "--data", "text.txt", "--seq-len", "64"], "f16.gguf"),
    ];
    let rewritten_run = |line: &[&str], file: &str| {
        let child = place.command(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        stop_while_mapped(&child, &place.path(file));
        // A byte as it was: what is read is right by chance, and nobody can know.
        let mut rewritten = std::fs::OpenOptions::new().read(true).write(true).open(place.path(file)).unwrap();
        let mut last = [0];
        rewritten.seek(SeekFrom::End(-1)).unwrap();
        std::io::Read::read_exact(&mut rewritten, &mut last).unwrap();
        rewritten.seek(SeekFrom::End(-1)).unwrap();
        rewritten.write_all(&last).unwrap();
        drop(rewritten);
        signal(&child, "-CONT");
        child.wait_with_output().unwrap()
    };
    for (line, file) in lines {
        let mut output = rewritten_run(line, file);
        // On a busy machine a run may be over before it is stopped.
        for _ in 0..2 {
            if output.status.success() {
                let _ = std::fs::remove_dir_all(place.path("out"));
                output = rewritten_run(line, file);
            }
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line:?}: {:?} {stderr}", output.status);
        assert!(stderr.contains(&format!("{file} has changed while it was read")), "{line:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{line:?}: a result is printed");
        assert!(!place.path("out").exists(), "{line:?}");
        place.succeed(line);
        let made = place.path("out");
        let _ = std::fs::remove_dir_all(&made).or_else(|_| std::fs::remove_file(&made));
    }
}

/// Waits until a process has mapped a file.
fn wait_for_map(child: &Child, file: &std::path::Path) {
    let begun = Instant::now();
    while !is_mapped(child, file) {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} is not mapped", file.display());
    }
}

/// Stops a run that has mapped a file and not let go of it: headers and tokenizers are read through short-lived maps before.
fn stop_while_mapped(child: &Child, file: &std::path::Path) {
    loop {
        wait_for_map(child, file);
        signal(child, "-STOP");
        std::thread::sleep(Duration::from_millis(20));
        if is_mapped(child, file) {
            return;
        }
        signal(child, "-CONT");
    }
}

fn is_mapped(child: &Child, file: &std::path::Path) -> bool {
    let name = std::fs::canonicalize(file).unwrap().display().to_string();
    std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap_or_default().contains(&name)
}

#[test]
fn user_files_in_unfinished_work_survive_restart() {
    let place = place();
    kill_at_work(&place, "out");
    place.write("out.partial/mine.txt", "mine");
    let line = [&args("out")[..], &["--restart"]].concat();
    let refused = place.run(&line);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("mine.txt") && refused.stderr.contains("hint: move"), "{}", refused.stderr);
    std::fs::rename(place.path("out.partial/mine.txt"), place.path("mine.txt")).unwrap();
    assert_eq!(place.succeed(&line).json()["resumed_jobs"], 0);
}

#[test]
fn killed_run_resumes_from_another_directory_but_not_another_source() {
    let place = place();
    kill_at_work(&place, "out");
    std::fs::create_dir(place.path("elsewhere")).unwrap();
    let from_elsewhere = || {
        let line: Vec<&str> =
            args("../out").into_iter().map(|arg| if arg == "model" { "../model" } else { arg }).collect();
        place.command(&line).current_dir(place.path("elsewhere")).output().unwrap()
    };
    for entry in std::fs::read_dir(place.path("model")).unwrap() {
        let file = std::fs::File::options().append(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(SystemTime::now() + Duration::from_secs(9)).unwrap();
    }
    let refused = from_elsewhere();
    let told = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && told.contains("because the source model has changed"), "{told}");
    place.succeed(&[&args("out")[..], &["--restart"]].concat());
    std::fs::remove_dir_all(place.path("out")).unwrap();
    kill_at_work(&place, "out");
    let resumed = from_elsewhere();
    assert!(resumed.status.success(), "{resumed:?}");
    let resumed: serde_json::Value = serde_json::from_slice(&resumed.stdout).unwrap();
    assert!(resumed["resumed_jobs"].as_u64().unwrap() > 0, "{resumed}");
}

#[test]
fn concurrent_runs_to_one_output_are_refused() {
    let place = place();
    let mut child = spawn(&place, "out");
    wait_for_work(&place, "out");
    signal(&child, "-STOP");
    let second = place.run(&args("out"));
    signal(&child, "-CONT");
    assert_eq!((second.code, second.json()["error"]["kind"].as_str()), (Some(1), Some("system")), "{second:?}");
    assert!(second.stderr.contains(&format!("another run (process {}) is writing", child.id())), "{}", second.stderr);
    assert!(child.wait().unwrap().success());
}

#[test]
fn ctrl_c_stops_cleanly() {
    if interrupts_are_ignored() {
        return;
    }
    let place = place();
    place.succeed(&args("whole"));
    for (out, name, code) in [("out", "-INT", 130), ("other", "-TERM", 143)] {
        let child = place.command(&args(out)).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_for_work(&place, out);
        ["-STOP", name, "-CONT"].iter().for_each(|name| signal(&child, name));
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (output.status.code(), stderr.as_ref()),
            (Some(code), "Interrupted. Run the same command again to resume.\n")
        );
        assert!(!place.path(out).exists());
        assert!(place.succeed(&args(out)).json()["resumed_jobs"].as_u64().unwrap() > 0);
        assert!(contents(&place.path(out)) == contents(&place.path("whole")));
    }
}

/// Under `nohup` the hang-up is ignored, and stays so; Ctrl-C works as ever.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_stops_cleanly_with_sighup_ignored() {
    if interrupts_are_ignored() {
        return;
    }
    let place = place();
    let kvant = place.command(&args("out"));
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$0\" \"$@\""]).arg(kvant.get_program()).args(kvant.get_args());
    shell.current_dir(place.path("")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = shell.spawn().unwrap();
    wait_for_work(&place, "out");
    ["-STOP", "-HUP", "-INT", "-CONT"].iter().for_each(|name| signal(&child, name));
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        (output.status.code(), stderr.as_ref()),
        (Some(130), "Interrupted. Run the same command again to resume.\n")
    );
}

/// Commands that only read have nothing to put away.
#[cfg(target_os = "linux")]
#[test]
fn ctrl_c_during_verification_has_its_exit_code() {
    if interrupts_are_ignored() {
        return;
    }
    let place = Place::empty();
    let header = br#"{"w":{"dtype":"F32","shape":[16384,16384],"data_offsets":[0,1073741824]}}       "#;
    let file = std::fs::File::create(place.path("w.safetensors")).unwrap();
    std::io::Write::write_all(&mut &file, &[&(header.len() as u64).to_le_bytes()[..], header].concat()).unwrap();
    // Zeros that take no room.
    file.set_len(8 + header.len() as u64 + 1_073_741_824).unwrap();
    for (name, code) in [("-INT", 130), ("-TERM", 143)] {
        let child = place.command(&["verify", "w.safetensors"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap();
        wait_for_map(&child, &place.path("w.safetensors"));
        signal(&child, name);
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(code), "{name}");
    }
}

/// Shells start background jobs so; then the signal does nothing, as it should.
pub fn interrupts_are_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 0b10 != 0)
}
