//! GPTQ, GPTAQ and Qronos by the formulas of their papers: in f64, column by column, with the inverse of the Hessian, and
//! with errors pushed forward. It shares nothing with the crate but the scales that it is given.

use kvant_quant::hessian::Hessian;
use kvant_quant::rounding::{Damping, Gptq, Variant};
use kvant_quant::{Codes, QuantParts, QuantTensor};

type Dense = Vec<Vec<f64>>;

/// The reference's check of codes.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Codes that are those of the reference.
    pub equal: usize,
    /// Codes whose argument lies within the tolerance of the boundary to the reference's.
    pub ties: usize,
    /// The rest.
    pub wrong: usize,
    /// `tr((W - Q) H (W - Q)^T)`.
    pub loss: f64,
}

/// Runs the algorithm of `settings` over `weights`, and at every column compares the code of `tensor` with the nearest
/// one. Errors are those of the codes given, so that a tie is counted once and not in all that follows from it. A code is a
/// tie where the argument of rounding, moved by `tolerance` times the scale, has it.
pub fn judge(
    settings: Gptq,
    order: &[usize],
    hessian: &Hessian,
    weights: &[f32],
    tensor: &QuantTensor,
    tolerance: f64,
) -> Verdict {
    judge_watched(settings, order, hessian, weights, tensor, tolerance, |_, _, _| {})
}

/// The same, and shows the weights of a row as they are when a position is reached: row, position, weights by position.
pub fn judge_watched(
    settings: Gptq,
    order: &[usize],
    hessian: &Hessian,
    weights: &[f32],
    tensor: &QuantTensor,
    tolerance: f64,
    mut watch: impl FnMut(usize, usize, &[f64]),
) -> Verdict {
    let (rows, size) = tensor.shape();
    let grid = Grid::new(tensor);
    let problem = Problem::new(settings, order, hessian);
    let chosen = tensor.dequantize();
    let mut verdict = Verdict::default();
    for row in 0..rows {
        let alive = |c: usize| if problem.dead[c] { 0.0 } else { f64::from(weights[row * size + c]) };
        let original: Vec<f64> = order.iter().map(|c| alive(*c)).collect();
        let mut w = original.clone();
        for i in 0..size {
            let (column, index) = (order[i], row * size + order[i]);
            watch(row, i, &w);
            let argument = problem.argument(i, &original, &w);
            let q = f64::from(chosen[index]);
            let is = |shift: f64| f64::from(grid.nearest(index, argument + shift * grid.step(row, column))) == q;
            match (is(0.0), is(tolerance) || is(-tolerance)) {
                (true, _) => verdict.equal += 1,
                (false, true) => verdict.ties += 1,
                (false, false) => verdict.wrong += 1,
            }
            problem.push(i, argument, q, &original, &mut w);
        }
        let error: Vec<f64> = (0..size).map(|c| alive(c) - f64::from(chosen[row * size + c])).collect();
        let sums = hessian.gram().sums();
        let products =
            (0..size * size).map(|e| error[e / size] * f64::from(sums.symmetric(e / size, e % size)) * error[e % size]);
        verdict.loss += products.sum::<f64>();
    }
    verdict
}

/// The values of all codes at every place, found by dequantizing tensors of one code.
struct Grid {
    values: Vec<Vec<f32>>,
    steps: Vec<f64>,
    columns: usize,
}

impl Grid {
    fn new(tensor: &QuantTensor) -> Grid {
        let (rows, columns) = tensor.shape();
        let all_of = |code: u8| {
            let parts = QuantParts {
                codes: Codes::Bytes(vec![code; rows * columns]),
                scales: tensor.scales().to_vec(),
                zero_points: tensor.zero_points().to_vec(),
                global_scale: tensor.global_scale(),
            };
            QuantTensor::new(tensor.scheme(), rows, columns, parts).unwrap().dequantize()
        };
        let signed = tensor.scheme().format().to_string().starts_with("int");
        let bits = tensor.scheme().format().bits();
        let codes = (0..1u16 << bits).map(|c| if signed { (c as u8) << (8 - bits) } else { c as u8 });
        let codes = codes.map(|c| if signed { ((c as i8) >> (8 - bits)) as u8 } else { c });
        let values: Vec<Vec<f32>> = codes.map(all_of).collect();
        let finite = |i: usize| values.iter().map(move |v| v[i]).filter(|v| v.is_finite());
        let step = |i: usize| {
            let mut sorted: Vec<f32> = finite(i).collect();
            sorted.sort_by(f32::total_cmp);
            let gaps = sorted.windows(2).map(|pair| f64::from(pair[1] - pair[0])).filter(|gap| *gap > 0.0);
            gaps.fold(f64::INFINITY, f64::min)
        };
        let steps = (0..rows * columns).map(step).collect();
        Grid { values, steps, columns }
    }

    fn nearest(&self, index: usize, argument: f64) -> f32 {
        let values = self.values.iter().map(|values| values[index]).filter(|value| value.is_finite());
        let nearer =
            |a: f32, b: f32| if (f64::from(b) - argument).abs() < (f64::from(a) - argument).abs() { b } else { a };
        values.reduce(nearer).unwrap()
    }

    /// The distance of the nearest values.
    fn step(&self, row: usize, column: usize) -> f64 {
        self.steps[row * self.columns + column]
    }
}

struct Problem {
    variant: Variant,
    dead: Vec<bool>,
    /// In the order of rounding: the damped Hessian, what drift is, and the upper factor of the inverse.
    hessian: Dense,
    damping: f64,
    drift: Dense,
    upper: Dense,
    p: Dense,
    inverse_of_rest: Dense,
}

impl Problem {
    fn new(settings: Gptq, order: &[usize], hessian: &Hessian) -> Problem {
        let size = order.len();
        let sums = hessian.gram().sums();
        let diagonal: Vec<f64> = (0..size).map(|i| f64::from(sums.symmetric(i, i))).collect();
        let dead: Vec<bool> = diagonal.iter().map(|d| *d == 0.0).collect();
        let mean = diagonal.iter().sum::<f64>() / dead.iter().filter(|dead| !**dead).count() as f64;
        let mut h: Dense =
            order.iter().map(|a| order.iter().map(|b| f64::from(sums.symmetric(*a, *b))).collect()).collect();
        let damping = match settings.damping {
            Damping::OfMeanDiagonal(share) => share * mean,
            Damping::OfLargestEigenvalue(share) => share * largest_eigenvalue(&h),
        };
        for (i, column) in order.iter().enumerate() {
            h[i][i] = damping + if dead[*column] { mean } else { diagonal[*column] };
        }
        let drift: Dense = match hessian.mismatch() {
            Some(drift) => order.iter().map(|a| order.iter().map(|b| f64::from(drift.row(*a)[*b])).collect()).collect(),
            None => vec![vec![0.0; size]; size],
        };
        let upper = upper_factor(&inverse(&h));
        let p = match settings.variant {
            Variant::Gptaq { alpha } => gptaq_matrix(f64::from(alpha), &drift, &upper),
            _ => Vec::new(),
        };
        let mut inverse_of_rest = Vec::new();
        let mut upper = upper;
        if settings.variant == Variant::Qronos {
            inverse_of_rest = inverse(&without_first(&h));
            let rest = upper_factor(&inverse_of_rest);
            upper = vec![vec![0.0; size]; size];
            for i in 1..size {
                upper[i][1..].copy_from_slice(&rest[i - 1]);
            }
        }
        Problem { variant: settings.variant, dead, hessian: h, damping, drift, upper, p, inverse_of_rest }
    }

    /// What is rounded at position `i`, where `w` are the weights as they have become.
    fn argument(&self, i: usize, original: &[f64], w: &[f64]) -> f64 {
        if self.variant != Variant::Qronos || i > 0 {
            return w[i];
        }
        // G = H + D, all without damping.
        let diagonal = self.hessian[0][0] - self.damping;
        let h = |j: usize| if j == 0 { diagonal } else { self.hessian[0][j] };
        let g: f64 = (0..w.len()).map(|j| original[j] * (h(j) + self.drift[j][0])).sum();
        let others: f64 = (1..w.len()).map(|j| original[j] * h(j)).sum();
        (g - others) / diagonal
    }

    /// Pushes the error of position `i` to those after it.
    fn push(&self, i: usize, argument: f64, q: f64, original: &[f64], w: &mut [f64]) {
        if self.variant == Variant::Qronos && i == 0 {
            return self.solve_rest(q, original, w);
        }
        let error = (argument - q) / self.upper[i][i];
        for j in i + 1..w.len() {
            w[j] -= error * self.upper[i][j];
            if let Some(p) = self.p.get(i) {
                w[j] += argument * p[j];
            }
        }
    }

    /// `w_rest = (w (G + damping I)_rest - q H_0rest) H_rest^-1`.
    fn solve_rest(&self, q: f64, original: &[f64], w: &mut [f64]) {
        let size = w.len();
        let wanted = |j: usize| {
            let g = (0..size).map(|i| original[i] * (self.hessian[i][j] + self.drift[i][j])).sum::<f64>();
            g - q * self.hessian[0][j]
        };
        let right: Vec<f64> = (1..size).map(wanted).collect();
        for j in 1..size {
            w[j] = (0..size - 1).map(|i| right[i] * self.inverse_of_rest[i][j - 1]).sum();
        }
    }
}

/// `alpha triu(D U^T, 1) U`.
fn gptaq_matrix(alpha: f64, drift: &Dense, upper: &Dense) -> Dense {
    let size = drift.len();
    let s = |i: usize, j: usize| {
        if j > i { (0..size).map(|k| drift[i][k] * upper[j][k]).sum::<f64>() } else { 0.0 }
    };
    let s: Dense = (0..size).map(|i| (0..size).map(|j| s(i, j)).collect()).collect();
    let p = |i: usize, j: usize| alpha * (0..size).map(|k| s[i][k] * upper[k][j]).sum::<f64>();
    (0..size).map(|i| (0..size).map(|j| p(i, j)).collect()).collect()
}

fn without_first(matrix: &Dense) -> Dense {
    matrix[1..].iter().map(|row| row[1..].to_vec()).collect()
}

fn largest_eigenvalue(h: &Dense) -> f64 {
    let times = |v: &[f64]| -> Vec<f64> { h.iter().map(|row| row.iter().zip(v).map(|(a, b)| a * b).sum()).collect() };
    let mut v = vec![1.0; h.len()];
    for _ in 0..30 {
        v = times(&v);
        let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        v.iter_mut().for_each(|x| *x /= length);
    }
    times(&v).iter().zip(&v).map(|(a, b)| a * b).sum()
}

/// Gauss-Jordan elimination.
fn inverse(matrix: &Dense) -> Dense {
    let size = matrix.len();
    let mut a = matrix.clone();
    for (i, row) in a.iter_mut().enumerate() {
        row.extend((0..size).map(|j| f64::from(u8::from(i == j))));
    }
    for pivot in 0..size {
        let factor = 1.0 / a[pivot][pivot];
        a[pivot].iter_mut().for_each(|x| *x *= factor);
        let pivot_row = a[pivot].clone();
        for (i, row) in a.iter_mut().enumerate() {
            let factor = row[pivot];
            if i != pivot {
                row.iter_mut().zip(&pivot_row).for_each(|(x, p)| *x -= factor * p);
            }
        }
    }
    a.into_iter().map(|row| row[size..].to_vec()).collect()
}

/// The upper triangular `U` with `U^T U = A`.
fn upper_factor(matrix: &Dense) -> Dense {
    let size = matrix.len();
    let mut upper = vec![vec![0.0; size]; size];
    for i in 0..size {
        let square = matrix[i][i] - (0..i).map(|k| upper[k][i] * upper[k][i]).sum::<f64>();
        upper[i][i] = f64::sqrt(square);
        for j in i + 1..size {
            let sum: f64 = (0..i).map(|k| upper[k][i] * upper[k][j]).sum();
            upper[i][j] = (matrix[i][j] - sum) / upper[i][i];
        }
    }
    upper
}
