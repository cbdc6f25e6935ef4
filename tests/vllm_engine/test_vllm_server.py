"""vLLM's own server on an Ouro directory: the plugin is found, and the answers are the native engine's."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import Request as HttpRequest
from urllib.request import urlopen

import pytest
from vllm_engine.small_model import model_of, requests_of

from scalerlt.models.checkpoint import save_hf
from scalerlt.rollout.native import NativeEngine

START_SECONDS = 300


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Its address, once it answers."""
    save_hf(model_of(seed=4), tmp_path / "ouro")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # what `vllm serve` runs; the command itself asks for a package named vllm, which the build for CPUs is not
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tmp_path / "ouro")]
    options = [
        "--skip-tokenizer-init",
        "--dtype",
        "float32",
        "--enforce-eager",
        "--max-model-len",
        "128",
        "--max-num-seqs",
        "4",
    ]
    log = tmp_path / "log"
    environment = os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, *options, "--host", "127.0.0.1", "--port", str(port)],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
        )
    try:
        address, until = f"http://127.0.0.1:{port}", time.monotonic() + START_SECONDS
        while not answers(address):
            assert process.poll() is None and time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def answers(address: str) -> bool:
    try:
        with urlopen(f"{address}/health", timeout=2) as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False


def test_a_server_of_an_ouro_directory(server: str, tmp_path: Path) -> None:
    asked = requests_of(3)
    wanted = NativeEngine(model_of(seed=4), concurrency=3).generate(asked).responses
    for request, response in zip(asked, wanted, strict=True):
        body = {
            "model": str(tmp_path / "ouro"),
            "prompt": list(request.prompt_tokens),
            "max_tokens": request.max_new_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        call = HttpRequest(
            f"{server}/v1/completions", json.dumps(body).encode(), headers={"Content-Type": "application/json"}
        )
        with urlopen(call, timeout=60) as reply:
            found = json.load(reply)["choices"][0]
        assert tuple(found["token_ids"]) == response.tokens and found["finish_reason"] == "length"
