"""Labels that the model was not trained for: by entailment, or by the similarity of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from ..data.rows import LocatedRow, Row, characters_in, chunks, text_of
from ..data.text_inputs import read_texts
from ..errors import SettingsError
from ..settings.literals import SimilarityFunction
from ..tasks.task import Prediction
from ..tasks.zero_shot import zero_shot_task
from .engine import TruncationCounts, WindowPredictor
from .prediction_plan import PredictionPlan
from .settings import PredictSettings
from .similarity import similarities
from .text_embedding import TextEmbedder

if TYPE_CHECKING:
    from .task_model import TaskModel


@dataclass(frozen=True)
class SimilarityPredictor:
    """Predicts the label whose name has the vector most similar to that of a text.

    Attributes:
        vectors: those of the labels, as the embedder computes them.
        column: of the texts.
    """

    embedder: TextEmbedder
    function: SimilarityFunction
    labels: Sequence[str]
    vectors: NDArray[Any]
    column: str
    window_rows: int

    def chunks(self, rows: Iterable[LocatedRow]) -> Iterator[list[tuple[LocatedRow, Row]]]:
        """See `WindowPredictor`."""
        return chunks(((row, row.values) for row in rows), self.window_rows, characters_in)

    def __call__(
        self, part: tuple[int, Sequence[tuple[LocatedRow, Row]]]
    ) -> tuple[list[Prediction], TruncationCounts]:
        """See `WindowPredictor`."""
        places = [row.where for row, _ in part[1]]
        texts = [text_of(row.values, self.column, row.where) for row, _ in part[1]]
        encoded_texts = self.embedder.encode(texts, places)
        counts = TruncationCounts()
        counts.num_rows = len(texts)
        cut_tokens = [text.encoding.truncated_tokens for text in encoded_texts]
        counts.num_truncated_rows = sum(count > 0 for count in cut_tokens)
        counts.num_truncated_tokens = sum(cut_tokens)
        vectors = self.embedder.vectors(encoded_texts, places.__getitem__)
        predictions: list[Prediction] = []
        for row in similarities(vectors, self.vectors, self.function).tolist():
            values = dict(zip(self.labels, row, strict=True))
            label = max(values, key=values.__getitem__)
            predictions.append({"label": label, "similarities": values})
        return predictions, counts


def plan_zero_shot(
    model: TaskModel, source: Any, settings: PredictSettings, options: Mapping[str, Any]
) -> PredictionPlan:
    """Open a table for a model of entailment, or a sentence encoder.

    Args:
        source: a table, or texts in memory.
        options: those of `TableOptions`.

    Raises:
        DataError: the table cannot be read, or the column of its texts is not found.
        SettingsError: the model is neither, or a label or the template is not valid.
    """
    labels = [label.strip() for label in settings.labels]
    if len(set(labels)) != len(labels) or len(labels) < 2 or "" in labels:
        raise SettingsError(f"labels={labels}: give at least two names, each once")
    template = settings.hypothesis_template
    if "{}" not in template:
        raise SettingsError(f"hypothesis_template={template!r} has no {{}} for the label")
    texts = read_texts(source, **options)
    task = None if model.task is None else zero_shot_task(model.task, labels, template)
    if task is not None:
        task = task.with_settings({"text_column": texts.column})
        predictor = WindowPredictor(model.network, task, settings)
        return PredictionPlan(predictor, texts.rows, {"task": task.name, **task.to_dict()})
    if model.sentence is None:
        what = "a bare encoder" if model.task is None else f"trained for {model.task.name}"
        raise SettingsError(
            f"labels: the model is {what}",
            fix="Labels need a classifier of entailment (with a label `entailment`), or a "
            "sentence encoder.",
        )
    if template != type(settings).model_fields["hypothesis_template"].default:
        raise SettingsError(
            f"hypothesis_template={template!r} does nothing with a sentence encoder, which "
            "compares texts with the names of the labels",
            fix="Leave it out, or give labels that are sentences.",
        )
    embedder = model.embedder(
        precision=settings.precision,
        batch_tokens=settings.batch_tokens,
        deterministic=settings.deterministic,
    )
    vectors, function = embedder.embed(labels), model.similarity_function
    provenance = {"labels": labels, "similarity": function, **embedder.provenance()}
    by_similarity = SimilarityPredictor(
        embedder, function, labels, vectors, texts.column, settings.window_rows
    )
    return PredictionPlan(by_similarity, texts.rows, provenance)
