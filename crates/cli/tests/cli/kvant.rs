//! Runs the binary as a user would, with everything that differs between machines out of the way.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A directory with the small model in it, as `nano_llama`.
pub struct Place {
    dir: tempfile::TempDir,
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Place {
    pub fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        copy_dir(&nano_llama(), &dir.path().join("nano_llama"));
        Place { dir }
    }

    /// A directory without a model.
    pub fn empty() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvant"));
        command.args(args).current_dir(self.dir.path()).stdin(Stdio::null());
        for variable in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"] {
            command.env_remove(variable);
        }
        // Tables are as wide as they are, so that what is looked for in them stands in one line; help is wrapped by it too.
        if !args.iter().any(|arg| ["--help", "-h", "help"].contains(arg)) {
            command.env("COLUMNS", "10000");
        }
        command
    }

    pub fn run(&self, args: &[&str]) -> Run {
        let output = self.command(args).output().unwrap();
        Run {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs a command that must succeed.
    pub fn succeed(&self, args: &[&str]) -> Run {
        let run = self.run(args);
        assert_eq!(run.code, Some(0), "{args:?}: {run:?}");
        run
    }

    /// The calibration record of a checkpoint.
    pub fn record(&self, out: &str) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.path(out).join("calibration.json")).unwrap()).unwrap()
    }

    /// The KL divergence of a checkpoint from the small model on `text.txt`.
    pub fn divergence(&self, out: &str) -> f64 {
        let eval = ["eval", out, "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--json"];
        self.succeed(&eval).json()["kl_mean"].as_f64().unwrap()
    }

    /// A run as text, without what differs from run to run.
    pub fn show(&self, args: &[&str]) -> String {
        let run = self.run(args);
        let dir = std::fs::canonicalize(self.dir.path()).unwrap();
        let text = format!(
            "$ kvant {}\nexit code: {}\n-- stdout\n{}-- stderr\n{}",
            args.join(" "),
            run.code.unwrap(),
            run.stdout,
            run.stderr
        );
        let text = text.replace(&dir.display().to_string(), "[DIR]");
        let text = text.replace(&self.dir.path().display().to_string(), "[DIR]");
        text.lines().map(without_numbers).collect::<Vec<_>>().join("\n")
    }
}

/// Lines with a time, or with a bound of memory that every change of the engine may move.
fn without_numbers(line: &str) -> &str {
    match line.split_whitespace().next() {
        Some("time") => "time             [TIME]",
        Some("memory") => "memory           [SIZE]",
        _ => line,
    }
}

impl Run {
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Where the values of a tensor stand in the bytes of a safetensors file.
pub fn tensor_range(file: &[u8], tensor: &str) -> std::ops::Range<usize> {
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let offset = |end: usize| 8 + length + header[tensor]["data_offsets"][end].as_u64().unwrap() as usize;
    offset(0)..offset(1)
}

pub fn nano_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama")
}

pub fn copy_dir(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// The files of a directory with their bytes, sorted by name.
pub fn contents(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let read =
        |entry: std::fs::DirEntry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap());
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| read(entry.unwrap())).collect();
    files.sort();
    files
}

/// The same without the model card, which quotes the recipe as it was given, and the manifest.
pub fn contents_but_card(dir: &Path) -> Vec<(String, Vec<u8>)> {
    contents(dir)
        .into_iter()
        .filter(|(name, _)| !["README.md", "kvant_manifest.json"].contains(&name.as_str()))
        .collect()
}

/// The names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
