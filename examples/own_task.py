"""A task that is not in bertworks: which relation holds between two marked spans of a sentence.

Two spans of words are marked in each row. The network sees the vectors of the first and the last
word of each, and predicts their relation: here a dependency of a treebank (Universal Dependencies).
In Python: `bertworks.finetune(MODEL, RelationTask, train=…, dev=…, out=…)`. Or:

    python examples/own_task.py en_ewt-ud-train.conllu > train.jsonl    # and dev.jsonl likewise
    bertworks finetune examples/own_task.py:RelationTask --model MODEL \
        --train train.jsonl --dev dev.jsonl --out runs/relation learning_rate=1e-4 epochs=1
    bertworks evaluate runs/relation --data dev.jsonl --task examples/own_task.py:RelationTask
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

import bertworks as bw
from bertworks.data.tables import read_rows

RELATIONS = ("nsubj", "obj", "obl", "amod", "advmod", "det", "case", "conj")


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MarkedExample(bw.LabelledExample):
    """A sentence as token ids, and the tokens that represent its two spans."""

    marks: np.ndarray  # [4]: the first piece of the first and of the last word of each span


class RelationNetwork(bw.ClassifierNetwork):
    """An encoder, and a linear map from the vectors of the marks to the relations."""

    def __init__(self, config: bw.EncoderConfig, num_relations: int, dropout: float | None) -> None:
        super().__init__()
        self.encoder = bw.Encoder(config, pooler=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.relation_head = nn.Linear(4 * config.hidden_size, num_relations)

    def logits(self, batch: bw.Batch) -> Tensor:
        hidden = self.encoder(batch.packed)
        marked = self.dropout(hidden[batch.targets["marks"]].flatten(1).float())  # from bf16 too
        return self.relation_head(marked)  # [rows, relations]


class RelationTask(bw.ClassifierTask[MarkedExample]):
    """Which relation holds between two spans of a sentence, each given as `[first, past]` words."""

    name = "relation"
    head = bw.Head("relation_head", "relations")
    schema = bw.Schema(
        bw.Role("words", names=("words", "tokens")),
        bw.Role("first", title="first span"),
        bw.Role("second", title="second span"),
        bw.Role("label", names=("label", "relation"), of_label=True),
    )

    def network(self, config: bw.EncoderConfig) -> RelationNetwork:
        return RelationNetwork(config, len(self.labels), self.settings.dropout)

    def build_example(self, row: Any, index: int, where: str, *, labelled: bool) -> MarkedExample:
        words, *spans = (row[self.column(role)] for role in ("words", "first", "second"))
        limit = self.settings.max_seq_length
        (encoding,) = self.tokenizer.encode_batch([words], max_length=limit, where=[where])
        pieces = [np.flatnonzero(encoding.word_ids == i)[:1] for a, b in spans for i in (a, b - 1)]
        if not all(map(len, pieces)):
            raise bw.DataError("a span is beyond max_seq_length tokens", where=where)
        return MarkedExample(
            index=index,
            sequences=[encoding],
            target=self.read_target(row, where, labelled=labelled),
            texts=[" ".join(words[start:past]) for start, past in spans],
            where=where,
            marks=np.concatenate(pieces),
        )

    def collate(self, examples: Sequence[MarkedExample]) -> bw.Batch:
        batch = super().collate(examples)
        marks = np.stack([one.marks for one in batch.examples]) + batch.packed.first_tokens[:, None]
        return replace(batch, targets={**batch.targets, "marks": marks})


def relations(file: str) -> Iterator[dict[str, Any]]:
    """The pairs of a word and its head in a CoNLL-U file whose relation is among `RELATIONS`."""
    for _, row in read_rows(file, format="conllu"):
        for position, (head, name) in enumerate(zip(row["head"], row["deprel"], strict=True)):
            if (relation := name.partition(":")[0]) in RELATIONS:
                spans = {"first": [position, position + 1], "second": [int(head) - 1, int(head)]}
                yield {"words": row["form"], **spans, "label": relation}


if __name__ == "__main__":
    for file in sys.argv[1:] or sys.exit("usage: examples/own_task.py FILE.conllu > rows.jsonl"):
        print("\n".join(map(json.dumps, relations(file))))
