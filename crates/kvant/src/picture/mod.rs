//! A small graph as a picture: boxes for its operators with types, shapes and scales, in light and dark.

mod boxes;
mod layout;

use crate::error::{Error, ErrorKind};
use crate::inspect::GraphListing;
use crate::text::shown;
use boxes::{GraphBox, GraphBoxes, Kind};
use kvant_container::Remedy;
use layout::{BoxSize, Layout, Route};
use std::path::Path;
use svg::Document;
use svg::node::element::{Group, Path as Curve, Rectangle, Style, Text, Title, path::Data};

/// The most nodes of a picture: larger ones cannot be read.
pub const MOST_NODES: usize = 200;

/// The size of text, and the width of a letter of a fixed-width font in it.
const FONT: f64 = 12.0;
const LETTER: f64 = 7.25;
const LINE_HEIGHT: f64 = 16.0;
/// Space around text in a box, and around the picture.
const PADDING: f64 = 8.0;
const MARGIN: f64 = 24.0;
/// Height of the line that explains colours.
const LEGEND: f64 = 36.0;

const STYLE: &str = "\
svg{background:#fff;font:12px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace}\
text{fill:#1c2024}.soft{fill:#5c6670}.op{font-weight:bold}\
.box{fill:#f5f7f9;stroke:#8a949e;stroke-width:1.2}.paper{fill:#fff}\
.end{stroke:#1f6feb;fill:#eaf2fd}.pair{stroke:#c2410c;fill:#fdf1ea}.codes{stroke:#15803d;fill:#eaf6ee}\
.line{fill:none;stroke:#8a949e;stroke-width:1.2}.tip{fill:#8a949e}\
@media(prefers-color-scheme:dark){svg{background:#14171a}.paper{fill:#14171a}text{fill:#e6e9ec}.soft{fill:#9aa5b1}\
.box{fill:#1d2227;stroke:#6b7682}.end{stroke:#5aa2ff;fill:#16263b}.pair{stroke:#fb923c;fill:#33221a}.codes{stroke:#4ade80;fill:#17301f}\
.line{stroke:#6b7682}.tip{fill:#6b7682}}";

/// Writes the picture of a graph.
///
/// # Errors
/// *Invalid* for more than [`MOST_NODES`] nodes, for files that are no graphs, and for a picture that exists; the system's.
pub fn write_picture(model: &Path, path: &Path) -> Result<(), Error> {
    if path.symlink_metadata().is_ok() {
        let failure = Error::new(ErrorKind::Invalid, format!("{} exists already", shown(path)));
        return Err(failure.with_remedies(vec![Remedy::text("name another file for ‹svg›, or move it away")]));
    }
    let picture = drawn(&GraphListing::of(model, true)?)?;
    let written = kvant_container::write_file(path, picture.as_bytes());
    written.map_err(|cause| Error::io(format!("cannot write {}", shown(path)), &cause))
}

fn drawn(listing: &GraphListing) -> Result<String, Error> {
    let graph = GraphBoxes::of(listing);
    if graph.nodes > MOST_NODES {
        let problem =
            format!("a graph of {} nodes is too large for a picture, which shows {MOST_NODES} at most", graph.nodes);
        let hint = "`kvant graph extract` cuts out a part";
        return Err(Error::new(ErrorKind::Invalid, problem).with_hint(Some(hint.to_owned())));
    }
    let sizes: Vec<BoxSize> = graph.boxes.iter().map(size).collect();
    let layout = layout::place(&sizes, &graph.edges);
    Ok(document(&graph, &sizes, &layout).to_string())
}

/// The size of a box around its lines.
fn size(of: &GraphBox) -> BoxSize {
    let letters = of.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    BoxSize {
        width: letters as f64 * LETTER + 2.0 * PADDING,
        height: of.lines.len() as f64 * LINE_HEIGHT + 2.0 * PADDING,
    }
}

fn document(graph: &GraphBoxes, sizes: &[BoxSize], layout: &Layout) -> Document {
    let legend = legend();
    let width = layout.width.max(legend.width) + 2.0 * MARGIN;
    let height = layout.height + LEGEND + 2.0 * MARGIN;
    let shift = format!("translate({} {})", round((width - layout.width) / 2.0), MARGIN + LEGEND);
    let lines = layout.routes.iter().fold(Group::new(), |group, route| group.add(line(route)).add(tip(route)));
    let boxes = graph.boxes.iter().enumerate().fold(Group::new(), |group, (at, of)| {
        group.add(drawn_box(of, sizes[at], layout.boxes[at].x, layout.boxes[at].y))
    });
    Document::new()
        .set("role", "img")
        .set("aria-label", graph.title.as_str())
        .set("width", round(width))
        .set("height", round(height))
        .set("viewBox", (0, 0, width.ceil() as i64, height.ceil() as i64))
        .add(Title::new(graph.title.as_str()))
        .add(Style::new(STYLE))
        .add(Rectangle::new().set("class", "paper").set("width", "100%").set("height", "100%"))
        .add(legend.group)
        .add(Group::new().set("transform", shift).add(lines).add(boxes))
}

/// What the colours mean.
struct Legend {
    group: Group,
    width: f64,
}

fn legend() -> Legend {
    let kinds = [
        (Kind::End, "input or output"),
        (Kind::Pair, "quantizes or dequantizes"),
        (Kind::Codes, "computes with codes"),
        (Kind::Other, "other operator"),
    ];
    let mut left: f64 = MARGIN;
    let group = kinds.into_iter().fold(Group::new(), |group, (kind, text)| {
        let swatch = Rectangle::new().set("class", kind.class()).set("x", left).set("y", MARGIN - 11.0);
        let swatch = swatch.set("width", 14).set("height", 14).set("rx", 3);
        let words = Text::new(text).set("class", "soft").set("x", left + 20.0).set("y", MARGIN);
        left += 20.0 + text.chars().count() as f64 * LETTER + 24.0;
        group.add(swatch).add(words)
    });
    Legend { group, width: left - MARGIN }
}

fn drawn_box(of: &GraphBox, size: BoxSize, x: f64, y: f64) -> Group {
    let outline = Rectangle::new().set("class", of.kind.class()).set("x", round(x)).set("y", round(y));
    let radius = if of.kind == Kind::End { 14.0 } else { 5.0 };
    let outline = outline.set("width", round(size.width)).set("height", round(size.height)).set("rx", radius);
    let group = Group::new().add(Title::new(of.name.as_str())).add(outline);
    of.lines.iter().enumerate().fold(group, |group, (at, line)| {
        let baseline = y + PADDING + FONT + at as f64 * LINE_HEIGHT;
        let text = Text::new(line.as_str()).set("x", round(x + size.width / 2.0)).set("y", round(baseline));
        let class = if at == 0 { "op" } else { "soft" };
        group.add(text.set("text-anchor", "middle").set("class", class))
    })
}

/// A line that goes straight through layers and bends between them.
fn line(route: &Route) -> Curve {
    let mut points = route.points.iter();
    let Some(&start) = points.next() else { return Curve::new() };
    let mut data = Data::new().move_to((round(start.0), round(start.1)));
    let mut last = start;
    for (at, &(x, y)) in points.enumerate() {
        let middle = round((last.1 + y) / 2.0);
        // Every other piece crosses a layer, and has nothing to avoid.
        data = match at % 2 {
            0 => data.cubic_curve_to((round(last.0), middle, round(x), middle, round(x), round(y))),
            _ => data.line_to((round(x), round(y))),
        };
        last = (x, y);
    }
    Curve::new().set("class", "line").set("d", data)
}

/// The tip of an arrow.
fn tip(route: &Route) -> Curve {
    let &(x, y) = route.points.last().unwrap_or(&(0.0, 0.0));
    let (x, y) = (round(x), round(y));
    let data = Data::new().move_to((x, y)).line_to((x - 3.5, y - 7.0)).line_to((x + 3.5, y - 7.0)).close();
    Curve::new().set("class", "tip").set("d", data)
}

/// Two decimals are enough for a picture.
fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Kind::End => "box end",
            Kind::Pair => "box pair",
            Kind::Codes => "box codes",
            Kind::Other => "box",
        }
    }
}

#[cfg(test)]
mod tests;
