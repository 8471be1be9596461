//! Writes the gradients of the weights of each block, for comparison with other implementations.
//!
//! ```text
//! gradients MODEL LENGTH TOKENS ALONG OUT
//! ```
//!
//! `TOKENS` holds sequences of `LENGTH` little-endian `u32`, `ALONG` the gradient of a block's output as `f32`, the same for every block. The
//! directory `OUT` receives a file for each linear layer of a block, named as its module; blocks without gradients are printed.

#![allow(clippy::print_stdout)] // Tests read what it refuses.

use kvant_container::Checkpoint;
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::gradient::{BlockGradient, BlockGradients};
use kvant_forward::forward::{Decoder, ForwardOptions, Runner, WeightOverrides};
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, length, tokens, along, out] = arguments.as_slice() else {
        return Err("usage: gradients MODEL LENGTH TOKENS ALONG OUT".into());
    };
    let words = |path: &String| -> std::io::Result<Vec<[u8; 4]>> {
        Ok(std::fs::read(path)?.chunks_exact(4).map(|word| [word[0], word[1], word[2], word[3]]).collect())
    };
    let tokens: Vec<u32> = words(tokens)?.into_iter().map(u32::from_le_bytes).collect();
    let along: Vec<f32> = words(along)?.into_iter().map(f32::from_le_bytes).collect();
    let length: usize = length.parse()?;
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let decoder = Decoder::open(&checkpoint)?;
    let cpu = Cpu::default();
    let runner = Runner::new(&decoder, &cpu);
    let options = ForwardOptions::default();
    let mut x = runner.embed(options, &tokens, length)?;
    for index in 0..decoder.blueprint().blocks.len() {
        match BlockGradient::new(&runner, index) {
            Err(error) => println!("{index}: {error}"),
            Ok(block) => {
                let weights = block.weights(&WeightOverrides::default());
                let zeros = |(name, values): (&String, &Vec<f32>)| (name.clone(), vec![0.0; values.len()]);
                let mut gradients =
                    BlockGradients { weights: weights.iter().map(zeros).collect(), ..BlockGradients::default() };
                block.forward(options, &weights, &x, length).backward(along.clone(), &mut gradients);
                for (name, values) in gradients.weights {
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    std::fs::write(Path::new(out).join(name), bytes)?;
                }
            }
        }
        // Without an explicit end, a run continues to that of the block.
        let _ = runner.block(options, index, length, &mut x);
    }
    Ok(())
}
