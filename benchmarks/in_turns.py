"""Run two trainings in turns on one machine, and tell when each reached what.

Each is let run for a slice of time while the other is stopped (SIGSTOP, SIGCONT), so that whatever
else changes on the machine changes for both alike. Both write a journal in JSON Lines, and each
line `{"kind": "eval", "step": …, "metrics": {…}}` that appears is stamped with the seconds that its
writer has had by then.

    python benchmarks/in_turns.py --minutes 30 --out results.jsonl \
        ours run/journal.jsonl "bertworks pretrain …" \
        peer peer/journal.jsonl "python benchmarks/pretraining/peer.py …"
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path


class Contestant:
    """A command in a process group of its own, and the journal that it writes."""

    def __init__(self, name: str, journal: str, command: str) -> None:
        self.name, self.journal = name, Path(journal)
        self.seconds = 0.0
        self.read = 0
        log = open(f"{name}.log", "wb")  # noqa: SIM115 - it is open as long as the command runs
        self.process = subprocess.Popen(
            shlex.split(command), stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        self.signal(signal.SIGSTOP)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)

    def run(self, seconds: float) -> Iterator[dict[str, object]]:
        """Let it run for a while; the evaluations that it wrote meanwhile."""
        self.signal(signal.SIGCONT)
        start = last = time.monotonic()
        while self.process.poll() is None and last - start < seconds:
            time.sleep(0.2)
            now = time.monotonic()
            self.seconds += now - last
            last = now
            yield from self.news()
        self.signal(signal.SIGSTOP)

    def news(self) -> Iterator[dict[str, object]]:
        if not self.journal.exists():
            return
        with self.journal.open("rb") as file:
            file.seek(self.read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.read += len(line)
                entry = json.loads(line)
                if entry["kind"] == "eval":
                    yield {
                        "who": self.name,
                        "seconds": round(self.seconds, 1),
                        **{key: entry[key] for key in ("step", "tokens", "metrics")},
                    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, required=True, help="running time of each")
    parser.add_argument("--slice", type=float, default=20, help="seconds of a turn")
    parser.add_argument("--out", type=Path, required=True, help="JSON Lines of all evaluations")
    parser.add_argument("contestants", nargs=6, metavar="NAME JOURNAL COMMAND")
    options = parser.parse_args()
    words = options.contestants
    contestants = [Contestant(*words[at : at + 3]) for at in (0, 3)]
    with options.out.open("w") as out:
        try:
            while waiting := [
                c
                for c in contestants
                if c.seconds < 60 * options.minutes and c.process.poll() is None
            ]:
                for contestant in waiting:
                    left = 60 * options.minutes - contestant.seconds
                    for line in contestant.run(min(options.slice, left)):
                        print(json.dumps(line), file=out, flush=True)
        finally:
            for contestant in contestants:
                contestant.signal(signal.SIGTERM)
                contestant.signal(signal.SIGCONT)
            for contestant in contestants:
                contestant.process.wait()
                print(f"{contestant.name}: {contestant.seconds:.0f} s")


if __name__ == "__main__":
    main()
