"""Pages, help, messages and docstrings are in plain English: no archaic words, and no dialect.

Help and messages are texts of the source, which is searched as a whole with its comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

PLAIN_WORDS = {
    r"beside": "next to, in addition to, besides",
    r"mend(s|ed|ing)?": "fix, repair",
    r"told": "said, predicted",
    r"(go(es)?|gone|going|went) on (with|where|from)": "resume, continue",
    r"stands? (beside|behind|on|upon|before|alone)": "is next to, uses, follows",
    r"stands? in the": "occurs in, is in",
    r"in turns(?! of|$)": "alternating",
    r"a \w+ a (line|row|word|text|token|piece)": "a text on each line",
    r"to be had": "available",
    r"(is|are) meant(?! (for|to))": "is intentional",
    r"nobody (said|says) so": "say what is missing",
    r"needs no note of": "needs no extra state for",
    r"is none of those": "was not seen in",
    r"\d+ ?% sure": "confidence",
    r"labels' shares": "label frequency",
    r"whilst|amongst|(?<!once )upon|thus|hence|thereof|therein|thereby": "while, among, on, so",
    r"whereof|wherein|whereby|hereby|heretofore|aforementioned|shall|albeit": "plain words",
    r"thaw(s|ed)?|turnstile|surgery|remarks?": "unfreeze, editing, message",
    r"merely|solely|scarcely": "only, hardly",
    r"take(s|n)? in": "merge, read, accept",
}
"""What is not written (a pattern of whole words), and what is written instead."""
_PATTERNS = {re.compile(rf"\b(?:{words})\b", re.I): plain for words, plain in PLAIN_WORDS.items()}
_TEXTS = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("benchmarks/**/*.md"),
    *ROOT.glob("recipes/*.yaml"),
    *ROOT.glob("examples/*.py"),
    *(file for kind in ("py", "js", "html", "c", "h") for file in ROOT.glob(f"src/**/*.{kind}")),
]
_QUOTATION = re.compile(r"“[^”]*”")


def faults(text: str) -> Iterator[tuple[int, str, str]]:
    """The lines of a text with words that are not plain, and what to write."""
    for number, line in enumerate(_QUOTATION.sub("“”", text).splitlines(), 1):
        for pattern, plain in _PATTERNS.items():
            for match in pattern.finditer(line):
                yield number, match[0], plain


@pytest.mark.parametrize("folder", ["src", "docs", "benchmarks", "recipes", "examples", "."])
def test_texts_are_written_in_plain_words(folder: str) -> None:
    files = [file for file in _TEXTS if _folder(file) == folder]
    assert files
    messages = [
        f"{file.relative_to(ROOT)}:{number}: {words!r}: {plain}"
        for file in files
        for number, words, plain in faults(file.read_text(encoding="utf-8"))
    ]
    assert not messages, "\n".join(messages)


def _folder(file: Path) -> str:
    return file.relative_to(ROOT).parts[0] if file.parent != ROOT else "."


def test_dialect_of_a_text_is_reported_with_its_line() -> None:
    text = "A plain line.\nThe run is gone on with beside others.\n“told” is a quotation.\n"
    assert list(faults(text)) == [
        (2, "beside", "next to, in addition to, besides"),
        (2, "gone on with", "resume, continue"),
    ]
