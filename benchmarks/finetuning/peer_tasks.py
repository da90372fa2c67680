"""A plain Hugging Face script for each task: features, padded batches, a measurement.

Rows come from the same files by the same columns as ours; everything after that is the reference's:
its tokenizer, its head, its loss. Each class is as short as the library's own examples allow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
import transformers
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import f1_score as span_f1_score
from sklearn.metrics import f1_score, matthews_corrcoef
from torch import Tensor

from bertworks.tasks.answering.answers import read_answers
from bertworks.tasks.answering.scores import Version, exact_match, f1, find_best_threshold
from bertworks.tasks.labels import read_label_name

Row = Mapping[str, Any]
Batch = dict[str, Tensor]
EVAL_BATCH_SIZE = 64
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class PeerTask(ABC):
    """A task as the reference's examples do it.

    Args:
        tokenizer: the reference's.
        settings: our task's, for columns and limits.
    """

    model_class: ClassVar[str]

    def __init__(self, tokenizer: Any, settings: Any) -> None:
        self.tokenizer, self.settings = tokenizer, settings

    def model(self, name: str) -> Any:
        """The reference's model, its head freshly initialised."""
        return getattr(transformers, self.model_class).from_pretrained(name, **self.head())

    def head(self) -> dict[str, Any]:
        return {}

    def features(self, rows: Sequence[Row]) -> list[Any]:
        """What is trained on, one by one; the rows, if nothing has to be done before."""
        return list(rows)

    @abstractmethod
    def batch(self, features: Sequence[Any]) -> Batch:
        """The model's inputs, padded to the longest, with labels."""

    @abstractmethod
    def measure(self, model: Any, rows: Sequence[Row]) -> dict[str, float]:
        """The metrics on rows, by our names."""

    def outputs(
        self, model: Any, rows: Sequence[Row]
    ) -> Iterator[tuple[Sequence[Any], Batch, Any]]:
        """The model's answers to features of rows, batch by batch."""
        features = self.features(rows)
        for at in range(0, len(features), EVAL_BATCH_SIZE):
            part = features[at : at + EVAL_BATCH_SIZE]
            inputs = self.batch(part)
            yield part, inputs, model(**inputs)


class MeanClassifier(torch.nn.Module):
    """A classifier on the mean of the last layer's tokens; the reference has none for BERT."""

    def __init__(self, name: str, num_labels: int) -> None:
        super().__init__()
        self.encoder = transformers.AutoModel.from_pretrained(name, add_pooling_layer=False)
        config = self.encoder.config
        self.dropout = torch.nn.Dropout(config.hidden_dropout_prob)
        self.linear = torch.nn.Linear(config.hidden_size, num_labels)
        torch.nn.init.normal_(self.linear.weight, std=config.initializer_range)
        torch.nn.init.zeros_(self.linear.bias)

    def forward(self, labels: Tensor, **inputs: Tensor) -> Any:
        mask = inputs["attention_mask"][:, :, None]
        hidden = self.encoder(**inputs).last_hidden_state * mask
        logits = self.linear(self.dropout(hidden.sum(1) / mask.sum(1)))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        return transformers.modeling_outputs.SequenceClassifierOutput(loss=loss, logits=logits)


class Texts(PeerTask):
    """Classes and values of texts and pairs."""

    model_class = "AutoModelForSequenceClassification"

    def model(self, name: str) -> Any:
        pooling = self.settings.classifier_pooling
        if pooling in (None, "cls"):
            return super().model(name)
        assert pooling == "mean" and hasattr(self.settings, "labels"), "no peer of this yet"
        return MeanClassifier(name, len(self.settings.labels))

    def head(self) -> dict[str, Any]:
        return {"num_labels": len(getattr(self.settings, "labels", [None]))}

    def batch(self, features: Sequence[Any]) -> Batch:
        text, pair = self.settings.text_column, self.settings.pair_column
        pairs = None if pair is None else [row[pair] for row in features]
        inputs = self.tokenizer(
            [row[text] for row in features],
            pairs,
            padding=True,
            truncation=True,
            max_length=self.settings.max_seq_length,
            return_tensors="pt",
        )
        return {**inputs, "labels": torch.tensor([self._label(row) for row in features])}

    def _label(self, row: Row) -> int | float:
        column = self.settings.label_column
        if hasattr(self.settings, "labels"):
            return int(self.settings.labels.index(read_label_name(row, column, None)))
        return float(row[column])

    def measure(self, model: Any, rows: Sequence[Row]) -> dict[str, float]:
        labels, logits = [], []
        for _, inputs, outputs in self.outputs(model, rows):
            labels.append(inputs["labels"])
            logits.append(outputs.logits)
        gold, predicted = torch.cat(labels).numpy(), torch.cat(logits)
        if not hasattr(self.settings, "labels"):
            values = predicted[:, 0]
            return {
                "pearson": float(pearsonr(gold, values).statistic),
                "spearman": float(spearmanr(gold, values).statistic),
            }
        classes = predicted.argmax(-1).numpy()
        metrics = {"accuracy": float((gold == classes).mean())}
        if len(self.settings.labels) == 2:
            metrics["f1"] = float(f1_score(gold, classes))
            metrics["matthews_correlation"] = float(matthews_corrcoef(gold, classes))
        return metrics


class Tagging(PeerTask):
    """Tags of words: the first piece of each has the label, the others -100."""

    model_class = "AutoModelForTokenClassification"

    def head(self) -> dict[str, Any]:
        return {"num_labels": len(self.settings.labels)}

    def batch(self, features: Sequence[Any]) -> Batch:
        settings, names = self.settings, self.settings.labels
        inputs = self.tokenizer(
            [list(row[settings.word_column]) for row in features],
            is_split_into_words=True,
            padding=True,
            truncation=True,
            max_length=self.settings.max_seq_length,
            return_tensors="pt",
        )
        labels = torch.full(inputs["input_ids"].shape, -100)
        for index, row in enumerate(features):
            previous = None
            for place, word in enumerate(inputs.word_ids(index)):
                if word is not None and word != previous:
                    labels[index, place] = names.index(row[settings.tag_column][word])
                previous = word
        return {**inputs, "labels": labels}

    def measure(self, model: Any, rows: Sequence[Row]) -> dict[str, float]:
        names, column = self.settings.labels, self.settings.tag_column
        gold, predicted = [], []
        for part, inputs, outputs in self.outputs(model, rows):
            classes = outputs.logits.argmax(-1)
            for index, row in enumerate(part):
                tags = [names[n] for n in classes[index][inputs["labels"][index] >= 0]]
                gold.append(list(row[column]))
                predicted.append(tags + ["O"] * (len(row[column]) - len(tags)))  # truncated words
        pairs = zip(chain(*gold), chain(*predicted), strict=True)
        metrics = {"accuracy": float(np.mean([a == b for a, b in pairs]))}
        if self.settings.spans:
            metrics["f1"] = float(span_f1_score(gold, predicted))
        return metrics


class Answering(PeerTask):
    """Spans of passages, by windows; the best of the 20 best beginnings and ends."""

    model_class = "AutoModelForQuestionAnswering"

    def features(self, rows: Sequence[Row]) -> list[Any]:
        own = self.settings
        features = []
        for number, row in enumerate(rows):
            answers, starts = read_answers(row, {"answers": own.answers}, None)
            room = own.max_seq_length - len(self.tokenizer.tokenize(row[own.question])) - 3
            windows = self.tokenizer(
                row[own.question],
                row[own.context],
                truncation="only_second",
                max_length=own.max_seq_length,
                stride=room - own.stride,  # what neighbouring windows share
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for index, offsets in enumerate(windows["offset_mapping"]):
                sides = windows.sequence_ids(index)
                places = [
                    span if side == 1 else None for span, side in zip(offsets, sides, strict=True)
                ]
                span = (0, 0)
                if answers and (start := starts[0]) is not None:
                    end = start + len(answers[0])
                    first = [n for n, p in enumerate(places) if p and p[0] <= start < p[1]]
                    last = [n for n, p in enumerate(places) if p and p[0] < end <= p[1]]
                    span = (first[0], last[0]) if first and last else span
                inputs = {key: windows[key][index] for key in INPUTS}
                features.append({**inputs, "span": span, "places": places, "row": number})
        return features

    def batch(self, features: Sequence[Any]) -> Batch:
        inputs = self.tokenizer.pad(
            [{key: one[key] for key in INPUTS} for one in features], return_tensors="pt"
        )
        spans = torch.tensor([one["span"] for one in features])
        return {**inputs, "start_positions": spans[:, 0], "end_positions": spans[:, 1]}

    def measure(self, model: Any, rows: Sequence[Row]) -> dict[str, float]:
        own = self.settings
        best = [(-np.inf, "")] * len(rows)
        null = [np.inf] * len(rows)
        for part, _, outputs in self.outputs(model, rows):
            for index, one in enumerate(part):
                start = outputs.start_logits[index].numpy()
                end = outputs.end_logits[index].numpy()
                row = one["row"]
                null[row] = min(null[row], float(start[0] + end[0]))
                for first in np.argsort(-start)[:20]:
                    for last in np.argsort(-end)[:20]:
                        if not self._is_span(one["places"], first, last, own.max_answer_tokens):
                            continue
                        score = float(start[first] + end[last])
                        if score > best[row][0]:
                            begin, stop = one["places"][first][0], one["places"][last][1]
                            best[row] = score, rows[row][own.context][begin:stop]
        answers = [read_answers(row, {"answers": own.answers}, None)[0] for row in rows]
        pairs = [(text, true) for (_, text), true in zip(best, answers, strict=True)]
        version: Version = "2.0" if own.unanswerable else "1.1"
        scores = [f1(*pair, version) for pair in pairs]
        if not own.unanswerable:
            exact = float(np.mean([exact_match(*pair, version) for pair in pairs]))
            return {"f1": float(np.mean(scores)), "exact_match": exact}
        margins = [n - score for n, (score, _) in zip(null, best, strict=True)]
        if_none = [f1("", true, version) for true in answers]
        return {"best_f1": find_best_threshold(margins, scores, if_none)[1]}

    @staticmethod
    def _is_span(places: Sequence[Any], first: int, last: int, longest: int) -> bool:
        is_passage = max(first, last) < len(places) and places[first] and places[last]
        return bool(is_passage) and first <= last < first + longest


class Choice(PeerTask):
    """The right one of several endings."""

    model_class = "AutoModelForMultipleChoice"

    def batch(self, features: Sequence[Any]) -> Batch:
        own = self.settings
        count = len(own.choices)
        inputs = self.tokenizer(
            [row[own.prompt] for row in features for _ in own.choices],
            [row[name] for row in features for name in own.choices],
            padding=True,
            truncation=True,
            max_length=own.max_seq_length,
            return_tensors="pt",
        )
        shaped = {key: value.view(len(features), count, -1) for key, value in inputs.items()}
        labels = [int(row[own.label]) - own.first_number for row in features]
        return {**shaped, "labels": torch.tensor(labels)}

    def measure(self, model: Any, rows: Sequence[Row]) -> dict[str, float]:
        right = [
            (outputs.logits.argmax(-1) == inputs["labels"])
            for _, inputs, outputs in self.outputs(model, rows)
        ]
        return {"accuracy": float(torch.cat(right).double().mean())}


PEERS: dict[str, type[PeerTask]] = {
    "classification": Texts,
    "regression": Texts,
    "tagging": Tagging,
    "answering": Answering,
    "choice": Choice,
}
