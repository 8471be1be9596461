//! Small histograms beside each other, as SVG.

use super::chart::{document, round};
use super::number;
use svg::node::element::{Line, Polyline, Rectangle};

/// The size of a histogram.
const WIDTH: f64 = 220.0;
const HEIGHT: f64 = 70.0;
/// The room above the highest bin.
const HEADROOM: f64 = 4.0;

/// Small histograms side by side.
#[derive(Clone, Debug)]
pub(super) struct Histograms {
    pub title: String,
    pub rows: Vec<Histogram>,
}

/// A histogram, or two over the same bins.
#[derive(Clone, Debug)]
pub(super) struct Histogram {
    pub name: String,
    /// What is said of it, in a few words.
    pub note: String,
    /// The lower end of the first bin and the upper end of the last.
    pub ends: [f64; 2],
    /// The height of each bin, drawn as an area.
    pub area: Vec<f64>,
    /// The same of a second histogram, drawn as a line; empty without one.
    pub line: Vec<f64>,
    /// The values that a scale covers.
    pub covered: Option<[f64; 2]>,
    /// Whether values outside of these are clipped.
    pub is_clipped: bool,
}

/// The heights of bins as shares of all counts.
pub(super) fn shares(counts: &[f64]) -> Vec<f64> {
    let sum = counts.iter().sum::<f64>().max(1.0);
    counts.iter().map(|count| count / sum).collect()
}

/// The heights of bins as logarithms: a single value is seen beside millions.
pub(super) fn logarithms(counts: &[f64]) -> Vec<f64> {
    counts.iter().map(|count| (1.0 + count.max(0.0)).log10()).collect()
}

impl Histogram {
    /// The ends of the bins as text.
    pub fn end_labels(&self) -> [String; 2] {
        self.ends.map(|end| number(Some(end)))
    }

    /// What the picture shows, in words.
    pub fn label(&self) -> String {
        let [low, high] = self.end_labels();
        let note = if self.note.is_empty() { String::new() } else { format!("; {}", self.note) };
        format!("{}: {low} to {high}{note}", self.name)
    }

    /// The chart.
    pub fn svg(&self) -> String {
        let most = self.area.iter().chain(&self.line).copied().fold(f64::MIN_POSITIVE, f64::max);
        let scaled = |heights: &[f64]| -> Vec<f64> {
            heights.iter().map(|height| height / most * (HEIGHT - HEADROOM)).collect()
        };
        let mut drawing = document(&self.label()).set("viewBox", (0, 0, WIDTH, HEIGHT));
        let covered = self.covered.map(|ends| ends.map(|end| self.place(end)));
        if let Some([left, right]) = covered {
            let band = Rectangle::new().set("class", "covered").set("x", round(left)).set("y", 0);
            drawing = drawing.add(band.set("width", round(right - left)).set("height", HEIGHT));
        }
        let area = scaled(&self.area);
        // What is behind a line is fainter.
        let class = if self.line.is_empty() { "counts" } else { "area" };
        drawing = drawing.add(Polyline::new().set("class", class).set("points", outline(&area)));
        if let Some(covered) = covered {
            if self.is_clipped {
                drawing = clipped(&area, covered).into_iter().fold(drawing, svg::Document::add);
            }
            // Lines at the edges are as thick as others.
            for end in covered.map(|end| round(end.clamp(0.75, WIDTH - 0.75))) {
                let line = Line::new().set("class", "end").set("x1", end).set("x2", end);
                drawing = drawing.add(line.set("y1", 0).set("y2", HEIGHT));
            }
        }
        if !self.line.is_empty() {
            let line = scaled(&self.line);
            drawing = drawing.add(Polyline::new().set("class", "outline").set("points", outline(&line)));
        }
        drawing.to_string()
    }

    /// Where a value is drawn.
    fn place(&self, value: f64) -> f64 {
        let [low, high] = self.ends;
        if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) * WIDTH } else { 0.0 }
    }
}

/// The width of a bin.
fn bin_width(heights: &[f64]) -> f64 {
    WIDTH / heights.len().max(1) as f64
}

/// The steps of the outline, from the left end of the base to the right one.
fn outline(heights: &[f64]) -> String {
    let width = bin_width(heights);
    let steps = heights.iter().enumerate().flat_map(|(index, height)| {
        let y = round(HEIGHT - height);
        [(index as f64 * width, y), ((index + 1) as f64 * width, y)]
    });
    let all = std::iter::once((0.0, HEIGHT)).chain(steps).chain([(WIDTH, HEIGHT)]);
    all.map(|(x, y)| format!("{},{y}", round(x))).collect::<Vec<_>>().join(" ")
}

/// The parts of bins outside of what is covered.
fn clipped(heights: &[f64], [left, right]: [f64; 2]) -> Vec<Rectangle> {
    let width = bin_width(heights);
    let parts = heights.iter().enumerate().filter(|(_, height)| **height > 0.0).flat_map(|(index, height)| {
        let (start, end) = (index as f64 * width, (index + 1) as f64 * width);
        [(start, end.min(left), *height), (start.max(right), end, *height)]
    });
    let part = |(start, end, height): (f64, f64, f64)| {
        let rectangle =
            Rectangle::new().set("class", "clipped").set("x", round(start)).set("y", round(HEIGHT - height));
        rectangle.set("width", round(end - start)).set("height", round(height))
    };
    parts.filter(|(start, end, _)| round(end - start) > 0.0).map(part).collect()
}
