"""How attention works: the numbers of a layer, and what the page computes from them."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bertworks import explorer
from bertworks.checkpoints.families import FAMILIES
from bertworks.errors import DataError
from bertworks.explorer.available_views import view_error
from bertworks.explorer.explaining import MAX_NUMBERS
from bertworks.explorer.inputs import as_floats, as_shorts, encode_input
from bertworks.explorer.layers import layers_for_file
from bertworks.inference.activations import activations
from bertworks.inference.layer_steps import layer_steps, matrices_of
from bertworks.model import Model
from bertworks.nn.encoder import BareEncoder, Encoder
from bertworks.text.tokenizer import Tokenizer
from tests.checkpoints.oracles import geometry
from tests.explorer.test_browser import TEXT as SENTENCE
from tests.explorer.test_browser import TEXT_IN_LINK, cells
from tests.explorer.test_views import pretrained
from tests.serving.conftest import PIECES

TEXT = "the door was open in london and a river"
WITH_LAYERS_OF_ROBERTA = {"xlm-roberta", "camembert", "data2vec-text"}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        family: (family, {})
        for family in sorted(FAMILIES.keys() - WITH_LAYERS_OF_ROBERTA)
        if family != "mobilebert"
    },
    "gated": ("bert", {"gated": True, "hidden_act": "relu"}),
    "silu": ("modernbert", {"hidden_act": "silu", "use_bias": True}),
    "convolution": ("deberta-v2", {"convolution": {"kernel_size": 3, "groups": 2}}),
    "tanh": ("bert", {"norm_first": True, "hidden_act": "tanh"}),
}


def model_of(variant: str) -> Model:
    """A language model with random weights."""
    family, values = VARIANTS[variant]
    return pretrained(family, **values)


def test_layers_with_bottlenecks_have_no_steps() -> None:
    config = geometry("mobilebert", vocab_size=len(PIECES))
    network = BareEncoder(Encoder(config, pooler=False)).eval()
    model = Model(Tokenizer.from_vocabulary(PIECES), None, network)
    assert "(with bottlenecks" in str(view_error(model, "layer"))
    assert view_error(model, "attention") is None


def decode(encoded_array: dict[str, Any]) -> np.ndarray:
    """Numbers of `as_floats` or `as_shorts`."""
    kind = {"float32": "<f4", "int16": "<i2"}[encoded_array["dtype"]]
    values = np.frombuffer(base64.b64decode(encoded_array["base64"]), kind).reshape(
        encoded_array["shape"]
    )
    scales = np.array(encoded_array.get("scales", [1.0]))
    return values * (scales if values.ndim == 1 else scales[:, None])


def steps_of(model: Model, text: str, layer: int) -> dict[str, torch.Tensor]:
    inputs = encode_input(model, text)
    hidden = activations(model.network, inputs.pack()).states[layer][0]
    return layer_steps(model.encoder, inputs.pack(), layer, hidden)


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_layer_has_the_networks_numbers_from_the_embeddings_to_the_logits(variant: str) -> None:
    model = model_of(variant)
    text = TEXT if model.encoder.config.attention == "causal" else TEXT.replace("open", "[MASK]")
    states = activations(model.network, encode_input(model, text).pack()).states
    for number in range(model.encoder.config.num_hidden_layers):
        found = explorer.layer(model, text, layer=number)
        numbers = {name: decode(one) for name, one in found["numbers"].items()}
        assert np.abs(numbers["input"] - states[number][0].numpy()).max() < 1e-5
        assert np.abs(numbers["output"] - states[number + 1][0].numpy()).max() < 1e-5
        for name, values in numbers.items():
            expected = steps_of(model, text, number)[name].flatten(1).numpy()
            assert np.abs(values - expected).max() < 1e-5, name
    head = explorer.steps(model, text)
    position = head["prediction"]["target"]["position"]
    with torch.inference_mode():
        last = torch.tensor(numbers["output"][position]).float()[None]
        logits = model.network.mlm_head(last)[0]
    for one in head["head"]["logits"]:
        token = model.tokenizer.token_to_id(one["name"])
        assert one["logit"] == pytest.approx(float(logits[token]), abs=1e-5, rel=1e-5)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_row_of_weights_times_the_input_is_the_number_shown(variant: str) -> None:
    model = model_of(variant)
    steps = steps_of(model, TEXT, 1)
    first = "attention_input" if "attention_input" in steps else "input"
    sources = {
        **dict.fromkeys(("query", "key", "value"), first),
        "attention_output": "context",
        **dict.fromkeys(("intermediate", "gate"), "feed_forward_input"),
        "feed_forward_output": "activated",
    }
    assert matrices_of(model.encoder, 1).keys() == sources.keys() - (
        set() if model.encoder.config.gated else {"gate"}
    )
    for matrix in matrices_of(model.encoder, 1):
        outputs = steps[matrix].flatten(1)
        for row in (0, 13, outputs.shape[1] - 1):
            row_weights = explorer.weights(model, 1, matrix, row)
            inputs = steps[sources[matrix]].double().numpy()
            value = inputs @ decode(row_weights["weights"]) + (row_weights["bias"] or 0)
            assert np.allclose(value, outputs[:, row], rtol=1e-5, atol=1e-5), (matrix, row)
            assert row_weights["shape"] == [outputs.shape[1], inputs.shape[1]]


def test_layer_has_shared_weights_windows_and_rotations() -> None:
    albert = explorer.layer(model_of("albert"), TEXT)
    assert albert["same_weights"] == [0, 1, 2]
    modern = model_of("modernbert")
    first, second = (explorer.layer(modern, TEXT, layer=number) for number in (0, 1))
    assert (first["window"], second["window"]) == (None, 4)
    assert first["rope_theta"] == modern.encoder.config.rotary.theta
    assert second["rope_theta"] == modern.encoder.config.rotary.local_theta
    assert first["same_weights"] == [0]
    assert "attention_input" not in first["norms"], "the embeddings are normalised"
    assert "attention_input" in second["norms"]
    bert = explorer.layer(model_of("bert"), TEXT)
    assert bert["rope_theta"] is None
    assert bert["norms"].keys() == {"feed_forward_input", "output"}


def test_missing_layers_rows_and_matrices_are_refused() -> None:
    model = model_of("bert")
    with pytest.raises(DataError, match=r"no layer 3. There are 3, from 0"):
        explorer.layer(model, TEXT, layer=3)
    with pytest.raises(DataError, match=r"no layer -1"):
        explorer.weights(model, -1, "query", 0)
    with pytest.raises(DataError, match=r"query has no row 48. It has 48, from 0"):
        explorer.weights(model, 0, "query", 48)
    with pytest.raises(DataError, match=r"no matrix 'gate'. Valid: .*intermediate"):
        explorer.weights(model, 0, "gate", 0)


@given(
    arrays.arrays(
        np.float32, (3, 5), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)
    )
)
def test_coded_numbers_are_the_numbers(values: np.ndarray) -> None:
    assert np.array_equal(decode(as_floats(torch.tensor(values))), values)
    coded = decode(as_shorts(torch.tensor(values)))
    bound = np.abs(values).max(-1, keepdims=True) / 65_000
    assert (np.abs(coded - values) <= bound + 1e-30).all()


@pytest.mark.long
def test_a_file_has_as_many_layers_as_fit() -> None:
    model = model_of("bert")
    inputs = encode_input(model, TEXT)
    layers, rows = layers_for_file(inputs, MAX_NUMBERS)
    assert [one["layer"] for one in layers] == [0, 1, 2]
    assert {(one["matrix"], one["row"]) for one in rows if one["layer"] == 2} == {
        *((matrix, row) for matrix in ("query", "key", "value") for row in (0, 12, 24, 36)),
        *(("attention_output", 0), ("intermediate", 0), ("feed_forward_output", 0)),
    }
    of_one = sum(decode(one).size for one in layers[0]["numbers"].values())
    of_one += sum(decode(one["weights"]).size for one in rows if one["layer"] == 0)
    for most, count in ((0, 1), (2 * of_one - 1, 1), (2 * of_one, 2), (3 * of_one, 3)):
        assert len(layers_for_file(inputs, most)[0]) == count
    steps = steps_of(model, TEXT, 2)
    found = decode(layers[2]["numbers"]["key"])
    assert np.allclose(found, steps["key"].flatten(1), atol=1e-3)


# In a browser.

COMPUTE_STEPS = """async ([url, data, token, head]) => {
    const { computeLayerSteps } = await import(url);
    const found = computeLayerSteps(data, token, head);
    return Object.fromEntries(Object.entries(found).map(([name, values]) => [name,
        typeof values === "number" ? values : Array.from(values, (one) =>
            typeof one === "number" ? (Number.isFinite(one) ? one : -1e30) : Array.from(one))]));
}"""


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_page_computes_the_steps_of_the_network(tab, variant: str) -> None:
    model, page = model_of(variant), tab.page
    url = f"{tab.url}explore/static/layer/steps.js"
    size = model.encoder.config.head_size
    for layer, token, head in ((0, 0, 0), (1, 3, 2), (2, 8, 3)):
        data = explorer.layer(model, TEXT, layer=layer)
        page_steps = page.evaluate(COMPUTE_STEPS, [url, data, token, head])
        steps = {name: step.numpy() for name, step in steps_of(model, TEXT, layer).items()}
        for name, step in steps.items():
            if name in ("scores", "weights"):
                expected = np.maximum(step[head, token], -1e30)
            else:
                expected = step[token, head] if step.ndim == 3 else step[token]
            assert np.allclose(page_steps[name], expected, atol=1e-5, rtol=1e-5), (layer, name)
        key = "rotated_key" if "rotated_key" in steps else "key"
        assert np.allclose(page_steps["keys"], steps[key][:, head], atol=1e-5)
        assert np.allclose(page_steps["values"], steps["value"][:, head], atol=1e-5)
        assert np.allclose(page_steps["all_weights"], steps["weights"][:, token], atol=1e-5)
        assert np.shape(page_steps["query"]) == (size,)
        assert page_steps["difference"] < 1e-5


def approximately(value: float) -> Any:
    """A number up to the digits that the page writes."""
    return pytest.approx(value, rel=6e-3, abs=6e-3 if abs(value) > 0.09 else 6e-4)


def number_of(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("−", "-").replace("∞", "inf").removesuffix("%"))


@pytest.mark.long
def test_the_view_shows_a_head_step_by_step(visit, get_model) -> None:
    tab = visit()
    page = tab.open(f"#/layer?text={TEXT_IN_LINK}&layer=1&head=1&token=2")
    model = get_model("pretrained")
    steps = {name: step.numpy() for name, step in steps_of(model, SENTENCE, 1).items()}

    def check(head: int, token: int) -> None:
        rows = cells(page.get_by_role("table", name="Scores"))
        scores = steps["scores"][head, token]
        assert [number_of(row[3]) for row in rows] == pytest.approx(
            scores.tolist(), rel=6e-3, abs=6e-3
        )
        products = (scores * np.sqrt(8)).tolist()
        assert [number_of(row[2]) for row in rows] == pytest.approx(products, rel=6e-3, abs=6e-3)
        weights = cells(page.get_by_role("table", name="Weights", exact=True))
        largest = np.sort(steps["weights"][head, token])[::-1]
        assert number_of(weights[0][2]) / 100 == pytest.approx(largest[0], abs=0.006)
        assert number_of(weights[1][2]) / 100 == pytest.approx(largest[1], abs=0.006)

    check(1, 2)
    page.get_by_label("Head", exact=True).select_option("0")
    check(0, 2)
    pieces = page.get_by_role("group", name="Pieces; press one to follow it")
    pieces.get_by_role("button", name="london").click()
    check(
        0,
        [one["token"] for one in explorer.pieces(model, SENTENCE)["pieces"]["tokens"]].index(
            "london"
        ),
    )
    assert page.evaluate("document.activeElement.textContent") == "london"
    assert "at most" in page.locator("main").inner_text()
    page.get_by_role("button", name="Head 2").click()
    assert page.get_by_label("Head", exact=True).input_value() == "1"
    page.get_by_label("Layer", exact=True).select_option("0")
    page.get_by_role("button", name="Go on to layer 2").click()
    page.get_by_text("Layer 2 of 2").wait_for()
    tab.settle()
    page.locator("main .steps").get_by_role("link", name="From text to answer").click()
    page.get_by_role("heading", name="From text to answer").wait_for()
    assert f"text={TEXT_IN_LINK}" in page.url


@pytest.mark.long
def test_a_number_is_taken_apart_into_its_weights(visit, get_model) -> None:
    tab = visit()
    page = tab.open(f"#/layer?text={TEXT_IN_LINK}&layer=1&head=1&token=2")
    model = get_model("pretrained")
    steps = {name: step.numpy() for name, step in steps_of(model, SENTENCE, 1).items()}
    card = page.locator(".steps > li").nth(1)
    card.get_by_text("Down to the weights").click()
    card.get_by_role("button", name="value", exact=True).click()
    card.get_by_label("Number", exact=True).select_option(index=3)
    card.get_by_text("Number 4 of the value").wait_for()
    expected = float(steps["value"][2, 1, 3])
    assert number_of(card.locator(".sum").inner_text()) == approximately(expected)
    rows = cells(card.get_by_role("table", name="The sum of value"))
    assert sum(number_of(row[3]) for row in rows[:-1]) == pytest.approx(expected, abs=0.06)
    weight, _ = matrices_of(model.encoder, 1)["value"]
    products = steps["input"][2] * weight[8 + 3].numpy()
    best = int(np.abs(products).argmax())
    assert rows[0][0] == f"number {best + 1}"
    assert number_of(rows[0][3]) == approximately(products[best])


@pytest.mark.long
def test_the_numbers_of_a_strip_are_read_with_arrow_keys(visit, get_model) -> None:
    page = visit().open(f"#/layer?text={TEXT_IN_LINK}&layer=1&head=1&token=2")
    steps = steps_of(get_model("pretrained"), SENTENCE, 1)
    card = page.locator(".steps > li").nth(1)
    strips = card.get_by_role("slider")
    strips.first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "ArrowDown", "End"):
        page.keyboard.press(key)
    for strip, name, number in ((0, "query", 1), (1, "key", 7)):
        says = strips.nth(strip).get_attribute("aria-valuetext")
        start, value = says.split(": ")
        assert start == f"number {number + 1}"
        assert number_of(value) == approximately(float(steps[name][2, 1, number]))
    assert page.locator(".tip").inner_text() == says
    assert card.locator("canvas[tabindex='0']").count() == 1, "one stop for all"


@pytest.mark.long
def test_a_file_shows_layers_and_weights(visit, get_model) -> None:
    model = get_model("pretrained")
    tab = visit(data=explorer.explain(model, SENTENCE))
    page = tab.open("#/layer?layer=1&head=1&token=2")
    assert page.locator(".status").inner_text() == "Layer 2 of 2, 9 pieces."
    steps = {name: step.numpy() for name, step in steps_of(model, SENTENCE, 1).items()}
    rows = cells(page.get_by_role("table", name="Scores"))
    assert [number_of(row[3]) for row in rows] == pytest.approx(
        steps["scores"][1, 2].tolist(), rel=6e-3, abs=6e-3
    )
    for number, name in ((1, "query"), (6, "attention_output"), (8, "intermediate")):
        card = page.locator(".steps > li").nth(number)
        card.get_by_text("Down to the weights").click()
        step = steps[name][2, 1] if name == "query" else steps[name][2]
        value = card.locator(".sum").inner_text()
        assert number_of(value) == approximately(float(step[0]))
