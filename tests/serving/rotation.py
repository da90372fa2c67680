"""Keys and a model that are replaced while a server is under load, for `tests.serving.soak`.

At intervals a key is revoked, another is added, a symbolic link is moved to another model, and
SIGHUP has the server read both. Every third reload meets a broken file instead, and must change
nothing. Requests are checked against the states in which the server may be while they are answered.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch

import bertworks as bw
from bertworks.checkpoints.sentence_settings import SentenceSettings
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.text.tokenizer import Tokenizer
from tests.serving.conftest import PIECES, WORDS, config
from tests.serving.test_bert import close

NAME = "rotating"
"""The name of the model and of the key that are replaced."""

Send = Callable[..., tuple[int, bytes, float]]
"""Sends a path, a body and headers; returns a status, a body and seconds (`soak.Caller.send`)."""


class State(NamedTuple):
    """What a server has loaded: a number, which chooses the key, and one of two models."""

    number: int
    model: int

    @property
    def key(self) -> str:
        return f"key-number-{self.number:06d}"


class Rotation:
    """Replaces a key and a model of a server, and knows what it may answer at any time.

    Args:
        folder: for the file of keys and the models.
        fixed_keys: keys that stay, by name.

    Attributes:
        states: those in which the server may be now: two while it reloads, else one.
        num_done, num_failed: reloads that changed all, and that changed nothing.
    """

    def __init__(self, folder: Path, fixed_keys: Mapping[str, str]) -> None:
        self.keys_file, self.link = folder / "keys", folder / "current"
        self._fixed_keys = dict(fixed_keys)
        self._models = [folder / "version-0", folder / "version-1"]
        tokenizer = Tokenizer.from_vocabulary(PIECES)
        draw = Random(0)
        self._texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 20))) for _ in range(20)]
        self._vectors: list[list[list[float]]] = []
        self._digests: list[str] = []
        for seed, place in enumerate(self._models):
            torch.manual_seed(100 + seed)
            network = BareEncoder(Encoder(config(), pooler=True)).eval()
            sentence = SentenceSettings(normalize=True, max_seq_length=32)
            bw.Model(tokenizer, None, network, sentence=sentence).save(place)
            self._vectors.append(bw.load(place, device="cpu").embed(self._texts).tolist())
            weights = (place / "model.safetensors").read_bytes()
            self._digests.append(hashlib.sha256(weights).hexdigest())
        self.num_done, self.num_failed = 0, 0
        self._faults: list[str] = []
        self.states = (State(0, 0),)
        self._write(self.states[0])

    def _write(self, state: State) -> None:
        """Write the files of a state, each of them complete at any time."""
        lines = [f"{name}:{key}" for name, key in self._fixed_keys.items()]
        self._replace_keys("\n".join([*lines, f"{NAME}:{state.key}"]))
        new_link = self.link.with_suffix(".new")
        new_link.symlink_to(self._models[state.model])
        os.replace(new_link, self.link)

    def _replace_keys(self, content: str) -> None:
        new_file = self.keys_file.with_suffix(".new")
        new_file.write_text(content)
        os.replace(new_file, self.keys_file)

    def start(
        self, process: subprocess.Popen[bytes], log: Path, seconds: float, end: float
    ) -> None:
        """Reload at intervals in a thread, until a time on the monotonic clock."""
        self._thread = threading.Thread(target=self._run, args=(process, log, seconds, end))
        self._thread.start()

    def join(self) -> list[str]:
        """Wait for the last reload; return what was wrong with any."""
        self._thread.join(90)
        return [*self._faults, *(["a reload hangs"] if self._thread.is_alive() else [])]

    def _run(self, *arguments: Any) -> None:
        try:
            self._reload_at_intervals(*arguments)
        except Exception as error:
            self._faults.append(f"reloads ended with {type(error).__name__}: {error}")

    def _reload_at_intervals(
        self, process: subprocess.Popen[bytes], log: Path, seconds: float, end: float
    ) -> None:
        while time.monotonic() + seconds < end:
            time.sleep(seconds)
            (state,) = self.states
            if (self.num_done + self.num_failed) % 3 == 2:
                content = self.keys_file.read_text()
                self._replace_keys("short:key")
                assert self._reload(process, log)["event"] == "reload failed"
                self._replace_keys(content)
                self.num_failed += 1
                continue
            new_state = State(state.number + 1, 1 - state.model)
            self.states = (state, new_state)
            self._write(new_state)
            event = self._reload(process, log)
            assert event["event"] == "reloaded", event
            assert event["models"][NAME] == self._digests[new_state.model]
            self.states = (new_state,)
            self.num_done += 1

    @staticmethod
    def _reload(process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
        """Send SIGHUP; return the log's event that says how the reload ended."""
        start = log.stat().st_size
        process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with log.open("rb") as file:
                file.seek(start)
                for line in file:
                    if b'"reload' in line and line.endswith(b"\n"):
                        event: dict[str, Any] = json.loads(line)
                        if event["event"].startswith("reload"):
                            return event
            time.sleep(0.02)
        raise AssertionError("nothing was reloaded in a minute")

    def check(self, send: Send, draw: Random) -> tuple[str, str | None]:
        """Send a request with a key of some state; return what it was, and what was wrong."""
        states = self.states
        number = max(0, states[-1].number - draw.choice([-1, 0, 0, 0, 1, 1, 2, 3]))
        row = draw.randrange(len(self._texts))
        content = json.dumps({"inputs": self._texts[row], "model": NAME}).encode()
        headers = {"authorization": f"Bearer {State(number, 0).key}"}
        status, body, _ = send("/embed", content, **headers)
        states = tuple(dict.fromkeys([*states, *self.states]))
        may_be_valid = [state.number == number for state in states]
        if status == 401 and not all(may_be_valid):
            return "rotation: another key, 401", None
        if status != 200 or not any(may_be_valid):
            return "", f"key {number} in {states}: {status} {body[:300]!r}"
        (vector,) = json.loads(body)
        if not any(close(vector, self._vectors[state.model][row]) for state in states):
            return "", f"not the vector of a model in {states}: {body[:300]!r}"
        return f"rotation: key and model, 200{' in a reload' * (len(states) > 1)}", None
