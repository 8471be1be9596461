//! MatMul with a constant matrix and Add of a constant become one Gemm with the matrix transposed, so that the bias belongs to
//! the product. Where there are more than two dimensions, all known, Reshape stands before and behind it.
//!
//! onnxslim makes it so before AMD Quark quantizes, and names are the same: `<product>_pre_reshape`, `<product>_weight`.

use kvant_container::onnx::{DataType, ModelProto, NodeProto, TensorProto};

use super::{Context, PassError};
use crate::constant::Value;
use crate::graph::{Edit, Index, is, node, set_attribute};
use crate::masks::may_mask;
use crate::shape::{Types, infer};

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut edit = Edit::default();
    for (position, add) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "Add")) {
        let Some(found) = Product::before(add, &index, graph, &types) else { continue };
        if edit.leaves(&[position, found.position]) {
            let weight = edit.fresh(graph, &format!("{}_weight", found.product()));
            edit.add(found.transposed(&weight, context)?);
            let (nodes, shapes) = found.nodes(&weight, &add.output[0], &mut |wanted| edit.fresh(graph, wanted));
            shapes.into_iter().for_each(|shape| edit.add(shape));
            edit.remove(found.position);
            edit.replace(position, nodes);
        }
    }
    Ok(edit.apply(graph))
}

/// A product with a constant matrix that only an Add of a constant reads.
pub(super) struct Product<'g> {
    pub(super) position: usize,
    pub(super) matmul: &'g NodeProto,
    pub(super) matrix: &'g TensorProto,
    pub(super) bias: &'g str,
    /// The shape of the left side.
    pub(super) input: Vec<usize>,
}

impl<'g> Product<'g> {
    pub(super) fn before(
        add: &'g NodeProto,
        index: &Index,
        graph: &'g kvant_container::onnx::GraphProto,
        types: &Types,
    ) -> Option<Self> {
        let [left, right] = &add.input[..] else { return None };
        let constant = |name: &str| index.constant(graph, name);
        let (product, bias) = if constant(right).is_some() { (left, right) } else { (right, left) };
        let position = index.producer(product).filter(|_| index.only_consumer(product).is_some())?;
        let matmul = graph.node.get(position).filter(|node| is(node, "MatMul"))?;
        let matrix = constant(&matmul.input[1]).filter(|matrix| matrix.dims.len() == 2)?;
        let input = types.known_shape(&matmul.input[0]).filter(|shape| shape.len() >= 2)?;
        let fits = broadcasts(&constant(bias)?.dims, &input[..input.len() - 1], matrix.dims[1]);
        let float = kvant_container::onnx::data_type(matrix) == DataType::FLOAT;
        let fits = fits && !may_mask(Value::of_tensor(constant(bias)?)?.as_floats()?);
        (fits && float && left != right).then_some(Self { position, matmul, matrix, bias, input })
    }

    fn product(&self) -> &str {
        &self.matmul.output[0]
    }

    fn transposed(&self, name: &str, context: &Context<'_>) -> Result<TensorProto, PassError> {
        let turned = Value::of_tensor(self.matrix).and_then(|matrix| matrix.transposed(&[1, 0]));
        // `check` has seen to it that the matrix has the size of its shape.
        let Some(turned) = turned else { return Ok(self.matrix.clone()) };
        Ok(context.keep(turned)?.into_tensor(name))
    }

    /// The nodes in place of product and sum, and the shapes they need.
    fn nodes(
        &self,
        weight: &str,
        output: &str,
        fresh: &mut dyn FnMut(&str) -> String,
    ) -> (Vec<NodeProto>, Vec<TensorProto>) {
        let name = self.product();
        let label = if self.matmul.name().is_empty() { name } else { self.matmul.name() };
        if self.input.len() == 2 {
            let mut gemm = node("Gemm", label, &[&self.matmul.input[0], weight, self.bias], &[output]);
            spell_gemm(&mut gemm);
            return (vec![gemm], vec![]);
        }
        let mut own = |suffix: &str| fresh(&format!("{name}_{suffix}"));
        let (source, target) = (own("pre_reshape_out"), own("gemm_out"));
        let mut gemm = node("Gemm", label, &[&source, weight, self.bias], &[&target]);
        spell_gemm(&mut gemm);
        let (before, behind) = (own("pre_reshape_in"), own("post_reshape_in"));
        let columns = self.matrix.dims[1];
        let outer = self.input[..self.input.len() - 1].iter().map(|&d| d as i64);
        let shapes =
            [shape(&before, &[-1, self.matrix.dims[0]]), shape(&behind, &outer.chain([columns]).collect::<Vec<_>>())];
        let nodes = vec![
            node("Reshape", &own("pre_reshape"), &[&self.matmul.input[0], &before], &[&source]),
            gemm,
            node("Reshape", &own("post_reshape"), &[&target, &behind], &[output]),
        ];
        (nodes, shapes.into_iter().flatten().collect())
    }
}

/// Sets the attributes of a Gemm with its second matrix transposed, spelled out as onnxslim does.
fn spell_gemm(node: &mut NodeProto) {
    set_attribute(node, "alpha", 1.0f32);
    set_attribute(node, "beta", 1.0f32);
    set_attribute(node, "transA", 0i64);
    set_attribute(node, "transB", 1i64);
}

fn shape(name: &str, dims: &[i64]) -> Option<TensorProto> {
    Value::integers(&[dims.len()], dims).map(|value| value.into_tensor(name))
}

/// Whether a shape broadcasts to `[..outer, columns]` as it does to that with all rows in one dimension. A dimension of its own
/// for each row is one where all but the last of the outer dimensions are 1: else the sum has more rows than the product.
fn broadcasts(shape: &[i64], outer: &[usize], columns: i64) -> bool {
    let is_row = |first: i64| match outer.split_last() {
        Some((rows, before)) => usize::try_from(first) == Ok(*rows) && before.iter().all(|size| *size == 1),
        None => false,
    };
    match shape {
        [] => true,
        [last] => *last == 1 || *last == columns,
        [first, last] => (*first == 1 || is_row(*first)) && (*last == 1 || *last == columns),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{floats, integers, model, typed};

    #[test]
    fn bias_must_broadcast_to_the_rows_of_the_product() {
        assert!(broadcasts(&[6, 3], &[6], 3) && broadcasts(&[6, 1], &[1, 6], 3) && broadcasts(&[1, 3], &[2, 6], 3));
        // To [6, 1, 3] it would add dimensions, to [2, 3, 3] each row its own.
        assert!(
            !broadcasts(&[6, 3], &[6, 1], 3) && !broadcasts(&[6, 3], &[2, 3], 3) && !broadcasts(&[2, 6, 3], &[2, 6], 3)
        );
    }

    fn run_on(shape: &[usize]) -> ModelProto {
        let nodes = vec![node("MatMul", "mm", &["x", "w"], &["h"]), node("Add", "a", &["b", "h"], &["y"])];
        let initializers = vec![floats("w", &[2, 3], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]), floats("b", &[3], &[7.0; 3])];
        let mut model = model(17, nodes, initializers, &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", shape)];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        model
    }

    #[test]
    fn higher_dimensional_products_are_reshaped_around_gemm() {
        let model = run_on(&[1, 4, 2]);
        let graph = &model.graph;
        let mut gemm = node("Gemm", "mm", &["h_pre_reshape_out", "h_weight", "b"], &["h_gemm_out"]);
        spell_gemm(&mut gemm);
        let reshape = |name: &str, inputs: [&str; 2], output: &str| node("Reshape", name, &inputs, &[output]);
        assert_eq!(
            graph.node,
            [
                reshape("h_pre_reshape", ["x", "h_pre_reshape_in"], "h_pre_reshape_out"),
                gemm,
                reshape("h_post_reshape", ["h_gemm_out", "h_post_reshape_in"], "y"),
            ]
        );
        assert!(graph.initializer.contains(&floats("h_weight", &[3, 2], &[0.0, 3.0, 1.0, 4.0, 2.0, 5.0])));
        assert!(graph.initializer.contains(&integers("h_pre_reshape_in", &[-1, 2])));
        assert!(graph.initializer.contains(&integers("h_post_reshape_in", &[1, 4, 3])));
    }

    #[test]
    fn mask_is_not_turned_into_a_gemm_bias() {
        for mask in [f32::NEG_INFINITY, f32::MIN] {
            let nodes = vec![node("MatMul", "mm", &["x", "w"], &["h"]), node("Add", "a", &["h", "b"], &["y"])];
            let initializers = vec![floats("w", &[2, 3], &[0.5; 6]), floats("b", &[3], &[0.0, mask, 0.0])];
            let mut model = model(17, nodes, initializers, &[], &["y"]);
            model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 4, 2])];
            assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
        }
    }

    #[test]
    fn two_dimensions_need_no_reshape() {
        let model = run_on(&[4, 2]);
        assert_eq!(model.graph.node.len(), 1);
        assert_eq!((model.graph.node[0].op_type(), &model.graph.node[0].output[0][..]), ("Gemm", "y"));
    }
}
