"""Translation: generate a text from a text, with an encoder and a decoder.

    [CLS] source [SEP] ─► encoder ──────────┐
    [CLS] target       ─► embeddings ─► decoder ─► Wᵀ ─► target [SEP]

Source and target share the model's vocabulary and word embeddings, which are also the weights of
the output layer. If each target equals its source, this is a sequence autoencoder.

Source: Vaswani et al. (2017), "Attention is all you need"; Dai and Le (2015), "Semi-supervised
sequence learning", for the autoencoder. Decoding is greedy: each step takes the most probable
piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from ..checkpoints.heads import Head
from ..data.rows import Row, texts_of
from ..data.schema import Role, Schema
from ..data.unlabelled import UnlabelledError
from ..errors import SettingsError, import_optional
from ..nn.config import EncoderConfig
from ..nn.decoder import CrossAttentionKeysValues, Decoder
from ..nn.encoder import Encoder
from ..nn.kv_cache import KeyValueCache
from ..nn.layers import Dropout, promote_to_float32
from ..nn.losses import linear_cross_entropy
from ..packed import Batch, Packed
from .example import LabelledExample, Tokens, pack, sort_sequences
from .labelled import LabelledTask
from .network import Network
from .task import DisplayValue, Evaluator, Outputs, Prediction


class TranslationNetwork(Network):
    """An encoder, and a decoder that attends to the encoder's vectors of the source.

    Args:
        limit: maximum tokens of a target.
        boundary_ids: the ids of the pieces that begin and end a target.
        dropout: dropout before the output layer.
    """

    def __init__(
        self,
        config: EncoderConfig,
        *,
        limit: int,
        boundary_ids: tuple[int, int],
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=False)
        self.decoder = Decoder(config)
        self.dropout = Dropout(dropout or 0.0)
        self.limit, self.boundary_ids = limit, boundary_ids

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed cross-entropy of the targets' tokens: `translation`."""
        return {"translation": self._loss_sum(self._encode(batch.packed), batch)}

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return `tokens` `[rows, length]`: the generated pieces, filled up with the end piece; if
        targets are known, also `loss`, the summed cross-entropy of their tokens."""
        keys_values = self._encode(batch.packed)
        losses = {"loss": self._loss_sum(keys_values, batch)} if batch.targets else {}
        return {"tokens": self._generate(keys_values, batch.packed), **losses}

    def _encode(self, source: Packed) -> list[CrossAttentionKeysValues]:
        return self.decoder.project_source(self.encoder(source), source)

    def _states(
        self,
        target: Packed,
        keys_values: Sequence[CrossAttentionKeysValues],
        memory: KeyValueCache | None = None,
    ) -> Float[Tensor, "tokens hidden_size"]:
        hidden = self.encoder.embeddings(target).to(keys_values[0].key.dtype)
        result: Tensor = self.dropout(self.decoder(hidden, target, keys_values, memory))
        return result

    def _loss_sum(
        self, keys_values: Sequence[CrossAttentionKeysValues], batch: Batch
    ) -> Float[Tensor, ""]:
        ids, lengths = batch.targets["target_ids"], batch.targets["target_lengths"]
        rows = np.split(ids.cpu().numpy(), np.cumsum(lengths.cpu().numpy())[:-1])
        inputs = Packed.from_arrays([row[:-1] for row in rows]).to(ids.device)
        targets = torch.from_numpy(np.concatenate([row[1:] for row in rows])).to(ids.device)
        table = self.encoder.embeddings.word_embeddings.weight
        return linear_cross_entropy(self._states(inputs, keys_values), table, None, targets)

    def _generate(
        self, keys_values: Sequence[CrossAttentionKeysValues], source: Packed
    ) -> Int[Tensor, "rows length"]:
        """Generate one token of each row per step, until all rows have ended."""
        first, last = self.boundary_ids
        table = self.encoder.embeddings.word_embeddings.weight
        device = source.input_ids.device
        step = Packed.from_arrays([np.array([first])] * source.num_sequences).to(device)
        memory, steps = KeyValueCache(), []
        has_ended = torch.zeros(source.num_sequences, dtype=torch.bool, device=device)
        for position in range(self.limit - 1):
            hidden = self._states(step, keys_values, memory)
            tokens = F.linear(promote_to_float32(hidden), table).argmax(-1)
            tokens = tokens.masked_fill(has_ended, last)
            steps.append(tokens)
            has_ended = has_ended | (tokens == last)
            if bool(has_ended.all()):
                break
            positions = torch.full_like(tokens, position + 1)
            step = replace(step, input_ids=tokens, position_ids=positions)
        return torch.stack(steps, 1)


class TranslationTask(LabelledTask[LabelledExample]):
    """Translate a text, or reproduce it."""

    name: ClassVar[str] = "translation"
    head = Head("decoder", "translation")
    schema = Schema(
        Role("source", ("source", "src", "text")),
        Role("target", ("target", "tgt", "translation"), of_label=True, is_text=True),
    )
    has_majority_baseline = False
    best_metric = "bleu"
    metrics: ClassVar[tuple[str, ...]] = ("loss", "bleu")

    def network(self, config: EncoderConfig) -> TranslationNetwork:
        """Return a freshly initialised network.

        Raises:
            SettingsError: the encoder has fewer positions than `max_seq_length`; or it is of a kind
                that the decoder does not support: two-way, with rotary positions, with bottlenecks,
                or with embeddings narrower than its hidden size.
        """
        config.check_length(self.settings.max_seq_length)
        has_hidden_width = config.per_direction_config.embedding_width == config.hidden_size
        if not has_hidden_width or config.positions == "rotary" or config.bottleneck is not None:
            raise SettingsError(
                "a decoder takes the encoder's embeddings, with its positions and its width",
                fix="Use a model without positions=rotary, attention=two-way, embedding_size and "
                "bottleneck.",
            )
        return TranslationNetwork(
            config,
            limit=self.settings.max_seq_length,
            boundary_ids=(self.tokenizer.cls_id, self.tokenizer.sep_id),
            dropout=self.settings.dropout,
        )

    def text_row(self, text: str, pair: str | None = None) -> Row:
        return {self.column("source"): text, self.column("target"): pair}

    def build_examples(
        self, rows: Sequence[Row], first_index: int, where: Sequence[str], *, labelled: bool
    ) -> list[LabelledExample]:
        sides_of_rows = []
        for role in ("source", "target")[: 1 + labelled]:
            column = self.column(role)
            texts = texts_of(rows, column, where)
            if role == "target" and not all(map(str.strip, texts)):
                location = next(w for w, text in zip(where, texts, strict=True) if not text.strip())
                what = f"the target (column {column!r}) is empty"
                raise UnlabelledError(what, column=column, where=location)
            encodings = self.tokenizer.encode_batch(
                texts,
                max_length=self.settings.max_seq_length,
                truncation="longest_first",
                where=where,
            )
            sides_of_rows.append(list(zip(texts, encodings, strict=True)))
        return [
            LabelledExample(
                index=first_index + at,
                sequences=[Tokens.from_encoding(sides[0][1])],
                target=sides[1][1].input_ids if labelled else None,
                truncated_tokens=sum(encoding.truncated_tokens for _, encoding in sides),
                texts=[text for text, _ in sides],
                where=where[at],
            )
            for at, sides in enumerate(zip(*sides_of_rows, strict=True))
        ]

    def collate(self, examples: Sequence[LabelledExample]) -> Batch:
        """Pack the sources in order of length.

        If targets are known, `targets["target_ids"]` is `[tokens]`, the ids of all targets end to
        end, `targets["target_lengths"]` is `[rows]`, and `counts["translation"]` is the number of
        tokens to predict. The batch's examples are in the order of the packed rows.
        """
        indices = sort_sequences(examples)
        order = [examples[at] for at, _ in indices]
        packed = pack(examples, indices)
        if any(one.target is None for one in order):
            return Batch(packed, examples=order)
        lengths = np.array([len(one.target) for one in order])
        ids = np.concatenate([one.target for one in order]).astype(np.int64)
        targets = {"target_ids": ids, "target_lengths": lengths}
        return Batch(packed, targets, {"translation": int((lengths - 1).sum())}, order)

    def decode(self, outputs: Outputs, batch: Batch) -> dict[int, Prediction]:
        """Return for each row its `translation`."""
        rows = zip(batch.examples, outputs["tokens"].tolist(), strict=True)
        return {one.index: {"translation": self.tokenizer.decode(ids)} for one, ids in rows}

    def display_values(self, prediction: Prediction) -> list[DisplayValue]:
        return [(prediction["translation"], None)]

    def evaluator(self) -> Evaluator:
        return TranslationEvaluator(self)


class TranslationEvaluator(Evaluator):
    """`loss`, the mean per target token, and `bleu`, from 0 to 100, over all rows together.

    BLEU is computed by sacrebleu with its default tokenisation, ignoring case if the model's
    vocabulary is lower-cased. Source: Papineni et al. (2002); Post (2018), "A call for clarity in
    reporting BLEU scores".

    Raises:
        BertworksError: sacrebleu is not installed.
    """

    state_fields = ("_rows", "_loss", "_count")

    def __init__(self, task: TranslationTask) -> None:
        self._sacrebleu: Any = import_optional("sacrebleu", "translation", "Measuring translations")
        self._task = task
        self._rows: list[tuple[int, str, str]] = []
        self._loss = 0.0
        self._count = 0

    def add(self, outputs: Outputs, batch: Batch) -> None:
        answers = self._task.decode(outputs, batch)
        self._rows += [
            (one.index, answers[one.index]["translation"], one.texts[1]) for one in batch.examples
        ]
        self._loss += float(outputs["loss"])
        self._count += batch.counts["translation"]

    def result(self) -> dict[str, float]:
        _, predicted, gold = zip(*sorted(self._rows), strict=True)
        lower = self._task.tokenizer.lowercase
        bleu = self._sacrebleu.corpus_bleu(list(predicted), [list(gold)], lowercase=lower)
        return {"loss": self._loss / max(1, self._count), "bleu": float(bleu.score)}
