"""A task that is not in bertworks: which relation holds between two marked spans of a sentence.

Two spans of words are marked in each row. The network sees the vectors of the first and the last
word of each, and predicts their relation: here a dependency of a treebank (Universal Dependencies).
In Python: `bertworks.finetune(MODEL, RelationTask, train=…, dev=…, out=…)`. Or:

    python examples/own_task.py en_ewt-ud-train.conllu > train.jsonl
    python examples/own_task.py en_ewt-ud-dev.conllu > dev.jsonl
    bertworks finetune examples/own_task.py:RelationTask --model MODEL \
        --train train.jsonl --dev dev.jsonl --out runs/relation learning_rate=1e-4 epochs=1
    bertworks evaluate runs/relation --data dev.jsonl --task examples/own_task.py:RelationTask
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

import bertworks as bw
from bertworks.data.rows import Row

RELATIONS = ("nsubj", "obj", "obl", "amod", "advmod", "det", "case", "conj")


class MarkedTokens(NamedTuple):
    """A sentence as token ids, and the tokens that represent its two spans."""

    input_ids: np.ndarray
    token_type_ids: np.ndarray
    marks: np.ndarray  # [4]: the first piece of the first and of the last word of each span


class RelationNetwork(bw.ClassifierNetwork):
    """An encoder, and a linear map from the vectors of the marks to the relations."""

    def __init__(self, config: bw.EncoderConfig, num_relations: int, dropout: float | None) -> None:
        super().__init__()
        self.encoder = bw.Encoder(config, pooler=False)
        self.dropout = nn.Dropout(config.hidden_dropout_prob if dropout is None else dropout)
        self.relation_head = nn.Linear(4 * config.hidden_size, num_relations)

    def logits(self, batch: bw.Batch) -> Tensor:
        """`[rows, relations]`."""
        hidden = self.encoder(batch.packed)
        marked = self.dropout(hidden[batch.targets["marks"]].flatten(1))
        logits: Tensor = self.relation_head(marked)
        return logits


class RelationTask(bw.ClassifierTask[bw.LabelledExample]):
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

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[bw.LabelledExample]:
        roles = {role: str(column) for role, column in self.columns.items()}
        sentences = [row[roles["words"]] for row in rows]
        limit = self.settings.max_seq_length
        encodings = self.tokenizer.encode_batch(sentences, max_length=limit, where=where)
        examples = []
        for index, (row, location, encoding) in enumerate(zip(rows, where, encodings, strict=True)):
            spans = [row[roles["first"]], row[roles["second"]]]
            words = [word for start, past in spans for word in (start, past - 1)]
            pieces = [np.flatnonzero(encoding.word_ids == word)[:1] for word in words]
            if not all(map(len, pieces)):
                raise bw.DataError("a span is beyond max_seq_length tokens", where=location)
            marks = np.concatenate(pieces)
            examples.append(
                bw.LabelledExample(
                    index=first_index + index,
                    sequences=[MarkedTokens(encoding.input_ids, encoding.token_type_ids, marks)],
                    target=self.read_target(row, location, labelled=labelled),
                    truncated_tokens=encoding.truncated_tokens,
                    texts=[" ".join(sentences[index][start:past]) for start, past in spans],
                    where=location,
                )
            )
        return examples

    def collate(self, examples: Sequence[bw.LabelledExample]) -> bw.Batch:
        batch = super().collate(examples)
        marks = np.stack([example.sequences[0].marks for example in batch.examples])
        starts = np.asarray(batch.packed.cu_seqlens)[:-1, None]
        return replace(batch, targets={**batch.targets, "marks": marks + starts})


def relations(file: str) -> Iterator[dict[str, Any]]:
    """The pairs of a word and its head in a CoNLL-U file whose relation is among `RELATIONS`."""
    for sentence in Path(file).read_text(encoding="utf-8").split("\n\n"):
        fields = (line.split("\t") for line in sentence.splitlines())
        words = [one for one in fields if one[0].isdecimal()]  # no comments, no 1-2, no 1.1
        for position, one in enumerate(words):
            head, relation = int(one[6]) - 1, one[7].partition(":")[0]
            if relation in RELATIONS:
                spans = {"first": [position, position + 1], "second": [head, head + 1]}
                yield {"words": [word[1] for word in words], **spans, "label": relation}


if __name__ == "__main__":
    for file in sys.argv[1:] or sys.exit("usage: examples/own_task.py FILE.conllu > rows.jsonl"):
        print("\n".join(map(json.dumps, relations(file))))
