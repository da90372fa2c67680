"""The weights that fine-tuning starts from, tensor by tensor."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bertworks.errors import SettingsError
from bertworks.model import Model
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.settings import FinetuneSettings, settings_of
from bertworks.training.start import Start

from .letters import CONFIG, PIECES, ROWS, TASK

CONFIG3 = CONFIG.with_values(num_hidden_layers=3)


def new_model(**geometry: Any) -> Model:
    tokenizer = Tokenizer.from_vocabulary(PIECES)
    return Model.fresh(CONFIG3.with_values(**geometry), tokenizer, seed=7)


def begin(model: Model, seed: int = 0, **settings: Any) -> Start:
    torch.manual_seed(seed)
    return Start.from_model(model, TASK, FinetuneSettings.parse(settings))


def of_the_model(start: Start, model: Model) -> set[str]:
    """The parameters, biases and norms aside, that are the given model's."""
    theirs = model.encoder.state_dict(prefix="encoder.")
    return {
        name
        for name, value in start.network.state_dict().items()
        if value.ndim == 2 and name in theirs and torch.equal(value, theirs[name])
    }


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_top_layers_and_all_above_are_reinitialized(count: int) -> None:
    model = new_model()
    start = begin(model, reinitialize_layers=count)
    matrices = {
        name for name, value in start.network.state_dict().items()
        if value.ndim == 2 and not name.startswith("head.")
    }  # fmt: skip
    fresh = tuple(f"encoder.layers.{number}." for number in range(3 - count, 3))
    if count:
        fresh += ("encoder.pooler.",)
    copied_names = {name for name in matrices if not name.startswith(fresh or "-")}
    assert of_the_model(start, model) == copied_names
    assert copied_names.isdisjoint(start.new_parameters)
    assert set(start.new_parameters) >= matrices - copied_names
    layers = [f"encoder.layers.{number}" for number in range(3 - count, 3)]
    assert [
        name for name in start.new_parameter_names if name.startswith("encoder.layers")
    ] == layers
    std = start.network.encoder.layers[2].feed_forward.output.weight.std().item()
    assert std == pytest.approx(CONFIG.initializer_range * 0.88, rel=0.15)  # cut at two of them


def test_fresh_weights_are_drawn_by_the_seed() -> None:
    model = new_model()
    states = [begin(model, seed, reinitialize_layers=1).network.state_dict() for seed in (0, 0, 1)]
    name = "encoder.layers.2.attention.query_key_value.weight"
    assert torch.equal(states[0][name], states[1][name])
    assert not torch.equal(states[0][name], states[2][name])


def test_a_head_on_fresh_layers_is_fresh() -> None:
    network = begin(new_model()).network
    model = Model(TASK.tokenizer, TASK, network)
    assert not begin(model).new_parameters
    assert {"head.linear.weight", "encoder.pooler.dense.weight"} <= set(
        begin(model, reinitialize_layers=1).new_parameters
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"reinitialize_layers": 4}, "reinitialize_layers=4: the encoder has 3 layers"),
        ({"freeze_layers": 4}, "freeze_layers=4: the encoder has 3 layers"),
        ({"freeze_layers": 2, "reinitialize_layers": 2}, "some would be random and never trained"),
        ({"reinitialize": True, "reinitialize_layers": 1}, "leave out one"),
        ({"lora_rank": 4, "reinitialize_layers": 1}, "leave out one"),
        ({"reinitialize": True, "freeze_layers": 1}, "would be random and never trained"),
        ({"reinitialize": True, "freeze_embeddings": True}, "would be random and never trained"),
    ],
)
def test_impossible_layers_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        begin(new_model(), **settings)


def test_layers_that_share_weights_count_once() -> None:
    with pytest.raises(SettingsError, match="the encoder has 1 layer with separate weights"):
        begin(new_model(num_hidden_groups=1), freeze_layers=2)


def test_a_classifier_is_not_by_default_on_a_token_that_sees_nothing() -> None:
    model = new_model(attention="causal")
    with pytest.raises(SettingsError, match=r"causal: its first token.*classifier_pooling=last"):
        begin(model)
    assert begin(new_model(attention="causal", classifier_pooling="last")).network is not None
    settings = settings_of(type(TASK)).parse({"classifier_pooling": "mean", "max_seq_length": 32})
    task = TASK.from_table(TASK.tokenizer, ROWS, settings)
    assert (
        Start.from_model(model, task, settings).network.encoder.config.classifier_pooling == "mean"
    )
