//! Rotary positions of images in a text: see [`PlacePositions`].

use super::super::error::ForwardError;
use super::super::layout::SequenceLayout;
use kvant_model::model_config::ModelConfig;
use kvant_model::vision::PlacePositions;
use serde_json::Value;

/// By what each angle turns: the time (0), the row (1) or the column (2) of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct TurningAxes {
    sections: [usize; 3],
    takes_turns: bool,
}

impl TurningAxes {
    /// The rule with what config.json states.
    pub(super) fn new(rule: PlacePositions, config: &Value) -> Result<TurningAxes, ForwardError> {
        let stated = ModelConfig::from_json(config)?.rope.main.sections;
        let sections = match stated[..] {
            [] => rule.sections,
            [time, row, column] if stated.iter().all(|count| count.fract() == 0.0 && (0.0..=1e6).contains(count)) => {
                [time, row, column].map(|count| count as usize)
            }
            _ => return Err(ForwardError::unsupported(format!("`mrope_section` {stated:?} of config.json"))),
        };
        Ok(TurningAxes { sections, takes_turns: rule.takes_turns })
    }

    /// The axis of each of `angles` angles.
    ///
    /// # Errors
    ///
    /// Sections one after the other that are not as many.
    pub(super) fn of(&self, angles: usize) -> Result<Vec<usize>, ForwardError> {
        let sections = self.sections;
        if self.takes_turns {
            let axis = |angle: usize| if angle < 3 * sections[angle % 3] { angle % 3 } else { 0 };
            return Ok((0..angles).map(axis).collect());
        }
        let axes: Vec<usize> = (0..3).flat_map(|axis| std::iter::repeat_n(axis, sections[axis])).collect();
        match axes.len() == angles {
            true => Ok(axes),
            false => Err(ForwardError::unsupported(format!(
                "`mrope_section` {sections:?} of config.json with {angles} angles"
            ))),
        }
    }
}

/// The time, row and column of each token of a sequence with images.
pub(super) fn places(layout: SequenceLayout<'_>) -> Vec<[usize; 3]> {
    let (mut places, mut next) = (Vec::with_capacity(layout.length), 0);
    for image in layout.images {
        let text = image.rows.start - places.len();
        places.extend((next..next + text).map(|position| [position; 3]));
        next += text;
        let [rows, columns] = image.grid.unwrap_or([1, image.rows.len()]);
        places.extend((0..rows * columns).map(|row| [next, next + row / columns, next + row % columns]));
        next += rows.max(columns);
    }
    let text = layout.length.saturating_sub(places.len());
    places.extend((next..next + text).map(|position| [position; 3]));
    places
}

#[cfg(test)]
mod tests {
    use super::super::super::layout::ImageSpan;
    use super::*;
    use serde_json::json;

    #[test]
    fn angles_stand_in_sections_or_take_turns() {
        let rule = |takes_turns| PlacePositions { sections: [3, 2, 1], takes_turns };
        let plain = TurningAxes::new(rule(false), &json!({})).unwrap();
        assert_eq!(plain.of(6).unwrap(), [0, 0, 0, 1, 1, 2]);
        assert!(plain.of(7).unwrap_err().to_string().contains("[3, 2, 1]"));
        assert_eq!(TurningAxes::new(rule(true), &json!({})).unwrap().of(8).unwrap(), [0, 1, 2, 0, 1, 0, 0, 0]);
        let stated = json!({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}});
        assert_eq!(TurningAxes::new(rule(false), &stated).unwrap().of(4).unwrap(), [0, 1, 2, 2]);
        for wrong in [json!([1, 2]), json!([1, 2, 1.5])] {
            let stated = json!({"rope_scaling": {"type": "mrope", "mrope_section": wrong}});
            assert!(TurningAxes::new(rule(false), &stated).is_err());
        }
    }

    #[test]
    fn text_goes_on_behind_the_longer_side_of_an_image() {
        let images = [ImageSpan { rows: 2..8, image: 0, grid: Some([2, 3]) }];
        let layout = SequenceLayout { images: &images, ..10.into() };
        let found = places(layout);
        assert_eq!(found[..4], [[0; 3], [1; 3], [2, 2, 2], [2, 2, 3]]);
        assert_eq!(found[7..], [[2, 3, 4], [5; 3], [6; 3]]);
    }
}
