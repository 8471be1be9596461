//! Warnings about an evaluation.

use std::fmt;

use super::report::Report;

/// An output below it has lost so much that few uses survive.
pub const LOW_SQNR_DB: f64 = 15.0;

/// The remark if sums can saturate.
const SATURATED: &str = "sums of products with int8 weights saturate in onnxruntime's kernels on this processor";

/// Share of samples whose top class may change without a warning.
const MOST_CHANGED: f64 = 0.1;

/// A reason to doubt a quantized model.
#[derive(Debug, Clone, PartialEq)]
pub enum Concern {
    /// An output differs much from the float model's.
    Output {
        /// Its name.
        name: String,
        /// Its SQNR in dB; not a number where a model computes none.
        sqnr_db: f64,
        /// The SQNR without graph optimizations, where it is much better, and what takes the rest.
        unoptimized: Option<(f64, Kernels)>,
        /// Values that are NaN or infinite where the float model has numbers.
        non_finite: u64,
    },
    /// ONNX Runtime opens it with its graph optimizations and does not run it.
    Fails {
        /// The answer of ONNX Runtime.
        problem: String,
    },
    /// The class that scores highest changed often.
    Classes {
        /// Share of samples for which it did.
        changed: f64,
    },
}

/// The reason that a session with graph optimizations is worse than one without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// Sums of products saturate on this processor.
    Saturate,
    /// For another reason.
    Differ,
}

impl Concern {
    /// Concerns about an evaluation of a model meant for ONNX Runtime, or for other runtimes (`elsewhere`).
    /// `saturates` says whether the model has products that can saturate.
    pub fn of(report: &Report, saturates: bool, elsewhere: bool) -> Vec<Self> {
        let low = |sqnr_db: f64| sqnr_db.is_nan() || sqnr_db < LOW_SQNR_DB;
        let outputs = report.outputs.iter().filter(|output| low(output.sqnr_db));
        let kernels = if saturates { Kernels::Saturate } else { Kernels::Differ };
        let outputs = outputs.map(|output| Self::Output {
            name: output.name.clone(),
            sqnr_db: output.sqnr_db,
            unoptimized: output.much_better_db().map(|db| (db, kernels)),
            non_finite: output.non_finite,
        });
        let fails = report.optimized_fails.iter().filter(|_| !elsewhere);
        let fails = fails.map(|problem| Self::Fails { problem: problem.clone() });
        let changed = report.top1_agreement.map(|same| 1.0 - same).filter(|changed| *changed > MOST_CHANGED);
        fails.chain(outputs).chain(changed.map(|changed| Self::Classes { changed })).collect()
    }
}

impl fmt::Display for Concern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Output { name, sqnr_db, unoptimized, non_finite } => {
                match (non_finite, sqnr_db.is_nan()) {
                    (0, true) => write!(
                        f,
                        "the SQNR of output `{name}` is not known: the float model computes NaN or infinities"
                    )?,
                    (0, false) => {
                        write!(f, "output `{name}` has an SQNR of {sqnr_db:.1} dB, below {LOW_SQNR_DB:.0} dB")?;
                    }
                    _ => write!(f, "output `{name}` has NaN or infinite values where the float model has numbers")?,
                }
                let Some((better, kernels)) = unoptimized else { return Ok(()) };
                write!(f, "; without graph optimizations it has {better:.1} dB: ")?;
                match kernels {
                    Kernels::Saturate => f.write_str(SATURATED),
                    Kernels::Differ => f.write_str("onnxruntime's optimized kernels lose the rest"),
                }
            }
            Self::Fails { problem } => write!(f, "onnxruntime opens the result but fails to run it: {problem}"),
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
            unoptimized_sqnr_db: None,
            cosine: 1.0,
            max_error: 0.0,
            non_finite: u64::from(sqnr_db == f64::NEG_INFINITY),
            histogram: None,
            distributions: None,
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
            images: Vec::new(),
            rows: Vec::new(),
            tensors: Vec::new(),
            time: None,
        }
    }

    #[test]
    fn low_sqnr_non_finite_and_changed_classes_are_concerns() {
        let of = |report: &Report| Concern::of(report, true, false);
        assert_eq!(of(&report(&[15.0, f64::INFINITY], Some(0.9))), []);
        assert_eq!(of(&report(&[14.9, 20.0], None)).len(), 1);
        let infinite = report(&[f64::NEG_INFINITY, f64::NAN], Some(0.75));
        let told: Vec<String> = of(&infinite).iter().map(ToString::to_string).collect();
        assert!(told[0].contains("NaN or infinite") && told[2].contains("25 %"), "{told:?}");
        assert!(told[1].contains("the float model computes NaN"), "{told:?}");
    }

    #[test]
    fn kernel_losses_are_reported_separately() {
        let mut saturated = report(&[11.0], None);
        saturated.outputs[0].unoptimized_sqnr_db = Some(37.0);
        let told = |saturates| Concern::of(&saturated, saturates, false)[0].to_string();
        assert!(told(true).contains("11.0 dB") && told(true).contains("37.0 dB") && told(true).contains("saturate"));
        assert!(!told(false).contains("saturate") && told(false).contains("37.0 dB"));
    }

    #[test]
    fn unexpected_run_failure_is_a_concern() {
        let mut failed = report(&[40.0], None);
        failed.optimized_fails = Some("out of computation range".to_owned());
        let told: Vec<String> = Concern::of(&failed, false, false).iter().map(ToString::to_string).collect();
        assert!(told.len() == 1 && told[0].contains("out of computation range"), "{told:?}");
        assert_eq!(Concern::of(&failed, false, true), []);
    }
}
