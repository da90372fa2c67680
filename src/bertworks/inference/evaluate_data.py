"""Evaluate a network on data that a user names: a table, or held-out documents of a corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..data.manifest import is_corpus
from ..data.rows import check_table_options
from ..data.tables import Table
from ..data.unlabelled import LabelledTableOptions, counted_unlabelled, without_unlabelled
from ..errors import DataError, SettingsError, needs_pytorch_error
from ..jobs.parallel import Workers
from ..tasks.evaluation import Evaluation
from ..tasks.gold import GoldRows
from ..tasks.inputs import open_table
from ..tasks.labelled import LabelledTask
from ..tasks.task import Task
from . import engine
from .evaluate import evaluate
from .native_network import NativeNetwork
from .settings import EngineSettings, HeldOutEvaluationSettings

if TYPE_CHECKING:
    from ..settings.keywords import EvaluateKeywords


@dataclass(frozen=True)
class DataEvaluator:
    """Evaluates a network on tables or corpora, also in a worker; see `Model.evaluate`.

    Attributes:
        source: where the model was loaded from.
    """

    network: engine.AnyNetwork
    task: Task[Any]
    source: str | None
    settings: EvaluateKeywords

    def __call__(self, data: Table) -> Evaluation:
        options, others = LabelledTableOptions.split(self.settings)
        names = [name for name in HeldOutEvaluationSettings.model_fields if name in others]
        corpus_settings = {name: others.pop(name) for name in names}
        if is_corpus(data):
            if options:
                key, value = next(iter(options.items()))
                raise SettingsError(f"{key}={value} is for a table", fix="Leave it out.")
            if isinstance(self.network, NativeNetwork):
                raise needs_pytorch_error("evaluation on a corpus", where=str(data))
            from .evaluate_held_out import evaluate_held_out, held_out_of_run

            values = {**held_out_of_run(self.source), **corpus_settings}
            held_out = HeldOutEvaluationSettings.parse(values)
            engine_settings = EngineSettings.parse(others)
            return evaluate_held_out(self.network, self.task, str(data), held_out, engine_settings)
        if corpus_settings:
            key, value = next(iter(corpus_settings.items()))
            raise SettingsError(f"{key}={value} is for a prepared corpus", fix="Leave it out.")
        engine_settings = EngineSettings.parse(others)
        return _evaluate_table(self.network, self.task, data, options, engine_settings)


def evaluate_each(
    evaluator: DataEvaluator, tables: Iterable[Table], workers: Workers
) -> list[Evaluation]:
    """Evaluate a network on each of several tables; in these processes."""
    network, settings = evaluator.network, evaluator.settings
    tables = list(tables)
    check_table_options(settings, *tables)
    # Workers may run on another device, and the results must not differ.
    precision = engine.resolve_precision(settings.get("precision", "auto"), network)
    evaluator = replace(evaluator, settings={**settings, "precision": precision})
    return list(workers.map(evaluator, tables))


def _evaluate_table(
    network: engine.AnyNetwork,
    task: Task[Any],
    table: Table,
    options: Mapping[str, Any],
    settings: EngineSettings,
) -> Evaluation:
    table_options = dict(options)
    drops = LabelledTableOptions.parse(options).drop_unlabelled
    table_options.pop("drop_unlabelled", None)
    task, rows = open_table(task, table, labelled=True, **table_options)
    if not rows.sample:
        raise DataError("there are no rows", where=rows.name)
    if drops and isinstance(task, LabelledTask):
        rows = without_unlabelled(
            rows, task.label_columns, may_have_no_label=task.may_have_no_label
        )
    counts = engine.TruncationCounts()
    gold = GoldRows(task, rows) if isinstance(task, LabelledTask) else None
    rows = rows if gold is None else gold.rows
    examples = counts.add(task.labelled_examples(rows))
    with counted_unlabelled(rows):
        evaluation = evaluate(network, task, examples, settings)
    left_out = [] if gold is None else gold.notes()
    return replace(evaluation, notes=[*evaluation.notes, *left_out, *counts.notes()])
