//! From options to the recipe of an ONNX graph.

use crate::args::{OnnxArgs, OnnxLayout, RecipeArgs};
use crate::failure::{Failure, Kind};
use kvant_onnx::algorithm::{Algorithm, Algorithms, Equalization, SpellingError};
use kvant_onnx::pass;
use kvant_onnx::preset::{PRESETS, Preset};
use kvant_onnx::quantization::ScaleKind;
use kvant_onnx::recipe::{Layout, Override, Recipe, Selection, TensorScheme};
use kvant_quant::glob::Glob;

/// The recipe that a preset and options make together.
///
/// # Errors
/// A preset or type that does not exist, options that contradict each other or belong to checkpoints.
pub fn recipe(args: &RecipeArgs) -> Result<Recipe, Failure> {
    refuse_foreign(args)?;
    let name = args.scheme.as_deref().unwrap_or_default();
    let mut recipe = Preset::resolve(name).map_err(spelling)?.ok_or_else(|| unknown(name))?;
    let onnx = &args.onnx;
    if onnx.equalize {
        recipe.algorithms.add(Algorithm::Equalization(Equalization::USUAL)).map_err(spelling)?;
    }
    recipe.algorithms.extend(&Algorithms::of_list(&args.algorithm).map_err(spelling)?).map_err(spelling)?;
    recipe.percentile = onnx.percentile.unwrap_or(recipe.percentile);
    recipe.activation = recipe.activation.map(|scheme| activation(scheme, onnx));
    recipe.weight = weight(recipe.weight, onnx);
    recipe.bias = onnx.bias.unwrap_or(recipe.bias);
    recipe.form = onnx.form.unwrap_or(recipe.form);
    recipe.boundary = onnx.boundary.unwrap_or(recipe.boundary);
    if args.weights_only {
        recipe.activation = None;
    }
    match onnx.layout {
        Some(OnnxLayout::Qdq) => recipe.layout = Layout::Qdq,
        Some(OnnxLayout::Qoperator) => recipe.layout = Layout::QOperator,
        None => {}
    }
    recipe.selection = selection(recipe.selection, args);
    recipe.overrides = args.overrides.iter().map(overridden).collect::<Result<_, _>>()?;
    recipe.drop_activations &= recipe.activation.is_some_and(|a| !a.symmetric);
    Ok(recipe)
}

fn spelling(error: SpellingError) -> Failure {
    Failure::new(error.kind().into(), error.to_string()).with_hint(Some(error.hint()))
}

fn unknown(name: &str) -> Failure {
    let near =
        PRESETS.iter().map(|p| p.name).min_by_key(|known| strsim::levenshtein(known, &name.to_ascii_uppercase()));
    let suggestion = near.map_or_else(String::new, |near| format!("; the nearest name is {near}"));
    let failure = Failure::new(Kind::Invalid, format!("`{name}` is no preset of ONNX graphs{suggestion}"));
    failure.with_hint(Some("`kvant list presets` shows all".to_owned()))
}

/// Refuses what only checkpoints have, so that no option is silently without effect.
fn refuse_foreign(args: &RecipeArgs) -> Result<(), Failure> {
    let foreign = [
        (args.recipe.is_some(), "--recipe"),
        (!args.format.is_empty(), "--format"),
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
    ];
    match foreign.iter().find(|(given, _)| *given) {
        Some((_, option)) => Err(Failure::new(Kind::Usage, format!("{option} has no meaning for an ONNX graph"))
            .with_hint(Some("`kvant quantize --help` lists what ONNX graphs have".to_owned()))),
        None => Ok(()),
    }
}

fn activation(scheme: TensorScheme, args: &OnnxArgs) -> TensorScheme {
    let element = args.activation.unwrap_or(scheme.element);
    let changed = element.is_signed() != scheme.element.is_signed();
    // Unsigned codes are for values on one side of zero: without a word on it they are asymmetric.
    let symmetric = if changed { element.is_signed() } else { scheme.symmetric };
    TensorScheme {
        element,
        symmetric: args.symmetric.unwrap_or(symmetric),
        method: args.calibration_method.unwrap_or(scheme.method),
        scale: scale_of(scheme, args),
        ..scheme
    }
}

fn weight(scheme: TensorScheme, args: &OnnxArgs) -> TensorScheme {
    let element = args.weight.unwrap_or(scheme.element);
    TensorScheme {
        element,
        symmetric: if element.is_signed() { scheme.symmetric } else { false },
        method: args.weight_method.unwrap_or(scheme.method),
        per_channel: scheme.per_channel || args.per_channel,
        reduce_range: scheme.reduce_range || args.reduce_range,
        ..scheme
    }
}

/// NonOverflow is a way to power-of-two scales.
fn scale_of(scheme: TensorScheme, args: &OnnxArgs) -> ScaleKind {
    match args.calibration_method {
        Some(kvant_onnx::calibration::Method::NonOverflow) => ScaleKind::PowerOfTwo,
        _ => scheme.scale,
    }
}

fn selection(selection: Selection, args: &RecipeArgs) -> Selection {
    let globs = |names: &[String]| names.iter().map(|name| Glob::new(name)).collect();
    let onnx = &args.onnx;
    Selection {
        op_types: onnx.op_types.clone(),
        more_op_types: onnx.more_op_types.clone(),
        nodes: globs(&onnx.nodes),
        excluded_op_types: onnx.exclude_op_types.clone(),
        excluded_nodes: globs(&args.exclude),
        excluded_subgraphs: onnx.exclude_subgraph.clone(),
        ..selection
    }
}

fn overridden(text: &kvant_llm::recipe::OverrideText) -> Result<Override, Failure> {
    let float = matches!(text.scheme.as_str(), "keep" | "float");
    let element = match float {
        true => None,
        false => Some(text.scheme.parse().map_err(|e: kvant_onnx::element::UnknownElement| {
            Failure::new(Kind::Invalid, format!("--override {}: {e}", text.layers))
        })?),
    };
    let symmetric = element.map(kvant_onnx::element::Element::is_signed);
    Ok(Override { tensors: Glob::new(&text.layers), element, symmetric, range: None, float })
}

/// The passes that a recipe needs, with what the options switch.
///
/// # Errors
/// A name that no pass has.
pub fn passes(recipe: &Recipe, args: &OnnxArgs) -> Result<pass::Selection, Failure> {
    let mut selection = recipe.passes();
    for (names, on) in [(&args.enable_pass, true), (&args.disable_pass, false)] {
        for name in names {
            selection
                .set(name, on)
                .map_err(|error| Failure::new(error.kind().into(), error.to_string()).with_hint(error.hint()))?;
        }
    }
    Ok(selection)
}
