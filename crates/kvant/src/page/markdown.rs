//! Pages in Markdown, for model cards: charts are tables.

use super::chart::{Bars, Points};
use super::generation::Sample;
use super::{Page, Part, number, table};
use crate::paths::MARK;
use crate::text::{Align, Table, markdown_code, markdown_text};

pub(super) fn render(page: &Page) -> String {
    let is_heading = |part: &Part| matches!(part, Part::Heading(_));
    let written = page.parts.iter().map(|part| (is_heading(part), part_markdown(part)));
    let written: Vec<(bool, String)> = written.filter(|(_, text)| !text.is_empty()).collect();
    // Headings of nothing but charts of shapes are left out with these.
    let ends_section = |at: usize| written.get(at).is_none_or(|(is_heading, _)| *is_heading);
    let kept = written.iter().enumerate().filter(|(at, (is_heading, _))| !(*is_heading && ends_section(at + 1)));
    let parts: Vec<&str> = kept.map(|(_, (_, text))| text.as_str()).collect();
    format!("<!-- {MARK} -->\n# {}\n\n{}\n", markdown_text(&page.title), parts.join("\n\n"))
}

fn part_markdown(part: &Part) -> String {
    match part {
        Part::Heading(text) => format!("## {}", markdown_text(text)),
        Part::Text(text) => markdown_text(text),
        Part::Code(text) => markdown_code("", text),
        Part::Facts(pairs) | Part::Figures(pairs) => {
            let lines =
                pairs.iter().map(|(name, value)| format!("* {}: {}", markdown_text(name), markdown_text(value)));
            lines.collect::<Vec<_>>().join("\n")
        }
        Part::List(items) => {
            items.iter().map(|item| format!("* {}", markdown_text(item))).collect::<Vec<_>>().join("\n")
        }
        Part::Samples(samples) => {
            let text = |sample: &Sample| format!("{}{}", sample.same, sample.different);
            let each =
                |sample: &Sample| format!("{}\n\n{}", markdown_text(&sample.title), markdown_code("", &text(sample)));
            samples.iter().map(each).collect::<Vec<_>>().join("\n\n")
        }
        Part::Table(table) => table_markdown(table),
        Part::Bars(bars) => of_bars(bars),
        // A table beside strips and histograms has their figures; those of weights have only shapes.
        Part::Strips(_) | Part::Histograms(_) => String::new(),
        Part::Points(points) => of_points(points),
        Part::Pictures(pictures) => table_markdown(&pictures.table()),
    }
}

fn of_bars(bars: &Bars) -> String {
    let mut found = table(&["name"], &[&bars.unit]);
    bars.rows.iter().for_each(|(name, value)| found.push([name.clone(), number(Some(*value))]));
    format!("{}\n\n{}", markdown_text(&bars.title), table_markdown(&found))
}

fn of_points(points: &Points) -> String {
    let mut found = table(&["series", "name"], &[&points.x, &points.y]);
    for series in &points.series {
        for point in &series.points {
            found.push([series.name.clone(), point.name.clone(), number(Some(point.x)), number(Some(point.y))]);
        }
    }
    format!("{}\n\n{}", markdown_text(&points.title), table_markdown(&found))
}

fn table_markdown(table: &Table) -> String {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let titles = line(table.titles().iter().map(|(title, _)| markdown_text(title)).collect());
    let rule = |align: Align| if align == Align::Right { "---:".to_owned() } else { "---".to_owned() };
    let rules = line(table.titles().iter().map(|(_, align)| rule(*align)).collect());
    let rows = table.rows().iter().map(|row| line(row.iter().map(|cell| markdown_text(cell)).collect()));
    [titles, rules].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}
