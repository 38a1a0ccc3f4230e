//! Mistakes in a run file: each is refused with exit code 2 and one message that says what is
//! wrong, where it is and what to do.

use crate::common::{tidemill, tidemill_json};
use tidemill::Run;

/// The text of a run file, overrides, and the parts that the message must contain.
type Case = (&'static str, &'static [&'static str], &'static [&'static str]);

const CASES: &[Case] = &[
    // Text that is not TOML.
    ("name = ", &[], &["run.toml:1:8"]),
    ("[source\n", &[], &["run.toml:1:"]),
    ("a = 1\na = 2\n", &[], &["run.toml:2:1", "duplicate key"]),
    // Unknown keys, with the nearest valid one.
    ("nam = \"x\"", &[], &["run.toml:1:1", "`nam` is not a key", "did you mean `name`?"]),
    ("[sauce]\n", &[], &["run.toml:1:2", "`sauce`", "`source`"]),
    (
        "[prepare]\nreslutions = [64]",
        &[],
        &["run.toml:2:1", "`prepare.reslutions`", "did you mean `resolutions`?"],
    ),
    (
        "[source.columns]\nimg = \"jpg\"",
        &[],
        &["run.toml:2:1", "`source.columns.img`", "did you mean `image`?"],
    ),
    (
        "[[train.phase]]\nresolution = 64\nsteps = 1\nstep = 2",
        &[],
        &["run.toml:4:1", "train.phase.0.step", "`steps`"],
    ),
    (
        "[[train.phase]]\nresolution = 64\nsteps = 1",
        &["train.phase.1.steps=5"],
        &["--set:1:13", "there is no entry 1: there are 1, from 0 on"],
    ),
    (
        "[filter]\nscore.aesthetic = { mni = 5 }",
        &[],
        &["run.toml:2:21", "filter.score.aesthetic.mni", "`min`"],
    ),
    // Missing keys and wrong types.
    ("[[train.phase]]\nresolution = 256", &[], &["run.toml:1:", "`steps`", "missing"]),
    ("seed = \"one\"", &[], &["run.toml:1:8", "seed: invalid type", "u64"]),
    ("seed = -1", &[], &["run.toml:1:8", "seed:"]),
    ("[prepare]\nresolutions = 64", &[], &["run.toml:2:15", "prepare.resolutions: invalid type"]),
    ("[source]\nuri = 7", &[], &["run.toml:2:7", "source.uri: expected a string"]),
    // Values that are not in a list.
    (
        "[prepare]\ncrop = \"centre\"",
        &[],
        &["run.toml:2:8", "prepare.crop: \"centre\"", "did you mean `center`?"],
    ),
    ("[engine]\nkind = \"dask\"", &[], &["run.toml:2:8", "engine.kind: \"dask\"", "`local`, `ray`"]),
    ("[encode]\nlatents = \"mean\"", &[], &["run.toml:2:11", "did you mean `moments`?"]),
    (
        "[train]\nsharding = \"zero3\"",
        &[],
        &[
            "run.toml:2:12",
            "train.sharding: \"zero3\" is not a possible value",
            "`shard_grad_op`, `full_shard`, `hybrid_shard`, `none`",
        ],
    ),
    ("[supervisor]\nheartbeat = 3", &[], &["run.toml:2:1", "did you mean `heartbeat_seconds`?"]),
    ("[[train.mix]]\ndataset = \"x\"", &[], &["run.toml:1:", "`name`", "missing"]),
    // Values of the right type that are invalid.
    ("[prepare]\nresolutions = []", &[], &["run.toml:2:15", "prepare.resolutions: give at least one"]),
    ("[prepare]\nresolutions = [100]", &[], &["run.toml:2:15", "100 is not a multiple of 8"]),
    ("[prepare]\nresolutions = [64, 64]", &[], &["run.toml:2:15", "64 is listed twice"]),
    ("[prepare]\nbucket_step = 64", &[], &["run.toml:2:15", "only be used with crop = \"bucket\""]),
    (
        "[prepare]\ncrop = \"bucket\"\nbuckets.512 = [[512, 512]]",
        &[],
        &["run.toml:3:15", "prepare.buckets.512", "not in prepare.resolutions"],
    ),
    ("[validation]\nshare = 1.0", &[], &["run.toml:2:9", "validation.share: must be"]),
    ("[encode]\nbatch_size = 0", &[], &["run.toml:2:14", "encode.batch_size: 0 is not between"]),
    ("[engine]\ndevice = \"gpu\"", &[], &["run.toml:2:10", "\"gpu\" is no device"]),
    (
        "[engine]\nmemory = \"much\"",
        &[],
        &["run.toml:2:10", "engine.memory: must be bytes, such as \"4 GiB\""],
    ),
    (
        "[train.stream]\ncache_bytes = \"much\"",
        &[],
        &["run.toml:2:15", "train.stream.cache_bytes: must be bytes, such as \"256 GiB\""],
    ),
    (
        "[engine.prepare]\nworkers = \"8..2\"",
        &[],
        &["run.toml:2:11", "engine.prepare.workers", "not a range"],
    ),
    ("[engine.encode]\nworkers = 0", &[], &["run.toml:2:11", "engine.encode.workers: must be at least 1"]),
    ("[engine.encode]\nworkers = \"1..4\"", &[], &["run.toml:2:11", "a range is for engine.kind = \"ray\""]),
    (
        "[engine]\nkind = \"ray\"\nencode.gpus = -1",
        &[],
        &["run.toml:3:15", "engine.encode.gpus: must be a number"],
    ),
    ("[engine]\nmax_bad_fraction = 2", &[], &["run.toml:2:20", "between 0 and 1"]),
    ("[filter]\nmax_aspect = 0.5", &[], &["run.toml:2:14", "at least 1"]),
    ("[filter]\nwhere = \"score >\"", &[], &["run.toml:2:9", "filter.where: "]),
    ("[filter]\nlanguages = [\"english\"]", &[], &["run.toml:2:13", "none of the languages"]),
    (
        "[dedup]\nnear = { phash_distance = 20 }",
        &[],
        &["run.toml:2:27", "dedup.near.phash_distance: 20 is more than 8"],
    ),
    ("name = \"a/b\"", &[], &["run.toml:1:8", "plain name"]),
    ("output = \"https://host/x\"", &[], &["run.toml:1:10", "http can only be read"]),
    ("[sample]\nsteps = 0", &[], &["run.toml:2:9", "sample.steps: 0"]),
    (
        "[prepare]\nresolutions = [64]\n[[train.phase]]\nresolution = 128\nsteps = 10",
        &[],
        &["run.toml:4:14", "train.phase.0.resolution: 128 is not prepared", "[64]"],
    ),
    // Overrides.
    ("", &["seed"], &["--set:1:1", "`seed` sets nothing", "section.key=value"]),
    ("", &["prepare.resolution=[64]"], &["--set:1:9", "`prepare.resolution`", "did you mean `resolutions`?"]),
    ("", &["name=x", "seed=abc"], &["--set:2:8", "seed: invalid type"]),
    ("seed = 1", &["seed=0.5"], &["--set:1:8", "seed: invalid type"]),
];

#[test]
fn mistakes_are_refused_with_key_and_position() {
    let mut failures = Vec::new();
    for (text, overrides, expected) in CASES {
        let overrides: Vec<String> = overrides.iter().map(|o| o.to_string()).collect();
        let error = Run::parse("run.toml", text, &overrides).expect_err(text);
        let json = error.to_json();
        let message = format!("{error} {}", json["error"]["help"].as_str().unwrap_or_default());
        if error.exit_code() != 2 || !expected.iter().all(|part| message.contains(part)) {
            failures.push(format!("{text:?} {overrides:?}: {message:?} lacks one of {expected:?}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn overrides_replace_values_and_merge_tables() {
    let text = "seed = 1\n[prepare]\nresolutions = [64]\n[[train.phase]]\nresolution = 64\nsteps = 5\n";
    let overrides = ["seed=2", "engine.device=cpu", "train.phase.0.steps=9", "prepare.resolutions=[64, 32]"];
    let run = Run::parse("run.toml", text, &overrides.map(String::from)).unwrap();
    assert_eq!((run.file.seed, run.file.engine.device.as_str()), (2, "cpu"));
    assert_eq!((run.file.train.phase[0].steps, run.file.train.phase[0].resolution), (9, 64));
    assert_eq!(run.file.prepare.resolutions, [64, 32]);
    let run = Run::parse("run.toml", "", &["train.stream.cache_bytes=10 GiB".into()]).unwrap();
    assert_eq!(run.file.train.stream.cache_bytes, 10 << 30);
    // Strings need no quotes, and may have them.
    for value in ["a b", "\"a b\""] {
        let run = Run::parse("run.toml", "", &[format!("name={value}")]).unwrap();
        assert_eq!(run.file.name, "a b");
    }
}

#[test]
fn binary_shows_the_line_with_the_mistake_and_no_backtrace() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    std::fs::write(&path, "seed = 1\n[prepare]\nreslutions = [64]\n").unwrap();
    let path = path.to_str().unwrap();
    let output = tidemill(&["preprocess", path]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    for part in [&format!("{path}:3:1:"), "reslutions = [64]", "did you mean `resolutions`?"] {
        assert!(stderr.contains(part), "{stderr}");
    }
    assert!(!stderr.contains("panicked") && !stderr.contains("stack backtrace"), "{stderr}");

    let (code, json) = tidemill_json(&["preprocess", path]);
    assert_eq!((code, &json["exit_code"]), (2, &2.into()));
    assert_eq!((&json["error"]["line"], &json["error"]["column"]), (&3.into(), &1.into()));
}

#[test]
fn refusals_exit_with_code_2_and_name_the_input() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let models = crate::common::models_folder().display().to_string();
    std::fs::write(at("empty.toml"), "").unwrap();
    std::fs::write(at("broken.parquet"), "PAR1 is not enough").unwrap();
    let set = |key: &str, value: &str| format!("{key}={value}");
    let with_models = set("models.path", &models);
    let cases: Vec<(Vec<String>, &str)> = vec![
        (vec!["preprocess".into(), at("none.toml")], "none.toml"),
        (vec!["preprocess".into(), at("empty.toml")], "source.uri: give at least one path"),
        (
            vec![
                "preprocess".into(),
                at("empty.toml"),
                "--set".into(),
                set("source.uri", &at("no/*.parquet")),
            ],
            "models.path",
        ),
        (
            vec![
                "preprocess".into(),
                at("empty.toml"),
                "--set".into(),
                with_models.clone(),
                "--set".into(),
                set("source.uri", &at("no/*.parquet")),
            ],
            "nothing matches it",
        ),
        (
            vec![
                "preprocess".into(),
                at("empty.toml"),
                "--set".into(),
                with_models.clone(),
                "--set".into(),
                set("source.uri", &at("broken.parquet")),
            ],
            "broken.parquet",
        ),
        (
            vec![
                "preprocess".into(),
                at("empty.toml"),
                "--set".into(),
                set("models.path", &at("x")),
                "--set".into(),
                "source.uri=x".into(),
            ],
            "models.path",
        ),
        (vec!["train".into(), at("empty.toml")], "train.phase"),
        (vec!["inspect".into(), at("nothing")], "nothing"),
        (vec!["inspect".into(), at("broken.parquet")], "broken.parquet"),
        (vec!["dedup".into(), at("empty.toml")], "dedup: nothing counts as a duplicate"),
        (
            vec!["inspect".into(), at("nothing"), "--sheet".into(), at("x.png")],
            "--sheet draws rows of a source",
        ),
        (vec!["synth".into(), at("scenes"), "--rows".into(), "0".into()], "rows"),
        (
            vec!["export".into(), at("empty.toml"), "--to".into(), "s3://bucket/model".into()],
            "must be a path on this machine",
        ),
        (
            vec!["gc".into(), at("empty.toml"), "--older-than-hours".into(), "NaN".into()],
            "--older-than-hours: NaN is not a valid age",
        ),
        (vec!["no-such-verb".into()], "no-such-verb"),
    ];
    for (args, expected) in cases {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (code, json) = tidemill_json(&args);
        let message = json["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(expected), "{args:?}: {json}");
        assert_eq!(code, 2, "{args:?}: {json}");
    }
}

#[test]
fn explain_says_what_a_key_means() {
    let (code, json) = tidemill_json(&["explain", "train.ema"]);
    assert_eq!((code, json["key"]["default"].as_str()), (0, Some("none")), "{json}");
    assert!(json["section"].as_array().is_some_and(|keys| keys.len() > 2), "{json}");
    let (code, json) = tidemill_json(&["explain", "train.emma"]);
    let message = json["error"]["message"].as_str().unwrap_or_default();
    assert!(code == 2 && message.contains("did you mean `train.ema`?"), "{json}");
    let script = String::from_utf8(tidemill(&["completions", "bash"]).stdout).unwrap();
    assert!(script.contains("_tidemill()"), "{script}");
}

#[test]
fn help_lists_every_verb() {
    let help = |args: &[&str]| {
        let output = tidemill(args);
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8(output.stdout).unwrap()
    };
    let all = help(&["--help"]);
    for verb in ["run", "preprocess", "dedup", "train", "sample", "export", "inspect", "synth", "doctor"] {
        assert!(all.contains(&format!("\n  {verb} ")), "{verb} is not in\n{all}");
        let one = help(&[verb, "--help"]);
        assert!(one.contains("Usage: tidemill") && one.contains("--json"), "{one}");
    }
    let version = help(&["--version"]);
    assert!(version.starts_with("tidemill ") && version.contains("(libtorch "), "{version}");
}
