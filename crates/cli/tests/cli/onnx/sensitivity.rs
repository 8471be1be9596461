//! `kvant sensitivity`.

use super::place;

pub const SENSITIVITY: [&str; 8] =
    ["sensitivity", "float.onnx", "--preset", "A8W4", "--data", "calib.npz", "--runtime", "rten"];

#[test]
fn mixed_precision_recipe_is_found_and_reproduced() {
    let place = place();
    let plain = place.succeed(&[&SENSITIVITY[..], &["--json"]].concat()).json();
    assert!(plain["mix"].is_null() && plain["layers"].as_array().unwrap().len() > 4, "{plain}");
    let target = format!("{}", plain["recipe"]["sqnr_db"].as_f64().unwrap() + 5.0);
    let search = [&SENSITIVITY[..], &["--target-sqnr", &target, "-o", "mixed.toml"]].concat();
    let run = place.succeed(&search);
    assert!(run.stdout.contains("chosen") && run.stderr.contains("layers raised"), "{run:?}");
    let recipe = ["quantize", "float.onnx", "--recipe", "mixed.toml", "--data", "calib.npz", "--runtime", "rten"];
    let bytes = |name: &str| {
        place.succeed(&[&recipe[..], &["-o", name]].concat());
        std::fs::read(place.path(name)).unwrap()
    };
    assert_eq!(bytes("a.onnx"), bytes("b.onnx"));
    let args = ["eval", "a.onnx", "--reference", "float.onnx", "--data", "calib.npz", "--runtime", "rten", "--json"];
    let sqnr = place.succeed(&args).json()["outputs"][0]["sqnr_db"].as_f64().unwrap();
    assert!(sqnr >= target.parse::<f64>().unwrap() - 0.01, "{sqnr} {target}");
    assert_eq!(place.run(&search).code, Some(1));
}

#[test]
fn impossible_searches_are_refused() {
    let place = place();
    for (options, told) in [
        (&["-o", "mixed.toml"][..], "a recipe can be written only for a target"),
        (&["--max-drop", "0.01"], "--max-drop needs the classes"),
        (&["--max-drop", "1"], "0.01 is one percentage point"),
        (&["--target-size", "12"], "is not a size"),
        (&["--candidates", "A9W9"], "is not a candidate"),
        (&["--target-sqnr", "20", "--max-drop", "0.01"], "cannot be used with"),
    ] {
        let run = place.run(&[&SENSITIVITY[..], options].concat());
        assert!(run.code == Some(2) && run.stderr.contains(told), "{run:?}");
    }
    std::fs::create_dir(place.path("directory")).unwrap();
    let run = place.run(&["sensitivity", "directory", "--preset", "int8", "--data", "calib.npz"]);
    assert!(run.stderr.contains("only the layers of ONNX graphs can be measured"), "{run:?}");
}
