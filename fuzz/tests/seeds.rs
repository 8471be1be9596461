//! Runs each target on its seeds, among them what fuzzers have found, and on damaged copies of them. This takes no fuzzer.

use std::fs;
use std::path::Path;

/// Damaged copies of each seed, where KVANT_DAMAGED_COPIES says nothing else.
const COPIES: u64 = 24;

/// A sequence of numbers without a pattern.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound.max(1)
    }
}

/// Flips bits, cuts, repeats and overwrites: a few changes at a time.
fn damaged(seed: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(4) {
        let (at, length) = (random.below(bytes.len()), 1 + random.below(8));
        let end = (at + length).min(bytes.len());
        match random.below(5) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << random.below(8),
            1 => bytes.truncate(at),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let copy = bytes[at..end].to_vec();
                bytes.splice(at..at, copy);
            }
            _ => {
                let digits = ["0", "-1", "1e9", "18446744073709551615", "null", "[]", "\u{0}"][random.below(7)];
                bytes.splice(at..end, digits.bytes());
            }
        }
    }
    bytes
}

fn run(target: &str, feed: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target);
    let mut files: Vec<_> = fs::read_dir(&directory).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{target} has no seeds");
    let copies = std::env::var("KVANT_DAMAGED_COPIES").map_or(COPIES, |copies| copies.parse().unwrap());
    for (index, file) in files.iter().enumerate() {
        let seed = fs::read(file).unwrap();
        feed(&seed);
        let mut random = Random(index as u64);
        (0..copies).for_each(|_| feed(&damaged(&seed, &mut random)));
    }
}

macro_rules! targets {
    ($($target:ident),+) => {
        $(
            #[test]
            fn $target() {
                run(stringify!($target), kvant_fuzz::$target::run);
            }
        )+
    };
}

targets!(
    calibration_data,
    checkpoint,
    gguf_header,
    gguf_values,
    onnx_model,
    pickle,
    recipe,
    safetensors_header,
    tokenizer
);
