use super::*;
use crate::evaluation::{Comparison, ModelStage, Variants, evaluate_variants};
use crate::forward::WeightOverrides;
use crate::forward::cpu::Cpu;
use kvant_container::Checkpoint;
use kvant_numeric::simd::Isa;
use kvant_weights::weight::WeightMatrix;
use std::path::Path;
use std::sync::Arc;

const MODULES: [(usize, &str); 4] = [
    (0, "model.layers.0.self_attn.o_proj"),
    (0, "model.layers.0.mlp.down_proj"),
    (3, "model.layers.3.self_attn.v_proj"),
    (3, "model.layers.3.mlp.up_proj"),
];

/// Small changes of single layers.
struct Changes<'d, 'a> {
    decoder: &'d Decoder<'a>,
    estimated: Vec<f64>,
    measured: Vec<f64>,
}

impl<'a> Changes<'_, 'a> {
    /// The weight of a module and its change.
    fn change(&self, (block, module): (usize, &str)) -> (Vec<f32>, WeightChange) {
        let layer = self.decoder.layer(block, module).unwrap();
        let weight = self.decoder.weight(layer).all_values(Isa::best());
        let mut random = kvant_quant::random::SplitMix64::new(module.len() as u64 + block as u64);
        let values = weight.iter().map(|_| (random.uniform() as f32 - 0.5) * 0.02).collect();
        (weight, WeightChange { module: module.to_owned(), outputs: layer.rows, inputs: layer.columns, values })
    }
}

impl BlockChanges for Changes<'_, '_> {
    type Error = EvaluationError;

    fn changes(&mut self, block: usize) -> Result<Vec<Vec<WeightChange>>, EvaluationError> {
        Ok(MODULES.iter().filter(|module| module.0 == block).map(|module| vec![self.change(*module).1]).collect())
    }

    fn found(&mut self, block: usize, divergences: Vec<f64>) -> Result<(), EvaluationError> {
        let places = (0..MODULES.len()).filter(|index| MODULES[*index].0 == block);
        places.zip(divergences).for_each(|(index, kl)| self.estimated[index] = kl);
        Ok(())
    }
}

impl<'a> Variants<'a> for Changes<'_, 'a> {
    type Error = EvaluationError;

    fn weights(&mut self, stage: ModelStage, variant: usize) -> Result<Option<WeightOverrides<'a>>, EvaluationError> {
        let module = MODULES[variant];
        if stage != ModelStage::Block(module.0) {
            return Ok(None);
        }
        let (mut weight, change) = self.change(module);
        weight.iter_mut().zip(&change.values).for_each(|(weight, change)| *weight += change);
        let mut overlay = WeightOverrides::default();
        overlay.set_weight(module.1, WeightMatrix::values(Arc::new(weight), change.outputs, change.inputs));
        Ok(Some(overlay))
    }

    fn found(&mut self, variant: usize, comparison: Comparison) -> Result<(), EvaluationError> {
        self.measured[variant] = comparison.kl_mean.value;
        Ok(())
    }
}

#[test]
fn estimates_are_close_to_measured_divergences() {
    let checkpoint = Checkpoint::open(Path::new("../../tests/models/nano_llama")).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    assert_eq!(missing_gradient(&decoder), None);
    let ops = Cpu::default();
    let sequences: Vec<Vec<u32>> =
        (0..24u32).map(|row| (0..48u32).map(|i| (i * i * 37 + row * 101 + i * 7) % 2000).collect()).collect();
    let mut changes = Changes { decoder: &decoder, estimated: vec![0.0; 4], measured: vec![0.0; 4] };
    let first = MODULES.map(|(block, _)| ModelStage::Block(block));
    let go_on = |_, _| ControlFlow::Continue(());
    evaluate_variants(&decoder, &ops, &sequences, u64::MAX, &first, &mut changes, go_on).unwrap();
    for memory in [u64::MAX, 0] {
        let mut last = (0, 0);
        let watch = |done, all| {
            last = (done, all);
            ControlFlow::Continue(())
        };
        fisher_divergences(&decoder, &ops, &sequences, memory, (1, 0), &mut changes, watch).unwrap();
        assert_eq!(last.0, last.1);
        for ((_, module), (estimated, measured)) in MODULES.iter().zip(changes.estimated.iter().zip(&changes.measured))
        {
            let ratio = estimated / measured;
            // What values of several tokens add up to in one output is left out.
            assert!((0.4..1.6).contains(&ratio), "{module}: {estimated} {measured}");
        }
    }
}
