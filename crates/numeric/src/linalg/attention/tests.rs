//! Attention against its definition in `f64`.

use super::*;

const PLAIN: AttentionRule<'_> = AttentionRule {
    scale: 0.2,
    cap: None,
    window: None,
    ahead: 0,
    ends: &[],
    chunk: None,
    sink: None,
    bias: ScoreBias::NONE,
};

/// All of a sequence.
const BOTH_WAYS: AttentionRule<'_> = AttentionRule { ahead: usize::MAX, ..PLAIN };

/// Causal but for two runs of positions, each of which sees all of itself.
const WITH_IMAGES: [usize; 200] = {
    let mut ends = [0; 200];
    let mut position = 0;
    while position < 200 {
        ends[position] = match position {
            5..50 => 50,
            100..177 => 177,
            _ => position + 1,
        };
        position += 1;
    }
    ends
};

/// Biases of 149 distances that grow by a quarter.
const SLOPE_OF_149: [f32; 149] = {
    let mut biases = [0.0; 149];
    let mut distance = 0;
    while distance < 149 {
        biases[distance] = distance as f32 * 0.25 - 10.0;
        distance += 1;
    }
    biases
};

/// Biases of 150 keys that grow by a quarter.
const SLOPE: &[f32] = &{
    let mut biases = [0.0; 150];
    let mut key = 0;
    while key < 150 {
        biases[key] = key as f32 * 0.25;
        key += 1;
    }
    biases
};

fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let value = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Precision::Bf16.round((state >> 8) as f32 / f32::from(1u16 << 11) / 2048.0 - 2.0)
    };
    (0..count).map(value).collect()
}

struct Case {
    length: usize,
    widths: (usize, usize),
    rule: AttentionRule<'static>,
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Case {
    fn new(length: usize, widths: (usize, usize), rule: AttentionRule<'static>) -> Case {
        let [queries, keys, values] =
            [(widths.0, 1), (widths.0, 2), (widths.1, 3)].map(|(width, seed)| values(length * width, seed));
        Case { length, widths, rule, queries, keys, values }
    }

    fn run(&self, isa: Isa, precision: Precision) -> Vec<f32> {
        let (width, wide) = self.widths;
        let matrix = |data, width| Matrix::new(data, self.length, width, width);
        let kv = KeysValues::new(matrix(&self.keys, width), matrix(&self.values, wide), precision);
        self.with(&kv, isa)
    }

    fn with(&self, kv: &KeysValues<'_>, isa: Isa) -> Vec<f32> {
        let (width, wide) = self.widths;
        let mut out = vec![f32::NAN; self.length * wide];
        let mut buffers = AttentionBuffers::default();
        for first in (0..self.length).step_by(QUERIES) {
            let count = QUERIES.min(self.length - first);
            let queries = Matrix::new(&self.queries[first * width..], count, width, width);
            let out = MatrixMut::new(&mut out[first * wide..], count, wide, wide);
            kv.attend(isa, queries, first, self.rule, out, &mut buffers);
        }
        out
    }

    /// The definition.
    fn expected(&self) -> Vec<f64> {
        let (width, wide) = self.widths;
        let row = |data: &[f32], width: usize, row: usize| -> Vec<f64> {
            data[row * width..(row + 1) * width].iter().map(|x| f64::from(*x)).collect()
        };
        let mut out = Vec::new();
        for query in 0..self.length {
            let q = row(&self.queries, width, query);
            let window = self.rule.window.map_or(0, |window| (query + 1).saturating_sub(window));
            let start = self.rule.chunk.map_or(window, |chunk| window.max(query / chunk * chunk));
            let end = self.rule.ends.get(query).copied();
            let end = end.unwrap_or((query + 1).saturating_add(self.rule.ahead)).min(self.length);
            let score = |key: usize| {
                let dot: f64 = q.iter().zip(row(&self.keys, width, key)).map(|(a, b)| a * b).sum();
                let scaled = dot * f64::from(self.rule.scale);
                let capped = self.rule.cap.map_or(scaled, |cap| f64::from(cap) * (scaled / f64::from(cap)).tanh());
                capped + self.rule.bias.of_query(query, key).first().map_or(0.0, |bias| f64::from(*bias))
            };
            let scores: Vec<f64> = (start..end).map(score).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sink = self.rule.sink.map_or(0.0, |sink| (f64::from(sink) - largest).exp());
            let sum = weights.iter().sum::<f64>() + sink;
            for column in 0..wide {
                let value = |(i, weight): (usize, &f64)| weight * f64::from(self.values[(start + i) * wide + column]);
                out.push(weights.iter().enumerate().map(value).sum::<f64>() / sum);
            }
        }
        out
    }
}

fn cases() -> Vec<Case> {
    let rule = |cap, window, sink| AttentionRule { cap, window, sink, ..PLAIN };
    vec![
        Case::new(1, (8, 8), PLAIN),
        Case::new(31, (64, 64), PLAIN),
        Case::new(200, (40, 24), PLAIN),
        Case::new(333, (33, 7), rule(None, Some(50), None)),
        Case::new(140, (64, 96), rule(Some(3.0), None, Some(1.5))),
        Case::new(260, (16, 80), rule(Some(2.0), Some(1), None)),
        // Scores of hundreds, so that the softmax must be taken relative to larger and larger ones.
        Case::new(300, (128, 32), AttentionRule { scale: 20.0, ..PLAIN }),
        Case::new(300, (32, 32), rule(None, Some(128), Some(-3.0))),
        Case::new(200, (24, 24), AttentionRule { chunk: Some(48), ..PLAIN }),
        Case::new(300, (32, 16), AttentionRule { chunk: Some(100), window: Some(70), ..PLAIN }),
        Case::new(150, (32, 32), AttentionRule { bias: ScoreBias::OfKeys(SLOPE), ..PLAIN }),
        Case::new(1, (8, 8), BOTH_WAYS),
        Case::new(32, (16, 16), BOTH_WAYS),
        Case::new(45, (16, 16), BOTH_WAYS),
        Case::new(300, (24, 40), AttentionRule { sink: Some(0.5), ..BOTH_WAYS }),
        Case::new(200, (32, 16), AttentionRule { window: Some(40), ahead: 39, ..PLAIN }),
        Case::new(75, (32, 32), AttentionRule { bias: ScoreBias::OfDistances(&SLOPE_OF_149), ..BOTH_WAYS }),
        Case::new(60, (32, 32), AttentionRule { bias: ScoreBias::OfDistances(&SLOPE_OF_149), ..PLAIN }),
        Case::new(200, (32, 16), AttentionRule { ends: &WITH_IMAGES, ..PLAIN }),
        Case::new(200, (24, 24), AttentionRule { ends: &WITH_IMAGES, window: Some(30), ..PLAIN }),
    ]
}

/// The largest difference from the definition. Values are below 2 in magnitude.
fn largest_error(case: &Case, ours: &[f32]) -> f64 {
    ours.iter().zip(case.expected()).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
}

#[test]
fn f32_attention_matches_its_definition_on_every_isa() {
    for case in cases() {
        // Scores in the thousands keep three digits less.
        let bound = if case.rule.scale > 1.0 { 5e-3 } else { 5e-6 };
        for isa in Isa::available() {
            let error = largest_error(&case, &case.run(isa, Precision::F32));
            assert!(error < bound, "{} {:?} {}: {error}", case.length, case.rule, isa.name());
        }
    }
}

#[test]
fn bf16_attention_is_within_rounding_of_its_definition() {
    for case in cases() {
        let (width, wide) = case.widths;
        let keys = Matrix::new(&case.keys, case.length, width, width);
        let values = Matrix::new(&case.values, case.length, wide, wide);
        let rows = KeysValues {
            form: Form::Rows(Lanes::new(keys, values)),
            count: case.length,
            value_width: wide,
            precision: Precision::Bf16,
        };
        let packed = TileUnit::available().into_iter().map(|unit| {
            let form = Form::Packed(unit, PackedKeys::new(unit, keys, values));
            case.with(
                &KeysValues { form, count: case.length, value_width: wide, precision: Precision::Bf16 },
                Isa::best(),
            )
        });
        for results in packed.chain([case.run(Isa::best(), Precision::Bf16), case.with(&rows, Isa::best())]) {
            // A weight and the result are each rounded to 8 bits.
            let error = largest_error(&case, &results);
            assert!(error < 2.0 / 128.0, "{} {:?}: {error}", case.length, case.rule);
            assert!(results.iter().all(|x| Precision::Bf16.round(*x) == *x));
        }
    }
}

#[test]
fn nan_keys_reach_the_outputs() {
    let mut case = Case::new(40, (8, 8), PLAIN);
    case.keys[17 * 8 + 3] = f32::NAN;
    for precision in [Precision::F32, Precision::Bf16] {
        let out = case.run(Isa::best(), precision);
        assert!(out[..17 * 8].iter().all(|x| x.is_finite()) && out[17 * 8..].iter().all(|x| x.is_nan()));
    }
}

#[test]
#[should_panic(expected = "shapes do not match")]
fn more_queries_than_a_block_are_refused() {
    let case = Case::new(40, (8, 8), PLAIN);
    let rows = |data| Matrix::new(data, 40, 8, 8);
    let kv = KeysValues::new(rows(&case.keys), rows(&case.values), Precision::F32);
    let mut out = vec![0.0; 320];
    let (out, mut buffers) = (MatrixMut::new(&mut out, 40, 8, 8), AttentionBuffers::default());
    kv.attend(Isa::best(), rows(&case.queries), 0, PLAIN, out, &mut buffers);
}
