//! Scales moved through every link of every family leave the model's function as it is.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, outside `#[test]` functions.

use crate::common::Tensor;
use kvant_checkpoint::folding::{ScaleFusion, ScaleFusionError};
use kvant_container::{Checkpoint, Dtype};
use kvant_data::images::{ImageOptions, Images};
use kvant_data::sounds::{SoundInput, SoundOptions, Sounds};
use kvant_formats::import;
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{Decoder, ForwardOptions, Runner, SequenceLength, Tensors, WeightOverrides};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{FusedExperts, Network, SmoothingPair};
use kvant_numeric::simd::Isa;
use kvant_weights::weight::{Band, ClippingThresholds, WeightMatrix};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

const LENGTH: usize = 12;

/// Numbers from -1 to 1.
struct Noise(u64);

impl Noise {
    fn of(name: &str) -> Noise {
        Noise(name.bytes().fold(7, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte)))
    }

    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// From 1/4 to 4.
    fn scale(&mut self) -> f32 {
        (self.next() * 2.0).exp2()
    }
}

/// Values that keep activations near one: matrices by their inputs, norms near their middle.
fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> Tensor {
    let mut noise = Noise::of(name);
    let inputs = if shape.len() > 1 { shape[shape.len() - 1] as f32 } else { 9.0 };
    let middle = if shape.len() == 1 && name.ends_with("norm.weight") { 0.6 } else { 0.0 };
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|_| middle + noise.next() * 1.7 / inputs.sqrt()).collect();
    (name.to_owned(), dtype, shape.to_vec(), crate::common::encoded(dtype, &values))
}

/// The numbers of the first experts, in turn.
fn experts_of_tokens(name: &str, shape: &[usize]) -> Tensor {
    let count = shape.iter().product::<usize>() as i64;
    let bytes = (0..count).flat_map(|at| (at % 3).to_le_bytes()).collect();
    (name.to_owned(), Dtype::I64, shape.to_vec(), bytes)
}

/// A model with the tensors of a fixture.
fn model(fixture: &str, dtype: Dtype) -> (serde_json::Value, Vec<Tensor>) {
    let mut checkpoint = crate::support::Checkpoint::read(fixture);
    // Some fixtures were made with the class's own number, which is beyond their experts.
    if checkpoint.config["num_experts_per_tok"].as_u64().is_some_and(|count| count > 4) {
        checkpoint = checkpoint.with_config("num_experts_per_tok", 2.into());
    }
    // A norm for each head of queries and keys, which is nobody's link, is not computed.
    if fixture == "stablelm" {
        let plain = |name: &str| (!name.contains("_layernorm.norms.")).then(|| name.to_owned());
        checkpoint = checkpoint.renamed(plain).with_config("qk_layernorm", false.into());
    }
    let tensors = checkpoint.tensors.iter().map(|meta| match meta.dtype.as_str() {
        "I64" => experts_of_tokens(&meta.name, &meta.shape),
        _ => tensor(&meta.name, dtype, &meta.shape),
    });
    (checkpoint.config, tensors.collect())
}

fn written(config: &serde_json::Value, tensors: &[Tensor]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    crate::common::write(dir.path(), config, tensors);
    dir
}

fn tokens() -> Vec<u32> {
    (0..3 * LENGTH as u32).map(|at| at * at * 7 % 151).collect()
}

/// What a model is run on, and the tokens of a sequence; a model of images or sounds is given some.
fn sequences(decoder: &mut Decoder<'_>) -> (Vec<u32>, SequenceLength) {
    let dir = tempfile::tempdir().unwrap();
    let texts = || tokens().chunks(LENGTH).map(<[u32]>::to_vec).collect::<Vec<_>>();
    let sequences = match (decoder.image_shape(), decoder.sound_input()) {
        (Some(shape), _) => {
            let file = noise_file(dir.path(), &shape);
            let images = Images::open(&file, dir.path(), shape, ImageOptions::default()).unwrap();
            decoder.give_images(Arc::new(images)).unwrap()
        }
        (None, Some(input)) => {
            let shape = match input {
                SoundInput::LogMel { bins, frames } => vec![bins, frames],
                SoundInput::Waveform => vec![200],
            };
            let sounds =
                Sounds::open(&noise_file(dir.path(), &shape), dir.path(), input, SoundOptions::default()).unwrap();
            let rows = decoder.give_sounds(Arc::new(sounds)).unwrap();
            match decoder.is_encoder() {
                true => rows,
                false => rows
                    .iter()
                    .zip(texts())
                    .map(|(rows, text)| decoder.sequence_of_pair(rows, &text).unwrap())
                    .collect(),
            }
        }
        (None, None) => decoder.sequences_of(texts()).unwrap(),
    };
    (sequences.concat(), SequenceLength::of(&sequences[0]))
}

/// An array of two images or sounds of such a shape.
fn noise_file(dir: &Path, shape: &[usize]) -> PathBuf {
    let sizes: Vec<String> = shape.iter().map(usize::to_string).collect();
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': (2, {}), }}", sizes.join(", "));
    let mut bytes = [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat();
    let mut noise = Noise(5);
    bytes.extend((0..2 * shape.iter().product::<usize>()).flat_map(|_| noise.next().to_le_bytes()));
    let file = dir.join("samples.npy");
    std::fs::write(&file, bytes).unwrap();
    file
}

/// Logits of a decoder, last hidden states of an encoder.
fn logits(dir: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let mut decoder = Decoder::open_any(&checkpoint).unwrap_or_else(|error| panic!("{error}"));
    let (tokens, length) = sequences(&mut decoder);
    match decoder.is_encoder() {
        true => decoder.encode(&Cpu::default(), &tokens, length.all).unwrap().0,
        false => decoder.logits(&Cpu::default(), &tokens, length.all).unwrap(),
    }
}

/// The logits of a checkpoint with random scales moved through all its links, as foldings.
fn logits_of_overlay(dir: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let mut decoder = Decoder::open_any(&checkpoint).unwrap();
    let (read, length) = sequences(&mut decoder);
    let (cpu, mut overlay) = (Cpu::default(), WeightOverrides::default());
    let tensors = decoder.tensors();
    let config = ModelConfig::from_json(&checkpoint.config().unwrap().unwrap()).unwrap();
    let network = Network::recognise(&config, tensors.meta());
    let mut noise = Noise(9);
    for block in network.blocks() {
        let mut foldings = ScaleFusion::new(&network, tensors, *block, |_| false);
        network.links(*block).iter().for_each(|link| drop(scaled(&mut foldings, link, &mut noise)));
        foldings.add_to(&mut overlay);
    }
    let (runner, v) =
        (Runner::new(&decoder, &cpu), ForwardOptions { overlay: Some(&overlay), ..ForwardOptions::default() });
    let mut x = runner.embed(v, &read, length).unwrap();
    network.blocks().iter().for_each(|block| assert!(runner.block(v, *block, length, &mut x).is_continue()));
    let hidden = runner.hidden(v, length, &x);
    if decoder.is_encoder() { hidden } else { runner.logits(v, &hidden, 0..decoder.vocabulary()) }
}

/// The largest difference relative to the largest number.
fn apart(expected: &[f32], found: &[f32]) -> f32 {
    assert_eq!(expected.len(), found.len());
    let largest = expected.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    assert!(largest > 1e-3, "{largest}");
    expected.iter().zip(found).fold(0.0f32, |max, (a, b)| max.max((a - b).abs())) / largest
}

/// A checkpoint's tensors and what they are.
fn with_network<T>(dir: &Path, work: impl FnOnce(&Network, &Tensors<'_>) -> T) -> T {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let tensors = Tensors::new(import::open(&checkpoint).unwrap().into_tensors());
    let config = ModelConfig::from_json(&checkpoint.config().unwrap().unwrap()).unwrap();
    work(&Network::recognise(&config, tensors.meta()), &tensors)
}

fn values(matrix: &WeightMatrix<'_>) -> Vec<f32> {
    let mut values = Vec::new();
    matrix.read(Isa::best(), &Band { rows: 0..matrix.rows, columns: 0..matrix.columns }, &mut values);
    values
}

/// The folded matrices of all experts as they are stored.
fn fused(foldings: &ScaleFusion<'_, '_>, all: &FusedExperts) -> Vec<f32> {
    let (parent, leaf) = all.module.rsplit_once('.').unwrap();
    let matrix = |expert: usize| foldings.weight(&format!("{parent}.{expert}.{leaf}")).unwrap();
    let stored = |matrix: WeightMatrix<'_>| match all.orientation {
        kvant_model::family::Orientation::OutIn => values(&matrix),
        kvant_model::family::Orientation::InOut => {
            let (all, columns) = (values(&matrix), matrix.columns);
            (0..columns)
                .flat_map(|column| all.iter().skip(column).step_by(columns).copied().collect::<Vec<_>>())
                .collect()
        }
    };
    (0..all.experts).map(matrix).flat_map(stored).collect()
}

fn scaled(foldings: &mut ScaleFusion<'_, '_>, link: &SmoothingPair, noise: &mut Noise) -> Vec<f32> {
    let scales: Vec<f32> = (0..foldings.width(link)).map(|_| noise.scale()).collect();
    foldings.apply(link, &scales).unwrap_or_else(|error| panic!("{error}"))
}

/// Moves random scales through all links of all blocks, twice. Returns the new values of tensors, and the number of links.
fn folded(dir: &Path) -> (BTreeMap<String, Vec<f32>>, usize) {
    with_network(dir, |network, tensors| {
        let (mut changed, mut links, mut noise) = (BTreeMap::new(), 0, Noise(5));
        for block in network.blocks() {
            let is_fused = |module: &str| network.experts().iter().any(|all| all.module == module);
            let mut foldings = ScaleFusion::new(network, tensors, *block, |module| !is_fused(module));
            for _ in 0..2 {
                for link in network.links(*block) {
                    scaled(&mut foldings, &link, &mut noise);
                    links += 1;
                }
            }
            changed.extend(foldings.changed_tensors().map(|tensor| (tensor.name, tensor.values)));
            for all in network.experts().iter().filter(|all| all.block == *block) {
                let weight = tensors
                    .meta()
                    .iter()
                    .find(|meta| meta.name.strip_suffix(".weight").unwrap_or(&meta.name) == all.module);
                changed.insert(weight.unwrap().name.clone(), fused(&foldings, all));
            }
        }
        (changed, links)
    })
}

/// The logits of a model whose tensors are replaced by folded ones, and the number of links.
fn logits_of_changed(dir: &Path, config: &serde_json::Value, tensors: Vec<Tensor>) -> (Vec<f32>, usize) {
    let (mut changed, links) = folded(dir);
    let replace = |(name, dtype, shape, bytes): Tensor| {
        let bytes = changed.remove(&name).map_or(bytes, |values| crate::common::encoded(dtype, &values));
        (name, dtype, shape, bytes)
    };
    let replaced: Vec<Tensor> = tensors.into_iter().map(replace).collect();
    assert!(changed.is_empty(), "{:?}", changed.keys());
    (logits(written(config, &replaced).path()), links)
}

#[test]
fn folding_keeps_the_logits_of_every_family() {
    for fixture in crate::support::names() {
        let (config, tensors) = model(&fixture, Dtype::F32);
        let dir = written(&config, &tensors);
        let float = logits(dir.path());
        let (changed, links) = logits_of_changed(dir.path(), &config, tensors);
        let (changed, overlaid) = (apart(&float, &changed), apart(&float, &logits_of_overlay(dir.path())));
        assert!(links > 0 && changed < 1e-5 && overlaid < 1e-5, "{fixture}: {links} {changed} {overlaid}");
    }
}

#[test]
fn norm_rounding_is_compensated_in_the_weights() {
    for fixture in ["llama", "gemma2", "qwen3_moe", "deepseek_v2"] {
        for dtype in [Dtype::BF16, Dtype::F16] {
            let (config, tensors) = model(fixture, dtype);
            let dir = written(&config, &tensors);
            let apart = apart(&logits(dir.path()), &logits_of_overlay(dir.path()));
            assert!(apart < 1e-5, "{fixture} {dtype}: {apart}");
        }
    }
}

#[test]
fn scales_and_thresholds_are_applied_to_weights_when_read() {
    let (config, tensors) = model("llama", Dtype::F32);
    let dir = written(&config, &tensors);
    with_network(dir.path(), |network, tensors| {
        let mut foldings = ScaleFusion::new(network, tensors, 1, |_| false);
        let (up, down) = ("model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj");
        let (old_up, old_down) = (values(&foldings.weight(up).unwrap()), values(&foldings.weight(down).unwrap()));
        assert_eq!(foldings.folding(up), None);
        let links = network.links(1);
        let scales: Vec<f32> = (0..96).map(|at| 2.0f32.powi(at % 3)).collect();
        assert_eq!(foldings.apply(&links[3], &scales).unwrap(), scales);
        let limits = ClippingThresholds { group: 96, values: vec![0.25; 64] };
        foldings.clip(down, limits).unwrap();
        let scale = |at: usize| scales[at];
        let (new_up, new_down) = (values(&foldings.weight(up).unwrap()), values(&foldings.weight(down).unwrap()));
        assert!((0..96 * 64).all(|i| new_up[i] == old_up[i] / scale(i / 64)));
        assert!((0..64 * 96).all(|i| new_down[i] == (old_down[i] * scale(i % 96)).clamp(-0.25, 0.25)));
        assert!(new_down.contains(&0.25) && foldings.changed_tensors().next().is_none());
        // One query head asks for more than the other that reads the same values.
        let wanted: Vec<f32> = (0..64).map(|at| if at < 16 { 2.0 } else { 1.0 }).collect();
        let even: Vec<f32> = (0..64).map(|at| if at < 32 { 2.0 } else { 1.0 }).collect();
        assert_eq!(foldings.apply(&links[1], &wanted).unwrap(), even);
    });
}

#[test]
fn a_new_bias_is_what_its_type_stores_and_other_modules_keep_theirs() {
    let (config, tensors) = model("qwen2", Dtype::BF16);
    let dir = written(&config, &tensors);
    with_network(dir.path(), |network, tensors| {
        let mut foldings = ScaleFusion::new(network, tensors, 0, |_| false);
        let (query, key, output) =
            ("model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.o_proj");
        let (before, of_key) = (foldings.bias(query).unwrap(), foldings.bias(key).unwrap());
        let wanted: Vec<f32> = before.iter().map(|value| value + 0.123_456_7).collect();
        let stored = foldings.set_bias(query, &wanted).unwrap();
        let rounded = |value: &f32| kvant_numeric::ComputeDType::Bf16.round(*value);
        assert_eq!(stored, wanted.iter().map(rounded).collect::<Vec<_>>());
        assert_ne!(stored, wanted);
        assert_eq!((foldings.bias(query).unwrap(), foldings.bias(key).unwrap()), (stored.clone(), of_key));
        let changed: Vec<_> = foldings.changed_tensors().collect();
        assert_eq!(changed.len(), 1);
        assert_eq!((changed[0].name.as_str(), &changed[0].values), ("model.layers.0.self_attn.q_proj.bias", &stored));
        assert_eq!(foldings.bias(output), None);
        let refused = [(output, vec![0.0; 64]), (query, vec![0.0; 3]), (query, vec![f32::INFINITY; wanted.len()])];
        for (module, bias) in refused {
            assert!(foldings.set_bias(module, &bias).is_err(), "{module}");
        }
        assert_eq!(foldings.bias(query).unwrap(), stored);
    });
}

#[test]
fn unscalable_pairs_are_left_unchanged() {
    let refuse = |fixture: &str, dtype: Dtype, link: usize, kept: bool, scale: f32| {
        let (config, tensors) = model(fixture, dtype);
        let dir = written(&config, &tensors);
        with_network(dir.path(), |network, tensors| {
            let mut foldings = ScaleFusion::new(network, tensors, 0, |_| kept);
            let link = &network.links(0)[link];
            let error = foldings.apply(link, &vec![scale; foldings.width(link)]).unwrap_err();
            assert!(foldings.changed_tensors().next().is_none());
            error
        })
    };
    assert!(matches!(refuse("llama", Dtype::F32, 0, false, -1.0), ScaleFusionError::Scales { .. }));
    assert!(matches!(refuse("llama", Dtype::F16, 0, false, 1e-6), ScaleFusionError::Overflow { .. }));
    let fused = refuse("granitemoe", Dtype::BF16, 2, true, 2.0);
    assert!(fused.to_string().contains("in one tensor"), "{fused}");
    let (config, tensors) = model("llama", Dtype::F32);
    let dir = written(&config, &tensors);
    with_network(dir.path(), |network, tensors| {
        let mut foldings = ScaleFusion::new(network, tensors, 0, |module| module.ends_with("o_proj"));
        let limits = ClippingThresholds { group: 32, values: vec![1.0; 64 * 2] };
        for module in ["model.layers.0.self_attn.o_proj", "model.layers.0.mlp.down_proj", "model.layers.1.mlp.up_proj"]
        {
            assert!(
                matches!(foldings.clip(module, limits.clone()), Err(ScaleFusionError::ClippingThresholds { .. })),
                "{module}"
            );
        }
    });
}
