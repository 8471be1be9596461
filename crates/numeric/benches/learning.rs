//! Speed of the three products of a linear layer whose weight learns, with factors in bf16 beside `f32` ones, in one run whose
//! rounds alternate: the ratios mean something on a shared machine, the times alone do not.
//!
//! `cargo bench -p kvant-numeric --bench learning [-- TOKENS THREADS]`
#![allow(clippy::print_stdout, clippy::unwrap_used, missing_docs)]

mod values;

use kvant_numeric::linalg::{LearningPrecision, Matrix, MatrixMut, Threads};
use std::hint::black_box;
use std::time::Instant;
use values::values;

const REPETITIONS: usize = 7;
/// Output and input features.
const SHAPES: [(usize, usize); 4] = [(2048, 2048), (256, 2048), (5632, 2048), (2048, 5632)];
const PRECISIONS: [LearningPrecision; 2] = [LearningPrecision::F32, LearningPrecision::Bf16];

fn main() {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let (tokens, threads) = (sizes.first().copied().unwrap_or(2048), sizes.get(1).copied().unwrap_or(1));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    println!("{tokens} rows, {threads} threads: GFLOP/s in bf16, and the ratio to f32");
    println!("{:>14} {:>16} {:>16} {:>16}", "weight", "outputs", "inputs' gradient", "weight's gradient");
    for (rows, columns) in SHAPES {
        let (x, w, g) = (values(tokens * columns), values(rows * columns), values(tokens * rows));
        let matrices = (
            Matrix::new(&x, tokens, columns, columns),
            Matrix::new(&w, rows, columns, columns),
            Matrix::new(&g, tokens, rows, rows),
        );
        let (mut out, mut back, mut sums) =
            (vec![0.0; tokens * rows], vec![0.0; tokens * columns], vec![0.0; rows * columns]);
        let mut least = [[f64::INFINITY; 3]; 2];
        for _ in 0..REPETITIONS {
            for (precision, least) in PRECISIONS.into_iter().zip(&mut least) {
                let mut timed = |index: usize, product: &mut (dyn FnMut() + Send)| {
                    let start = Instant::now();
                    pool.install(product);
                    least[index] = least[index].min(start.elapsed().as_secs_f64());
                };
                timed(0, &mut || {
                    precision.outputs(
                        MatrixMut::new(&mut out, tokens, rows, rows),
                        matrices.0,
                        matrices.1,
                        Threads::Pool,
                    )
                });
                timed(1, &mut || {
                    precision.input_gradient(
                        MatrixMut::new(&mut back, tokens, columns, columns),
                        matrices.2,
                        matrices.1,
                        Threads::Pool,
                    )
                });
                timed(2, &mut || {
                    precision.add_weight_gradient(
                        MatrixMut::new(&mut sums, rows, columns, columns),
                        matrices.2,
                        matrices.0,
                        Threads::Pool,
                    )
                });
                black_box((&out, &back, &sums));
            }
        }
        let shown = |index: usize| {
            let rate = (2 * tokens * rows * columns) as f64 / least[1][index] * 1e-9;
            format!("{rate:.0} ({:.2})", least[0][index] / least[1][index])
        };
        println!("{:>14} {:>16} {:>16} {:>16}", format!("{rows}x{columns}"), shown(0), shown(1), shown(2));
    }
}
