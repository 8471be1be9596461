//! The older format of importance matrices, `.dat`: little-endian, the number of entries as `i32`, then for each the length
//! of its name and the name, the number of calls, the number of values and as many `f32` sums over the calls; at last the
//! number of chunks and the name of the data.

use super::{InputSums, Provenance};
use std::collections::BTreeMap;

/// The most entries of a model.
const MAX_ENTRIES: u32 = 1 << 20;

/// Bytes that are read off.
struct LegacyReader<'a>(&'a [u8]);

impl<'a> LegacyReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("it ends in the middle of an entry")?;
        self.0 = rest;
        Ok(taken)
    }

    /// A count: an `i32` that is not negative.
    fn count(&mut self) -> Result<usize, String> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        usize::try_from(i32::from_le_bytes(bytes)).map_err(|_| "a count is negative".to_owned())
    }

    fn text(&mut self) -> Result<String, String> {
        let count = self.count()?;
        String::from_utf8(self.take(count)?.to_vec()).map_err(|_| "a name is not UTF-8".to_owned())
    }
}

/// Reads a file. It does not say how many matrices a tensor has: all values are taken for one row of inputs.
pub(super) fn parse(bytes: &[u8]) -> Result<(BTreeMap<String, InputSums>, Provenance), String> {
    let mut reader = LegacyReader(bytes);
    let entries = reader.count()?;
    if entries == 0 || entries > MAX_ENTRIES as usize {
        return Err(format!("it is not an importance matrix: {entries} entries"));
    }
    let mut sums = BTreeMap::new();
    for _ in 0..entries {
        let name = reader.text()?;
        let calls = reader.count()?;
        let columns = reader.count()?;
        let values = reader.take(columns.checked_mul(4).ok_or("an entry is too long")?)?;
        let squares: Vec<f64> = values.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect();
        if squares.iter().any(|value| !value.is_finite() || *value < 0.0) {
            return Err(format!("a sum of `{}` is negative or not a number", name.escape_debug()));
        }
        sums.insert(name, InputSums { columns, squares, counts: vec![calls as u64] });
    }
    let chunks = reader.count().map_or(0, |count| count as u32);
    let datasets = reader.text().into_iter().filter(|text| !text.is_empty()).collect();
    Ok((sums, Provenance { chunks, datasets, ..Provenance::default() }))
}

/// The bytes of a file. Matrices that share an entry are written by their means, as if every one had been called as often.
pub(super) fn encode(sums: &BTreeMap<String, InputSums>, provenance: &Provenance) -> Vec<u8> {
    let mut out = Vec::new();
    let count = |out: &mut Vec<u8>, n: u64| out.extend_from_slice(&i32::try_from(n).unwrap_or(i32::MAX).to_le_bytes());
    let text = |out: &mut Vec<u8>, text: &str| {
        count(out, text.len() as u64);
        out.extend_from_slice(text.as_bytes());
    };
    count(&mut out, sums.len() as u64);
    for (name, sums) in sums {
        text(&mut out, name);
        let calls = u64::from(provenance.chunks.max(1));
        count(&mut out, calls);
        count(&mut out, sums.squares.len() as u64);
        for (matrix, squares) in sums.squares.chunks(sums.columns.max(1)).enumerate() {
            // An expert that no token was sent to weighs all inputs the same.
            let rows = sums.counts[matrix];
            let mean = |sum: &f64| if rows == 0 { 1.0 } else { sum / rows as f64 };
            squares.iter().for_each(|sum| out.extend_from_slice(&((mean(sum) * calls as f64) as f32).to_le_bytes()));
        }
    }
    count(&mut out, u64::from(provenance.chunks));
    text(&mut out, provenance.datasets.first().map_or("", String::as_str));
    out
}
