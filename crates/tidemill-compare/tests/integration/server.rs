//! The server over HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tidemill_compare::database::Database;
use tidemill_compare::results::{SummaryOptions, summarise};
use tidemill_compare::statistics::{ClusterBootstrap, Outcome};

use crate::http::Server;
use crate::small_study::{MODELS, config, make_study};

fn add_raters(study: &std::path::Path, count: usize) -> Vec<String> {
    let database = Database::open(study).unwrap();
    (0..count).map(|_| database.add_rater(None).unwrap().1).collect()
}

/// Judges all that a rater is shown, by `decide` from the left and the right picture's key, and
/// returns the assignments' prompts.
fn judge_all(
    server: &Server,
    token: &str,
    questions: usize,
    decide: impl Fn(&str, &str) -> &'static str,
) -> Vec<String> {
    let mut prompts = Vec::new();
    loop {
        let next = server.next(token);
        let Some(assignment) = next["assignments"].get(0) else { return prompts };
        let text = |name: &str| assignment[name].as_str().unwrap();
        for question in 0..questions {
            assert_eq!(server.judge(token, text("key"), question, decide(text("left"), text("right"))), 200);
        }
        prompts.push(text("prompt").to_owned());
    }
}

#[test]
fn study_is_judged_as_wanted_and_nobody_sees_a_pair_twice() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = config(3);
    (settings.judgements, settings.attention_checks) = (2, 0.2);
    let study = make_study(folder.path(), &settings, 8);
    let raters = add_raters(&study, 4);
    let server = Server::start(&study);
    // The first models' pictures are wider known to the test than to any rater: by their colour.
    let green = |key: &str| {
        let picture = server.get(&format!("/picture/{key}"));
        assert!(picture.headers.contains("image/webp") && picture.headers.contains("immutable"));
        let pixels = image::load_from_memory(&picture.body).unwrap().into_rgb8();
        // A damaged picture is noise.
        let first = pixels.get_pixel(0, 0).0;
        if pixels.pixels().all(|pixel| pixel.0 == first) { i32::from(first[1]) } else { 1000 }
    };
    let better = |left: &str, right: &str| if green(left) < green(right) { "left" } else { "right" };
    for token in &raters {
        judge_all(&server, token, 2, better);
    }
    drop(server);

    let database = Database::open(&study).unwrap();
    let contents = database.read_contents().unwrap();
    let rows = database.read_judgements().unwrap();
    let mut by_comparison: BTreeMap<usize, BTreeSet<i64>> = BTreeMap::new();
    for row in &rows {
        by_comparison.entry(row.comparison).or_default().insert(row.rater);
        assert_eq!(row.outcome, Outcome::First, "the first picture is the better one: {row:?}");
    }
    for (number, comparison) in contents.comparisons.iter().enumerate().filter(|(_, c)| !c.is_check) {
        assert_eq!(by_comparison[&number].len(), 2, "{comparison:?}");
    }
    let keys: BTreeSet<(i64, usize, usize)> =
        rows.iter().map(|r| (r.rater, r.comparison, r.question)).collect();
    assert_eq!(keys.len(), rows.len());
    let left = rows.iter().filter(|row| row.question == 0 && row.first_is_left).count() as f64;
    let all = rows.iter().filter(|row| row.question == 0).count() as f64;
    // Five standard deviations of a coin.
    assert!((left / all - 0.5).abs() < 2.5 / all.sqrt(), "{left} of {all} on the left");
    assert!(rows.iter().any(|row| contents.comparisons[row.comparison].is_check), "no attention check");

    let options = SummaryOptions { difference: 0.05, bootstrap: ClusterBootstrap::default() };
    let summary = summarise(&database, &options).unwrap();
    assert_eq!((summary.checks.failed, summary.excluded_raters.len()), (0, 0));
    let question = &summary.questions[0];
    let pair = &question.pairs[0];
    assert_eq!((pair.models.clone(), pair.preference), ([MODELS[0], MODELS[1]].map(String::from), 1.0));
    assert_eq!((pair.judgements, pair.categories.len(), question.pairs.len()), (16, 2, 3));
    let strengths: Vec<f64> = question.strengths.iter().map(|model| model.strength).collect();
    assert!(strengths[0] > strengths[1] && strengths[1] > strengths[2], "{strengths:?}");
    assert_eq!(question.agreement, None, "all answers are the same");
}

#[test]
fn answers_tell_nothing_of_the_models() {
    let folder = tempfile::tempdir().unwrap();
    let study = make_study(folder.path(), &config(2), 4);
    let token = &add_raters(&study, 1)[0];
    let server = Server::start(&study);
    let study = server.get("/api/study");
    let next = server.send("POST", "/api/next", Some(token), "{}");
    let pages = ["/", "/app.js", "/view.js", "/source.js", "/style.css", "/admin", "/admin.js"];
    let answers = pages.into_iter().map(|page| server.get(page)).chain([study, next]);
    for answer in answers {
        assert_eq!(answer.status, 200);
        let text = String::from_utf8(answer.body).unwrap() + &answer.headers;
        assert!(MODELS.iter().all(|model| !text.contains(model)), "{text}");
        for header in ["default-src 'none'", "nosniff", "frame-ancestors 'none'", "no-referrer", "no-store"] {
            assert!(answer.headers.contains(header), "{header}: {}", answer.headers);
        }
    }
    // Both pictures of a pair are of one size and one form.
    let pair = &server.next(token)["assignments"][0];
    let headers = ["left", "right"]
        .map(|side| server.get(&format!("/picture/{}", pair[side].as_str().unwrap())).headers);
    let [left, right] = headers.map(|text| {
        text.lines().filter(|line| !line.starts_with("date")).map(str::to_owned).collect::<Vec<_>>()
    });
    assert_eq!(left, right);
}

#[test]
fn corrections_replace_and_repetitions_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let study = make_study(folder.path(), &config(2), 4);
    let token = &add_raters(&study, 1)[0];
    let server = Server::start(&study);
    let next = server.next(token);
    assert_eq!(next["assignments"].as_array().unwrap().len(), 2, "one to show, one to load");
    let key = next["assignments"][0]["key"].as_str().unwrap();
    for answer in ["left", "left", "right", "right"] {
        assert_eq!(server.judge(token, key, 0, answer), 200);
    }
    // A page that is loaded again goes on with the open question.
    let again = server.next(token);
    assert_eq!(again["assignments"][0]["key"], key);
    assert_eq!(again["assignments"][0]["answered"], serde_json::json!([0]));
    drop(server);
    let rows = Database::open(&study).unwrap().read_judgements().unwrap();
    assert_eq!((rows.len(), rows[0].corrections), (1, 1));
    assert_eq!(rows[0].outcome == Outcome::Second, rows[0].first_is_left, "right is what counts");
}

#[test]
fn strangers_and_nonsense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let study = make_study(folder.path(), &config(2), 8);
    let raters = add_raters(&study, 2);
    let admin = Database::open(&study).unwrap().renew_admin_token().unwrap();
    let server = Server::start(&study);
    let key = server.next(&raters[0])["assignments"][0]["key"].as_str().unwrap().to_owned();
    let judgement = |assignment: &str, question: u32, answer: &str| {
        format!(
            r#"{{"assignment":"{assignment}","question":{question},"answer":"{answer}","milliseconds":1}}"#
        )
    };
    let long = "x".repeat(5000);
    let cases = [
        ("POST", "/api/next", None, "{}".to_owned(), 401),
        ("POST", "/api/next", Some("0123"), "{}".to_owned(), 401),
        ("POST", "/api/judge", Some(raters[1].as_str()), judgement(&key, 0, "left"), 404),
        ("POST", "/api/judge", Some(&raters[0]), judgement("0123", 0, "left"), 404),
        ("POST", "/api/judge", Some(&raters[0]), judgement(&key, 7, "left"), 404),
        ("POST", "/api/judge", Some(&raters[0]), judgement(&key, 0, "both"), 422),
        ("POST", "/api/judge", Some(&raters[0]), "{".to_owned(), 400),
        ("POST", "/api/judge", Some(&raters[0]), judgement(&long, 0, "left"), 413),
        ("POST", "/api/sign-in", None, r#"{"name":"me"}"#.to_owned(), 403),
        ("GET", "/api/admin/progress", None, String::new(), 401),
        ("GET", "/api/admin/progress", Some(&raters[0]), String::new(), 401),
        ("GET", "/api/admin/progress", Some(&admin), String::new(), 200),
        ("POST", "/api/admin/raters", Some(&admin), r#"{"count":0}"#.to_owned(), 422),
        ("GET", "/picture/../../etc/passwd", None, String::new(), 404),
        ("GET", "/picture/..%2f..%2fetc%2fpasswd", None, String::new(), 404),
        ("GET", "/study.sqlite", None, String::new(), 404),
        ("DELETE", "/api/judge", Some(&raters[0]), String::new(), 405),
    ];
    for (method, path, token, body, status) in cases {
        let answer = server.send(method, path, token, &body);
        assert_eq!(answer.status, status, "{method} {path} {body}: {answer:?}");
    }
    // A page elsewhere whose name resolves to this machine.
    let other = server.send_raw("GET / HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n");
    assert_eq!(other.status, 421);
    // One rater who sends too much does not stop the others.
    let deadline = Instant::now() + Duration::from_secs(30);
    let is_limited = || server.send("POST", "/api/next", Some(&raters[0]), "{}").status == 429;
    while !is_limited() {
        assert!(Instant::now() < deadline, "no limit");
    }
    server.next(&raters[1]);
    let invited = server.send("POST", "/api/admin/raters", Some(&admin), r#"{"count":2}"#).json();
    server.next(invited["tokens"][1].as_str().unwrap());
    drop(server);
    assert!(Database::open(&study).unwrap().read_judgements().unwrap().is_empty());
}

#[test]
fn raters_sign_in_where_the_study_allows_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = config(2);
    settings.sign_in = true;
    let study = make_study(folder.path(), &settings, 2);
    let server = Server::start(&study);
    let sign_in = |name: &str| {
        server.send("POST", "/api/sign-in", None, &serde_json::json!({ "name": name }).to_string())
    };
    assert_eq!(sign_in("  ").status, 422);
    let token = sign_in(" Ada ").json()["token"].as_str().unwrap().to_owned();
    assert_eq!(server.next(&token)["progress"]["judged"], 0);
    drop(server);
    assert_eq!(Database::open(&study).unwrap().list_raters().unwrap()[0].name.as_deref(), Some("Ada"));
}
