//! Scores of queries and keys with embeddings of distances: see [`DistanceEmbeddings`].

use super::blueprint::{AttentionLayer, DistanceEmbeddings, Projections};
use super::heads::{HeadLayout, Heads};
use super::ops::Attention;
use super::run::Run;
use super::spans::Spans;
use super::tensors::Projection;
use kvant_numeric::linalg::{Matrix, MatrixMut, ScoreBias, Threads, multiply};
use rayon::prelude::*;
use std::ops::Range;

/// What the projections make of the table, where it has a part in scores.
struct Projected {
    keys: Option<Vec<f32>>,
    queries: Option<Vec<f32>>,
}

impl Run<'_, '_> {
    /// Attention with scores of distances, sequence by sequence.
    pub(super) fn attend_with_distances(
        &self,
        layer: &AttentionLayer,
        distances: &DistanceEmbeddings,
        attention: &Attention<'_>,
        attend: impl Fn(&Attention<'_>) -> Vec<f32>,
    ) -> Vec<f32> {
        let Projections::Separate { layers, .. } = &layer.projections else { return attend(attention) };
        let [query, key, _] = &**layers;
        let table = self.distance_rows(distances);
        let projected = Projected {
            keys: distances.of_queries.then(|| self.distance_projection(key, &table)),
            queries: distances.of_keys.then(|| self.distance_projection(query, &table)),
        };
        let length = attention.length.max(1);
        let rows = attention.queries.data.len() / attention.queries.row_width.max(1);
        let mut out = Vec::new();
        for sequence in 0..rows / length {
            let part = sequence * length..(sequence + 1) * length;
            let [queries, keys, values] =
                [attention.queries, attention.keys, attention.values].map(|heads| rows_of(heads, &part));
            let biases = self.distance_scores(distances, &projected, (&queries, &keys), (length, attention.scale));
            let bias = ScoreBias::OfPairs { biases: &biases, keys: length };
            out.extend(attend(&Attention { queries, keys, values, bias, ..attention.clone() }));
        }
        out
    }

    /// The rows of the table, normalised where they are.
    fn distance_rows(&self, distances: &DistanceEmbeddings) -> Vec<f32> {
        let mut rows = Vec::new();
        (0..distances.table.rows).for_each(|row| self.read_row(&distances.table, row, &mut rows));
        let precision = self.ops.precision();
        rows.iter_mut().for_each(|value| *value = precision.round(*value));
        if let Some(norm) = &distances.norm {
            self.norm(norm, &mut rows, distances.table.columns);
        }
        rows
    }

    fn distance_projection(&self, layer: &Projection, rows: &[f32]) -> Vec<f32> {
        self.linear_of(layer, rows, Spans::Even(rows.len() / layer.columns.max(1)))
    }

    /// What is added to the scores of one sequence: head after head, query after query, a number for each key.
    fn distance_scores(
        &self,
        distances: &DistanceEmbeddings,
        projected: &Projected,
        (queries, keys): (&Heads<'_>, &Heads<'_>),
        (length, scale): (usize, f32),
    ) -> Vec<f32> {
        let (heads, width, buckets) = (queries.layout.count, queries.layout.width, distances.table.rows);
        let precision = self.ops.precision();
        let rows: Vec<usize> = (0..2 * length - 1).map(|at| distances.row(at as i64 - length as i64 + 1)).collect();
        let mut scores = vec![0.0; heads * length * length];
        scores.par_chunks_mut(length * length).enumerate().for_each(|(head, scores)| {
            let with = |content: &Heads<'_>, table: &Option<Vec<f32>>| {
                let table = table.as_ref()?;
                let layout = HeadLayout::packed(heads, width);
                let table = Heads { data: table, row_width: heads * width, layout };
                let mut products = vec![0.0; length * buckets];
                let content = Matrix::new(content.from(0, head), length, width, content.row_width);
                let table = Matrix::new(table.from(0, head), buckets, width, table.row_width);
                let out = MatrixMut::new(&mut products, length, buckets, buckets);
                multiply(out, content, table.transposed(), scale, Threads::One);
                products.iter_mut().for_each(|value| *value = precision.round(*value));
                Some(products)
            };
            let (of_queries, of_keys) = (with(queries, &projected.keys), with(keys, &projected.queries));
            for (query, scores) in scores.chunks_exact_mut(length).enumerate() {
                for (key, score) in scores.iter_mut().enumerate() {
                    let row = rows[query + length - 1 - key];
                    let of = |products: &Option<Vec<f32>>, at: usize| {
                        products.as_ref().map_or(0.0, |products| products[at * buckets + row])
                    };
                    *score = precision.round(of(&of_queries, query) + of(&of_keys, key));
                }
            }
        });
        scores
    }
}

/// Some of the rows.
fn rows_of<'h>(heads: Heads<'h>, rows: &Range<usize>) -> Heads<'h> {
    Heads { data: &heads.data[rows.start * heads.row_width..rows.end * heads.row_width], ..heads }
}
