"""Measure every family against the reference implementations, and write `docs/families.md`.

    BERTWORKS_DATA=… python -m tests.families_table [FAMILY …]

Where families are named, the rows of the others stay, if they were measured with the same versions.
The figures come from the functions that the tests assert on; `test_families_table.py` sees to it
that the committed page has every family, in today's words, within the tests' tolerances.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

import torch

from bertworks.checkpoints.families import FAMILIES
from tests.checkpoints import journeys, measures
from tests.checkpoints.journeys import ONNX_TOLERANCE, Journey
from tests.checkpoints.measures import LARGEST_LIMIT, RMS_LIMIT, TOLERANCE, Rough
from tests.text.compare import LANGUAGES, SAMPLE, ComparisonCounts, compare, xquad
from tests.text.peers import PEERS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "families.md"
DATA = Path(os.environ.get("BERTWORKS_DATA", ROOT.parent / "shared" / "data"))
TITLES = {
    "bert": "BERT",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-RoBERTa",
    "camembert": "CamemBERT",
    "distilbert": "DistilBERT",
    "albert": "ALBERT",
    "ernie": "ERNIE",
    "electra": "ELECTRA",
    "modernbert": "ModernBERT",
    "openai-gpt": "GPT (the first)",
    "data2vec-text": "data2vec-text",
    "megatron-bert": "Megatron-BERT",
    "roberta-prelayernorm": "RoBERTa-PreLayerNorm",
    "xlm-roberta-xl": "XLM-RoBERTa-XL",
    "mpnet": "MPNet",
    "rembert": "RemBERT",
    "roformer": "RoFormer",
    "esm": "ESM",
    "big_bird": "BigBird",
    "eurobert": "EuroBERT",
    "deberta": "DeBERTa v1",
    "deberta-v2": "DeBERTa v2 and v3",
    "nomic_bert": "Nomic BERT",
    "gte": "GTE",
    "jina_embeddings_v3": "Jina embeddings v3",
    "squeezebert": "SqueezeBERT",
    "xlnet": "XLNet",
    "mobilebert": "MobileBERT",
    "longformer": "Longformer",
}
PACKAGES = ("torch", "transformers", "tokenizers", "sentencepiece", "onnxruntime")
Figures = tuple[float, ...]
_NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """What is measured of a family.

    Attributes:
        heading: the column's.
        template: how its figures are written.
        measure: from a family's name to the figures.
        is_good: whether such figures are within what the tests allow.
    """

    heading: str
    template: str
    measure: Callable[[str], Figures]
    is_good: Callable[..., bool]

    def write(self, figures: Figures) -> str:
        return self.template.format(*figures) if figures else _NOTHING

    def read(self, cell: str) -> Figures:
        """The figures in a cell, if nothing else has been written there."""
        if cell == _NOTHING:
            return ()
        found = re.findall(r"\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?", cell)
        figures = tuple(float(figure.replace(",", "")) for figure in found)
        assert self.write(figures) == cell, f"{cell!r} is not what the command writes"
        return figures


@lru_cache(1)
def _journeys(family: str) -> list[Journey]:
    with tempfile.TemporaryDirectory() as folder:
        return [
            journeys.there_and_back(family, kind, Path(folder) / kind)
            for kind in journeys.kinds_of(family)
        ]


def load(family: str) -> Figures:
    journeys = _journeys(family)
    return (
        sum(journey.num_used for journey in journeys),
        sum(journey.in_file for journey in journeys),
        sum(journey.new for journey in journeys),
    )


def round_trip(family: str) -> Figures:
    found = _journeys(family)
    problems = sum(len(journey.problems) + (not journey.same_ids) for journey in found)
    changed, bits = (sum(getattr(j, name) for j in found) for name in ("num_changed", "bits"))
    return changed, bits, problems


def outputs(family: str, dtype: torch.dtype) -> Figures:
    networks = measures.geometries_of(family).values()
    errors = [measures.outputs(family, dtype, **values) for values in networks]
    return (max(*errors, measures.classifier_logits(family, dtype)),)


def outputs_in_bfloat16(family: str) -> Figures:
    """Each of the largest, but the reference's of the same network as ours."""
    networks = measures.geometries_of(family).values()
    found = [measures.outputs_in_bfloat16(family, **values) for values in networks]
    worst = max(found, key=lambda rough: rough.ours)
    return worst.ours, worst.theirs, max(rough.ratio for rough in found)


def gradients(family: str, dtype: torch.dtype) -> Figures:
    both = (measures.gradients(family, dtype), measures.classifier_gradients(family, dtype))
    return (max(max(errors.values()) for errors in both),)


def tokenizer(family: str) -> Figures:
    """Nothing for a family without an independent implementation."""
    if family not in PEERS:
        return ()
    total = ComparisonCounts()
    with tempfile.TemporaryDirectory() as folder:
        peers = PEERS[family](DATA, Path(folder))
        for language in LANGUAGES:
            total = total.plus(compare(peers, xquad(DATA, language)[::SAMPLE]))
    return total.different, total.tokens, total.misplaced_offsets, total.offsets


def onnx(family: str) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        return (journeys.onnx(family, Path(folder) / "onnx"),)


def _exact(heading: str, measure: Callable[..., Figures], dtype: torch.dtype) -> Column:
    return Column(
        heading,
        "{:.1e}",
        lambda family: measure(family, dtype),
        lambda largest: largest <= TOLERANCE[dtype],
    )


_ROUGH = "{:.1e}, theirs {:.1e}, rms {:.2f}"

COLUMNS = (
    Column(
        "load",
        "{:,.0f} of {:,.0f}, {:,.0f} new",
        load,
        lambda used, there, new: used == there and not new,
    ),
    _exact("outputs, float64", outputs, torch.float64),
    _exact("outputs, float32", outputs, torch.float32),
    Column("outputs, bfloat16", _ROUGH, outputs_in_bfloat16, lambda *f: Rough(*f).is_good),
    _exact("gradients, float64", gradients, torch.float64),
    _exact("gradients, float32", gradients, torch.float32),
    Column(
        "gradients, bfloat16",
        _ROUGH,
        lambda family: tuple(measures.gradients_in_bfloat16(family)),
        lambda *figures: Rough(*figures).is_good,
    ),
    Column(
        "tokenizer",
        "{:,.0f} of {:,.0f} tokens, {:,.0f} of {:,.0f} offsets",
        tokenizer,
        lambda different, tokens, misplaced, offsets: (
            different == misplaced == 0 and min(tokens, offsets) > 0
        ),
    ),
    Column(
        "round trip",
        "{:,.0f} of {:,.0f} bits, {:,.0f} complaints",
        round_trip,
        lambda changed, bits, problems: changed == problems == 0 and bits > 0,
    ),
    Column("ONNX", "{:.1e}", onnx, lambda largest: largest < ONNX_TOLERANCE),
)

HEAD = f"""\
# Families

For each family this page compares bertworks with the reference implementation, Hugging Face transformers.
`BERTWORKS_DATA=… python -m tests.families_table` writes the page and measures every figure with the functions that
the tests assert on (`tests/checkpoints/measures.py`, `tests/checkpoints/journeys.py`, `tests/text/peers.py`).
Do not edit the page; run the command again.

The networks are small. All parameters of the reference, biases and gains included, are drawn again first, large
enough that a wrong activation or epsilon shows. Both networks get the same sequences, from one token to the
maximum number of positions. An *error* is the largest difference, relative to the reference's largest value. For a
gradient that is truly zero, it is relative to a tenth of the largest gradient.

| column | what is measured | what the tests allow |
|---|---|---|
| load | tensors used, of those in the checkpoints that the reference's classes wrote (a bare encoder, \
and one with each head of the family), and how many were newly initialised | all, 0 |
| outputs | the hidden states of every layer and the logits of masked language modelling, in \
{len(measures.GEOMETRIES)} geometries that cover every activation, and a classifier's logits; \
the reference computes in float64 | float64 {TOLERANCE[torch.float64]:.0e}, float32 \
{TOLERANCE[torch.float32]:.0e} |
| gradients | the losses of masked language modelling and of classification, and every parameter's \
gradient | the same |
| … in bfloat16 | bertworks computes in bfloat16; *theirs* is the reference's own error in bfloat16, in the \
network where ours is largest; *rms* is the largest ratio of our root-mean-square error in a tensor to \
theirs (for gradients: over all tensors) | the largest error {LARGEST_LIMIT} times theirs and a unit in the \
last place, 2⁻⁸; rms {RMS_LIMIT} |
| tokenizer | tokens and offsets that differ from those of an independent implementation, for \
each {SAMPLE}th paragraph and question of XQuAD in {len(LANGUAGES)} languages ({", ".join(LANGUAGES)}); \
the slow tests compare all | 0 |
| round trip | bits that change when bertworks loads and saves the reference's model and the \
reference loads it again; complaints: logged messages and warnings, missing or unexpected tensors, \
other token ids | 0 |
| ONNX | a classifier's logits in ONNX Runtime, in batches of several shapes, against ours | \
{ONNX_TOLERANCE:.0e} |

The independent tokenizers and their vocabularies:

- BERT (uncased, cased, Chinese), DistilBERT (cased), ERNIE (BERT's Chinese), ELECTRA (uncased): Hugging Face's
  Python class, taken from BERT's original code. It has no offsets, so the comparison looks for each token in the
  characters of its offsets, by the same class.
- RoBERTa, ModernBERT: byte-level BPE in plain Python from GPT-2's published description, on GPT-2's
  vocabulary. For ModernBERT texts are composed (NFC) first; offsets are compared where this changes nothing.
- XLM-RoBERTa, CamemBERT: Google's SentencePiece on a model of 4,000 pieces trained on XQuAD, with ids moved as
  in fairseq. ALBERT: SentencePiece on ALBERT's own model after the text changes of its code; offsets are
  compared without these changes, where they would have no effect.
- GPT: BPE of words in plain Python, on merges learned from XQuAD's English; offsets as for BERT.
"""


def write_page(rows: Mapping[str, Sequence[Figures]], versions: str) -> str:
    """The page: a row for each family, with the figures of each column."""
    headings = ["family", *(column.heading for column in COLUMNS)]
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    for family, figures in rows.items():
        cells = [column.write(own) for column, own in zip(COLUMNS, figures, strict=True)]
        lines.append(f"| {TITLES[family]} | " + " | ".join(cells) + " |")
    table = "\n".join(lines)
    return f"{HEAD}\n{table}\n\nMeasured with {versions}.\n"


def read_page(page: str) -> tuple[dict[str, list[Figures]], str]:
    """The figures of a page, and what it was measured with."""
    families = {title: family for family, title in TITLES.items()}
    rows: dict[str, list[Figures]] = {}
    for line in page.splitlines():
        title, *cells = (cell.strip() for cell in line.strip("| ").split(" | "))
        if title in families and len(cells) == len(COLUMNS):
            rows[families[title]] = [c.read(cell) for c, cell in zip(COLUMNS, cells, strict=True)]
    found = re.search(r"^Measured with (.*)\.$", page, re.MULTILINE)
    assert found is not None
    return rows, found[1]


def main() -> None:
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    families = sys.argv[1:] or list(FAMILIES)
    rows: dict[str, list[Figures]] = {}
    if len(families) < len(FAMILIES):
        rows, earlier = read_page(PAGE.read_text(encoding="utf-8"))
        if earlier != versions:
            sys.exit(f"the page was measured with {earlier}: measure all families")
    for family in families:
        rows[family] = []
        for column in COLUMNS:
            rows[family].append(column.measure(family))
            print(f"{family}: {column.heading}: {column.write(rows[family][-1])}", file=sys.stderr)
    page = write_page({family: rows[family] for family in FAMILIES}, versions)
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
