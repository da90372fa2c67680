"""Small tasks that are hard for the task protocol, each as small as possible but real.

They share a vocabulary of letters; `index` is a row's number, `answer` what is right for it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.data.rows import Row
from bertworks.nn.config import EncoderConfig
from bertworks.nn.encoder import Encoder
from bertworks.nn.heads import MLMHead
from bertworks.nn.losses import cross_entropy_sum
from bertworks.packed import Batch, Packed
from bertworks.tasks.network import Network
from bertworks.tasks.task import Evaluator, Prediction, Task
from bertworks.text.tokenizer import Encoding, Tokenizer
from bertworks.text.windows import segment_windows

LETTERS = "abcdefghijklmnopqrstuvwxyz"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
CONFIG = EncoderConfig(
    vocab_size=len(PIECES),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=32,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    initializer_range=0.1,
)


@dataclass(frozen=True)
class SequencesExample:
    """A row of one sequence or more."""

    index: int
    sequences: Sequence[Encoding]
    answer: Any = None
    text: str = ""
    truncated_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        return sum(sequence.num_tokens for sequence in self.sequences)


class ExactMatch(Evaluator):
    """How many answers are the right ones, read from what the batch was collated from."""

    def __init__(self, task: LetterTask) -> None:
        self._task = task
        self._right: list[bool] = []

    def add(self, outputs: Mapping[str, Tensor], batch: Batch) -> None:
        answers = self._task.decode(outputs, batch)
        self._right += [answers[x.index]["answer"] == x.answer for x in batch.examples]

    def result(self) -> dict[str, float]:
        return {"exact_match": float(np.mean(self._right))}


class LetterTask(Task[SequencesExample]):
    """What the cases share."""

    best_metric: ClassVar[str] = "exact_match"

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def to_dict(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], tokenizer: Tokenizer) -> Self:
        return cls(tokenizer)

    def evaluator(self) -> Evaluator:
        return ExactMatch(self)

    def pack(self, examples: Sequence[SequencesExample]) -> tuple[Packed, list[tuple[int, int]]]:
        """All sequences in order of length, and the (example, sequence) that each of them is."""
        every = [
            (at, number)
            for at, example in enumerate(examples)
            for number in range(len(example.sequences))
        ]
        every.sort(key=lambda place: examples[place[0]].sequences[place[1]].num_tokens)
        sequences = [examples[at].sequences[number] for at, number in every]
        packed = Packed.from_arrays(
            [sequence.input_ids for sequence in sequences],
            [sequence.token_type_ids for sequence in sequences],
            rows=[examples[at].index for at, _ in every],
            numbers=[number for _, number in every],
        )
        return packed, every


# --- Multiple choice: several sequences a row, their number not fixed -----------------------------


class ChoiceNetwork(Network):
    """A score for each sequence; the softmax is over those of a row (paper §4.4)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config)
        self.score = nn.Linear(config.hidden_size, 1)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        table = batch.targets["table"]  # [rows, choices]: where each choice is in the pack, or -1
        scores = self.predict(batch)["scores"][table].masked_fill(table < 0, -torch.inf)
        return {"choice": cross_entropy_sum(scores, batch.targets["labels"])}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        pooled = self.encoder.pool(self.encoder(batch.packed), batch.packed)
        return {"scores": self.score(pooled).squeeze(-1)}


class ChoiceTask(LetterTask):
    """Which of the choices continues the prompt."""

    name: ClassVar[str] = "choice"

    def network(self, config: EncoderConfig) -> ChoiceNetwork:
        return ChoiceNetwork(config)

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> SequencesExample:
        sequences = [self.tokenizer.encode(row["prompt"], choice) for choice in row["choices"]]
        return SequencesExample(index, sequences, row["label"] if labelled else None)

    def collate(self, examples: Sequence[SequencesExample]) -> Batch:
        packed, every = self.pack(examples)
        if examples[0].answer is None:
            return Batch(packed, examples=examples)
        table = np.full((len(examples), max(len(x.sequences) for x in examples)), -1)
        for place, (at, number) in enumerate(every):
            table[at, number] = place
        labels = np.array([example.answer for example in examples])
        targets = {"table": table, "labels": labels}
        return Batch(packed, targets, {"choice": len(examples)}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        best: dict[int, tuple[float, int]] = {}
        rows, numbers = batch.packed.sequence_row, batch.packed.sequence_number
        for row, number, score in zip(
            rows.tolist(), numbers.tolist(), outputs["scores"].tolist(), strict=True
        ):
            best[row] = max(best.get(row, (-np.inf, 0)), (score, number))
        return {row: {"answer": number} for row, (_, number) in best.items()}


# --- Question answering over windows: a row's answer comes out of any of its sequences ------------


class SpanNetwork(Network):
    """Start and end scores of each token; without an answer in a window, both are `[CLS]`'s."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self.span = nn.Linear(config.hidden_size, 2)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        scores = self.predict(batch)["scores"]
        lengths = batch.packed.cu_seqlens.diff()
        loss = scores.new_zeros(())
        for side, name in enumerate(("starts", "ends")):  # a softmax over each sequence's tokens
            parts = scores[:, side].split(lengths.tolist())
            log_sums = torch.stack([part.logsumexp(0) for part in parts])
            loss = loss + (log_sums - scores[batch.targets[name], side]).sum()
        return {"span": loss}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        return {"scores": self.span(self.encoder(batch.packed))}


class SpanTask(LetterTask):
    """The part of a context that answers a question; the context is cut into windows."""

    name: ClassVar[str] = "answering"

    def network(self, config: EncoderConfig) -> SpanNetwork:
        return SpanNetwork(config)

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> SequencesExample:
        context = row["context"]
        segments = self.tokenizer.segments([row["question"], context])
        parts = segment_windows(self.tokenizer, *segments, max_length=20, stride=10)
        return SequencesExample(index, parts, row["answer"] if labelled else None, context)

    def collate(self, examples: Sequence[SequencesExample]) -> Batch:
        packed, every = self.pack(examples)
        if examples[0].answer is None:
            return Batch(packed, examples=examples)
        spans = np.empty((len(every), 2), np.int64)
        for place, (at, number) in enumerate(every):
            example = examples[at]
            spans[place] = packed.cu_seqlens[place] + _span_in(
                example.sequences[number], example.text.index(example.answer), example.answer
            )
        targets = {"starts": spans[:, 0], "ends": spans[:, 1]}
        return Batch(packed, targets, {"span": len(every)}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        by_index = {example.index: example for example in batch.examples}
        best: dict[int, tuple[float, str]] = defaultdict(lambda: (-np.inf, ""))
        packed = batch.packed
        for place, (row, number) in enumerate(
            zip(packed.sequence_row.tolist(), packed.sequence_number.tolist(), strict=True)
        ):
            example = by_index[row]
            sequence = example.sequences[number]
            first, last = packed.cu_seqlens[place : place + 2].tolist()
            start, end = outputs["scores"][first:last].unbind(1)
            pairs = start[:, None] + end[None]
            allowed = np.outer(*(2 * [_answerable(sequence)]))
            pairs = pairs.masked_fill(~torch.from_numpy(np.triu(allowed)), -torch.inf)
            at = int(pairs.argmax())
            from_token, to_token = divmod(at, len(start))
            score = float(pairs.flatten()[at] - start[0] - end[0])
            text = example.text[sequence.offsets[from_token, 0] : sequence.offsets[to_token, 1]]
            best[row] = max(best[row], (score, text))
        return {row: {"answer": text} for row, (_, text) in best.items()}


def _answerable(sequence: Encoding) -> np.ndarray:
    return (sequence.token_type_ids == 1) & ~sequence.special_tokens_mask


def _span_in(sequence: Encoding, start: int, answer: str) -> np.ndarray:
    """The answer's first and last token in a window; both 0, `[CLS]`, if it is not in it."""
    inside = _answerable(sequence)
    first = np.flatnonzero(inside & (sequence.offsets[:, 0] == start))
    last = np.flatnonzero(inside & (sequence.offsets[:, 1] == start + len(answer)))
    return np.array([first[0], last[0]]) if len(first) and len(last) else np.zeros(2, np.int64)


# --- In-batch negatives: a loss over the whole batch, which must not be split ---------------------


class RetrievalNetwork(Network):
    """Query and positive as unit vectors; each query is to find its own among all positives."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        vectors = self.predict(batch)["vectors"]
        queries, positives = (vectors[batch.targets[name]] for name in ("queries", "positives"))
        labels = torch.arange(len(queries), device=vectors.device)
        return {"contrastive": cross_entropy_sum(20 * queries @ positives.T, labels)}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        hidden, lengths = self.encoder(batch.packed), batch.packed.cu_seqlens.diff()
        means = torch.segment_reduce(hidden, "mean", lengths=lengths.long(), axis=0)
        return {"vectors": F.normalize(means, dim=-1)}


class RetrievalTask(LetterTask):
    """Which text belongs to a query: the one that was made for it."""

    name: ClassVar[str] = "retrieval"
    additive: ClassVar[bool] = False

    def network(self, config: EncoderConfig) -> RetrievalNetwork:
        return RetrievalNetwork(config)

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> SequencesExample:
        sequences = [self.tokenizer.encode(row[key]) for key in ("query", "text")]
        return SequencesExample(index, sequences, row["query"])

    def collate(self, examples: Sequence[SequencesExample]) -> Batch:
        packed, every = self.pack(examples)
        places = np.empty((len(examples), 2), np.int64)
        for place, (at, number) in enumerate(every):
            places[at, number] = place
        targets = {"queries": places[:, 0], "positives": places[:, 1]}
        return Batch(packed, targets, {"contrastive": len(examples)}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        vectors = outputs["vectors"]
        queries, texts = vectors[batch.targets["queries"]], vectors[batch.targets["positives"]]
        nearest = (queries @ texts.T).argmax(-1).tolist()
        return {
            example.index: {"answer": batch.examples[at].answer}
            for example, at in zip(batch.examples, nearest, strict=True)
        }


# --- ELECTRA: two encoders, and the second reads what the first has written -----------------------


class ElectraNetwork(Network):
    """A generator fills the masks by sampling; the encoder detects the replaced tokens.

    Source: Clark et al. (2020), §2; the weight of 50 is theirs.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.generator = Encoder(config.with_values(hidden_size=16), pooler=False)
        word_embeddings = self.generator.embeddings.word_embeddings.weight
        self.mlm_head = MLMHead(self.generator.config, word_embeddings)
        self.encoder = Encoder(config, pooler=False)
        self.discriminator_head = nn.Linear(config.hidden_size, 1)

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        packed, positions = batch.packed, batch.targets["masked_positions"]
        original = batch.targets["masked_labels"]
        logits = self.mlm_head(self.generator(packed)[positions])
        samples = torch.distributions.Categorical(logits=logits.detach()).sample()
        is_replaced = torch.zeros(packed.num_tokens)
        is_replaced[positions] = (samples != original).float()
        corrupted = replace(packed, input_ids=packed.input_ids.index_put((positions,), samples))
        scores = self.discriminator_head(self.encoder(corrupted)).squeeze(-1)
        predicted = F.binary_cross_entropy_with_logits(scores, is_replaced, reduction="sum")
        return {"mlm": cross_entropy_sum(logits, original), "replaced": 50 * predicted}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        return {"scores": self.discriminator_head(self.encoder(batch.packed)).squeeze(-1)}


class ElectraTask(LetterTask):
    """Learns by telling replaced tokens; rows are then texts in which a token may be odd."""

    name: ClassVar[str] = "electra"

    def network(self, config: EncoderConfig) -> ElectraNetwork:
        return ElectraNetwork(config)

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> SequencesExample:
        return SequencesExample(index, [self.tokenizer.encode(row["text"])], row.get("odd"))

    def collate(self, examples: Sequence[SequencesExample]) -> Batch:
        packed, _ = self.pack(examples)
        if examples[0].answer is not None:
            return Batch(packed, {}, {}, examples)
        random = np.random.default_rng(examples[0].index)
        is_text = packed.input_ids >= len(PIECES) - len(LETTERS)
        positions = np.flatnonzero(is_text & (random.random(packed.num_tokens) < 0.2))
        labels = packed.input_ids[positions]
        input_ids = packed.input_ids.copy()
        input_ids[positions] = self.tokenizer.mask_id
        targets = {"masked_positions": positions, "masked_labels": labels}
        counts = {"mlm": len(positions), "replaced": packed.num_tokens}
        return Batch(replace(packed, input_ids=input_ids), targets, counts, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        lengths = batch.packed.cu_seqlens.diff().tolist()
        rows = batch.packed.sequence_row.tolist()
        parts = outputs["scores"].split(lengths)
        return {
            row: {"answer": int(part[1:-1].argmax())} for row, part in zip(rows, parts, strict=True)
        }


# --- A frozen teacher: part of the network, and neither trained nor put into training mode --------


class DistilledNetwork(Network):
    """A student that is to give each token the vector that its teacher gives it."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.encoder = Encoder(config.with_values(num_hidden_layers=1), pooler=False)
        noisy = config.with_values(num_hidden_layers=2, hidden_dropout_prob=0.5)
        self.teacher = Encoder(noisy, pooler=False).requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            wanted = self.teacher(batch.packed)
        return {"mimic": F.mse_loss(self.encoder(batch.packed), wanted, reduction="sum")}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        return {"error": (self.encoder(batch.packed) - self.teacher(batch.packed)).square().sum(-1)}


class DistilledTask(LetterTask):
    """The letters of the alphabet in a smaller encoder's words."""

    name: ClassVar[str] = "distillation"

    def network(self, config: EncoderConfig) -> DistilledNetwork:
        return DistilledNetwork(config)

    def example(
        self, row: Row, index: int, *, where: str | None = None, labelled: bool = True
    ) -> SequencesExample:
        return SequencesExample(index, [self.tokenizer.encode(row["text"])], answer=True)

    def collate(self, examples: Sequence[SequencesExample]) -> Batch:
        packed, _ = self.pack(examples)
        return Batch(packed, {}, {"mimic": packed.num_tokens}, examples)

    def decode(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[int, Prediction]:
        parts = outputs["error"].split(batch.packed.cu_seqlens.diff().tolist())
        rows = batch.packed.sequence_row.tolist()
        near = CONFIG.hidden_size / 3  # a vector of LayerNorm has about that many squares' sum × 3
        return {
            row: {"answer": bool(part.mean() < near)} for row, part in zip(rows, parts, strict=True)
        }
