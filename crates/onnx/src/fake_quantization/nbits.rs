//! Products with weights of few bits (`com.microsoft.MatMulNBits`) as products with dequantized weights, for engines that do not have them.

use std::borrow::Cow;

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto, Spill};

use super::folding::{kernel_error, spilled};
use crate::graph::{Index, Names, domain, node, positional_input};
use crate::kernel::NBits;
use crate::kernel::linear::constant;
use crate::runtime::{RuntimeError, RuntimeOptions};

fn is_product(node: &NodeProto) -> bool {
    node.op_type() == "MatMulNBits" && domain(node) == "com.microsoft"
}

/// The model without such nodes, where their weights are constants. Large weights are on disk in a temporary directory, mapped.
pub(super) fn expanded<'m>(
    model: &'m ModelProto,
    options: &RuntimeOptions,
) -> Result<Cow<'m, ModelProto>, RuntimeError> {
    if !model.graph.node.iter().any(is_product) {
        return Ok(Cow::Borrowed(model));
    }
    let spill = Spill::new(&options.scratch.clone().unwrap_or_else(std::env::temp_dir))?;
    let (mut names, index) = (Names::of(&model.graph), Index::new(&model.graph));
    let mut made = model.clone();
    let Some(graph) = made.graph.as_mut() else { return Ok(Cow::Borrowed(model)) };
    let mut nodes = Vec::with_capacity(graph.node.len());
    for product in std::mem::take(&mut graph.node) {
        match weight(&model.graph, &index, &product)? {
            Some(weight) => {
                let name = names.fresh(&format!("{}/weight", product.output.first().map_or("", String::as_str)));
                graph.initializer.push(spilled(&name, &weight, &spill)?);
                nodes.extend(plain(&product, &name, &mut names));
            }
            None => nodes.push(product),
        }
    }
    graph.node = nodes;
    Ok(Cow::Owned(made))
}

/// The dequantized weight of a node; `None` of other nodes and where it is no constant.
fn weight(
    graph: &GraphProto,
    index: &Index,
    product: &NodeProto,
) -> Result<Option<crate::data::Array<'static>>, RuntimeError> {
    if !is_product(product) {
        return Ok(None);
    }
    let input = |position| positional_input(product, position);
    let array = |position| index.constant(graph, input(position)?).and_then(constant);
    let (Some(codes), Some(scales), zero_points) = (array(1), array(2), array(3)) else { return Ok(None) };
    if input(3).is_some() && zero_points.is_none() {
        return Ok(None);
    }
    let found = NBits::of(product).and_then(|bits| bits.weight(&codes, &scales, zero_points.as_ref()));
    found.map(Some).map_err(|error| kernel_error(product, error))
}

/// The product as a MatMul, and an Add where it has a bias.
fn plain(product: &NodeProto, weight: &str, names: &mut Names) -> Vec<NodeProto> {
    let input = product.input.first().map_or("", String::as_str);
    let output = product.output.first().map_or("", String::as_str);
    let Some(bias) = positional_input(product, 5) else {
        return vec![node("MatMul", product.name(), &[input, weight], &[output])];
    };
    let sum = names.fresh(&format!("{output}/product"));
    let added = names.fresh(&format!("{}/bias", product.name()));
    vec![node("MatMul", product.name(), &[input, weight], &[&sum]), node("Add", &added, &[&sum, bias], &[output])]
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use kvant_container::onnx::{DataType, tensor};

    use crate::data::Array;
    use crate::graph::{node, set_attribute};
    use crate::runtime::{RuntimeChoice, RuntimeOptions};
    use crate::test_models::{floats, model};

    #[test]
    fn embedded_engine_computes_products_with_a_bias() {
        let mut product = node("MatMulNBits", "product", &["x", "b", "s", "", "", "bias"], &["y"]);
        product.domain = Some("com.microsoft".to_owned());
        for (name, value) in [("K", 16), ("N", 1), ("bits", 4), ("block_size", 16)] {
            set_attribute(&mut product, name, value);
        }
        let codes = tensor("b", DataType::UINT8, &[1, 1, 8], vec![0x9au8; 8]);
        let constants = vec![codes, floats("s", &[1], &[0.5]), floats("bias", &[1], &[10.0])];
        let made = model(17, vec![product], constants, &["x"], &["y"]);
        let options = RuntimeOptions { choice: RuntimeChoice::Rten, ..RuntimeOptions::default() };
        let mut session = super::super::open(&made, &["y".to_owned()], &options).unwrap();
        let x = Array::of(vec![1, 16], (0..16).map(|i| (i % 2) as f32).collect::<Vec<_>>()).unwrap();
        let mut found = Vec::new();
        let run = session.run(&[("x", x)], &["y".to_owned()], &mut |_, array| {
            found.extend_from_slice(array.f32s().unwrap());
            ControlFlow::Continue(())
        });
        run.unwrap();
        // Eight inputs are one, and their codes 9, which is 0.5.
        assert_eq!(found, [14.0]);
    }
}
