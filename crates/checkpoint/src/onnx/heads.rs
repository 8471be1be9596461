//! Heads of queries, keys and values as tensors `[batch, sequence, heads, width]`: taken out of projections, normalised, turned.

use super::builder::Value;
use super::decoder::Writer;
use kvant_forward::forward::HeadLayout;
use kvant_forward::forward::blueprint::{HeadNorms, NormLayer};
use kvant_model::family::{Pairing, QueryKeyNorm};

/// Heads of one kind.
#[derive(Clone, Debug)]
pub(super) struct HeadsOf {
    pub(super) value: Value,
    pub(super) count: usize,
    pub(super) width: usize,
}

impl Writer<'_, '_> {
    /// The heads that stand in rows `[batch, sequence, rows]` of a projection.
    pub(super) fn heads(&mut self, rows: &Value, row_width: usize, layout: HeadLayout) -> HeadsOf {
        let HeadLayout { start, step, width, count } = layout;
        let builder = &mut self.builder;
        let value = if step == width {
            let whole = start == 0 && count * width == row_width;
            let part = if whole { rows.clone() } else { builder.slice(rows, -1, start, start + count * width, 1) };
            builder.reshape(&part, &[0, 0, count as i64, width as i64])
        } else {
            let all = builder.reshape(rows, &[0, 0, -1, step as i64]);
            builder.slice(&all, -1, start % step, start % step + width, 1)
        };
        HeadsOf { value, count, width }
    }

    /// Norms of queries and keys.
    pub(super) fn norm_heads(&mut self, norms: Option<&HeadNorms>, queries: &mut HeadsOf, keys: &mut HeadsOf) {
        let Some(norms) = norms else { return };
        for (heads, norm) in [(queries, Some(&norms.query)), (keys, norms.key.as_ref())] {
            let Some(norm) = norm else { continue };
            heads.value = match norms.rule {
                QueryKeyNorm::AllHeads => self.norm_of_all(norm, heads),
                QueryKeyNorm::PerHead | QueryKeyNorm::PerHeadAfterRotary | QueryKeyNorm::PlainAfterRotary => {
                    self.norm(norm, &heads.value, heads.width, &[heads.count, heads.width])
                }
            };
        }
    }

    fn norm_of_all(&mut self, norm: &NormLayer, heads: &HeadsOf) -> Value {
        let width = heads.count * heads.width;
        let row = self.builder.reshape(&heads.value, &[0, 0, width as i64]);
        let row = self.norm(norm, &row, width, &[width]);
        self.builder.reshape(&row, &[0, 0, heads.count as i64, heads.width as i64])
    }

    /// The first `dim` components of each head, turned by the angles of rotary embedding `rotary`.
    pub(super) fn rotated(&mut self, (rotary, pairing): (usize, Pairing), heads: &HeadsOf) -> Value {
        let angles = self.rotaries[rotary].clone();
        let half = angles.dim / 2;
        let builder = &mut self.builder;
        let [(from, to, step), (from_second, to_second, _)] = match pairing {
            Pairing::Halves => [(0, half, 1), (half, angles.dim, 1)],
            Pairing::SwappedHalves => [(half, angles.dim, 1), (0, half, 1)],
            Pairing::Neighbours => [(0, angles.dim, 2), (1, angles.dim, 2)],
        };
        let first = builder.slice(&heads.value, -1, from, to, step);
        let second = builder.slice(&heads.value, -1, from_second, to_second, step);
        // first cos - second sin, second cos + first sin
        let mut turn = |operator: &str, a: &Value, b: &Value| {
            let (a, b) = (builder.binary("Mul", a, &angles.cos), builder.binary("Mul", b, &angles.sin));
            builder.binary(operator, &a, &b)
        };
        let (left, right) = (turn("Sub", &first, &second), turn("Add", &second, &first));
        let rotated = match pairing {
            Pairing::Halves => builder.concat(&[&left, &right], -1),
            Pairing::SwappedHalves => builder.concat(&[&right, &left], -1),
            Pairing::Neighbours => {
                let (left, right) = (builder.unsqueeze(&left, &[-1]), builder.unsqueeze(&right, &[-1]));
                let pairs = builder.concat(&[&left, &right], -1);
                builder.reshape(&pairs, &[0, 0, 0, angles.dim as i64])
            }
        };
        if angles.dim == heads.width {
            return rotated;
        }
        let rest = builder.slice(&heads.value, -1, angles.dim, heads.width, 1);
        builder.concat(&[&rotated, &rest], -1)
    }
}
