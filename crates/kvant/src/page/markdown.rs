//! Pages in Markdown, for model cards: charts are tables.

use super::chart::{Bars, Points};
use super::{Page, Part, number, table};
use crate::paths::MARK;
use crate::text::{Align, Table};

pub(super) fn render(page: &Page) -> String {
    let parts = page.parts.iter().map(part_markdown).filter(|part| !part.is_empty());
    let parts: Vec<String> = parts.collect();
    format!("<!-- {MARK} -->\n# {}\n\n{}\n", escape(&page.title), parts.join("\n\n"))
}

fn part_markdown(part: &Part) -> String {
    match part {
        Part::Heading(text) => format!("## {}", escape(text)),
        Part::Code(text) => {
            // A fence that is longer than any run of backticks in it.
            let longest = text.split(|letter| letter != '`').map(str::len).max().unwrap_or(0);
            let fence = "`".repeat(longest.max(2) + 1);
            format!("{fence}\n{text}\n{fence}")
        }
        Part::Facts(pairs) | Part::Figures(pairs) => {
            let lines = pairs.iter().map(|(name, value)| format!("* {}: {}", escape(name), escape(value)));
            lines.collect::<Vec<_>>().join("\n")
        }
        Part::List(items) => items.iter().map(|item| format!("* {}", escape(item))).collect::<Vec<_>>().join("\n"),
        Part::Table(table) => table_markdown(table),
        Part::Bars(bars) => of_bars(bars),
        Part::Points(points) => of_points(points),
    }
}

fn of_bars(bars: &Bars) -> String {
    let mut found = table(&["name"], &[&bars.unit]);
    bars.rows.iter().for_each(|(name, value)| found.push([name.clone(), number(Some(*value))]));
    format!("{}\n\n{}", escape(&bars.title), table_markdown(&found))
}

fn of_points(points: &Points) -> String {
    let mut found = table(&["series", "name"], &[&points.x, &points.y]);
    for series in &points.series {
        for point in &series.points {
            found.push([series.name.clone(), point.name.clone(), number(Some(point.x)), number(Some(point.y))]);
        }
    }
    format!("{}\n\n{}", escape(&points.title), table_markdown(&found))
}

fn table_markdown(table: &Table) -> String {
    let line = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    let titles = line(table.titles().iter().map(|(title, _)| escape(title)).collect());
    let rule = |align: Align| if align == Align::Right { "---:".to_owned() } else { "---".to_owned() };
    let rules = line(table.titles().iter().map(|(_, align)| rule(*align)).collect());
    let rows = table.rows().iter().map(|row| line(row.iter().map(|cell| escape(cell)).collect()));
    [titles, rules].into_iter().chain(rows).collect::<Vec<_>>().join("\n")
}

/// Nothing of a name is markup, or ends a cell or a line.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '|' | '<' | '>' | '`' | '*' | '_' | '[' | ']' | '\\' | '#' => out.extend(['\\', letter]),
            '\n' | '\r' => out.push(' '),
            letter => out.push(letter),
        }
    }
    out
}
