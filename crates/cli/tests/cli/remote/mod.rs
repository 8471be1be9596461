//! Models that are not on this machine, on a server of the test.

mod server;

use crate::kvant::{Place, Run, contents, contents_but_card, copy_dir, names, nano_llama, tensor_range};
use crate::made_model::MadeModel;
use kvant_checkpoint::byte_size::ByteSize;
use server::{COMMIT, Fault, SIGNATURE, Server};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

const TOKEN: &str = "hf_ThisIsTheTokenOfTheTest";

/// A place with a model in shards, whose server is another folder.
fn place() -> Place {
    let place = Place::new();
    let model = MadeModel { layers: 4, hidden: 256, intermediate: 768, vocabulary: 4096, max_shard_size: 3_000_000 };
    model.write(&place.path("model"));
    place
}

/// A command without the machine's proxies, tokens and caches.
fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(args);
    for variable in
        ["http_proxy", "https_proxy", "all_proxy", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HUB_CACHE"]
    {
        command.env_remove(variable).env_remove(variable.to_ascii_uppercase());
    }
    command.env("HF_HOME", place.path("hf-home")).env("TMPDIR", place.path("")).env("NO_PROXY", "127.0.0.1");
    command
}

fn output_of(mut command: Command) -> Run {
    let output = command.output().unwrap();
    Run {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn run(place: &Place, args: &[&str]) -> Run {
    output_of(command(place, args))
}

fn succeed(place: &Place, args: &[&str]) -> Run {
    let run = run(place, args);
    assert_eq!(run.code, Some(0), "{args:?}: {run:?}");
    run
}

fn url(server: &Server) -> String {
    format!("{}/model", server.address)
}

/// The bytes of a model's tensors, and of the headers in front of them.
fn weights_and_headers(model: &Path) -> (u64, u64) {
    let shards = contents(model).into_iter().filter(|(name, _)| name.ends_with(".safetensors"));
    shards.fold((0, 0), |(tensors, headers), (_, bytes)| {
        let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
        (tensors + bytes.len() as u64 - header, headers + header)
    })
}

#[test]
fn model_behind_http_gives_the_bytes_of_the_same_model_here() {
    let place = place();
    let server = Server::of(place.path(""));
    let (weights, _) = weights_and_headers(&place.path("model"));
    let shards =
        contents(&place.path("model")).iter().filter(|(name, _)| name.ends_with(".safetensors")).count() as u64;
    for (index, options) in [
        &["--scheme", "int4:g32"][..],
        &["--scheme", "mxfp4"],
        &["--scheme", "nvfp4", "--weights-only", "--override", "*.down_proj=e4m3:channel:percentile99"],
        &["--scheme", "int8", "--weights-only", "--format", "fake"],
        &["--scheme", "int4:g32:zp", "--algorithm", "hqq", "--exclude", "*.layers.1.*"],
        &["--scheme", "int8:channel", "--format", "quark", "--format", "compressed-tensors"],
    ]
    .into_iter()
    .enumerate()
    {
        server.forget();
        let (here, elsewhere) = (format!("here{index}"), format!("elsewhere{index}"));
        succeed(&place, &[&["quantize", "model", "-o", &here], options].concat());
        succeed(&place, &[&["quantize", &url(&server), "-o", &elsewhere, "--threads", "2"], options].concat());
        let files = |out: &str| {
            let folder = place.path(out);
            match folder.join("config.json").exists() {
                true => vec![contents_but_card(&folder)],
                false => names(&folder).iter().map(|format| contents_but_card(&folder.join(format))).collect(),
            }
        };
        assert!(files(&here) == files(&elsewhere), "{options:?}");
        let sent = server.sent(".safetensors");
        // No tensor twice; of shorter headers than the first request asks for, tensors behind them are sent with it.
        assert!((weights..=weights + shards * (32 << 10)).contains(&sent), "{options:?}: {sent} of {weights}");
    }
    let left: Vec<String> = names(&place.path("")).into_iter().filter(|name| name.starts_with('.')).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn plan_and_inspection_read_headers_only() {
    let place = place();
    let server = Server::of(place.path(""));
    let (weights, headers) = weights_and_headers(&place.path("model"));
    for args in [&["plan", &url(&server), "--scheme", "int4:g32"][..], &["inspect", &url(&server)]] {
        server.forget();
        let found = succeed(&place, &[args, &["--json"]].concat()).json();
        assert_eq!(found["model"], url(&server).as_str());
        assert!(server.seen().iter().all(|request| !request.is_for_tensors()), "{:?}", server.seen());
        assert!(server.sent(".safetensors") < headers + 10 * (32 << 10), "{}", server.sent(".safetensors"));
        if args[0] == "plan" {
            assert_eq!(found["download_bytes"], weights);
        }
        let here = [&[args[0], "model"], &args[2..], &["--json"]].concat();
        let mut here = succeed(&place, &here).json();
        let mut elsewhere = found;
        for object in [&mut here, &mut elsewhere] {
            let object = object.as_object_mut().unwrap();
            ["model", "files", "download_bytes", "tensors"].iter().for_each(|key| _ = object.remove(*key));
        }
        assert_eq!(here, elsewhere);
    }
    let words = succeed(&place, &["plan", &url(&server), "--scheme", "int4:g32"]).stdout;
    assert!(words.lines().any(|line| line.starts_with("download ")), "{words}");
}

/// The first attempt of every request fails, each in another way.
#[test]
fn broken_requests_are_repeated() {
    let place = place();
    let server = Server::of(place.path(""));
    succeed(&place, &["quantize", "model", "--scheme", "int4:g32", "-o", "here"]);
    server.fail(|request, before| {
        let faults = [
            Fault::Status(429),
            Fault::Status(500),
            Fault::Status(503),
            Fault::Reset,
            Fault::CutShort,
            Fault::Slow(Duration::from_millis(100)),
        ];
        let which = request.path.len() + request.range.as_ref().map_or(0, |range| range.start as usize / 8);
        if before == 0 { faults[which % faults.len()] } else { Fault::None }
    });
    succeed(&place, &["quantize", &url(&server), "--scheme", "int4:g32", "-o", "elsewhere"]);
    assert!(contents_but_card(&place.path("here")) == contents_but_card(&place.path("elsewhere")));
}

#[test]
fn request_that_fails_for_good_is_named_and_its_run_resumes() {
    let place = place();
    let server = Server::of(place.path(""));
    succeed(&place, &["quantize", "model", "--scheme", "int4:g32", "-o", "here"]);
    let last = "model-00004-of-";
    // Norms are read before the work.
    let is_large =
        |request: &server::Request| request.range.as_ref().is_some_and(|range| range.end - range.start > 4096);
    server.fail(move |request, _| match request.is_for_tensors() && is_large(request) && request.path.contains(last) {
        true => Fault::Status(503),
        false => Fault::None,
    });
    let args = ["quantize", &url(&server), "--scheme", "int4:g32", "-o", "elsewhere", "--threads", "1"];
    let failed = run(&place, &args);
    assert_eq!(failed.code, Some(1), "{failed:?}");
    let message = format!("{}/model/{last}", server.address);
    assert!(failed.stderr.contains(&message) && failed.stderr.contains(": bytes "), "{}", failed.stderr);
    assert!(failed.stderr.contains("cannot be downloaded: status 503"), "{}", failed.stderr);
    assert!(!place.path("elsewhere").exists() && place.path("elsewhere.partial").exists());
    server.forget();
    server.fail(|_, _| Fault::None);
    succeed(&place, &args);
    let (weights, _) = weights_and_headers(&place.path("model"));
    assert!(server.sent(".safetensors") < weights, "finished work is not downloaded again");
    assert!(contents_but_card(&place.path("here")) == contents_but_card(&place.path("elsewhere")));
}

#[test]
fn killed_run_resumes_with_identical_output() {
    let place = place();
    let server = Server::of(place.path(""));
    succeed(&place, &["quantize", "model", "--scheme", "int4:g32", "-o", "here"]);
    server
        .fail(|request, _| if request.is_for_tensors() { Fault::Slow(Duration::from_millis(60)) } else { Fault::None });
    let args = ["quantize", &url(&server), "--scheme", "int4:g32", "-o", "elsewhere", "--threads", "1"];
    let mut child = command(&place, &args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let journal = place.path("elsewhere.partial.journal");
    while fs::read_to_string(&journal).unwrap_or_default().matches("\"job\"").count() < 3 {
        assert!(begun.elapsed() < Duration::from_secs(20), "no work");
        sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    server.fail(|_, _| Fault::None);
    server.forget();
    let report = succeed(&place, &[&args[..], &["--json"]].concat()).json();
    assert!(report["resumed_jobs"].as_u64().unwrap() >= 3, "{report}");
    assert!(contents_but_card(&place.path("here")) == contents_but_card(&place.path("elsewhere")));
    let left: Vec<String> = names(&place.path("")).into_iter().filter(|name| name.starts_with('.')).collect();
    assert!(left.is_empty(), "what the killed run left is removed: {left:?}");
}

#[test]
fn stopped_run_says_so() {
    let place = place();
    let server = Server::of(place.path(""));
    server.fail(|request, _| if request.is_for_tensors() { Fault::Status(503) } else { Fault::None });
    let args = ["quantize", &url(&server), "--scheme", "int4:g32", "-o", "out"];
    let child = command(&place, &args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while !server.seen().iter().any(server::Request::is_for_tensors) {
        assert!(begun.elapsed() < Duration::from_secs(20), "no work");
        sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(143), "{stderr}");
    assert!(stderr.contains("Interrupted.") && !stderr.contains("503"), "{stderr}");
}

#[test]
fn file_that_changes_between_two_requests_is_refused() {
    let place = place();
    let server = Server::of(place.path(""));
    server.fail(|request, _| if request.is_for_tensors() { Fault::OtherTag } else { Fault::None });
    let refused = run(&place, &["quantize", &url(&server), "--scheme", "int4:g32", "-o", "out"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("has changed since it was opened: its ETag is another"), "{}", refused.stderr);
    assert!(!place.path("out").exists());
}

#[test]
fn server_without_ranges_is_refused_with_a_reason() {
    let place = place();
    let server = Server::of(place.path(""));
    server.fail(|_, _| Fault::WholeFile);
    let refused = run(&place, &["quantize", &url(&server), "--scheme", "int4:g32", "-o", "out"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("ignores requests for parts of files"), "{}", refused.stderr);
}

#[test]
fn values_that_are_not_finite_are_found_in_what_is_copied() {
    let place = place();
    let (name, mut bytes) = contents(&place.path("model"))
        .into_iter()
        .find(|(name, bytes)| name.ends_with(".safetensors") && holds(bytes, "model.embed_tokens.weight"))
        .unwrap();
    let range = tensor_range(&bytes, "model.embed_tokens.weight");
    bytes[range.start..range.start + 4].copy_from_slice(&[0xff; 4]);
    fs::write(place.path("model").join(name), bytes).unwrap();
    let server = Server::of(place.path(""));
    let refused = run(&place, &["quantize", &url(&server), "--scheme", "int4:g32", "-o", "out"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("model.embed_tokens.weight"), "{}", refused.stderr);
    assert!(!place.path("out").exists());
}

fn holds(shard: &[u8], tensor: &str) -> bool {
    let length = u64::from_le_bytes(shard[..8].try_into().unwrap()) as usize;
    String::from_utf8_lossy(&shard[8..8 + length]).contains(tensor)
}

/// A command for the look-alike of the Hub.
fn hub_command(place: &Place, hub: &Server, args: &[&str]) -> Command {
    let mut command = command(place, args);
    command.env("HF_ENDPOINT", &hub.address).env("HF_TOKEN", TOKEN);
    command
}

#[test]
fn token_is_for_the_hub_alone_and_nowhere_in_results() {
    let place = place();
    // With a tokenizer and a card.
    copy_dir(&nano_llama(), &place.path("served"));
    let weights = Server::of(place.path("served"));
    let hub = Server::hub(place.path("served"), TOKEN, &weights);
    let with_password = format!("http://user:{TOKEN}@{}", weights.address.trim_start_matches("http://"));
    succeed(&place, &["quantize", "served", "--scheme", "int4:g32", "-o", "here"]);
    let mut told = String::new();
    for (index, model) in ["hf://org/name", "org/name", "hf://org/name@main", &with_password].into_iter().enumerate() {
        let out = format!("elsewhere{index}");
        let report = format!("report{index}.html");
        let args = ["quantize", model, "--scheme", "int4:g32", "-o", &out, "--report", &report, "--verbose", "--json"];
        let made = output_of(hub_command(&place, &hub, &args));
        assert_eq!(made.code, Some(0), "{made:?}");
        told.push_str(&words(&made));
        assert!(contents_but_card(&place.path("here")) == contents_but_card(&place.path(&out)), "{model}");
        if index < 3 {
            let card = fs::read_to_string(place.path(&out).join("README.md")).unwrap();
            assert!(card.contains("org/name"), "the card names the model: {card}");
        }
        for args in [
            &["plan", model, "--scheme", "int4:g32", "--json"][..],
            &["inspect", model, "--json"],
            &["eval", model, "--data", "x"],
        ] {
            told.push_str(&words(&output_of(hub_command(&place, &hub, args))));
        }
    }
    assert!(told.contains(&format!("hf://org/name@{COMMIT}")));
    // Work that is left, and errors.
    weights.fail(|request, _| if request.is_for_tensors() { Fault::Status(503) } else { Fault::None });
    for (model, out) in [("hf://org/name", "failed0"), (with_password.as_str(), "failed1")] {
        let failed = output_of(hub_command(&place, &hub, &["quantize", model, "--scheme", "int4:g32", "-o", out]));
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(place.path(&format!("{out}.partial.journal")).exists());
        told.push_str(&words(&failed));
    }
    for secret in [TOKEN, SIGNATURE, "dXNlcj"] {
        assert!(!told.contains(secret), "{secret} in {told}");
        assert_nowhere(&place.path(""), secret);
    }
    // The password is for the server of weights, the token is not.
    let authorized = weights.seen().into_iter().filter_map(|request| request.authorization);
    assert!(authorized.into_iter().all(|value| value.starts_with("Basic ")));
}

/// Everything that a run prints.
fn words(run: &Run) -> String {
    format!("{}\n{}\n", run.stdout, run.stderr)
}

fn assert_nowhere(folder: &Path, secret: &str) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_nowhere(&path, secret);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        assert!(
            !bytes.windows(secret.len()).any(|window| window == secret.as_bytes()),
            "{secret} in {}",
            path.display()
        );
    }
}

#[test]
fn denied_models_name_the_way_to_a_token() {
    let place = Place::empty();
    let weights = Server::of(nano_llama());
    let hub = Server::hub(nano_llama(), TOKEN, &weights);
    let mut command = hub_command(&place, &hub, &["inspect", "org/name"]);
    command.env_remove("HF_TOKEN");
    let denied = output_of(command);
    assert_eq!(denied.code, Some(1), "{denied:?}");
    assert!(denied.stderr.contains("HF_TOKEN"), "{}", denied.stderr);
}

#[test]
fn model_in_the_cache_of_the_hub_is_an_ordinary_folder() {
    let place = Place::new();
    let model = place.path("hf-home/hub/models--org--name");
    copy_dir(&nano_llama(), &model.join(format!("snapshots/{COMMIT}")));
    fs::create_dir_all(model.join("refs")).unwrap();
    fs::write(model.join("refs/main"), COMMIT).unwrap();
    let offline = |args: &[&str]| {
        let mut command = command(&place, args);
        command.env("HF_HUB_OFFLINE", "1");
        output_of(command)
    };
    let args = |model, out| ["quantize", model, "--scheme", "int4:g32", "-o", out];
    succeed(&place, &args("nano_llama", "here"));
    let made = offline(&args("org/name", "cached"));
    assert_eq!(made.code, Some(0), "{made:?}");
    assert!(contents_but_card(&place.path("here")) == contents_but_card(&place.path("cached")));
    let missing = offline(&args("hf://org/other", "out"));
    assert_eq!(missing.code, Some(1), "{missing:?}");
    assert!(missing.stderr.contains("HF_HUB_OFFLINE is set"), "{}", missing.stderr);
}

#[test]
fn what_needs_the_whole_model_here_is_refused_by_name() {
    let place = place();
    place.write("text.txt", "some text");
    let server = Server::of(place.path(""));
    let url = url(&server);
    let quantize = |more: &[&'static str]| {
        [&["quantize", &url, "-o", "out"], more].concat().iter().map(|word| word.to_string()).collect()
    };
    let cases: [(Vec<String>, &str); 6] = [
        (quantize(&["-s", "int4:g32", "--algorithm", "gptq", "--calib", "text.txt"]), "--calib needs the whole model"),
        (quantize(&["-s", "int4:g32", "--max-kl", "1", "--eval", "text.txt"]), "--eval needs the whole model"),
        (quantize(&["-s", "Q4_K_M"]), "Q4_K_M needs the whole model"),
        (quantize(&["-s", "int4:g32", "--format", "onnx"]), "onnx needs the whole model"),
        (
            ["eval", &url, "--data", "text.txt"].map(str::to_owned).into(),
            "a model that is not on this machine is not read here",
        ),
        (
            ["quantize", "s3://bucket/model", "-s", "int4:g32", "-o", "out"].map(str::to_owned).into(),
            "s3:// addresses are not read",
        ),
    ];
    for (args, reason) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let refused = run(&place, &args);
        assert_eq!(refused.code, Some(1), "{args:?}: {refused:?}");
        assert!(refused.stderr.contains(reason) && refused.stderr.contains("download"), "{args:?}: {}", refused.stderr);
    }
    let seen = server.seen();
    assert!(!seen.iter().any(server::Request::is_for_tensors), "{seen:?}");
    let rotated = run(&place, &["quantize", &url, "-s", "int4:g32", "--algorithm", "rotate", "-o", "out"]);
    assert!(rotated.stderr.contains("a rotation needs the whole model"), "{}", rotated.stderr);
    succeed(&place, &["quantize", "model", "-s", "int4:g32", "-o", "packed"]);
    let packed = format!("{}/packed", server.address);
    let refused = run(&place, &["quantize", &packed, "-s", "int8:channel", "--requantize", "-o", "out"]);
    assert!(refused.stderr.contains("quantized already needs the whole model"), "{}", refused.stderr);
}

/// The limit of the command is for terminals, which tests have none of.
#[test]
fn more_than_a_limit_is_not_downloaded() {
    let place = place();
    let server = Server::of(place.path(""));
    let mut job = kvant::Job::new(url(&server));
    job.recipe.scheme = Some("int4:g32".to_owned());
    job.sinks.output = Some(place.path("out"));
    job.limits.max_download = Some(ByteSize(1_000_000));
    let error = job.run(&mut (), &kvant::CancelToken::new()).err().unwrap();
    assert_eq!(error.kind, kvant::ErrorKind::Usage, "{error}");
    assert!(
        error.message.contains("would be downloaded") && error.hint.as_ref().is_some_and(|hint| hint.contains("‹yes›"))
    );
    assert!(!server.seen().iter().any(server::Request::is_for_tensors));
    job.limits.max_download = Some(ByteSize(100_000_000));
    job.run(&mut (), &kvant::CancelToken::new()).unwrap();
}

#[test]
fn workers_share_a_model_behind_http() {
    let place = place();
    let server = Server::of(place.path(""));
    // Whatever stands before the @ is a secret.
    let address = url(&server).replace("://", "://user:secret@");
    let line = |model: &str, out: &str| ["quantize", model, "--scheme", "int4:g32", "-o", out].map(str::to_owned);
    let arguments = line(&address, "out");
    let work = |worker: &'static str| {
        let mut command = command(&place, &arguments.each_ref().map(String::as_str));
        command.args(["--worker", worker, "--max-shard-size", "1MB"]);
        command
    };
    let mut first = work("0/2").stderr(Stdio::null()).spawn().unwrap();
    assert!(work("1/2").output().unwrap().status.success() && first.wait().unwrap().success());
    if !place.path("out").exists() {
        // Each of them found the other at work.
        assert!(work("0/2").output().unwrap().status.success());
    }
    let alone = line("model", "alone");
    let alone = alone.each_ref().map(String::as_str);
    succeed(&place, &[&alone[..], &["--max-shard-size", "1MB"]].concat());
    assert!(contents_but_card(&place.path("out")) == contents_but_card(&place.path("alone")));
    work("0/3").output().unwrap();
    let part = work("0/3").arg("--overwrite").output().unwrap();
    assert!(part.status.success(), "{}", String::from_utf8_lossy(&part.stderr));
    let record = fs::read_to_string(place.path(".out.kvant-part-worker-0-of-3/part.json")).unwrap();
    assert!(record.contains("/model") && !record.contains("secret"), "{}", &record[record.len() - 300..]);
}
