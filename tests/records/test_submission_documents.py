"""The documents of a Slurm submission: what an earlier version wrote is read for ever."""

import json
from pathlib import Path

import pytest

from scalerlt.records.base import NewerDocument, UnreadableDocument
from scalerlt.records.queue import Asked, Queue
from scalerlt.records.submission import Submission, queue_file, submissions

SUBMISSION_1 = {
    "schema_version": 1,
    "sweep": "arms",
    "plan": "001.json",
    "created": "2026-11-30T02:00:00.000+00:00",
    "host": "login1",
    "job_name": "arms-001",
    "launcher": {"kind": "slurm", "timeout_min": 60},
    "provenance": {"git_revision": "0123456789abcdef0123456789abcdef01234567"},
    "snapshot": None,
    "jobs": [
        {"job_id": "12_0", "items": [0], "resources": "1 node, 60 min"},
        {"job_id": "12_1", "items": [1], "resources": "1 node, 60 min"},
    ],
    "fault": None,
}
QUEUE_1 = {
    "schema_version": 1,
    "sweep": "arms",
    "plan": "001.json",
    "created": "2026-11-30T02:00:00.000+00:00",
    "items": [
        {"index": 0, "bundle": "c0-0123456789", "cells": ["a", "b"], "seconds": 12.5, "timed": True},
        {"index": 1, "bundle": None, "cells": ["c"], "seconds": None, "timed": False},
    ],
    "tried": {"c": 2},
    "retry": ["failed", "killed"],
    "slots": 2,
    "timed": "exclusive",
    "infer_oom": True,
    "timeout_min": 60,
    "signal_delay_s": 120,
    "max_requeues": 10,
    "asked": {"nodes": 1, "cpus": 4, "gpus": None},
    "provenance": {"git_revision": "0123456789abcdef0123456789abcdef01234567"},
    "snapshot": None,
}


def test_version_1_is_read(tmp_path: Path) -> None:
    (tmp_path / "submissions" / "001").mkdir(parents=True)
    file = tmp_path / "submissions" / "001.json"
    file.write_text(json.dumps(SUBMISSION_1))
    queue_file(file).write_text(json.dumps(QUEUE_1))
    [(path, submission)] = submissions(tmp_path)
    assert path == file and isinstance(submission, Submission)
    assert [(job.job_id, job.items) for job in submission.jobs] == [("12_0", [0]), ("12_1", [1])]
    queue = Queue.read(tmp_path / "submissions" / "001" / "queue.json")
    assert [item.cells for item in queue.items] == [["a", "b"], ["c"]]
    assert queue.asked == Asked(nodes=1, cpus=4, gpus=None) and queue.tried == {"c": 2}
    submission.write(file)
    assert json.loads(file.read_text()) == SUBMISSION_1
    queue.write(queue_file(file))
    assert json.loads(queue_file(file).read_text()) == QUEUE_1


def test_damaged_and_later_ones_are_told(tmp_path: Path) -> None:
    folder = tmp_path / "submissions"
    folder.mkdir()
    (folder / "001.json").write_text(json.dumps(SUBMISSION_1)[:-20])
    (folder / "002.json").write_text(json.dumps({**SUBMISSION_1, "schema_version": 2}))
    (folder / "003.json").write_text(json.dumps(SUBMISSION_1))
    found = [document for _, document in submissions(tmp_path)]
    assert [type(document) for document in found] == [UnreadableDocument, NewerDocument, Submission]
    broken = folder / "queue.json"
    broken.write_text(json.dumps({**QUEUE_1, "items": [{"index": 0, "cells": []}]}))
    with pytest.raises(UnreadableDocument, match=r"items\.0\.cells"):
        Queue.read(broken)
    broken.write_text(json.dumps({**QUEUE_1, "schema_version": 3}))
    with pytest.raises(NewerDocument):
        Queue.read(broken)
