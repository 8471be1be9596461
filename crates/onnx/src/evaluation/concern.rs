//! What of an evaluation a user should be warned of.

use std::fmt;

use super::report::Report;

/// An output below it has lost so much that few uses survive.
pub const LOW_SQNR_DB: f64 = 15.0;

/// Share of samples whose top class may change before that is told.
const MOST_CHANGED: f64 = 0.1;

/// A reason to doubt a quantized model.
#[derive(Debug, Clone, PartialEq)]
pub enum Concern {
    /// An output differs much from the float model's.
    Output {
        /// Its name.
        name: String,
        /// Its SQNR in dB; not a number where the quantized model computes none.
        sqnr_db: f64,
    },
    /// The class that scores highest changed often.
    Classes {
        /// Share of samples for which it did.
        changed: f64,
    },
}

impl Concern {
    /// What is to be doubted of an evaluation.
    pub fn of(report: &Report) -> Vec<Self> {
        let low = |sqnr_db: f64| sqnr_db.is_nan() || sqnr_db < LOW_SQNR_DB;
        let outputs = report.outputs.iter().filter(|output| low(output.sqnr_db));
        let outputs = outputs.map(|output| Self::Output { name: output.name.clone(), sqnr_db: output.sqnr_db });
        let changed = report.top1_agreement.map(|same| 1.0 - same).filter(|changed| *changed > MOST_CHANGED);
        outputs.chain(changed.map(|changed| Self::Classes { changed })).collect()
    }
}

impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output { name, sqnr_db } if sqnr_db.is_nan() => {
                write!(f, "output `{name}` has NaN where the float model has numbers")
            }
            Self::Output { name, sqnr_db } => {
                write!(f, "output `{name}` has an SQNR of {sqnr_db:.1} dB, below {LOW_SQNR_DB:.0} dB")
            }
            Self::Classes { changed } => {
                write!(f, "the top class differs from the float model's in {:.0} % of the samples", changed * 100.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::TensorReport;
    use super::*;

    fn report(sqnr: &[f64], same: Option<f64>) -> Report {
        let output = |&sqnr_db: &f64| TensorReport {
            name: "y".to_owned(),
            op: String::new(),
            sqnr_db,
            optimized_sqnr_db: None,
            cosine: 1.0,
            max_error: 0.0,
        };
        Report {
            engine: String::new(),
            reference_engine: String::new(),
            samples: 10,
            outputs: sqnr.iter().map(output).collect(),
            top1: None,
            top5: None,
            reference_top1: None,
            reference_top5: None,
            top1_agreement: same,
            top5_agreement: None,
            optimized_fails: None,
            scaled_tensors: 0,
            tensors: Vec::new(),
        }
    }

    #[test]
    fn low_outputs_numbers_that_are_none_and_changed_classes_are_told() {
        assert_eq!(Concern::of(&report(&[15.0, f64::INFINITY], Some(0.9))), []);
        assert_eq!(Concern::of(&report(&[14.9, 20.0], None)).len(), 1);
        let told: Vec<String> = Concern::of(&report(&[f64::NAN], Some(0.75))).iter().map(ToString::to_string).collect();
        assert!(told[0].contains("NaN") && told[1].contains("25 %"), "{told:?}");
    }
}
