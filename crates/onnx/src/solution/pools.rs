//! Average pooling that ONNX Runtime's integer kernel refuses while it runs: with `s_x` and `s_y` the scales of what it reads and
//! makes and `n` the values of a channel, it takes `2^-32 <= s_x / (s_y n) < 256` alone. That is so of QLinearGlobalAveragePool, and of
//! QLinearAveragePool whose window is the whole image.
//! Source: ONNX Runtime, `CheckQLinearGlobalAveragePoolScaleAndSize` of its MLAS; tried with 1.31.1.

use std::collections::BTreeSet;

use kvant_container::onnx::{GraphProto, NodeProto};

use super::Solution;
use crate::graph::{Index, ints_attribute, is};
use crate::placement::Placement;
use crate::shape::{Dim, Types};

/// Whether the kernel takes the scales. `values` are those of a channel; one where their number is not known, with which no
/// ratio passes that is too large.
pub fn fits_kernel(input: f32, output: f32, values: Option<usize>) -> bool {
    let ratio = input / (output * values.unwrap_or(1) as f32);
    ratio < 256.0 && (ratio >= 1.0 / 4_294_967_296.0 || values.is_none())
}

/// The values of a channel that a node averages, where it averages whole images, in floats or codes: none inside if their number is not
/// known.
pub fn averaged(node: &NodeProto, types: &Types) -> Option<Option<usize>> {
    // How many images there are does not matter.
    let dims = node.input.first().and_then(|name| types.get(name)?.shape.as_ref()?.get(2..));
    let image: Option<Vec<usize>> = dims.and_then(|dims| dims.iter().map(Dim::known).collect());
    let product = |sides: &[usize]| sides.iter().product::<usize>();
    if node.op_type().trim_start_matches("QLinear") == "GlobalAveragePool" {
        return Some(image.as_deref().map(product));
    }
    let averages = node.op_type().trim_start_matches("QLinear") == "AveragePool";
    let window = ints_attribute(node, "kernel_shape").filter(|_| averages)?;
    let window: Vec<usize> = window.iter().filter_map(|&side| usize::try_from(side).ok()).collect();
    image.is_none_or(|image| image == window).then(|| Some(product(&window)))
}

/// The tensors that poolings make and whose codes the kernel would refuse to make.
pub fn unfit_pools(graph: &GraphProto, types: &Types, placement: &Placement, solution: &Solution) -> BTreeSet<String> {
    let index = Index::new(graph);
    let scale = |name: &String| {
        let element = placement.activations.get(name)?.scheme.element;
        // There are no such kernels of 16-bit codes.
        element.integer_bits().filter(|&bits| bits == 8)?;
        Some(solution.activations.get(name)?.scale)
    };
    // A clamp between pooling and codes goes into the codes.
    let behind = |name: &String| {
        let reader = index.only_consumer(name).map(|at| &graph.node[at]);
        let clamp = reader.filter(|node| is(node, "Relu") || is(node, "Clip"));
        clamp.and_then(|node| node.output.first()).cloned()
    };
    let unfit = |node: &NodeProto| {
        let values = averaged(node, types)?;
        let input = scale(node.input.first()?)?;
        let made = node.output.first()?;
        let name = if scale(made).is_some() { made.clone() } else { behind(made)? };
        (!fits_kernel(input, scale(&name)?, values)).then_some(name)
    };
    graph.node.iter().filter_map(unfit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scale_ratio_bounds_match_the_kernel() {
        assert!(fits_kernel(1020.0, 1.0, Some(4)) && !fits_kernel(1024.0, 1.0, Some(4)));
        assert!(fits_kernel(1e-9, 1.0, Some(4)) && !fits_kernel(1e-10, 1.0, Some(4)));
        assert!(fits_kernel(255.0, 1.0, None) && !fits_kernel(256.0, 1.0, None) && fits_kernel(1e-12, 1.0, None));
    }
}
