use super::*;
use crate::evaluation::evaluate_sequences;
use crate::forward::cpu::Cpu;
use kvant_container::Checkpoint;
use kvant_weights::weight::WeightMatrix;
use std::path::Path;
use std::sync::Arc;

const SEQUENCES: [[u32; 12]; 3] = [
    [5, 17, 301, 42, 7, 99, 1200, 3, 8, 21, 555, 19],
    [4, 900, 31, 2, 77, 199, 120, 13, 80, 2, 55, 190],
    [8, 71, 33, 420, 70, 9, 12, 333, 18, 1, 5, 1999],
];

/// Variants with some modules' weights rounded to steps of 1/16.
struct Rounded<'d, 'a> {
    decoder: &'d Decoder<'a>,
    modules: Vec<(ModelStage, String)>,
    found: Vec<(usize, Comparison)>,
}

impl<'a> Rounded<'_, 'a> {
    fn overrides(&self, modules: impl Iterator<Item = String>) -> Option<WeightOverrides<'a>> {
        let mut overlay = WeightOverrides::default();
        let mut any = false;
        for module in modules {
            let blueprint = self.decoder.blueprint();
            let mut layers = blueprint.blocks.iter().flat_map(|block| block.layers()).chain([&blueprint.head]);
            let layer = layers.find(|layer| layer.module == module).unwrap();
            let mut values = self.decoder.weight(layer).all_values(Isa::best());
            values.iter_mut().for_each(|value| *value = (*value * 16.0).round() / 16.0);
            overlay.set_weight(&module, WeightMatrix::values(Arc::new(values), layer.rows, layer.columns));
            any = true;
        }
        any.then_some(overlay)
    }
}

impl<'a> Variants<'a> for Rounded<'_, 'a> {
    type Error = EvaluationError;

    fn weights(&mut self, stage: ModelStage, variant: usize) -> Result<Option<WeightOverrides<'a>>, EvaluationError> {
        // The last variant has them all.
        let is_in = |index: usize| variant == index || variant == self.modules.len();
        let of_stage = self.modules.iter().enumerate().filter(|(index, (of, _))| *of == stage && is_in(*index));
        Ok(self.overrides(of_stage.map(|(_, (_, module))| module.clone()).collect::<Vec<_>>().into_iter()))
    }

    fn found(&mut self, variant: usize, comparison: Comparison) -> Result<(), EvaluationError> {
        self.found.push((variant, comparison));
        Ok(())
    }
}

#[test]
fn variants_equal_single_evaluations() {
    let checkpoint = Checkpoint::open(Path::new("../../tests/models/nano_llama")).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let ops = Cpu::default();
    let sequences: Vec<Vec<u32>> = SEQUENCES.iter().map(|one| one.to_vec()).collect();
    let head = decoder.blueprint().head.module.clone();
    let modules = vec![
        (ModelStage::Block(0), "model.layers.0.mlp.down_proj".to_owned()),
        (ModelStage::Block(1), "model.layers.1.self_attn.q_proj".to_owned()),
        (ModelStage::Head, head),
    ];
    let first = [ModelStage::Block(0), ModelStage::Block(1), ModelStage::Head, ModelStage::Block(0)];
    for memory in [u64::MAX, 0] {
        let mut variants = Rounded { decoder: &decoder, modules: modules.clone(), found: Vec::new() };
        let mut last = (0, 0);
        let watch = |done, all| {
            last = (done, all);
            ControlFlow::Continue(())
        };
        evaluate_variants(&decoder, &ops, &sequences, memory, &first, &mut variants, watch).unwrap();
        assert_eq!(last.0, last.1);
        let order: Vec<usize> = variants.found.iter().map(|(variant, _)| *variant).collect();
        assert_eq!(order, [0, 3, 1, 2]);
        let kl = |variant: usize| {
            let found = variants.found.iter().find(|(index, _)| *index == variant).unwrap();
            found.1.kl_mean.value
        };
        assert!((0..4).all(|variant| kl(variant) > 0.0));
        // The same by hand: the logits of the variant with all weights.
        let overlay = variants.overrides(modules.iter().map(|(_, module)| module.clone())).unwrap();
        let runner = Runner::new(&decoder, &ops);
        let options = ForwardOptions { overlay: Some(&overlay), ..ForwardOptions::default() };
        let (mut sum, mut count) = (0.0, 0.0);
        for sequence in &sequences {
            let logits = |options: ForwardOptions<'_, '_>| {
                let mut x = runner.embed(options, sequence, sequence.len()).unwrap();
                for block in 0..decoder.blueprint().blocks.len() {
                    let _ = runner.block(options, block, sequence.len(), &mut x);
                }
                let hidden = runner.hidden(options, sequence.len(), &x);
                runner.logits(options, &hidden, 0..decoder.vocabulary())
            };
            let (ours, theirs) = (logits(options), logits(ForwardOptions::default()));
            let rows = ours.chunks_exact(decoder.vocabulary()).zip(theirs.chunks_exact(decoder.vocabulary()));
            for (ours, theirs) in rows.take(sequence.len() - 1) {
                sum += divergence(ours, theirs);
                count += 1.0;
            }
        }
        assert!((kl(3) / (sum / count) - 1.0).abs() < 1e-3, "{} {}", kl(3), sum / count);
        let plain =
            evaluate_sequences(&decoder, Some(&decoder), &ops, &sequences, u64::MAX, |_, _| ControlFlow::Continue(()));
        let plain = plain.unwrap().comparison.unwrap().reference_perplexity;
        assert!(variants.found.iter().all(|(_, found)| (found.reference_perplexity / plain - 1.0).abs() < 1e-9));
    }
}

fn divergence(ours: &[f32], theirs: &[f32]) -> f64 {
    let probabilities = |row: &[f32]| {
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let all: Vec<f64> = row.iter().map(|z| f64::from(*z - largest).exp()).collect();
        let sum: f64 = all.iter().sum();
        all.into_iter().map(|p| p / sum).collect::<Vec<_>>()
    };
    probabilities(theirs).iter().zip(probabilities(ours)).map(|(p, q)| p * (p / q).ln()).sum()
}
