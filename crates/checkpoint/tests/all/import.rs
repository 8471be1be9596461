//! Reading quantized checkpoints: the inverse of packing, our own exports against simulated ones, and hostile files.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, plan, quantize, scheme, write};
use kvant_checkpoint::recipe::Settings;
use kvant_container::{Checkpoint, Diagnostic, Dtype};
use kvant_formats::format::compressed_tensors;
use kvant_formats::format::quark::{self, WeightFormat};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::import;
use kvant_forward::evaluation::{Options, evaluate};
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::pack::NibbleOrder;
use kvant_numeric::simd::Isa;
use kvant_quant::scheme::{LayerScheme, PRESETS, TensorScheme};
use kvant_quant::{Codes, QuantParts, QuantTensor};
use kvant_weights::parts::{LayerSpec, Packer};
use kvant_weights::weight::Stored;
use kvant_weights::weight::{Band, WeightMatrix};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const ROWS: usize = 40;
const COLUMNS: usize = 96;

/// A generator of numbers below a bound.
fn numbers(seed: u32) -> impl FnMut(u32) -> u32 {
    let mut state = seed;
    move |bound| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % bound
    }
}

/// A tensor of random codes, scales and zero points.
fn random(scheme: TensorScheme) -> QuantTensor {
    let mut next = numbers(scheme.to_string().len() as u32);
    let (least, bits, signed) = match scheme {
        TensorScheme::Int(int) | TensorScheme::Progressive { second: int, .. } => {
            (int.format.min(), int.format.bits(), int.format.is_signed())
        }
        _ => (0, scheme.format().bits(), false),
    };
    let mut code = || (i64::from(next(1 << bits)) + least) as u8;
    // NaN codes of fp8 are nobody's weights.
    let mut code = || std::iter::repeat_with(&mut code).find(|code| bits < 8 || signed || code & 0x7F < 0x7C).unwrap();
    let codes = (0..ROWS * COLUMNS).map(|_| code()).collect();
    let (rows, columns) = scheme.granularity().unwrap().scale_shape(ROWS, COLUMNS).unwrap();
    let text = scheme.to_string();
    let scale = |i: usize| match () {
        () if text.contains("e8m0") || text.contains("e5m3") => 2.0f32.powi(i as i32 % 17 - 9),
        () if text.contains("e4m3:f32") => (1 + i % 15) as f32 * 0.5,
        () => (1 + i % 100) as f32 * 0.015_625,
    };
    let has_points = text.contains(":zp");
    let points = (0..rows * columns).filter(|_| has_points);
    let zero_points = points.map(|i| (least + i as i64 % (1 << bits)) as f64).collect();
    let two = text.contains("e4m3:f32") || text.contains('/');
    let scales = (0..rows * columns).map(scale).collect();
    let parts = QuantParts { codes: Codes::Bytes(codes), scales, zero_points, global_scale: two.then_some(0.125) };
    QuantTensor::new(scheme, ROWS, COLUMNS, parts).unwrap()
}

/// The tensor as an export writes it.
fn exported(export: OutputFormat, order: NibbleOrder, tensor: &QuantTensor) -> Vec<Tensor> {
    let scheme = LayerScheme::weight_only(tensor.scheme());
    let layer = LayerSpec {
        name: "m.0.up",
        rows: ROWS,
        columns: COLUMNS,
        scheme,
        source: FloatDType::F32,
        order,
        fused: None,
        act_order: false,
        input_rotation: None,
    };
    let whole = Band { rows: 0..ROWS, columns: 0..COLUMNS };
    let parts = export.parts(&layer).unwrap();
    let packed = parts.into_iter().map(|part| {
        let mut packer = Packer::default();
        let bytes =
            packer.pack(Isa::best(), &part, tensor.into(), &whole, &(ROWS, COLUMNS).into()).unwrap().bytes.into_owned();
        (part.name, part.dtype, part.shape, bytes)
    });
    packed.collect()
}

fn config(export: OutputFormat, order: NibbleOrder, scheme: TensorScheme) -> Value {
    let layers = [("m.0.up", LayerScheme::weight_only(scheme))];
    let quantization = if export == OutputFormat::QUARK {
        quark::quantization_config(&layers, &[], order, WeightFormat::Real)
    } else {
        compressed_tensors::quantization_config(&layers, &[], &[], false)
    };
    json!({"model_type": "llama", "quantization_config": quantization.unwrap()})
}

/// The only matrix of a checkpoint.
fn only_matrix(checkpoint: &Checkpoint) -> WeightMatrix<'_> {
    let tensors = import::open(checkpoint).unwrap_or_else(|e| panic!("{e}")).into_tensors();
    let [tensor] = tensors.as_slice() else { panic!("{tensors:?}") };
    let Stored::Packed(matrices) = &tensor.stored else { panic!("{tensor:?}") };
    WeightMatrix::packed(Arc::clone(&matrices[0]))
}

fn read(matrix: &WeightMatrix<'_>, isa: Isa, band: &Band) -> Vec<f32> {
    let mut values = Vec::new();
    matrix.read(isa, band, &mut values);
    values
}

fn bands() -> [Band; 6] {
    let band = |rows, columns| Band { rows, columns };
    [
        band(0..ROWS, 0..COLUMNS),
        band(5..6, 0..COLUMNS),
        band(3..21, 0..COLUMNS),
        band(0..ROWS, 32..64),
        band(7..33, 5..91),
        band(39..40, 95..96),
    ]
}

/// Packs random codes, and compares what is read with what they stand for.
fn assert_inverse(export: OutputFormat, order: NibbleOrder, text: &str) {
    let tensor = random(text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config(export, order, tensor.scheme()), &exported(export, order, &tensor));
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let (matrix, expected) = (only_matrix(&checkpoint), tensor.dequantize());
    for isa in Isa::available() {
        for band in bands() {
            let columns = |row: usize| band.columns.clone().map(move |column| row * COLUMNS + column);
            let expected: Vec<f32> = band.rows.clone().flat_map(columns).map(|at| expected[at]).collect();
            assert_eq!(read(&matrix, isa, &band), expected, "{export} {text} {band:?} {}", isa.name());
        }
    }
}

#[test]
fn quark_packing_is_read_back_in_every_band() {
    for order in [NibbleOrder::Awq, NibbleOrder::Natural] {
        for text in [
            "int4:g32",
            "uint4:g32:zp",
            "int4:channel",
            "uint4:channel:zp",
            "int4:tensor",
            "int8:tensor",
            "int8:channel",
            "int8:g32",
            "uint8:g48:zp",
            "int3:channel",
            "int2:g32",
            "uint2:g32:zp",
            "e4m3:tensor",
            "e4m3:channel",
            "e5m2:channel",
            "e4m3:b8x32",
            "e2m1:g32:e8m0",
            "e2m3:g32:e8m0",
            "e3m2:g32:e8m0",
            "e2m1:g16:e5m3",
            "e2m1:g16:e4m3:f32",
            "int4:channel:f32/e4m3:tensor:f32",
        ] {
            assert_inverse(OutputFormat::QUARK, order, text);
        }
    }
}

#[test]
fn compressed_tensors_packing_is_read_back_in_every_band() {
    let packed =
        (2..=8).flat_map(|bits| ["g32", "g32:zp", "channel", "channel:zp"].map(|rest| format!("int{bits}:{rest}")));
    let floats = ["e4m3:tensor", "e4m3:channel", "e4m3:b32x32", "e4m3:g32:e8m0", "e2m1:g32:e8m0", "e2m3:g32:e8m0"];
    for text in packed.chain(floats.map(str::to_owned)).chain(["e2m1:g16:e4m3:f32".to_owned()]) {
        assert_inverse(OutputFormat::COMPRESSED_TENSORS, NibbleOrder::Natural, &text);
    }
}

fn nano_llama() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/models/nano_llama")
}

/// Quantizes the small model; `None` where the export has no place for the scheme, or for some of its 28 layers.
fn exported_model(dir: &Path, preset: &str, export: OutputFormat) -> Option<PathBuf> {
    let target = dir.join(format!("{preset}-{export}"));
    let settings = Settings { weights_only: Some(true), format: Some(export), ..scheme(preset) };
    crate::common::plan(&nano_llama(), &settings).ok().filter(|plan| plan.layers().len() == 28)?;
    quantize(&nano_llama(), &target, &settings, 2).unwrap();
    Some(target)
}

/// All values of all 2-D tensors, by name.
fn values(checkpoint: &Checkpoint) -> Vec<(String, Vec<f32>)> {
    let tensors = import::open(checkpoint).unwrap_or_else(|e| panic!("{}: {e}", checkpoint.path().display()));
    let matrices = tensors.into_tensors().into_iter().filter(|tensor| tensor.meta.shape.len() == 2).map(|tensor| {
        let (rows, columns) = (tensor.meta.shape[0], tensor.meta.shape[1]);
        let matrix = match &tensor.stored {
            Stored::Packed(matrices) => WeightMatrix::packed(Arc::clone(&matrices[0])),
            Stored::Plain(view) => {
                let source = if view.dtype() == Dtype::F32 { FloatDType::F32 } else { FloatDType::Bf16 };
                WeightMatrix::plain(view.bytes(), source, (rows, columns), false)
            }
        };
        (tensor.meta.name, read(&matrix, Isa::best(), &Band { rows: 0..rows, columns: 0..columns }))
    });
    let mut matrices: Vec<_> = matrices.collect();
    matrices.sort_by(|(a, _), (b, _)| a.cmp(b));
    matrices
}

/// Our export and the simulated one stand for the same numbers, once rounded to the type of the model.
#[test]
fn every_preset_reads_back_as_simulated() {
    let dir = tempfile::tempdir().unwrap();
    let mut compared = 0;
    for preset in PRESETS.iter().map(|preset| preset.name) {
        let Some(fake) = exported_model(dir.path(), preset, OutputFormat::PlainFloats) else { continue };
        let fake = Checkpoint::open(&fake).unwrap();
        let fake = values(&fake);
        for export in [OutputFormat::QUARK, OutputFormat::COMPRESSED_TENSORS] {
            let Some(packed) = exported_model(dir.path(), preset, export) else { continue };
            let checkpoint = Checkpoint::open(&packed).unwrap();
            for ((name, ours), (other, expected)) in values(&checkpoint).iter().zip(&fake) {
                assert_eq!(name, other);
                // compressed-tensors divides by what our simulation multiplies with.
                let exact = !(export == OutputFormat::COMPRESSED_TENSORS && preset.contains("NVFP4"));
                let wrong = ours.iter().zip(expected).find(|(a, b)| match exact {
                    true => half::bf16::from_f32(**a).to_f32() != **b,
                    false => (*a - *b).abs() > a.abs() * 0.004,
                });
                assert!(wrong.is_none(), "{preset} {export} {name}: {wrong:?}");
            }
            compared += 1;
        }
    }
    assert!(compared > 60, "{compared}");
}

#[test]
fn quantized_models_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut next = numbers(3);
    let tokens: Vec<u32> = (0..256).map(|_| next(2048)).collect();
    let score = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        let decoder = Decoder::open(&checkpoint).unwrap_or_else(|e| panic!("{e}"));
        let found = evaluate(&decoder, None, &Cpu::default(), &tokens, Options::windows_of(64), |_, _| {
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        found.perplexity.ln()
    };
    let float = score(&nano_llama());
    for (preset, export) in [
        ("int4_wo_128", OutputFormat::QUARK),
        ("W8A16", OutputFormat::COMPRESSED_TENSORS),
        ("mxfp4", OutputFormat::QUARK),
    ] {
        let quantized = score(&exported_model(dir.path(), preset, export).unwrap());
        assert!(quantized != float && (quantized / float - 1.0).abs() < 0.1, "{preset}: {quantized} {float}");
    }
}

/// Qwen3-MoE with all experts of a block in one tensor, as transformers holds them.
fn fused_experts() -> (Value, Vec<Tensor>) {
    let config = json!({
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 32, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 64, "norm_topk_prob": true,
        "tie_word_embeddings": false
    });
    let mut tensors: Vec<Tensor> =
        crate::common::llama(Dtype::F32).into_iter().filter(|(name, ..)| !name.contains("mlp")).collect();
    for (name, shape) in [
        ("self_attn.q_norm.weight", vec![32]),
        ("self_attn.k_norm.weight", vec![32]),
        ("mlp.gate.weight", vec![4, 64]),
        ("mlp.experts.gate_up_proj", vec![4, 64, 64]),
        ("mlp.experts.down_proj", vec![4, 64, 32]),
    ] {
        tensors.push(crate::common::weight(&format!("model.layers.0.{name}"), Dtype::F32, &shape));
    }
    (config, tensors)
}

/// The logits of the model `source` of a folder, quantized into it in a format.
fn quantized_logits(dir: &Path, export: OutputFormat) -> Vec<f32> {
    let target = dir.join(export.to_string());
    quantize(&dir.join("source"), &target, &Settings { format: Some(export), ..scheme("int4:g32") }, 1).unwrap();
    let checkpoint = Checkpoint::open(&target).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap_or_else(|e| panic!("{export}: {e}"));
    decoder.logits(&Cpu::default(), &[1, 5, 7, 30, 2, 9], 6).unwrap()
}

#[test]
fn split_experts_run_like_the_fused_tensor() {
    let dir = tempfile::tempdir().unwrap();
    let (config, tensors) = fused_experts();
    let source = dir.path().join("source");
    write(&source, &config, &tensors);
    let logits = |export| quantized_logits(dir.path(), export);
    let fake = logits(OutputFormat::PlainFloats);
    assert_eq!((logits(OutputFormat::QUARK), logits(OutputFormat::COMPRESSED_TENSORS)), (fake.clone(), fake));
}

/// MLX has the experts of a block in one tensor, which must be whole.
#[test]
fn stacked_experts_run_like_separate_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (config, fused) = fused_experts();
    let source = dir.path().join("source");
    let separate = |expert: usize| {
        let of = |layer: &str, shape: &[usize]| {
            crate::common::weight(&format!("model.layers.0.mlp.experts.{expert}.{layer}.weight"), Dtype::F32, shape)
        };
        [of("gate_proj", &[32, 64]), of("up_proj", &[32, 64]), of("down_proj", &[64, 32])]
    };
    let rest = fused.into_iter().filter(|(name, ..)| !name.contains("experts"));
    let tensors: Vec<Tensor> = rest.chain((0..4).flat_map(separate)).collect();
    write(&source, &config, &tensors);
    let logits = |export| quantized_logits(dir.path(), export);
    let mlx = OutputFormat::Checkpoint(FormatHandle::MLX);
    assert_eq!(logits(mlx), logits(OutputFormat::PlainFloats));
    let checkpoint = Checkpoint::open(&dir.path().join("mlx")).unwrap();
    let stacked = checkpoint.tensor("model.layers.0.mlp.switch_mlp.up_proj.weight").unwrap();
    assert_eq!((stacked.dtype(), stacked.shape()), (Dtype::U32, &[4, 32, 8][..]));
    let exclude = vec!["*.experts.2.*".to_owned()];
    let refused =
        plan(&source, &Settings { format: Some(mlx), exclude, ..scheme("int4:g32") }).unwrap_err().to_string();
    assert!(refused.contains("all experts of a block are one tensor"), "{refused}");
}

/// What is wrong with an int4 checkpoint of which one tensor or config.json was changed.
fn refusal(change: impl Fn(&mut Vec<Tensor>, &mut Value)) -> String {
    let tensor = random("int4:g32:zp".parse().unwrap());
    let order = NibbleOrder::Natural;
    let mut tensors = exported(OutputFormat::COMPRESSED_TENSORS, order, &tensor);
    let mut config = config(OutputFormat::COMPRESSED_TENSORS, order, tensor.scheme());
    change(&mut tensors, &mut config);
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &config, &tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let error = import::open(&checkpoint).unwrap_err();
    assert!(error.hint().is_some());
    error.to_string()
}

#[test]
fn hostile_checkpoints_are_refused_naming_the_tensor() {
    let position = |tensors: &[Tensor], end: &str| tensors.iter().position(|(name, ..)| name.ends_with(end)).unwrap();
    for end in ["weight_scale", "weight_zero_point", "weight_shape"] {
        let gone = refusal(|tensors, _| drop(tensors.remove(position(tensors, end))));
        assert!(gone.contains(&format!("m.0.up.{end}")) && gone.contains("missing"), "{gone}");
        let short = refusal(|tensors, _| {
            let at = position(tensors, end);
            let (_, dtype, shape, bytes) = &mut tensors[at];
            (*shape, *bytes) = (vec![1], vec![0; dtype.bitsize() / 8]);
        });
        assert!(short.contains(&format!("m.0.up.{end}")), "{short}");
    }
    for stated in [[ROWS as i64, 1 << 40], [-1, COLUMNS as i64], [ROWS as i64, 97]] {
        let lie = refusal(|tensors, _| {
            let at = position(tensors, "weight_shape");
            tensors[at].3 = stated.map(i64::to_le_bytes).concat();
        });
        assert!(lie.contains("m.0.up.weight"), "{lie}");
    }
    let unsaid = refusal(|_, config| config["quantization_config"]["ignore"] = json!(["re:.*up"]));
    assert!(unsaid.contains("m.0.up"), "{unsaid}");
    let foreign = refusal(|_, config| config["quantization_config"]["quant_method"] = json!("other"));
    assert!(foreign.contains("`other`"), "{foreign}");
}

/// mlx-lm would not load these.
#[test]
fn mlx_layers_are_those_that_config_states() {
    let dir = tempfile::tempdir().unwrap();
    let made = exported_model(dir.path(), "int4:g64", OutputFormat::Checkpoint(FormatHandle::MLX)).unwrap();
    let file = made.join("config.json");
    let original: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let layer = "model.layers.1.mlp.up_proj";
    for (entry, told) in [
        (json!({"bits": 8, "group_size": 64}), "not those of the bits and groups"),
        (json!({"bits": 4, "group_size": 32}), "not those of the bits and groups"),
        (json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}), "states the mode mxfp4"),
        (json!(false), "not quantized"),
    ] {
        let mut config = original.clone();
        config["quantization"][layer] = entry;
        fs::write(&file, config.to_string()).unwrap();
        let checkpoint = Checkpoint::open(&made).unwrap();
        let error = import::open(&checkpoint).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(layer) && error.contains(told), "{error}");
    }
}
