//! GlobalAveragePool over more than 512 elements becomes AveragePool over blocks and GlobalAveragePool over their means: NPUs
//! limit the size of one pool. Exact, since all blocks have the same size. The new tensor is named `<input>_Split`.

use kvant_container::onnx::ModelProto;

use super::{Context, PassError};
use crate::graph::{Edit, Names, is, node, set_attribute};
use crate::shape::infer;

/// Most elements of one pool.
const LARGEST: usize = 512;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let mut names = Names::of(graph);
    let mut edit = Edit::default();
    for (position, pool) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "GlobalAveragePool")) {
        let Some([height, width]) =
            types.known_shape(&pool.input[0]).and_then(|s| <[usize; 2]>::try_from(s.get(2..)?).ok())
        else {
            continue;
        };
        let Some(block) = block(height, width) else { continue };
        let blocks = names.fresh(&format!("{}_Split", pool.input[0]));
        let mut first = node("AveragePool", &blocks, &[&pool.input[0]], &[&blocks]);
        set_attribute(&mut first, "kernel_shape", &block[..]);
        set_attribute(&mut first, "strides", &block[..]);
        let mut second = pool.clone();
        second.input[0] = blocks;
        edit.replace(position, vec![first, second]);
    }
    Ok(edit.apply(graph))
}

/// The block, if one pool is too large and two are not.
fn block(height: usize, width: usize) -> Option<[i64; 2]> {
    let (h, w) = (factor(height), factor(width));
    let (rows, columns) = (height.checked_div(h)?, width.checked_div(w)?);
    let needed = height.checked_mul(width)? > LARGEST;
    let possible = h * w <= LARGEST && rows * columns <= LARGEST;
    (needed && possible).then_some([h as i64, w as i64])
}

/// The largest divisor that is not above the square root.
fn factor(number: usize) -> usize {
    (1..=number.isqrt()).rev().find(|divisor| number.is_multiple_of(*divisor)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::ints_attribute;
    use crate::test_models::{model, typed};

    #[test]
    fn only_large_divisible_pools_are_split() {
        assert_eq!(block(32, 32), Some([4, 4]));
        assert_eq!(block(24, 30), Some([4, 5]));
        assert_eq!((block(7, 7), block(23, 23), block(0, 5)), (None, None, None));
        let pool = node("GlobalAveragePool", "p", &["x"], &["y"]);
        let mut model = model(13, vec![pool], vec![], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 3, 32, 32])];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        assert_eq!(ints_attribute(&model.graph.node[0], "strides"), Some(&[4, 4][..]));
        assert_eq!((&model.graph.node[1].input[0][..], model.graph.node[0].name()), ("x_Split", "x_Split"));
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
