//! `tidemill compare`: the pictures of a run's checkpoint, of a diffusers folder and of a folder, and
//! refusals before a picture is drawn.

use std::path::Path;

use serde_json::Value;

use crate::common::{models_folder, read_files, tidemill_json};
use crate::eval::trained_run;

/// A study of three models, four prompts and two pictures of each.
fn write_study(folder: &Path, run: &str) -> String {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("drawbench.csv"), "Prompts,Category\na red star,Colors\na cross,Shapes\na,b\nb,b\n")
        .unwrap();
    std::fs::create_dir(path("pictures")).unwrap();
    for i in 0..8 {
        // Of other sizes than the models draw.
        image::RgbImage::from_pixel(50 + i, 40, image::Rgb([30 * i as u8; 3]))
            .save(folder.join(format!("pictures/{i:02}.png")))
            .unwrap();
    }
    let text = format!(
        "prompts = {:?}\nimages = 2\nattention_checks = 0.25\n\
         [[source]]\nname = \"trained\"\nrun = {run:?}\nstep = 4\n\
         [[source]]\nname = \"folder\"\nfolder = {:?}\n\
         [[source]]\nname = \"untrained\"\ndiffusers = {:?}\nset = [\"sample.steps=2\", \"prepare.resolutions=[32]\"]\n",
        path("drawbench.csv"),
        path("pictures"),
        models_folder().display().to_string()
    );
    std::fs::write(path("study.toml"), text).unwrap();
    path("study.toml")
}

fn compare(arguments: &[&str]) -> (i32, Value) {
    tidemill_json(&[&["compare"], arguments].concat())
}

#[test]
fn pictures_of_all_sources_are_drawn_once() {
    let folder = tempfile::tempdir().unwrap();
    let run = trained_run(folder.path());
    let study = write_study(folder.path(), &run);
    let (code, result) = compare(&["new", &study]);
    assert_eq!((code, &result["comparisons"], &result["checks"]), (0, &24.into(), &6.into()), "{result}");
    let database = || {
        let files = read_files(folder.path());
        files.into_iter().find(|(name, _)| name == "study.sqlite").unwrap().1
    };
    let before = database();
    assert_eq!(compare(&["new", &study]).1, result);
    assert_eq!(database(), before, "nothing is drawn again");

    // Other prompts or settings would mix two studies.
    let prompts = std::fs::read_to_string(folder.path().join("drawbench.csv")).unwrap();
    std::fs::write(folder.path().join("drawbench.csv"), format!("{prompts}c,d\n")).unwrap();
    let (code, refused) = compare(&["new", &study]);
    assert!(
        code == 2 && refused["error"]["message"].as_str().unwrap().contains("other prompts"),
        "{refused}"
    );
    assert_eq!(database(), before);
    std::fs::write(folder.path().join("drawbench.csv"), prompts).unwrap();
    let text = std::fs::read_to_string(&study).unwrap();
    std::fs::write(&study, text.replace("images = 2", "images = 1")).unwrap();
    let (code, refused) = compare(&["new", &study]);
    assert!(
        code == 2 && refused["error"]["message"].as_str().unwrap().contains("other settings"),
        "{refused}"
    );

    let (code, result) = compare(&["results", &study, "--plot"]);
    assert_eq!((code, &result["questions"]["quality"]["judgements"]), (0, &0.into()), "{result}");
    let plots: Vec<&str> =
        result["plots"].as_array().unwrap().iter().map(|plot| plot.as_str().unwrap()).collect();
    assert!(plots.len() == 2 && plots.iter().all(|plot| Path::new(plot).is_file()), "{plots:?}");
}

#[test]
fn mistakes_in_studies_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::create_dir(path("pictures")).unwrap();
    image::RgbImage::new(40, 40).save(path("pictures/0.png")).unwrap();
    std::fs::write(path("two.txt"), "one\ntwo\n").unwrap();
    std::fs::write(path("one.txt"), "one\n").unwrap();
    std::fs::write(path("broken.toml"), "prompts = \"p\"\nimages = \"x\"\n").unwrap();
    std::fs::write(path("columns.csv"), "a,b\n1,2\n").unwrap();
    let source = |name: &str| format!("{name}={}", path("pictures"));
    let (ours, theirs) = (source("ours"), source("theirs"));
    let new = |prompts: &str| {
        compare(&["new", &path("study"), "--prompts", &path(prompts), "--source", &ours, "--source", &theirs])
    };
    let cases = [
        (new("none.txt"), "none.txt"),
        (new("columns.csv"), "prompt_column"),
        (new("two.txt"), "it has 1 pictures, and there must be 2"),
        (compare(&["new", &path("broken.toml")]), "images"),
        (compare(&["new", &path("missing.toml")]), "missing.toml"),
        (compare(&["new", &path("one"), "--prompts", &path("one.txt"), "--source", &ours]), "2 to 8 models"),
        (compare(&["results", &path("nothing")]), "compare new"),
        (compare(&["serve", &path("study"), "--port", "0"]), "not complete"),
    ];
    for ((code, refused), expected) in cases {
        let message = refused["error"]["message"].as_str().unwrap();
        assert!(code == 2 && message.contains(expected), "{expected}: {refused}");
    }
}
