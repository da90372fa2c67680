"""A teacher and a student: the losses, learning, and saved parts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from bertworks.errors import SettingsError
from bertworks.packed import Batch
from bertworks.tasks.pretraining.distillation import DistillationNetwork, init_from_teacher
from bertworks.tasks.pretraining.network import PretrainingNetwork
from bertworks.tasks.pretraining.settings import DistillationSettings
from tests.checkpoints import oracles
from tests.nn import reference

SETTINGS = DistillationSettings(teacher="somewhere", temperature=3.0)


def networks(**values):
    config = oracles.geometry("bert", num_hidden_layers=4)
    teacher = PretrainingNetwork(config, next_sentence=False)
    oracles.redraw(teacher)
    small = {"num_hidden_layers": 2, "family": "distilbert", "type_vocab_size": 0, **values}
    student = PretrainingNetwork(
        config.with_values(**small, classifier="relu"), next_sentence=False
    )
    return student.double(), teacher.double()


def batch():
    packed = reference.sequences(reference.config())
    positions = torch.tensor([0, 2, 5, 11, 30, 50, 60])
    targets = {"masked_positions": positions, "masked_labels": torch.arange(7) + 3}
    return Batch(packed, targets, {"mlm": 7, "soft": 7, "cosine": packed.num_tokens})


def test_the_losses_are_those_of_pytorch():
    student, teacher = networks()
    network = DistillationNetwork(student, teacher, SETTINGS).train()
    inputs = batch()
    losses = network(inputs)
    with torch.no_grad():
        network.eval()
        own, other = student.encoder(inputs.packed), teacher.encoder(inputs.packed)
        positions = inputs.targets["masked_positions"]
        logits, soft = student.mlm_head(own[positions]), teacher.mlm_head(other[positions])
    kl = F.kl_div((logits / 3).log_softmax(-1), (soft / 3).softmax(-1), reduction="sum")
    assert losses["soft"].item() == pytest.approx(5 * 9 * kl.item(), rel=1e-4)
    hard = F.cross_entropy(logits, inputs.targets["masked_labels"], reduction="sum")
    assert losses["mlm"].item() == pytest.approx(2 * hard.item(), rel=1e-6)
    ones = torch.ones(len(own))
    cosine = F.cosine_embedding_loss(own, other, ones, reduction="sum")
    assert losses["cosine"].item() == pytest.approx(cosine.item(), rel=1e-4)


def test_only_the_student_learns():
    student, teacher = networks()
    network = DistillationNetwork(student, teacher, SETTINGS).train()
    assert not teacher.training
    sum(network(batch()).values()).backward()
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert all(parameter.grad is not None for parameter in student.parameters())


def test_a_student_of_the_teachers_own_weights_has_nothing_to_learn_from_it():
    _, teacher = networks()
    student = PretrainingNetwork(teacher.encoder.config, next_sentence=False).double()
    assert init_from_teacher(student, teacher) == (0, 1, 2, 3)
    student.load_state_dict(teacher.state_dict())
    losses = DistillationNetwork(student, teacher, SETTINGS)(batch())
    assert losses["soft"].item() == pytest.approx(0, abs=1e-3)
    assert losses["cosine"].item() == pytest.approx(0, abs=1e-3)


def test_a_student_starts_from_every_other_layer():
    student, teacher = networks()
    assert init_from_teacher(student, teacher) == (0, 2)
    for own, other in ((0, 0), (1, 2)):
        student_state, teacher_state = (
            n.encoder.layers[at].state_dict() for n, at in ((student, own), (teacher, other))
        )
        assert all(torch.equal(student_state[name], teacher_state[name]) for name in student_state)
    words = teacher.encoder.embeddings.word_embeddings.weight
    assert torch.equal(student.encoder.embeddings.word_embeddings.weight, words)
    assert student.encoder.embeddings.token_type_embeddings is None


def test_unsuitable_teachers_are_errors():
    student, teacher = networks(hidden_size=24, intermediate_size=40)
    with pytest.raises(SettingsError, match="initialize=false"):
        init_from_teacher(student, teacher)
    with pytest.raises(SettingsError, match="hidden_size=48 is not the student's 24"):
        DistillationNetwork(student, teacher, SETTINGS)
    DistillationNetwork(student, teacher, SETTINGS.with_values(cosine_weight=0.0))
    deep, _ = networks(num_hidden_layers=5)
    with pytest.raises(SettingsError, match="a student of 5 layers"):
        init_from_teacher(deep, teacher)
