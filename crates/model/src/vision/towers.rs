//! Towers that no checkpoint has alone: descriptions like those of families, which only the models around them are read with.

use crate::family::{Family, complete};
use serde_json::{Map, Value};
use std::sync::LazyLock;

/// The files, each with its name.
const FILES: &[(&str, &str)] = &[
    ("qwen2_5_vl_vision", include_str!("towers/qwen2_5_vl_vision.toml")),
    ("qwen2_vl_vision", include_str!("towers/qwen2_vl_vision.toml")),
    ("qwen3_vl_vision", include_str!("towers/qwen3_vl_vision.toml")),
];

static TOWERS: LazyLock<Vec<Family>> = LazyLock::new(|| complete(FILES));

/// A tower that is described here, and how `vision_config` of the model around it states what config.json of an encoder does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DescribedTower {
    /// The name of the description.
    pub name: &'static str,
    /// Keys as those of encoders, and under which names and with which default the tower has them.
    pub keys: &'static [TowerNumber],
    /// The small number under the root of all its norms, whatever is stated.
    pub norm_eps: f64,
}

/// A number that `vision_config` states under another name than config.json of an encoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TowerNumber {
    /// The name in an encoder.
    pub key: &'static str,
    /// Names in `vision_config`, the first of which that is there counts.
    pub stated: &'static [&'static str],
    /// The number where it is silent.
    pub default: u64,
}

impl DescribedTower {
    /// The description; `None` where there is none of this name.
    pub fn family(&self) -> Option<&'static Family> {
        TOWERS.iter().find(|family| family.name == self.name)
    }

    /// `vision_config` as config.json of an encoder.
    pub fn config(&self, section: &Value) -> Value {
        let stated = section.as_object().cloned().unwrap_or_default();
        let mut config: Map<String, Value> = stated.clone();
        config.insert("model_type".to_owned(), self.name.into());
        for TowerNumber { key, stated: names, default } in self.keys {
            let found = names.iter().find_map(|name| stated.get(*name).filter(|value| !value.is_null()));
            config.insert((*key).to_owned(), found.cloned().unwrap_or_else(|| (*default).into()));
        }
        config.insert("rms_norm_eps".to_owned(), self.norm_eps.into());
        Value::Object(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vision::ImageReading;
    use serde_json::json;

    #[test]
    fn every_file_is_a_description_that_a_model_has() {
        let names: Vec<&str> = TOWERS.iter().map(|family| family.name).collect();
        assert_eq!(names, FILES.iter().map(|(name, _)| *name).collect::<Vec<_>>());
        let described = ImageReading::all().iter().filter_map(|row| row.described);
        let mut used: Vec<&str> = described.map(|tower| tower.family().unwrap().name).collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(used, names);
    }

    #[test]
    fn numbers_of_towers_have_the_names_of_encoders() {
        let tower = DescribedTower {
            name: "t",
            keys: &[
                TowerNumber { key: "hidden_size", stated: &["embed_dim"], default: 7 },
                TowerNumber { key: "num_channels", stated: &["in_channels"], default: 3 },
            ],
            norm_eps: 0.5,
        };
        let config = tower.config(&json!({"model_type": "x", "hidden_size": 9, "embed_dim": 5, "in_channels": null}));
        assert_eq!(
            config,
            json!({"model_type": "t", "hidden_size": 5, "embed_dim": 5, "in_channels": null, "num_channels": 3, "rms_norm_eps": 0.5})
        );
    }
}
