"""A study's server is killed again and again while raters judge."""

import http.client
import signal
import threading
import time

import pytest
from helpers.study import StudyServer, invite, make_study, read_rows

RATERS = 6


class Rater(threading.Thread):
    """Judges without pause, and notes what the server has acknowledged."""

    def __init__(self, token, answer, find_server):
        super().__init__(daemon=True)
        self.token, self.answer, self.find_server = token, answer, find_server
        self.acknowledged = {}
        self.is_over = threading.Event()

    def run(self):
        while not self.is_over.is_set():
            try:
                self.judge_next(self.find_server())
            except (OSError, http.client.HTTPException, ValueError):
                # The server was killed. What was not acknowledged is asked again.
                self.is_over.wait(0.01)

    def judge_next(self, server):
        status, answer = server.request("/api/next", self.token, {})
        if status == 429:
            self.is_over.wait(0.1)
        for assignment in answer.get("assignments", []):
            for question in (0, 1):
                body = {"assignment": assignment["key"], "question": question, "answer": self.answer}
                status, _ = server.request("/api/judge", self.token, {**body, "milliseconds": 5})
                if status == 200:
                    self.acknowledged[assignment["key"], question] = self.answer


@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.slow)])
def test_no_acknowledged_judgement_is_lost_through_kills(tmp_path, kills):
    """What the server has acknowledged is there after kill -9, exactly once."""
    prompts = [(f"prompt {number}", "all") for number in range(400)]
    study = make_study(tmp_path, prompts, judgements=50, attention_checks=0.1)
    server = StudyServer(study)
    answers = ("left", "right", "tie")
    raters = [
        Rater(token, answers[number % 3], lambda: server)
        for number, token in enumerate(invite(study, RATERS))
    ]
    for rater in raters:
        rater.start()
    for kill in range(kills):
        before = sum(len(rater.acknowledged) for rater in raters)
        # Each server lives until it has acknowledged some more.
        deadline = time.monotonic() + 60
        while sum(len(rater.acknowledged) for rater in raters) < before + 1 + kill % 5:
            assert server.process.poll() is None, "".join(server.log)
            assert time.monotonic() < deadline, "nothing is acknowledged"
            time.sleep(0.001)
        server.stop(signal.SIGKILL)
        server = StudyServer(study)
    for rater in raters:
        rater.is_over.set()
        rater.join(timeout=60)
    server.stop()
    stored = read_rows(
        study, "SELECT key, question, answer FROM judgement JOIN assignment ON assignment.id = assignment"
    )
    found = {(key, question): answer for key, question, answer in stored}
    assert len(found) == len(stored)
    acknowledged = {key: answer for rater in raters for key, answer in rater.acknowledged.items()}
    print(f"{len(acknowledged)} judgements acknowledged, {len(stored)} stored, {kills} kills")
    assert len(acknowledged) >= kills
    lost = {key for key, answer in acknowledged.items() if found.get(key) != answer}
    assert not lost
    # At most one per rater was stored when its acknowledgement was cut off.
    assert len(stored) - len(acknowledged) <= RATERS * kills
    assert read_rows(study, "PRAGMA integrity_check") == [("ok",)]
