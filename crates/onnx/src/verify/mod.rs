//! Whether a finished graph runs, and whether its quantization is sane: its structure, element types against the versions of
//! operators and file, the parameters of QuantizeLinear and DequantizeLinear, and operators that ONNX Runtime does not have.
//! Reads the graph alone; runs nothing.

mod operators;
mod pairs;
mod saturation;
mod types;

pub use saturation::{Saturation, WAY_OUT as SATURATION_HINT};

use crate::graph;
use kvant_container::onnx::ModelProto;
use kvant_quant::finding::{Finding, Findings};

/// A check of a graph.
pub struct Check {
    /// Its name in findings.
    pub id: &'static str,
    /// What it finds, in a line.
    pub about: &'static str,
    run: fn(&ModelProto, &mut Findings),
}

/// Every check.
pub const CHECKS: &[Check] = &[
    Check {
        id: "graph",
        about: "every tensor is made once, read by name, and of the size that its shape gives",
        run: structure,
    },
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
    Check { id: "operators", about: "ONNX Runtime has the operators", run: operators::run },
    Check {
        id: "saturation",
        about: "products of bytes that ONNX Runtime cuts to 16 bits on some processors (a note)",
        run: saturation::run,
    },
];

/// What all checks find, the worst first.
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

/// Whether ONNX Runtime runs it, as far as is known: errors stop it, and so do operators that it does not have.
pub fn runs(findings: &[Finding]) -> bool {
    use kvant_quant::finding::Severity::Error;
    findings.iter().all(|finding| finding.severity != Error && finding.check != "operators")
}

fn structure(model: &ModelProto, findings: &mut Findings) {
    if let Err(problem) = graph::check(model) {
        match problem.kind() {
            kvant_container::ErrorKind::Unsupported => findings.warning("graph", problem.to_string(), problem.hint()),
            _ => findings.error("graph", problem.to_string(), problem.hint()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{add_opset, node, set_attribute};
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
    fn a_healthy_graph_has_no_findings() {
        assert_eq!(found(&healthy()), []);
        assert!(runs(&verify(&healthy())));
    }

    #[test]
    fn a_structure_that_leads_nowhere() {
        let mut broken = healthy();
        broken.graph.as_mut().unwrap().node.remove(0);
        assert_eq!(found(&broken)[0].0, "graph");
        assert!(!runs(&verify(&broken)));
    }

    #[test]
    fn scales_must_be_positive_and_finite() {
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let broken = quantized(21, scalar("s", value), weight(), floats("ws", &[3], &[0.1, 0.2, 0.3]), 1);
            assert_eq!(found(&broken)[0].0, "q-dq", "{value}");
        }
    }

    #[test]
    fn scales_must_fit_the_axis() {
        let broken = quantized(21, scalar("s", 1.0), weight(), floats("ws", &[2], &[0.1, 0.2]), 1);
        assert!(found(&broken)[0].1.contains("2 scales for an axis of 3"), "{:?}", found(&broken));
        let beyond = quantized(21, scalar("s", 1.0), weight(), floats("ws", &[3], &[0.1; 3]), 5);
        assert!(found(&beyond)[0].1.contains("axis 5"), "{:?}", found(&beyond));
        let old = quantized(11, scalar("s", 1.0), weight(), floats("ws", &[3], &[0.1; 3]), 1);
        assert!(found(&old)[0].1.contains("opset 13"), "{:?}", found(&old));
    }

    #[test]
    fn zero_points_are_of_the_codes_type() {
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
    fn types_ask_for_versions() {
        let int4 = || tensor("w", DataType::INT4, &[2, 4], vec![0x11u8; 4]);
        let of = |opset| quantized(opset, scalar("s", 1.0), int4(), floats("ws", &[4], &[0.1; 4]), 1);
        assert_eq!(found(&of(21)), []);
        assert!(found(&of(17)).iter().any(|(check, reason)| *check == "types" && reason.contains("opset 21")));
        let mut old_file = of(21);
        old_file.ir_version = Some(8);
        assert!(found(&old_file).iter().any(|(check, reason)| *check == "types" && reason.contains("IR version 10")));
    }

    #[test]
    fn operators_of_others_need_a_library() {
        let mut custom = healthy();
        add_opset(&mut custom, "com.amd.quark", 1);
        custom.graph.as_mut().unwrap().node[3].domain = Some("com.amd.quark".to_owned());
        assert_eq!(found(&custom)[0].0, "operators");
        assert!(!runs(&verify(&custom)));
    }
}
