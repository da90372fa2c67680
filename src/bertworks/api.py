"""The handle that people hold: a tokenizer, a task and its network, loaded, used, saved as one."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from .checkpoints.families import family_of
from .checkpoints.locate import locate
from .checkpoints.sentence import SentenceSettings, is_cross_encoder, read_sentence_settings
from .checkpoints.store import (
    LoadReport,
    check_geometry,
    load_weights,
    read_config,
    read_task,
    read_tensors,
    save_model,
)
from .errors import BertworksError, CheckpointError, DataError, SettingsError
from .inference import engine
from .inference.engine import EngineSettings
from .inference.evaluate import Evaluation, evaluate
from .inference.features import Embedder, EmbedSettings, embed
from .inference.generate import GenerationSettings, generate
from .inference.token_features import TokenFeatures, TokenSettings
from .inference.vectors import WrittenVectors, fingerprint, write_vectors
from .model.config import Activation, EncoderConfig
from .model.cpu import keep_freed_memory
from .model.device import pick_device, without_weights
from .model.encoder import Encoder
from .model.precision import dtype_of
from .tasks import task_class
from .tasks.plain import Texts, read_texts
from .tasks.pretraining.task import PretrainingNetwork, PretrainingTask
from .tasks.published import Published
from .tasks.rows import Table, read_rows, unframed
from .tasks.task import Network, Prediction, Row, Task
from .tasks.texts import TextTask
from .text.tokenizer import Tokenizer


class BareEncoder(nn.Module):
    """An encoder without a task: something to fine-tune, or to take vectors from."""

    def __init__(self, config: EncoderConfig, *, pooler: bool) -> None:
        super().__init__()
        self.encoder = Encoder(config, pooler=pooler)


class Model:
    """A tokenizer, a task and its network.

    Args:
        tokenizer: the model's.
        task: what the network was trained for; None for a bare encoder.
        network: the task's, or a `BareEncoder`.
        report: what became of each tensor when it was loaded.
        sentence: how `embed` makes vectors unless it is told otherwise; as the task says, if left
            out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        task: Task[Any] | None,
        network: Network | BareEncoder,
        report: LoadReport | None = None,
        sentence: SentenceSettings | None = None,
    ) -> None:
        self.tokenizer, self.task, self.network, self.report = tokenizer, task, network, report
        self.sentence = sentence or (None if task is None else task.sentence)

    @classmethod
    def fresh(cls, config: EncoderConfig, tokenizer: Tokenizer, *, seed: int = 0) -> Self:
        """A bare encoder with random weights, to fine-tune as a baseline."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return cls(tokenizer, None, BareEncoder(config, pooler=config.has_pooler).eval())

    @property
    def encoder(self) -> Encoder:
        """The bare module: `Packed` in, `[tokens, hidden_size]` out."""
        return self.network.encoder

    def predict(
        self, rows: Table | Iterable[str | tuple[str, str]], **settings: Any
    ) -> list[Prediction]:
        """What the task says of each row, in the order of the rows.

        Args:
            rows: texts, pairs of texts, rows, or the path of a table.
            settings: `header`, whether a file's first line names its columns (found out, if left
                out), and those of `EngineSettings`, such as `precision="bf16"`.

        Raises:
            DataError: a row is not one of the task.
            BertworksError: the model has no task.
        """
        return [answer for _, answer in self.stream(rows, **settings)]

    def stream(
        self,
        rows: Table | Iterable[str | tuple[str, str]],
        *,
        header: bool | None = None,
        **settings: Any,
    ) -> Iterator[tuple[Row, Prediction]]:
        """Each row, as `predict` takes them, with what is predicted for it, as they are read.

        Raises:
            DataError: a row is not one of the task.
            BertworksError: the model has no task, or was only pre-trained.
        """
        task, network = self._task_and_network()
        if isinstance(task, PretrainingTask):
            verbs = (
                "generate" if task.causal else "fill-mask",
                *(("next-sentence",) if task.instances.next_sentence else ()),
            )
            raise BertworksError(
                "the model was only pre-trained, and has no labels or values to predict",
                fix=f"Use {', '.join(verbs)} or embed; or train it with finetune.",
            )
        table = read_rows(self._table(rows), columns=task.column_names, header=header)
        task = task.for_table(table, labelled=False)
        return engine.predict(network, task, table, EngineSettings.parse(settings))

    def evaluate(self, table: Table, *, header: bool | None = None, **settings: Any) -> Evaluation:
        """The task's metrics on rows whose answers are known; see `predict`.

        Raises:
            DataError: a row is not one of the task, or has no answer.
            BertworksError: the model has no task, or its metrics need another package.
        """
        task, network = self._task_and_network()
        rows = read_rows(table, columns=task.column_names, header=header)
        task = task.for_table(rows, labelled=True)
        cuts = engine.Cuts()
        examples = cuts.add(engine.labelled_examples(task, rows))
        found = evaluate(network, task, examples, EngineSettings.parse(settings))
        return replace(found, remarks=[*found.remarks, *cuts.remarks()])

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        engine: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> NDArray[np.float32]:
        """A vector of each text, in the order of the texts.

        Args:
            texts: one, or any number, of any mix of lengths.
            engine: those of `EngineSettings`, such as `{"precision": "bf16"}`.
            settings: those of `EmbedSettings`: `pooling` ("mean", "cls", "max", "mean-sqrt",
                "weighted-mean", "sep", "pooler", "mean+max"), `layers` (`[-1]`: the last),
                `combine` ("concat", "sum", "mean"), `normalize`, `max_seq_length`. What is left out
                is as the model's own files say (sentence-transformers'), or else the default.

        Returns:
            float32 `[texts, width]`; the width is `hidden_size`, or more where several are laid
            side by side.

        Raises:
            DataError: a text cannot be tokenised.
            SettingsError: a setting is unknown or impossible.
        """
        embedder = self._embedder(engine, settings)
        parts = list(embed(embedder, [texts] if isinstance(texts, str) else texts))
        return np.concatenate(parts) if parts else np.empty((0, embedder.width), np.float32)

    def embed_to(
        self,
        out: str | Path,
        data: Table | Texts | Iterable[str],
        *,
        column: str | None = None,
        header: bool | None = None,
        engine: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
        **settings: Any,
    ) -> WrittenVectors:
        """Write a vector of each text to a file, in bounded memory; again, it goes on.

        Args:
            out: the file, its name ending in `.npy` or `.parquet`.
            data: texts, rows, a `.txt` file (each line a text), or a table.
            column: the texts' column in a table; found out if left out.
            header: whether a TSV or CSV file's first line names its columns; found out if None.
            engine: those of `EngineSettings`.
            progress: told how many rows are done, and how many there are (0 if that is not known).
            settings: those of `EmbedSettings`, as `embed` takes them.

        Raises:
            DataError: a text is none (where a file holds the texts, this is seen before the first
                vector is made), or the file is of other texts, settings or another model.
            SettingsError: a setting is unknown or impossible.
        """
        texts = read_texts(data, column=column, header=header)
        return self._write(out, texts, self._embedder(engine, settings), progress)

    def features_to(
        self,
        out: str | Path,
        data: Table | Texts | Iterable[str],
        *,
        column: str | None = None,
        header: bool | None = None,
        engine: Mapping[str, Any] | None = None,
        progress: Callable[[int, int], None] | None = None,
        **settings: Any,
    ) -> WrittenVectors:
        """Write a vector of each token, or of each word, of texts; see `embed_to`.

        Args:
            out: the file, its name ending in `.parquet`.
            data, column, header, engine, progress: as `embed_to` takes them.
            settings: those of `TokenSettings`: `of` ("tokens", "words"), `pieces` ("first",
                "mean"), `layers`, `combine`, `max_seq_length`.

        Raises:
            DataError: as `embed_to` does.
            SettingsError: a setting is unknown or impossible.
        """
        made = TokenFeatures(
            self.network,
            self.encoder,
            self.tokenizer,
            TokenSettings.parse(settings),
            # A window's vectors are held at once.
            EngineSettings.parse({"window_rows": 256, **(engine or {})}),
        )
        return self._write(out, read_texts(data, column=column, header=header), made, progress)

    def _write(
        self,
        out: str | Path,
        texts: Texts,
        made: Embedder | TokenFeatures,
        progress: Callable[[int, int], None] | None,
    ) -> WrittenVectors:
        total = sum(1 for _ in texts) if texts.again else 0
        dtype = dtype_of(made.engine.precision, next(self.network.parameters()).device)
        made_with = {
            "model": fingerprint(self.encoder, self.tokenizer),
            **made.settings.model_dump(mode="json"),
            **made.engine.model_dump(mode="json"),
            "precision": "fp32" if dtype is None else "bf16",
        }
        tell = None if progress is None else lambda rows: progress(rows, total)
        return write_vectors(out, texts, made, made_with=made_with, progress=tell)

    def _embedder(self, engine: Mapping[str, Any] | None, settings: Mapping[str, Any]) -> Embedder:
        known = {} if self.sentence is None else self.sentence.model_dump()
        return Embedder(
            self.network,
            self.encoder,
            self.tokenizer,
            EmbedSettings.parse({**known, **settings}),
            EngineSettings.parse(engine or {}),
        )

    def fill_mask(self, text: str, *, top_k: int = 5) -> list[list[dict[str, Any]]]:
        """The likeliest pieces for each `[MASK]` in a text.

        Returns:
            A list for each `[MASK]`: `top_k` entries with `token`, `id` and `probability`.

        Raises:
            DataError: there is no `[MASK]` in the text, or it is too long.
            BertworksError: the model was not pre-trained with masks.
        """
        masks = self._pretrained(text, top_k=top_k)["masks"]
        if not masks:
            mask = self.tokenizer.id_to_token(self.tokenizer.mask_id)
            raise BertworksError(
                f"there is no {mask} in the text", fix=f"Put {mask} where a word is."
            )
        found: list[list[dict[str, Any]]] = masks
        return found

    def generate(
        self, prompts: str | Iterable[str], *, precision: str = "fp32", **settings: Any
    ) -> list[str]:
        """What the model goes on each text with.

        Args:
            prompts: one text or several, one token long at least.
            precision: "fp32", "bf16" or "auto".
            settings: those of `GenerationSettings`: `max_new_tokens`, `temperature` (0: always the
                likeliest token), `top_k`, `top_p`, `stop_ids`, `seed`.

        Returns:
            The new text alone, for each prompt.

        Raises:
            DataError: a prompt is empty or too long.
            SettingsError: the model is not causal, or a setting is unknown or impossible.
        """
        task, network = self._task_and_network()
        if not isinstance(network, PretrainingNetwork):
            raise BertworksError(f"the model was trained for {task.name}, and does not go on texts")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [row.tolist() for row in self.tokenizer.piece_ids(texts)]
        made = generate(
            network,
            ids,
            GenerationSettings.parse(settings),
            EngineSettings.parse({"precision": precision}),
        )
        return [self.tokenizer.decode(row) for row in made]

    def next_sentence(self, first: str, second: str) -> float:
        """The probability that the second text follows the first.

        Raises:
            BertworksError: the model was not pre-trained to tell.
        """
        answer = self._pretrained(first, second)
        if "next_sentence_probability" not in answer:
            raise BertworksError("the model has no next-sentence head")
        probability: float = answer["next_sentence_probability"]
        return probability

    def save(self, directory: str | Path) -> Path:
        """Write the model in the Hugging Face layout; `load` reads it again.

        A model that is there is replaced.

        Raises:
            CheckpointError: the directory holds something else than a saved model, or cannot be
                written.
        """
        task = self.task
        return save_model(
            directory,
            network=self.network,
            config=self.encoder.config,
            task=None if task is None else task.name,
            task_settings={} if task is None else task.to_dict(),
            model_class="encoder" if task is None else task.model_class,
            config_entries={} if task is None else task.config_entries(),
            head_dropout=None if task is None else task.head_dropout,
            tokenizer=self.tokenizer,
            sentence=self.sentence,
        )

    def to(self, device: torch.device | str) -> Self:
        """Move the network."""
        self.network.to(device)
        return self

    def _task_and_network(self) -> tuple[Task[Any], Network]:
        if self.task is None or not isinstance(self.network, Network):
            raise BertworksError(
                "the model is a bare encoder, which was trained for no task",
                fix="Fine-tune it first: bertworks finetune.",
            )
        return self.task, self.network

    def _table(self, rows: Table | Iterable[str | tuple[str, str]]) -> Table:
        """Texts and pairs as rows of the task."""
        if isinstance(rows, str | os.PathLike):
            return rows
        task, _ = self._task_and_network()

        sizes: set[int] = set()

        def as_row(item: Any) -> Row:
            if isinstance(item, Mapping):
                return item
            texts = (item,) if isinstance(item, str) else item
            if not isinstance(texts, list | tuple) or len(texts) not in (1, 2):
                raise DataError(f"{item!r} is no text, no pair of texts and no row of columns")
            sizes.add(len(texts))
            if len(sizes) > 1 and isinstance(task, TextTask):
                raise DataError("single texts and pairs cannot be mixed", where=repr(item))
            return task.text_row(*texts)

        return map(as_row, unframed(rows))

    def _pretrained(self, text: str, pair: str | None = None, *, top_k: int = 1) -> Prediction:
        task, network = self._task_and_network()
        if not isinstance(task, PretrainingTask):
            raise BertworksError(
                f"the model was trained for {task.name}, not for masked words or next sentences"
            )
        asked = copy.copy(task)
        asked.top_k = top_k
        rows = read_rows([task.text_row(text, pair)])
        ((_, answer),) = engine.predict(network, asked, rows)
        return answer


def load(
    name: str | Path,
    *,
    device: torch.device | str = "auto",
    hidden_act: Activation | None = None,
    allow_non_finite: bool = False,
) -> Model:
    """Load a model.

    Args:
        name: a model's directory (the original TensorFlow release's as well), a run's directory,
            or a name on the Hugging Face hub.
        device: where to put the network.
        hidden_act: the activation, whatever the files say: the original release's "gelu" was the
            erf form until February 2019 (`gelu`, what it is read as), the tanh form since
            (`gelu_new`).
        allow_non_finite: load weights that hold NaN or infinity too; `report.non_finite` names the
            tensors.

    Raises:
        CheckpointError: there is no such model, it is damaged, or of another architecture; or a
            weight is not finite.
    """
    directory = locate(name)
    config, raw = read_config(directory)
    if hidden_act is not None:
        config = config.with_values(hidden_act=hidden_act)
    tokenizer = Tokenizer.load(directory)
    if tokenizer.vocab_size > config.vocab_size:
        raise CheckpointError(
            f"the vocabulary has {tokenizer.vocab_size} pieces, but the embeddings "
            f"{config.vocab_size} rows",
            where=str(name),
        )
    family = family_of(config)
    tensors, dropped = read_tensors(directory, family)
    check_geometry(config, tensors, family, str(name))
    described = read_task(directory)
    if described is not None:
        task: Task[Any] | None = _described_task(*described, tokenizer, directory)
    else:
        pairs = is_cross_encoder(directory, raw)
        published = Published(raw, config, family, tensors, tokenizer, pairs)
        task = published.task() or published.pretraining()

    def build() -> Network | BareEncoder:
        if task is None:
            return BareEncoder(config, pooler=family.has("encoder.pooler.dense.weight", tensors))
        return task.network(config)

    try:
        with without_weights():  # nothing is drawn at random only to be replaced
            network = build()
    except SettingsError as error:  # the task and the encoder do not fit together
        raise CheckpointError(error.what, where=str(name), fix=error.fix) from None
    if any(True for _ in network.buffers()):  # constants of a task's own, which no file has
        network = build()
    report = load_weights(network, tensors, family, str(name), allow_non_finite=allow_non_finite)
    report = replace(report, dropped={**report.dropped, **dropped})
    if report.initialized:
        raise CheckpointError(
            f"the weights {', '.join(report.initialized)} are missing", where=str(name)
        )
    keep_freed_memory()
    network = network.to(pick_device(device)).eval()
    sentence = read_sentence_settings(directory, lowercase=tokenizer.lowercase)
    return Model(tokenizer, task, network, report, sentence)


def _described_task(
    name: str, settings: Mapping[str, Any], tokenizer: Tokenizer, directory: Path
) -> Task[Any]:
    """The task that a directory's `bertworks.json` describes.

    Raises:
        CheckpointError: there is no such task, or its settings are not valid.
    """
    try:
        return task_class(name).from_dict(settings, tokenizer)
    except BertworksError as error:
        where = str(directory / "bertworks.json")
        raise CheckpointError(error.what, where=where, fix=error.fix) from None
