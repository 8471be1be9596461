//! ONNX Runtime's calibration tables: JSON with `lowest` and `highest` for each activation, as its `save_tensors_data` and
//! `write_calibration_table` write them; and lines of a name and the largest magnitude.

use serde_json::{Map, Value, json};

use super::aimet::text;
use super::error::Problem;
use super::numbers::{number, range};
use super::tensorrt::{magnitude, refuse_line_break};
use super::{Contents, RangeTable, TensorRanges};
use crate::quantization::Range;

/// The key with the class of an object of Python.
const CLASS: &str = "CLS";

/// The tensors of a table, under `data` where the class is `TensorsData`, else at the top level.
fn tensors<'c>(contents: &'c Contents<'_>) -> Option<&'c Map<String, Value>> {
    let table = contents.json()?.as_object()?;
    match table.get(CLASS).and_then(Value::as_str) {
        Some("TensorsData") => table.get("data")?.as_object(),
        _ => Some(table),
    }
}

pub(super) fn is_of_json(contents: &Contents<'_>) -> bool {
    let is_entry = |entry: &Value| match entry {
        Value::Object(entry) => {
            entry.get(CLASS).is_some_and(|class| class == "TensorData") || entry.contains_key("lowest")
        }
        Value::Array(ends) => ends.len() == 2 && ends.iter().all(Value::is_number),
        _ => false,
    };
    tensors(contents).is_some_and(|tensors| !tensors.is_empty() && tensors.values().all(is_entry))
}

pub(super) fn read_json(contents: &Contents<'_>) -> Result<RangeTable, Problem> {
    let entry = |(name, entry): (&String, &Value)| {
        let (lowest, highest) = match entry {
            Value::Array(ends) => (ends.first(), ends.get(1)),
            entry => (entry.get("lowest"), entry.get("highest")),
        };
        let (Some(lowest), Some(highest)) = (lowest, highest) else {
            let problem = format!("`{}` has no lowest and highest value", name.escape_debug());
            let way_out =
                "calibrate with the method MinMax, Entropy or Percentile: Distribution finds averages, and no ranges";
            return Err(Problem::Unsupported(problem, way_out));
        };
        let (lowest, highest) = (array(name, "lowest", lowest)?, array(name, "highest", highest)?);
        if lowest.len() != highest.len() || lowest.is_empty() {
            let problem = format!("it has {} lowest and {} highest values", lowest.len(), highest.len());
            return Err(Problem::of(name, problem));
        }
        let ranges = lowest.iter().zip(&highest).map(|(&lowest, &highest)| range(name, lowest, highest));
        Ok((name.clone(), TensorRanges::of_ranges(ranges.collect::<Result<_, _>>()?)))
    };
    tensors(contents).into_iter().flatten().map(entry).collect()
}

/// The numbers of a value: a number, an array of numpy as an object, or lists of numbers.
fn array(tensor: &str, key: &str, value: &Value) -> Result<Vec<f64>, Problem> {
    match value {
        Value::Object(array) => match array.get("data") {
            Some(data) if !data.is_object() => self::array(tensor, key, data),
            _ => Err(Problem::of(tensor, format!("{key} has no numbers"))),
        },
        Value::Array(values) => {
            let lists = values.iter().map(|value| match value.is_object() {
                true => Err(Problem::of(tensor, format!("{key} is not an array of numbers"))),
                false => array(tensor, key, value),
            });
            Ok(lists.collect::<Result<Vec<_>, _>>()?.concat())
        }
        value => Ok(vec![number(tensor, key, value)?]),
    }
}

pub(super) fn write_json(table: &RangeTable) -> Result<Vec<u8>, Problem> {
    let tensors = table.iter().filter(|(_, tensor)| !tensor.is_constant && !tensor.ranges.is_empty());
    let entry = |(name, tensor): (&String, &TensorRanges)| {
        let end = |of: fn(&Range) -> f32| {
            // Calibration clips what is beyond.
            let ends: Vec<f64> = tensor.ranges.iter().map(|range| of(range).clamp(f32::MIN, f32::MAX).into()).collect();
            let data = if let [end] = ends[..] { json!(end) } else { json!(ends) };
            json!({"data": data, "dtype": "float32", CLASS: "numpy.array"})
        };
        let entry = json!({"lowest": end(|range| range.min), "highest": end(|range| range.max), CLASS: "TensorData"});
        (name.clone(), entry)
    };
    let tensors: Map<String, Value> = tensors.map(entry).collect();
    let method = json!({CLASS: "CalibrationMethod", "value": "CalibrationMethod.MinMax"});
    text(&json!({CLASS: "TensorsData", "data": tensors, "calibration_method": method, "smooth_quant": false}))
}

/// A line of the table of text.
fn of_line(line: &str) -> Option<(&str, f64)> {
    let (name, magnitude) = line.trim_end().rsplit_once(char::is_whitespace)?;
    let magnitude = magnitude.parse().ok()?;
    let name = name.trim_end();
    (!name.is_empty()).then_some((name, magnitude))
}

fn lines<'c>(contents: &'c Contents<'_>) -> impl Iterator<Item = &'c str> {
    contents.text().lines().filter(|line| !line.trim().is_empty())
}

pub(super) fn is_of_text(contents: &Contents<'_>) -> bool {
    lines(contents).next().is_some() && lines(contents).all(|line| of_line(line).is_some())
}

pub(super) fn read_text(contents: &Contents<'_>) -> Result<RangeTable, Problem> {
    let entry = |(name, magnitude): (&str, f64)| Ok((name.to_owned(), of_magnitude(name, magnitude)?));
    lines(contents).filter_map(of_line).map(entry).collect()
}

/// The range of values up to a magnitude.
pub(super) fn of_magnitude(tensor: &str, magnitude: f64) -> Result<TensorRanges, Problem> {
    match magnitude >= 0.0 && (magnitude as f32).is_finite() {
        true => Ok(TensorRanges::of_ranges(vec![range(tensor, -magnitude, magnitude)?])),
        false => Err(Problem::of(tensor, format!("its largest magnitude is {magnitude}"))),
    }
}

pub(super) fn write_text(table: &RangeTable) -> Result<Vec<u8>, Problem> {
    let mut text = String::new();
    for (name, magnitude) in table.iter().filter_map(|(name, tensor)| Some((name, magnitude(tensor)?))) {
        refuse_line_break(name)?;
        text.push_str(&format!("{name} {magnitude:?}\n"));
    }
    Ok(text.into_bytes())
}
