//! Passes with something else in the place of a checkpoint's tensors.

use super::models::{FAMILIES, LENGTH, TOKENS, overlay_of, values, with_decoder};
use super::{Golden, model};
use kvant_container::{Checkpoint, Dtype};
use kvant_forward::forward::cpu::{Cpu, Precision};
use kvant_forward::forward::{
    ActivationHook, ActivationPoint, Chunk, Decoder, ForwardOptions, Projection, Rows, Runner, WeightOverrides,
};
use kvant_numeric::ComputeDType;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationQuantizer;
use kvant_quant::rounding::{Rtn, TensorContext};
use kvant_weights::weight::{ClippingThresholds, WeightMatrix, WeightTransform};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

const BOTH: [Precision; 2] = [Precision::F32, Precision::Bf16];

/// The logits of a decoder, or what the readouts of an encoder give, that an overlay changes.
fn logits(
    decoder: &Decoder<'_>,
    overlay: Option<&WeightOverrides<'_>>,
    precision: Precision,
    tokens: &[u32],
) -> Vec<f32> {
    let ops = Cpu::with_precision(precision);
    let (runner, v) = (Runner::new(decoder, &ops), ForwardOptions { overlay, ..ForwardOptions::default() });
    let length = LENGTH.min(tokens.len());
    let mut x = runner.embed(v, tokens, length).unwrap();
    for block in 0..decoder.blueprint().blocks.len() {
        assert_eq!(runner.block(v, block, length, &mut x), ControlFlow::Continue(()));
    }
    let hidden = runner.hidden(v, length, &x);
    let chunk = Chunk { tokens: tokens.to_vec(), length, source: 0, images: Vec::new() };
    let of_readouts = decoder.readouts().iter().flat_map(|readout| {
        let rows = runner.readout_rows(v, &chunk, readout, &hidden);
        runner.readout_values(v, readout, &rows, 0..readout.width)
    });
    match decoder.is_encoder() {
        true => of_readouts.collect(),
        false => runner.logits(v, &hidden, 0..decoder.vocabulary()),
    }
}

#[track_caller]
fn assert_same(ours: &[f32], theirs: &[f32], what: &str) {
    assert!(ours.len() == theirs.len() && ours.iter().zip(theirs).all(|(a, b)| a.to_bits() == b.to_bits()), "{what}");
}

#[test]
fn overriding_weights_with_their_own_values_changes_nothing() {
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let tokens = &Golden::read().joined()[..LENGTH * 3];
    let (overlay, nothing) = (overlay_of(&decoder), WeightOverrides::default());
    let run = |overlay, precision| logits(&decoder, overlay, precision, tokens);
    let plain = decoder.logits(&Cpu::with_precision(Precision::Bf16), tokens, LENGTH).unwrap();
    assert_same(&run(Some(&overlay), Precision::Bf16), &plain, "bf16");
    assert_same(&run(Some(&nothing), Precision::Bf16), &plain, "nothing");
    // Products of f32 and bfloat16 may be computed otherwise than those of f32.
    let (ours, theirs) = (run(Some(&overlay), Precision::F32), run(None, Precision::F32));
    let largest = theirs.iter().fold(0.0f32, |largest, z| largest.max(z.abs()));
    assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-5 * largest));
}

#[test]
fn every_weight_of_a_pass_can_be_overridden() {
    for family in FAMILIES {
        let (overlay, expected) = with_decoder(family, Dtype::F32, "other", |_, other| {
            (overlay_of(other), BOTH.map(|precision| logits(other, None, precision, &TOKENS)))
        });
        with_decoder(family, Dtype::F32, "", |_, decoder| {
            for (precision, expected) in BOTH.into_iter().zip(&expected) {
                assert_same(&logits(decoder, Some(&overlay), precision, &TOKENS), expected, family);
                assert_ne!(&logits(decoder, None, precision, &TOKENS), expected, "{family}");
            }
        });
    }
}

/// Some layers of nano_llama's first block.
fn layers<'d>(decoder: &'d Decoder<'_>) -> Vec<&'d Projection> {
    decoder.blueprint().blocks[0].layers()
}

#[test]
fn folded_weights_equal_products_and_clipping() {
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let (mut folded, mut by_hand) = (WeightOverrides::default(), WeightOverrides::default());
    for layer in layers(&decoder) {
        let (rows, columns) = (layer.rows, layer.columns);
        let factors = |count: usize, step: f32| (0..count).map(|i| 1.0 + step * (i % 7) as f32).collect::<Vec<f32>>();
        let limits: Vec<f32> = (0..rows * columns.div_ceil(32)).map(|i| 0.02 + 0.01 * (i % 5) as f32).collect();
        let (of_rows, of_columns) = (factors(rows, 0.3), factors(columns, 0.01));
        let mut weight = values(&decoder.tensors().weight(layer));
        for (i, w) in weight.iter_mut().enumerate() {
            let limit = limits[i / columns * columns.div_ceil(32) + i % columns / 32];
            *w = (*w * of_rows[i / columns] * of_columns[i % columns]).clamp(-limit, limit);
        }
        let limits = Some(ClippingThresholds { group: 32, values: limits });
        let folding = Arc::new(WeightTransform { rows: Some(of_rows), columns: Some(of_columns), limits });
        folded.set_weight(&layer.module, decoder.tensors().weight(layer).folded(folding));
        by_hand.set_weight(&layer.module, WeightMatrix::values(Arc::new(weight), rows, columns));
    }
    for precision in BOTH {
        let run = |overlay| logits(&decoder, overlay, precision, &TOKENS);
        assert_same(&run(Some(&folded)), &run(Some(&by_hand)), "folded");
        assert_ne!(run(Some(&folded)), run(None));
    }
}

#[test]
fn overriding_with_codes_equals_their_values() {
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    for scheme in ["int4:g32", "uint4:g32:zp", "e4m3:channel", "e2m1:g16:e4m3:f32"] {
        let rtn = Rtn::new(scheme.parse().unwrap(), TensorContext::new(ComputeDType::F32)).unwrap();
        let (mut codes, mut floats) = (WeightOverrides::default(), WeightOverrides::default());
        for layer in layers(&decoder) {
            let weight = values(&decoder.tensors().weight(layer));
            let tensor = rtn.round(&weight, layer.rows, layer.columns).unwrap();
            let restored = Arc::new(tensor.dequantize());
            floats.set_weight(&layer.module, WeightMatrix::values(restored, layer.rows, layer.columns));
            codes.set_weight(&layer.module, WeightMatrix::quantized(Arc::new(tensor)));
        }
        for precision in BOTH {
            let run = |overlay| logits(&decoder, overlay, precision, &TOKENS);
            assert_same(&run(Some(&codes)), &run(Some(&floats)), scheme);
            assert_ne!(run(Some(&codes)), run(None), "{scheme}");
        }
    }
}

/// Keeps what a layer reads.
struct InputOf<'m>(&'m str, Mutex<Vec<f32>>);

impl ActivationHook for InputOf<'_> {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        site == ActivationPoint::Input(self.0)
    }

    fn see(&self, _: ActivationPoint<'_>, rows: Rows<'_>) {
        self.1.lock().unwrap().extend_from_slice(rows.data);
    }
}

#[test]
fn input_quantizers_run_after_the_hook() {
    let checkpoint = Checkpoint::open(&model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let ops = Cpu::default();
    let (runner, plain) = (Runner::new(&decoder, &ops), ForwardOptions::default());
    let layer = layers(&decoder)[0];
    let x = runner.embed(plain, &TOKENS, LENGTH).unwrap();
    let quantizer = ActivationQuantizer::new("int8:channel!dynamic".parse().unwrap(), None).unwrap();
    let mut quantized = x.clone();
    quantizer.apply(Isa::best(), ComputeDType::F32, &mut quantized, layer.columns);
    let mut overlay = WeightOverrides::default();
    overlay.set_input(&layer.module, quantizer);
    let tap = InputOf(&layer.module, Mutex::default());
    let v = ForwardOptions { overlay: Some(&overlay), tap: Some(&tap), ..plain };
    let out = runner.linear(v, layer, &x);
    assert_same(&out, &runner.linear(plain, layer, &quantized), "quantized");
    assert_ne!(out, runner.linear(plain, layer, &x));
    assert_same(&tap.1.lock().unwrap(), &x, "seen");
}
