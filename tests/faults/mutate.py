"""Files that are changed at random, and processes that read thousands of them.

A try is over when the reader has returned, or has raised a `BertworksError` of one line. Anything
else is a fault: another exception, a crash, more than 10 s of processor time, more than 1 GB of
memory beyond the file's size.
"""

from __future__ import annotations

import gzip
import importlib
import json
import os
import random
import re
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

SECONDS, MEMORY = 10.0, 10**9

Reader = Callable[[Path], object]

_ODD: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 10**30, 1.5, float("nan"), float("inf"), 1e308),
    *(
        "",
        "x",
        "../../x",
        "/etc/passwd",
        "\ud800",
        "a\x00b",
        "é" * 300,
        [],
        [1],
        [[]],
        {},
        {"": []},
    ),
]
_BITS = (
    *(
        b"\x00",
        b"\xff",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\n",
        b"\r\n",
        b"\t",
        b'"',
        b"'",
        b",",
        b"{",
    ),
    *(
        b"}",
        b"[" * 300,
        b"]",
        b"\\u0000",
        b"\\ud800",
        b"\x80",
        b"\xed\xa0\x80",
        b"-",
        b"e9999",
        b":",
    ),
    *(b"\xf0\x9f\x92\xa9", b"9" * 5000, b'<doc id="1">', b"</doc>", b"*a", b"&a ", b"\x1f\x8b"),
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something is in a JSON value."""
    paths = [path] if path else []
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    if isinstance(tree, dict | list):
        for key, part in parts:
            paths += places(part, (*path, key))
    return paths


def odd_json(content: bytes, draw: random.Random) -> bytes:
    """A JSON document, or a line of a file of them, with another value somewhere."""
    lines = content.splitlines()
    index = None
    try:
        tree = json.loads(content)
    except ValueError:
        index = draw.randrange(len(lines))
        tree = json.loads(lines[index])
    if not (found := places(tree)):
        return content
    *path, last = draw.choice(found)
    owner = tree
    for key in path:
        owner = owner[key]
    if draw.random() < 0.2:
        del owner[last]
    else:
        owner[last] = draw.choice(_ODD)
    new = json.dumps(tree).encode()
    if index is None:
        return new
    return b"\n".join([*lines[:index], new, *lines[index + 1 :]]) + b"\n"


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    """Content that is changed in one to four ways."""
    if draw.random() < 0.4:
        try:
            return odd_json(content, draw)
        except (ValueError, IndexError, TypeError):
            pass
    new = bytearray(content)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        size = len(new)
        start = draw.randrange(size + 1)
        end = min(size, start + draw.choice([1, 2, 4, 8, 100, size]))
        kind = draw.randrange(9)
        if kind <= 2 and start < size:
            new[start] = new[start] ^ (1 << draw.randrange(8)) if kind else draw.randrange(256)
        elif kind == 3:
            del new[start:end]
        elif kind == 4:
            new[start:start] = draw.choice(_BITS)
        elif kind == 5:
            new[start:end] = draw.randbytes(end - start)
        elif kind == 6:
            new[start:start] = new[draw.randrange(size + 1) :][:1000]
        elif kind == 7 and (numbers := list(re.finditer(rb"\d+", new))):
            found = draw.choice(numbers)
            new[found.start() : found.end()] = draw.choice(
                [b"-1", b"0", b"4294967296", b"18446744073709551615", b"1e999", b"NaN", b"7"]
            )
        elif start < size:  # an integer of eight bytes, as lengths are
            new[start : start + 8] = draw.choice([2**64 - 1, 2**63, 2**40, 10**9, 255]).to_bytes(
                8, "little"
            )
    return bytes(new)


def mutate_content(name: str, content: bytes, draw: random.Random) -> bytes:
    """As `mutate_bytes`; compressed content is changed inside, half of the time."""
    if name.endswith(".gz") and draw.random() < 0.5:
        return gzip.compress(mutate_bytes(gzip.decompress(content), draw), 1)
    if name.endswith(".zst") and draw.random() < 0.5:
        inner = pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()
        return pa.compress(mutate_bytes(inner, draw), "zstd", asbytes=True)
    return mutate_bytes(content, draw)


def peak() -> int:
    """The most memory since the last look, in bytes."""
    status = Path("/proc/self/status").read_text()
    Path("/proc/self/clear_refs").write_text("5")
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def read_many(
    reader: str, source: Path, name: str, folder: Path, seed: str, first: int, last: int
) -> None:
    """Change a file of a copy of `source` again and again, and have it read; for a process.

    Args:
        reader: the name of a function of `tests.faults.test_mutated`.
        source: a folder that holds the intact files.
        name: of the file that is changed.
        folder: where `try` (the number of the last try), `faults` and the copy lie.
    """
    from bertworks.errors import BertworksError

    read: Reader = getattr(importlib.import_module("tests.faults.test_mutated"), reader)
    warnings.simplefilter("ignore")  # of damaged files, in thousands
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.dup2(null, 2)
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    content = (source / name).read_bytes()
    try:
        read(copy)  # the whole one can be read, and its memory is what is usual
    except Exception as error:
        note(folder, -1, f"whole: {error!r}")
        return
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    peak()
    peak_before = peak()
    for number in range(first, last):
        (folder / "try").write_text(str(number))
        new = mutate_content(name, content, random.Random(f"{seed} {number}"))
        (copy / name).unlink(missing_ok=True)
        (copy / name).write_bytes(new)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        message = None
        try:
            read(copy)
        except BertworksError as error:
            message = str(error)
            if "\n" in message or len(message) > 3000:
                note(folder, number, f"not one line: {message[:300]!r}")
        except Exception:
            note(folder, number, traceback.format_exc())
        signal.setitimer(signal.ITIMER_PROF, 0)
        if (used := peak() - peak_before) > MEMORY + len(new):
            note(folder, number, f"took {used:,} bytes")
        with (folder / "ends").open("ab") as ends:
            ends.write(b"E" if message else b".")


def note(folder: Path, number: int, what: str) -> None:
    """Write down a fault."""
    with (folder / "faults").open("a") as file:
        file.write(json.dumps([number, what]) + "\n")
