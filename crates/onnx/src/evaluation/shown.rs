//! What a report for people shows of a comparison beside its numbers: the values of outputs before and after, and images with their classes.

use std::path::{Path, PathBuf};

use kvant_quant::activation::Ends;
use kvant_quant::distribution::Distribution;
use serde::Serialize;

use super::classes::RowClasses;
use super::report::Report;
use crate::data::Samples;

/// Bins of a histogram.
const BINS: usize = 64;
/// The most images that are shown.
const MOST_IMAGES: usize = 24;
/// The longest side of a small picture, in pixels.
const SIDE: u32 = 96;

/// The values of an output in both models.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutputHistogram {
    /// The range that the bins divide evenly.
    pub bins: Ends,
    /// The number of values of the float model in each of 64 bins.
    pub before: Vec<u64>,
    /// The same of the quantized model.
    pub after: Vec<u64>,
}

/// The likeliest class of a row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct TopClass {
    /// Its number.
    pub class: usize,
    /// Its probability: the value, if the values of the row are probabilities, else its softmax.
    pub probability: f64,
}

/// An image of the data, and what both models make of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShownImage {
    /// The name of its file.
    pub name: String,
    /// A small picture of it in JPEG, as a data URI; `None` if it could not be read again.
    pub picture: Option<String>,
    /// The class that the float model finds likeliest.
    pub reference: TopClass,
    /// The class that the quantized model finds likeliest; `None` where it computes no numbers.
    pub quantized: Option<TopClass>,
}

impl OutputHistogram {
    /// Of the values of both models; `None` where there are none.
    pub(super) fn new([before, after]: &[Distribution; 2]) -> Option<OutputHistogram> {
        let bins = match (before.range()?, after.range()) {
            (before, Some(after)) => before.join(after),
            (before, None) => before,
        };
        let counts = |distribution: &Distribution| distribution.counts(bins, BINS);
        Some(OutputHistogram { bins: bins.into(), before: counts(before), after: counts(after) })
    }
}

impl TopClass {
    /// The likeliest class of a row, of equal ones the first; `None` for rows with NaN or without finite values.
    pub(super) fn of(row: &[f32]) -> Option<TopClass> {
        let is_known = row.iter().any(|value| value.is_finite()) && !row.iter().any(|value| value.is_nan());
        let best = row.iter().enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best });
        let (class, largest) = best.filter(|_| is_known)?;
        let sum: f64 = row.iter().map(|value| f64::from(*value)).sum();
        let is_distribution = row.iter().all(|value| *value >= 0.0) && (sum - 1.0).abs() < 1e-3;
        let exponential = |value: &f32| (f64::from(*value) - f64::from(*largest)).exp();
        let probability = match is_distribution {
            true => f64::from(*largest),
            // Infinite values share it.
            false if largest.is_infinite() => 1.0 / row.iter().filter(|value| *value == largest).count() as f64,
            false => 1.0 / row.iter().map(exponential).sum::<f64>(),
        };
        Some(TopClass { class, probability })
    }
}

impl Report {
    /// Adds the histograms of outputs and, where the samples are images and an output has a row of classes for each, some of them with their
    /// classes: those on which the models disagree first.
    pub fn show(&mut self, samples: &Samples) {
        for output in &mut self.outputs {
            output.histogram = output.distributions.as_deref().and_then(OutputHistogram::new);
        }
        self.images = shown(&self.rows, &samples.images());
    }
}

/// The images with the rows of classes that belong to them; none where there are not as many.
fn shown(rows: &[RowClasses], files: &[PathBuf]) -> Vec<ShownImage> {
    if rows.len() != files.len() {
        return Vec::new();
    }
    let all = files.iter().zip(rows).filter_map(|(file, row)| Some((file, row.reference?, row.quantized)));
    let disagrees = |(_, reference, quantized): &(&PathBuf, TopClass, Option<TopClass>)| {
        quantized.is_none_or(|quantized| quantized.class != reference.class)
    };
    let (first, others): (Vec<_>, Vec<_>) = all.partition(disagrees);
    let image = |(file, reference, quantized): (&PathBuf, TopClass, Option<TopClass>)| ShownImage {
        name: file.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        picture: picture(file),
        reference,
        quantized,
    };
    first.into_iter().chain(others).take(MOST_IMAGES).map(image).collect()
}

/// A small picture of an image as a data URI.
fn picture(file: &Path) -> Option<String> {
    use base64::Engine;
    let bytes = kvant_samples::small_jpeg(file, SIDE).ok()?;
    Some(format!("data:image/jpeg;base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_are_those_of_the_softmax_unless_they_are_given() {
        let of = |row: &[f32]| TopClass::of(row).map(|top| (top.class, (top.probability * 1e4).round() / 1e4));
        assert_eq!(of(&[0.25, 0.75]), Some((1, 0.75)));
        assert_eq!(of(&[1.0, 1.0, -1.0]), Some((0, 0.4683)));
        assert_eq!(of(&[1000.0, -1000.0]), Some((0, 1.0)));
        assert_eq!(of(&[f32::INFINITY, 1.0, f32::INFINITY]), Some((0, 0.5)));
        assert_eq!((of(&[f32::NAN, 1.0]), of(&[f32::NEG_INFINITY; 2])), (None, None));
    }

    #[test]
    fn disagreements_come_first() {
        let top = |class: usize| Some(TopClass { class, probability: 0.5 });
        let row = |reference, quantized| RowClasses { reference, quantized };
        let rows = [row(top(1), top(1)), row(top(2), top(3)), row(None, top(1)), row(top(4), None)];
        let files = ["a.png", "b.png", "c.png", "d.png"].map(PathBuf::from);
        let found = shown(&rows, &files);
        let names: Vec<&str> = found.iter().map(|image| image.name.as_str()).collect();
        assert_eq!(names, ["b.png", "d.png", "a.png"]);
        assert!(shown(&rows[..3], &files).is_empty(), "there must be a row for each image");
        let many: Vec<PathBuf> = (0..100).map(|number| PathBuf::from(format!("{number}.png"))).collect();
        assert_eq!(shown(&vec![row(top(1), top(1)); 100], &many).len(), MOST_IMAGES);
    }
}
