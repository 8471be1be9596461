//! Bit-for-bit agreement with the values that AMD Quark 0.13 computes, for every case whose behaviour there is sound.
//! The files are made by `tests/golden/make_golden.py`; deliberate differences are listed in `docs/reference/differences.md`.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::input;
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::pack::{NibbleOrder, Word, pack_bits, pack_crumbs_first_high, pack_words, packed_len, transpose};
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::fake::fake_quantize;
use kvant_quant::rounding::{Rtn, TensorContext};
use kvant_quant::scheme::{Granularity, TensorScheme};
use serde_json::Value;

struct Case<'a>(&'a Value);

impl Case<'_> {
    fn text(&self, key: &str) -> &str {
        self.0[key].as_str().unwrap_or_default()
    }

    fn id(&self) -> &str {
        self.text("id")
    }

    fn shape(&self) -> (usize, usize) {
        let size = |key: &str| self.0["input"][key].as_u64().unwrap() as usize;
        (size("rows"), size("cols"))
    }

    fn source(&self) -> FloatDType {
        input::source(&self.0["input"]["dtype"])
    }

    /// The spelling of the case's scheme; `None` where Kvant offers no such thing.
    fn scheme(&self) -> Option<TensorScheme> {
        let granularity = self.granularity();
        let format = self.format()?;
        let text = match self.text("kind") {
            "scaled" => format!("{format}:{granularity}{}{}{}", self.scale_type(), self.zero_point(), self.observer()?),
            "blocked" => format!("{format}:{granularity}{}", self.block_scale()?),
            "two_level" => format!("{format}:{granularity}:{}:f32", self.text("scale_type")),
            "progressive" => format!("{format}:{granularity}/e4m3:tensor:f32"),
            _ => return self.unscaled(format),
        };
        Some(text.parse().unwrap_or_else(|e| panic!("{}: {text}: {e}", self.id())))
    }

    fn format(&self) -> Option<&str> {
        Some(match self.text("format") {
            "mx" if self.text("element") == "int8" => "mxint8",
            // The same as the scaled formats of that name.
            "mx" => match self.text("element") {
                "fp4" => "fp4",
                "fp6_e3m2" => "fp6_e3m2",
                _ => "fp8_e4m3",
            },
            other => other,
        })
    }

    fn unscaled(&self, format: &str) -> Option<TensorScheme> {
        let rule = self.text("rule");
        let text = match self.text("format") {
            "mx" if format == "mxint8" && rule != "even" => format!("mxint8:{rule}"),
            "mx" if format == "mxint8" => "mxint8".to_owned(),
            "mx" => format!("{format}:g32:e8m0{}", if rule == "even" { String::new() } else { format!("-{rule}") }),
            other => other.to_owned(),
        };
        text.parse().ok()
    }

    fn granularity(&self) -> String {
        let axis = self.0["axis"].as_i64().unwrap_or(-1);
        match self.text("granularity") {
            "channel" if axis == 0 => "channel".to_owned(),
            "channel" => "channel@1".to_owned(),
            "group" => format!("g{}", self.0["group"].as_i64().unwrap()),
            _ => "tensor".to_owned(),
        }
    }

    fn scale_type(&self) -> &str {
        match self.text("scale_type") {
            "f16" => ":f16",
            "bf16" => ":bf16",
            "f32" => ":f32",
            "pof2" => ":pow2",
            _ => "",
        }
    }

    fn zero_point(&self) -> &str {
        match (self.text("zero_point_type"), self.0["symmetric"].as_bool()) {
            ("float", _) => ":fzp",
            (_, Some(false)) => ":zp",
            _ => "",
        }
    }

    fn observer(&self) -> Option<&str> {
        match self.text("observer") {
            "minmax" | "pof2minmax" => Some(""),
            "pof2minmse" => Some(":mse"),
            "percentile" => Some(":percentile99.99999999"),
            _ => None,
        }
    }

    fn block_scale(&self) -> Option<String> {
        match (self.text("scale_type"), self.text("rule")) {
            ("e8m0", "even") => Some(":e8m0".to_owned()),
            ("e8m0", "diffs") => None,
            ("e8m0", rule) => Some(format!(":e8m0-{rule}")),
            ("e5m3", _) => Some(":e5m3".to_owned()),
            ("e4m3", _) => None,
            // Plain scales of blocks are in the model's type.
            _ => Some(String::new()),
        }
    }

    /// Why a part of the case is not compared though its golden file calls it sound: a row of `docs/reference/differences.md`.
    fn deviates(&self) -> Option<&'static str> {
        let transform = self.0["input"]["transform"].as_str().unwrap_or_default();
        let extreme = transform.starts_with("pow") || transform.starts_with("peaks");
        let mx_float =
            self.text("scale_type") == "e8m0" || self.text("format") == "mx" || self.text("format") == "bfp16";
        match self.text("format") {
            "int32" if self.text("zero_point_type") == "int" && !self.0["symmetric"].as_bool().unwrap_or(true) => {
                Some("adds the zero point in f32")
            }
            "int8" | "uint8" if self.text("observer") == "pof2minmse" && self.text("granularity") == "channel" => {
                Some("searches one exponent for all channels")
            }
            _ if mx_float && extreme => Some("logarithms of subnormal and of huge magnitudes"),
            _ => None,
        }
    }

    /// Codes of asymmetric 8-bit integers are made from weights that were rounded to the model's type after quantization.
    fn requantizes(&self) -> bool {
        let asymmetric = self.0["symmetric"].as_bool() == Some(false);
        asymmetric && self.format().is_some_and(|f| f.ends_with("int8")) && self.source() == FloatDType::Bf16
    }

    fn input(&self) -> Vec<f32> {
        input::values(&self.0["input"])
    }
}

fn hash_of_floats(values: &[f32]) -> String {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    hash(&bytes)
}

fn hash(bytes: &[u8]) -> String {
    format!("{:08x}", crc32fast::hash(bytes))
}

/// What a case expects and what was found, where they differ.
fn differences(case: &Case<'_>, scheme: TensorScheme) -> Vec<String> {
    let (rows, columns) = case.shape();
    let (source, input) = (case.source(), case.input());
    let context = TensorContext::new(source.arithmetic());
    let mut found = Vec::new();
    if let Ok(rtn) = Rtn::new(scheme, context) {
        let tensor = rtn.round(&input, rows, columns).unwrap_or_else(|e| panic!("{}: {e}", case.id()));
        compare_parameters(case, &tensor, &mut found);
        if !case.requantizes() {
            compare_codes(case, &tensor, &mut found);
            compare_packed(case, &tensor, &mut found);
        }
    }
    // Between its two stages the incumbent's simulation rounds to the model's type, its loader does not.
    if case.text("kind") == "progressive" && source != FloatDType::F32 {
        return found;
    }
    let faked = fake_quantize(scheme, context, source, &input, rows, columns).unwrap();
    let rounded: Vec<f32> =
        faked.iter().map(|v| source.arithmetic().round(*v)).map(|v| if v == 0.0 { 0.0 } else { v }).collect();
    let expected = case.0["dequantized"]["crc32"].as_str().unwrap();
    // The incumbent keeps the sign of zeros in some formats only; a zero is a zero.
    let signed: Vec<f32> = faked.iter().map(|v| source.arithmetic().round(*v)).collect();
    if hash_of_floats(&rounded) != expected && hash_of_floats(&signed) != expected {
        found.push(format!("values end in {:?}", &signed[signed.len() - 8..]));
    }
    found
}

fn compare_parameters(case: &Case<'_>, tensor: &QuantTensor, found: &mut Vec<String>) {
    let Some(stages) = case.0["scale"].as_array().filter(|stages| !stages.is_empty()) else {
        return;
    };
    let ours: Vec<Vec<f32>> = match (case.text("kind"), tensor.global_scale()) {
        // The incumbent keeps the effective scale of a block, and that of the tensor.
        ("two_level", Some(g)) => vec![tensor.scales().iter().map(|s| s * g).collect(), vec![g]],
        ("progressive", Some(g)) => vec![vec![g], tensor.scales().to_vec()],
        _ => vec![tensor.scales().to_vec()],
    };
    for (ours, stage) in ours.iter().zip(stages) {
        let expected = input::floats(stage);
        if *ours != expected {
            let at = ours.iter().zip(&expected).position(|(a, b)| a != b);
            found.push(format!("scale {at:?}: {:?} not {:?}", at.map(|i| ours[i]), at.map(|i| expected[i])));
        }
    }
    let expected: Vec<f64> = case.0["zero_point"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
    if !tensor.zero_points().is_empty()
        && expected.len() == tensor.zero_points().len()
        && tensor.zero_points() != expected
    {
        found.push(format!("zero points {:?} not {expected:?}", tensor.zero_points()));
    }
}

fn compare_codes(case: &Case<'_>, tensor: &QuantTensor, found: &mut Vec<String>) {
    let Some(expected) = case.0["codes"]["tail"].as_array() else { return };
    let count = tensor.shape().0 * tensor.shape().1;
    let signed = matches!(tensor.scheme().format(), kvant_numeric::DType::Int(int) if int.is_signed());
    let codes: Vec<i64> = (0..count).map(|i| tensor.codes().integer(i, signed)).collect();
    let expected: Vec<i64> = expected.iter().filter_map(Value::as_i64).collect();
    // Hashes are of 32-bit codes, the last ones are spelled out.
    let bytes: Vec<u8> = codes.iter().flat_map(|c| (*c as i32).to_le_bytes()).collect();
    let tail = &codes[codes.len() - expected.len()..];
    if tail != expected || hash(&bytes) != case.0["codes"]["crc32"].as_str().unwrap() {
        found.push(format!("codes end in {tail:?} not {expected:?}"));
    }
}

/// The codes as the incumbent exports them.
fn compare_packed(case: &Case<'_>, tensor: &QuantTensor, found: &mut Vec<String>) {
    let (Some(expected), Some(codes)) = (case.0["packed"]["crc32"].as_str(), tensor.code_bytes()) else {
        return;
    };
    let packed = packed(tensor, codes);
    if hash(&packed) != expected {
        found.push(format!("{} packed bytes differ", packed.len()));
    }
}

fn packed(tensor: &QuantTensor, codes: &[u8]) -> Vec<u8> {
    let (rows, columns) = tensor.shape();
    let name = tensor.scheme().format().to_string();
    let grouped = matches!(tensor.scheme().granularity(), Some(Granularity::Group { .. }));
    let mut lines = codes.to_vec();
    let width = if grouped && name.contains("int") && name != "int3" {
        transpose(codes, rows, columns, &mut lines);
        rows
    } else {
        columns
    };
    lines.chunks(width).flat_map(|line| packed_line(&name, line)).collect()
}

fn packed_line(format: &str, codes: &[u8]) -> Vec<u8> {
    let stream = |bits| {
        let mut out = vec![0; packed_len(codes.len(), bits)];
        pack_bits(Isa::best(), codes, bits, &mut out);
        out
    };
    match format {
        "int4" | "uint4" => {
            let mut words = vec![Word::default(); codes.len().div_ceil(8)];
            pack_words(NibbleOrder::Awq, codes, &mut words);
            words.into_flattened()
        }
        "int2" => codes.iter().flat_map(|c| i32::from(*c as i8).to_le_bytes()).collect(),
        "uint2" => {
            let mut out = vec![0; codes.len().div_ceil(4)];
            pack_crumbs_first_high(codes, &mut out);
            out
        }
        "int3" => stream(3),
        "e2m1" => stream(4),
        "e2m3" | "e3m2" => stream(6),
        _ => codes.to_vec(),
    }
}

fn check(file: &str, least: usize) {
    let path = format!("{}/../../tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let sound: Vec<Case<'_>> = cases.iter().map(Case).filter(|case| case.0["sound"] == Value::Bool(true)).collect();
    let (mut checked, mut failures) = (0, Vec::new());
    for case in &sound {
        let Some(scheme) = case.scheme().filter(|_| case.deviates().is_none()) else { continue };
        checked += 1;
        let found = differences(case, scheme);
        if !found.is_empty() {
            failures.push(format!("{} as {scheme}: {}", case.id(), found.join("; ")));
        }
    }
    assert!(failures.is_empty(), "{} of {checked} differ:\n{}", failures.len(), failures.join("\n"));
    assert!(checked >= least, "only {checked} of {} sound cases were checked", sound.len());
}

#[test]
fn codes_match_quark_for_160_probes() {
    check("quark_probe.json", 100);
}

#[test]
fn codes_match_quark_for_other_types_groups_axes_and_sizes() {
    check("quark_wide.json", 320);
}

#[test]
fn codes_match_quark_for_zeros_constants_signs_and_extremes() {
    check("quark_edge.json", 500);
}

#[test]
fn overflow_in_the_model_type_stays_finite() {
    for (arithmetic, peak) in
        [(ComputeDType::F16, 65_000.0f32), (ComputeDType::Bf16, 3.0e38), (ComputeDType::F32, 3.0e38)]
    {
        for text in ["uint4:g2:zp", "int8:channel:zp", "int4:g2", "e4m3:channel", "uint8:tensor:fzp"] {
            let rtn = Rtn::new(text.parse().unwrap(), TensorContext::new(arithmetic)).unwrap();
            let restored = rtn.round(&[arithmetic.round(peak), arithmetic.round(-peak)], 1, 2).unwrap().dequantize();
            assert!(
                restored.iter().all(|v| v.is_finite() && v.abs() > peak / 2.0),
                "{text} {arithmetic:?}: {restored:?}"
            );
        }
    }
}
