//! Static copies, the answers that come back, and tables.

use std::io::{Cursor, Read};

use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tidemill_compare::database::Database;
use tidemill_compare::exchange::{ImportCounts, export_site, import_answers, write_judgements};

use crate::small_study::{MODELS, config, make_study};

fn sign(token: &str, assignment: &str, question: usize, answer: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(&Sha256::digest(token)).unwrap();
    mac.update(format!("{assignment}\n{question}\n{answer}\n700").as_bytes());
    let signature: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let line = json!({
        "assignment": assignment, "question": question, "answer": answer, "milliseconds": 700, "signature": signature
    });
    format!("{line}\n")
}

#[test]
fn answers_of_a_static_copy_come_back_once_and_only_signed() {
    let folder = tempfile::tempdir().unwrap();
    let study = make_study(folder.path(), &config(2), 6);
    let database = Database::open(&study).unwrap();
    let mut site = Cursor::new(Vec::new());
    let raters = export_site(&database, 3, 4, &mut site).unwrap();
    assert_eq!(raters.len(), 3);
    let mut archive = zip::ZipArchive::new(site).unwrap();
    let names: Vec<String> = archive.file_names().map(|name| name.unwrap().into_owned()).collect();
    let mut read = |name: &str| {
        let mut content = Vec::new();
        archive.by_name(name).unwrap().read_to_end(&mut content).unwrap();
        content
    };
    for name in &names {
        let text = String::from_utf8_lossy(&read(name)).into_owned();
        let is_secret = |word: &str| text.contains(word) || name.contains(word);
        assert!(!MODELS.iter().any(|model| is_secret(model)), "{name} names a model");
        assert!(!raters.iter().any(|rater| is_secret(&rater.token)), "{name} has a token");
    }
    let mut lines = String::new();
    for rater in &raters {
        let pack: Value = serde_json::from_slice(&read(&format!("packs/{}.json", rater.pack))).unwrap();
        assert_eq!(pack.as_array().unwrap().len(), 4);
        for assignment in pack.as_array().unwrap() {
            let key = assignment["key"].as_str().unwrap();
            lines += &sign(&rater.token, key, 0, "left");
            lines += &sign(&rater.token, key, 1, "tie");
            assert!(names.contains(&format!("pictures/{}.webp", assignment["left"].as_str().unwrap())));
        }
    }
    let first = lines.lines().next().unwrap().to_owned();
    let key = serde_json::from_str::<Value>(&first).unwrap()["assignment"].as_str().unwrap().to_owned();
    // Answers in another rater's name, of no rater, changed, and no answers.
    lines += &sign(&raters[1].token, &key, 0, "right");
    lines += &sign("someone", &key, 1, "left");
    lines += &sign(&raters[0].token, "0123", 0, "left");
    lines += &first.replace("\"left\"", "\"right\"");
    lines += "\n\nnonsense\n";
    let counts = import_answers(&database, lines.as_bytes()).unwrap();
    let number = lines.lines().count();
    let expected = ImportCounts { stored: 24, repeated: 0, forged: 3, unknown: 1, malformed: vec![number] };
    assert_eq!(counts, expected);
    let counts = import_answers(&database, lines.as_bytes()).unwrap();
    assert_eq!((counts.stored, counts.repeated), (0, 24));
    // The first answer counts, also against a signed change.
    import_answers(&database, sign(&raters[0].token, &key, 0, "right").as_bytes()).unwrap();
    let rows = database.read_judgements().unwrap();
    assert_eq!((rows.len(), rows.iter().map(|row| row.corrections).sum::<i64>()), (24, 0));

    let table = folder.path().join("judgements.csv");
    assert_eq!(write_judgements(&database, &table).unwrap(), 24);
    let text = std::fs::read_to_string(table).unwrap();
    assert!(
        text.starts_with("question,prompt,category,comparison,is_check,first,second,preferred,"),
        "{text}"
    );
    assert_eq!((text.lines().count(), text.matches(",tie,").count()), (25, 12));
}
