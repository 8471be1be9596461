//! Pages in HTML: one file without scripts from elsewhere, in the reader's light or dark mode, that can be printed and read aloud.

use super::{MARK, Page, Part};
use crate::text::{Align, Table};
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1c2024;--soft:#5c6670;--line:#d8dee4;--card:#f5f7f9;--accent:#1f6feb;--s1:#c2410c;--s2:#15803d;--s3:#7e22ce;--s4:#be185d;--s5:#0e7490}\
@media(prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e6e9ec;--soft:#9aa5b1;--line:#333a42;--card:#1d2227;--accent:#5aa2ff;--s1:#fb923c;--s2:#4ade80;--s3:#c084fc;--s4:#f472b6;--s5:#22d3ee}}\
*{box-sizing:border-box}body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,sans-serif}\
main{max-width:60rem;margin:0 auto;padding:1.5rem 1rem 3rem}h1{font-size:1.7rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin-top:2.2rem;border-bottom:1px solid var(--line);padding-bottom:.2rem}\
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(10rem,1fr));gap:.8rem;margin:1rem 0;padding:0}.figures div{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.7rem .9rem}\
.figures dt{color:var(--soft);font-size:.85rem}.figures dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}\
dl.facts{display:grid;grid-template-columns:minmax(8rem,auto) 1fr;gap:.25rem 1rem;margin:1rem 0}dl.facts dt{color:var(--soft)}dl.facts dd{margin:0;overflow-wrap:anywhere}\
.wide{overflow-x:auto;margin:1rem 0}table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{padding:.3rem .5rem;border-bottom:1px solid var(--line);text-align:left;vertical-align:top}td{overflow-wrap:anywhere;min-width:7rem}\
th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}td.n{overflow-wrap:normal;white-space:nowrap;min-width:0}th button{all:unset;cursor:pointer;font-weight:600}th button:focus-visible{outline:2px solid var(--accent)}th[aria-sort] button::after{content:\" \\25B4\"}th[aria-sort=descending] button::after{content:\" \\25BE\"}\
pre{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.7rem .9rem;white-space:pre-wrap;overflow-wrap:anywhere;font-size:.85rem}\
figure{margin:1rem 0}figcaption{color:var(--soft);font-size:.9rem;margin-bottom:.4rem}svg{display:block}svg[viewBox]{width:100%;min-width:32rem;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .bar{fill:var(--accent)}svg .grid{stroke:var(--line)}\
svg .series{fill:var(--accent);stroke:var(--accent)}svg .s1{fill:var(--s1);stroke:var(--s1)}svg .s2{fill:var(--s2);stroke:var(--s2)}svg .s3{fill:var(--s3);stroke:var(--s3)}svg .s4{fill:var(--s4);stroke:var(--s4)}svg .s5{fill:var(--s5);stroke:var(--s5)}svg polyline.series{fill:none;stroke-width:2}\
footer{margin-top:3rem;color:var(--soft);font-size:.85rem}\
@media(max-width:40rem){table{font-size:.8rem}dl.facts{grid-template-columns:1fr}dl.facts dd{margin-bottom:.4rem}}\
@media print{body{font-size:11pt}main{max-width:none;padding:0}figure,table,.figures div{break-inside:avoid}th button{cursor:auto}}";

/// Sorts a table by the column whose title is pressed. Without it, tables are as they are.
const SCRIPT: &str = "\
for(const b of document.querySelectorAll('th button'))b.addEventListener('click',()=>{\
const h=b.parentNode,t=h.closest('table'),i=[...h.parentNode.children].indexOf(h),down=h.getAttribute('aria-sort')==='ascending';\
for(const o of h.parentNode.children)o.removeAttribute('aria-sort');h.setAttribute('aria-sort',down?'descending':'ascending');\
const v=r=>r.children[i].textContent,n=s=>parseFloat(s.replace(/[^0-9.eE+-]/g,'')),c=(x,y)=>{const a=n(v(x)),d=n(v(y));return h.className==='n'&&!isNaN(a)&&!isNaN(d)?a-d:v(x).localeCompare(v(y),undefined,{numeric:true})};\
const body=t.tBodies[0];[...body.rows].sort((x,y)=>down?c(y,x):c(x,y)).forEach(r=>body.append(r))});";

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
        Part::List(items) => {
            let items: String = items.iter().map(|item| format!("<li>{}</li>", escape(item))).collect();
            format!("<ul>{items}</ul>")
        }
        Part::Table(table) => table_html(table),
        Part::Bars(bars) => figure(&bars.title, &bars.svg()),
        Part::Points(points) => figure(&points.title, &format!("<div class=\"wide\">{}</div>", points.svg())),
    };
    out.push_str(&text);
    out.push('\n');
}

fn figure(title: &str, svg: &str) -> String {
    format!("<figure><figcaption>{}</figcaption>{svg}</figure>", escape(title))
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
