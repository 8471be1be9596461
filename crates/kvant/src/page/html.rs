//! Pages in HTML: one file without scripts from elsewhere, in the reader's light or dark mode, that can be printed and read aloud.

use super::generation::Sample;
use super::histograms::Histogram;
use super::pictures::Picture;
use super::{Page, Part};
use crate::paths::MARK;
use crate::text::{Align, Table};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// Sorts a table by the column whose title is pressed. Without it, tables are as they are.
const SCRIPT: &str = include_str!("page.js");

/// Histograms that are shown at once: readers unfold the others.
const UNFOLDED: usize = 24;

/// Tables of fewer rows are not sorted.
const SORTED_FROM: usize = 4;

pub(super) fn render(page: &Page) -> String {
    let title = escape(&page.title);
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"generator\" content=\"{MARK}\">\n<meta name=\"viewport\" content=\"width=device-width, \
         initial-scale=1\">\n<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n"
    );
    page.parts.iter().for_each(|part| part_html(part, &mut out));
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "<footer>Written by Kvant {}.</footer>\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    out
}

fn part_html(part: &Part, out: &mut String) {
    let pairs = |pairs: &[(String, String)], inside: fn(&str, &str) -> String| {
        pairs.iter().map(|(name, value)| inside(&escape(name), &escape(value))).collect::<String>()
    };
    let text = match part {
        Part::Heading(text) => format!("<h2>{}</h2>", escape(text)),
        Part::Code(text) => format!("<pre><code>{}</code></pre>", escape(text)),
        Part::Facts(facts) => {
            format!(
                "<dl class=\"facts\">{}</dl>",
                pairs(facts, |name, value| format!("<dt>{name}</dt><dd>{value}</dd>"))
            )
        }
        Part::Figures(figures) => format!(
            "<dl class=\"figures\">{}</dl>",
            pairs(figures, |name, value| format!("<div><dt>{name}</dt><dd>{value}</dd></div>"))
        ),
        Part::Text(text) => format!("<p>{}</p>", escape(text)),
        Part::List(items) => {
            let items: String = items.iter().map(|item| format!("<li>{}</li>", escape(item))).collect();
            format!("<ul>{items}</ul>")
        }
        Part::Samples(samples) => {
            let mark = |text: &str| if text.is_empty() { String::new() } else { format!("<mark>{text}</mark>") };
            let each = |sample: &Sample| {
                let (title, same, different) = (escape(&sample.title), escape(&sample.same), escape(&sample.different));
                format!("<figure><figcaption>{title}</figcaption><pre>{same}{}</pre></figure>", mark(&different))
            };
            format!("<div class=\"beside\">{}</div>", samples.iter().map(each).collect::<String>())
        }
        Part::Table(table) => table_html(table),
        Part::Bars(bars) => figure(&bars.title, &bars.svg()),
        Part::Strips(strips) => figure(&strips.title, &strips.svg()),
        Part::Histograms(histograms) => {
            let small = |rows: &[Histogram]| {
                format!("<div class=\"small\">{}</div>", rows.iter().map(histogram_html).collect::<String>())
            };
            let (first, others) = histograms.rows.split_at(histograms.rows.len().min(UNFOLDED));
            let others = match others.len() {
                0 => String::new(),
                count => format!("<details><summary>{count} more</summary>{}</details>", small(others)),
            };
            figure(&histograms.title, &(small(first) + &others))
        }
        Part::Pictures(pictures) => {
            format!("<div class=\"pictures\">{}</div>", pictures.0.iter().map(picture_html).collect::<String>())
        }
        Part::Points(points) => figure(&points.title, &format!("<div class=\"wide\">{}</div>", points.svg())),
    };
    out.push_str(&text);
    out.push('\n');
}

fn figure(title: &str, svg: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>{svg}</figure>", escape(title))
}

/// Pictures are marked by a word and the kind of their border, not by colour alone.
fn picture_html(picture: &Picture) -> String {
    let name = escape(&picture.name);
    let image = match &picture.source {
        Some(source) => format!("<img src=\"{}\" alt=\"{name}\">", escape(source)),
        None => "<span class=\"missing\">no picture</span>".to_owned(),
    };
    let (class, mark) = match picture.differs {
        true => (" class=\"differs\"", "<strong>different class</strong>"),
        false => ("", ""),
    };
    let [float, quantized] = picture.classes.each_ref().map(|class| escape(class));
    let classes = format!("<span>float: {float}</span><span>quantized: {quantized}</span>");
    format!("<figure{class}><div>{image}</div><figcaption>{mark}{classes}<span>{name}</span></figcaption></figure>")
}

fn histogram_html(histogram: &Histogram) -> String {
    // Names of layers break between their parts where they are too long.
    let (name, note) = (escape(&histogram.name).replace('.', ".<wbr>"), escape(&histogram.note));
    let note = if note.is_empty() { note } else { format!("<span>{note}</span>") };
    let [low, high] = histogram.end_labels();
    let ends = format!("<div class=\"ends\" aria-hidden=\"true\"><span>{low}</span><span>{high}</span></div>");
    format!("<figure>{}{ends}<figcaption>{name}{note}</figcaption></figure>", histogram.svg())
}

fn table_html(table: &Table) -> String {
    let class = |align: Align| if align == Align::Right { " class=\"n\"" } else { "" };
    let is_sorted = table.rows().len() >= SORTED_FROM;
    let title = |title: &str| if is_sorted { format!("<button>{title}</button>") } else { title.to_owned() };
    let head: String = table
        .titles()
        .iter()
        .map(|(text, align)| format!("<th scope=\"col\"{}>{}</th>", class(*align), title(&escape(text))))
        .collect();
    let row = |row: &Vec<String>| {
        let cells = row.iter().zip(table.titles());
        let cells: String =
            cells.map(|(cell, (_, align))| format!("<td{}>{}</td>", class(*align), escape(cell))).collect();
        format!("<tr>{cells}</tr>")
    };
    let body: String = table.rows().iter().map(row).collect();
    format!("<div class=\"wide\"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>")
}

/// Names of models and layers are somebody's: nothing in them is markup.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            letter if letter.is_control() && letter != '\n' => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}
