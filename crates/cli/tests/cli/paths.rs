//! No user file is lost for any combination of paths that a run reads, writes and replaces.

use crate::kvant::{Place, Run, contents, names};
use kvant_container::onnx;
use std::fs;
use std::path::Path;

const TEXT: &str = "The iterator yields every element of the slice, in order. ";

/// Text to calibrate with, and the options for little of it.
fn with_text() -> Place {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(40));
    fs::create_dir(place.path("texts")).unwrap();
    place.write("texts/a.txt", &TEXT.repeat(40));
    place
}

const IMATRIX: [&str; 12] = [
    "quantize",
    "nano_llama",
    "-s",
    "Q4_0",
    "--algorithm",
    "imatrix",
    "--calib",
    "text.txt",
    "--num-samples",
    "2",
    "--seq-len",
    "32",
];

fn refused(place: &Place, line: &[&str], code: i32, told: &str) -> Run {
    let run = place.run(line);
    assert_eq!((run.code, run.stdout.as_str()), (Some(code), ""), "{line:?}: {run:?}");
    assert!(run.stderr.contains(told) && run.stderr.contains("hint: "), "{line:?}: {}", run.stderr);
    run
}

#[test]
fn inputs_and_other_outputs_are_never_overwritten() {
    let place = with_text();
    place.write("here ü.txt", &TEXT.repeat(40));
    place.write("recipe.toml", "version = 2\nscheme = \"Q4_0\"\n");
    place.succeed(&[&IMATRIX[..], &["-o", "first.gguf", "--save-imatrix", "inputs.gguf", "-q"]].concat());
    #[cfg(unix)]
    {
        fs::hard_link(place.path("nano_llama/model.safetensors"), place.path("second")).unwrap();
        std::os::unix::fs::symlink("nano_llama", place.path("link")).unwrap();
    }
    let model = contents(&place.path("nano_llama"));
    let all = names(&place.path(""));
    let imatrix = |more: &[&'static str]| [&IMATRIX[..], more].concat();
    let int4 = |more: &[&'static str]| [&["quantize", "nano_llama", "-s", "int4:g32"], more].concat();
    for (line, told) in [
        (
            imatrix(&["-o", "o.gguf", "--save-imatrix", "nano_llama/model.safetensors"]),
            "lies inside the source nano_llama",
        ),
        (imatrix(&["-o", "o.gguf", "--save-imatrix", "link/new.gguf"]), "lies inside the source"),
        (imatrix(&["-o", "o.gguf", "--save-imatrix", "second"]), "is also a file of the source"),
        (imatrix(&["-o", "o.gguf", "--save-imatrix", "text.txt"]), "is the calibration data text.txt"),
        (imatrix(&["-o", "o.gguf", "--save-imatrix", "./none/../o.gguf"]), "is -o o.gguf"),
        (imatrix(&["-o", "o.gguf", "--save-imatrix", "o.gguf.partial.journal"]), "is a path reserved for -o o.gguf"),
        (
            imatrix(&["-o", "o.gguf", "--save-imatrix", "o.gguf.partial.report.json"]),
            "is a path reserved for -o o.gguf",
        ),
        (int4(&["-o", "nano_llama"]), "is the source"),
        (int4(&["-o", "nano_llama/int4"]), "lies inside the source"),
        (int4(&["-o", "link/int4"]), "lies inside the source"),
        (int4(&["-o", "."]), "holds the source"),
        (int4(&["--algorithm", "gptq", "--calib", "texts", "-o", "texts/out"]), "lies inside the calibration data"),
        (
            int4(&["--algorithm", "gptq", "--calib", "here ü.txt", "-f", "gguf", "-o", "here ü.txt"]),
            "is the calibration",
        ),
        (vec!["quantize", "nano_llama", "--recipe", "recipe.toml", "-o", "recipe.toml"], "is the recipe recipe.toml"),
        (
            vec!["quantize", "nano_llama", "-s", "Q4_0", "--max-kl", "1", "--eval", "text.txt", "-o", "text.txt"],
            "is the evaluation text text.txt",
        ),
        (
            vec!["quantize", "nano_llama", "-s", "Q4_0", "--imatrix", "inputs.gguf", "-o", "inputs.gguf"],
            "is the importance of inputs, inputs.gguf",
        ),
        (vec!["convert", "nano_llama", "--to", "float", "-o", "nano_llama/out"], "lies inside the source"),
        (vec!["plan", "nano_llama", "-s", "int4:g32", "-o", "nano_llama/out"], "lies inside the source"),
    ] {
        for overwrite in [&[][..], &["--overwrite"]] {
            if cfg!(unix) || !told.contains("also") && !line.iter().any(|word| word.contains("link")) {
                let run = refused(&place, &[&line[..], overwrite].concat(), 2, told);
                // Neither a warning about data nor progress is told before: nothing was done.
                assert!(run.stderr.starts_with("error: "), "{line:?}: {}", run.stderr);
            }
        }
    }
    assert_eq!(names(&place.path("")), all);
    assert_eq!(fs::read_to_string(place.path("text.txt")).unwrap(), TEXT.repeat(40));
    assert!(contents(&place.path("nano_llama")) == model, "the source is as it was");
}

/// As in the cache of a hub, whose models are links to files elsewhere.
#[cfg(unix)]
#[test]
fn outputs_containing_link_targets_of_the_source_are_refused() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "codes"]);
    place.succeed(&["convert", "codes", "--to", "float", "-o", "files"]);
    fs::create_dir(place.path("view")).unwrap();
    for name in names(&place.path("files")) {
        std::os::unix::fs::symlink(format!("../files/{name}"), place.path(&format!("view/{name}"))).unwrap();
    }
    let before = contents(&place.path("files"));
    for line in [
        &["quantize", "view", "-s", "int8:channel", "-o", "files"][..],
        &["plan", "view", "-s", "int8:channel", "-o", "files"],
        &["convert", "view", "--to", "float", "-o", "files"],
    ] {
        refused(&place, &[line, &["--overwrite"]].concat(), 2, "-o files holds a file of the source");
    }
    assert!(contents(&place.path("files")) == before);
}

#[test]
fn existing_files_are_replaced_only_when_asked() {
    let place = with_text();
    place.write("kept.gguf", "mine");
    let line = [&IMATRIX[..], &["-o", "o.gguf", "--save-imatrix", "kept.gguf"]].concat();
    refused(&place, &line, 1, "kept.gguf exists already");
    refused(&place, &[&IMATRIX[..], &["-o", "o.gguf", "--save-imatrix", "none/i.gguf"]].concat(), 2, "is missing");
    assert_eq!(fs::read(place.path("kept.gguf")).unwrap(), b"mine");
    assert!(!place.path("o.gguf").exists());
    let other_kind = "cannot be replaced: it is not an importance matrix";
    refused(&place, &[&line[..], &["--overwrite"]].concat(), 1, other_kind);
    assert_eq!(fs::read(place.path("kept.gguf")).unwrap(), b"mine");
    place.write("kept.gguf", "");
    place.succeed(&[&line[..], &["--overwrite"]].concat());
    assert!(fs::read(place.path("kept.gguf")).unwrap().starts_with(b"GGUF"));
    place.succeed(&[&line[..], &["--overwrite"]].concat());
}

/// Both are GGUF files.
#[test]
fn models_and_importance_matrices_do_not_replace_each_other() {
    let place = with_text();
    place.succeed(&[&IMATRIX[..], &["-o", "o.gguf", "--save-imatrix", "i.gguf"]].concat());
    let both = || ["o.gguf", "i.gguf"].map(|name| fs::read(place.path(name)).unwrap());
    let before = both();
    let is_matrix = "cannot be replaced: it is an importance matrix, not a model";
    let is_model = "cannot be replaced: it is not an importance matrix";
    let quantize = |out| vec!["quantize", "nano_llama", "-s", "Q4_0", "-o", out];
    for (line, told) in [
        ([&IMATRIX[..], &["-o", "new.gguf", "--save-imatrix", "o.gguf"]].concat(), is_model),
        (quantize("i.gguf"), is_matrix),
        (vec!["quantize", "nano_llama", "-s", "int4:g32", "-f", "gguf", "-o", "i.gguf"], is_matrix),
    ] {
        refused(&place, &[&line[..], &["--overwrite"]].concat(), 1, told);
    }
    assert!(both() == before);
    place.succeed(&[&quantize("o.gguf")[..], &["--overwrite"]].concat());
}

#[test]
fn user_file_named_like_a_rejection_report_is_kept() {
    let place = with_text();
    place.write("out.partial.report.json", "mine");
    place.write("o.gguf.partial.report.json", "mine");
    let gate = ["--max-kl", "0", "--eval", "text.txt"];
    let int4 = ["quantize", "nano_llama", "-s", "int4:g32", "-o", "out"];
    let gguf = ["quantize", "nano_llama", "-s", "Q4_0", "-o", "o.gguf"];
    for line in [&int4[..], &gguf] {
        for gate in [&[][..], &gate] {
            refused(&place, &[line, gate].concat(), 1, ".partial.report.json exists and is not");
        }
    }
    for kept in ["out.partial.report.json", "o.gguf.partial.report.json"] {
        assert_eq!(fs::read(place.path(kept)).unwrap(), b"mine");
    }
}

#[test]
fn overwrite_removes_only_files_kvant_wrote() {
    let place = Place::new();
    let quantize = |out: &str, more: &[&str]| {
        place.run(&[&["quantize", "nano_llama", "-s", "int4:g32", "-o", out], more].concat())
    };
    assert_eq!(quantize("out", &[]).code, Some(0));
    assert_eq!(quantize("out", &["--overwrite"]).code, Some(0));
    fs::create_dir(place.path("out/logs")).unwrap();
    place.write("out/logs/run.txt", "notes");
    place.write("out/README.md", "mine");
    let config = fs::read_to_string(place.path("out/config.json")).unwrap();
    place.write("out/config.json", &config.replace('1', "2"));
    let before = (names(&place.path("out")), fs::read(place.path("out/config.json")).unwrap());
    let run = quantize("out", &["--overwrite"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    for told in ["README.md (changed), config.json (changed), logs/run.txt", "hint: ", "another output with -o"] {
        assert!(run.stderr.contains(told), "{told}: {}", run.stderr);
    }
    assert_eq!((names(&place.path("out")), fs::read(place.path("out/config.json")).unwrap()), before);
    crate::kvant::copy_dir(&place.path("nano_llama"), &place.path("another model"));
    let run = quantize("another model", &["--overwrite"]);
    assert!(run.code == Some(1) && run.stderr.contains("no kvant_manifest.json"), "{run:?}");
    assert_eq!(names(&place.path("another model")), names(&place.path("nano_llama")));
}

#[test]
fn manifest_of_the_source_is_not_copied() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "codes"]);
    place.succeed(&["convert", "codes", "--to", "float", "-o", "floats"]);
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("floats/kvant_manifest.json")).unwrap()).unwrap();
    let recorded: Vec<&String> = manifest["files"].as_object().unwrap().keys().collect();
    let mut found = names(&place.path("floats"));
    found.retain(|name| name != "kvant_manifest.json");
    assert_eq!(recorded, found.iter().collect::<Vec<_>>());
    place.succeed(&["convert", "codes", "--to", "float", "-o", "floats", "--overwrite"]);
}

/// A graph and its data.
fn with_graph() -> Place {
    let place = Place::empty();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    for (from, to) in [("tinycnn.float.onnx", "float.onnx"), ("tinycnn.calib.npz", "calib.npz")] {
        fs::copy(data.join(from), place.path(to)).unwrap();
    }
    place
}

#[test]
fn graph_reports_replace_no_file_unasked() {
    let place = with_graph();
    place.write("report.json", "mine");
    place.write("config.json", "{\"model_type\": \"llama\"}");
    place.write("stray.onnx.data", "mine");
    place.write("notes.onnx", "mine");
    let quantize = |more: &[&'static str]| {
        [&["quantize", "float.onnx", "--preset", "A8W8", "--data", "calib.npz", "--runtime", "rten"], more].concat()
    };
    let before = contents(&place.path(""));
    for (more, code, told) in [
        (&["-o", "dd.onnx", "--report", "dd.onnx"][..], 2, "--report dd.onnx is -o dd.onnx"),
        (&["-o", "dd.onnx", "--report", "dd.onnx", "--overwrite"], 2, "--report dd.onnx is -o dd.onnx"),
        (&["-o", "dd.onnx", "--report", "dd.onnx.data"], 2, "is a path reserved for -o dd.onnx"),
        (&["-o", "dd.onnx", "--report", "float.onnx", "--overwrite"], 2, "is the source"),
        (&["-o", "dd.onnx", "--report", "calib.npz", "--overwrite"], 2, "is the calibration data"),
        (&["-o", "float.onnx", "--overwrite"], 2, "is the source"),
        (&["-o", "dd.onnx", "--report", "report.json"], 1, "report.json exists already"),
        (&["-o", "dd.onnx", "--report", "report.json", "--overwrite"], 1, "cannot be replaced: it is not a report"),
        (&["-o", "dd.onnx", "--report", "config.json", "--overwrite"], 1, "cannot be replaced: it is not a report"),
        (&["-o", "notes.onnx", "--overwrite"], 1, "it is not an ONNX graph"),
        (&["-o", "stray.onnx", "--overwrite"], 1, "stray.onnx.data exists, and the graph next to it does not use it"),
    ] {
        refused(&place, &quantize(more), code, told);
    }
    assert!(contents(&place.path("")) == before);
    place.write("report.json", "");
    for _ in 0..2 {
        place.succeed(&quantize(&["-o", "dd.onnx", "--report", "report.json", "--overwrite"]));
    }
    // Two graphs may share external data: those of the second are not taken away with the first.
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    graph.initializer.push(onnx::tensor("table", onnx::DataType::FLOAT, &[4096], vec![7; 4 * 4096]));
    onnx::write(model, &place.path("a.onnx"), onnx::ExternalData::Always).unwrap();
    fs::copy(place.path("a.onnx"), place.path("b.onnx")).unwrap();
    let data = fs::read(place.path("a.onnx.data")).unwrap();
    refused(&place, &quantize(&["-o", "a.onnx", "--overwrite"]), 1, "b.onnx uses it too");
    assert!(fs::read(place.path("a.onnx.data")).unwrap() == data);
    fs::remove_file(place.path("b.onnx")).unwrap();
    place.succeed(&quantize(&["-o", "a.onnx", "--overwrite"]));
    assert!(
        !place.path("a.onnx.data").exists() && !names(&place.path("")).iter().any(|name| name.starts_with(".kvant"))
    );
    assert!(fs::read_to_string(place.path("report.json")).unwrap().starts_with('{'));
}

#[cfg(unix)]
#[test]
fn permissions_follow_the_umask() {
    use std::os::unix::fs::PermissionsExt;
    let place = with_graph();
    crate::kvant::copy_dir(&crate::kvant::nano_llama(), &place.path("nano_llama"));
    place.write("text.txt", &TEXT.repeat(40));
    fs::set_permissions(place.path("nano_llama/tokenizer.json"), fs::Permissions::from_mode(0o400)).unwrap();
    let lines: [&[&str]; 3] = [
        &["quantize", "nano_llama", "-s", "int4:g32", "-o", "out"],
        &[&IMATRIX[..], &["-o", "o.gguf", "--save-imatrix", "i.gguf"]].concat(),
        &[
            "quantize",
            "float.onnx",
            "--preset",
            "A8W8",
            "--data",
            "calib.npz",
            "--runtime",
            "rten",
            "-o",
            "q.onnx",
            "--report",
            "r.json",
            "--external-data",
            "always",
        ],
    ];
    for line in lines {
        let kvant = place.command(line);
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "umask 027; exec \"$0\" \"$@\""]).arg(kvant.get_program()).args(kvant.get_args());
        let done = shell.current_dir(place.path("")).output().unwrap();
        assert!(done.status.success(), "{line:?}: {done:?}");
    }
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path("out")), 0o750);
    let inner = names(&place.path("out")).into_iter().map(|name| format!("out/{name}"));
    let files = ["o.gguf", "i.gguf", "q.onnx", "q.onnx.data", "r.json"].map(str::to_owned);
    for file in inner.chain(files) {
        assert_eq!(mode(&place.path(&file)), 0o640, "{file}");
    }
}

#[cfg(unix)]
#[test]
fn link_to_a_directory_is_kept_as_output() {
    let place = Place::new();
    fs::create_dir_all(place.path("disk/empty")).unwrap();
    std::os::unix::fs::symlink("disk/empty", place.path("out put")).unwrap();
    std::os::unix::fs::symlink("disk/gone", place.path("nowhere")).unwrap();
    let line = |out| ["quantize", "nano_llama", "-s", "int4:g32", "-o", out, "--overwrite"];
    place.succeed(&line("out put"));
    place.succeed(&line("out put"));
    assert!(place.path("out put").is_symlink() && place.path("disk/empty/config.json").is_file());
    refused(&place, &line("nowhere"), 2, "is a link that leads nowhere");
    assert_eq!(names(&place.path("disk")), ["empty"]);
}

#[test]
fn directory_of_a_source_file_is_protected() {
    let place = Place::new();
    let file = "nano_llama/model.safetensors";
    let before = names(&place.path("nano_llama"));
    for (out, reason) in
        [("nano_llama/out", "the directory of the source, nano_llama"), ("nano_llama", "holds the source")]
    {
        let run = place.run(&["quantize", file, "-s", "int4:g32", "-o", out, "--overwrite"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains(reason), "{}", run.stderr);
    }
    assert_eq!(names(&place.path("nano_llama")), before);
    // Tensors alone are no model of their directory.
    fs::create_dir(place.path("alone")).unwrap();
    fs::copy(place.path(file), place.path("alone/w.safetensors")).unwrap();
    place.succeed(&["quantize", "alone/w.safetensors", "-s", "int4:g32", "--format", "tensors", "-o", "alone/out"]);
}

/// A name need not be UTF-8. Messages and lines to copy spell it for a shell, stdout has its bytes, and files of such names are carried
/// along as any others.
#[cfg(unix)]
#[test]
fn names_that_are_not_utf8_work_and_are_spelled_for_a_shell() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let place = with_text();
    let name = |text: &[u8]| OsString::from_vec(text.to_vec());
    let model = name(b"mod\xe8le");
    fs::rename(place.path("nano_llama"), place.path("").join(&model)).unwrap();
    fs::write(place.path("").join(&model).join(name(b"lis\xe9.txt")), "read me").unwrap();
    let run = |args: &[&OsStr]| place.command(&[]).args(args).output().unwrap();
    for (scheme, output) in [("int4:g32", &b"r\xe9sultat"[..]), ("Q4_0", b"r\xe9sultat.gguf")] {
        let output = name(output);
        let made = run(&["quantize".as_ref(), &model, "-s".as_ref(), scheme.as_ref(), "-o".as_ref(), &output]);
        let stderr = String::from_utf8(made.stderr).unwrap();
        assert!(made.status.success(), "{stderr}");
        assert!(made.stdout.trim_ascii_end().ends_with(output.as_bytes()), "{:?}", made.stdout);
        assert!(stderr.contains("r\\xe9sultat") && !stderr.contains('\u{fffd}'), "{stderr}");
        assert!(stderr.contains("\"/") && stderr.contains("\\udce9sultat"), "a string of Python: {stderr}");
        assert!(run(&["verify".as_ref(), &output]).status.success(), "{output:?}");
        let json = run(&["inspect".as_ref(), &output, "--json".as_ref()]).stdout;
        assert!(String::from_utf8(json).unwrap().contains("r\\\\xe9sultat"));
    }
    let made = name(b"r\xe9sultat");
    assert_eq!(fs::read(place.path("").join(&made).join(name(b"lis\xe9.txt"))).unwrap(), b"read me");
    // All of it is Kvant's, so that it may be replaced.
    let again = ["quantize".as_ref(), model.as_os_str(), "-s".as_ref(), "int8:channel".as_ref(), "-o".as_ref(), &made];
    let refused = run(&again);
    let stderr = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(1) && stderr.contains("$'") && stderr.contains("r\\xe9sultat'"), "{stderr}");
    let replaced = run(&[&again[..], &["--overwrite".as_ref()]].concat());
    assert!(replaced.status.success(), "{replaced:?}");
    let missing = run(&["eval".as_ref(), &name(b"f\xe9"), "--data".as_ref(), "text.txt".as_ref()]);
    assert!(String::from_utf8(missing.stderr).unwrap().contains("$'f\\xe9': there is no such file"));
}

#[test]
fn commands_in_hints_quote_paths_for_a_shell() {
    let place = Place::empty();
    fs::create_dir(place.path("two files")).unwrap();
    fs::write(place.path("two files/a b.gguf"), b"GGUF").unwrap();
    let refused = place.run(&["verify", "two files"]);
    assert!(refused.stderr.contains("name the file, e.g. 'two files/a b.gguf'"), "{refused:?}");
}
