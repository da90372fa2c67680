"""Pre-training of a small encoder that also learns a large one's predictions and hidden states.

Three losses are added, each a mean times its weight (Sanh et al. 2019, §3; the default weights are
those with which the authors trained DistilBERT):

- `soft`: the cross-entropy between teacher and student at a temperature, minus the teacher's
  entropy, times the temperature squared (Hinton et al. 2015, §2);
- `mlm`: the masked-language-model loss, as without a teacher;
- `cosine`: one minus the cosine between teacher's and student's last hidden states of each token.

A student with a next-sentence head also has its loss `nsp`, unweighted.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...errors import SettingsError
from ...nn.encoder import Encoder
from ...nn.losses import cross_entropy_sum
from ...packed import Batch
from ..network import Network
from .network import PretrainingNetwork
from .settings import DistillationSettings
from .task import PretrainingTask

_ROWS = 256  # positions whose logits are in memory at a time


class DistillationNetwork(Network):
    """A student and its frozen teacher.

    Args:
        student: the network that is trained and saved.
        teacher: must have the student's vocabulary, bidirectional attention and, if
            `cosine_weight` is not 0, the student's hidden size.

    Raises:
        SettingsError: the teacher does not meet these conditions.
    """

    def __init__(
        self,
        student: PretrainingNetwork,
        teacher: PretrainingNetwork,
        settings: DistillationSettings,
    ) -> None:
        super().__init__()
        student_config, teacher_config = student.encoder.config, teacher.encoder.config
        student_size, teacher_size = student_config.vocab_size, teacher_config.vocab_size
        if student_size != teacher_size:
            raise SettingsError(
                f"the teacher has {teacher_size} pieces, and the student {student_size}"
            )
        if settings.cosine_weight and student_config.hidden_size != teacher_config.hidden_size:
            raise SettingsError(
                f"the teacher's hidden_size={teacher_config.hidden_size} is not the student's "
                f"{student_config.hidden_size}",
                fix="Set distillation.cosine_weight=0.",
            )
        if teacher_config.attention != "bidirectional":
            raise SettingsError("the teacher is causal: it predicts next pieces, not masked ones")
        self.student = student
        self.teacher = teacher.requires_grad_(False).eval()
        self.settings = settings

    @property
    def encoder(self) -> Encoder:  # type: ignore[override]  # a property, which nothing sets
        """The student's encoder."""
        return self.student.encoder

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed losses, times their weights; `batch.counts` has the number of terms."""
        settings, student, teacher = self.settings, self.student, self.teacher
        hidden = student.encoder(batch.packed)
        with torch.no_grad():
            target = teacher.encoder(batch.packed)
        positions = batch.targets["masked_positions"]
        masked, masked_target = (part.index_select(0, positions) for part in (hidden, target))
        labels = batch.targets["masked_labels"]
        losses = {
            "mlm": settings.mlm_weight * student.mlm_head.loss_sum(masked, labels),
            "soft": settings.soft_weight * self._soft_loss_sum(masked, masked_target),
        }
        if student.nsp_head is not None:
            logits = student.nsp_head(student.encoder.pool(hidden, batch.packed))
            losses["nsp"] = cross_entropy_sum(logits, batch.targets["next_sentence_labels"])
        if settings.cosine_weight:
            cosine = F.cosine_similarity(hidden.float(), target.float(), dim=-1)
            losses["cosine"] = settings.cosine_weight * (1 - cosine).sum()
        return losses

    def _soft_loss_sum(self, student: Tensor, teacher: Tensor) -> Tensor:
        temperature = self.settings.temperature
        total = student.new_zeros((), dtype=torch.float32)
        for start in range(0, len(student), _ROWS):
            rows = slice(start, start + _ROWS)
            with torch.no_grad():
                targets = (self.teacher.mlm_head(teacher[rows]).float() / temperature).log_softmax(
                    -1
                )
            log_probabilities = (
                self.student.mlm_head(student[rows]).float() / temperature
            ).log_softmax(-1)
            total = total + F.kl_div(log_probabilities, targets, reduction="sum", log_target=True)
        return total * temperature**2

    def predict(self, batch: Batch) -> dict[str, Tensor]:
        """Return the student's outputs."""
        return self.student.predict(batch)


class DistillationTask(PretrainingTask):
    """Pre-training whose batches also have the counts of the losses `soft` and `cosine`.

    Args:
        settings: those of the network; `cosine` is counted if its weight is not 0.
    """

    name: ClassVar[str] = "distillation"

    def __init__(self, *others: Any, settings: DistillationSettings, **more: Any) -> None:
        super().__init__(*others, **more)
        self.settings = settings

    def collate(self, examples: Any) -> Batch:
        batch = super().collate(examples)
        if "mlm" not in batch.counts:
            return batch
        extra_counts = {"soft": batch.counts["mlm"]}
        if self.settings.cosine_weight:
            extra_counts["cosine"] = batch.packed.num_tokens
        return Batch(batch.packed, batch.targets, {**batch.counts, **extra_counts}, batch.examples)


def init_from_teacher(student: PretrainingNetwork, teacher: PretrainingNetwork) -> tuple[int, ...]:
    """Copy the teacher's embeddings, MLM head and some layers into the student.

    Source: Sanh et al. (2019), §3: "taking one layer out of two".

    Returns:
        For each layer of the student, the index of the teacher's layer that was copied.

    Raises:
        SettingsError: the student has more layers, or the sizes of the two networks differ.
    """
    student_layers, teacher_layers = student.encoder.layers, teacher.encoder.layers
    if not 0 < len(student_layers) <= len(teacher_layers):
        raise SettingsError(
            f"a student of {len(student_layers)} layers cannot start from a teacher of "
            f"{len(teacher_layers)}",
            fix="Set distillation.initialize=false.",
        )
    layer_numbers = tuple(
        number * len(teacher_layers) // len(student_layers) for number in range(len(student_layers))
    )
    parts: list[tuple[nn.Module, nn.Module]] = [
        (student.encoder.embeddings, teacher.encoder.embeddings),
        (student.mlm_head, teacher.mlm_head),
        *(
            (getattr(student.encoder, name), getattr(teacher.encoder, name))
            for name in ("score_bias", "convolution")
            if getattr(student.encoder, name) and getattr(teacher.encoder, name)
        ),
        *(
            (target, teacher_layers[number])
            for target, number in zip(student_layers, layer_numbers, strict=True)
        ),
    ]
    for target, source in parts:
        state = {k: v for k, v in source.state_dict().items() if k in target.state_dict()}
        try:
            target.load_state_dict(state)
        except RuntimeError as error:
            raise SettingsError(
                "the student's parts differ in size from the teacher's",
                where=str(error).splitlines()[-1].strip(),
                fix="Set distillation.initialize=false.",
            ) from None
    return layer_numbers
