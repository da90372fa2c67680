"""A model has one answer: every form of an input, by `Model`, `Client`, routes and command line.

For the models of all tasks, as they were saved and without `bertworks.json`, and for models in the
layouts of other tools. Answers are compared bit by bit, in float32.
"""

from __future__ import annotations

import base64
import csv
import json
import math
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks.errors import DataError
from bertworks.serving.client import Client
from bertworks.serving.client_base import ServerError
from bertworks.serving.settings import ServeSettings
from bertworks.tasks.texts import sigmoid
from tests.cli.conftest import CPU, bertworks
from tests.serving.conftest import WORDS, Running, running, save_tagger_of_documents
from tests.serving.forms import BOTH, KINDS, TASKS, Rows, text, texts
from tests.serving.forms import models as models  # noqa: PLC0414 (a fixture)

FP32 = {"precision": "fp32"}
EXAMPLES = 2
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)  # shrinking would take minutes


@pytest.fixture(scope="module")
def server(models: dict[str, str]) -> Iterator[Running]:
    with running(models, precision="fp32") as started:
        yield started


@pytest.fixture(scope="module")
def model(models: dict[str, str]) -> Callable[[str], bw.Model]:
    loaded_models: dict[str, bw.Model] = {}

    def get(name: str) -> bw.Model:
        if name not in loaded_models:
            loaded_models[name] = bw.load(models[name], device="cpu")
        return loaded_models[name]

    return get


CASES = [(name, kind) for name, kinds in TASKS.items() for kind in kinds]
FIRST_MODELS = {kind: name for name, kind in reversed(CASES)}
"""The model of each kind that reads every form in every way, and from every kind of file.

Forms and files are parsed before the model is asked: the others read each form once, from two
kinds of files.
"""


def plain(value: Any) -> Any:
    """A value after a journey through JSON, which keeps every bit of a float."""
    return json.loads(json.dumps(value))


def in_json(form: Any) -> list[Any]:
    """A form of rows as a request writes them."""
    if isinstance(form, pd.DataFrame):
        return form.to_dict("records")
    if isinstance(form, pa.Table):
        return form.to_pylist()
    return form.tolist() if isinstance(form, np.ndarray) else list(form)


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), CASES)
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(data=st.data())
def test_every_form_has_the_same_answer(
    server: Running, model: Callable[[str], bw.Model], name: str, kind: str, data: st.DataObject
) -> None:
    own, case, is_first = model(name), KINDS[kind], FIRST_MODELS[kind] == name
    rows = data.draw(case.rows)
    first = next(iter(case.forms.values()))
    expected = plain(own.predict(first(rows), **FP32))
    assert len(expected) == len(rows)
    with Client(server.url, model=name) as client:
        ways: tuple[Callable[[Any], Any], ...] = (
            lambda written: plain(own.predict(written, **FP32)),
            client.predict,
            lambda written: server.ask("/predict-rows", {"model": name, "rows": in_json(written)}),
        )
        for at, (form, write_form) in enumerate(case.forms.items()):
            for way in ways if is_first else [ways[at % len(ways)]]:
                assert way(write_form(rows)) == expected, form
            if is_first and is_table(write_form(rows)):
                assert plain(own.predict(data=write_form(rows), **FP32)) == expected, form
        count = len(rows) if is_first else 1
        one = [client.predict([row])[0] for row in in_json(first(rows))[:count]]
        assert one == expected[:count], "row by row"
    if case.route is not None:
        path, body = case.route(rows)
        assert server.ask(path, {"model": name, **body}) == expected
    if kind in BOTH:
        check_labels(server, own, name, rows, expected)


def is_table(form: Any) -> bool:
    """Whether `predict` takes a form as `data` too."""
    return isinstance(form, pd.DataFrame | pa.Table) or (
        isinstance(form, list) and isinstance(form[0], dict)
    )


def check_labels(
    server: Running, own: bw.Model, name: str, rows: Rows, expected: list[dict[str, Any]]
) -> None:
    """Routes in the formats of other servers give the probabilities that `predict` gives."""
    inputs = [[row] if isinstance(row, str) else list(row) for row in rows]
    labels_of_rows = server.ask("/predict", {"model": name, "inputs": inputs})
    assert [{one["label"]: one["score"] for one in labels} for labels in labels_of_rows] == [
        answer.get("probabilities") or {"LABEL_0": answer["value"]} for answer in expected
    ]
    alone = inputs[0] if len(inputs[0]) > 1 else inputs[0][0]
    assert server.ask("/predict", {"model": name, "inputs": alone}) == labels_of_rows[0]


RERANKERS = {
    "reranker": float,
    "reranker, bare": float,
    "cross-encoder, identity": float,
    "cross-encoder, tanh": math.tanh,
    "bge": sigmoid,
    "xlm-roberta": sigmoid,
    "cross-encoder": sigmoid,
}
"""Models that score pairs, and the function from a logit to the value."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "activation"), RERANKERS.items())
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(query=text, texts=st.lists(text, min_size=1, max_size=6))
def test_ranks_are_the_predictions_of_pairs(
    server: Running,
    model: Callable[[str], bw.Model],
    name: str,
    activation: Callable[[float], float],
    query: str,
    texts: list[str],
) -> None:
    documents = (texts * 24)[:24]  # equal ones keep their order, also where sorting is unstable
    pairs = [(query, document) for document in documents]
    values = [answer["value"] for answer in model(name).predict(pairs, **FP32)]
    order = np.argsort([-value for value in values], kind="stable").tolist()
    expected = [(at, values[at]) for at in order]
    with Client(server.url, model=name) as client:
        assert client.rerank(query, documents) == expected
    body = {"model": name, "query": query}
    ranks = server.ask("/rerank", {**body, "texts": documents})
    assert [(one["index"], one["score"]) for one in ranks] == expected
    results = server.ask("/v1/rerank", {**body, "documents": documents})["results"]
    assert [(one["index"], one["relevance_score"]) for one in results] == expected
    raw = server.ask("/rerank", {**body, "texts": documents, "raw_scores": True})
    assert [(one["index"], activation(one["score"])) for one in raw] == expected


@pytest.mark.parametrize(
    "name", ["bge", "cross-encoder", "cross-encoder, identity", "cross-encoder, tanh", "reranker"]
)
def test_scores_are_those_of_sentence_transformers(models: dict[str, str], name: str) -> None:
    from sentence_transformers import CrossEncoder

    pairs = [("the door", "was open"), ("the door", "a river in london"), ("a", "deep")]
    values = [
        answer["value"] for answer in bw.load(models[name], device="cpu").predict(pairs, **FP32)
    ]
    theirs = CrossEncoder(models[name], device="cpu").predict(pairs)
    assert values == pytest.approx(theirs.tolist(), abs=1e-6)
    assert len(set(values)) == 3


@pytest.mark.long
def test_the_second_text_of_a_pair_matters(server: Running) -> None:
    """Each of these was answered from the first texts alone."""
    for name in ("bge", "xlm-roberta", "nli", "inference, bare"):
        with Client(server.url, model=name) as client:
            one, other = client.predict([("the door", "was open"), ("the door", "a deep river")])
        assert one != other, name


FILES = (".jsonl", ".csv", ".tsv", ".parquet")


def write(file: Path, rows: list[dict[str, Any]]) -> None:
    if file.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        lines = [list(rows[0])]
        lines += [
            [value if isinstance(value, str) else json.dumps(value) for value in row.values()]
            for row in rows
        ]
        with file.open("w", newline="") as stream:
            if file.suffix == ".csv":
                csv.writer(stream).writerows(lines)
            else:  # without quotes
                stream.writelines("\t".join(line) + "\n" for line in lines)


def predict_by_command(directory: str, out: Path, *words: object) -> list[Any]:
    result = bertworks("predict", directory, *words, "--out", out, *CPU, "precision=fp32")
    assert result.exit_code == 0, result.output
    answers = [json.loads(line)["prediction"] for line in out.read_text().splitlines()]
    out.unlink()
    return answers


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_command_line_has_the_same_answer(
    models: dict[str, str],
    model: Callable[[str], bw.Model],
    tmp_path: Path,
    name: str,
    kind: str,
) -> None:
    case, directory, out = KINDS[kind], models[name], tmp_path / "out.jsonl"
    words = ["the door was open", "a river", "deep in london", "é door"]
    rows: Rows = words
    if kind in ("pairs", "questions", "passages"):
        rows = list(zip(words, reversed(words), strict=True))
    if kind == "choices":
        rows = list(zip(words, words[1:], words[2:], strict=False))
    first = next(iter(case.forms.values()))
    expected = plain(model(name).predict(first(rows), **FP32))
    tables = [
        (form, in_json(write_form(rows)))
        for form, write_form in case.forms.items()
        if is_table(write_form(rows))
    ]
    pairs = list(product(tables, FILES))
    if FIRST_MODELS[kind] != name:
        shift = CASES.index((name, kind))
        pairs = [(tables[at % len(tables)], FILES[(at + shift) % len(FILES)]) for at in range(2)]
    for (form, dicts), suffix in pairs:
        file = tmp_path / f"rows{suffix}"
        write(file, dicts)
        header = ["--header"] if suffix in (".csv", ".tsv") else []
        answers = predict_by_command(directory, out, "--data", file, *header)
        assert answers == expected, (form, suffix)
    if kind in ("texts", "plain"):
        assert predict_by_command(directory, out, *rows) == expected
    elif kind in ("pairs", "questions", "passages"):
        for (first_text, second_text), answer in list(zip(rows, expected, strict=True))[:2]:
            words = [first_text, "--pair", second_text]
            assert predict_by_command(directory, out, *words) == [answer]


ENCODERS = ("encoder", "encoder, bare", "retriever", "retriever, bare", "bge", "classifier, bare")


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "function"),
    [
        *((name, None) for name in ENCODERS),
        # What compares two vectors does not know the model.
        *(("encoder", function) for function in ("cosine", "dot", "euclidean", "manhattan")),
    ],
)
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(inputs=texts, others=texts)
def test_vectors_and_similarities_are_the_same(
    server: Running,
    model: Callable[[str], bw.Model],
    name: str,
    function: str | None,
    inputs: list[str],
    others: list[str],
) -> None:
    own = model(name)
    loaded_model = server.service.models.get(name)
    for each in (own, loaded_model.model):
        sentence = each.sentence
        if sentence is not None:
            entries = {k: v for k, v in sentence.entries.items() if k != "similarity_fn_name"}
            entries |= {} if function is None else {"similarity_fn_name": function}
            each.sentence = sentence.with_values(entries=entries)
    vectors = own.embed(inputs, **FP32)
    unit = own.embed(inputs, normalize=True, **FP32)
    expected = own.similarity(inputs, others, **FP32)
    assert np.abs(expected).max() <= 1 or function in ("dot", "euclidean", "manhattan")
    with Client(server.url, model=name) as client:
        np.testing.assert_array_equal(client.embed(inputs), vectors)
        np.testing.assert_array_equal(client.similarity(inputs, others), expected)
    body = {"model": name, "inputs": inputs}
    np.testing.assert_array_equal(np.float32(server.ask("/embed", body)), unit)
    plain_body = {**body, "normalize": own.sentence is not None and own.sentence.normalize}
    np.testing.assert_array_equal(np.float32(server.ask("/embed", plain_body)), vectors)
    body = {"model": name, "input": inputs}
    for form in (None, "float", "base64"):
        data = server.ask("/v1/embeddings", {**body, "encoding_format": form})["data"]
        rows = [one["embedding"] for one in data]
        if form == "base64":
            rows = [np.frombuffer(base64.b64decode(row), "<f4") for row in rows]
        np.testing.assert_array_equal(np.float32(rows), unit)
    for first, row in zip(inputs, expected, strict=True):
        sentences = {"source_sentence": first, "sentences": others}
        similarities = server.ask("/similarity", {"model": name, "inputs": sentences})
        np.testing.assert_array_equal(np.float32(similarities), row)


@pytest.mark.long
@pytest.mark.parametrize("name", ["pretrained", "pretrained, bare"])
@settings(max_examples=EXAMPLES, phases=PHASES)
@given(words=text, pair=st.tuples(text, text), top_k=st.integers(1, 7))
def test_masks_and_next_sentences_are_the_same(
    server: Running,
    model: Callable[[str], bw.Model],
    models: dict[str, str],
    name: str,
    words: str,
    pair: tuple[str, str],
    top_k: int,
) -> None:
    own, masked = model(name), f"{words} [MASK] a [MASK]"
    masks, chance = own.fill_mask(masked, top_k=top_k), own.next_sentence(*pair)
    with Client(server.url, model=name) as client:
        assert client.fill_mask(masked, top_k=top_k) == masks
        assert client.next_sentence(*pair) == chance
    body = {"model": name, "inputs": [masked, masked], "top_k": top_k}
    assert server.ask("/fill-mask", body) == [{"masks": masks}, {"masks": masks}]
    (found,) = server.ask("/next-sentence", {"model": name, "inputs": [list(pair)]})
    assert found == {"next_sentence_probability": chance}
    line = bertworks(
        "fill-mask", models[name], masked, "--top-k", top_k, "--json", "--device", "cpu"
    )
    assert json.loads(line.stdout) == masks
    line = bertworks("next-sentence", models[name], *pair, "--json", "--device", "cpu")
    assert json.loads(line.stdout) == {"next_sentence_probability": chance}


@pytest.mark.long
def test_a_field_that_is_null_has_its_default(server: Running, models: dict[str, str]) -> None:
    for name in models:
        server.service.models.get(name)  # only then the description has an example of each route
    description = server.http.get("/openapi.json").json()
    count = 0
    for path, verbs in description["paths"].items():
        body = verbs.get("post", {}).get("requestBody")
        if body is None:
            continue
        content = body["content"]["application/json"]
        example = content["example"]
        schema = description["components"]["schemas"][content["schema"]["$ref"].split("/")[-1]]
        expected = without_id(server.ask(path, example))
        for field in schema["properties"].keys() - example.keys() - set(schema["required"]):
            assert {"type": "null"} in schema["properties"][field]["anyOf"], (path, field)
            assert without_id(server.ask(path, {**example, field: None})) == expected, (path, field)
            count += 1
    assert count > 60


def without_id(answer: Any) -> Any:
    """An answer without the request's id, which differs each time."""
    return {**answer, "id": None} if isinstance(answer, dict) else answer


INVALID_ROWS = {
    "a text for a model of pairs": ("reranker", ["a"]),
    "a pair for a model of texts": ("classifier", [("a", "the door")]),
    "texts and pairs": ("nli", ["a", ("a", "the door")]),
    "a row without its pair": ("nli", [{"text": "a", "pair": "the"}, {"text": "a"}]),
    "a row with a pair": ("bge", [{"text": "a"}, {"text": "a", "pair": "the"}]),
    "a pair in columns of other names": (
        "bge",
        [{"q": "the door", "d": f"a river in london {n}"} for n in "abc"],
    ),
    "words for a model of texts": ("classifier", [{"words": ["a"]}]),
    "no choices": ("choice", ["a"]),
}


@pytest.mark.parametrize(("name", "rows"), INVALID_ROWS.values(), ids=INVALID_ROWS)
def test_rows_that_do_not_fit_are_refused_everywhere(
    server: Running, model: Callable[[str], bw.Model], name: str, rows: Rows
) -> None:
    with pytest.raises(DataError) as ours:
        model(name).predict(rows, **FP32)
    with Client(server.url, model=name) as client, pytest.raises(ServerError) as theirs:
        client.predict(rows)
    assert ours.value.what in str(theirs.value)


@pytest.mark.long
def test_columns_of_a_table_hold_for_all_its_requests(
    models: dict[str, str], model: Callable[[str], bw.Model]
) -> None:
    """The last request's rows alone do not tell which column holds the texts."""
    rows: list[dict[str, Any]] = [
        {"id": "n", "body": f"the door was open in london {at}"} for at in range(8)
    ]
    rows += [{"id": f"the river was deep {at}", "body": f"a deep river {at}"} for at in range(2)]
    with running(models, ServeSettings(lazy=True, max_texts=8), precision="fp32") as server:
        for name in ("classifier", "nli"):
            expected = plain(model(name).predict(rows, **FP32))
            with Client(server.url, model=name) as client:
                assert client.predict(rows) == expected
                with pytest.raises(ServerError, match="cannot tell which column holds the text"):
                    client.predict(rows[8:])


@pytest.mark.long
@pytest.mark.parametrize("names", [(), ("word", "document_id"), ("words", "doc_id")])
def test_documents_are_found_anew(
    directories: dict[str, str], tmp_path: Path, names: tuple[str, ...]
) -> None:
    """The server read the column of documents that was saved, whatever the rows have."""
    tagger = save_tagger_of_documents(directories, tmp_path / "tagger")
    word, document = names or ("words", "document")
    word = "tokens" if word == "word" else word
    lists = [WORDS[at % 4 : at % 3 + 6] for at in range(12)]
    rows = [{word: list(words), document: at // 4} for at, words in enumerate(lists)]
    own = bw.load(tagger, device="cpu")
    expected = plain(own.predict(rows, **FP32))
    alone = [own.predict([row], **FP32)[0] for row in rows]
    assert plain(alone) != expected, "the context matters"
    sources = {"tagger": tagger}
    for limits in (ServeSettings(lazy=True), ServeSettings(lazy=True, max_texts=5)):
        with running(sources, limits, precision="fp32") as server, Client(server.url) as client:
            assert client.predict(rows) == expected
    with running(sources, precision="fp32") as server:
        assert server.ask("/predict-rows", {"rows": rows}) == expected
