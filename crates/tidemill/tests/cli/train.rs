//! `tidemill train` on datasets: aspect buckets, all forms of text embeddings, mixes of datasets,
//! and refusal of datasets of other models.

use std::path::Path;

use serde_json::Value;

use crate::common::{command, models_folder, run_verb_ok, tidemill, tidemill_json, write_run};

/// Settings for short training.
const SHORT: [&str; 6] =
    ["--set", "train.global_batch=6", "--set", "train.micro_batch=4", "--set", "train.log_every=1"];

fn train(run: &str, settings: &[&str]) -> (i32, Value) {
    let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
    tidemill_json(&["train", run].into_iter().chain(SHORT).chain(settings).collect::<Vec<_>>())
}

fn preprocess(run: &str, settings: &[&str]) {
    run_verb_ok("preprocess", run, settings);
}

#[test]
fn training_accepts_aspect_buckets() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 96);
    let bucketed = "prepare.crop=bucket";
    preprocess(&run, &[bucketed]);
    let (code, result) = train(&run, &[bucketed, "train.phase=[{resolution = 64, steps = 12}]"]);
    assert_eq!((code, &result["steps"]), (0, &12.into()), "{result}");
    assert!(result["loss"].as_f64().is_some_and(f64::is_finite), "{result}");
}

/// Text embeddings in f16, in f8 and computed by the trainer give nearly the same losses.
#[test]
fn losses_agree_for_all_forms_of_text_embeddings() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    let train_with = |form: &str| {
        let output = folder.path().join(form);
        let settings =
            [format!("output={:?}", output.display().to_string()), format!("encode.embeddings={form:?}")];
        let settings = settings.each_ref().map(String::as_str);
        preprocess(&run, &settings);
        let short = ["train.phase=[{resolution = 64, steps = 6}]", "train.precision=\"f32\""];
        let (code, result) = train(&run, &[&settings[..], &short].concat());
        assert_eq!(code, 0, "{result}");
        let dataset = output.join("dataset");
        let (code, found) = tidemill_json(&["inspect", dataset.to_str().unwrap(), "--verify"]);
        assert_eq!(code, 0, "{found}");
        (read_losses(&output), found)
    };
    let [(given, f16), (rounded, f8), (encoded, none)] = ["f16", "f8", "none"].map(train_with);
    let max_deviation = |losses: &[f64]| {
        losses.iter().zip(&given).map(|(loss, given)| (loss - given).abs() / given).fold(0.0, f64::max)
    };
    assert_eq!((given.len(), rounded.len(), encoded.len()), (6, 6, 6));
    assert!(max_deviation(&encoded) < 1e-3, "{encoded:?}, not {given:?}");
    assert!(rounded != given && max_deviation(&rounded) < 2e-2, "{rounded:?}, not {given:?}");

    assert!(f16["text_rounding"].is_null() && none["text_rounding"].is_null());
    let rounding = &f8["text_rounding"];
    assert_eq!(rounding["rows"], f8["rows"]["kept"]);
    let mean = rounding["mean"].as_f64().unwrap();
    assert!(mean > 0.005 && rounding["worst"].as_f64().unwrap() < 1.0 / 16.0, "{rounding}");
    let forms = [&f16, &f8, &none].map(|found| &found["spec"]["text"]["dtype"]);
    assert_eq!(forms, ["f16", "f8_e4m3", "i32"]);
    assert!(none["spec"]["models"]["text_encoder"].is_null());
}

#[test]
fn verify_names_damage_of_all_rounded_embeddings() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    preprocess(&run, &["encode.embeddings=\"f8\""]);
    let dataset = folder.path().join("out/dataset");
    let mut damaged = 0;
    for unit in std::fs::read_dir(dataset.join("data")).unwrap().map(Result::unwrap) {
        let attempt = std::fs::read_dir(unit.path()).unwrap().next().unwrap().unwrap().path();
        let text = attempt.join("text.parquet");
        let mut bytes = std::fs::read(&text).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&text, bytes).unwrap();
        damaged += 1;
    }
    let (code, found) = tidemill_json(&["inspect", dataset.to_str().unwrap(), "--verify"]);
    let message = found["error"]["message"].as_str().unwrap();
    assert!(code != 0 && damaged > 1 && message.contains(&format!("{damaged} of ")), "{message}");
}

fn read_losses(output: &Path) -> Vec<f64> {
    let lines = std::fs::read_to_string(output.join("metrics.jsonl")).unwrap();
    let loss = |line| serde_json::from_str::<Value>(line).unwrap()["loss"].as_f64().unwrap();
    lines.lines().map(loss).collect()
}

#[test]
fn datasets_are_mixed_in_each_phase() {
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let runs = folders.each_ref().map(|folder| write_run(folder.path(), 64));
    runs.iter().for_each(|run| preprocess(run, &[]));
    let other = folders[1].path().join("out/dataset");
    let mix = format!(
        "train.mix=[{{name = \"own\", repeat = 1}}, {{name = \"other\", dataset = {:?}, repeat = 2.5}}]",
        other.display().to_string()
    );
    let phases =
        "train.phase=[{resolution = 32, steps = 4, mix = {own = {count = 9}}}, {resolution = 64, steps = 4}]";
    let (code, result) = train(&runs[0], &[&mix, phases]);
    assert_eq!((code, &result["steps"]), (0, &8.into()), "{result}");

    let unknown = "train.phase=[{resolution = 32, steps = 4, mix = {others = {count = 9}}}]";
    let (code, result) = train(&runs[0], &[&mix, unknown]);
    assert_eq!(code, 2, "{result}");
    assert!(result["error"]["message"].as_str().unwrap().contains("others"), "{result}");
}

#[test]
fn dataset_of_other_models_is_refused_with_the_names_of_the_parts() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    preprocess(&run, &[]);
    let phase = "train.phase=[{resolution = 64, steps = 2}]";
    let all = [
        ("vae", "another VAE"),
        ("text_encoder", "another text encoder"),
        ("tokenizer", "another tokenizer"),
    ];
    for changed in [&all[..1], &all[1..2], &all[2..], &all[..2]] {
        let models = folder.path().join("models");
        copy_folder(&models_folder(), &models);
        for (part, _) in changed {
            let file =
                models.join(part).join(if *part == "tokenizer" { "vocab.json" } else { "config.json" });
            let text = std::fs::read_to_string(&file).unwrap();
            std::fs::write(&file, format!("{text}\n")).unwrap();
        }
        let (code, result) = train(&run, &[phase, &format!("models.path={}", models.display())]);
        let message = result["error"]["message"].as_str().unwrap();
        assert_eq!(code, 2, "{message}");
        for named in &all {
            assert_eq!(message.contains(named.1), changed.contains(named), "{message}");
        }
        std::fs::remove_dir_all(&models).unwrap();
    }
    assert_eq!(train(&run, &[phase]).0, 0);

    // Export needs the same models. Their sampler may use other timesteps, and other files may be
    // next to them.
    let models = folder.path().join("models");
    copy_folder(&models_folder(), &models);
    let models_path = format!("models.path={}", models.display());
    let export = || tidemill_json(&["export", &run, "--set", phase, "--set", &models_path]);
    let edit = |file: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(models.join(file)).unwrap();
        assert!(text.contains(from));
        std::fs::write(models.join(file), text.replace(from, to)).unwrap();
    };
    edit("scheduler/scheduler_config.json", "\"leading\"", "\"trailing\"");
    std::fs::write(models.join("vae/.DS_Store"), "").unwrap();
    assert_eq!((train(&run, &[phase, &models_path]).0, export().0), (0, 0));
    edit("vae/config.json", "}", " }");
    let (code, result) = export();
    assert!(code == 2 && result.to_string().contains("another vae"), "{result}");
}

#[test]
fn run_refuses_unsuitable_models_before_encoding() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    let models = folder.path().join("models");
    let assert_refused = |file: &str, from: &str, to: &str, settings: &[&str], expected: &str| {
        let _ = std::fs::remove_dir_all(&models);
        copy_folder(&models_folder(), &models);
        let text = std::fs::read_to_string(models.join(file)).unwrap();
        assert!(text.contains(from), "{text}");
        std::fs::write(models.join(file), text.replace(from, to)).unwrap();
        let models_path = format!("models.path={}", models.display());
        let settings = [&models_path, "train.phase=[{resolution = 64, steps = 2}]"]
            .into_iter()
            .chain(settings.iter().copied());
        let flags = settings.flat_map(|setting| ["--set", setting]);
        let (code, result) = tidemill_json(&["run", &run].into_iter().chain(flags).collect::<Vec<_>>());
        assert!(code == 2 && result.to_string().contains(expected), "{code} {result}");
        assert!(!folder.path().join("out/dataset/commits").exists(), "{expected}");
    };
    let unet = "unet/config.json";
    assert_refused(unet, "\"cross_attention_dim\": 64", "\"cross_attention_dim\": 48", &[], "48");
    assert_refused(unet, "\"in_channels\": 4", "\"in_channels\": 9", &[], "9");
    let drawn = ["train.zero_terminal_snr=true", "sample.prompts=[\"a\"]"];
    assert_refused("scheduler/scheduler_config.json", "\"leading\"", "\"trailing\"", &drawn, "v_prediction");
    assert_refused(unet, "", "", &["train.validation={every = 1}"], "set [validation] share");
    assert_refused(unet, "", "", &["train.flow_shift=3.0"], "flow_prediction");
}

#[test]
fn resumed_run_reports_that_its_snapshot_is_not_the_newest() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    preprocess(&run, &[]);
    let steps = |steps: u64| format!("train.phase=[{{resolution = 64, steps = {steps}}}]");
    assert_eq!(train(&run, &[&steps(2)]).0, 0);
    preprocess(&run, &["caption.template=a {caption}"]);
    let train_and_read_output = |settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", setting]);
        let arguments = ["train", &run].into_iter().chain(settings).chain(SHORT);
        let output = tidemill(&arguments.collect::<Vec<_>>());
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert!(output.status.success(), "{text}");
        text
    };
    let text = train_and_read_output(&[&steps(4)]);
    assert!(text.contains("resumes with snapshot 1 of") && text.contains("are in snapshot 2 only"), "{text}");
    // A snapshot with another tensor spec is another snapshot, too.
    preprocess(&run, &["prepare.resolutions=[64, 32]", "validation.share=0.2"]);
    let text = train_and_read_output(&[&steps(5), "validation.share=0.1", "filter.max_aspect=1.5"]);
    assert!(text.contains("filter.max_aspect was null"), "{text}");
    assert!(text.contains("are in snapshot 3 only"), "{text}");
    assert!(text.contains("holds out 0.2 of its rows") && text.contains("not the 0.1"), "{text}");
    // A full standard error does not end the work.
    for (verb, setting) in [("train", steps(6)), ("preprocess", "prepare.crop=random".to_owned())] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let arguments = [verb, &run, "--set", &setting].into_iter().chain(SHORT);
        let mut verb = command(&arguments.collect::<Vec<_>>());
        assert!(verb.stderr(full).status().unwrap().success(), "{setting}");
    }
}

#[test]
fn invalid_settings_are_refused_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    preprocess(&run, &[]);
    for (setting, expected) in [
        ("train.learning_rate=nan", "train.learning_rate"),
        ("train.betas=[0.9, 1.0]", "train.betas"),
        ("engine.device=cuda:99", "asks for a GPU"),
    ] {
        let (code, result) = train(&run, &["train.phase=[{resolution = 64, steps = 2}]", setting]);
        let message = result["error"]["message"].as_str().unwrap();
        assert!(code == 2 && message.contains(expected), "{code}: {message}");
    }
    assert!(!folder.path().join("out/metrics.jsonl").exists());
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &to),
            false => _ = std::fs::copy(entry.path(), to).unwrap(),
        }
    }
}
