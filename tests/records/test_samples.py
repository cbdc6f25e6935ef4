import hashlib
import math
from pathlib import Path

import pytest

from scalerlt.errors import UserError
from scalerlt.records.samples import Sample, SamplesHeader, digest, read_samples, write_samples

HEADER = SamplesHeader(model="tiny_ouro", vocab_size=512, made_by="a test")


def sample(**fields) -> Sample:
    return Sample(
        **{
            "problem_id": "train-00001",
            "prompt_group": 3,
            "prompt_tokens": [1, 2],
            "response_tokens": [5, 6],
            "logprobs": [-0.1, -2.5],
            "temperature": 0.7,
            "finish_reason": "stop",
            "seed": 11,
            "weight_version": 0,
            "reward": 1.0,
        }
        | fields
    )


def test_what_is_written_is_read(tmp_path: Path):
    samples = [
        sample(),
        sample(advantage=-0.5, exit_depths=[4, 2], text="7 apples\u2028#### 7\n", finish_reason="length"),
        sample(response_tokens=[], logprobs=[]),
        sample(logprobs=[-math.inf, -0.123456789012345678]),
    ]
    path = tmp_path / "samples.jsonl"
    write_samples(path, HEADER, samples)
    found = read_samples(path)
    assert found.header == HEADER
    assert found.samples == samples
    assert len(path.read_bytes().split(b"\n")) == 1 + 4 + 1
    assert b'["-Infinity",-0.123' in path.read_bytes()  # strict JSON


def test_a_missing_advantage_is_not_zero(tmp_path: Path):
    write_samples(tmp_path / "s.jsonl", HEADER, [sample()])
    assert read_samples(tmp_path / "s.jsonl").samples[0].advantage is None


def test_the_digest_is_that_of_the_bytes_and_the_same_samples_give_the_same(tmp_path: Path):
    for name in ("a", "b"):
        write_samples(tmp_path / name, HEADER, [sample()])
    assert digest(tmp_path / "a") == hashlib.sha256((tmp_path / "a").read_bytes()).hexdigest() == digest(tmp_path / "b")
    write_samples(tmp_path / "b", HEADER, [sample(seed=12)])
    assert digest(tmp_path / "a") != digest(tmp_path / "b")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda line: line[:-20], "not a sample"),
        (lambda line: line.replace('"seed":11,', ""), "seed: Field required"),
        (lambda line: line.replace('"seed"', '"sede":1,"seed"'), "sede: Extra inputs"),
        (lambda line: line.replace("[5,6]", "[5,-6]"), "response_tokens.1"),
        (lambda line: line.replace("[5,6]", "[5]"), "2 logprobs for 1 response_tokens"),
        (lambda line: line.replace("[1,2]", "[]"), "prompt_tokens"),
        (lambda line: "", "not a sample"),
    ],
)
def test_a_broken_line_is_named_with_its_file_and_number(tmp_path: Path, change, fault: str):
    path = tmp_path / "samples.jsonl"
    write_samples(path, HEADER, [sample(), sample(), sample()])
    lines = path.read_text().split("\n")
    lines[2] = change(lines[2])
    path.write_text("\n".join(lines))
    with pytest.raises(UserError) as error:
        read_samples(path)
    assert f"{path}, line 3" in str(error.value)
    assert fault in str(error.value)


def test_a_file_that_is_no_samples_file(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    with pytest.raises(UserError, match="cannot be read"):
        read_samples(path)
    path.write_text("")
    with pytest.raises(UserError, match="is empty"):
        read_samples(path)
    path.write_text('{"question": "1 + 1?", "answer": "#### 2"}\n')
    with pytest.raises(UserError, match="line 1: not a header"):
        read_samples(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        read_samples(path)
