//! Names of what is written for a tensor: its own with a suffix, as tools of the field know them, or with a number behind where the
//! graph has such a name already.

use std::collections::HashMap;

use kvant_container::onnx::GraphProto;

use crate::graph::Names;

/// Gives the same name for the same tensor and suffix each time.
#[derive(Debug, Default)]
pub(super) struct TensorNames {
    names: Names,
    /// By tensor and suffix: two of them may have the same text.
    given: HashMap<(String, String), String>,
}

impl TensorNames {
    /// Names beside those of a graph.
    pub fn of(graph: &GraphProto) -> Self {
        Self { names: Names::of(graph), given: HashMap::new() }
    }

    /// The name of what stands for a tensor.
    pub fn of_tensor(&mut self, tensor: &str, suffix: &str) -> String {
        let names = &mut self.names;
        let given = self.given.entry((tensor.to_owned(), suffix.to_owned()));
        given.or_insert_with(|| names.fresh(&format!("{tensor}{suffix}"))).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    #[test]
    fn tensor_names_are_unique_and_stable() {
        let graph = GraphProto { node: vec![node("Mul", "m", &["w", "w_scale"], &["y"])], ..GraphProto::default() };
        let mut names = TensorNames::of(&graph);
        assert_eq!(names.of_tensor("w", "_scale"), "w_scale_1");
        assert_eq!(names.of_tensor("w", "_scale"), "w_scale_1");
        assert_eq!(names.of_tensor("x", "_scale"), "x_scale");
        assert_eq!(names.of_tensor("x", "_a_b"), "x_a_b");
        assert_eq!(names.of_tensor("x_a", "_b"), "x_a_b_1");
    }
}
