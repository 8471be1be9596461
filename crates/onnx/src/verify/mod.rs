//! Whether a finished graph runs, and whether its quantization is sane: its structure, element types against the versions of
//! operators and file, the parameters of QuantizeLinear and DequantizeLinear, and operators that ONNX Runtime does not have.
//! Reads the graph alone; runs nothing.

mod biases;
mod kernels;
mod names;
mod operators;
mod pairs;
mod saturation;
mod types;
mod values;
mod versions;

pub use kernels::fails_in_a_run;
pub(crate) use types::least_version;

pub use saturation::{SATURATION_HINT, SATURATION_WAYS, Saturation};

use crate::graph;
use crate::runtime::PLUG_INS;
use kvant_container::Diagnostic;
use kvant_container::Error;
use kvant_container::onnx::ModelProto;
use kvant_quant::finding::{Finding, Findings, Severity};

/// A check of a graph.
pub struct Check {
    /// Its name in findings.
    pub id: &'static str,
    /// One line about its purpose.
    pub about: &'static str,
    run: fn(&ModelProto, &mut Findings),
}

/// Every check.
pub const CHECKS: &[Check] = &[
    // What is wrong here keeps the file from being read: see [`unread`].
    Check { id: FILE, about: "the file and its external data exist and can be read", run: |_, _| {} },
    Check {
        id: "graph",
        about: "every tensor is produced once, every name that is read exists, and sizes match shapes",
        run: structure,
    },
    Check { id: "names", about: "no two nodes of a graph have one name", run: names::run },
    Check {
        id: "types",
        about: "element types are known to the versions of the operators and of the file",
        run: types::run,
    },
    Check {
        id: "q-dq",
        about: "scales and zero points of Q/DQ fit each other and what they quantize",
        run: pairs::run,
    },
    Check { id: "operators", about: "ONNX Runtime has the operators and their attributes", run: operators::run },
    Check { id: "versions", about: "ONNX Runtime takes the opsets and the version of the file", run: versions::run },
    Check {
        id: "kernels",
        about: "ONNX Runtime has kernels on CPUs for the types, and those it makes of Q/DQ take their scales",
        run: kernels::run,
    },
    Check {
        id: "biases",
        about: "float biases that ONNX Runtime's graph optimizations would cut to int32 codes",
        run: biases::run,
    },
    Check { id: "values", about: "constants are numbers, and weights finite", run: values::run },
    Check {
        id: "saturation",
        about: "products of bytes that ONNX Runtime cuts to 16 bits on some processors (a note)",
        run: saturation::run,
    },
];

/// The check of what keeps a file from being read.
const FILE: &str = "onnx-file";

/// The reason that a graph cannot be read, as a finding.
///
/// # Errors
/// Refusals of the system, which say nothing of the graph.
pub fn unread(error: Error) -> Result<Finding, Error> {
    let Error::Onnx { file, problem } = &error else { return Err(error) };
    let (place, reason) = (file.display().to_string(), problem.to_string());
    Ok(Finding { check: FILE, severity: Severity::Error, place, reason, hint: error.hint() })
}

/// The findings of all checks, the worst first.
pub fn verify(model: &ModelProto) -> Vec<Finding> {
    let found = CHECKS.iter().flat_map(|check| {
        let mut findings = Findings::of(check.id);
        (check.run)(model, &mut findings);
        findings.into_vec()
    });
    let mut findings: Vec<Finding> = found.collect();
    findings.sort_by_key(|finding| finding.severity);
    findings
}

/// Checks that stop ONNX Runtime whatever the severity: other runtimes may take what they find.
const OF_RUNTIME: [&str; 3] = ["operators", "versions", "kernels"];

/// Whether ONNX Runtime runs it with its graph optimizations, as far as is known: errors stop it, and so do operators, versions
/// and kernels that it does not have.
pub fn runs(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.severity != Severity::Error && !OF_RUNTIME.contains(&finding.check))
}

/// What keeps ONNX Runtime from opening a graph and comes from its source: a version that is too new, or operators of other makers.
/// Recipes tell what they add themselves.
pub fn of_source(findings: &[Finding]) -> impl Iterator<Item = &Finding> {
    let is_added = |finding: &Finding| PLUG_INS.iter().any(|domain| finding.place.starts_with(domain));
    let is_operator = move |finding: &Finding| finding.check == "operators" && !is_added(finding);
    findings.iter().filter(move |finding| finding.check == "versions" || is_operator(finding))
}

/// Whether it is known what keeps ONNX Runtime from opening a graph that may be fine elsewhere: operators that a library adds, or
/// kernels that it has on other devices. A version that is too new is too new for all.
pub fn runs_elsewhere(findings: &[Finding]) -> bool {
    let has = |check: &str| findings.iter().any(|finding| finding.check == check);
    (has("operators") || has("kernels")) && !has("versions")
}

/// What no runtime opens and quantizing does not change: an operator or attribute that ONNX does not have, or versions beyond those of
/// the newest ONNX Runtime.
pub fn unopenable(model: &ModelProto) -> Option<Finding> {
    let (mut unknown, mut newer) = (Findings::of("operators"), Findings::of("versions"));
    operators::run(model, &mut unknown);
    versions::run(model, &mut newer);
    let unknown = unknown.into_vec().into_iter().find(|finding| finding.severity == Severity::Error);
    unknown.or_else(|| newer.into_vec().into_iter().next())
}

fn structure(model: &ModelProto, findings: &mut Findings) {
    if model.graph.output.is_empty() {
        findings.error("graph", "has no output: nothing would be computed", "export the model again");
    }
    if let Err(problem) = graph::check(model) {
        let hint = problem.hint().unwrap_or_default();
        match problem.kind() {
            kvant_container::ErrorKind::Unsupported => findings.warning("graph", problem.to_string(), &hint),
            _ => findings.error("graph", problem.to_string(), &hint),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{add_opset, node, set_attribute};
    use crate::shape::Dim;
    use crate::test_models::{floats, model};
    use kvant_container::onnx::{DataType, TensorProto, tensor};

    fn zero(name: &str, data_type: DataType, values: &[u8]) -> TensorProto {
        tensor(name, data_type, &[values.len()], values.to_vec())
    }

    fn scalar(name: &str, value: f32) -> TensorProto {
        floats(name, &[], &[value])
    }

    /// A pair around an activation, and a weight behind a DequantizeLinear.
    fn quantized(
        opset: i64,
        scale: TensorProto,
        weight: TensorProto,
        weight_scale: TensorProto,
        axis: i64,
    ) -> ModelProto {
        let mut weights = node("DequantizeLinear", "wd", &["w", "ws"], &["wf"]);
        set_attribute(&mut weights, "axis", axis);
        let nodes = vec![
            node("QuantizeLinear", "q", &["x", "s", "z"], &["xq"]),
            node("DequantizeLinear", "d", &["xq", "s", "z"], &["xf"]),
            weights,
            node("MatMul", "m", &["xf", "wf"], &["y"]),
        ];
        let point = tensor("z", DataType::INT8, &[], vec![3u8]);
        let mut made = model(opset, nodes, vec![scale, point, weight, weight_scale], &["x"], &["y"]);
        made.ir_version = Some(10);
        made
    }

    fn weight() -> TensorProto {
        tensor("w", DataType::INT8, &[2, 3], vec![1u8; 6])
    }

    fn healthy() -> ModelProto {
        quantized(21, scalar("s", 0.5), weight(), floats("ws", &[3], &[0.1, 0.2, 0.3]), 1)
    }

    fn found(model: &ModelProto) -> Vec<(&'static str, String)> {
        verify(model).into_iter().map(|finding| (finding.check, finding.reason)).collect()
    }

    #[test]
    fn healthy_graph_has_no_findings() {
        assert_eq!(found(&healthy()), []);
        assert!(runs(&verify(&healthy())));
    }

    #[test]
    fn dangling_inputs_are_an_error() {
        let mut broken = healthy();
        broken.graph.as_mut().unwrap().node.remove(0);
        assert_eq!(found(&broken)[0].0, "graph");
        assert!(!runs(&verify(&broken)));
    }

    #[test]
    fn names_that_occur_twice_are_an_error() {
        let mut broken = healthy();
        broken.graph.as_mut().unwrap().node[0].name = Some("m".to_owned());
        assert_eq!(found(&broken), [("names", "is the name of 2 nodes: QuantizeLinear and MatMul".to_owned())]);
        assert!(!runs(&verify(&broken)));
        broken.graph.as_mut().unwrap().node.iter_mut().for_each(|node| node.name = None);
        assert_eq!(found(&broken), [], "nodes need no names");
        let mut tensors = healthy();
        let graph = tensors.graph.as_mut().unwrap();
        graph.initializer.push(scalar("s", 0.5));
        assert!(found(&tensors).iter().any(|(check, reason)| *check == "graph" && reason.contains("made twice")));
    }

    #[test]
    fn scales_must_be_positive_and_finite() {
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let broken = quantized(21, scalar("s", value), weight(), floats("ws", &[3], &[0.1, 0.2, 0.3]), 1);
            assert_eq!(found(&broken)[0].0, "q-dq", "{value}");
        }
    }

    #[test]
    fn scale_count_must_match_the_axis() {
        let broken = quantized(21, scalar("s", 1.0), weight(), floats("ws", &[2], &[0.1, 0.2]), 1);
        assert!(found(&broken)[0].1.contains("2 scales for an axis of 3"), "{:?}", found(&broken));
        let beyond = quantized(21, scalar("s", 1.0), weight(), floats("ws", &[3], &[0.1; 3]), 5);
        assert!(found(&beyond)[0].1.contains("axis 5"), "{:?}", found(&beyond));
        let old = quantized(11, scalar("s", 1.0), weight(), floats("ws", &[3], &[0.1; 3]), 1);
        assert!(found(&old)[0].1.contains("opset 13"), "{:?}", found(&old));
    }

    #[test]
    fn zero_points_must_have_the_code_dtype_and_shape() {
        let mut broken = healthy();
        let graph = broken.graph.as_mut().unwrap();
        graph.node[2].input.push("wz".to_owned());
        graph.initializer.push(zero("wz", DataType::UINT8, &[0, 0, 0]));
        assert!(found(&broken)[0].1.contains("uint8"), "{:?}", found(&broken));
        let mut short = healthy();
        let graph = short.graph.as_mut().unwrap();
        graph.node[2].input.push("wz".to_owned());
        graph.initializer.push(zero("wz", DataType::INT8, &[0]));
        assert!(found(&short)[0].1.contains("zero points"), "{:?}", found(&short));
    }

    #[test]
    fn dtypes_require_an_opset_and_ir_version() {
        let int4 = || tensor("w", DataType::INT4, &[2, 4], vec![0x11u8; 4]);
        let of = |opset| quantized(opset, scalar("s", 1.0), int4(), floats("ws", &[4], &[0.1; 4]), 1);
        assert_eq!(found(&of(21)), []);
        assert!(found(&of(17)).iter().any(|(check, reason)| *check == "types" && reason.contains("opset 21")));
        let mut old_file = of(21);
        old_file.ir_version = Some(8);
        assert!(found(&old_file).iter().any(|(check, reason)| *check == "types" && reason.contains("IR version 10")));
    }

    #[test]
    fn graphs_onnx_runtime_refuses_are_reported() {
        let broken = |change: fn(&mut ModelProto)| {
            let mut model = healthy();
            change(&mut model);
            assert!(!runs(&verify(&model)));
            found(&model)
        };
        let node = |model: &'static str| move |at: &(&'static str, String)| at.0 == model;
        let is_in = |found: &[(&'static str, String)], check, text: &str| {
            assert!(found.iter().filter(|at| node(check)(at)).any(|(_, reason)| reason.contains(text)), "{found:?}");
        };
        is_in(&broken(|m| m.graph.as_mut().unwrap().node[3].op_type = Some("Foo".into())), "operators", "`Foo`");
        is_in(&broken(|m| m.opset_import[0].version = Some(99)), "versions", "26 at most");
        is_in(&broken(|m| m.opset_import[0].version = Some(27)), "versions", "opset 27");
        is_in(&broken(|m| m.ir_version = Some(14)), "versions", "13 at most");
        is_in(&broken(|m| m.graph.as_mut().unwrap().output.clear()), "graph", "no output");
        let foreign = broken(|m| set_attribute(&mut m.graph.as_mut().unwrap().node[3], "speed", 1i64));
        is_in(&foreign, "operators", "no attribute `speed`");
        let twice = broken(|m| {
            let node = &mut m.graph.as_mut().unwrap().node[2];
            node.attribute.push(node.attribute[0].clone());
        });
        is_in(&twice, "operators", "twice");
        let microsoft = broken(|m| {
            add_opset(m, "com.microsoft", 1);
            m.graph.as_mut().unwrap().node[3].domain = Some("com.microsoft".to_owned());
        });
        is_in(&microsoft, "operators", "none of ONNX Runtime's own libraries");
        let mut newest = healthy();
        newest.ir_version = Some(13);
        assert!(runs(&verify(&newest)));
    }

    /// x -> Q/DQ -> Sigmoid -> Q/DQ -> y with codes of a type, and so many scales.
    fn sigmoid(codes: DataType, scales: [usize; 2]) -> ModelProto {
        let nodes = vec![
            node("QuantizeLinear", "q", &["x", "s", "z"], &["xq"]),
            node("DequantizeLinear", "d", &["xq", "s", "z"], &["xf"]),
            node("Sigmoid", "m", &["xf"], &["h"]),
            node("QuantizeLinear", "r", &["h", "t", "u"], &["hq"]),
            node("DequantizeLinear", "e", &["hq", "t", "u"], &["y"]),
        ];
        let of = |name: &str, count: usize| floats(name, &[count], &vec![0.5; count]);
        let zeros = |name: &str, count: usize| tensor(name, codes, &[count], vec![0u8; count]);
        let constants = vec![of("s", scales[0]), zeros("z", scales[0]), of("t", scales[1]), zeros("u", scales[1])];
        let mut made = model(21, nodes, constants, &["x"], &["y"]);
        made.ir_version = Some(10);
        made
    }

    #[test]
    fn kernels_require_one_scale_and_integers() {
        use DataType::*;
        let refused = |model: &ModelProto| found(model).iter().any(|(check, _)| *check == "kernels");
        for (codes, scales, expected) in [
            (UINT8, [1, 1], false),
            (UINT8, [3, 1], true),
            (INT8, [1, 1], false),
            (INT8, [3, 1], false),
            (INT8, [3, 3], true),
            (FLOAT8E4M3FN, [1, 1], true),
        ] {
            let model = sigmoid(codes, scales);
            assert_eq!(refused(&model), expected, "{codes:?} {scales:?}: {:?}", found(&model));
            assert_eq!(runs(&verify(&model)), !expected);
        }
        let mut brain = model(17, vec![node("Relu", "r", &["x"], &["y"])], vec![], &["x"], &["y"]);
        brain.graph.as_mut().unwrap().input[0] = crate::shape::ValueType::any(BFLOAT16).to_proto("x").unwrap();
        assert!(refused(&brain));
        brain.graph.as_mut().unwrap().node[0].op_type = Some("Identity".to_owned());
        assert!(!refused(&brain));
    }

    #[test]
    fn pooling_kernels_bound_the_scale_ratio() {
        let made = |op: &str, scale: f32| {
            let mut pool = node(op, "m", &["xf"], &["h"]);
            if op == "AveragePool" {
                set_attribute(&mut pool, "kernel_shape", &[2i64, 2][..]);
            }
            let nodes = vec![
                node("QuantizeLinear", "q", &["x", "s", "z"], &["xq"]),
                node("DequantizeLinear", "d", &["xq", "s", "z"], &["xf"]),
                pool,
                node("QuantizeLinear", "r", &["h", "t", "z"], &["hq"]),
                node("DequantizeLinear", "e", &["hq", "t", "z"], &["y"]),
            ];
            let point = tensor("z", DataType::INT8, &[], vec![0u8]);
            let mut made = model(21, nodes, vec![scalar("s", 1.0), scalar("t", scale), point], &[], &["y"]);
            // As many images as one likes.
            let dims = [Dim::Unknown, Dim::Known(3), Dim::Known(2), Dim::Known(2)];
            let input = crate::shape::ValueType::new(DataType::FLOAT, dims.into());
            made.graph.as_mut().unwrap().input = vec![input.to_proto("x").unwrap()];
            made.ir_version = Some(10);
            made
        };
        for op in ["GlobalAveragePool", "AveragePool"] {
            assert!(!fails_in_a_run(&made(op, 1.0 / 1000.0)), "{op}");
            let broken = made(op, 1.0 / 1100.0);
            assert!(fails_in_a_run(&broken) && !runs(&verify(&broken)), "{op}");
            let finding = verify(&broken).into_iter().find(|finding| finding.check == "kernels").unwrap();
            assert!(finding.hint.unwrap().contains("‹override› 'h=keep'"));
        }
    }

    #[test]
    fn operands_must_have_one_dtype() {
        let of = |declared: DataType| {
            let nodes = vec![node("MatMul", "m", &["x", "w"], &["y"])];
            let mut made = model(17, nodes, vec![floats("w", &[2, 2], &[1.0; 4])], &["x"], &["y"]);
            made.graph.as_mut().unwrap().input[0] = crate::shape::ValueType::any(declared).to_proto("x").unwrap();
            found(&made)
        };
        assert_eq!(of(DataType::FLOAT), []);
        let mixed = of(DataType::FLOAT16);
        assert!(mixed[0].0 == "types" && mixed[0].1.contains("float16 and float"), "{mixed:?}");
    }

    #[test]
    fn non_finite_constants_are_reported() {
        let of = |op: &str, values: &[f32]| {
            let nodes = vec![node(op, "m", &["x", "w"], &["y"])];
            found(&model(17, nodes, vec![floats("w", &[values.len()], values)], &["x"], &["y"]))
        };
        assert_eq!(of("MatMul", &[1.0, -2.0]), []);
        for value in [f32::NAN, f32::INFINITY] {
            let weight = of("MatMul", &[1.0, value]);
            assert!(weight[0].0 == "values" && weight[0].1.contains("1 of 2"), "{weight:?}");
        }
        assert_eq!(of("Add", &[0.0, f32::NEG_INFINITY]), [], "a mask");
        assert_eq!(of("Add", &[0.0, f32::NAN])[0].0, "values");
    }

    #[test]
    fn unreadable_files_become_findings() {
        let file = std::path::PathBuf::from("m.onnx");
        let problem = kvant_container::onnx::OnnxError::NoGraph;
        let found = unread(Error::Onnx { file, problem }).unwrap();
        assert_eq!((found.check, found.severity, found.place.as_str()), ("onnx-file", Severity::Error, "m.onnx"));
    }

    #[test]
    fn new_versions_run_nowhere() {
        let mut made = healthy();
        made.ir_version = Some(99);
        let found = verify(&made);
        assert!(!runs_elsewhere(&found) && of_source(&found).count() == 1);
        let float8 = verify(&sigmoid(DataType::FLOAT8E4M3FN, [1, 1]));
        assert!(runs_elsewhere(&float8) && of_source(&float8).count() == 0);
    }

    #[test]
    fn custom_operators_need_a_library() {
        let mut custom = healthy();
        add_opset(&mut custom, "com.amd.quark", 1);
        custom.graph.as_mut().unwrap().node[3].domain = Some("com.amd.quark".to_owned());
        assert_eq!(found(&custom)[0].0, "operators");
        assert!(!runs(&verify(&custom)));
        assert!(runs_elsewhere(&verify(&custom)) && of_source(&verify(&custom)).count() == 0);
        custom.graph.as_mut().unwrap().node[3].domain = Some("mine".to_owned());
        assert!(runs_elsewhere(&verify(&custom)) && of_source(&verify(&custom)).count() == 1);
    }
}
