//! Single tensors against whole runs, and the schemes among one another.

use super::*;
use crate::{CancelToken, Job};
use kvant_container::Checkpoint;
use kvant_gguf::ftype::FTYPES;
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::FloatDType;
use kvant_quant::scheme::PRESETS;
use std::error::Error as StdError;
use std::sync::atomic::AtomicBool;

const ROWS: usize = 256;
const COLUMNS: usize = 256;

/// Numbers of uneven magnitudes, as bytes.
fn numbers(count: usize) -> Vec<u8> {
    let value = |i: usize| (((i * 2_654_435_769) >> 7) % 1999) as f32 / 500.0 - 1.9 + ((i % 97) as f32 / 20.0).sin();
    (0..count).flat_map(|i| value(i).to_le_bytes()).collect()
}

fn values(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn signal_to_noise(values: &[f32], restored: &[f32]) -> f64 {
    let power = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let noise = power(&mut values.iter().zip(restored).map(|(v, r)| v - r));
    10.0 * (power(&mut values.iter().copied()) / noise).log10()
}

#[test]
fn every_listed_scheme_quantizes_and_fake_quantization_agrees() -> Result<(), Box<dyn StdError>> {
    let bytes = numbers(ROWS * COLUMNS);
    let matrix = Matrix::new("F32", &bytes, ROWS, COLUMNS)?;
    let names = PRESETS.iter().map(|preset| preset.name).chain(FTYPES.iter().map(|row| row.name));
    for name in names {
        let quantized = QuantizedMatrix::nearest(&matrix, &name.parse()?)?;
        let restored = quantized.dequantize();
        let snr = signal_to_noise(&values(&bytes), &restored);
        assert!(snr > if name.starts_with("TQ") || name.contains('2') { 2.0 } else { 8.0 }, "{name}: {snr}");
        assert_eq!(fake_quantize(&matrix, name, None)?, restored, "{name}");
        let halves = quantized.dequantize_to_half(FloatDType::Bf16);
        let exact = Matrix::new("BF16", &halves, ROWS, COLUMNS)?.values().into_owned();
        assert!(exact.iter().zip(&restored).all(|(half, value)| *half == ComputeDType::Bf16.round(*value)), "{name}");
    }
    Ok(())
}

#[test]
fn found_parameters_when_given_make_the_same_values() -> Result<(), Box<dyn StdError>> {
    let bytes = numbers(ROWS * COLUMNS);
    let halves: Vec<u8> = bytes.as_chunks::<4>().0.iter().flat_map(|value| [value[2], value[3]]).collect();
    let matrix = Matrix::new("F32", &bytes, ROWS, COLUMNS)?;
    let narrow = Matrix::new("BF16", &halves, ROWS, COLUMNS)?;
    for (matrix, scheme) in [
        "int8:tensor",
        "int4:g32",
        "uint4:g64:zp",
        "int8:channel@1",
        "e4m3:channel",
        "e2m1:g32:e8m0",
        "e4m3:b128x128:f32",
        "e4m3:b128x128",
        "e5m2:tensor",
    ]
    .into_iter()
    .flat_map(|scheme| [(&matrix, scheme), (&narrow, scheme)])
    {
        let quantized = QuantizedMatrix::nearest(matrix, &scheme.parse()?)?;
        let tensor = quantized.tensor().ok_or("these schemes have codes")?;
        let zero_points = tensor.zero_points().iter().map(|point| *point as f32).collect();
        let given = StaticParameters { scales: tensor.scales().to_vec(), zero_points };
        assert_eq!(fake_quantize(matrix, scheme, Some(given.clone()))?, quantized.dequantize(), "{scheme}");
        let again = QuantizedMatrix::with_parameters(matrix, &scheme.parse()?, given)?;
        assert_eq!(again.tensor(), quantized.tensor(), "{scheme}");
    }
    let error = fake_quantize(&matrix, "int4:g32", Some(StaticParameters { scales: vec![1.0], zero_points: vec![] }));
    assert!(error.is_err_and(|error| error.message.contains("has 2048 scales")));
    Ok(())
}

#[test]
fn packed_tensors_are_those_that_a_run_writes() -> Result<(), Box<dyn StdError>> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
    let source = Checkpoint::open(model.as_ref())?;
    let directory = tempfile::tempdir()?;
    let layer = "model.layers.1.mlp.up_proj";
    let weight = source.tensor(&format!("{layer}.weight")).ok_or("the model has the layer")?;
    let matrix = Matrix::new(&weight.dtype().to_string(), weight.bytes(), weight.shape()[0], weight.shape()[1])?;
    for (scheme, format) in [
        ("int4:g32", "quark"),
        ("uint4:g32:zp", "awq"),
        ("int4:g32", "gptq"),
        ("int4:g32:zp", "compressed-tensors"),
        ("e2m1:g32:e8m0", "quark"),
        ("e2m1:g16:e4m3:f32", "compressed-tensors"),
        ("e4m3:channel", "compressed-tensors"),
    ] {
        let mut job = Job::new(model);
        job.recipe.scheme = Some(scheme.to_owned());
        job.sinks.formats = vec![format.parse::<kvant_formats::format::FormatHandle>()?.into()];
        let output = directory.path().join(format!("{}-{format}", scheme.replace(':', "-")));
        job.sinks.output = Some(output.clone());
        job.run(&mut (), &CancelToken::new())?;
        let written = Checkpoint::open(&output)?;
        let scheme = scheme.parse::<WeightScheme>()?.for_format(format)?;
        let packed = QuantizedMatrix::nearest(&matrix, &scheme)?.packed(format, layer)?;
        assert!(!packed.is_empty());
        for tensor in packed {
            let expected = written.tensor(&tensor.name).ok_or_else(|| format!("{format}: {}", tensor.name))?;
            assert_eq!((tensor.dtype, &tensor.shape[..]), (expected.dtype(), expected.shape()), "{}", tensor.name);
            assert!(tensor.bytes == expected.bytes(), "{scheme} {format} {}", tensor.name);
        }
    }
    Ok(())
}

#[test]
fn formats_without_a_place_for_a_scheme_are_refused_with_a_remedy() -> Result<(), Box<dyn StdError>> {
    let bytes = numbers(ROWS * COLUMNS);
    let matrix = Matrix::new("F32", &bytes, ROWS, COLUMNS)?;
    for (scheme, format) in
        [("Q4_K", "awq"), ("int4:g32", "gguf"), ("mx6", "quark"), ("e4m3:tensor", "gptq"), ("int4:g32", "awk")]
    {
        let error = QuantizedMatrix::nearest(&matrix, &scheme.parse()?)?.packed(format, "").err().ok_or(scheme)?;
        assert!(error.hint.is_some(), "{scheme} {format}: {error}");
    }
    Ok(())
}

#[test]
fn algorithms_lower_the_error_of_outputs() -> Result<(), Box<dyn StdError>> {
    let (tokens, never) = (512, AtomicBool::new(false));
    let bytes = numbers(ROWS * COLUMNS);
    let matrix = Matrix::new("F32", &bytes, ROWS, COLUMNS)?;
    // Inputs that are alike, so that one column can make up for another.
    let input =
        |i: usize| ((i / COLUMNS % 7) as f32 + 1.0) * ((i % COLUMNS) as f32 / 40.0).cos() + (i as f32 * 0.7).sin();
    let inputs: Vec<u8> = (0..tokens * COLUMNS).flat_map(|i| input(i).to_le_bytes()).collect();
    let mut sums = InputSums::new(COLUMNS, false);
    sums.add(&Matrix::new("F32", &inputs, tokens, COLUMNS)?, None)?;
    let hessian = sums.matrix();

    let loss = |restored: &[f32]| {
        let errors: Vec<f32> = values(&bytes).iter().zip(restored).map(|(value, restored)| value - restored).collect();
        let of_row = |row: &[f32]| {
            let terms = hessian
                .chunks(COLUMNS)
                .zip(row)
                .map(|(line, e)| f64::from(*e) * line.iter().zip(row).map(|(h, e)| f64::from(h * e)).sum::<f64>());
            terms.sum::<f64>()
        };
        errors.chunks(COLUMNS).map(of_row).sum::<f64>()
    };
    let scheme: WeightScheme = "int4:g64".parse()?;
    let nearest = loss(&QuantizedMatrix::nearest(&matrix, &scheme)?.dequantize());
    let again = InputSums::of_matrices(COLUMNS, &hessian, None)?;
    for sums in [&sums, &again] {
        let rounded = round(&matrix, &scheme, "gptq:damping=0.02", Some(sums), &never)?;
        assert!(loss(&rounded.matrix.dequantize()) < 0.7 * nearest);
    }
    let error = round(&matrix, &scheme, "gptaq", Some(&sums), &never).err().ok_or("it needs the mismatch")?;
    assert!(error.message.contains("inputs of the float model"), "{error}");
    assert!(
        round(&matrix, &scheme, "gptq", None, &never).is_err() && round(&matrix, &scheme, "awq", None, &never).is_err()
    );
    Ok(())
}

#[test]
fn observers_find_the_parameters_of_static_activations() -> Result<(), Box<dyn StdError>> {
    let bytes: Vec<u8> = [0.1f32, -25.5, 3.0, 12.75].iter().flat_map(|value| value.to_le_bytes()).collect();
    let batch = Matrix::new("F32", &bytes, 2, 2)?;
    let mut observer = TensorObserver::new("int8:tensor")?;
    assert!(observer.parameters().is_err());
    observer.update(&batch);
    let found = observer.parameters()?;
    assert_eq!(found.scales, [0.2]);
    let restored = fake_quantize(&batch, "int8:tensor!static", Some(found))?;
    assert_eq!(restored[2], 3.0);
    assert!(fake_quantize(&batch, "int8:tensor!static", None).is_err_and(|error| error.hint.is_some()));
    assert_eq!(fake_quantize(&batch, "e4m3:channel!dynamic", None)?.len(), 4);
    assert!(TensorObserver::new("mx6").is_err());
    Ok(())
}

#[test]
fn graph_observers_find_the_parameters_of_the_onnx_flow() -> Result<(), Box<dyn StdError>> {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let scheme = GraphScheme::new("uint8", false, ScaleKind::Float, "minmax")?;
    let mut observer = scheme.observer();
    observer.update(&Matrix::new("F32", &bytes(&[f32::NAN]), 1, 1)?);
    assert_eq!(observer.parameters(), None);
    observer.update(&Matrix::new("F32", &bytes(&[-1.0, 2.0]), 1, 2)?);
    let before = observer.clone();
    observer.update(&Matrix::new("F32", &bytes(&[0.5, 4.1]), 2, 1)?);
    assert_eq!(observer.parameters(), Some(GraphAffine { scale: 5.1 / 255.0, zero_point: 50 }));
    assert_eq!(before.parameters(), Some(scheme.range_parameters(-1.0, 2.0)));

    // A symmetric int8 scale spans 254 steps; the least error is searched for among powers of two.
    let weight = bytes(&[1.0, -0.5, 0.25, -12.7]);
    let weight = Matrix::new("F32", &weight, 2, 2)?;
    let scales = |kind, observer| -> Result<Vec<f32>, Error> {
        let found = GraphScheme::new("int8", true, kind, observer)?.row_parameters(&weight);
        Ok(found.iter().map(|affine| affine.scale).collect())
    };
    assert_eq!(scales(ScaleKind::Float, "minmax")?, [1.0 / 127.0, 0.1]);
    assert!(scales(ScaleKind::PowerOfTwo, "mse")?.iter().all(|scale| scale.log2().fract() == 0.0));
    assert!(GraphScheme::new("int7", true, ScaleKind::Float, "minmax").is_err_and(|error| error.hint.is_some()));
    assert!(GraphScheme::new("int8", true, ScaleKind::Float, "max").is_err_and(|error| error.hint.is_some()));
    let float = GraphScheme::new("bfloat16", true, ScaleKind::Float, "minmax");
    assert!(float.is_err_and(|error| error.kind == ErrorKind::Unsupported));
    Ok(())
}

#[test]
fn biases_beyond_int32_raise_scales_or_get_wider_ones() -> Result<(), Box<dyn StdError>> {
    let bytes: Vec<u8> = [3.0f32, 0.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let bias = Matrix::new("F32", &bytes, 1, 2)?;
    let of = |scale: f32, reads_bytes, has_power_of_two_scales| {
        let weights = [GraphAffine { scale, zero_point: 0 }; 2];
        GraphProduct { input: 1e-3, weights: &weights, reads_bytes, has_power_of_two_scales }.scales(&bias)
    };
    let plain = of(0.5, true, false);
    assert_eq!(plain, ProductScales { weights: vec![0.5; 2], bias: vec![5e-4; 2] });
    let raised = of(1e-9, true, false);
    assert!(raised.weights[0] > 1e-6 && raised.weights[1] == 1e-9 && 3.0 / raised.bias[0] < i32::MAX as f32);
    assert_eq!(of(1e-9, true, true).weights[0].log2().fract(), 0.0);
    let wide = of(1e-9, false, false);
    assert_eq!((wide.weights, wide.bias[0]), (vec![1e-9; 2], 3.0 / 32767.0));
    Ok(())
}

#[test]
fn half_precision_and_fp8_numbers_are_read_as_they_are() -> Result<(), Box<dyn StdError>> {
    let halves: Vec<u8> = (0..64u16).flat_map(|i| (0x3f80 + i).to_le_bytes()).collect();
    let matrix = Matrix::new("BF16", &halves, 1, 64)?;
    assert_eq!(matrix.dtype(), FloatDType::Bf16);
    assert_eq!(matrix.values()[1], 1.007_812_5);
    assert_eq!(Matrix::new("F8_E4M3", &[0x38, 0xb8], 1, 2)?.values().as_ref(), [1.0, -1.0]);
    assert!(Matrix::new("I64", &halves, 1, 16).is_err() && Matrix::new("F32", &halves, 1, 64).is_err());
    Ok(())
}

#[test]
fn vectorized_integers_equal_their_definition() -> Result<(), Box<dyn StdError>> {
    use kvant_quant::parameters::{Affine, dequantize, quantize};
    let special = [0.5, -0.5, 1.5, 1e30, -1e30, 127.5, -128.5, 0.0];
    let values: Vec<f32> = values(&numbers(64 * 8)).into_iter().chain(special).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let matrix = Matrix::new("F32", &bytes, 1, values.len())?;
    for (scheme, zero_point) in
        [("int8:tensor", 0.0), ("uint8:tensor:zp", 117.0), ("int4:tensor", 0.0), ("int16:tensor", 0.0)]
    {
        let WeightScheme::Layer(layer) = scheme.parse()? else { return Err("a layer".into()) };
        let kvant_quant::scheme::TensorScheme::Int(int) = layer.weight else { return Err("integers".into()) };
        for scale in [1.0f32, 0.037, 1e-7] {
            let given = StaticParameters { scales: vec![scale], zero_points: vec![zero_point] };
            let affine = Affine { scale, zero_point: f64::from(zero_point) };
            let defined =
                |value: &f32| dequantize(quantize(int.format, *value, 1.0 / scale, affine.zero_point), affine);
            let expected: Vec<u32> = values.iter().map(defined).map(|value| (value + 0.0).to_bits()).collect();
            let made = fake_quantize(&matrix, scheme, Some(given))?;
            assert_eq!(
                made.iter().map(|value| (value + 0.0).to_bits()).collect::<Vec<_>>(),
                expected,
                "{scheme} {scale}"
            );
        }
    }
    Ok(())
}

#[test]
fn smoothing_follows_the_formula_and_searches_lower_the_loss() -> Result<(), Box<dyn StdError>> {
    const FEATURES: usize = 64;
    let weight = numbers(32 * FEATURES);
    let matrix = Matrix::new("F32", &weight, 32, FEATURES)?;
    let inputs: Vec<f32> = values(&numbers(2000 * FEATURES))
        .into_iter()
        .enumerate()
        .map(|(i, value)| value * if i % FEATURES == 3 { 40.0 } else { 1.0 })
        .collect();
    let bytes: Vec<u8> = inputs.iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut statistics = InputStatistics::new(FEATURES);
    for part in bytes.chunks(4 * 77 * FEATURES) {
        statistics.add(&Matrix::new("F32", part, part.len() / 4 / FEATURES, FEATURES)?)?;
    }
    let scheme = layer_scheme("int3:g32")?;
    let cancelled = AtomicBool::new(false);
    let weights = [matrix.clone()];
    let pair = SmoothingPair { weights: &weights, scheme: &scheme, inputs: &statistics, cancelled: &cancelled };

    let greatest = |column: usize, rows: &[f32]| {
        rows.iter().skip(column).step_by(FEATURES).fold(0.0f32, |greatest, value| greatest.max(value.abs()))
    };
    let smooth = smoothing_scales(pair, "smoothquant")?.ok_or("scales")?;
    for (column, scale) in smooth.iter().enumerate() {
        let expected = (greatest(column, &inputs) / greatest(column, &values(&weight))).sqrt();
        assert!((scale / expected - 1.0).abs() < 1e-5, "{column}: {scale}, {expected}");
    }
    let awq = smoothing_scales(pair, "awq")?.ok_or("scales")?;
    assert!(awq[3] > 2.0 * awq[4], "the weight of the largest input is scaled up");
    assert!(clipped(&matrix, &scheme, &statistics, "awq:clip=off")?.is_none());
    let within = clipped(&matrix, &scheme, &statistics, "awq")?.ok_or("values")?;
    let bounds: Vec<f32> = (0..FEATURES).map(|column| greatest(column, &values(&weight))).collect();
    assert!(within.iter().enumerate().all(|(i, value)| value.abs() <= bounds[i % FEATURES]));

    assert!(smoothing_scales(pair, "gptq").is_err_and(|error| error.kind == ErrorKind::Usage));
    assert!(statistics.add(&Matrix::new("F32", &weight, FEATURES, 32)?).is_err());
    cancelled.store(true, std::sync::atomic::Ordering::Relaxed);
    let pair = SmoothingPair { weights: &weights, scheme: &scheme, inputs: &statistics, cancelled: &cancelled };
    assert!(smoothing_scales(pair, "awq").is_err_and(|error| error.kind == ErrorKind::Interrupted));
    Ok(())
}

#[test]
fn algorithm_lists_are_taken_apart() -> Result<(), Box<dyn StdError>> {
    let items = algorithms_json("awq:clip=off,gptq:damping=0.05,bc")?;
    let of = |key: &str| items.as_array().into_iter().flatten().map(|item| item[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["awq", "gptq", "bias-correction"]);
    assert_eq!(of("kind"), ["transform", "rounding", "correction"]);
    assert_eq!((&items[0]["options"]["clip"], &items[1]["needs"]), (&"off".into(), &"hessian".into()));
    assert!(algorithms_json("gptq,awq").is_err_and(|error| error.hint.is_some()));
    Ok(())
}

#[test]
fn stored_layers_have_their_schemes_and_values() -> Result<(), Box<dyn StdError>> {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
    let directory = tempfile::tempdir()?;
    let (layer, source) = ("model.layers.1.mlp.up_proj", Checkpoint::open(model.as_ref())?);
    let weight = source.tensor(&format!("{layer}.weight")).ok_or("the model has the layer")?;
    let matrix = Matrix::new(&weight.dtype().to_string(), weight.bytes(), weight.shape()[0], weight.shape()[1])?;
    for (scheme, format) in
        [("mxfp4", "quark"), ("int4:g32+int8:channel!dynamic", "compressed-tensors"), ("mx6", "fake")]
    {
        let mut job = Job::new(model);
        job.recipe.scheme = Some(scheme.to_owned());
        job.sinks.formats = vec![format.parse::<kvant_formats::format::OutputFormat>()?.into()];
        let output = directory.path().join(format);
        job.sinks.output = Some(output.clone());
        job.run(&mut (), &CancelToken::new())?;
        let stored = StoredModel::open(&output)?;
        let scheme = layer_scheme(scheme)?;
        let described = stored.layers()?;
        assert_eq!(described.as_object().map(|layers| layers.len()), Some(28));
        assert_eq!(described[layer]["scheme"], scheme.to_string());
        assert_eq!(described[layer]["is_packed"], format != "fake");
        let mut found = Vec::new();
        stored.read(|tensor| {
            if tensor.name == format!("{layer}.weight") {
                found = match tensor.dtype {
                    kvant_container::Dtype::F32 => values(&tensor.bytes),
                    _ => Matrix::new("BF16", &tensor.bytes, tensor.shape[0], tensor.shape[1])?.to_values(),
                };
            }
            Ok(())
        })?;
        assert_eq!(found, QuantizedMatrix::nearest(&matrix, &WeightScheme::Layer(scheme))?.dequantize(), "{format}");
    }
    Ok(())
}
