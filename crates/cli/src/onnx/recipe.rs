//! From options to the recipe of an ONNX graph.

use super::refuse_idle_library;
use crate::args::{OnnxArgs, OnnxLayout, RecipeArgs, first_given};
use crate::failure::{Failure, Kind};
use kvant_onnx::settings::{OverrideText, PairLayout, Resolved, Settings};

/// The recipe that a preset, a file and options make together, and the passes that go with it.
///
/// # Errors
/// A preset or type that does not exist, a file that is none, options that contradict each other or belong to checkpoints.
pub fn recipe(args: &RecipeArgs) -> Result<Resolved, Failure> {
    Ok(settings(args)?.resolve()?)
}

/// What is said: options, then the file.
///
/// # Errors
/// Options that belong to checkpoints, a file that is no recipe.
pub fn settings(args: &RecipeArgs) -> Result<Settings, Failure> {
    refuse_foreign(args)?;
    refuse_idle_library(&args.onnx.engine)?;
    let said = options(args);
    match &args.recipe {
        Some(file) => Ok(said.over(Settings::read(file)?)),
        None => Ok(said),
    }
}

/// Refuses what only checkpoints have, so that no option is silently without effect.
fn refuse_foreign(args: &RecipeArgs) -> Result<(), Failure> {
    let foreign = [
        (!args.format.is_empty(), "--format"),
        (!args.lora.is_empty(), "--lora"),
        (args.pack_method.is_some(), "--pack-method"),
        (args.kv_cache.is_some(), "--kv-cache"),
        (args.attention.is_some(), "--attention"),
        (args.calibration.seq_len.is_some(), "--seq-len"),
        (args.calibration.packing.is_some(), "--packing"),
        (args.calibration.column.is_some(), "--column"),
        (args.calibration.shuffle, "--shuffle"),
        (args.max_shard_size.is_some(), "--max-shard-size"),
        (args.no_keep_defaults, "--no-keep-defaults"),
        (args.min_kv_scale.is_some(), "--min-kv-scale"),
        (args.kv_cache_post_rope, "--kv-cache-post-rope"),
        (args.requantize, "--requantize"),
    ];
    match first_given(&foreign).or_else(|| args.gguf.given()) {
        Some(option) => Err(Failure::new(Kind::Usage, format!("{option} does not apply to an ONNX graph"))
            .with_hint(Some("`kvant quantize --help` lists what ONNX graphs have".to_owned()))),
        None => Ok(()),
    }
}

/// A switch that is on, or nothing said.
fn on(flag: bool) -> Option<bool> {
    flag.then_some(true)
}

fn options(args: &RecipeArgs) -> Settings {
    let OnnxArgs {
        activation,
        weight,
        symmetric,
        calibration_method,
        weight_method,
        percentile,
        bias,
        form,
        boundary,
        ..
    } = args.onnx;
    let onnx = &args.onnx;
    let layout = onnx.layout.map(|layout| match layout {
        OnnxLayout::Qdq => PairLayout::Qdq,
        OnnxLayout::Qoperator => PairLayout::Qoperator,
    });
    let overrides = args.overrides.iter();
    Settings {
        version: None,
        preset: args.scheme.clone(),
        weights_only: on(args.weights_only),
        activation,
        weight,
        symmetric,
        per_channel: on(onnx.per_channel),
        per_channel_activations: on(onnx.per_channel_activations),
        algorithm: algorithms(args),
        reduce_range: on(onnx.reduce_range),
        calibration_method,
        weight_method,
        percentile,
        bias,
        form,
        layout,
        boundary,
        op_types: onnx.op_types.clone(),
        more_op_types: onnx.more_op_types.clone(),
        exclude_op_types: onnx.exclude_op_types.clone(),
        nodes: onnx.nodes.clone(),
        exclude: args.exclude.clone(),
        exclude_subgraph: onnx.exclude_subgraph.iter().map(ToString::to_string).collect(),
        enable_pass: onnx.enable_pass.clone(),
        disable_pass: onnx.disable_pass.clone(),
        overrides: overrides.map(|o| OverrideText { tensors: o.layers.clone(), scheme: o.scheme.clone() }).collect(),
    }
}

/// `--equalize` is another word for one of them.
fn algorithms(args: &RecipeArgs) -> Vec<String> {
    let equalize = args.onnx.equalize.then(|| "cle".to_owned());
    equalize.into_iter().chain(args.algorithm.iter().cloned()).collect()
}
