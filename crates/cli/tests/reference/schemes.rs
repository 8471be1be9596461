//! The schemes in docs/: every spelling in an example can be parsed.

use super::{docs, pages};
use kvant_quant::scheme::LayerScheme;
use std::fs;

/// The words behind an option in the examples of a page.
fn values<'a>(text: &'a str, options: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    let words: Vec<&str> = text.split([' ', '`', '\n', '|', ',', ')', '(', '"']).collect();
    let pairs: Vec<(&str, &str)> = words.windows(2).map(|pair| (pair[0], pair[1])).collect();
    pairs.into_iter().filter(move |(option, _)| options.contains(option)).map(|(_, value)| value)
}

fn is_placeholder(value: &str) -> bool {
    value.is_empty() || value.chars().all(|c| c.is_ascii_uppercase()) || value.starts_with('-')
}

#[test]
fn documented_schemes_parse() {
    let known: Vec<String> = ["schemes", "presets"]
        .iter()
        .flat_map(|name| kvant::catalog::TOPICS.iter().filter(move |topic| topic.name == *name))
        .flat_map(|topic| topic.table().rows)
        .filter_map(|row| row[0].as_str().map(str::to_owned))
        .collect();
    let mut count = 0;
    for page in pages(&docs()).into_iter().chain([docs().join("../README.md")]) {
        let text = fs::read_to_string(&page).unwrap();
        for value in values(&text, &["--scheme", "-s"])
            .map(|value| value.trim_matches('\''))
            .filter(|value| !is_placeholder(value))
        {
            count += 1;
            let is_known = known.iter().any(|name| name.eq_ignore_ascii_case(value)) || value == "keep";
            assert!(is_known || value.parse::<LayerScheme>().is_ok(), "{}: {value}", page.display());
        }
    }
    assert!(count > 40, "{count}");
}

/// The first cell of each row of the table under a heading row.
fn first_cells<'a>(text: &'a str, heading: &str) -> Vec<&'a str> {
    let (_, table) = text.split_once(heading).unwrap_or_else(|| panic!("no table {heading}"));
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.split('|').nth(1)).map(|cell| cell.trim().trim_matches('`')).collect()
}

#[test]
fn documented_scheme_grammar_matches_the_parser() {
    let text = fs::read_to_string(docs().join("reference/schemes.md")).unwrap();
    let examples = first_cells(&text, "| example | meaning |");
    assert!(examples.len() >= 6);
    for example in examples {
        let scheme = example.parse::<LayerScheme>().unwrap_or_else(|error| panic!("{example}: {error}"));
        assert_eq!(scheme.to_string().parse::<LayerScheme>().unwrap(), scheme, "{example}");
    }
    // Each part of the grammar in a scheme.
    let sharing = ["tensor", "channel", "channel@0", "token", "channel@1", "g32", "g32@1", "g32@0", "g-1", "b128x128"];
    for part in sharing {
        let scheme = format!("int8:{part}");
        assert!(scheme.parse::<LayerScheme>().is_ok(), "{scheme}");
    }
    for scheme in ["int8:f32", "int8:f16", "int8:bf16", "int8:pow2", "int8:model", "e4m3:g32:e5m3", "e2m1:g16:e5m3:f32"]
    {
        assert!(scheme.parse::<LayerScheme>().is_ok(), "{scheme}");
    }
    for rule in ["e8m0", "e8m0-floor", "e8m0-ceil", "e8m0-rceil", "e8m0-even", "floor", "ceil", "rceil", "even"] {
        let scheme = format!("e2m1:g32:{rule}");
        assert!(scheme.parse::<LayerScheme>().is_ok(), "{scheme}");
    }
    for scheme in ["uint4:g32:zp", "uint4:g32:fzp", "int8:percentile99.9", "int8:mse", "int8+int8:ema0.99!static"] {
        assert!(scheme.parse::<LayerScheme>().is_ok(), "{scheme}");
    }
    for scheme in ["int4:channel:f32/e4m3:tensor:f32", "mx6", "mx9", "bfp16", "mxint8:floor", "f16", "bf16"] {
        assert!(scheme.parse::<LayerScheme>().is_ok(), "{scheme}");
    }
    // A weight has no time of its scales, an input no two.
    for scheme in ["int8!static", "int8+int8!static!dynamic", "int8:g32:g64", "int8+", "int8/e4m3", "int4:tensor/int8"]
    {
        assert!(scheme.parse::<LayerScheme>().is_err(), "{scheme}");
    }
}
