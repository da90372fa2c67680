"""Masked words over HTTP: pieces, candidates, and texts that ask for too many."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertworks.errors import LengthError
from bertworks.inference.pretraining_heads import MaskedText, Variant
from bertworks.packed import Packed
from tests.serving.conftest import Running

TEXT = "the door was [MASK] in [MASK]"


def test_fill_mask_has_an_answer_for_each_mask(server: Running) -> None:
    both = server.ask("/fill-mask", {"inputs": [TEXT, "a [MASK]"], "model": "pretrained"})
    assert [len(one["masks"]) for one in both] == [2, 1]
    assert [len(mask) for mask in both[0]["masks"]] == [5, 5]


def test_candidates_have_the_product_of_their_pieces_probabilities(
    server: Running, get_model
) -> None:
    words = ["open", "deep", "london", "nu", "xyz"]  # the last two have two and three pieces
    body = {"inputs": TEXT, "candidates": words, "model": "pretrained"}
    (answer,) = server.ask("/fill-mask", body)
    assert [len(own) for own in answer["candidates"]] == [5, 5]
    model = get_model("pretrained")
    tokenizer = model.tokenizer
    pieces = {
        word: ids.tolist() for word, ids in zip(words, tokenizer.piece_ids(words), strict=True)
    }
    assert [len(pieces[word]) for word in words] == [1, 1, 1, 2, 3]
    for index, own in enumerate(answer["candidates"]):
        probabilities = [entry["probability"] for entry in own]
        assert probabilities == sorted(probabilities, reverse=True)
        for entry in own:
            expected = _probability(model, TEXT, index, pieces[entry["candidate"]])
            assert entry["probability"] == pytest.approx(expected, rel=1e-4)


def _probability(model, text: str, mask: int, ids: list[int]) -> float:
    """By the bare module, piece by piece."""
    parts = text.split("[MASK]")
    masks = ["[MASK]"] * (len(parts) - 1)
    masks[mask] = "[MASK] " * len(ids)
    joined = "".join(part + more for part, more in zip(parts, [*masks, ""], strict=True))
    encoding = model.tokenizer.encode(joined, typed_mask=True)
    positions = np.flatnonzero(encoding.input_ids == model.tokenizer.mask_id)[mask:][: len(ids)]
    with torch.inference_mode():
        hidden = model.encoder(Packed.from_arrays([encoding.input_ids]).to("cpu"))
        probabilities = torch.softmax(model.network.mlm_head(hidden), -1)
    return float(
        np.prod(
            [
                float(probabilities[position, piece])
                for position, piece in zip(positions, ids, strict=True)
            ]
        )
    )


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": "the door"}, "inputs: there is no [MASK] in the text"),
        ({"inputs": [TEXT, "a"]}, "inputs[1]: there is no [MASK] in the text"),
        ({"inputs": TEXT, "top_k": 0}, "top_k: input should be greater than or equal to 1"),
        ({"inputs": TEXT, "candidates": []}, "candidates: from 1 to 1000 words"),
        ({"inputs": TEXT, "candidates": ["a", "Ж"]}, "candidates[1]: the vocabulary has no pieces"),
        ({"inputs": "[MASK] " * 47}, "inputs: 49 tokens, but at most 48 fit"),
        ({"inputs": "[MASK] " * 60}, "inputs: 60 masks, but at most 48 tokens fit"),
        (
            {"inputs": ["a [MASK] [MASK]"], "candidates": ["a", "b" * 50]},
            "inputs[0]: 2 masks, and a candidate of 50 pieces at one, but at most 48 tokens fit",
        ),
        (
            {"inputs": ["[MASK]" * 40] * 300, "top_k": 100},
            "top_k: 1,200,000 probabilities at all masks, but at most 262,144",
        ),
        (
            {"inputs": ["[MASK]" * 40] * 300, "candidates": [*("abcdefghijklmnopqrstuvwxyz")]},
            "candidates: 312,000 probabilities at all masks, but at most 262,144",
        ),
    ],
)
def test_masks_that_cannot_be_filled_are_an_error(
    server: Running, body: dict, message: str
) -> None:
    answer = server.post("/fill-mask", {**body, "model": "pretrained"})
    assert 400 <= answer.status_code < 500
    assert answer.json()["error"].startswith(message)


def test_text_of_many_masks_is_refused_before_variants_are_made(
    server: Running, get_model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short text asked for gigabytes, in the event loop: masks x lengths copies of it."""
    variants: list[Variant] = []
    fill = Variant.fill

    def record(variant: Variant, mask: str) -> MaskedText:
        variants.append(variant)
        return fill(variant, mask)

    monkeypatch.setattr(Variant, "fill", record)
    candidates = ["ab", "abc", "abcd"]
    answer = server.post(
        "/fill-mask",
        {"inputs": "[MASK]" * 4000, "candidates": candidates, "model": "pretrained"},
    )
    assert (answer.status_code, "inputs: 4,000 masks" in answer.text) == (413, True), answer.text
    with pytest.raises(LengthError, match="4,000 masks, and a candidate of 4 pieces at one"):
        get_model("pretrained").fill_mask("[MASK]" * 4000, candidates=candidates)
    body = {"inputs": ["[MASK]" * 40] * 40, "candidates": candidates, "model": "pretrained"}
    answer = server.post("/fill-mask", body)
    assert (answer.status_code, "inputs: 4,840 texts" in answer.text) == (413, True), answer.text
    assert not variants
