//! Embeddings of distances that queries and keys attend to beside each other: disentangled attention (DeBERTa, arXiv 2006.03654).
//!
//! With `d(i, j)` the row for the distance from key `j` to query `i`, a score is `s (q_i k_j + q_i P_k[d(i, j)] + k_j P_q[d(i, j)])`; `P_k` and
//! `P_q` are what the projections of keys and queries make of the table.

use super::{NormLayer, Sources, parts::Parts};
use crate::forward::error::ForwardError;
use crate::forward::tensors::Projection;
use kvant_model::family::NormSite;
use kvant_model::network::Place;
use serde_json::Value;

/// The embeddings, and which scores they have a part in.
#[derive(Clone, Debug)]
pub struct DistanceEmbeddings {
    /// A row for each bucket, from the farthest key behind its query to the farthest before it.
    pub table: Projection,
    /// The norm of the rows.
    pub norm: Option<NormLayer>,
    /// Buckets on either side.
    pub span: usize,
    /// The number of buckets and the largest distance with a separate bucket, where far distances share buckets.
    pub buckets: Option<(usize, usize)>,
    /// Whether queries attend to embeddings (`c2p`).
    pub of_queries: bool,
    /// Whether keys attend to embeddings (`p2c`).
    pub of_keys: bool,
}

impl DistanceEmbeddings {
    /// Kinds of scores that are added.
    pub fn kinds(&self) -> usize {
        1 + usize::from(self.of_queries) + usize::from(self.of_keys)
    }

    /// The row for a key so far before its query; behind it where negative.
    pub fn row(&self, distance: i64) -> usize {
        let bucket = self.buckets.map_or(distance, |buckets| bucket(distance, buckets));
        let last = (2 * self.span).saturating_sub(1);
        (bucket + self.span as i64).clamp(0, last as i64) as usize
    }
}

/// The bucket of a distance: itself up to half of the buckets, `m`; beyond it `m + ceil(ln(|x| / m) / ln((farthest - 1) / m) (m - 1))`, with
/// its sign.
fn bucket(distance: i64, (buckets, farthest): (usize, usize)) -> i64 {
    let middle = (buckets / 2) as i64;
    let far = distance.abs();
    if far <= middle {
        return distance;
    }
    let m = middle as f32;
    let share = (far as f32 / m).ln() / ((farthest as f32 - 1.0) / m).ln();
    ((share * (m - 1.0)).ceil() as i64 + middle) * distance.signum()
}

impl<'a> Sources<'_, 'a> {
    /// The embeddings of distances, where the model has them.
    pub(super) fn distance_embeddings(&self) -> Result<Option<DistanceEmbeddings>, ForwardError> {
        let Some(path) = self.family.encoder.and_then(|encoder| encoder.distance_embeddings) else { return Ok(None) };
        let unsupported = |rule: &str| Err(ForwardError::unsupported(format!("{rule} in {}", self.family.name)));
        if !self.config.flag_or("relative_attention", false) {
            return unsupported("attention without `relative_attention`");
        }
        if !self.config.flag_or("share_att_key", false) {
            return unsupported("projections of distances of their own, without `share_att_key`");
        }
        let width = self.config.head_dim();
        if self.config.size("attention_head_size").is_some_and(|stated| Some(stated) != width) {
            return unsupported("`attention_head_size`");
        }
        let kinds = self.kinds_of_scores()?;
        let positive = |key: &str| {
            let stated = self.config.number(key)?.filter(|count| *count >= 1.0);
            Ok::<_, ForwardError>(stated.map(|count| count as usize))
        };
        let farthest = match positive("max_relative_positions")? {
            Some(stated) => stated,
            None => self.need(self.config.max_positions, "max_position_embeddings")?,
        };
        let buckets = positive("position_buckets")?;
        if buckets.is_some_and(|buckets| buckets < 4 || farthest <= buckets / 2 + 1) {
            return unsupported("fewer distances than buckets");
        }
        let span = buckets.unwrap_or(farthest);
        let at = self.network.places().iter().position(|place| *place == Place::RelativePositions);
        let at = at.ok_or_else(|| ForwardError::missing("the model", format!("table `{path}`")))?;
        let table = self.tensors.table(at)?;
        if table.rows != 2 * span || table.columns != self.hidden()? {
            let expected = format!("embeddings of {} buckets of distances", 2 * span);
            return Err(self.tensors.shape_error(at, &expected));
        }
        let norm = match self.config.text("norm_rel_ebd").is_some_and(|rule| rule.to_lowercase().contains("layer_norm"))
        {
            true => Parts::trunk(self).listed_norm(NormSite::Distances)?,
            false => None,
        };
        Ok(Some(DistanceEmbeddings {
            table,
            norm,
            span,
            buckets: buckets.map(|buckets| (buckets, farthest)),
            of_queries: kinds.iter().any(|kind| kind == "c2p"),
            of_keys: kinds.iter().any(|kind| kind == "p2c"),
        }))
    }

    /// The kinds of `pos_att_type`: a list, or a text with bars between them.
    fn kinds_of_scores(&self) -> Result<Vec<String>, ForwardError> {
        const KEY: &str = "pos_att_type";
        let kinds: Vec<String> = match self.json.get(KEY) {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::String(text)) => text.to_lowercase().split('|').map(|kind| kind.trim().to_owned()).collect(),
            Some(Value::Array(list)) => list.iter().filter_map(|kind| Some(kind.as_str()?.to_owned())).collect(),
            Some(_) => return Err(ForwardError::unsupported(format!("`{KEY}` of config.json"))),
        };
        match kinds.iter().find(|kind| !["c2p", "p2c"].contains(&kind.as_str())) {
            None => Ok(kinds),
            Some(kind) => Err(ForwardError::unsupported(format!("`{KEY}` {kind} of config.json"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_distances_share_buckets() {
        // Values of transformers' make_log_bucket_position with 32 buckets up to 128.
        let found = [0, 1, -1, 15, 16, 17, 20, 40, -40, 100, 127, -127].map(|far| bucket(far, (32, 128)));
        assert_eq!(found, [0, 1, -1, 15, 16, 17, 18, 23, -23, 30, 31, -31]);
    }
}
