//! Rewrites of a graph that keep what the model computes. One file each, and a row of [`ALL`], from which selection, help and
//! order follow.
//!
//! A pass sees the whole model and says how often it rewrote something. It changes nothing across QuantizeLinear and
//! DequantizeLinear, which are no operators that a constant or a fused weight could be computed through.

mod batch_norm_folding;
mod batch_norm_to_conv;
mod bias_fusion;
mod clip_to_relu;
mod constant_folding;
mod copy_shared_bias;
mod dead_nodes;
mod duplicate_nodes;
mod error;
mod float_ends;
mod float_sources;
mod function_inlining;
mod gelu_fusion;
mod identity;
mod instance_norm_fusion;
mod l2_norm_fusion;
mod layer_norm_fusion;
mod lift_body_weights;
mod matmul_add_to_gemm;
mod nhwc_inputs;
mod normalized;
mod opset;
mod pattern;
mod reduce_mean_to_pool;
mod remove_initializers_from_inputs;
mod scale_folding;
mod selection;
mod shape_inference;
mod split_large_pool;
mod split_to_slice;
mod weights;

use kvant_container::onnx::{DataType, ModelProto, Spill};

use crate::constant::Value;
use crate::graph::{NodeNames, STANDARD_DOMAIN, opset};

pub use error::PassError;
pub(crate) use nhwc_inputs::TO_CHANNELS_FIRST;
pub(crate) use normalized::{Normalized, quotient, square, sum, trailing};
pub use opset::upgrade_opset;
pub(crate) use pattern::Pattern;
pub use selection::Selection;

/// One rewrite.
#[derive(Debug)]
pub struct Pass {
    /// The name to select it by.
    pub name: &'static str,
    /// Its purpose, in one line.
    pub about: &'static str,
    /// Whether it runs unless it is switched off.
    pub default: bool,
    run: fn(&mut ModelProto, &Context<'_>) -> Result<usize, PassError>,
}

impl Pass {
    /// Runs the pass once over the model; how many rewrites it made.
    pub fn run(&self, model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
        (self.run)(model, context)
    }

    /// The pass of a name.
    pub fn named(name: &str) -> Result<&'static Self, PassError> {
        ALL.iter().find(|pass| pass.name == name).ok_or_else(|| PassError::unknown(name))
    }
}

/// All passes, in the order in which they run.
pub const ALL: &[Pass] = &[
    Pass {
        name: "function-inlining",
        about: "calls of the model's own functions become the functions' nodes",
        default: true,
        run: function_inlining::run,
    },
    Pass {
        name: "remove-initializers-from-inputs",
        about: "initializers that are inputs as well become constants that no caller can override",
        default: true,
        run: remove_initializers_from_inputs::run,
    },
    Pass {
        name: "float-sources",
        about: "tensors of float16, bfloat16 and float64 become float32, inputs and outputs but for a Cast",
        default: false,
        run: float_sources::run,
    },
    Pass {
        name: "float-ends",
        about: "float16, bfloat16 and float64 inputs and outputs become float32 where they connect only to a Cast",
        default: false,
        run: float_ends::run,
    },
    Pass {
        name: "constant-folding",
        about: "constant expressions are computed now, including known shapes",
        default: true,
        run: constant_folding::run,
    },
    Pass {
        name: "identity",
        about: "nodes that give what they get go: Identity, Dropout, and Cast, Reshape, Transpose, Pad, Slice without effect",
        default: true,
        run: identity::run,
    },
    Pass {
        name: "duplicate-nodes",
        about: "nodes that compute the same of the same become one, and equal integer constants too",
        default: true,
        run: duplicate_nodes::run,
    },
    Pass {
        name: "batch-norm-folding",
        about: "BatchNormalization goes into the weights of the Conv, ConvTranspose or Gemm before or behind it",
        default: true,
        run: batch_norm_folding::run,
    },
    Pass {
        name: "scale-folding",
        about: "Mul and Div by constants go into the weights of the Conv, ConvTranspose or Gemm beside them",
        default: true,
        run: scale_folding::run,
    },
    Pass {
        name: "matmul-add-to-gemm",
        about: "MatMul with a constant and Add become Gemm, between two Reshapes where there are more than two dimensions",
        default: false,
        run: matmul_add_to_gemm::run,
    },
    Pass {
        name: "bias-fusion",
        about: "Add of a constant becomes the bias of the Conv, ConvTranspose, Gemm or two-dimensional MatMul before it",
        default: true,
        run: bias_fusion::run,
    },
    Pass {
        name: "instance-norm-fusion",
        about: "the nodes of a normalization of each channel become InstanceNormalization",
        default: true,
        run: instance_norm_fusion::run,
    },
    Pass {
        name: "l2-norm-fusion",
        about: "the nodes of x / norm(x) become LpNormalization",
        default: true,
        run: l2_norm_fusion::run,
    },
    Pass {
        name: "layer-norm-fusion",
        about: "the nodes of a normalization over the last axes become LayerNormalization, from opset 17 on",
        default: true,
        run: layer_norm_fusion::run,
    },
    Pass {
        name: "gelu-fusion",
        about: "the nodes of the GELU with erf become Gelu, from opset 20 on",
        default: true,
        run: gelu_fusion::run,
    },
    Pass {
        name: "clip-to-relu",
        about: "Clip from zero up without an upper limit becomes Relu",
        default: true,
        run: clip_to_relu::run,
    },
    Pass {
        name: "reduce-mean-to-global-average-pool",
        about: "ReduceMean over height and width becomes GlobalAveragePool",
        default: false,
        run: reduce_mean_to_pool::run,
    },
    Pass {
        name: "split-large-pool",
        about: "GlobalAveragePool over more than 512 elements becomes two pools",
        default: false,
        run: split_large_pool::run,
    },
    Pass {
        name: "split-to-slice",
        about: "Split becomes one Slice for each part",
        default: false,
        run: split_to_slice::run,
    },
    Pass {
        name: "batch-norm-to-conv",
        about: "BatchNormalization that could not be folded becomes a Conv of one weight for each channel",
        default: false,
        run: batch_norm_to_conv::run,
    },
    Pass {
        name: "nhwc-inputs",
        about: "image inputs change from NCHW to NHWC: a Transpose follows them, and data must be NHWC",
        default: false,
        run: nhwc_inputs::run,
    },
    Pass {
        name: "lift-body-weights",
        about: "weights of products inside of If, Loop and Scan move to the main graph, where they are quantized",
        default: false,
        run: lift_body_weights::run,
    },
    Pass {
        name: "copy-shared-bias",
        about: "each Conv, ConvTranspose and Gemm gets its own bias, since a bias is quantized with the scales of its node",
        default: false,
        run: copy_shared_bias::run,
    },
    Pass {
        name: "dead-nodes",
        about: "nodes and initializers that no output depends on go",
        default: true,
        run: dead_nodes::run,
    },
    Pass {
        name: "shape-inference",
        about: "types and shapes of all tensors, as far as they follow, are written to the model",
        default: true,
        run: shape_inference::run,
    },
];

/// The inputs of passes besides the model.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The store of large new weights; they stay in memory without it.
    pub spill: Option<&'a Spill>,
    /// Most bytes that a folded constant may grow to beyond the constants it is made of.
    pub largest: usize,
    /// A type of 16-bit floats that stays: the one that the model is to be converted to.
    pub kept: Option<DataType>,
}

impl Default for Context<'_> {
    fn default() -> Self {
        Self { spill: None, largest: 1 << 20, kept: None }
    }
}

impl Context<'_> {
    /// An error where the user asked to stop.
    fn check(&self) -> Result<(), PassError> {
        Ok(self.spill.map_or(Ok(()), Spill::check)?)
    }

    /// A value made anew, on disk where there is a place for it; what shares its bytes with another stays where it is.
    fn keep(&self, value: Value) -> Result<Value, PassError> {
        match self.spill {
            Some(spill) if value.bytes().is_unique() => Ok(value.kept(|contents| spill.keep(contents))?),
            _ => Ok(value),
        }
    }
}

/// Rounds over all passes, at most: a model that changes longer is left as it is then, which is right, only not smallest.
const MOST_ROUNDS: usize = 8;

/// Runs the selected passes in the order of [`ALL`], again and again until none finds anything; how many rewrites each of
/// them made, those that made none included.
///
/// The model must have passed [`check`](crate::graph::check()); it passes it afterwards too, with its nodes in order.
pub fn simplify(
    model: &mut ModelProto,
    selection: &Selection,
    context: &Context<'_>,
) -> Result<Vec<(&'static str, usize)>, PassError> {
    let mut counts: Vec<_> = selection.passes().map(|pass| (pass.name, 0)).collect();
    let names = NodeNames::of(&model.graph);
    sort(model)?;
    for _ in 0..MOST_ROUNDS {
        let mut found = 0;
        for (pass, (_, count)) in selection.passes().zip(&mut counts) {
            context.check()?;
            let rewrites = pass.run(model, context)?;
            *count += rewrites;
            found += rewrites;
        }
        if found == 0 {
            break;
        }
    }
    sort(model)?;
    if let Some(graph) = model.graph.as_mut() {
        names.tell_apart(graph);
    }
    Ok(counts)
}

/// The opset that fusions of a selection need, where the model has what they fuse and a lower one.
///
/// That is LayerNormalization alone: a spelled-out GELU takes as long in onnxruntime as one node does, and AMD Quark quantizes it node by node.
pub(crate) fn opset_of_fusions(model: &ModelProto, selection: &Selection) -> Option<i64> {
    let is_lower = opset(model, STANDARD_DOMAIN).is_some_and(|opset| opset < layer_norm_fusion::OPSET);
    let is_selected = selection.passes().any(|pass| pass.name == "layer-norm-fusion");
    (is_lower && is_selected && layer_norm_fusion::is_needed(model)).then_some(layer_norm_fusion::OPSET)
}

fn sort(model: &mut ModelProto) -> Result<(), PassError> {
    let sorted = model.graph.as_mut().map(crate::graph::sort).transpose();
    Ok(sorted.map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{check, node};
    use crate::test_models::{floats, model, typed};

    #[test]
    fn pass_names_are_unique_option_values() {
        let mut names: Vec<_> = ALL.iter().map(|pass| pass.name).collect();
        assert!(
            names.iter().all(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '-' || c.is_ascii_digit()))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn fusions_ask_for_the_opset_of_their_operator_where_a_model_has_what_they_fuse() {
        let made = |opset, nodes: Vec<_>, constants| {
            let mut model = model(opset, nodes, constants, &[], &["y"]);
            model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3])];
            model
        };
        let normalized = |opset| {
            let (nodes, constants) = layer_norm_fusion::tests::decomposed(&[-1], &[3]);
            made(opset, nodes, constants)
        };
        let (all, without) = (Selection::default(), Selection::default().without("layer-norm-fusion").unwrap());
        assert_eq!(opset_of_fusions(&normalized(12), &all), Some(17));
        assert_eq!(opset_of_fusions(&normalized(12), &without), None);
        assert_eq!(opset_of_fusions(&normalized(17), &all), None);
        let other = made(12, vec![node("Sqrt", "s", &["x"], &["y"])], Vec::new());
        assert_eq!(opset_of_fusions(&other, &all), None);
    }

    #[test]
    fn passes_repeat_until_nothing_changes() {
        let nodes = vec![
            node("Identity", "i", &["x"], &["a"]),
            node("Add", "a", &["w", "w"], &["v"]),
            node("Mul", "m", &["a", "v"], &["y"]),
            node("Relu", "dead", &["v"], &["z"]),
        ];
        let mut model = model(17, nodes, vec![floats("w", &[1], &[2.0])], &["x"], &["y"]);
        let counts = simplify(&mut model, &Selection::default(), &Context::default()).unwrap();
        assert_eq!(model.graph.node, [node("Mul", "m", &["x", "v"], &["y"])]);
        assert_eq!(model.graph.initializer, [floats("v", &[1], &[4.0])]);
        assert!(counts.contains(&("identity", 1)) && counts.contains(&("constant-folding", 1)));
        assert_eq!(check(&model), Ok(()));
    }
}
