//! The presets: one row each, with the names users know from Quark.

use crate::algorithm_settings::{self, Algorithms, SpellingError, split_name};
use crate::calibration_method::DEFAULT_PERCENTILE;
use crate::element::{Block, Element};
use crate::quantization::ScaleKind;
use crate::recipe::{
    Align, BiasKind, Boundary, FloatType, Form, Layout, Products, Recipe, RuleSet, Selection, TensorScheme,
};
use kvant_quant::observer::ObserverRef;

/// A recipe with a name.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// Other names of the same recipe.
    pub aliases: &'static [&'static str],
    /// Its description, in one line.
    pub about: &'static str,
    make: fn() -> Recipe,
}

impl Preset {
    /// The recipe.
    pub fn recipe(&self) -> Recipe {
        (self.make)()
    }

    /// The recipe of a name: that of a preset, with algorithm suffixes in any order: `A8W8_CLE`,
    /// `XINT8_ADAROUND_CLE`.
    ///
    /// # Errors
    /// Algorithms that cannot be combined, or are repeated.
    pub fn resolve(name: &str) -> Result<Option<Recipe>, SpellingError> {
        let upper = name.trim().to_ascii_uppercase().replace('-', "_");
        let mut rest = upper.strip_suffix("_QCONFIG").unwrap_or(&upper);
        let mut algorithms = Algorithms::default();
        loop {
            if let Some(preset) = Self::find(rest) {
                let mut recipe = preset.recipe();
                recipe.algorithms.extend(&algorithms)?;
                return Ok(Some(recipe));
            }
            let Some((name, algorithm)) = split_name(rest) else { return Ok(None) };
            algorithms.add_new(algorithm)?;
            rest = name;
        }
    }

    /// The preset of a name, in any case of letters, with or without Quark's `_QCONFIG` and `_DEFAULT` behind.
    pub fn find(name: &str) -> Option<&'static Preset> {
        let upper = name.trim().to_ascii_uppercase().replace('-', "_");
        let short = upper.strip_suffix("_QCONFIG").unwrap_or(&upper);
        PRESETS.iter().find(|p| p.name == short || p.aliases.contains(&short))
    }
}

const fn preset(
    name: &'static str,
    aliases: &'static [&'static str],
    about: &'static str,
    make: fn() -> Recipe,
) -> Preset {
    Preset { name, aliases, about, make }
}

/// Every preset.
pub const PRESETS: &[Preset] = &[
    preset(
        "A8W8",
        &["INT8"],
        "int8 activations (99.999th percentile) and weights, symmetric: CPUs, GPUs, NPUs",
        || symmetric(Element::Int8, ObserverRef::PERCENTILE, RuleSet::Standard),
    ),
    preset("A16W8", &[], "int16 activations, int8 weights, symmetric: where 8 bits of activations are too few", || {
        Recipe {
            align: Align { concat: true, elementwise: true, ..Align::default() },
            ..symmetric(Element::Int16, ObserverRef::PERCENTILE, RuleSet::Extended)
        }
    }),
    preset("A16W16", &["INT16"], "int16 activations and weights, symmetric", || Recipe {
        weight: weights(Element::Int16, true),
        ..symmetric(Element::Int16, ObserverRef::PERCENTILE, RuleSet::Extended)
    }),
    preset("XINT8", &[], "int8 with power-of-two scales, within the shift limits of AMD NPUs", || Recipe {
        rules: RuleSet::Extended,
        npu: true,
        align: Align { concat: true, pool: true, pad: true, slice: true, elementwise: false },
        ..power_of_two()
    }),
    preset("VINT8", &[], "int8 with power-of-two scales, for the vector engines of Versal devices", || Recipe {
        selection: Selection { all_op_types: true, ..Selection::default() },
        ..power_of_two()
    }),
    preset("S8S8_AAWS", &[], "int8 asymmetric activations (99.9999th percentile), int8 symmetric weights", || Recipe {
        percentile: FINE_PERCENTILE,
        ..asymmetric(Element::Int8, weights(Element::Int8, true))
    }),
    preset(
        "U8S8_AAWS",
        &[],
        "uint8 asymmetric activations, int8 symmetric weights: ONNX Runtime's fast kernels on x86",
        || asymmetric(Element::UInt8, weights(Element::Int8, true)),
    ),
    preset("U8U8_AAWA", &[], "uint8 asymmetric activations and weights", || {
        asymmetric(Element::UInt8, weights(Element::UInt8, false))
    }),
    preset("S16S8_ASWS", &["S16S8"], "int16 symmetric activations, int8 symmetric weights", || {
        symmetric(Element::Int16, ObserverRef::PERCENTILE, RuleSet::Extended)
    }),
    preset("U16S8_AAWS", &["U16S8"], "uint16 asymmetric activations, int8 symmetric weights", || Recipe {
        rules: RuleSet::Extended,
        drop_activations: false,
        ..asymmetric(Element::UInt16, weights(Element::Int8, true))
    }),
    preset("INT8_CNN_DEFAULT", &["INT8_CNN"], "uint8 activations by minimum and maximum, int8 weights", || {
        with_method(asymmetric(Element::UInt8, weights(Element::Int8, true)), ObserverRef::MIN_MAX)
    }),
    preset("INT16_CNN_DEFAULT", &["INT16_CNN"], "uint16 activations by minimum and maximum, int16 weights", || {
        let recipe = asymmetric(Element::UInt16, weights(Element::Int16, true));
        with_method(Recipe { rules: RuleSet::Extended, drop_activations: false, ..recipe }, ObserverRef::MIN_MAX)
    }),
    preset(
        "INT8_TRANSFORMER_DEFAULT",
        &["INT8_TRANSFORMER"],
        "products only: uint8 activations (moving average), int8 weights",
        || products(Element::UInt8, Element::Int8),
    ),
    preset(
        "INT16_TRANSFORMER_DEFAULT",
        &["INT16_TRANSFORMER"],
        "products only: uint16 activations (moving average), int16 weights",
        || products(Element::UInt16, Element::Int16),
    ),
    preset("INT8_CNN_ACCURATE", &[], "uint8 activations (99.9999th percentile), int8 weights with AdaRound", || {
        accurate(asymmetric(Element::UInt8, weights(Element::Int8, true)))
    }),
    preset("INT16_CNN_ACCURATE", &[], "uint16 activations (99.9999th percentile), int16 weights with AdaRound", || {
        let recipe = asymmetric(Element::UInt16, weights(Element::Int16, true));
        accurate(Recipe { rules: RuleSet::Extended, drop_activations: false, ..recipe })
    }),
    preset(
        "INT8_TRANSFORMER_ACCURATE",
        &[],
        "products only: uint8 activations (99.9999th percentile), int8 weights with AdaRound",
        || accurate(products(Element::UInt8, Element::Int8)),
    ),
    preset(
        "INT16_TRANSFORMER_ACCURATE",
        &[],
        "products only: uint16 activations (99.9999th percentile), int16 weights with AdaRound",
        || accurate(products(Element::UInt16, Element::Int16)),
    ),
    preset("A8W4", &["W4"], "int4 weights per channel, int8 activations by percentile", || Recipe {
        weight: TensorScheme { per_channel: true, method: ObserverRef::MSE, ..weights(Element::Int4, true) },
        ..symmetric(Element::Int8, ObserverRef::PERCENTILE, RuleSet::Standard)
    }),
    preset("FP8", &["FP8_E4M3"], "fp8 e4m3 activations and weights, symmetric; opset 19", || Recipe {
        weight: weights(Element::Float8E4M3, true),
        bias: BiasKind::Float,
        ..symmetric(Element::Float8E4M3, ObserverRef::MIN_MAX, RuleSet::Standard)
    }),
    preset("FP16", &[], "activations and weights rounded to float16", || casts(Element::Float16)),
    preset("BF16", &[], "activations and weights rounded to bfloat16", || casts(Element::BFloat16)),
    preset("FP16_MODEL", &["FLOAT16"], "the whole model converted to float16: half the size, no calibration", || {
        converted(FloatType::Float16)
    }),
    preset("BF16_MODEL", &["BFLOAT16"], "the whole model converted to bfloat16: half the size, no calibration", || {
        converted(FloatType::BFloat16)
    }),
    preset(
        "BFP16",
        &[],
        "8 values share an exponent, 8 bits each, halves rounded away from zero; needs Quark's operators",
        || Recipe { block_rounding: 0, ..blocks(Block::Bfp16) },
    ),
    preset(
        "MX4",
        &[],
        "16 values share an exponent, pairs a shift, 4 bits on average; needs Quark's operators",
        || blocks(Block::Mx4),
    ),
    preset(
        "MX6",
        &[],
        "16 values share an exponent, pairs a shift, 6 bits on average; needs Quark's operators",
        || blocks(Block::Mx6),
    ),
    preset(
        "MX9",
        &[],
        "16 values share an exponent, pairs a shift, 9 bits on average; needs Quark's operators",
        || blocks(Block::Mx9),
    ),
    preset("MXFP4E2M1", &["MXFP4"], "OCP MX blocks of 32 fp4 values; needs Quark's operators", || {
        blocks(Block::MxFp4E2M1)
    }),
    preset("MXFP6E2M3", &[], "OCP MX blocks of 32 fp6 e2m3 values; needs Quark's operators", || {
        blocks(Block::MxFp6E2M3)
    }),
    preset("MXFP6E3M2", &["MXFP6"], "OCP MX blocks of 32 fp6 e3m2 values; needs Quark's operators", || {
        blocks(Block::MxFp6E3M2)
    }),
    preset("MXFP8E4M3", &["MXFP8"], "OCP MX blocks of 32 fp8 e4m3 values; needs Quark's operators", || {
        blocks(Block::MxFp8E4M3)
    }),
    preset("MXFP8E5M2", &[], "OCP MX blocks of 32 fp8 e5m2 values; needs Quark's operators", || {
        blocks(Block::MxFp8E5M2)
    }),
    preset("MXINT8", &[], "OCP MX blocks of 32 int8 values; needs Quark's operators", || blocks(Block::MxInt8)),
    preset("BF16_BFP16", &[], "bfloat16 activations, BFP16 weights; needs Quark's operators", || Recipe {
        weight: block_scheme(Block::Bfp16),
        ..casts(Element::BFloat16)
    }),
    preset("BF16_MXINT8", &[], "bfloat16 activations, MXINT8 weights; needs Quark's operators", || Recipe {
        weight: block_scheme(Block::MxInt8),
        ..casts(Element::BFloat16)
    }),
    preset(
        "S16S16_MIXED_S8S8",
        &[],
        "int8 for what convolutions and products read, int16 for the rest (99.9999th percentile)",
        || {
            let activation =
                TensorScheme { symmetric: false, method: ObserverRef::PERCENTILE, ..weights(Element::Int8, true) };
            let products = Products { activation, weight: weights(Element::Int8, true) };
            let recipe = asymmetric(Element::Int16, weights(Element::Int16, true));
            Recipe {
                products: Some(products),
                bias: BiasKind::LikeWeight,
                rules: RuleSet::Extended,
                drop_activations: false,
                percentile: FINE_PERCENTILE,
                ..recipe
            }
        },
    ),
    preset(
        "BF16_MIXED_BFP16",
        &[],
        "BFP16 for what convolutions and products read, bfloat16 for the rest; needs Quark's operators",
        || mixed_blocks(Block::Bfp16),
    ),
    preset(
        "BF16_MIXED_MXINT8",
        &[],
        "MXINT8 for what convolutions and products read, bfloat16 for the rest; needs Quark's operators",
        || mixed_blocks(Block::MxInt8),
    ),
    preset("MX9_INT8", &[], "MX9 activations, int8 weights; needs Quark's operators", || Recipe {
        weight: weights(Element::Int8, true),
        ..blocks(Block::Mx9)
    }),
    preset(
        "UINT8_DYNAMIC_QUANT",
        &["DYNAMIC"],
        "uint8 weights of MatMul, Gemm and Conv; activations are quantized as they come: no data needed",
        || Recipe {
            layout: Layout::Dynamic,
            bias: BiasKind::Float,
            ..asymmetric(Element::UInt8, weights(Element::UInt8, false))
        },
    ),
    preset(
        "INT8_DYNAMIC_QUANT",
        &[],
        "the same with int8 weights, symmetric, one scale for each output channel: no data needed",
        || Recipe {
            layout: Layout::Dynamic,
            bias: BiasKind::Float,
            ..asymmetric(Element::UInt8, TensorScheme { per_channel: true, ..weights(Element::Int8, true) })
        },
    ),
    preset(
        "MATMUL_NBITS",
        &["W4_WEIGHT_ONLY"],
        "int4 weights of MatMul in blocks of 128, float activations: no data needed",
        || Recipe {
            activation: None,
            weight: weights(Element::Int4, true),
            bias: BiasKind::Float,
            rules: RuleSet::Products,
            layout: Layout::MatMulNBits { bits: 4, block: 128, accuracy: 1 },
            ..symmetric(Element::Int8, ObserverRef::MIN_MAX, RuleSet::Products)
        },
    ),
    preset("WEIGHTS_INT8", &["W8_WEIGHT_ONLY"], "int8 weights per channel, float activations: no data needed", || {
        Recipe {
            activation: None,
            weight: TensorScheme { per_channel: true, ..weights(Element::Int8, true) },
            bias: BiasKind::Float,
            ..symmetric(Element::Int8, ObserverRef::MIN_MAX, RuleSet::Standard)
        }
    }),
];

/// Percent of the values inside the range, where Quark's presets ask for one more digit.
const FINE_PERCENTILE: f64 = 99.9999;

fn weights(element: Element, symmetric: bool) -> TensorScheme {
    TensorScheme {
        element,
        symmetric,
        scale: ScaleKind::Float,
        method: ObserverRef::MIN_MAX,
        per_channel: false,
        reduce_range: false,
        full_range: false,
    }
}

fn symmetric(activation: Element, method: ObserverRef, rules: RuleSet) -> Recipe {
    Recipe {
        activation: Some(TensorScheme { method, ..weights(activation, true) }),
        weight: weights(Element::Int8, true),
        products: None,
        bias: BiasKind::Int32,
        rules,
        selection: Selection::default(),
        overrides: Vec::new(),
        form: Form::Standard,
        layout: Layout::Qdq,
        boundary: Boundary::Pairs,
        align: Align::default(),
        drop_activations: false,
        npu: false,
        percentile: DEFAULT_PERCENTILE,
        algorithms: Algorithms::default(),
        block_rounding: 2,
        ranges: None,
        notes: Vec::new(),
    }
}

fn asymmetric(activation: Element, weight: TensorScheme) -> Recipe {
    let recipe = symmetric(activation, ObserverRef::PERCENTILE, RuleSet::Standard);
    let activation = recipe.activation.map(|a| TensorScheme { symmetric: false, ..a });
    Recipe { activation, weight, drop_activations: true, ..recipe }
}

fn with_method(recipe: Recipe, method: ObserverRef) -> Recipe {
    Recipe { activation: recipe.activation.map(|a| TensorScheme { method, ..a }), ..recipe }
}

fn products(activation: Element, weight: Element) -> Recipe {
    let recipe = Recipe { rules: RuleSet::Products, ..asymmetric(activation, weights(weight, true)) };
    with_method(recipe, ObserverRef::MOVING_AVERAGE)
}

/// Quark's presets for accuracy: a finer percentile, and codes that AdaRound chooses.
fn accurate(recipe: Recipe) -> Recipe {
    let adaround = algorithm_settings::named("adaround").map(|row| row.default.clone());
    Recipe {
        percentile: FINE_PERCENTILE,
        algorithms: Algorithms::of_one(adaround),
        ..with_method(recipe, ObserverRef::PERCENTILE)
    }
}

fn power_of_two() -> Recipe {
    let scheme =
        TensorScheme { scale: ScaleKind::PowerOfTwo, method: ObserverRef::MSE, ..weights(Element::Int8, true) };
    Recipe {
        activation: Some(scheme),
        weight: scheme,
        bias: BiasKind::LikeWeight,
        ..symmetric(Element::Int8, ObserverRef::MSE, RuleSet::Standard)
    }
}

fn casts(element: Element) -> Recipe {
    Recipe {
        weight: weights(element, true),
        bias: BiasKind::LikeWeight,
        ..symmetric(element, ObserverRef::MIN_MAX, RuleSet::Extended)
    }
}

fn converted(to: FloatType) -> Recipe {
    let element = if to == FloatType::Float16 { Element::Float16 } else { Element::BFloat16 };
    Recipe { layout: Layout::Float(to), ..casts(element) }
}

fn block_scheme(block: Block) -> TensorScheme {
    weights(Element::Block(block), true)
}

fn blocks(block: Block) -> Recipe {
    Recipe { form: Form::Quark, weight: block_scheme(block), ..casts(Element::Block(block)) }
}

fn mixed_blocks(block: Block) -> Recipe {
    let products = Products { activation: block_scheme(block), weight: block_scheme(block) };
    Recipe { products: Some(products), bias: BiasKind::Float, ..casts(Element::BFloat16) }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn preset_names_are_unique_and_found() {
        let names: Vec<&str> = PRESETS.iter().flat_map(|p| p.aliases.iter().copied().chain([p.name])).collect();
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        assert!(names.iter().all(|name| Preset::find(&name.to_lowercase()).is_some()));
        assert_eq!(Preset::find("XINT8_QCONFIG").map(|p| p.name), Some("XINT8"));
        assert!(Preset::find("A7W7").is_none());
    }

    #[test]
    fn algorithm_suffixes_follow_the_preset_name_in_any_order() {
        let algorithms = |name: &str| Preset::resolve(name).unwrap().map(|recipe| recipe.algorithms.to_string());
        assert_eq!(algorithms("xint8_cle").as_deref(), Some("cle"));
        assert_eq!(algorithms("A8W8_BIAS_CORRECTION_CLE_QCONFIG").as_deref(), Some("cle,bias-correction"));
        assert_eq!(algorithms("A8W8_CLE_CLEE"), None);
    }

    #[test]
    fn presets_for_accuracy_have_adaround() {
        for name in ["INT8_CNN", "INT16_CNN", "INT8_TRANSFORMER", "INT16_TRANSFORMER"] {
            let recipe = Preset::find(&format!("{name}_ACCURATE")).unwrap().recipe();
            assert_eq!((recipe.algorithms.to_string().as_str(), recipe.percentile), ("adaround", 99.9999), "{name}");
            assert!(
                recipe.activation.unwrap().method == ObserverRef::PERCENTILE && !recipe.weight.per_channel,
                "{name}"
            );
        }
    }

    #[test]
    fn preset_recipes_are_consistent() {
        for preset in PRESETS {
            let recipe = preset.recipe();
            let activations_are_integers = recipe.activation.is_none_or(|a| a.element.is_integer());
            assert!(!recipe.npu || recipe.weight.scale == ScaleKind::PowerOfTwo, "{}", preset.name);
            assert!(!recipe.drop_activations || activations_are_integers, "{}", preset.name);
            assert!(!recipe.weight.per_channel || recipe.weight.element.is_integer(), "{}", preset.name);
        }
    }
}
