//! Ctrl-C and other signals.

use super::{place, quantize};
use crate::kvant::names;
use std::process::{Command, Stdio};

/// Whether this process was started, as by `nohup`, with one of these signals ignored, which its children inherit: all of them
/// stay as they are then.
#[cfg(unix)]
fn ignores_signals() -> bool {
    const HANG_UP_INTERRUPT_TERMINATE: u64 = 1 | 1 << 1 | 1 << 14;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored & HANG_UP_INTERRUPT_TERMINATE != 0
}

#[cfg(unix)]
#[test]
fn signals_leave_no_files() {
    use std::process::{Command, Stdio};
    if ignores_signals() {
        return;
    }
    for (signal, code) in [("-TERM", 143), ("-HUP", 129), ("-INT", 130)] {
        let place = place();
        let mut args = quantize(&["--num-samples", "100000000"]);
        args[5] = "random";
        let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Long enough to have come to the samples, of which there are too many to end, on a busy machine too.
        std::thread::sleep(std::time::Duration::from_millis(6000));
        assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait().unwrap().code(), Some(code));
        assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"]);
    }
}

#[cfg(unix)]
#[test]
fn graph_evaluation_can_be_interrupted() {
    if ignores_signals() {
        return;
    }
    let place = place();
    let line =
        "eval float.onnx --reference float.onnx --data random --num-samples 5000000 --runtime rten --progress always";
    let line: Vec<&str> = line.split(' ').collect();
    let mut child = place.command(&line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut text = String::new();
    // The first line of progress.
    std::io::BufRead::read_line(&mut stderr, &mut text).unwrap();
    assert!(text.contains("samples"), "{text}");
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{text}");
    assert!(text.ends_with("Interrupted. Nothing was written: the same command starts over.\n"), "{text}");
}
