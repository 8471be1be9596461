//! AWQ's row for graphs. Its settings are those of [`kvant_quant::transform::Awq`].

use kvant_quant::transform::Awq;

use super::{Algorithm, AlgorithmRow};

/// The row.
pub(super) fn row() -> AlgorithmRow {
    let about = "scales the inputs of products so that rounding their weights changes outputs least, then clips weights: for four bits";
    let row = AlgorithmRow::new("awq", about, Awq::OPTIONS, Algorithm::Awq(Awq::DEFAULTS), |given| {
        Awq::read(given).map(Algorithm::Awq)
    });
    row.with_paper("arXiv 2306.00978")
}

#[cfg(test)]
mod tests {
    #[test]
    fn clip_is_searched_unless_switched_off() {
        let same = |text: &str| text.parse::<crate::algorithm::Algorithm>().map(|algorithm| algorithm.to_string());
        assert_eq!(same("awq:clip=on").unwrap(), "awq");
        assert_eq!(same("awq:clip=off:duo=on").unwrap(), "awq:duo=on:clip=off");
        assert_eq!(same("awq:tokens=64").unwrap(), "awq:tokens=64");
        assert!(same("awq:clip=off:tokens=64").is_err());
    }
}
