"""Scores of predictions in a file, from any system.

    answering        the data as SQuAD's JSON, and ids → texts as its official scorers read them
    tagging          CoNLL columns of which the last two are the gold and the predicted tags, or a
                     table of lists, as `predict` writes it
    classification   a table with a column of labels and a column of predicted ones
    regression       the same with numbers

The metrics are those of `Model.evaluate`, except the loss and the metrics of probabilities, which
need a model. Neither a model nor torch is loaded.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np

from ..data.lines import read_head
from ..data.rows import LocatedRow, NoLabel, Rows, text_of
from ..data.schema import (
    GOLD_NAMES,
    LABEL_NAMES,
    PREDICTED_NAMES,
    PREDICTION,
    VALUE_NAMES,
    canonical,
    columns_by_name,
    missing_column_error,
)
from ..data.table_formats import DOCUMENT_START
from ..data.tables import Table, read_rows
from ..data.unlabelled import counted_unlabelled, without_unlabelled
from ..errors import (
    BertworksWarning,
    DataError,
    SettingsError,
    did_you_mean,
    shorten_list,
    truncate_repr,
)
from ..settings.literals import ScoredTask
from ..tasks.answering.answers import SCHEMA, read_answers
from ..tasks.answering.scores import AnsweringScores
from ..tasks.evaluation import Evaluation
from ..tasks.labels import (
    MARKS,
    find_unlabelled_marks,
    parse_class_numbers,
    read_finite_number,
    read_label_name,
    sort_labels,
    warn_about_minus_one,
)
from ..tasks.measures import Location
from ..tasks.scores import ClassificationScores, RegressionScores
from ..tasks.tagging.columns import TAG_NAMES, WORD_NAMES, find_numbered_columns, read_strings
from ..tasks.tagging.notation import (
    drop_unlabelled_words,
    find_notation,
    find_span_warning,
    read_tag,
)
from ..tasks.tagging.scores import TaggingScores
from ..tasks.tagging.tags import OUTSIDE_TAG
from ..utils.regular_files import read_bytes
from ..utils.remote import is_remote

T = TypeVar("T", str, float)
Sentence = tuple[Location, list[str], list[str], list[str]]
"""The place of a sentence, its words, and their gold and predicted tags."""

_LATER_GOLD_NAMES = ("expected", "actual", "reference", "references", "ref", "true", "correct", "y")
_GOLD_WORDS = frozenset({"gold", "true", "truth"})
_PREDICTED_WORDS = frozenset({"pred", "predicted", "prediction", "guess", "guessed", "hyp"})
_PROBABILITY_WORDS = frozenset(
    ["prob", "probs", "proba", "probability", "probabilities", "confidence", "logit", "logits"]
)
_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WHOLE_FLOAT = re.compile(r"-?\d+\.0")  # a whole number in a table's column of floats
_PREDICTED_TAGS = f"{PREDICTION}.tags"
_NOT_CONLL = (".jsonl", ".ndjson", ".json", ".parquet")


def score(
    task: ScoredTask,
    data: Table,
    *,
    predictions: str | os.PathLike[str] | Mapping[str, str] | None = None,
    no_answer_probabilities: str | os.PathLike[str] | Mapping[str, float] | None = None,
    label_column: str | None = None,
    prediction_column: str | None = None,
    no_label: str | None = None,
    header: bool | None = None,
    drop_unlabelled: bool = False,
) -> Evaluation:
    """Score predictions like the official scorers of the tasks.

    Answers are scored by the rules of SQuAD 2.0 if a question has no answer or if probabilities
    are given, else by those of 1.1. A question without a prediction scores 0, and a prediction
    for an id that is not in the data is ignored; it is said how many there are.

    Args:
        task: the task: "answering", "tagging", "classification" or "regression".
        data: rows with gold values and, except for answering, with predictions.
        predictions: for answering: answers by question id, "" for no answer; or a JSON file.
        no_answer_probabilities: for answering: the probability of no answer by question id, for
            the best F1 at any threshold; or a JSON file. Any finite score is allowed.
        label_column: column of gold labels, values or tags, by name or number; detected if omitted.
        prediction_column: column of predictions; detected if omitted.
        no_label: for classification: the label of rows that have no gold label and are not scored;
            if omitted, `-` and the like, where it is never predicted; "" if there is none.
        header: whether the first line of a TSV or CSV file has column names; detected if None.
        drop_unlabelled: whether rows whose gold label is empty are left out; else they are an
            error.

    Returns:
        The metrics and their breakdown.

    Raises:
        DataError: a file or a row is not valid; an id is missing, unknown or duplicate.
        SettingsError: there is no such task, or an argument does not apply to it.
        BertworksError: a package that computes the metrics is not installed.
    """
    if task not in get_args(ScoredTask):
        raise SettingsError(
            f"predictions of {task!r} cannot be scored",
            fix=did_you_mean(task, get_args(ScoredTask)),
        )
    columns = {"label_column": label_column, "prediction_column": prediction_column}
    if no_label is not None and task != "classification":
        raise SettingsError(f"no_label is for classification, not {task}", fix="Leave it out.")
    files = {"predictions": predictions, "no_answer_probabilities": no_answer_probabilities}
    unused, owner = (columns, "a table's") if task == "answering" else (files, "answering's")
    for name, value in unused.items():
        if value is not None:
            raise SettingsError(f"{name} is not for {task}: it is {owner}", fix="Leave it out.")
    if task == "answering":
        if predictions is None:
            raise SettingsError("predictions are missing", fix="Give ids and their answers.")
        return _score_answers(read_rows(data, header=header), predictions, no_answer_probabilities)
    column_names = [name for name in columns.values() if name is not None]
    if task == "tagging":
        if isinstance(data, str | os.PathLike) and _is_conll(os.fspath(data), column_names, header):
            rows = read_rows(data, format="conll", header=header, document_starts=True)
        else:
            rows = read_rows(data, columns=column_names, header=header)
        return _score_tags(rows, label_column, prediction_column)
    rows = read_rows(data, columns=column_names, header=header)
    names = LABEL_NAMES if task == "classification" else VALUE_NAMES
    gold, predicted = _find_columns(rows, names, label_column, prediction_column)
    if drop_unlabelled:
        rows = without_unlabelled(rows, [gold])
    with counted_unlabelled(rows):
        if task == "classification":
            return _score_classes(rows, gold, predicted, no_label)
        return _score_values(rows, gold, predicted)


def _score_answers(
    rows: Rows,
    predictions: str | os.PathLike[str] | Mapping[str, str],
    chances: str | os.PathLike[str] | Mapping[str, float] | None,
) -> Evaluation:
    columns = SCHEMA.find(rows, labelled=True)
    question_column, context_column = str(columns["question"]), str(columns["context"])
    questions: dict[str, LocatedRow] = {}
    for row in rows:
        number = row.values.get("id")  # a table may number its questions
        is_number = isinstance(number, int) and not isinstance(number, bool)
        identity = str(number) if is_number else text_of(row.values, "id", row.where)
        if not identity:
            raise DataError("the question has no id", where=row.where)
        if identity in questions:
            raise DataError(f"two questions have the id {identity!r}", where=row.where)
        questions[identity] = row
    answers = {
        identity: read_answers(row.values, columns, row.where)[0]
        for identity, row in questions.items()
    }
    predicted = _by_id(predictions, "the predictions", str, questions, rows.name)
    margins: dict[str, float] = {}
    if chances is not None:
        where = "the no-answer probabilities"
        margins = _by_id(chances, where, float, questions, rows.name)
        for identity in questions:
            if identity not in margins:
                where = os.fspath(chances) if isinstance(chances, str | os.PathLike) else where
                raise DataError(f"the question {identity!r} is missing", where=where)
    # The predictions are final: no threshold is applied to them.
    scores = AnsweringScores(unanswerable=bool(margins) or not all(answers.values()))
    for index, (identity, row) in enumerate(questions.items()):
        context = text_of(row.values, context_column, row.where)
        answer = predicted.get(identity)
        start = context.find(answer) if answer else -1
        scores.add(
            Location(index, row.where),
            text_of(row.values, question_column, row.where),
            context,
            answers[identity],
            answer,
            margin=margins.get(identity),
            mark=(0, 0) if answer is None or start < 0 else (start, start + len(answer)),
        )
    return Evaluation.from_measure(scores, len(questions))


def _by_id(
    source: str | os.PathLike[str] | Mapping[str, Any],
    name: str,
    kind: Callable[[Any], T],
    questions: Mapping[str, LocatedRow],
    data: str,
) -> dict[str, T]:
    """Read texts (`kind` is `str`) or finite numbers by question id.

    Ids that are not in the data are ignored, as by the official scorers, and counted in a warning.

    Raises:
        DataError: a value is not valid, or no id is that of a question.
    """
    where, items = name, source
    if isinstance(source, str | os.PathLike):
        where, items = os.fspath(source), _json_object(os.fspath(source))
    assert isinstance(items, Mapping)
    unknown = [identity for identity in items if identity not in questions]
    if unknown and len(unknown) == len(items):
        what = f"none of its {len(items):,} ids is that of a question in {data}, such as"
        raise DataError(f"{what} {truncate_repr(unknown[0])}", where=where)
    if unknown:
        what = f"{len(unknown):,} of {len(items):,} ids are not those of a question in {data}"
        warnings.warn(
            f"{where}: {what}, and are ignored: {truncate_repr(unknown[0])} is the first of them",
            BertworksWarning,
            stacklevel=4,
        )
    values: dict[str, T] = {}
    for identity in questions:
        if identity not in items:
            continue
        value = items[identity]
        if not (isinstance(value, str) if kind is str else _is_finite(value)):
            expected = "a text" if kind is str else "a finite number"
            what = f"{type(value).__name__} {_short(value)} of the question {identity!r}"
            raise DataError(f"expected {expected}, got {what}", where=where)
        values[identity] = kind(value)
    return values


def _is_finite(value: Any) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer of hundreds of digits
        return False


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def _json_object(path: str) -> dict[str, Any]:
    """Read the object in a JSON file; no key may occur twice."""

    def distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        items: dict[str, Any] = {}
        for key, value in pairs:
            if key in items:
                raise DataError(f"the id {key!r} occurs twice", where=path)
            items[key] = value
        return items

    try:
        value = json.loads(read_bytes(path, limit=1 << 32), object_pairs_hook=distinct_keys)
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror})", where=path) from None
    except UnicodeDecodeError:
        raise DataError("not UTF-8", where=path) from None
    except json.JSONDecodeError as error:
        raise DataError(f"not valid JSON: {error.msg}", where=f"{path}:{error.lineno}") from None
    except (RecursionError, ValueError):
        raise DataError("JSON that cannot be read", where=path) from None
    if not isinstance(value, dict):
        raise DataError(
            f"a JSON {type(value).__name__}, not an object",
            where=path,
            fix='It must hold one value for each id: {"id": …}.',
        )
    return value


def _is_conll(path: str, column_names: Sequence[str], header: bool | None) -> bool:
    """Whether a file has one word per line, and is not a table as `predict` writes it."""
    if {*Path(path).suffixes} & {*_NOT_CONLL}:
        return False
    if header or not all(name.isdecimal() for name in column_names):  # CoNLL columns have no names
        return False
    if path == "-":  # what is peeked at is read again
        head = sys.stdin.buffer.peek() if hasattr(sys.stdin.buffer, "peek") else b""
    elif is_remote(path) or Path(path).is_file():
        head = read_head(path)
    else:
        return True
    first = head.decode(errors="replace").partition("\n")[0].rstrip("\r")
    return _PREDICTED_TAGS not in (*first.split("\t"), *first.split(","))


def _score_tags(rows: Rows, label: str | None, prediction: str | None) -> Evaluation:
    tag_column, predicted_column = _find_columns(rows, TAG_NAMES, label, prediction)
    by_name = {column.strip().lower(): column for column in rows.columns}
    first = rows.columns[0]
    word_column = next((by_name[name] for name in WORD_NAMES if name in by_name), None)
    if (
        word_column is None
        and find_numbered_columns(rows)
        and first not in (tag_column, predicted_column)
    ):
        word_column = first
    sentences: list[Sentence] = []
    num_starts = 0
    for where, row in rows:
        gold = read_strings(row, tag_column, where)
        predicted = read_strings(
            _unfold_prediction(row, predicted_column, "tags"), predicted_column, where
        )
        # Without words, mistakes are shown with predicted tags in their place.
        words = predicted if word_column is None else read_strings(row, word_column, where)
        if not len(words) == len(gold) == len(predicted):
            raise DataError(
                f"{len(words)} word(s), {len(gold)} tag(s) and {len(predicted)} predicted one(s)",
                where=where,
            )
        if words == [DOCUMENT_START]:
            num_starts += 1
            gold, predicted = ([tag] if tag != "-X-" else ["O"] for [tag] in (gold, predicted))
        place = Location(len(sentences) - num_starts, where)
        sentences.append((place, words, gold, predicted))
    if word_column is None and find_numbered_columns(rows) and label is None and prediction is None:
        _check_two(rows.name, [two for _, _, *tags in sentences for two in zip(*tags, strict=True)])
    return _score_sentences(sentences, num_starts)


def _score_sentences(sentences: Sequence[Sentence], num_starts: int) -> Evaluation:
    """Score gold and predicted tags: as spans if the gold ones mark spans in any notation.

    Args:
        num_starts: how many of the sentences are lines that begin a document.
    """
    gold_counts, predicted_counts = Counter[str](), Counter[str]()
    for _, _, gold, predicted in sentences:
        gold_counts.update(gold)
        predicted_counts.update(predicted)
    # A predicted tag that marks no span does not make the gold ones plain tags; and a predicted O
    # does not make gold parts of speech types of spans.
    counts = gold_counts + predicted_counts
    notation = find_notation(gold_counts)
    if notation is None and (_have_markers(counts) or {*gold_counts} <= {OUTSIDE_TAG}):
        notation = find_notation(counts)
    remarks = [find_span_warning(counts)]
    if notation is not None:
        other = find_notation(predicted_counts)
        types = notation.types | (other or notation).types_in(predicted_counts)
        unread = [tag for tag in sorted(predicted_counts) if read_tag(tag, types) is None]
        none = f"these predicted tags mark no span, and count as none: {shorten_list(unread)}"
        remarks = [notation.remark, none if unread else None]
        sentences = [_as_spans(sentence, types) for sentence in sentences]
    labels = sorted({tag for _, _, *sides in sentences for side in sides for tag in side})
    numbers = {label: number for number, label in enumerate(labels)}
    spans = notation is not None or labels == [OUTSIDE_TAG]
    scores = TaggingScores(labels, spans=spans)
    for place, words, *sides in sentences:
        gold_numbers, predicted_numbers = (
            np.array([numbers[tag] for tag in side], np.int64) for side in sides
        )
        scores.add_sentence(place, words, gold_numbers, predicted_numbers)
    result = Evaluation.from_measure(scores, len(sentences) - num_starts)
    if num_starts:
        remarks.append(f"{num_starts:,} lines {DOCUMENT_START} count as words, as in conlleval")
    return replace(result, remarks=[*result.remarks, *filter(None, remarks)])


def _as_spans(sentence: Sentence, types: frozenset[str]) -> Sentence:
    """Return a sentence with tags as this package writes them, without unlabelled words."""
    place, words, gold, predicted = sentence
    gold, words, predicted = drop_unlabelled_words(types, gold, words, predicted)
    gold, predicted = ([read_tag(tag, types) or tag for tag in side] for side in (gold, predicted))
    return place, words, gold, predicted


def _have_markers(tags: Iterable[str]) -> bool:
    notation = find_notation(tags)
    return notation is not None and notation.has_markers


def _check_two(name: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Check that the only two columns of a file without names are not words and their tags.

    Raises:
        DataError: they seem to be.
    """
    if not pairs:
        return
    words, tags = (set(side) for side in zip(*pairs, strict=True))
    # Part-of-speech tags may be punctuation, as words may.
    alike = any(word == tag and any(map(str.isalnum, word)) for word, tag in pairs)
    if not alike or (_have_markers(tags) and not _have_markers(words)):
        raise DataError(
            "its two columns seem to be words and their tags; there are no predictions",
            where=name,
            fix="The last two columns must be the gold and the predicted tags.",
        )


def _score_classes(rows: Rows, label: str, prediction: str, no_label: str | None) -> Evaluation:
    pairs, texts = [], []
    places: list[Location] = []
    total = 0
    for total, (where, row) in enumerate(rows, 1):
        if isinstance(row.get(label), NoLabel):
            continue
        predicted = _unfold_prediction(row, prediction, "label")
        pairs.append(
            (read_label_name(row, label, where), read_label_name(predicted, prediction, where))
        )
        texts.append(_format_row(row, (label, prediction)))
        places.append(Location(total - 1, where))
    if not total:
        raise DataError("there are no rows", where=rows.name)
    pairs, name_remarks = _unify_names(pairs)
    marks = _marks(pairs, no_label, rows.name)
    labelled_rows = [at for at, (gold, _) in enumerate(pairs) if gold not in marks]
    if not labelled_rows:
        raise DataError("no row has a gold label", where=rows.name)
    pairs = [pairs[at] for at in labelled_rows]
    names = sort_labels({name for pair in pairs for name in pair})
    numbers = np.array([[names.index(name) for name in pair] for pair in pairs]).T
    # With two labels, F1 is that of the second one, as for a trained classifier.
    scores = ClassificationScores(names, 1 if len(names) == 2 else None)
    scores.add(numbers[0], numbers[1])
    for at, pair in zip(labelled_rows, pairs, strict=True):
        if pair[0] != pair[1]:
            scores.add_mistake(places[at], texts[at], *pair)
    remarks = [*scores.remarks(), *_disjoint_labels(pairs), *name_remarks]
    if left_out := total - len(pairs):
        what = shorten_list(sorted(marks)) if marks else "-1"
        remarks.append(
            f"{left_out:,} of {total:,} rows have no gold label ({what}) and are left out"
        )
    return Evaluation(scores.result(), len(pairs), remarks, scores.breakdown())


def _marks(pairs: Sequence[tuple[str, str]], no_label: str | None, where: str) -> set[str]:
    """Return the gold labels that mark a row without a label; predicted labels never do."""
    gold, predicted = _sides(pairs)
    if "-1" not in predicted:
        warn_about_minus_one(gold | predicted, no_label, where)
    marks = find_unlabelled_marks(gold | predicted, no_label)
    return marks if no_label is not None else marks - predicted


def _sides(pairs: Sequence[tuple[str, str]]) -> tuple[set[str], set[str]]:
    """Return all gold and all predicted labels."""
    return {gold for gold, _ in pairs}, {predicted for _, predicted in pairs}


def _unify_names(
    pairs: list[tuple[str, str]],
) -> tuple[list[tuple[str, str]], list[str]]:
    """Give equal labels equal names, where only one side, gold or predicted, has others.

    Returns:
        The pairs, and remarks for the user.
    """
    pairs = _whole_numbers(pairs)
    gold, predicted = (side - {*MARKS} for side in _sides(pairs))
    for name, side, other in (("gold", gold, predicted), ("predicted", predicted, gold)):
        numbers = parse_class_numbers(side)
        if numbers and all(label.isdecimal() for label in other):
            pairs = [(numbers.get(one, one), numbers.get(two, two)) for one, two in pairs]
            some = shorten_list([f"{label} as {number}" for label, number in numbers.items()], str)
            return pairs, [f"{name} labels are read by their number: {some}"]
    return pairs, []


def _whole_numbers(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Replace labels such as "1.0" by "1" if only one side, gold or predicted, has such labels.

    `read_label_name` returns "1" for the number 1.0. A text such as "1.0" may be a label too, so
    labels are not changed if both sides have such labels.
    """
    sides = [any(map(_WHOLE_FLOAT.fullmatch, side)) for side in zip(*pairs, strict=True)]
    if all(sides) or not any(sides):
        return pairs

    def whole(name: str) -> str:
        return str(int(name[:-2])) if _WHOLE_FLOAT.fullmatch(name) else name

    return [(whole(gold), whole(predicted)) for gold, predicted in pairs]


def _disjoint_labels(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return a remark if gold and predicted labels have none in common."""
    gold, predicted = (sorted(set(side)) for side in zip(*pairs, strict=True))
    if not set(gold).isdisjoint(predicted):
        return []
    labels = f"{shorten_list(gold)}, predicted {shorten_list(predicted)}"
    return [
        f"gold and predicted labels have none in common: gold {labels}; are these the "
        "right columns?"
    ]


def _score_values(rows: Rows, label: str, prediction: str) -> Evaluation:
    scores = RegressionScores()
    count = 0
    for count, (where, row) in enumerate(rows, 1):
        predicted = read_finite_number(
            _unfold_prediction(row, prediction, "value"), prediction, where
        )
        text = _format_row(row, (label, prediction))
        scores.add(
            Location(count - 1, where), text, read_finite_number(row, label, where), predicted
        )
    if not count:
        raise DataError("there are no rows", where=rows.name)
    metrics = {"mean_squared_error": scores.mean_squared_error(), **scores.result()}
    return Evaluation(metrics, count, scores.remarks(), scores.breakdown())


def _find_columns(
    rows: Rows, label_names: Sequence[str], label: str | None, prediction: str | None
) -> tuple[str, str]:
    """Return the columns of gold and predicted labels: the last two in a file without names."""
    if names := find_numbered_columns(rows):
        gold, predicted = names[-2:-1], names[-1:]
    else:
        gold, predicted = _columns_of_roles(rows, label_names)
    if label is not None:
        gold = [rows.column(label)]
    if prediction is not None:
        predicted = [rows.column(prediction)]
    if not (gold and predicted) and _are_alike(rows):
        gold, predicted = _two_columns(rows, gold, predicted)
    for columns, role in ((gold, "label"), (predicted, "prediction")):
        if not columns:
            fix = f"Name it with {role}_column (--{role}-column NAME)."
            if len(rows.columns) == 1:
                fix = "Separate the fields by tabs in a .tsv file, by commas in a .csv file."
            raise missing_column_error(rows, role, fix)
        if len(columns) > 1:
            _warn(
                rows,
                f"the {role} is read from {columns[0]!r}, not from {shorten_list(columns[1:])}",
            )
    if gold[0] == predicted[0]:
        raise DataError(
            f"the column {gold[0]!r} cannot be both the label and the prediction", where=rows.name
        )
    return gold[0], predicted[0]


def _columns_of_roles(rows: Rows, label_names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the columns that could hold gold and predicted labels, the most likely first.

    Of the names in `label_names`, which any labelled table may have, only the first counts.
    """
    by_name = columns_by_name(rows.columns)
    words = {column: set(canonical(column).split("_")) for column in rows.columns}
    keys = {f"{PREDICTION}.{key}" for key in ("label", "value", "tags")}
    names = [*PREDICTED_NAMES, *(("hypothesis", "hyp") if "premise" not in by_name else ())]
    if "expected" in by_name:
        names.append("actual")
    predicted = [column for column in rows.columns if column in keys]
    predicted += [by_name[name] for name in names if name in by_name]
    predicted += [
        column
        for column in rows.columns
        if words[column] & _PREDICTED_WORDS
        and not words[column] & _PROBABILITY_WORDS
        and not column.startswith(f"{PREDICTION}.")
    ]
    gold = [by_name[name] for name in GOLD_NAMES if name in by_name]
    gold += [column for column in rows.columns if words[column] & _GOLD_WORDS]
    gold += [by_name[name] for name in label_names if name in by_name][:1]
    gold = gold or [by_name[name] for name in _LATER_GOLD_NAMES if name in by_name][:1]
    predicted = list(dict.fromkeys(predicted))
    gold = [column for column in dict.fromkeys(gold) if column not in predicted[:1]]
    return gold, [column for column in predicted if column not in gold[:1]]


def _are_alike(rows: Rows) -> bool:
    """Whether a table has two columns, of numbers or with values in common."""
    if len(rows.columns) != 2:
        return False
    sides = [{str(row.get(column)) for row in rows.sample} for column in rows.columns]
    return not sides[0].isdisjoint(sides[1]) or all(
        _NUMBER.fullmatch(value) for side in sides for value in side
    )


def _two_columns(
    rows: Rows, gold: Sequence[str], predicted: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the two columns of a table as gold and predicted labels, and say so."""
    first, second = rows.columns
    if gold[:1] == [second] or predicted[:1] == [first]:
        first, second = second, first
    _warn(rows, f"the label is read from {first!r}, and the prediction from {second!r}")
    return [first], [second]


def _warn(rows: Rows, what: str) -> None:
    fix = "If that is wrong, name the columns with --label-column and --prediction-column"
    warnings.warn(
        f"{rows.name}: {what}. {fix} (label_column, prediction_column)",
        BertworksWarning,
        stacklevel=3,
    )


def _unfold_prediction(row: Mapping[str, Any], column: str, key: str) -> Mapping[str, Any]:
    """Return a row with the prediction's value alone, where `predict` has written an object."""
    value = row.get(column)
    if isinstance(value, Mapping) and key in value:
        return {**row, column: value[key]}
    return row


def _format_row(row: Mapping[str, Any], columns: Sequence[str]) -> str:
    """Return the other columns of a row as a text to show."""
    return " | ".join(
        str(value)
        for name, value in row.items()
        if name not in columns and not name.startswith(f"{PREDICTION}.")
    )
