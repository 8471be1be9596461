//! Scales moved through every link of every family leave the model's function as it is.

#![allow(clippy::unwrap_used, clippy::panic)] // Helpers of tests, outside `#[test]` functions.

mod common;
mod support;

use common::Tensor;
use kvant_container::{Checkpoint, Dtype};
use kvant_llm::folding::{FoldingError, Foldings};
use kvant_llm::forward::{Decoder, Tensors, cpu::Cpu};
use kvant_llm::import;
use kvant_llm::model_config::ModelConfig;
use kvant_llm::network::{FusedExperts, Link, Network};
use kvant_llm::weight::{Band, WeightMatrix};
use kvant_numeric::simd::Isa;
use std::collections::BTreeMap;
use std::path::Path;
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
    (name.to_owned(), dtype, shape.to_vec(), common::encoded(dtype, &values))
}

/// A model with the tensors of a fixture.
fn model(fixture: &str, dtype: Dtype) -> (serde_json::Value, Vec<Tensor>) {
    let checkpoint = support::Checkpoint::read(fixture);
    let tensors = checkpoint.tensors.iter().map(|meta| tensor(&meta.name, dtype, &meta.shape));
    (checkpoint.config, tensors.collect())
}

fn written(config: &serde_json::Value, tensors: &[Tensor]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), config, tensors);
    dir
}

fn logits(dir: &Path) -> Vec<f32> {
    let checkpoint = Checkpoint::open(dir).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap_or_else(|error| panic!("{error}"));
    let tokens: Vec<u32> = (0..3 * LENGTH as u32).map(|at| at * at * 7 % 151).collect();
    decoder.logits(&Cpu::default(), &tokens, LENGTH).unwrap()
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
fn fused(foldings: &Foldings<'_, '_>, all: &FusedExperts) -> Vec<f32> {
    let (parent, leaf) = all.module.rsplit_once('.').unwrap();
    let matrix = |expert: usize| foldings.weight(&format!("{parent}.{expert}.{leaf}")).unwrap();
    let stored = |matrix: WeightMatrix<'_>| match all.orientation {
        kvant_llm::family::Orientation::OutIn => values(&matrix),
        kvant_llm::family::Orientation::InOut => {
            let (all, columns) = (values(&matrix), matrix.columns);
            (0..columns)
                .flat_map(|column| all.iter().skip(column).step_by(columns).copied().collect::<Vec<_>>())
                .collect()
        }
    };
    (0..all.experts).map(matrix).flat_map(stored).collect()
}

fn scaled(foldings: &mut Foldings<'_, '_>, link: &Link, noise: &mut Noise) -> Vec<f32> {
    let scales: Vec<f32> = (0..foldings.width(link)).map(|_| noise.scale()).collect();
    foldings.apply(link, &scales).unwrap_or_else(|error| panic!("{error}"))
}

/// Moves random scales through all links of all blocks, twice. Returns the new values of tensors, and the number of links.
fn folded(dir: &Path) -> (BTreeMap<String, Vec<f32>>, usize) {
    with_network(dir, |network, tensors| {
        let (mut changed, mut links, mut noise) = (BTreeMap::new(), 0, Noise(5));
        for block in network.blocks() {
            let is_fused = |module: &str| network.experts().iter().any(|all| all.module == module);
            let mut foldings = Foldings::new(network, tensors, *block, |module| !is_fused(module));
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

/// The largest difference of logits relative to the largest logit, and the number of links.
fn drift(fixture: &str) -> (f32, usize) {
    let (config, tensors) = model(fixture, Dtype::F32);
    let before = written(&config, &tensors);
    let (mut changed, links) = folded(before.path());
    let replaced: Vec<Tensor> = tensors
        .into_iter()
        .map(|(name, dtype, shape, bytes)| {
            let bytes = changed.remove(&name).map_or(bytes, |values| common::encoded(dtype, &values));
            (name, dtype, shape, bytes)
        })
        .collect();
    assert!(changed.is_empty(), "{fixture}: {:?}", changed.keys());
    let (float, folded) = (logits(before.path()), logits(written(&config, &replaced).path()));
    let largest = float.iter().fold(0.0f32, |max, value| max.max(value.abs()));
    let apart = float.iter().zip(&folded).fold(0.0f32, |max, (a, b)| max.max((a - b).abs()));
    assert!(largest > 1e-3, "{fixture}: {largest}");
    (apart / largest, links)
}

#[test]
fn logits_of_every_family_stay() {
    for fixture in support::names() {
        let (drift, links) = drift(&fixture);
        println!("{fixture}: {links} {drift:e}");
        assert!(drift < 1e-5 && links > 0, "{fixture}: {drift}");
    }
}
