"""The handle that people hold: a tokenizer, a task and its network, loaded, used, saved as one."""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import nn

from .checkpoints.store import (
    LoadReport,
    load_weights,
    read_config,
    read_task,
    read_tensors,
    save_model,
)
from .errors import BertworksError, CheckpointError
from .inference import engine
from .inference.engine import EngineSettings
from .inference.evaluate import Evaluation, evaluate
from .model.config import EncoderConfig
from .model.cpu import keep_freed_memory
from .model.device import pick_device
from .model.encoder import Encoder
from .tasks import task_class
from .tasks.classification import ClassificationSettings, ClassificationTask
from .tasks.columns import Columns
from .tasks.pretraining.pairs import InstanceSettings
from .tasks.pretraining.task import PretrainingTask
from .tasks.rows import Table, read_rows
from .tasks.task import Network, Prediction, Row, Task
from .text.tokenizer import Tokenizer

_HUB_FILES = ("*.json", "*.safetensors", "vocab.txt")


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
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        task: Task[Any] | None,
        network: Network | BareEncoder,
        report: LoadReport | None = None,
    ) -> None:
        self.tokenizer, self.task, self.network, self.report = tokenizer, task, network, report

    @classmethod
    def fresh(cls, config: EncoderConfig, tokenizer: Tokenizer, *, seed: int = 0) -> Self:
        """A bare encoder with random weights, to fine-tune as a baseline."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return cls(tokenizer, None, BareEncoder(config, pooler=True).eval())

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
            settings: those of `EngineSettings`, such as `precision="bf16"`.

        Raises:
            DataError: a row is not one of the task.
            BertworksError: the model has no task.
        """
        return [answer for _, answer in self.stream(rows, **settings)]

    def stream(
        self, rows: Table | Iterable[str | tuple[str, str]], **settings: Any
    ) -> Iterator[tuple[Row, Prediction]]:
        """Each row, as `predict` takes them, with what is predicted for it, as they are read.

        Raises:
            DataError: a row is not one of the task.
            BertworksError: the model has no task.
        """
        task, network = self._task_and_network()
        table = read_rows(self._table(rows))
        task = task.for_table(table, labelled=False)
        return engine.predict(network, task, table, EngineSettings.parse(settings))

    def evaluate(self, table: Table, **settings: Any) -> Evaluation:
        """The task's metrics on rows whose answers are known.

        Raises:
            DataError: a row is not one of the task, or has no answer.
            BertworksError: the model has no task, or its metrics need another package.
        """
        task, network = self._task_and_network()
        rows = read_rows(table)
        task = task.for_table(rows, labelled=True)
        examples = engine.labelled_examples(task, rows)
        return evaluate(network, task, examples, EngineSettings.parse(settings))

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

        Raises:
            CheckpointError: the directory cannot be written.
        """
        task, network = self._task_and_network()
        return save_model(
            directory,
            network=network,
            config=network.encoder.config,
            task=task.name,
            task_settings=task.to_dict(),
            config_entries=task.config_entries(),
            tokenizer=self.tokenizer,
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

        def as_row(item: Any) -> Row:
            if isinstance(item, Mapping):
                return item
            texts = (item,) if isinstance(item, str) else tuple(item)
            return task.text_row(*texts)

        return map(as_row, rows)

    def _pretrained(self, text: str, pair: str | None = None, *, top_k: int = 1) -> Prediction:
        task, network = self._task_and_network()
        if not isinstance(task, PretrainingTask):
            raise BertworksError(
                f"the model was trained for {task.name}, and has no head of pre-training"
            )
        asked = copy.copy(task)
        asked.top_k = top_k
        rows = read_rows([task.text_row(text, pair)])
        ((_, answer),) = engine.predict(network, asked, rows)
        return answer


def load(name: str | Path, *, device: torch.device | str = "auto") -> Model:
    """Load a model.

    Args:
        name: a model's directory, a run's directory, or a name on the Hugging Face hub.
        device: where to put the network.

    Raises:
        CheckpointError: there is no such model, it is damaged, or of another architecture.
    """
    directory = _locate(name)
    config, raw = read_config(directory)
    tokenizer = Tokenizer.load(directory)
    tensors = read_tensors(directory)
    task = _task_of(directory, raw, config, tokenizer, set(tensors))
    pooler = any(key.startswith("bert.pooler.") for key in tensors)
    network = BareEncoder(config, pooler=pooler) if task is None else task.network(config)
    report = load_weights(network, tensors, str(name))
    if report.initialized:
        raise CheckpointError(
            f"the weights {', '.join(report.initialized)} are missing", where=str(name)
        )
    keep_freed_memory()
    return Model(tokenizer, task, network.to(pick_device(device)).eval(), report)


def _locate(name: str | Path) -> Path:
    path = Path(name)
    if path.is_dir():
        is_run = (path / "model" / "config.json").is_file()
        return path / "model" if is_run and not (path / "config.json").exists() else path
    if path.exists():
        raise CheckpointError("is a file, not a model's directory", where=str(name))
    if not re.fullmatch(r"\w[\w.-]*(/[\w.-]+)?", str(name)):
        raise CheckpointError("no such directory", where=str(name))
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(str(name), allow_patterns=list(_HUB_FILES)))
    except RepositoryNotFoundError:
        problem = "no such directory here, and no such model on the hub"
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError):
        problem = "no such directory here, and the hub cannot be reached"
    raise CheckpointError(problem, where=str(name))


def _task_of(
    directory: Path,
    raw: Mapping[str, Any],
    config: EncoderConfig,
    tokenizer: Tokenizer,
    names: set[str],
) -> Task[Any] | None:
    """The task that a model was saved with; of another tool's model, the one its heads tell of."""
    described = read_task(directory)
    if described is not None:
        name, settings = described
        return task_class(name).from_dict(settings, tokenizer)
    if "cls.predictions.bias" in names:
        has_pairs = "cls.seq_relationship.weight" in names
        instances = InstanceSettings(format="segment-pair" if has_pairs else "full-sentences")
        return PretrainingTask(tokenizer, instances, max_length=config.max_position_embeddings)
    if "classifier.weight" in names and "id2label" in raw:
        labels = [label for _, label in sorted((int(i), s) for i, s in raw["id2label"].items())]
        return ClassificationTask(
            tokenizer,
            ClassificationSettings(
                labels=tuple(labels),
                columns=Columns(text="text", label="label"),
                max_seq_length=config.max_position_embeddings,
                dropout=raw.get("classifier_dropout"),
            ),
        )
    return None
