//! Images of the data, with the classes that graphs find likeliest.

use super::{Object, Part, table};
use crate::text::Table;

/// What the URI of a picture begins with: nothing else is shown as one.
const JPEG: &str = "data:image/jpeg;base64,";

/// An image with what is said of it.
#[derive(Clone, Debug)]
pub(super) struct Picture {
    pub name: String,
    /// A data URI of the picture; `None` if there is none.
    pub source: Option<String>,
    /// The class of the float graph and of the quantized one.
    pub classes: [String; 2],
    /// Whether they differ.
    pub differs: bool,
}

/// Images side by side.
#[derive(Clone, Debug)]
pub(super) struct Pictures(pub Vec<Picture>);

/// The images of an evaluation, if it has any.
pub(super) fn parts(found: &Object<'_>) -> Vec<Part> {
    let pictures: Vec<Picture> = found.objects("images").map(|image| picture(&image)).collect();
    if pictures.is_empty() {
        return Vec::new();
    }
    let samples = found.count("samples").unwrap_or(0);
    let differing = pictures.iter().filter(|picture| picture.differs).count();
    let which =
        format!("{} of {samples} images, with the number of the likeliest class and its probability.", pictures.len());
    let text = match differing {
        0 => format!("{which} The graphs agree on all of them."),
        _ => format!("{which} Those on which the graphs disagree come first."),
    };
    vec![Part::Heading("Images".to_owned()), Part::Text(text), Part::Pictures(Pictures(pictures))]
}

fn picture(image: &Object<'_>) -> Picture {
    let [reference, quantized] = ["reference", "quantized"].map(|model| image.object(model));
    let differs = reference.count("class") != quantized.count("class");
    let source = Some(image.text("picture")).filter(|uri| is_jpeg(uri)).map(str::to_owned);
    let classes = [reference, quantized].map(|model| class(&model));
    Picture { name: image.text("name").to_owned(), source, classes, differs }
}

fn class(model: &Object<'_>) -> String {
    let Some(class) = model.count("class") else { return "no class".to_owned() };
    let probability = model.number("probability").map(|share| format!(" ({:.1}\u{a0}%)", 100.0 * share));
    format!("{class}{}", probability.unwrap_or_default())
}

/// Returns whether a text is a picture in JPEG, and nothing that a browser would fetch.
fn is_jpeg(uri: &str) -> bool {
    let is_base64 = |letter: u8| letter.is_ascii_alphanumeric() || b"+/=".contains(&letter);
    uri.strip_prefix(JPEG).is_some_and(|data| data.bytes().all(is_base64))
}

impl Pictures {
    /// The same as a table.
    pub fn table(&self) -> Table {
        let mut all = table(&["image", "float graph", "quantized graph", ""], &[]);
        for Picture { name, classes: [float, quantized], differs, .. } in &self.0 {
            let difference = if *differs { "different" } else { "" };
            all.push([name.clone(), float.clone(), quantized.clone(), difference.to_owned()]);
        }
        all
    }
}
