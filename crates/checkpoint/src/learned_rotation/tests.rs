//! Gradients by the matrices against differences of the loss, the function of rotated models, and interrupted learning.

use super::*;
use crate::plan::PlannedLayer;
use crate::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::rotated;
use kvant_numeric::simd::Isa;
use kvant_quant::rounding::{RoundingError, TensorContext};
use kvant_weights::weight::WeightMatrix;
use std::path::Path;
use std::sync::atomic::AtomicU32;

#[path = "../../../formats/tests/common/mod.rs"]
mod common;
#[allow(clippy::unwrap_used)]
#[path = "../../../model/tests/support/mod.rs"]
mod support;

/// Sequences of 8 tokens.
const TOKENS: [[u32; 8]; 3] =
    [[1, 7, 19, 4, 99, 21, 3, 5], [50, 2, 2, 68, 31, 77, 8, 12], [20, 9, 33, 1, 58, 40, 16, 11]];
/// Families whose rotations differ: RMSNorm; LayerNorm with biases, learned positions and biases of all layers; parallel branches, one layer
/// for queries, keys and values; norms of heads.
const FAMILIES: [&str; 4] = ["llama", "opt", "gpt_neox", "qwen3"];

/// A model of a family with arbitrary weights.
fn written(family: &str) -> tempfile::TempDir {
    let fixture = support::Checkpoint::read(family);
    let tensors: Vec<common::Tensor> =
        fixture.tensors.iter().map(|tensor| common::weight(&tensor.name, Dtype::F32, &tensor.shape)).collect();
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), &fixture.config, &tensors);
    dir
}

fn rotate(spelling: &str) -> Rotate {
    let algorithms: kvant_formats::algorithm::Algorithms = spelling.parse().unwrap();
    algorithms.rotation.unwrap()
}

fn plan(checkpoint: &Checkpoint, scheme: &str, spelling: &str) -> Plan {
    let settings =
        Settings { scheme: Some(scheme.to_owned()), algorithm: Some(vec![spelling.to_owned()]), ..Settings::default() };
    Plan::new(checkpoint, Recipe::resolve(&settings, &Settings::default()).unwrap().with_calibration(true)).unwrap()
}

/// Numbers from -1 to 1.
fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut random = SplitMix64::new(seed);
    (0..count).map(|_| 2.0 * random.uniform() - 1.0).collect()
}

/// Matrices with some steps in arbitrary directions behind them.
fn turned(mut matrices: BTreeMap<RotationPlace, RotationDescent>) -> BTreeMap<RotationPlace, RotationDescent> {
    for (number, learned) in matrices.values_mut().enumerate() {
        for step in 0..3u64 {
            let (size, count) = (learned.matrix().size(), learned.matrix().blocks().len());
            let gradient = (0..count as u64).map(|block| noise(size * size, 1000 * number as u64 + 10 * block + step));
            let gradient: Vec<Vec<f64>> = gradient.collect();
            learned.step(&gradient, 0.3);
        }
    }
    matrices
}

/// Errors of weights that do not depend on the matrices, so that gradients straight through the rounding are those of the loss.
fn fixed_errors(layer: &PlannedLayer, weight: &WeightMatrix<'_>, _: TensorContext) -> Result<Vec<f32>, RoundingError> {
    let values = weight.all_values(Isa::best());
    let size = (values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32).sqrt();
    let errors = noise(values.len(), layer.name.len() as u64);
    Ok(values.iter().zip(errors).map(|(value, error)| value + 0.3 * size * error as f32).collect())
}

/// Calls `work` with a learner whose matrices are turned already.
fn with_learner(family: &str, rotate: Rotate, work: impl FnOnce(&mut Learner<'_, '_>)) {
    let dir = written(family);
    let checkpoint = rotated::open(Checkpoint::open(dir.path()).unwrap(), Some(rotate)).unwrap();
    let plan = plan(&checkpoint, "int8:channel", &rotate.to_string());
    let (decoder, cpu) = (Decoder::open(&checkpoint).unwrap(), Cpu::default());
    let runner = Runner::new(&decoder, &cpu);
    let sequences = TOKENS.map(|tokens| tokens.to_vec());
    let chunks = chunks(&decoder, sequences.iter().map(Vec::as_slice));
    let cancelled = AtomicBool::new(false);
    let mut learner = Learner {
        model: RoundedModel::new(&decoder, &plan, &fixed_errors),
        runner: &runner,
        calibration: chunks.len(),
        chunks: &chunks,
        targets: Streams::new(&[], 0).unwrap(),
        matrices: turned(learned_places(&decoder, &rotate)),
        memory: u64::MAX,
        cancelled: &cancelled,
        meter: Meter { watch: &mut |_, _| {}, done: 0, total: 0 },
    };
    learner.run_float_model(&plan).unwrap();
    work(&mut learner);
}

/// The loss on all tokens with the matrix `R (I + step A)` at a place.
fn moved(learner: &mut Learner<'_, '_>, place: RotationPlace, direction: &[Vec<f64>], step: f64) -> f64 {
    let before = learner.matrices[&place].clone();
    let size = before.matrix().size();
    let blocks = before.matrix().blocks().iter().zip(direction).map(|(block, direction)| {
        let at = |row: usize, column: usize| -> f64 {
            (0..size).map(|k| block[row * size + k] * direction[k * size + column]).sum()
        };
        (0..size * size).map(|i| block[i] + step * at(i / size, i % size)).collect()
    });
    let matrix = BlockDiagonal::of_blocks(size, blocks.collect()).unwrap();
    learner.matrices.insert(place, RotationDescent::new(matrix, false));
    let loss = learner.gradient(&[0]).unwrap().1;
    learner.matrices.insert(place, before);
    loss
}

#[test]
fn gradients_of_matrices_match_differences_of_the_loss() {
    for (family, spelling) in FAMILIES.map(|family| (family, "rotate")).into_iter().chain([("llama", "rotate:size=8")])
    {
        with_learner(family, rotate(spelling), |learner| {
            let tokens = learner.chunks[0].tokens.len() as f64;
            let sums = learner.gradient(&[0]).unwrap().0;
            let places: Vec<RotationPlace> = learner.matrices.keys().copied().collect();
            assert!(places.contains(&RotationPlace::Stream) && places.contains(&RotationPlace::Values(0)), "{family}");
            for place in places {
                let gradient = sums.of_place(place, 1.0 / tokens);
                let size = learner.matrices[&place].matrix().size();
                let length = |block: &[f64]| block.iter().map(|element| element * element).sum::<f64>().sqrt();
                let skew = |block: &[f64]| -> Vec<f64> {
                    let skew: Vec<f64> =
                        (0..size * size).map(|i| block[i] - block[i % size * size + i / size]).collect();
                    let length = length(&skew).max(f64::MIN_POSITIVE);
                    skew.iter().map(|element| element / length).collect()
                };
                // Along the gradient, and elsewhere.
                for along in [1.0, 0.0] {
                    let direction: Vec<Vec<f64>> = gradient
                        .iter()
                        .enumerate()
                        .map(|(number, block)| {
                            let other = skew(&noise(size * size, 77 + number as u64));
                            skew(block)
                                .iter()
                                .zip(&other)
                                .map(|(own, other)| along * own + (1.0 - 0.5 * along) * other)
                                .collect()
                        })
                        .collect();
                    let step = 3e-3;
                    let difference = (moved(learner, place, &direction, step)
                        - moved(learner, place, &direction, -step))
                        / (2.0 * step);
                    let both = gradient.iter().flatten().zip(direction.iter().flatten());
                    let product: f64 = both.map(|(gradient, direction)| gradient * direction).sum();
                    let scale: f64 = gradient.iter().map(|block| length(block)).sum();
                    assert!(
                        (product - difference).abs() < 2e-2 * difference.abs().max(0.1 * scale) + 2e-5,
                        "{family} {spelling} {place} {along}: {product} {difference} {scale}"
                    );
                }
            }
        });
    }
}

#[test]
fn steps_without_rounding_lose_nothing() {
    with_learner("opt", rotate("rotate"), |learner| {
        learner.model.layers.clear();
        let loss = learner.loss().unwrap();
        assert!(loss.abs() < 1e-6, "{loss}");
    });
}

#[test]
fn learned_rotations_keep_the_function() {
    for (family, spelling) in
        FAMILIES.map(|family| (family, "rotate")).into_iter().chain([("mixtral", "rotate:size=8")])
    {
        let (dir, rotate) = (written(family), rotate(spelling));
        let open = || Checkpoint::open(dir.path()).unwrap();
        let logits = |checkpoint: &Checkpoint| {
            Decoder::open(checkpoint).unwrap().logits(&Cpu::default(), TOKENS.as_flattened(), 8).unwrap()
        };
        let expected = logits(&open());
        let fixed = rotated::open(open(), Some(rotate)).unwrap();
        let matrices = turned(learned_places(&Decoder::open(&fixed).unwrap(), &rotate));
        let places = matrices.iter().map(|(place, learned)| (*place, learned.matrix().clone()));
        let rotations = LearnedRotations::new(places);
        assert!(rotations.iter().all(|(_, matrix)| matrix.departure() < 1e-12));
        let learned = rotated::open_learned(open(), rotate, &rotations).unwrap();
        let (found, without) = (logits(&learned), logits(&fixed));
        let largest = expected.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let apart = |found: &[f32]| found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(apart(&found) < 2e-5 * largest, "{family}: {} of {largest}", apart(&found));
        assert!(found != without, "{family}: the learned matrices are in the weights");
        let others = LearnedRotations::new([(RotationPlace::Stream, BlockDiagonal::identity(6, 6).unwrap())]);
        let refused = rotated::open_learned(open(), rotate, &others).unwrap_err().to_string();
        assert!(refused.contains("do not fit"), "{refused}");
    }
}

/// A run that learns on the small trained model.
struct Learning<'t> {
    target: &'t Path,
    scheme: &'t str,
    /// Sequences of all that are held out.
    held_out: usize,
    /// Tokens after which it is stopped.
    stop_after: Option<u64>,
    threads: usize,
}

impl Learning<'_> {
    /// What is learned, and the steps that an earlier run had taken.
    fn run(&self) -> Result<(LearnedRotation, u32), LearnedRotationError> {
        let rotate = rotate("rotate:size=32:steps=8:rate=0.1");
        let model = Checkpoint::open(Path::new("../../tests/models/nano_llama")).unwrap();
        let checkpoint = rotated::open(model, Some(rotate)).unwrap();
        let plan = plan(&checkpoint, self.scheme, &rotate.to_string());
        let decoder = Decoder::open(&checkpoint).unwrap();
        let sequence = |row: u32| (0..32u32).map(|i| (i * i * 37 + row * 101 + i * 7) % 2000).collect();
        let data: Vec<Vec<u32>> = (0..20).map(sequence).collect();
        let (sequences, held_out) = data.split_at(data.len() - self.held_out);
        let sources = RotationSources { plan: &plan, decoder: &decoder, sequences, held_out };
        let settings = RotationSettings { target: self.target, key: "key", memory: 1 << 20 };
        let (cancelled, resumed) = (AtomicBool::new(false), AtomicU32::new(0));
        let stops = |done: u64| self.stop_after.is_some_and(|stop| done >= stop);
        let watch = |done: u64, _: u64| cancelled.store(stops(done), Ordering::Relaxed);
        let resumes = |steps: u32| resumed.store(steps, Ordering::Relaxed);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads).build().unwrap();
        let learned = pool.install(|| learn_rotation(sources, rotate, settings, &cancelled, resumes, watch))?;
        Ok((learned, resumed.load(Ordering::Relaxed)))
    }
}

#[test]
fn learning_lowers_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("model");
    let learning = Learning { target: &target, scheme: "mxfp4", held_out: 0, stop_after: None, threads: 2 };
    let LearnedRotation { rotations, report } = learning.run().unwrap().0;
    assert!(report.used && !report.held_out && report.loss_after < 0.98 * report.loss_before, "{report:?}");
    assert!(rotations.iter().all(|(_, matrix)| matrix.departure() < 1e-12));
}

#[test]
fn interrupted_learning_resumes_to_the_same_matrices() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("whole"), dir.path().join("stopped"));
    // Its inputs have static scales.
    let scheme = "int4:channel+int8:tensor!static";
    let learning = Learning { target: &first, scheme, held_out: 4, stop_after: None, threads: 1 };
    let (whole, steps) = learning.run().unwrap();
    assert_eq!((steps, whole.report.steps, whole.report.matrices, whole.report.held_out), (0, 8, 5, true));
    assert!(whole.rotations != LearnedRotations::default());
    // The float model and the first loss pass some 800 tokens, and each step takes three times 512.
    let stopped = Learning { target: &second, stop_after: Some(640 + 128 + 5 * 1536), threads: 2, ..learning };
    assert!(matches!(stopped.run(), Err(LearnedRotationError::Cancelled)));
    let whole_run = Learning { stop_after: None, ..stopped };
    let (resumed, steps) = whole_run.run().unwrap();
    assert!((1..8).contains(&steps), "{steps}");
    assert_eq!(resumed, whole);
    assert_eq!(whole_run.run().unwrap(), (whole, 8));
    assert!(is_of_another(&second, "other") && !is_of_another(&second, "key"));
}
