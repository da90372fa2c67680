"""The names that users type are still there, or are aliases that work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bertworks as bw
from bertworks.tables.texts import read_texts

from . import accepted, look, surface


def lines(file: str) -> set[str]:
    return set((look.DIRECTORY / file).read_text(encoding="utf-8").splitlines())


_START = {
    "embed": ("embed", "models/small", "a text", "--out", "former.npy"),
    "features": ("features", "models/small", "a text", "--out", "former.parquet"),
    "evaluate": ("evaluate", "models/classification", "--data", "tables/single-dev.jsonl"),
    "predict": ("predict", "models/classification", "Ben drew the door"),
    "generate": ("generate", "models/causal", "the river"),
    "search": ("search", "models/small", "texts.txt", "the river"),
    "vocab": ("vocab", "corpus.txt", "--out", "former"),
    "prepare": ("prepare", "corpus.txt", "--tokenizer", "vocab", "--out", "former"),
}
_VALUES = {
    **dict.fromkeys(("--layers", "--seed"), "-1"),
    **dict.fromkeys(("--max-seq-length", "--max-new-tokens"), "8"),
    **dict.fromkeys(("--temperature", "--top-p"), "0.5"),
    **{"--top-k": "2", "--combine": "sum", "--pooling": "mean", "--precision": "auto"},
    **{"--of": "words", "--pieces": "first", "--language": "en", "--sentences": "lines"},
    **{"--spans": "rules", "--size": "200", "--min-frequency": "3", "--max-word-characters": "50"},
}


def former_option(line: str) -> tuple[str, ...]:
    """A command line with an option that is a setting now."""
    verb, option, *value = line.split()
    more = {
        "--pieces": ("--of", "words"),
        "--top-k": ("--temperature", "1"),
        "--top-p": ("--temperature", "1"),
    }.get(option, ())
    if value == ["bf16"]:  # of which some processors warn
        more = ("--help",)
    given = value or [_VALUES[option]] if option in _VALUES else []
    return (*_START[verb], option, *given, *more)


def _options_that_are_settings() -> dict[str, tuple[str, ...]]:
    names = ("precision", "pooling", "layers", "combine", "normalize", "no-normalize")
    names += ("max-seq-length", "of", "pieces", "max-new-tokens", "seed", "temperature")
    names += ("top-k", "top-p", "size", "min-frequency", "max-word-characters")
    names += ("sentences", "language", "spans")
    found = {}
    for line in sorted(lines("options.txt") - {"search --top-k"}):
        verb, _, option = line.partition(" ")
        if verb in _START and option.split(" ")[0].removeprefix("--") in names:
            found[line] = former_option(line)
    return found


FORMER_OPTIONS: dict[str, tuple[str, ...]] = _options_that_are_settings()
"""Lines of `options.txt` that are no longer there, and a command line that has to work still.

For example `{"embed --pooling cls": ["embed", "models/small", "a text", "--pooling", "cls", …]}`.
"""


def tsv(file: Any) -> Any:
    """A table of JSON Lines as TSV, which has the header that may be spoken of."""
    if not str(file).endswith(".jsonl"):
        return file
    rows = [json.loads(line) for line in Path(file).read_text(encoding="utf-8").splitlines()]
    table = [list(rows[0]), *(map(str, row.values()) for row in rows)]
    Path("single.tsv").write_text("".join("\t".join(row) + "\n" for row in table))
    return "single.tsv"


def with_header(method: str, *given: Any) -> Callable[[], Any]:
    """A use of `header=`, which is one of the options of tables now."""

    def use() -> Any:
        model = bw.load("models/classification", device="cpu")
        made = getattr(model, method)(*map(tsv, given), header=True)
        return list(made) if method == "stream" else made

    return use


def prepared_with(name: str, value: Any) -> Callable[[], Any]:
    """A use of a setting of `prepare`, which is one of `PrepareSettings` now."""
    out = f"prepared-with-{name}"
    return lambda: bw.prepare("corpus.txt", tokenizer="vocab", out=out, **{name: value})


ENGINE = {"engine": {"precision": "fp32"}}


def small() -> bw.Model:
    return bw.load("models/small", device="cpu")


FORMER_NAMES: dict[str, Callable[[], Any]] = {
    "Model.stream(header)": with_header("stream", ["Ben drew the door"]),
    "Model.evaluate(header)": with_header("evaluate", "tables/single-dev.jsonl"),
    "Model.embed_to(header)": with_header("embed_to", "header.npy", "tables/single-dev.jsonl"),
    "Model.features_to(header)": with_header(
        "features_to", "header.parquet", "tables/single-dev.jsonl"
    ),
    "Index(engine)": lambda: bw.Index(
        small(), read_texts(["a text"]), np.ones((1, 8), np.float32), **ENGINE
    ),
    "Index.open(engine)": lambda: bw.Index.open(small(), ["a text"], **ENGINE),
    "Model.embed(engine)": lambda: small().embed("a text", **ENGINE),
    "Model.embed_to(engine)": lambda: small().embed_to("engine.npy", ["a text"], **ENGINE),
    "Model.features_to(engine)": lambda: small().features_to("e.parquet", ["a text"], **ENGINE),
    "Model.generate(precision)": lambda: bw.load("models/causal", device="cpu").generate(
        "the river", precision="fp32"
    ),
    "prepare(sentences)": prepared_with("sentences", "lines"),
    "prepare(language)": prepared_with("language", "en"),
    "prepare(spans)": prepared_with("spans", "rules"),
    "prepare(seed)": prepared_with("seed", 1),
    "prepare(shard_bytes)": prepared_with("shard_bytes", 1 << 20),
    "Index.open(header)": lambda: bw.Index.open(
        bw.load("models/classification", device="cpu"), tsv("tables/single-dev.jsonl"), header=True
    ),
}
"""Lines of `api.txt` that are no more as such, and what has to work all the same."""


def test_the_options_are_there() -> None:
    assert lines("options.txt") - set(surface.options()) == FORMER_OPTIONS.keys()


@pytest.mark.long
def test_former_options_work() -> None:
    for number, command in enumerate(sorted(set(FORMER_OPTIONS.values()))):
        accepted.invoke([re.sub("^former", f"former-{number}", word) for word in command])


def test_the_names_are_there() -> None:
    assert lines("api.txt") - set(surface.names()) == FORMER_NAMES.keys()


@pytest.mark.long
def test_former_names_work() -> None:
    with accepted.deprecations():
        for use in FORMER_NAMES.values():
            use()


CALLS = json.loads((look.DIRECTORY / "calls.json").read_bytes())["calls"]
GIVEN: dict[str, Any] = {
    "embed": ["the door"],
    "generate": "the river",
    "predict": ["Ben drew the door"],
    "evaluate": "tables/single-dev.jsonl",
}


@pytest.mark.long
@pytest.mark.parametrize("method", sorted({method for _, method, _ in CALLS}))
def test_each_setting_of_a_method_is_taken_by_name(root: Path, tmp_path: Path, method: str) -> None:
    name = next(model for model, of, _ in CALLS if of == method)
    call = getattr(bw.load(root / "models" / name, device="cpu"), method)
    with accepted.deprecations():
        for number, settings in enumerate(settings for _, of, settings in CALLS if of == method):
            given = [GIVEN[method]] if method in GIVEN else [tmp_path / f"{number}.parquet", ["a"]]
            call(*given, **settings)
