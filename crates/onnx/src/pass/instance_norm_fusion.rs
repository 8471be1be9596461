//! The nodes of a normalization over all axes behind batch and channels become InstanceNormalization.

use kvant_container::onnx::ModelProto;

use super::normalized::{Normalized, trailing};
use super::pattern::Pattern;
use super::weights::Floats;
use super::{Context, PassError};
use crate::graph::{Edit, node, set_attribute};
use crate::shape::{Types, infer};

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let pattern = Pattern::new(graph);
    let mut edit = Edit::default();
    for quotient in &graph.node {
        let Some(found) = Normalized::around(quotient, &pattern) else { continue };
        let Some((scale, bias)) = parameters(&found, &pattern, &types) else { continue };
        let last = &graph.node[found.last];
        let names = ["scale", "bias"].map(|what| edit.fresh(graph, &format!("{}_{what}", last.output[0])));
        for (floats, name) in [scale, bias].into_iter().zip(&names) {
            floats.into_tensor(name, context)?.into_iter().for_each(|tensor| edit.add(tensor));
        }
        let inputs = [found.input, &names[0], &names[1]];
        let mut fused = node("InstanceNormalization", last.name(), &inputs, &[&last.output[0]]);
        set_attribute(&mut fused, "epsilon", found.epsilon);
        edit.replace(found.last, vec![fused]);
    }
    Ok(edit.apply(graph))
}

/// Scale and bias as one number for each channel.
fn parameters(found: &Normalized<'_>, pattern: &Pattern<'_>, types: &Types) -> Option<(Floats, Floats)> {
    let dims = types.get(found.input)?.shape.as_ref()?;
    let channels = dims.get(1)?.known()?;
    if dims.len() < 3 || trailing(&found.axes, dims.len()) != Some(2) {
        return None;
    }
    let for_channels = |name: &str| {
        let floats = Floats::of(&pattern.index, pattern.graph, name)?;
        let aligned = floats.shape.len() <= dims.len() && floats.shape.len() + 1 >= dims.len();
        let shape: Vec<usize> = std::iter::repeat_n(1, dims.len() - floats.shape.len().min(dims.len()))
            .chain(floats.shape.iter().copied())
            .collect();
        let fits = shape.iter().enumerate().all(|(i, &d)| d == if i == 1 { channels } else { 1 });
        (aligned && fits).then(|| Floats { shape: vec![channels], ..floats })
    };
    let scale = for_channels(found.scale)?;
    let bias = match found.bias {
        Some(name) => for_channels(name)?,
        None => Floats::filled(scale.data_type, channels, 0.0),
    };
    Some((scale, bias))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::layer_norm_fusion::tests::decomposed;
    use crate::test_models::{model, typed};

    fn count(axes: &[i64], shape: &[usize]) -> usize {
        let (nodes, constants) = decomposed(axes, shape);
        let mut model = model(13, nodes, constants, &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3, 4, 5])];
        run(&mut model, &Context::default()).unwrap()
    }

    #[test]
    fn spatial_means_become_an_instance_norm() {
        assert_eq!(count(&[2, 3], &[1, 3, 1, 1]), 1);
        assert_eq!(count(&[-1, -2], &[3, 1, 1]), 1);
        assert_eq!(count(&[3], &[3, 1, 1]), 0);
        assert_eq!(count(&[2, 3], &[1, 1, 4, 1]), 0);
    }
}
