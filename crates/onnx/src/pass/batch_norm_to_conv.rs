//! BatchNormalization of four dimensions that could not be folded becomes a Conv of one weight for each channel: weight
//! `scale / sqrt(variance + epsilon)`, bias `bias - mean weight`. Names are AMD Quark's: `<result>weights`, `<result>bias`.

use kvant_container::onnx::ModelProto;

use super::batch_norm_folding::Norm;
use super::weights::Floats;
use super::{Context, PassError};
use crate::graph::{Edit, Index, is, node, set_attribute};
use crate::shape::infer;

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut edit = Edit::default();
    for (position, norm) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "BatchNormalization")) {
        if types.rank(&norm.input[0]) != Some(4) {
            continue;
        }
        let Some(parameters) = Norm::of(norm, &index, graph) else { continue };
        let (input, output) = (&norm.input[0], &norm.output[0]);
        let names = ["weights", "bias"].map(|what| edit.fresh(graph, &format!("{output}{what}")));
        let bias = parameters.bias.with(&parameters.mean.with(&parameters.factor, |m, f| m * f), |b, v| b - v);
        let channels = bias.values.len();
        let weight = Floats { shape: vec![channels, 1, 1, 1], ..parameters.factor };
        for (floats, name) in [weight, bias].into_iter().zip(&names) {
            floats.into_tensor(name, context)?.into_iter().for_each(|tensor| edit.add(tensor));
        }
        let mut conv = node("Conv", norm.name(), &[input, &names[0], &names[1]], &[output]);
        set_attribute(&mut conv, "group", channels as i64);
        set_attribute(&mut conv, "kernel_shape", &[1i64, 1][..]);
        edit.replace(position, vec![conv]);
    }
    Ok(edit.apply(graph))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{floats, model, typed};

    #[test]
    fn batch_norm_of_images_becomes_a_convolution() {
        let mut norm = node("BatchNormalization", "bn", &["x", "s", "b", "m", "v"], &["y"]);
        set_attribute(&mut norm, "epsilon", 0.0f32);
        let constants = [("s", 4.0), ("b", 1.0), ("m", 3.0), ("v", 4.0)].map(|(name, v)| floats(name, &[1], &[v]));
        let mut model = model(17, vec![norm], constants.to_vec(), &[], &["y"]);
        let mut flat = model.clone();
        model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 1, 2, 2])];
        flat.graph.as_mut().unwrap().input = vec![typed("x", &[2, 1])];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        assert!(model.graph.initializer.contains(&floats("yweights", &[1, 1, 1, 1], &[2.0])));
        assert!(model.graph.initializer.contains(&floats("ybias", &[1], &[-5.0])));
        assert_eq!(run(&mut flat, &Context::default()).unwrap(), 0);
    }
}
