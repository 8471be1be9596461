//! Charts as SVG. Colours are those of the page, so that charts follow its light and dark modes.

use super::number;
use svg::Document;
use svg::node::element::{Circle, Line, Polyline, Rectangle, Text, Title};

/// The width of a chart; its height follows from what it shows.
const WIDTH: f64 = 800.0;
/// The height of a bar with its name.
const ROW: f64 = 40.0;
/// The longest bar, as a percentage of the page's width: the rest is for its number.
const LONGEST_BAR: f64 = 80.0;
/// The most characters of a name in a legend; the middle of longer ones is left out.
const LONGEST_NAME: usize = 90;

/// A bar for each name.
#[derive(Clone, Debug)]
pub(super) struct Bars {
    pub title: String,
    pub unit: String,
    pub rows: Vec<(String, f64)>,
}

/// A strip of cells for each name, the fuller the greater the values.
#[derive(Clone, Debug)]
pub(super) struct Strips {
    pub title: String,
    /// What a cell is of, with its number behind.
    pub cell: String,
    pub unit: String,
    pub rows: Vec<Strip>,
}

/// The values of a name.
#[derive(Clone, Debug)]
pub(super) struct Strip {
    pub name: String,
    pub values: Vec<f64>,
}

/// Points by two numbers.
#[derive(Clone, Debug)]
pub(super) struct Points {
    pub title: String,
    pub x: String,
    pub y: String,
    pub series: Vec<Series>,
}

/// Points that belong together.
#[derive(Clone, Debug)]
pub(super) struct Series {
    pub name: String,
    /// Whether a line joins them.
    pub is_line: bool,
    pub points: Vec<Point>,
}

/// A point with a name.
#[derive(Clone, Debug)]
pub(super) struct Point {
    pub x: f64,
    pub y: f64,
    pub name: String,
}

/// The beginning and the end of a name that is too long.
fn short(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= LONGEST_NAME {
        return name.to_owned();
    }
    let half = (LONGEST_NAME - 1) / 2;
    let (start, end) = (&letters[..half], &letters[letters.len() - half..]);
    start.iter().chain(['…'].iter()).chain(end).collect()
}

fn label(text: impl Into<String>, x: f64, y: f64, anchor: &str) -> Text {
    Text::new(text).set("x", round(x)).set("y", round(y)).set("text-anchor", anchor)
}

/// Two decimals are enough for a picture, and keep pages small.
pub(super) fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

/// An empty picture that screen readers name.
pub(super) fn document(title: &str) -> Document {
    Document::new().set("role", "img").set("aria-label", title).add(Title::new(title))
}

impl Bars {
    /// The chart: each name above its bar. Lengths are shares of the page's width, so that text keeps its size on narrow pages. Bars of
    /// negative values end at zero, which then is not at the edge.
    pub fn svg(&self) -> String {
        let most = self.rows.iter().map(|(_, value)| *value).fold(0.0, f64::max);
        let least = self.rows.iter().map(|(_, value)| *value).fold(0.0, f64::min);
        let place = |value: f64| if most > least { round((value - least) / (most - least) * LONGEST_BAR) } else { 0.0 };
        let zero = place(0.0);
        let height = ROW * self.rows.len() as f64;
        let drawing = document(&self.title).set("width", "100%").set("height", height);
        let rows = self.rows.iter().enumerate();
        let drawing = rows.fold(drawing, |drawing, (index, (name, value))| {
            let top = ROW * index as f64;
            let (start, end) = (zero.min(place(*value)), zero.max(place(*value)));
            let width = round(end - start).max(0.2);
            let shown = format!("{} {}", number(Some(*value)), self.unit);
            let bar = Rectangle::new()
                .set("class", "bar")
                .set("x", format!("{start}%"))
                .set("y", top + 18.0)
                .set("width", format!("{width}%"))
                .set("height", 10)
                .set("rx", 2)
                .add(Title::new(format!("{name}: {shown}")));
            let behind = Text::new(shown.trim_end())
                .set("x", format!("{}%", round(start + width)))
                .set("dx", 6)
                .set("y", top + 28.0);
            drawing.add(Text::new(name.as_str()).set("x", 0).set("y", top + 12.0)).add(bar).add(behind)
        });
        drawing.to_string()
    }
}

/// Strips with more cells than these in all have no text for each of them, which would make pages large.
const NAMED_CELLS: usize = 4096;
/// The height of a cell, and that of the least value above zero, which must differ from none.
const CELL: f64 = 18.0;
const LOWEST: f64 = 1.5;

impl Strips {
    /// The chart: each name above its cells, which fill the width of the page. A cell of no value is hollow. The bar in each other cell is as high
    /// as the value is, relative to the greatest of the strip.
    pub fn svg(&self) -> String {
        let is_named = self.rows.iter().map(|row| row.values.len()).sum::<usize>() <= NAMED_CELLS;
        let drawing = document(&self.title).set("width", "100%").set("height", ROW * self.rows.len() as f64);
        let drawing = self.rows.iter().enumerate().fold(drawing, |drawing, (index, row)| {
            let top = ROW * index as f64;
            let most = row.values.iter().copied().fold(0.0, f64::max);
            let width = 100.0 / row.values.len().max(1) as f64;
            let drawing = drawing.add(Text::new(row.name.as_str()).set("x", 0).set("y", top + 12.0));
            row.values.iter().enumerate().fold(drawing, |drawing, (number, value)| {
                let (class, height) = match *value > 0.0 {
                    true => ("bar", (CELL * value / most).max(LOWEST)),
                    false => ("hollow", CELL),
                };
                let cell = |class: &str, height: f64| {
                    Rectangle::new()
                        .set("class", class)
                        .set("x", format!("{}%", round(width * number as f64)))
                        .set("y", round(top + 16.0 + CELL - height))
                        .set("width", format!("{}%", round(0.92 * width)))
                        .set("height", round(height))
                };
                let name = format!("{}, {} {number}: {} {}", row.name, self.cell, number_of(*value), self.unit);
                let bar = cell(class, height);
                drawing.add(cell("cell", CELL)).add(if is_named { bar.add(Title::new(name)) } else { bar })
            })
        });
        drawing.to_string()
    }
}

/// A count, or a number of a measurement.
fn number_of(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { number(Some(value)) }
}

/// From a range of values to one of the chart, by logarithms if the values span more than a factor of twenty.
struct Axis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
    is_log: bool,
}

impl Axis {
    fn of(values: &[f64], start: f64, end: f64) -> Axis {
        let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        let is_log = low > 0.0 && high > 20.0 * low;
        let (low, high) = if is_log { (low.log10(), high.log10()) } else { (low, high) };
        let room = if high > low { 0.06 * (high - low) } else { 1.0 };
        Axis { low: low - room, high: high + room, start, end, is_log }
    }

    /// What it is labelled with: readers must see that steps are factors.
    fn label(&self, name: &str) -> String {
        if self.is_log { format!("{name}, logarithmic") } else { name.to_owned() }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.is_log { value.max(f64::MIN_POSITIVE).log10() } else { value };
        self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)
    }

    /// Round values along it.
    fn ticks(&self) -> Vec<f64> {
        let (low, high) = (self.low, self.high);
        if self.is_log {
            let tens = (low.floor() as i32..=high.ceil() as i32).map(|power| 10f64.powi(power));
            let all = tens.flat_map(|ten| if high - low < 2.5 { vec![ten, 2.0 * ten, 5.0 * ten] } else { vec![ten] });
            return all.filter(|tick| (low..=high).contains(&tick.log10())).collect();
        }
        let rough = (high - low) / 5.0;
        let ten = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * ten).into_iter().find(|step| *step >= rough);
        let step = step.unwrap_or(rough);
        (0..12)
            .map(|index| (low / step).ceil() * step + f64::from(index) * step)
            .take_while(|tick| *tick <= high)
            .collect()
    }
}

/// A tick without needless zeros.
fn tick_label(tick: f64) -> String {
    let text = number(Some(tick));
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

impl Points {
    /// The chart.
    pub fn svg(&self) -> String {
        let all: Vec<&Point> = self.series.iter().flat_map(|series| &series.points).collect();
        let legend = 20.0 * self.series.len() as f64;
        let (bottom, left) = (350.0, 80.0);
        let height = bottom + 44.0 + legend;
        let mut drawing = document(&self.title).set("viewBox", (0, 0, WIDTH, round(height)));
        if all.is_empty() {
            return drawing.to_string();
        }
        let across = Axis::of(&all.iter().map(|point| point.x).collect::<Vec<_>>(), left, WIDTH - 20.0);
        let up = Axis::of(&all.iter().map(|point| point.y).collect::<Vec<_>>(), bottom, 16.0);
        for tick in across.ticks() {
            let x = round(across.place(tick));
            let line = Line::new().set("class", "grid").set("x1", x).set("x2", x).set("y1", 16).set("y2", bottom);
            drawing = drawing.add(line).add(label(tick_label(tick), x, bottom + 18.0, "middle"));
        }
        for tick in up.ticks() {
            let y = round(up.place(tick));
            let line =
                Line::new().set("class", "grid").set("x1", left).set("x2", WIDTH - 20.0).set("y1", y).set("y2", y);
            drawing = drawing.add(line).add(label(tick_label(tick), left - 8.0, y + 4.0, "end"));
        }
        drawing = drawing.add(label(across.label(&self.x), (left + WIDTH) / 2.0, bottom + 36.0, "middle")).add(label(
            up.label(&self.y),
            left,
            12.0,
            "start",
        ));
        for (index, series) in self.series.iter().enumerate() {
            let class = format!("series s{}", index % 6);
            let places: Vec<String> = series
                .points
                .iter()
                .map(|point| format!("{},{}", round(across.place(point.x)), round(up.place(point.y))))
                .collect();
            if series.is_line {
                drawing = drawing.add(Polyline::new().set("class", class.as_str()).set("points", places.join(" ")));
            }
            for point in &series.points {
                let name = format!(
                    "{}: {} {}, {} {}",
                    point.name,
                    number(Some(point.x)),
                    self.x,
                    number(Some(point.y)),
                    self.y
                );
                let dot = Circle::new()
                    .set("class", class.as_str())
                    .set("cx", round(across.place(point.x)))
                    .set("cy", round(up.place(point.y)))
                    .set("r", if series.is_line { 3.5 } else { 5.5 });
                drawing = drawing.add(dot.add(Title::new(name)));
            }
        }
        for (index, series) in self.series.iter().enumerate() {
            let y = bottom + 56.0 + 20.0 * index as f64;
            let dot = Circle::new()
                .set("class", format!("series s{}", index % 6))
                .set("cx", left + 6.0)
                .set("cy", y)
                .set("r", 5);
            drawing = drawing.add(dot).add(label(short(&series.name), left + 18.0, y + 4.0, "start"));
        }
        drawing.to_string()
    }
}
