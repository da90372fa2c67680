"""Sample fill-ins: what a network guesses for the masked words of held-out text.

Each sample is a mapping with `text`, in which each word to guess is `[MASK]`, and `guesses`: for
each of them a list, best first, of mappings with `token` and `probability`. `answers`, where they
are known, are the words that stood there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

MASK = "[MASK]"


def fill_ins(samples: Sequence[Mapping[str, Any]]) -> str:
    """A table of samples: the text with its answers marked, and the likeliest guesses."""
    rows = "".join(
        f'<tr><td class="fill">{_text(sample)}</td><td>{_guesses(sample)}</td></tr>'
        for sample in samples
    )
    if not rows:
        return ""
    head = "<thead><tr><th>Held-out text</th><th>Likeliest pieces</th></tr></thead>"
    return f'<div class="wide"><table class="samples">{head}<tbody>{rows}</tbody></table></div>'


def _text(sample: Mapping[str, Any]) -> str:
    parts = str(sample["text"]).split(MASK)
    answers = list(sample.get("answers") or [])
    guesses = list(sample["guesses"])
    out = [escape(parts[0])]
    for number, part in enumerate(parts[1:]):
        answer = answers[number] if number < len(answers) else None
        best = guesses[number][0]["token"] if number < len(guesses) and guesses[number] else ""
        kind = "gap" if answer is None or answer == best else "gap miss"
        out.append(f'<span class="{kind}">{escape(best if answer is None else answer)}</span>')
        out.append(escape(part))
    return "".join(out)


def _guesses(sample: Mapping[str, Any]) -> str:
    lines = []
    for guesses in sample["guesses"]:
        told = "".join(
            f"<span>{escape(str(guess['token']))} "
            f'<span class="soft">{100 * guess["probability"]:.0f} %</span></span>'
            for guess in guesses
        )
        lines.append(f'<div class="guesses">{told}</div>')
    return "".join(lines)
