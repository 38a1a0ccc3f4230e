"""Results of studies against statsmodels, krippendorff and choix, on judgements from a seed."""

import sqlite3

import choix
import krippendorff
import numpy as np
import pyarrow.parquet as pq
import pytest
import statsmodels.api as sm
from helpers.study import compare, make_study
from statsmodels.stats.proportion import proportion_confint

OUTCOMES = {"first": 1.0, "tie": 0.5, "second": 0.0}


def judge_at_random(study, rng, raters, judgements):
    """Writes judgements with effects of prompts and raters; returns them.

    A judgement is the prompt, the rater, the comparison, the two models and what the rater found.
    """
    connection = sqlite3.connect(study)
    comparisons = connection.execute(
        "SELECT comparison.id, comparison.prompt, first.model, second.model FROM comparison "
        "JOIN picture AS first ON first.id = first JOIN picture AS second ON second.id = second"
    ).fetchall()
    for rater in range(1, raters + 1):
        connection.execute("INSERT INTO rater VALUES (?, ?, NULL, 0)", (rater, rng.randbytes(32)))
    opinion = {rater: rng.gauss(0.2, 0.8) for rater in range(1, raters + 1)}
    ease = {prompt: rng.gauss(0, 1) for _, prompt, _, _ in comparisons}
    rows = []
    for comparison, prompt, first, second in comparisons:
        for rater in rng.sample(sorted(opinion), judgements):
            lead = 0.4 * (second - first) + opinion[rater] + ease[prompt]
            draw = rng.random()
            found = "tie" if draw < 0.15 else "first" if rng.random() < 1 / (1 + np.exp(-lead)) else "second"
            rows.append((prompt, rater, comparison, first, second, found))
            first_is_left = rng.random() < 0.5
            answer = {"tie": "tie", "first": "left", "second": "right"}[found]
            if not first_is_left and answer != "tie":
                answer = "right" if answer == "left" else "left"
            key = f"{comparison} {rater}"
            assignment = connection.execute(
                "INSERT INTO assignment (key, rater, comparison, first_is_left, shown, is_judged) "
                "VALUES (?, ?, ?, ?, 0, 1)",
                (key, rater, comparison, first_is_left),
            ).lastrowid
            connection.execute(
                "INSERT INTO judgement (assignment, question, answer, judged, milliseconds) "
                "VALUES (?, 0, ?, 0, 9)",
                (assignment, answer),
            )
    connection.commit()
    connection.close()
    return rows


@pytest.fixture(scope="module")
def judged(tmp_path_factory, make_rng):
    """A study of three models, its results, and its judgements."""
    folder, rng = tmp_path_factory.mktemp("study"), make_rng("judged")
    prompts = [(f"prompt {number}", "ab"[number % 2]) for number in range(50)]
    models = ("ours", "theirs", "others")
    study = make_study(folder, prompts, models, attention_checks=0.0, judgements=4)
    rows = judge_at_random(study, rng, raters=15, judgements=4)
    return study, compare("results", study)["questions"]["quality"], rows


def test_results_agree_with_the_references(judged):
    """Shares and Wilson's intervals exactly, variances to the bootstrap's noise."""
    _, results, rows = judged
    for number, (first, second) in enumerate([(0, 1), (0, 2), (1, 2)]):
        pair = results["pairs"][number]
        votes = [row for row in rows if row[3:5] == (first, second)]
        scores = np.array([OUTCOMES[row[5]] for row in votes])
        assert pair["judgements"] == len(votes)
        assert pair["preference"] == pytest.approx(scores.mean(), rel=1e-12)
        wilson = proportion_confint(scores.sum(), len(scores), method="wilson")
        assert pair["wilson"] == pytest.approx(wilson, abs=1e-9)
        clusters = np.array([(row[0], row[1]) for row in votes])
        model = sm.OLS(scores, np.ones(len(scores)))
        fit = model.fit(cov_type="cluster", cov_kwds={"groups": clusters, "use_correction": True})
        variance = pair["design_effect"] * scores.var() / len(scores)
        # Of 1,000 draws, the standard error is known to some 2 %; ours has a floor besides.
        by_prompt = model.fit(cov_type="cluster", cov_kwds={"groups": clusters[:, 0]}).bse[0]
        by_rater = model.fit(cov_type="cluster", cov_kwds={"groups": clusters[:, 1]}).bse[0]
        expected = max(fit.cov_params()[0, 0], min(by_prompt, by_rater) ** 2)
        assert variance**0.5 == pytest.approx(expected**0.5, rel=0.12)
        assert set(pair["categories"]) == {"a", "b"}


def test_agreement_equals_krippendorffs(judged, tmp_path):
    """Alpha of nominal answers. The table has the same judgements."""
    study, results, rows = judged
    table = tmp_path / "judgements.parquet"
    assert compare("judgements", study, "--to", table)["judgements"] == len(rows)
    models = ("ours", "theirs", "others")
    expected = {
        (row[2], row[1], {"first": models[row[3]], "second": models[row[4]]}.get(row[5], "tie"))
        for row in rows
    }
    columns = pq.read_table(table).select(["comparison", "rater", "preferred"]).to_pylist()
    assert {tuple(row.values()) for row in columns} == expected
    counts = {}
    for row in rows:
        counts.setdefault(row[2], dict.fromkeys(OUTCOMES, 0))[row[5]] += 1
    table = np.array([list(unit.values()) for unit in counts.values()])
    alpha = krippendorff.alpha(value_counts=table, level_of_measurement="nominal")
    assert results["agreement"] == pytest.approx(alpha, abs=1e-12)


def test_strengths_equal_those_of_choix(judged):
    """Bradley-Terry strengths, with the tenth of a tie that is added to each two models."""
    _, results, rows = judged
    wins = np.full((3, 3), 0.05)
    np.fill_diagonal(wins, 0)
    for row in rows:
        wins[row[3], row[4]] += OUTCOMES[row[5]]
        wins[row[4], row[3]] += 1 - OUTCOMES[row[5]]
    expected = choix.ilsr_pairwise_dense(wins, alpha=0.0)
    strengths = [model["strength"] for model in results["strengths"]]
    assert strengths == pytest.approx(list(expected), abs=1e-6)
    for model in results["strengths"]:
        assert model["low"] < model["strength"] < model["high"]
