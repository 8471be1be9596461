//! Graphs, data and places that a run refuses before it works.

use super::{QUANTIZE, place, quantize};
use crate::kvant::names;
use kvant_container::onnx::{self, DataType, ExternalData};
use kvant_onnx::graph::{add_opset, node, set_attribute};

#[test]
fn infinite_weights_are_refused_first() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let name = graph.node.iter().find(|node| node.op_type() == "Conv").unwrap().input[1].clone();
    let weight = graph.initializer.iter_mut().find(|tensor| tensor.name() == name).unwrap();
    let mut bytes = onnx::tensor_bytes(weight).unwrap().to_vec();
    bytes[4..8].copy_from_slice(&f32::INFINITY.to_le_bytes());
    onnx::set_contents(weight, bytes);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    for preset in ["A8W8", "WEIGHTS_INT8"] {
        let plan = place.run(&["plan", "float.onnx", "--preset", preset]);
        assert!(plan.code == Some(1) && plan.stderr.contains("has an infinite value at element 1"), "{plan:?}");
        let run = place.run(&["quantize", "float.onnx", "--preset", preset, "--data", "calib.npz", "-o", "out.onnx"]);
        assert!(run.code == Some(1) && run.stderr.contains("has an infinite value at element 1"), "{run:?}");
        assert!(run.stderr.contains("hint: export the model again from sound weights"), "{run:?}");
    }
}

#[test]
fn nan_in_weights_is_refused_first_whatever_becomes_of_them() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let name = graph.node.iter().find(|node| node.op_type() == "Gemm").unwrap().input[1].clone();
    let weight = graph.initializer.iter_mut().find(|tensor| tensor.name() == name).unwrap();
    let mut bytes = onnx::tensor_bytes(weight).unwrap().to_vec();
    bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    onnx::set_contents(weight, bytes);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    for preset in ["FP16_MODEL", "BF16_MODEL", "MATMUL_NBITS", "INT8_DYNAMIC_QUANT"] {
        let run = place.run(&["plan", "float.onnx", "--preset", preset]);
        assert!(run.code == Some(1) && run.stderr.contains("has NaN at element 0"), "{preset}: {run:?}");
    }
}

#[test]
fn conversions_leave_out_what_is_excluded_and_have_no_types_of_tensors() {
    let place = place();
    let plan = ["plan", "float.onnx", "--preset", "FP16_MODEL"];
    let some = place.succeed(&[&plan[..], &["--exclude-op-types", "Conv", "--json"]].concat()).json();
    let all = place.succeed(&[&plan[..], &["--json"]].concat()).json();
    assert!(some["quantized_nodes"].as_u64() < all["quantized_nodes"].as_u64());
    let tensor = place.run(&[&plan[..], &["--override", "input=keep"]].concat());
    assert!(tensor.code == Some(2), "{tensor:?}");
}

/// An empty location is the name of no file, and not the folder of the graph.
#[test]
fn external_data_without_a_location_are_named() {
    let place = place();
    place.succeed(&quantize(&["--external-data", "always"]));
    let bytes = std::fs::read(place.path("out.onnx")).unwrap();
    let mut model = onnx::parse(&onnx::Bytes::from_owner(bytes)).unwrap();
    for tensor in &mut model.graph.as_mut().unwrap().initializer {
        let entries = tensor.external_data.iter_mut().filter(|entry| entry.key() == "location");
        entries.for_each(|entry| entry.value = Some(String::new()));
    }
    std::fs::write(place.path("float.onnx"), onnx::serialize(&model).unwrap()).unwrap();
    for command in ["plan", "quantize"] {
        let run = place.run(&[command, "float.onnx", "--preset", "FP16_MODEL", "-o", "new.onnx"]);
        assert!(run.code == Some(1) && run.stderr.contains("no location"), "{run:?}");
    }
}

/// Neither engine has an operator of another maker, so that neither is recommended.
#[test]
fn operators_of_other_makers_are_refused_for_both_engines_alike() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let relu = graph.node.iter_mut().find(|node| node.op_type() == "Relu").unwrap();
    relu.domain = Some("my".to_owned());
    relu.op_type = Some("Foo".to_owned());
    add_opset(&mut model, "my", 1);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    for runtime in ["rten", "auto"] {
        let line = ["quantize", "float.onnx", "--preset", "A8W8", "--data", "calib.npz", "-o", "new.onnx"];
        let run = place.run(&[&line[..], &["--runtime", runtime]].concat());
        assert!(run.code == Some(1) && run.stderr.contains("no engine runs operators of the domain my"), "{run:?}");
        assert!(run.stderr.contains("--weights-only") && !run.stderr.contains("--runtime"), "{run:?}");
    }
    place.succeed(&["quantize", "float.onnx", "--preset", "A8W8", "--weights-only", "-o", "new.onnx"]);
}

#[test]
fn recurrent_layers_are_quantized_where_they_are_named() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let mut lstm = node("LSTM", "lstm", &["x", "w", "r"], &["y"]);
    set_attribute(&mut lstm, "hidden_size", 2);
    let weight = |name: &str, columns: usize| {
        let bytes: Vec<u8> = (0..8 * columns).flat_map(|at| (at as f32).to_le_bytes()).collect();
        onnx::tensor(name, DataType::FLOAT, &[1, 8, columns], bytes)
    };
    graph.node = vec![lstm];
    graph.initializer = vec![weight("w", 3), weight("r", 2)];
    graph.value_info.clear();
    for (value, name) in [(&mut graph.input[0], "x"), (&mut graph.output[0], "y")] {
        value.name = Some(name.to_owned());
        if let Some(onnx::TypeValue::TensorType(tensor)) = &mut value.type_.as_mut().unwrap().value {
            tensor.shape = Default::default();
        }
    }
    onnx::write(model, &place.path("lstm.onnx"), ExternalData::Auto).unwrap();
    let line = ["plan", "lstm.onnx", "--preset", "A8W8"];
    let run = place.run(&line);
    let told = "because LSTM layers are quantized only where --op-types names them";
    assert!(run.code == Some(1) && run.stderr.contains(told), "{run:?}");
    place.succeed(&[&line[..], &["--op-types", "LSTM"]].concat());
}

#[test]
fn remedy_for_excluding_everything_is_to_exclude_less() {
    let place = place();
    for (options, setting) in [
        (&["--exclude", "*"][..], "--exclude"),
        (&["--exclude-op-types", "Conv,Gemm,Add,Clip,Relu,MaxPool,GlobalAveragePool,Flatten"], "--exclude-op-types"),
    ] {
        let run = place.run(&[&["plan", "float.onnx", "--preset", "A8W8"], options].concat());
        assert!(run.code == Some(1) && run.stderr.contains("no node of the model is quantized"), "{run:?}");
        assert!(run.stderr.contains(&format!("hint: exclude less with {setting}, or leave it out")), "{run:?}");
    }
}

#[test]
fn plans_say_that_data_are_needed() {
    let place = place();
    let plan = |more: &[&str]| place.succeed(&[&["plan", "float.onnx", "--preset", "A8W8"], more].concat());
    let told = |more: &[&str]| plan(more).stdout.contains("needs: samples of data, add --data FILE");
    assert!(told(&[]) && !told(&["--data", "calib.npz"]) && !told(&["--weights-only"]));
    let needed = |more: &[&str]| plan(&[&["--json"], more].concat()).json()["needs_data"].as_bool().unwrap();
    assert!(needed(&[]) && !needed(&["--data", "calib.npz"]));
}

#[test]
fn products_with_factors_have_a_reason_to_stay_in_float() {
    let place = place();
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let gemm = model.graph.as_mut().unwrap().node.iter_mut().find(|node| node.op_type() == "Gemm").unwrap();
    set_attribute(gemm, "alpha", 0.5f32);
    onnx::write(model, &place.path("float.onnx"), ExternalData::Auto).unwrap();
    let run = place.run(&["plan", "float.onnx", "--preset", "MATMUL_NBITS"]);
    assert!(run.code == Some(1) && run.stderr.contains("has no factors (alpha, beta)"), "{run:?}");
    assert!(run.stderr.contains("`kvant list presets` shows presets that quantize others"), "{run:?}");
}

#[test]
fn nothing_quantized_is_an_error_with_reasons() {
    let place = place();
    let ops = ["--op-types", "Relu", "--exclude-op-types", "Relu"];
    let run = place.run(&quantize(&ops));
    assert!(
        run.code == Some(1) && run.stderr.contains("no node of the model is quantized by this recipe\n"),
        "{run:?}"
    );
    let mut model = onnx::read(&place.path("float.onnx")).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let input = graph.input[0].name().to_owned();
    let huge = onnx::tensor("huge", DataType::FLOAT, &[], 1e30f32.to_le_bytes().to_vec());
    let first = graph.node.iter_mut().find(|node| node.input.first() == Some(&input)).unwrap();
    first.input[0] = "scaled".to_owned();
    let conv = first.name().to_owned();
    graph.node.insert(0, node("Mul", "scale", &[&input, "huge"], &["scaled"]));
    graph.initializer.push(huge);
    onnx::write(model, &place.path("huge.onnx"), ExternalData::Auto).unwrap();
    let options = ["huge.onnx", "--preset", "A8W8", "--nodes", conv.as_str(), "--nodes", "scale"];
    let run = place.run(&[&["plan"], &options[..]].concat());
    assert!(run.code == Some(1) && run.stderr.contains("values beyond 1e30"), "{run:?}");
    // Data stay in float there, whatever they are.
    let plan = place.succeed(&["plan", "huge.onnx", "--preset", "WEIGHTS_INT8", "--nodes", conv.as_str(), "--json"]);
    assert_eq!(plan.json()["quantized_nodes"], 1);
}

#[cfg(target_os = "linux")]
#[test]
fn unwritable_report_leaves_no_graph() {
    let place = place();
    let run = place.run(&quantize(&["--report", "/dev/full"]));
    assert!(run.code == Some(1) && run.stderr.contains("/dev/full"), "{run:?}");
    // Results are kept for a run with another report.
    let left = ["calib.npz", "float.onnx", "out.onnx.partial.blocks", "out.onnx.partial.journal"];
    assert_eq!(names(&place.path("")), left);
    let run = place.succeed(&quantize(&["--report", "r.json"]));
    assert!(run.stderr.contains("resuming with the statistics"), "{run:?}");
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx", "out.onnx", "r.json"]);
}

#[test]
fn invalid_graphs_and_data_are_refused_with_hints() {
    let place = place();
    let cut = |name: &str, to: &str| {
        let bytes = std::fs::read(place.path(name)).unwrap();
        std::fs::write(place.path(to), &bytes[..bytes.len() / 2]).unwrap();
    };
    cut("float.onnx", "cut.onnx");
    cut("calib.npz", "cut.npz");
    std::fs::create_dir(place.path("dir.onnx")).unwrap();
    let refused = |args: &[&str], told: &[&str]| {
        let run = place.run(args);
        assert_eq!(run.code, Some(if told[0] == "--data" { 2 } else { 1 }), "{run:?}");
        assert!(told.iter().all(|told| run.stderr.contains(told)) && run.stderr.contains("hint: "), "{run:?}");
    };
    refused(&["plan", "cut.onnx", "--preset", "A8W8"], &["cut short", "cut.onnx"]);
    refused(&["plan", "dir.onnx", "--preset", "A8W8"], &["is not a regular file", "name a file that ends with .onnx"]);
    let with = |data: &'static str| [&QUANTIZE[..5], &[data, "-o", "out.onnx"]].concat();
    refused(&with("cut.npz"), &["cut short", "numpy.savez"]);
    refused(&with("nothing.npz"), &["--data", "nothing.npz"]);
}

#[test]
fn missing_arrays_are_named_with_their_purpose() {
    let place = place();
    place.succeed(&quantize(&[]));
    let eval = ["eval", "out.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--labels", "nope"];
    let run = place.run(&eval);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("no array `nope` of labels") && run.stderr.contains("--labels"), "{run:?}");
}

#[test]
fn activations_that_no_disk_has_room_for_are_refused_before_the_work() {
    let place = place();
    let many = ["--num-samples", "4294967295", "--algorithm", "bias-correction", "-o", "out.onnx"];
    let line = ["quantize", "float.onnx", "--preset", "A8W8", "--data", "random", "--runtime", "rten"];
    let run = place.run(&[&line[..], &many].concat());
    assert_eq!(run.code, Some(1), "{run:?}");
    for told in [" bytes of disk space", "temporary files", " are free in ", "--num-samples"] {
        assert!(run.stderr.contains(told), "{told}: {run:?}");
    }
    assert_eq!(names(&place.path("")), ["calib.npz", "float.onnx"]);
}
