//! Real faults of disks and files: a full disk, missing permissions, source files that vanish or
//! shrink while they are read. Each is reported in one message that says what to do. After that is
//! done, the same command makes the dataset of an undisturbed run.
#![cfg(target_os = "linux")]

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tidemill_testing::unshare;

use crate::common::{
    command, list_commits, models_folder, parse_output, read_files, verified_digest, wait_until, write_run,
};
use crate::noise_pairs::{draw_pairs, write_run_file, write_tar};

const BINARY: &str = env!("CARGO_BIN_EXE_tidemill");

/// The arguments for preprocessing into `output`, with one thread, because the bytes of tensors
/// depend on the number of threads.
fn arguments(run: &str, output: &Path) -> Vec<String> {
    let output = format!("output={}", output.display());
    let arguments = ["preprocess", run, "--json", "--set", "engine.encode.threads=1", "--set", &output];
    arguments.map(str::to_owned).into()
}

/// Starts preprocessing into `output`.
fn start(run: &str, output: &Path) -> Child {
    let arguments = arguments(run, output);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Preprocesses into `output`, which must succeed.
fn finish(run: &str, output: &Path) -> Value {
    let (code, result) = parse_output(&start(run, output).wait_with_output().unwrap());
    assert_eq!(code, 0, "{result}");
    result
}

/// The exit code and the one error message of a command that failed.
fn parse_failure(output: &Output) -> (i32, String) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("panicked"), "{stderr}");
    let errors: Vec<&str> = stderr.lines().filter(|line| line.starts_with("error")).collect();
    let (code, result) = parse_output(output);
    let message = result["error"]["message"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned();
    assert_eq!(errors.len(), 1, "{stderr}");
    (code, message)
}

fn assert_contains(message: &str, parts: &[&str]) {
    println!("{message}");
    assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
}

/// The units that this command has done, and the total.
fn count_units(result: &Value) -> (usize, usize) {
    let units = |name: &str| result["units"][name].as_u64().unwrap() as usize;
    (units("done"), units("total"))
}

/// Runs a command ($4 and on) on a disk ($1) with this many bytes ($2), copies what is committed,
/// makes room and runs the command again. The results are in $3.
const ON_A_SMALL_DISK: &str = r#"
disk=$1 bytes=$2 results=$3
shift 3
mount -t tmpfs -o "size=$bytes" tmpfs "$disk" || exit 1
"$@" >"$results/full.out" 2>"$results/full.err"
echo $? >"$results/full.code"
cp -r "$disk/out" "$results/full"
mount -o remount,size=1g "$disk" || exit 1
"$@" >"$results/again.out" 2>"$results/again.err"
echo $? >"$results/again.code"
cp -r "$disk/out" "$results/again"
"#;

#[test]
fn full_disk_is_reported_and_the_run_resumes_once_there_is_space() {
    let Some(mut unshare) = unshare() else {
        eprintln!("skipped: neither root nor a user may mount a tmpfs here (unshare --mount)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let run = write_run(folder.path(), 512);
    finish(&run, &at("whole"));

    // Half of what the dataset needs, in whole pages.
    let pages: u64 =
        read_files(&at("whole")).iter().map(|(_, bytes)| bytes.len().div_ceil(4096) as u64).sum();
    let disk = at("disk");
    std::fs::create_dir(&disk).unwrap();
    let status = unshare
        .args(["sh", "-c", ON_A_SMALL_DISK, "sh"])
        .args([&disk, &PathBuf::from((pages * 4096 / 2).to_string()), folder.path()])
        .arg(BINARY)
        .args(arguments(&run, &disk.join("out")))
        .env("NO_COLOR", "1")
        .status();
    assert!(status.unwrap().success());
    let output = |name: &str| {
        let read = |what: &str| std::fs::read(at(&format!("{name}.{what}"))).unwrap();
        let code: i32 = String::from_utf8(read("code")).unwrap().trim().parse().unwrap();
        // The wait status of a process has its exit code in the second byte.
        let status = std::os::unix::process::ExitStatusExt::from_raw(code << 8);
        Output { status, stdout: read("out"), stderr: read("err") }
    };

    let (code, message) = parse_failure(&output("full"));
    assert_eq!(code, 1, "{message}");
    assert_contains(
        &message,
        &["cannot write", disk.to_str().unwrap(), "free some space", "run the same command again"],
    );
    let committed = list_commits(&at("full"));
    let (code, again) = parse_output(&output("again"));
    assert_eq!(code, 0, "{again}");
    let (done, total) = count_units(&again);
    assert!(!committed.is_empty() && done < total, "nothing was committed before the disk was full");
    assert_eq!(done + committed.len(), total, "units that were committed are not done again");
    assert_eq!(
        verified_digest(&at("again").display().to_string(), 512),
        verified_digest(&at("whole").display().to_string(), 512)
    );
}

/// Trains ($3 and on) on a disk ($1). Fills the disk after the first checkpoint, makes room after
/// the trainer has reported the full disk, and stops training after another checkpoint. The results
/// are in $2.
const ON_A_DISK_THAT_IS_FULL_FOR_A_WHILE: &str = r#"
disk=$1 results=$2
shift 2
mount -t tmpfs -o size=512m tmpfs "$disk" || exit 1
mkdir "$disk/out"
ln -s "$results/whole/dataset" "$disk/out/dataset"
"$@" >"$results/trained.out" 2>"$results/trained.err" &
trainer=$!
wait_for_line() {
    for _ in $(seq 1200); do
        test "$(grep -c "$1" "$results/trained.err")" -ge "$2" && return
        kill -0 $trainer || exit 1
        ${3-}
        sleep 0.1
    done
    kill -9 $trainer
    exit 1
}
# Repeatedly, because a checkpoint that cannot be written frees its space again.
fill() {
    dd if=/dev/zero bs=1M 2>/dev/null >>"$disk/filling"
}
wait_for_line "is committed" 1
wait_for_line "metrics cannot be written" 1 fill
wait_for_line "checkpoint of step .* cannot be written" 1 fill
rm "$disk/filling"
wait_for_line "all metrics are written again" 1
wait_for_line "is committed" $(($(grep -c "is committed" "$results/trained.err") + 1))
kill -TERM $trainer
wait $trainer
echo $? >"$results/trained.code"
cp -r "$disk/out" "$results/trained"
"#;

/// Trains while the disk is full for some time. `workers` are additional arguments.
fn train_on_a_disk_that_is_full_for_a_while(workers: &[&str]) {
    let Some(mut unshare) = unshare() else {
        eprintln!("skipped: neither root nor a user may mount a tmpfs here (unshare --mount)");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let run = write_run(folder.path(), 64);
    finish(&run, &folder.path().join("whole"));
    let disk = folder.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let settings = [
        &format!("output={}", disk.join("out").display()),
        "train.global_batch=4",
        "train.micro_batch=2",
        "train.log_every=1",
        "train.phase=[{resolution = 32, steps = 100000}]",
        "checkpoint.every=5",
        "checkpoint.keep=1",
    ];
    let status = unshare
        .args(["sh", "-c", ON_A_DISK_THAT_IS_FULL_FOR_A_WHILE, "sh"])
        .args([&disk, folder.path()])
        .args([BINARY, "train", &run, "--json"])
        .args(workers)
        .args(settings.iter().flat_map(|setting| ["--set", *setting]))
        .env("NO_COLOR", "1")
        .env("OMP_NUM_THREADS", "1")
        .status();
    let read = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let log = read("trained.err");
    assert!(status.unwrap().success(), "{log}");
    assert_eq!(read("trained.code").trim(), "0", "{log}");
    let result: Value = serde_json::from_str(read("trained.out").lines().last().unwrap()).unwrap();
    let steps = result["steps"].as_u64().unwrap();
    // No line of metrics is lost or cut off, and all steps are saved.
    let lines = read("trained/metrics.jsonl");
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().map(|line| line["step"].as_u64().unwrap()).eq(1..=steps), "{log}");
    assert!(folder.path().join(format!("trained/checkpoints/step-{steps:08}/commit.json")).exists(), "{log}");
}

#[test]
fn training_survives_a_full_disk() {
    train_on_a_disk_that_is_full_for_a_while(&[]);
}

#[test]
fn training_of_several_ranks_survives_a_full_disk() {
    train_on_a_disk_that_is_full_for_a_while(&["--workers", "2"]);
}

/// A command that file permissions apply to. As root, it runs without the capabilities to bypass
/// permissions. `None` if they cannot be dropped.
fn without_privileges(arguments: &[&str]) -> Option<Command> {
    let plain = |program: &str| Command::new(program);
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 {
        let mut command = plain(arguments[0]);
        command.args(&arguments[1..]);
        return Some(command);
    }
    let capabilities = "-dac_override,-dac_read_search";
    let drop_capabilities = |arguments: &[&str]| {
        let mut command = plain("setpriv");
        command.args(["--bounding-set", capabilities, "--inh-caps", capabilities]).args(arguments);
        command
    };
    let folder = tempfile::tempdir().unwrap();
    let (secret, open) = (folder.path().join("secret"), folder.path().join("open"));
    for path in [&secret, &open] {
        std::fs::write(path, "x").unwrap();
    }
    std::fs::set_permissions(&secret, Permissions::from_mode(0o000)).unwrap();
    let reads = |path: &Path| {
        drop_capabilities(&["cat", path.to_str().unwrap()]).output().is_ok_and(|o| o.status.success())
    };
    (reads(&open) && !reads(&secret)).then(|| drop_capabilities(arguments))
}

/// Runs a command while a file or folder has these permissions.
fn with_mode(path: &Path, mode: u32, mut command: Command) -> Output {
    let before = std::fs::metadata(path).unwrap().permissions();
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let output = command.env("NO_COLOR", "1").output();
    std::fs::set_permissions(path, before).unwrap();
    output.unwrap()
}

/// Copies the models with broken weights of the VAE, so that a run fails when it loads them.
fn write_broken_models(to: &Path) {
    let weights = "vae/diffusion_pytorch_model.safetensors";
    for (name, bytes) in read_files(&models_folder()) {
        let path = to.join(&name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, if name == weights { b"broken" } else { &bytes[..] }).unwrap();
    }
    assert!(to.join(weights).is_file());
}

#[test]
fn missing_permissions_are_reported_before_models_are_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let run = write_run(folder.path(), 64);
    write_broken_models(&at("models"));
    let models = format!("models.path={}", at("models").display());
    let arguments = [vec![BINARY.to_owned()], arguments(&run, &at("there/out"))].concat();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    arguments.extend(["--set", &models]);
    let command = || without_privileges(&arguments);
    if command().is_none() {
        eprintln!("skipped: this is root, and setpriv cannot take its capabilities away");
        return;
    }
    let (there, pairs) = (at("there"), at("pairs"));
    std::fs::create_dir(&there).unwrap();
    let file = pairs.join("scenes-00001.parquet");
    let cases = [
        (&there, 0o555, ["cannot write", there.to_str().unwrap(), "this user may not do that"]),
        (&file, 0o000, ["cannot read", file.to_str().unwrap(), "this user may not do that"]),
        (&pairs, 0o000, ["cannot list", pairs.to_str().unwrap(), "this user may not do that"]),
    ];
    for (path, mode, expected) in cases {
        let (code, message) = parse_failure(&with_mode(path, mode, command().unwrap()));
        assert_eq!(code, 1, "{message}");
        assert_contains(&message, &expected);
    }
    // With all permissions, the run fails when it loads the models.
    let (_, message) = parse_failure(&command().unwrap().output().unwrap());
    assert!(message.contains("vae"), "{message}");

    // The settings changed, so units are missing, but the dataset cannot be written.
    finish(&run, &there.join("out"));
    let dataset = there.join("out/dataset");
    let (code, message) = parse_failure(&with_mode(&dataset, 0o555, command().unwrap()));
    assert_eq!(code, 1, "{message}");
    assert_contains(&message, &["cannot write", dataset.to_str().unwrap(), "this user may not do that"]);
}

/// Starts a run and breaks one of its last files after the first commit. Repairs the file after the
/// run has failed, resumes the run, and compares the dataset with that of an undisturbed run.
fn assert_recovers(
    folder: &Path,
    run: &str,
    file: &Path,
    rows: usize,
    break_file: fn(&Path),
    expected: &str,
) {
    let (whole, out) = (folder.join("whole"), folder.join("broken"));
    finish(run, &whole);
    let bytes = std::fs::read(file).unwrap();
    let mut child = start(run, &out);
    wait_until("a commit", || !list_commits(&out).is_empty() || child.try_wait().unwrap().is_some());
    break_file(file);
    let (code, message) = parse_failure(&child.wait_with_output().unwrap());
    std::fs::write(file, bytes).unwrap();
    assert_eq!(code, 1, "{message}");
    assert_contains(&message, &[file.to_str().unwrap(), expected, "restore the file"]);

    let committed = list_commits(&out);
    let (done, total) = count_units(&finish(run, &out));
    assert!(!committed.is_empty());
    assert_eq!(done + committed.len(), total, "units that were committed are not done again");
    let [whole, out] = [whole, out].map(|output| verified_digest(&output.display().to_string(), rows));
    assert_eq!(whole, out);
}

fn remove_file(path: &Path) {
    std::fs::remove_file(path).unwrap();
}

fn halve_file(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(File::open(path).unwrap().metadata().unwrap().len() / 2).unwrap();
}

#[test]
fn parquet_file_that_vanishes_or_shrinks_is_named() {
    for (break_file, expected) in
        [(remove_file as fn(&Path), "is gone now"), (halve_file, "bytes when the run began and has")]
    {
        let folder = tempfile::tempdir().unwrap();
        let run = write_run(folder.path(), 1024);
        assert_recovers(
            folder.path(),
            &run,
            &folder.path().join("pairs/scenes-00001.parquet"),
            1024,
            break_file,
            expected,
        );
    }
}

#[test]
fn tar_that_vanishes_or_shrinks_is_named() {
    for (break_file, expected) in
        [(remove_file as fn(&Path), "is gone now"), (halve_file, "bytes when the run began and has")]
    {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("webdataset")).unwrap();
        let file = |number: usize| folder.path().join(format!("webdataset/{number:02}.tar"));
        let pairs = draw_pairs(std::iter::repeat_n((160, 120), 480));
        pairs.chunks(24).enumerate().for_each(|(number, pairs)| write_tar(&file(number), pairs));
        let run = write_run_file(folder.path(), "webdataset");
        assert_recovers(folder.path(), &run, &file(19), 480, break_file, expected);
    }
}
