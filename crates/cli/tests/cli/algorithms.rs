//! `kvant quantize --algorithm`: what calibrated algorithms write, whatever the threads, the memory and the interruptions.

use crate::kvant::{Place, contents, names};

const TEXT: &str = "The tower stood where the river turns. Nobody had seen who built it, and nobody asked any more. ";
const DATA: [&str; 6] = ["--calib", "text.txt", "--num-samples", "6", "--seq-len", "64"];

fn place() -> Place {
    let place = Place::new();
    let sentences = (0..120).map(|i| format!("{TEXT}In year {i} a flood took {} houses and the bridge. ", i * 7 % 13));
    place.write("text.txt", &sentences.collect::<String>());
    place
}

fn quantize<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["quantize", "nano_llama"], more, &DATA].concat()
}

#[test]
fn every_algorithm_is_whole_and_evaluates() {
    let place = place();
    let runs = [
        ("gptq", "uint4_wo_32", "gptq"),
        ("gptaq", "int4_wo_128", "gptaq"),
        ("qronos", "int3:g128", "qronos"),
        ("awq", "uint4_wo_128", "awq"),
        ("awq_gptq", "int3:g64", "awq,gptq"),
        ("smooth", "int8", "smoothquant"),
        ("smooth_gptq", "int8", "smoothquant,gptq"),
        ("auto", "int8", "autosmoothquant"),
        ("mx", "mxfp4", "gptq"),
        ("nv", "nvfp4", "awq,gptq"),
        ("fp8", "fp8", "gptq"),
        ("adaround", "int3:g128", "adaround:num_iterations=60"),
        ("awq_adaquant", "uint4_wo_128", "awq,adaquant:num_iterations=30:learning_rate=0.0003"),
        ("awq_hqq", "uint4_wo_128", "awq,hqq"),
    ];
    for (out, scheme, algorithm) in runs {
        place.succeed(&quantize(&["-s", scheme, "--algorithm", algorithm, "-o", out]));
        let found = place.divergence(out);
        assert!(found > 1e-7 && found < 1.0, "{out}: {found}");
        let record = place.record(out);
        let layers = record["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 28, "{out}");
        assert!(layers.iter().all(|layer| layer["loss"].is_number() && layer["loss_rtn"].is_number()), "{out}");
    }
    assert!(!names(&place.path("")).iter().any(|name| name.contains(".partial")));
}

#[test]
fn rounding_by_columns_loses_less_than_to_nearest() {
    let place = place();
    place.succeed(&quantize(&["-s", "int3:g128", "--algorithm", "gptq", "-o", "gptq"]));
    place.succeed(&["quantize", "nano_llama", "-s", "int3:g128", "-o", "rtn"]);
    let record = place.record("gptq");
    for layer in record["layers"].as_array().unwrap() {
        let loss = |key: &str| layer[key].as_f64().unwrap();
        assert!(loss("loss") < loss("loss_rtn"), "{layer}");
        assert_eq!(layer["tokens"], 384, "{layer}");
    }
    assert!(place.divergence("gptq") < place.divergence("rtn"));
}

#[test]
fn trained_roundings_lose_less_than_to_nearest() {
    let place = place();
    place.succeed(&["quantize", "nano_llama", "-s", "int3:g128", "-o", "rtn"]);
    let nearest = place.divergence("rtn");
    for (out, algorithm) in
        [("adaround", "adaround:num_iterations=400"), ("adaquant", "adaquant:num_iterations=400:learning_rate=0.001")]
    {
        place.succeed(&quantize(&["-s", "int3:g128", "--algorithm", algorithm, "-o", out]));
        let record = place.record(out);
        let layers = record["layers"].as_array().unwrap();
        let loss = |layer: &serde_json::Value, key: &str| layer[key].as_f64().unwrap();
        assert!(layers.iter().all(|layer| layer["algorithm"] == out), "{record}");
        let gained = layers.iter().filter(|layer| loss(layer, "loss") < loss(layer, "loss_rtn")).count();
        assert!(gained > 14, "{out}: {gained} of 28");
        assert!(place.divergence(out) < nearest, "{out}");
    }
}

#[test]
fn hqq_needs_no_data_and_changes_zero_points_only() {
    let place = place();
    place.succeed(&["quantize", "nano_llama", "-s", "uint2:g64:zp", "-o", "rtn"]);
    place.succeed(&["quantize", "nano_llama", "-s", "uint2:g64:zp", "--algorithm", "hqq", "-o", "hqq"]);
    let weights = |out: &str| std::fs::read(place.path(&format!("{out}/model.safetensors"))).unwrap();
    assert!(weights("hqq") != weights("rtn"));
    // With integer zero points the search changes little: it neither gains nor loses.
    let (searched, nearest) = (place.divergence("hqq"), place.divergence("rtn"));
    assert!((searched / nearest - 1.0).abs() < 0.02, "{searched} beside {nearest}");
    let run = place.run(&["quantize", "nano_llama", "-s", "int4_wo_128", "--algorithm", "hqq", "-o", "no"]);
    assert!(run.code == Some(1) && run.stderr.contains("`hqq` is not for layer"), "{run:?}");
    assert!(!names(&place.path("")).iter().any(|name| name.starts_with("no")));
}

#[test]
fn layers_that_share_a_scale_and_limits_go_with_their_scales() {
    let place = place();
    let run = |out: &str, scheme: &str, algorithm: &str| {
        place.succeed(&quantize(&["-s", scheme, "--algorithm", algorithm, "-o", out]));
        place.divergence(out)
    };
    place.succeed(&quantize(&["-s", "nvfp4", "-o", "nvfp4"]));
    let nearest = place.divergence("nvfp4");
    for algorithm in ["smoothquant", "awq", "gptq"] {
        let found = run(&format!("nvfp4_{algorithm}"), "nvfp4", algorithm);
        assert!(found < 1.5 * nearest, "nvfp4 {algorithm}: {found} beside {nearest}");
    }
    place.succeed(&["quantize", "nano_llama", "-s", "int3:g64", "-o", "int3"]);
    let nearest = place.divergence("int3");
    for (out, algorithm) in [("first", "awq,smoothquant"), ("last", "smoothquant,awq")] {
        let found = run(out, "int3:g64", algorithm);
        assert!(found < 1.2 * nearest, "int3 {algorithm}: {found} beside {nearest}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads_or_memory() {
    let place = place();
    for (name, scheme, algorithm) in [
        ("a", "uint4_wo_128", "awq,gptaq"),
        ("b", "int8", "autosmoothquant,gptq"),
        ("c", "int3:g64", "adaround:num_iterations=30"),
        ("d", "uint4_wo_128", "hqq"),
    ] {
        let run = |out: &str, options: &[&str]| {
            let out = format!("{name}{out}");
            place.succeed(&quantize(&[&["-s", scheme, "--algorithm", algorithm, "-o", &out], options].concat()));
            contents(&place.path(&out))
        };
        let one = run("one", &["--threads", "1"]);
        assert!(run("three", &["--threads", "3"]) == one, "{algorithm}: threads");
        assert!(run("tight", &["--max-memory", "1KB"]) == one, "{algorithm}: memory");
    }
}

#[test]
fn algorithms_without_data_are_refused_before_anything_is_written() {
    let place = place();
    let run = place.run(&["quantize", "nano_llama", "-s", "int4_wo_128", "--algorithm", "gptq", "-o", "out"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("--calib"), "{run:?}");
    assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")));
}

/// What the process takes is looked at while it runs, where the system tells it.
#[cfg(target_os = "linux")]
#[test]
fn no_more_memory_is_taken_than_the_plan_tells() {
    use std::process::Stdio;
    let place = place();
    let of_process = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.map_or(0, |line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024)
    };
    for algorithm in ["gptq", "awq,gptaq", "smoothquant", "adaround:num_iterations=40"] {
        let options = ["-s", "uint4_wo_128", "--algorithm", algorithm, "--threads", "2"];
        let told = place.succeed(&[&["plan", "nano_llama", "--json"], &options[..], &DATA].concat()).json();
        let told = told["peak_memory"].as_u64().unwrap();
        let args = quantize(&[&options[..], &["-o", algorithm]].concat());
        let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut taken = 0;
        while child.try_wait().unwrap().is_none() {
            taken = of_process(child.id()).max(taken);
        }
        assert!(taken > told / 20 && taken <= told, "{algorithm}: {taken} of {told}");
    }
}

#[cfg(unix)]
#[test]
fn a_killed_run_goes_on_with_the_block_to_the_same_bytes() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let place = place();
    fn args(out: &str) -> Vec<&str> {
        quantize(&["-s", "uint4_wo_128", "--algorithm", "awq,gptaq", "--threads", "2", "-o", out])
    }
    let begun = Instant::now();
    place.succeed(&args("whole"));
    let (whole, expected) = (begun.elapsed(), contents(&place.path("whole")));
    let mut resumed = 0;
    for round in 0..6 {
        let out = format!("out{round}");
        // Moments in the first block, between, and in the last one.
        let mut child = place.command(&args(&out)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(0.2 + 0.13 * f64::from(round)));
        child.kill().unwrap();
        child.wait().unwrap();
        resumed += usize::from(place.path(&format!("{out}.partial.blocks/state.json")).exists());
        if !place.path(&out).exists() {
            place.succeed(&args(&out));
        }
        assert!(contents(&place.path(&out)) == expected, "round {round}");
        let left: Vec<_> =
            names(&place.path("")).into_iter().filter(|name| name.starts_with(&format!("{out}."))).collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
        if begun.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    assert!(resumed > 0, "no run was killed between blocks");
}
