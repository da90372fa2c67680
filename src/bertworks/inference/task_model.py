"""What every model does that was trained for a task, whatever computes it.

What only some methods need is imported by them: a short command is mostly imports.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, overload

import numpy as np
from numpy.typing import NDArray

from ..data.reading import TableOptions
from ..data.rows import Row, check_table_options
from ..data.text_inputs import (
    Texts,
    as_texts,
    not_empty,
    read_texts,
    texts_or_data,
)
from ..errors import BertworksError, DataError, SettingsError
from ..jobs.parallel import Workers
from ..tasks import is_user_task
from ..tasks.task import Prediction, Task
from ..utils.atomic_writes import is_device
from ..utils.outputs import locked_output
from . import engine
from .embedding_model import EmbeddingModel
from .engine import AnyNetwork
from .prediction_plan import check_predicts, plan_prediction
from .settings import EngineSettings, FeatureSettings, PredictSettings
from .token_features import TokenFeatures

if TYPE_CHECKING:
    import pandas as pd

    from ..data.tables import Table
    from ..settings.keywords import (
        EngineKeywords,
        EvaluateKeywords,
        FeatureKeywords,
        PredictKeywords,
    )
    from ..tasks.evaluation import Evaluation
    from ..tasks.pretraining.task import PretrainingTask
    from .prediction_files import OutputFormat
    from .vectors import WrittenVectors

Inputs: TypeAlias = str | Iterable[Any]
"""A text; or texts, pairs of texts or rows."""


class TaskModel(EmbeddingModel):
    """A model that was trained for a task.

    In methods that take texts (`predict`, `embed`, …), a string is one text, and `data=` reads a
    file. In methods that take a table (`evaluate`), a string is a path.

    Attributes:
        task: what the network was trained for; None for a bare encoder.
        network: the task's network.
        source: the directory or name it was loaded from.
    """

    task: Task[Any] | None
    network: Any
    source: str | None

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
        **settings: Unpack[PredictKeywords],
    ) -> list[Prediction]: ...

    @overload
    def predict(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        as_frame: Literal[True],
        **settings: Unpack[PredictKeywords],
    ) -> pd.DataFrame: ...

    def predict(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        as_frame: bool = False,
        **settings: Unpack[PredictKeywords],
    ) -> list[Prediction] | pd.DataFrame:
        """The task's prediction for each row, in the order of the rows.

        Args:
            rows: a text (a list of one prediction is returned), texts, pairs of texts, or rows in
                memory, such as a pandas `DataFrame`; any number, including none.
            data: a table instead: a path, or rows in memory (see `data.tables.Table`).
            as_frame: return a pandas `DataFrame`: the columns of the rows, then those of the
                predictions, named as in the files of `predict_to`. A `DataFrame` keeps its index.
            settings: settings of `TableOptions` (`header`, `format`, `encoding`, `max_line_bytes`)
                and of `PredictSettings`, such as `precision="bf16"` and `coverage=0.9`.

        Raises:
            DataError: a row does not fit the task; or, with `as_frame`, the rows already have a
                column that would be added.
            BertworksError: the model has no task.
        """
        predictions = self.stream(rows, data=data, **settings)
        if not as_frame:
            return [prediction for _, prediction in predictions]
        from .prediction_files import to_frame

        return to_frame(predictions, rows if data is None else data)

    def predict_proba(
        self,
        rows: Inputs | None = None,
        *,
        data: Table | None = None,
        **settings: Unpack[PredictKeywords],
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
        from ..tasks.classification import TextClassifierTask

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
        **settings: Unpack[PredictKeywords],
    ) -> Iterator[tuple[Row, Prediction]]:
        """Yield each row with its prediction while rows are read; arguments as in `predict`.

        Raises:
            DataError: a row does not fit the task.
            BertworksError: the model has no task, or was only pre-trained.
        """
        options, others = TableOptions.split(settings)
        predict_settings = PredictSettings.parse(others)
        check_predicts(self, predict_settings)
        check_table_options(options, data)
        source = texts_or_data(rows, data)
        if data is None:
            source = not_empty(as_texts(source))
            if source is None:
                return iter(())
        plan = plan_prediction(self, source, predict_settings, options, is_table=data is not None)
        return engine.predict_rows(plan.predictor, plan.rows)

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
        **settings: Unpack[PredictKeywords],
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
        from .prediction_files import write_predictions, write_windows
        from .window_files import check_has_manifest, read_provenance

        options, others = TableOptions.split(settings)
        predict_settings = PredictSettings.parse(others)
        check_predicts(self, predict_settings)
        check_table_options(options, data)
        self._check_workers(workers, on)
        if predict_settings.precision == "auto":
            precision = engine.resolve_precision("auto", self.network)
            precision = read_provenance(Path(out)).get("precision", precision)
            predict_settings = predict_settings.with_values(precision=precision)
        format: OutputFormat = "jsonl" if json else "auto"
        is_stream = os.fspath(out) == "-" or is_device(Path(out))
        if is_stream and part is not None:
            raise DataError("a part is a file with a manifest next to it", fix="Name a file.")
        if not is_stream:
            # An output of another job is refused before any work.
            with locked_output(out, [data]):
                if not overwrite:
                    check_has_manifest(Path(out))
        plan = plan_prediction(self, data, predict_settings, options, is_table=True)
        processes = Workers(workers, on, engine.count_gpus(self.network))
        if is_stream:
            predictions = engine.predict_rows(plan.predictor, plan.rows, processes)
            return write_predictions(out, predictions, format=format)
        return write_windows(
            out,
            plan.predictor,
            plan.rows,
            part=part,
            inputs=[data],
            provenance={
                "model": self.fingerprint(),
                **predict_settings.model_dump(mode="json"),
                **plan.provenance,
            },
            format=format,
            overwrite=overwrite,
            workers=processes,
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
                `HeldOutEvaluationSettings`, which default to the values of the run that the model
                was loaded from.

        Raises:
            DataError: a row does not fit the task, or has no label; or a corpus does not fit the
                model.
            SettingsError: a setting is unknown or impossible, or needs a corpus.
            BertworksError: the model has no task, or its metrics need another package.
        """
        from .evaluate_data import DataEvaluator

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
        from .evaluate_data import DataEvaluator, evaluate_each

        task, network = self._task_and_network()
        self._check_workers(workers, on)
        evaluator = DataEvaluator(network, task, self.source, settings)
        gpus = engine.count_gpus(network)
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
        from .vectors import write_vectors

        options, others = TableOptions.split(settings)
        limit = self.embed_defaults().get("max_seq_length")
        feature_settings = FeatureSettings.resolve(**{"max_seq_length": limit, **others})
        extractor = self._token_features(feature_settings)
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
            candidates: words to compare; see `pretraining_heads`.
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
        from .pretraining_heads import fill_mask

        task, network = self._pretraining_task_and_network()
        engine_settings = EngineSettings.parse(settings)
        return fill_mask(network, task, text, top_k, candidates, engine_settings)

    def next_sentence(self, first: str, second: str, **settings: Unpack[EngineKeywords]) -> float:
        """The probability that the second text follows the first.

        Args:
            first, second: the texts.
            settings: settings of `EngineSettings`, such as `precision="fp32"`.

        Raises:
            SettingsError: a setting is unknown or impossible.
            BertworksError: the model was not pre-trained on pairs of texts.
        """
        from .pretraining_heads import next_sentence

        task, network = self._pretraining_task_and_network()
        return next_sentence(network, task, first, second, EngineSettings.parse(settings))

    def _pretraining_task_and_network(self) -> tuple[PretrainingTask, AnyNetwork]:
        from ..tasks.pretraining.task import PretrainingTask

        task, network = self._task_and_network()
        if not isinstance(task, PretrainingTask):
            raise BertworksError(
                f"the model was trained for {task.name}, not for masked words or next sentences"
            )
        return task, network

    def _task_and_network(self) -> tuple[Task[Any], AnyNetwork]:
        if self.task is None:
            raise BertworksError(
                "the model is read as a bare encoder, without a task",
                fix="Fine-tune it: bertworks finetune. If its files have a head, bertworks inspect "
                "says why it is not read.",
            )
        return self.task, self.network

    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that identifies the model, with its heads and modules."""

    @abstractmethod
    def _token_features(self, settings: FeatureSettings) -> TokenFeatures:
        """The object that computes vectors of tokens or words."""
