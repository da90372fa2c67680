"""`Model`: a tokenizer, a task and its network, which are loaded, used and saved together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray

from .checkpoints.network_weights import LoadReport
from .checkpoints.saving import SavedModel, SavedTask, save_model
from .checkpoints.sentence_settings import SentenceSettings
from .data.rows import Row
from .data.settings import TableOptions
from .data.tables import Table, check_table_options
from .data.text_inputs import (
    Texts,
    as_texts,
    not_empty,
    read_texts,
    texts_or_data,
    warn_of_files,
)
from .errors import BertworksError, DataError, SettingsError, suggest_method
from .inference import engine
from .inference.calibration import calibrate
from .inference.embedding_model import EmbeddingModel
from .inference.evaluate_data import DataEvaluator, evaluate_each
from .inference.features import NetworkEmbedder, TokenFeatures
from .inference.fingerprints import fingerprint
from .inference.generate import generate
from .inference.prediction_files import OutputFormat, to_frame, write_predictions, write_windows
from .inference.pretraining_heads import fill_mask, next_sentence
from .inference.settings import (
    EngineSettings,
    FeatureSettings,
    GenerateSettings,
)
from .inference.static_vectors import StaticEmbedder, make_embedder
from .inference.text_embedding import TextEmbedder
from .inference.vectors import WrittenVectors, write_vectors
from .inference.window_files import check_has_manifest, read_provenance
from .jobs.parallel import Workers
from .nn.config import EncoderConfig
from .nn.encoder import BareEncoder, Encoder
from .nn.vector_modules import VectorModules
from .settings.keywords import (
    EmbedKeywords,
    EngineKeywords,
    EvaluateKeywords,
    FeatureKeywords,
    GenerateKeywords,
    RowKeywords,
)
from .settings.literals import SavedPrecision
from .tasks import is_user_task
from .tasks.classification import TextClassifierTask
from .tasks.evaluation import Evaluation
from .tasks.inputs import iterate_task_rows, open_table
from .tasks.network import Network
from .tasks.pretraining.network import PretrainingNetwork
from .tasks.pretraining.task import PretrainingTask
from .tasks.task import Prediction, Task
from .text.tokenizer import Tokenizer
from .utils.atomic_writes import is_device
from .utils.formatting import format_names, format_number, html_facts
from .utils.outputs import locked_output

if TYPE_CHECKING:
    import pandas as pd

Inputs: TypeAlias = str | Iterable[Any]
"""A text; or texts, pairs of texts or rows."""

_SAVED_AS = {"fp32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}


class Model(EmbeddingModel):
    """A tokenizer, a task and its network.

    Args:
        tokenizer: the model's.
        task: what the network was trained for; None for a bare encoder.
        network: the task's network, or a `BareEncoder`.
        report: how each tensor was used when loading.
        sentence: how `embed` makes vectors by default; if omitted, as the task defines.
        modules: those that follow pooling in a sentence encoder; None if there are none.
        query_model: the model of queries, whose vectors are compared with this one's; None if this
            one is also for queries.
        source: the directory or name it was loaded from.
        learning_rate: the rate that suits fine-tuning it, which `finetune` uses by default; None:
            the usual one. It is saved with the model.

    In methods that take texts (`predict`, `embed`, …), a string is one text, and `data=` reads a
    file. In methods that take a table (`evaluate`), a string is a path.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        task: Task[Any] | None,
        network: Network | BareEncoder,
        report: LoadReport | None = None,
        sentence: SentenceSettings | None = None,
        source: str | None = None,
        learning_rate: float | None = None,
        *,
        modules: VectorModules | None = None,
        query_model: Model | None = None,
    ) -> None:
        self.query_model: Model | None = query_model
        self.tokenizer, self.task, self.network, self.report = tokenizer, task, network, report
        self.sentence = sentence or (None if task is None else task.sentence)
        self.source, self.learning_rate, self.modules = source, learning_rate, modules

    def __getattr__(self, name: str) -> Any:
        hint = suggest_method(name)
        raise AttributeError(f"Model has no {name!r}" + (f". {hint}" if hint else ""))

    def __repr__(self) -> str:
        config = self.encoder.config
        facts = [
            f"{config.family}: {config.num_hidden_layers} layers",
            f"hidden_size {config.hidden_size}",
            f"{config.num_attention_heads} heads",
            f"{format_number(self.num_parameters)} parameters",
        ]
        task = "bare encoder" if self.task is None else self.task.name
        labels = f" into {format_names(self.labels)}" if self.labels else ""
        source = " in memory" if self.source is None else f" {self.source}"
        return f"<Model{source}; {', '.join(facts)}; {task}{labels}>"

    def _repr_html_(self) -> str:
        config = self.encoder.config
        facts = {
            "family": config.family,
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "heads": config.num_attention_heads,
            "parameters": f"{self.num_parameters:,}",
            "pieces": f"{self.tokenizer.vocab_size:,}",
            "task": "none: a bare encoder" if self.task is None else self.task.name,
            **({"labels": ", ".join(self.labels)} if self.labels else {}),
        }
        return html_facts(f"Model {self.source or 'in memory'}", facts)

    @classmethod
    def fresh(cls, config: EncoderConfig, tokenizer: Tokenizer, *, seed: int = 0) -> Self:
        """A bare encoder with random weights, to fine-tune as a baseline."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            encoder = Encoder(config, pooler=config.has_pooler)
            return cls(tokenizer, None, BareEncoder(encoder).eval())

    @property
    def encoder(self) -> Encoder:
        """The encoder module: `Packed` in, `[tokens, hidden_size]` out."""
        return self.network.encoder

    @property
    def num_parameters(self) -> int:
        """The number of trainable parameters; shared ones count once."""
        return sum(weight.numel() for weight in self.network.parameters())

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the task's classes or tags, in order; empty if there are none."""
        return () if self.task is None else self.task.labels

    @overload
    def predict(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        as_frame: Literal[False] = False,
        **settings: Unpack[RowKeywords],
    ) -> list[Prediction]: ...

    @overload
    def predict(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        as_frame: Literal[True],
        **settings: Unpack[RowKeywords],
    ) -> pd.DataFrame: ...

    def predict(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        as_frame: bool = False,
        **settings: Unpack[RowKeywords],
    ) -> list[Prediction] | pd.DataFrame:
        """The task's prediction for each row, in the order of the rows.

        Args:
            rows: a text (a list of one prediction is returned), texts, pairs of texts, or rows in
                memory, such as a pandas `DataFrame`; any number, including none.
            data: a table instead: a path, or rows in memory (see `data.tables.Table`).
            as_frame: return a pandas `DataFrame`: the columns of the rows, then those of the
                predictions, named as in the files of `predict_to`. A `DataFrame` keeps its index.
            settings: settings of `TableOptions` (`header`, `format`, `encoding`, `max_line_bytes`)
                and of `EngineSettings`, such as `precision="bf16"`.

        Raises:
            DataError: a row does not fit the task; or, with `as_frame`, the rows already have a
                column that would be added.
            BertworksError: the model has no task.
        """
        predictions = self.stream(rows, data=data, **settings)
        if not as_frame:
            return [prediction for _, prediction in predictions]
        table = rows if data is None else data
        return to_frame(predictions, index=getattr(table, "index", None))

    def predict_proba(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        **settings: Unpack[RowKeywords],
    ) -> NDArray[np.float64]:
        """The probability of each label for each row, as in scikit-learn's classifiers.

        Args:
            rows, data, settings: as in `predict`.

        Returns:
            float64 `[rows, labels]`; the columns are in the order of `labels`.

        Raises:
            DataError: a row does not fit the task.
            BertworksError: the model is not a classifier.
        """
        task, _ = self._task_and_network()
        if not isinstance(task, TextClassifierTask):
            raise BertworksError(
                f"the model was trained for {task.name}, not for classification",
                fix="Use predict.",
            )
        probabilities = [
            [answer["probabilities"][label] for label in self.labels]
            for answer in self.predict(rows, data=data, **settings)
        ]
        return np.array(probabilities, np.float64).reshape(-1, len(self.labels))

    def stream(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        **settings: Unpack[RowKeywords],
    ) -> Iterator[tuple[Row, Prediction]]:
        """Yield each row with its prediction while rows are read; arguments as in `predict`.

        Raises:
            DataError: a row does not fit the task.
            BertworksError: the model has no task, or was only pre-trained.
        """
        self._check_predicts()
        options, others = TableOptions.split(settings)
        engine_settings = EngineSettings.parse(others)
        check_table_options(options, data)
        source = texts_or_data(rows, data)
        task, network = self._task_and_network()
        if data is None:
            inputs = not_empty(as_texts(source))
            if inputs is None:
                return iter(())
            source = iterate_task_rows(task, warn_of_files(inputs))
        task, table = open_table(task, source, labelled=False, **options)
        return engine.predict(network, task, table, engine_settings)

    def predict_to(
        self,
        out: str | Path,
        data: Table,
        *,
        json: bool = False,
        part: str | None = None,
        workers: int | None = 1,
        on: str | None = None,
        overwrite: bool = False,
        **settings: Unpack[RowKeywords],
    ) -> int:
        """Write the rows of a table with their predictions to a file; an interrupted one resumes.

        Args:
            out: the file, its name ending in `.tsv`, `.csv` or `.jsonl`.
            data: a path, or rows in memory (see `data.tables.Table`).
            json: write JSON Lines, whatever the file name.
            part: `I/N`: write only the I-th of N parts of the rows; `merge` joins them.
            workers, on: number of processes, each with the model, and place; see `Workers`.
            overwrite: replace an existing file.
            settings: as in `predict`.

        Returns:
            The number of rows written.

        Raises:
            DataError, BertworksError: as in `stream`.
            SettingsError: `part` is not valid; or the task comes from your own file, which workers
                cannot load.
            OutputError: the file already exists, cannot be written, is the table, or is being
                written by another process.
        """
        self._check_predicts()
        options, others = TableOptions.split(settings)
        engine_settings = EngineSettings.parse(others)
        check_table_options(options, data)
        self._check_workers(workers, on)
        if engine_settings.precision == "auto":
            precision = engine.resolve_precision("auto", self.network)
            precision = read_provenance(Path(out)).get("precision", precision)
            engine_settings = engine_settings.with_values(precision=precision)
        format: OutputFormat = "jsonl" if json else "auto"
        is_stream = os.fspath(out) == "-" or is_device(Path(out))
        if is_stream and part is not None:
            raise DataError("a part is a file with a manifest next to it", fix="Name a file.")
        if not is_stream:
            # An output of another job is refused before any work.
            with locked_output(out, [data]):
                if not overwrite:
                    check_has_manifest(Path(out))
        task, network = self._task_and_network()
        task, table = open_table(task, data, labelled=False, **options)
        processes = Workers(workers, on, int(next(network.parameters()).is_cuda))
        if is_stream:
            predictions = engine.predict(network, task, table, engine_settings, workers=processes)
            return write_predictions(out, predictions, format=format)
        return write_windows(
            out,
            engine.WindowPredictor(network, task, engine_settings),
            table,
            part=part,
            inputs=[data],
            provenance={
                "model": fingerprint(self.encoder, self.tokenizer, network),
                "task": task.name,
                **task.to_dict(),
                **engine_settings.model_dump(mode="json"),
            },
            format=format,
            overwrite=overwrite,
            workers=processes,
        )

    def _check_predicts(self) -> None:
        task, _ = self._task_and_network()
        if isinstance(task, PretrainingTask):
            verbs = (
                *(("generate" if task.causal else "fill-mask",) if task.has_masked_lm else ()),
                *(("next-sentence",) if task.instances.next_sentence else ()),
            )
            raise BertworksError(
                "the model was only pre-trained, and has no labels or values to predict",
                fix=f"Use {', '.join(verbs)} or embed; or train it with finetune.",
            )

    def _check_workers(self, workers: int | None, on: str | None) -> None:
        """Check that other processes can load the task."""
        if (workers != 1 or on is not None) and is_user_task(self.task):
            raise SettingsError(
                f"workers cannot load the file of the task {type(self.task).__name__}",
                fix="Use one process (give it threads), or several with --part I/N.",
            )

    def evaluate(self, table: Table, **settings: Unpack[EvaluateKeywords]) -> Evaluation:
        """The task's metrics on rows whose labels are known.

        Args:
            table: a path, or rows in memory: mappings, a pandas `DataFrame`, `(text, label)` pairs
                or a tuple `(texts, labels)` (see `data.tables.Table`). For a pre-trained
                model, a directory written by `prepare`, whose held-out documents are used.
            settings: settings of `LabelledTableOptions` and `EngineSettings`; for a corpus also of
                `MeasuredSettings`, which default to the values of the run that the model was
                loaded from.

        Raises:
            DataError: a row does not fit the task, or has no label; or a corpus does not fit the
                model.
            SettingsError: a setting is unknown or impossible, or needs a corpus.
            BertworksError: the model has no task, or its metrics need another package.
        """
        task, network = self._task_and_network()
        return DataEvaluator(network, task, self.source, settings)(table)

    def evaluate_each(
        self,
        tables: Iterable[Table],
        *,
        workers: int | None = 1,
        on: str | None = None,
        **settings: Unpack[EvaluateKeywords],
    ) -> list[Evaluation]:
        """Run `evaluate` on each of several tables.

        Args:
            tables: as in `evaluate`; each is read by the process that evaluates it.
            workers, on: number of processes, each with the model, and place; see `Workers`.
            settings: as in `evaluate`.

        Raises:
            DataError, SettingsError, BertworksError: as in `evaluate`; or the task comes from your
                own file, which workers cannot load.
        """
        task, network = self._task_and_network()
        self._check_workers(workers, on)
        evaluator = DataEvaluator(network, task, self.source, settings)
        gpus = int(next(network.parameters()).is_cuda)
        return evaluate_each(evaluator, tables, Workers(workers, on, gpus))

    def features_to(
        self,
        out: str | Path,
        data: Table | Texts | Iterable[str],
        *,
        column: str | None = None,
        part: str | None = None,
        workers: int | None = 1,
        on: str | None = None,
        overwrite: bool = False,
        progress: Callable[[int, int], None] | None = None,
        **settings: Unpack[FeatureKeywords],
    ) -> WrittenVectors:
        """Write one vector per token or word of the texts; see `embed_to`.

        Args:
            out: the file, its name ending in `.parquet`.
            data, column, part, workers, on, overwrite, progress: as in `embed_to`.
            settings: settings of `TokenSettings`: `unit` ("tokens", "words"), `pieces` ("first",
                "mean"), `layers`, `combine`, `max_seq_length`; and of `EngineSettings` and
                `TableOptions`.

        Raises:
            DataError: as in `embed_to`.
            SettingsError: a setting is unknown or impossible.
        """
        options, others = TableOptions.split(settings)
        feature_settings = FeatureSettings.resolve(**others)
        extractor = TokenFeatures(self.network, self.tokenizer, feature_settings, feature_settings)
        texts = read_texts(data, column=column, **options)
        return write_vectors(
            out,
            texts,
            extractor,
            inputs=[data],
            part=part,
            workers=workers,
            on=on,
            overwrite=overwrite,
            progress=progress,
        )

    def embedder(self, **settings: Unpack[EmbedKeywords]) -> NetworkEmbedder:
        """The object that computes the vectors of `embed`, with the same settings.

        Raises:
            SettingsError: a setting is unknown or impossible.
        """
        if settings.get("is_query") and self.query_model is not None:
            return self.query_model.embedder(**settings)
        embedding_settings = self._embedding_settings(settings)
        return make_embedder(
            self.network,
            self.tokenizer,
            embedding_settings,
            embedding_settings,
            self.modules,
            None if self.sentence is None else self.sentence.late_interaction,
        )

    def _embed_list(
        self,
        embedder: TextEmbedder,
        texts: list[str],
        progress: Callable[[int, int], None] | None,
    ) -> NDArray[np.float32]:
        if isinstance(embedder, StaticEmbedder):
            return embedder.embed_all(texts, progress)
        return super()._embed_list(embedder, texts, progress)

    def fill_mask(
        self,
        text: str,
        *,
        top_k: int = 5,
        candidates: Sequence[str] | None = None,
        **settings: Unpack[EngineKeywords],
    ) -> list[list[dict[str, Any]]]:
        """The most likely pieces for each `[MASK]` in a text, or the probabilities of given words.

        Args:
            text: a text with `[MASK]` in place of each word to predict.
            top_k: number of pieces per mask; ignored with `candidates`.
            candidates: words to compare; see `tasks.pretraining.candidates`.
            settings: settings of `EngineSettings`, such as `precision="fp32"`.

        Returns:
            A list for each `[MASK]`, the most likely first: `top_k` entries with `token`, `id` and
            `probability`; or an entry for each candidate with `candidate` and `probability`.

        Raises:
            DataError: the text is too long, or the vocabulary has no pieces for a candidate.
            SettingsError: `top_k` is less than 1, or a setting is unknown or impossible.
            BertworksError: the model was not pre-trained with masks, or there is no `[MASK]` in the
                text.
        """
        task, network = self._pretraining_task_and_network()
        engine_settings = EngineSettings.parse(settings)
        return fill_mask(network, task, text, top_k, candidates, engine_settings)

    def generate(
        self, prompts: str | Iterable[str], **settings: Unpack[GenerateKeywords]
    ) -> list[str]:
        """Continue each text.

        Args:
            prompts: one text or several, each at least one token long.
            settings: settings of `GenerationSettings`: `max_new_tokens`, `temperature` (0: always
                the most likely token), `top_k`, `top_p`, `stop_ids`, `seed`; and of
                `EngineSettings`.

        Returns:
            Only the new text, for each prompt.

        Raises:
            DataError: a prompt is empty or too long.
            SettingsError: the model is not causal, or a setting is unknown or impossible.
        """
        task, network = self._task_and_network()
        if not isinstance(network, PretrainingNetwork):
            raise BertworksError(f"the model was trained for {task.name}, not to continue texts")
        texts = [prompts] if isinstance(prompts, str) else list(prompts)
        ids = [row.tolist() for row in self.tokenizer.piece_ids(texts)]
        generation = GenerateSettings.parse(settings)
        new_ids = generate(network, ids, generation, generation, self.tokenizer.vocab_size)
        return [self.tokenizer.decode(row) for row in new_ids]

    def next_sentence(self, first: str, second: str, **settings: Unpack[EngineKeywords]) -> float:
        """The probability that the second text follows the first.

        Args:
            first, second: the texts.
            settings: settings of `EngineSettings`, such as `precision="fp32"`.

        Raises:
            SettingsError: a setting is unknown or impossible.
            BertworksError: the model was not pre-trained on pairs of texts.
        """
        task, network = self._pretraining_task_and_network()
        return next_sentence(network, task, first, second, EngineSettings.parse(settings))

    def save(
        self,
        directory: str | Path,
        *,
        precision: SavedPrecision = "fp32",
        overwrite: bool = False,
        keep_others: bool = False,
    ) -> Path:
        """Write the model in the Hugging Face layout; `load` reads it again.

        Args:
            directory: new or empty; with `overwrite` also one that holds a saved model, such as the
                one that this model was loaded from.
            precision: precision of the saved weights; bf16 rounds them and halves the file; int8
                stores the layers' matrices as 8-bit numbers with a scale per row, which no other
                software reads, and the rest in bf16.
            overwrite: replace an existing model, once the new one is complete.
            keep_others: with `overwrite`: keep files that are not part of a saved model; otherwise,
                they are an error.

        Raises:
            CheckpointError: the model cannot be saved in its family's layout.
            OutputError: the directory already exists or, with `overwrite`, holds something other
                than a saved model; it cannot be written, or is being written by another process.
        """
        query_model = self.query_model
        return save_model(
            directory,
            self._to_saved(),
            None if query_model is None else query_model._to_saved(),
            dtype=_SAVED_AS[precision],
            overwrite=overwrite,
            keep_others=keep_others,
        )

    def _to_saved(self) -> SavedModel:
        """Return what is saved of the model, without its model of queries."""
        task = self.task
        saved_task = None
        if task is not None:
            saved_task = SavedTask(
                task.name,
                task.to_dict(),
                task.model_class,
                task.config_entries(),
                task.head_dropout,
            )
        return SavedModel(
            self.network,
            self.tokenizer,
            saved_task,
            self.sentence,
            self.modules,
            self.learning_rate,
        )

    def calibrate(
        self,
        texts: str | Iterable[str] | None = None,
        *,
        data: Table | Texts | None = None,
        column: str | None = None,
    ) -> None:
        """Fix the scales of 8-bit numbers with sample texts, for `precision="int8"`.

        Without calibration, scales are computed for each token. Fixed scales are faster on
        processors that multiply 8-bit numbers (VNNI), with about the same error: measure it. For
        parts of the model in which their error would be much larger, scales are still computed for
        each token. Fixed scales are saved by `save(precision="int8")` and are valid until weights
        change. A few hundred texts similar to the later inputs are enough. Other precisions are not
        affected.

        Args:
            texts, data, column: as in `embed`.

        Raises:
            DataError: there is no text, or one cannot be tokenised.
        """

        def run(network: Any) -> None:
            model = Model(self.tokenizer, self.task, network, sentence=self.sentence)
            model.embed(texts, data=data, column=column, precision="fp32")

        calibrate(self.network, run)

    def to(self, device: torch.device | str) -> Self:
        """Move the network to a device."""
        self.network.to(device)
        if self.modules is not None:
            self.modules.to(device)
        if self.query_model is not None:
            self.query_model.to(device)
        return self

    def _task_and_network(self) -> tuple[Task[Any], Network]:
        if self.task is None or not isinstance(self.network, Network):
            raise BertworksError(
                "the model is a bare encoder, which was trained for no task",
                fix="Fine-tune it first: bertworks finetune.",
            )
        return self.task, self.network

    def _pretraining_task_and_network(self) -> tuple[PretrainingTask, Network]:
        task, network = self._task_and_network()
        if not isinstance(task, PretrainingTask):
            raise BertworksError(
                f"the model was trained for {task.name}, not for masked words or next sentences"
            )
        return task, network
