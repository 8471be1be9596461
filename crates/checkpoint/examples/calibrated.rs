//! Quantizes a checkpoint with ranges of activations that something else has observed, as the interop tests do:
//! `calibrated MODEL RECIPE RANGES OUTPUT`. RANGES is JSON: places of the plan (`input:model.layers.0.mlp.up_proj`) with the
//! least and the greatest value seen there, as two numbers, or two for every feature one after the other. Prints the report.
#![allow(clippy::print_stdout)]

use kvant_checkpoint::calibration::{Statistics, resolve};
use kvant_checkpoint::engine::{self, Output, Silent, Start};
use kvant_checkpoint::plan::Plan;
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Durability};
use kvant_numeric::simd::Isa;
use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::atomic::AtomicBool;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, recipe, ranges, output] = arguments.as_slice() else {
        return Err("give MODEL RECIPE RANGES OUTPUT".into());
    };
    let recipe = Recipe::resolve(&Settings::default(), &Settings::read(Path::new(recipe))?)?.with_calibration(true);
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let plan = Plan::new(&checkpoint, recipe)?;
    let observed: BTreeMap<String, Vec<f32>> = serde_json::from_str(&std::fs::read_to_string(ranges)?)?;
    let mut statistics = Statistics::new(&plan)?;
    for (site, ends) in &observed {
        // The least of all features, then the greatest: two tokens.
        let (least, greatest): (Vec<f32>, Vec<f32>) = ends.chunks_exact(2).map(|ends| (ends[0], ends[1])).unzip();
        statistics.update(&site.parse()?, Isa::best(), &[least, greatest].concat(), ends.len() / 2);
    }
    let resolved = resolve(&plan, &statistics)?;
    println!("{}", serde_json::to_string(&resolved.report)?);
    let plan = plan.calibrated(resolved.parameters, None)?;
    if let Start::Working(begun) = Output::begin(&plan, Path::new(model), Path::new(output), false)? {
        engine::run(&plan, &checkpoint, &begun, 2, &AtomicBool::new(false), &Silent)?;
        begun.finish(&plan, &checkpoint, Durability::Process)?;
    }
    Ok(())
}
