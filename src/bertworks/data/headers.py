"""Whether the first line of a TSV or CSV file has column names: one rule, the same for every verb.

The rule applies where the user does not say it with `header` (`--header`, `--no-header`). A name is
known if the field of machine learning uses it for a column: `text`, `label`, `y_true`, `comment`,
in any letter case and with any joints (`Gold label`, `goldLabel`), or if it is composed of such
words (`tweet_text`). In this order:

  1. A line with a name that the user gave, or with one that `predict` writes (`prediction.label`),
     and that does not occur below it, is a header.
  2. A line of several known names is a header.
  3. A line is a row if a field occurs again below it, or twice in it; or if it has a number. But
     `0`, `1`, … are the numbers that pandas gives to columns without names: above texts a header.
  4. A line with text that could not be a name is a row, unless more of its fields are known names.
  5. Any other line is a header if it has a known name; if a column below it has only numbers; or if
     the columns below it have labels that repeat, and it has another value.
  6. Everything else is a row.

A line that could be either is reported with the option that says otherwise. It could be either if
nothing distinguishes it from the lines below: a known name above texts or numbers is certain, and
so is a line of several known names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from ..errors import DataError
from .schema import (
    GOLD_NAMES,
    LABEL_NAMES,
    PREDICTED_NAMES,
    PREDICTION,
    QUERY_NAMES,
    TEXT_NAMES,
    canonical,
    label_by_content,
    text_by_content,
)

# Words of which column names consist. A word of the first set says what the column is for; those of
# the second set count less, since they are frequent in data too.
_ROLES = frozenset(
    re.findall(
        r"\w+",
        "text texts sentence sentences content review reviews document comment comments tweet "
        "message utterance passage paragraph query question questions answer answers context "
        "premise anchor hypothesis reference ref hyp label labels class category target tags "
        "tokens words gold truth guess prediction predictions predicted pred preds actual expected "
        "output feedback post gt yhat observed "
        "文本 标签 评论 内容 句子 类别 真实标签 预测标签 テキスト ラベル 텍스트 라벨",
    )
)
_OTHERS = frozenset(
    re.findall(
        r"\w+",
        "id idx index guid uuid key row number nr no line name title subject headline abstract "
        "summary description body note notes source src tgt translation lang "
        "language split fold date time timestamp author user url link file domain genre topic "
        "intent sentiment emotion score rating stars quality confidence probability prob true hat "
        "response input positive negative string word token tag pos ner chunk lemma choice choices "
        "ending endings option options prompt start end length count weight type value values "
        "model human system machine",
    )
)
_WHOLE_NAMES = frozenset({*GOLD_NAMES, *PREDICTED_NAMES, *LABEL_NAMES, *TEXT_NAMES, *QUERY_NAMES})
_MISSING = frozenset({"", "na", "n/a", "nan", "none", "null", "nil", "-", "?"})

# A few short words, possibly followed by a unit or a language in brackets.
_NAME_LIKE = re.compile(
    r"#?[^\W\d][\w.#-]{0,24}( [\w.#-]{1,12}){0,2}( ?(\([^()]{1,12}\)|\[[^\[\]]{1,12}\]))?"
)
_NUMBER = re.compile(r"[-+]?(\d[\d,.]*|\.\d+)([eE][-+]?\d+)? ?%?")
_INDEX_NAME = re.compile(r"Unnamed: \d+")  # pandas' name of a column without one
_IDENTIFIER = re.compile(r"[^\W\d]\w*[a-z0-9][A-Z_.]\w+(\.\w+)*|[^\W\d_]+\d")
_TITLE = re.compile(r"[A-Z]\w*( [A-Z]\w*){1,3}")  # as `Customer Feedback`
# Chinese and Japanese: a text looks like a name, and is only longer.
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]")
_MIN_ROWS = 10  # fewer rows do not show which column has labels
_WORD_ROLES = frozenset({"word", "words", "token", "tokens", "form"})


class FirstLine(NamedTuple):
    """How the first line of a table is read."""

    is_header: bool
    is_certain: bool  # if not, the line could be either


def classify_first_line(
    first: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str] = ()
) -> FirstLine:
    """Decide whether a table's first line has column names, by the rule of this module.

    Args:
        first: the fields of the first line.
        rows: the fields of the next lines; those with another number of fields are ignored.
        names: names of columns, from the user or the model; numbers are ignored.
    """
    fields = [field.strip() for field in first]
    rows = [row for row in rows if len(row) == len(fields)]
    cells = [[row[at].strip() for row in rows] for at in range(len(fields))]
    new = [field for field, values in zip(fields, cells, strict=True) if field not in values]
    is_named = any(name.strip() in new for name in names if not name.isdecimal())
    if is_named or any(field.startswith(f"{PREDICTION}.") for field in new):
        return FirstLine(True, True)
    nonempty = [field for field in fields if field]
    known_names = [field for field in nonempty if is_known_name(field)]
    has_role = any(map(_has_role, known_names))
    if len(known_names) == len(nonempty) and len(known_names) > 1 and has_role:
        return FirstLine(True, set(nonempty) <= set(new))
    if _are_numbers_of_columns(nonempty):
        return FirstLine("" in fields or not all(map(_are_numbers, cells)), False)
    if not set(nonempty) <= set(new) or len(set(nonempty)) < len(nonempty) or not nonempty:
        return FirstLine(False, not any(map(_has_role, set(known_names) & set(new))))
    has_number = any(map(_NUMBER.fullmatch, nonempty))
    num_texts = sum(not (field in known_names or _NAME_LIKE.fullmatch(field)) for field in nonempty)
    if has_number or num_texts:
        is_header = not has_number and has_role and len(known_names) > num_texts
        return FirstLine(is_header, not has_role)
    return _classify_names(fields, known_names, cells)


def _classify_names(
    fields: Sequence[str], known_names: Sequence[str], cells: Sequence[Sequence[str]]
) -> FirstLine:
    """Classify a line whose fields could all be names, and do not occur below in their columns."""
    columns = list(zip(fields, cells, strict=True))
    above_texts = [field for field, values in columns if _are_unlike(field, values)]
    above_numbers = [field for field, values in columns if _are_numbers(values)]
    is_above_numbers = any(field.lower() not in _MISSING for field in above_numbers)
    has_role = any(map(_has_role, known_names))
    if has_role and not (len(fields) == 1 and " " in fields[0]):
        is_above_texts = any(map(_has_role, set(above_texts) & set(known_names)))
        is_identifier = len(fields) > 1 and any(map(_IDENTIFIER.fullmatch, known_names))
        return FirstLine(True, is_above_numbers or is_above_texts or is_identifier)
    values = {value for column in cells for value in column}
    if not values.isdisjoint(filter(None, fields)):  # as gold and predicted labels
        return FirstLine(False, True)
    if has_role or len(known_names) == len(fields):
        return FirstLine(True, is_above_numbers)
    if is_above_numbers:
        return FirstLine(True, len(cells[0]) > 2)
    if _have_other_labels(cells):
        return FirstLine(True, False)
    return FirstLine(False, len(fields) == 1 and not above_texts)


def names_word_columns(fields: Sequence[str]) -> bool:
    """Whether the first line of a file with one word per line names its columns: `token`, `tag`."""
    return (
        len(fields) > 1
        and any(canonical(field) in _WORD_ROLES for field in fields)
        and all(map(is_known_name, fields))
    )


def check_separator(
    path: str, sample: Sequence[Sequence[str]], expected_names: Sequence[str], format: str
) -> None:
    """Check that a table of one column is not a table of several with another separator.

    Raises:
        DataError: it is; or its lines end only with carriage returns.
    """
    first, *rest = sample
    if not rest and any("\r" in field for field in first):
        raise DataError(
            "its lines end only with carriage returns",
            where=path,
            fix="Save it with Unix or Windows line ends.",
        )
    if not rest or any(len(row) != 1 for row in sample):
        return
    for sign in ";,\t|":
        names = first[0].split(sign)
        same = all(row[0].count(sign) == len(names) - 1 for row in rest)
        if (
            len(names) > 1
            and same
            and classify_first_line(names, [], expected_names) == (True, True)
        ):
            raise DataError(
                f"its fields seem to be separated by {sign!r}",
                where=path,
                fix=_format_fix(sign, format),
            )


_QUOTED = re.compile(r'"[^"]*"')


def csv_separator(first_lines: Sequence[str], expected_names: Sequence[str]) -> str:
    """Return the separator of a CSV file: a comma, the semicolon of spreadsheet programs where the
    decimal sign is a comma, or a tab.

    That is a semicolon or a tab if the first line has one and no comma, and it separates known
    names of columns, or all lines have equally many outside of quotes.
    """
    for sign in ";\t" if first_lines and "," not in first_lines[0] else "":
        names = [name.strip('"') for name in first_lines[0].split(sign)]
        is_header = classify_first_line(names, [], expected_names) == (True, True)
        counts = {_QUOTED.sub("", line).count(sign) for line in first_lines if line.strip()}
        is_regular = len(counts) == 1 and len(first_lines) > 1
        if len(names) > 1 and (is_header or is_regular):
            return sign
    return ","


def _format_fix(sign: str, format: str) -> str:
    """Return advice for fields that are separated by another sign than the format's."""
    other = {",": "csv", "\t": "tsv"}.get(sign)
    if other is not None:
        return f'--format {other} (format="{other}") reads them.'
    return f"Separate them by {'commas' if format == 'csv' else 'tabs'}."


def is_known_name(field: str) -> bool:
    """Whether a field is a usual name of a column, or is composed of the words of such names."""
    is_index = _INDEX_NAME.fullmatch(field) is not None
    if is_index or field.startswith(f"{PREDICTION}.") or canonical(field) in _WHOLE_NAMES:
        return True
    words = _words(field)
    if not words or len(field) > 40:
        return False
    if _IDENTIFIER.fullmatch(field):  # such a form is rare in texts: one known word is enough
        return any(word in _ROLES | _OTHERS for word in words)
    if _TITLE.fullmatch(field) and words[-1] in _ROLES:
        return True
    return all(word in _ROLES | _OTHERS for word in words)


def _has_role(name: str) -> bool:
    """Whether a known name says what the column is for."""
    if name.startswith(f"{PREDICTION}.") or canonical(name) in _WHOLE_NAMES:
        return True
    return any(word in _ROLES for word in _words(name))


def _words(field: str) -> list[str]:
    """Return the words of a name, without the numbers at their ends."""
    words = (word.strip("#").rstrip("0123456789") for word in canonical(field).split("_"))
    return [word for word in words if word]


def _are_numbers(values: Sequence[str]) -> bool:
    present = [value for value in values if value.lower() not in _MISSING]
    return bool(present) and all(map(_NUMBER.fullmatch, present))


def _are_numbers_of_columns(fields: Sequence[str]) -> bool:
    """Whether fields are 0, 1, …, as pandas writes for columns without names."""
    return bool(fields) and list(fields) == [str(at) for at in range(len(fields))]


def _are_unlike(field: str, values: Sequence[str]) -> bool:
    """Whether most values of a column look unlike a name: by words, signs or letters."""
    is_unspaced = _WITHOUT_SPACES.search(field) is not None
    unlike = sum(
        _NAME_LIKE.fullmatch(value) is None
        or (" " in value and " " not in field)
        or (field.isascii() and not value.isascii())
        or (is_unspaced and len(value) >= max(4, 2 * len(field)))
        for value in values
    )
    return bool(field) and 2 * unlike > len(values)


def _have_other_labels(cells: Sequence[Sequence[str]]) -> bool:
    """Whether columns have labels that repeat: all, as gold and predicted ones; or one, of texts.

    Their first line has other values, which this function does not check.
    """
    count = len(cells[0])
    if len(cells) > 1 and count >= 4 and all(2 * len(set(values)) <= count for values in cells):
        return True
    if count < _MIN_ROWS:
        return False
    columns = [str(at) for at in range(len(cells))]
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*cells, strict=True)]
    text = text_by_content(columns, rows)
    others = [column for column in columns if column != text]
    label = None if text is None else label_by_content(others, rows)
    if label is None:
        return False
    labels = cells[int(label)]
    return min(map(labels.count, set(labels))) > 1
