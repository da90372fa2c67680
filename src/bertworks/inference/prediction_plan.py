"""What a model predicts of a table, or of texts and rows in memory, and with which task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data.rows import LocatedRow
from ..data.text_inputs import warn_of_files
from ..errors import BertworksError
from .engine import RowPredictor, WindowPredictor, resolve_precision
from .settings import PredictSettings

if TYPE_CHECKING:
    from .task_model import TaskModel


class PredictionPlan(NamedTuple):
    """A table, what predicts its rows, and what the predictions depend on, as JSON values."""

    predictor: RowPredictor
    rows: Iterable[LocatedRow]
    provenance: dict[str, Any]


def check_predicts(model: TaskModel, settings: PredictSettings) -> None:
    """Check that a model has predictions, and computes in the precision, before rows are read.

    Raises:
        BertworksError: it has no task, or was only pre-trained.
        NeedsPyTorchError: it has no native code for the precision.
    """
    from ..tasks.pretraining.task import PretrainingTask

    resolve_precision(settings.precision, model.network)
    if settings.labels:  # checked when they are used
        return
    task, _ = model._task_and_network()
    if isinstance(task, PretrainingTask):
        verbs = (
            *(("generate" if task.causal else "fill-mask",) if task.has_masked_lm else ()),
            *(("next-sentence",) if task.instances.next_sentence else ()),
        )
        raise BertworksError(
            "the model was only pre-trained, and has no labels or values to predict",
            fix=f"Use {', '.join(verbs)} or embed; or train it with finetune.",
        )


def plan_prediction(
    model: TaskModel,
    source: Any,
    settings: PredictSettings,
    options: Mapping[str, Any],
    *,
    is_table: bool,
) -> PredictionPlan:
    """Open a table, or texts and rows in memory, and what predicts their rows.

    Args:
        options: those of `TableOptions`.
    """
    if settings.labels:
        from .zero_shot import plan_zero_shot

        return plan_zero_shot(model, source, settings, options)
    task, network = model._task_and_network()
    if settings.coverage is not None:
        from ..tasks.classification import task_with_coverage

        task = task_with_coverage(task, settings.coverage)
    from ..tasks.inputs import iterate_task_rows, open_table

    if not is_table:
        source = iterate_task_rows(task, warn_of_files(source))
    task, rows = open_table(task, source, labelled=False, **options)
    predictor = WindowPredictor(network, task, settings)
    return PredictionPlan(predictor, rows, {"task": task.name, **task.to_dict()})
