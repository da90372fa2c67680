"""Headers and first rows: the number of rows is right by construction, or the doubt is reported."""

from __future__ import annotations

import contextlib
import csv
import io
import time
import warnings
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import bertworks as bw
from bertworks.data.headers import _IDENTIFIER, classify_first_line, is_known_name
from bertworks.data.schema import find_text_columns
from bertworks.data.tables import read_rows
from bertworks.data.text_inputs import read_texts
from bertworks.errors import BertworksWarning, DataError

PAIRS = [
    *(("y_true", "y_pred"), ("truth", "guess"), ("gold", "pred"), ("target", "prediction")),
    *(("reference", "hypothesis"), ("actual", "predicted"), ("expected", "actual")),
    *(("label", "predicted_label"), ("Gold label", "Model prediction"), ("trueLabel", "predLabel")),
    *(("gold_sentiment", "predicted_sentiment"), ("ground-truth", "guess"), ("true", "pred")),
    *(("TRUE_LABEL", "PRED_LABEL"), ("ref", "hyp"), ("label", "output"), ("class", "y-hat")),
    *(("targets", "outputs"), ("targets", "preds")),
]
TEXT_HEADERS = [
    *("comment", "Comment", "text", "review", "tweet", "message", "question", "utterance"),
    *("comment_text", "tweetText", "review.body", "input_text", "sentence1", "text_en"),
    *("document", "txt"),
]
# Names that no list can hold: other languages, and other fields.
OTHER_NAMES = ["wahrheit", "vorhersage", "avis", "verbatim", "Betreff", "remark", "yolo", "stuff"]
TEXTS = [
    *("The screen stays black.", "it works, mostly", "Why does it stop after a minute?", "fine"),
    *("Great product", "Never again!", "I would buy this for my brother at any time", "12 of 10"),
    *("ok", "What a day", 'she said "no"', "Grüße aus Köln", "北京欢迎你", "no words; only signs"),
]
LABELS = [["pos", "neg"], ["0", "1", "2"], ["yes", "no", "maybe"], ["B1", "B2"], ["1.5", "2", "3"]]
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16"]


def encode(
    rows: list[list[str]], suffix: str, *, encoding: str, end: str, is_quoted: bool
) -> bytes:
    """The content of a file: by Python's writer for CSV, plain joins for TSV."""
    text = io.StringIO()
    if suffix == "csv":
        quoting = csv.QUOTE_ALL if is_quoted else csv.QUOTE_MINIMAL
        csv.writer(text, lineterminator=end, quoting=quoting).writerows(rows)
    else:
        text.writelines("\t".join(row) + end for row in rows)
    return text.getvalue().encode(encoding)


files = st.fixed_dictionaries(
    {
        "encoding": st.sampled_from(ENCODINGS),
        "end": st.sampled_from(["\n", "\r\n"]),
        "is_quoted": st.booleans(),
    }
)


def write(folder: pytest.TempPathFactory, rows: list[list[str]], suffix: str, **file: str) -> Path:
    path = folder.getbasetemp() / f"headers.{suffix}"
    path.write_bytes(encode(rows, suffix, **file))
    return path


def options_of(file: dict[str, str]) -> dict[str, str]:
    return {"encoding": "utf-16"} if file["encoding"] == "utf-16" else {}


labels = st.sampled_from(LABELS).flatmap(
    lambda names: st.lists(
        st.tuples(st.sampled_from(names), st.sampled_from(names)), min_size=1, max_size=12
    )
)


@pytest.mark.long
@pytest.mark.parametrize("names", PAIRS)
@settings(max_examples=10, deadline=None)
@given(pairs=labels, suffix=st.sampled_from(["csv", "tsv"]), file=files)
def test_score_counts_rows_below_known_names(
    tmp_path_factory: pytest.TempPathFactory, names: tuple[str, str], pairs: list, suffix, file
) -> None:
    rows = [list(names), *map(list, pairs)]
    path = write(tmp_path_factory, rows, suffix, **{**file, "encoding": "utf-8-sig"})
    result = bw.score("classification", path)
    assert result.rows == len(pairs)
    assert result.metrics["accuracy"] == sum(a == b for a, b in pairs) / len(pairs)
    wrong = {(one.gold, one.predicted) for one in result.breakdown.mistakes}
    assert wrong == {(a, b) for a, b in pairs if a != b}


@pytest.mark.long
@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(TEXT_HEADERS),
    texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=8),
    suffix=st.sampled_from(["csv", "tsv"]),
    file=files,
)
def test_texts_begin_below_a_known_name(
    tmp_path_factory: pytest.TempPathFactory, name: str, texts: list[str], suffix, file
) -> None:
    path = write(tmp_path_factory, [[name], *([text] for text in texts)], suffix, **file)
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        assert [text for _, text in read_texts(path, **options_of(file))] == texts
    is_clear = 2 * sum(" " in text or "京" in text for text in texts) > len(texts)
    assert not (is_clear and caught_warnings)


def is_reported(path: Path, **options: str) -> tuple[int, bool]:
    """The number of rows, and whether a doubt about the first line was reported."""
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        count = sum(1 for _ in read_rows(path, **options))
    says = [str(one.message) for one in caught_warnings if "header" in str(one.message)]
    return count, bool(says)


labelled_texts = st.sampled_from(LABELS).flatmap(
    lambda names: st.lists(
        st.tuples(st.sampled_from(TEXTS), st.sampled_from(names)), min_size=1, max_size=14
    )
)
names = st.sampled_from(OTHER_NAMES + TEXT_HEADERS + [name for pair in PAIRS for name in pair])


@pytest.mark.long
@settings(max_examples=100, deadline=None)
@given(
    header=st.none() | st.tuples(names, names).filter(lambda pair: pair[0] != pair[1]),
    table=labels | labelled_texts,
    suffix=st.sampled_from(["csv", "tsv"]),
    file=files,
)
@example(("name", "city"), [("Anna", "Bonn")], "csv", {"encoding": "utf-8", "end": "\n"})
@example(None, [("positive", "negative"), ("negative", "positive")], "csv", {"end": "\n"})
@example(None, [("what is an atom", "question"), ("play music", "music")], "tsv", {"end": "\n"})
@example(None, [("Hello", "question"), ("play it again", "music")], "tsv", {"end": "\n"})
def test_a_wrong_number_of_rows_is_reported(
    tmp_path_factory: pytest.TempPathFactory, header, table: list, suffix: str, file: dict
) -> None:
    file = {"encoding": "utf-8", "is_quoted": False, **file}
    rows = [list(row) for row in ([header] if header else []) + table]
    path = write(tmp_path_factory, rows, suffix, **file)
    count, said = is_reported(path, **options_of(file))
    assert count == len(table) or said
    for has_header in {False, len(set(rows[0])) == 2}:
        told = read_rows(path, header=has_header, **options_of(file))
        assert len(list(told)) == len(rows) - has_header


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.sampled_from(TEXTS), min_size=2, max_size=8),
    name=st.sampled_from([None, *OTHER_NAMES, *TEXT_HEADERS]),
)
def test_a_wrong_number_of_texts_is_reported(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], name: str | None
) -> None:
    rows = [[text] for text in ([] if name is None else [name]) + texts]
    path = write(tmp_path_factory, rows, "csv", encoding="utf-8", end="\n", is_quoted=False)
    count, said = is_reported(path)
    single_words = 2 * sum(" " in text for text in texts) <= len(texts)
    assert count == len(texts) or said or single_words


@pytest.mark.parametrize(
    ("frame", "index", "count"),
    [
        (pd.DataFrame({"text": TEXTS, "label": "ab" * 7}), True, 14),
        (pd.DataFrame({"Unnamed: 0": range(14), "text": TEXTS}), True, 14),
        (pd.DataFrame(TEXTS), False, 14),
        (pd.DataFrame(TEXTS), True, 14),
        (pd.DataFrame({0: TEXTS, 1: list("ab" * 7)}), False, 14),
        (pd.Series(TEXTS, name="comment").to_frame(), False, 14),
    ],
)
def test_headers_of_pandas_are_found(
    tmp_path: Path, frame: pd.DataFrame, index: bool, count: int
) -> None:
    frame.to_csv(tmp_path / "a.csv", index=index)
    found, said = is_reported(tmp_path / "a.csv")
    assert found == count
    assert said == any(isinstance(name, int) for name in frame.columns)


@pytest.mark.parametrize(
    ("lines", "is_header"),
    [
        (["1,2", "1,0", "2,2"], False),
        (["0,2", "1,0", "2,2"], False),
        (["1,some words", "0,others; so"], False),
        (["pos,pos", "neg,pos"], False),
        (["pos,neg", "neg,neg", "pos,pos"], False),
        (["text,label", "a,b"], True),
        (["word,count", "the,12", "a,8"], True),
        (["", "comment", "a"], False),
        (["a good one,pos", "it is bad,neg", "not good,pos"], False),
    ],
)
def test_clear_first_lines_are_read_without_a_remark(lines: list[str], is_header: bool) -> None:
    first, *rows = (line.split(",") for line in lines)
    assert classify_first_line(first, rows) == (is_header, True)


@pytest.mark.parametrize(
    ("name", "lines", "read_as"),
    [
        ("a.csv", ["king,queen", "man,woman"], "data.*--header"),
        ("a.csv", ["text", "word", "image"], "a column name.*--no-header"),
        ("a.csv", ["title,stuff", "a,b"], "data.*--header"),
        ("a.csv", ["0,1", "1,1", "0,0"], "data.*--header"),
        ("a.csv", [",0,1", "0,1,1", "1,0,0"], "column names.*--no-header"),
        ("a.csv", ["text,label", "a,b", "text,label"], "column names.*--no-header"),
        ("a.tsv", ["kind", "a text of words", "yet another, longer"], "data"),
        ("a.tsv", ["row\tprose", "1\tsome words, in a row", "2\tothers; longer"], "column names"),
        ("a.tsv", ["warm", "cold", "cool"], None),
        ("a.tsv", ["a b, c", "d"], None),
        ("a.tsv", ["text", "some words, in a row"], None),
        ("a.tsv", ["Abstract", "some words, in a row"], "a column name"),
        ("a.tsv", ["Comment Text (en)\tSentiment", "some words, in a row\tgood", "no\tbad"], None),
        ("a.tsv", ["Notes[1]\tShare (%)", "some words, in a row\t3", "others\t4"], "column names"),
        ("a.tsv", ["warm (very)", "cold", "cool [1]"], None),
    ],
)
def test_doubts_name_the_option_that_says_otherwise(
    tmp_path: Path, name: str, lines: list[str], read_as: str | None
) -> None:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    warned = pytest.warns(BertworksWarning, match=rf"{name}:1: .* read as {read_as}")
    with warned if read_as else contextlib.nullcontext():
        rows = read_rows(path)
    assert len(list(rows)) == len(lines) - bool(rows.has_header)
    for has_header in {False, len(set(rows.columns)) == len(set(lines[0].split(",")))}:
        assert len(list(read_rows(path, header=has_header))) == len(lines) - has_header


@pytest.mark.parametrize("word", ["the", "12", "Great product", "McDonald review now", "", "a.b"])
def test_words_of_texts_are_no_known_names(word: str) -> None:
    assert not is_known_name(word)


def test_columns_of_zeros_and_ones_are_named() -> None:
    """Several labels of a row, as in the toxic comments of Jigsaw: one of them is not guessed."""
    bits = [(0, "0"), (1, "1"), (0, "1")]
    rows = [{"text": "a comment here", "toxic": one, "threat": two} for one, two in bits]
    with pytest.raises(DataError, match=r"Name one of 'toxic', 'threat' with label_column=NAME"):
        find_text_columns(read_rows(rows))


def test_a_name_of_many_words_is_matched_in_linear_time() -> None:
    begin = time.process_time()
    assert _IDENTIFIER.fullmatch("aA_" * 18 + "!") is None
    assert _IDENTIFIER.fullmatch("aA_" * 18)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize(
    ("first", "texts", "expected"),
    [
        ("评论", ["这个手机很好", "屏幕坏了"], (True, True)),
        ("テキスト", ["とても良い映画でした"], (True, True)),
        ("意见", ["这个手机很好", "屏幕坏了"], (False, False)),  # a doubt, which is reported
        ("感想", ["とても良い映画でした", "つまらない"], (False, False)),
        ("水", ["河流", "国王"], (False, True)),  # words
    ],
)
def test_header_above_texts_without_spaces_is_known_or_doubtful(
    first: str, texts: list[str], expected: tuple[bool, bool]
) -> None:
    """Chinese texts look like names: no difference was seen, and no doubt reported."""
    assert classify_first_line([first], [[text] for text in texts]) == expected
