"""Claims that are tested on a trained model: its vectors, attention and mask predictions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from importlib import resources

import numpy as np
import torch
from numpy.typing import NDArray

from ..analysis.word_vectors import WordVectors
from ..explorer.comparing import contexts
from ..explorer.inputs import EncodedInput, encode_input
from ..model import Model
from ..nn.encoder import BareEncoder, Encoder
from ..packed import Packed
from ..tasks.pretraining.network import PretrainingNetwork
from .bench import Lab
from .claims import Arms, measures

_ROWS = resources.files(__package__ or "").joinpath("senses.tsv").read_text("utf-8").splitlines()
SENSES = {word: texts for word, *texts in (row.split("\t") for row in _ROWS)}
"""For each word, four texts of one sense and four of another."""

# A text, a word whose attention is measured, the word that shows its sense, and a replacement of
# the latter.
TELLING = (
    ("i arrived at the bank after crossing the river.", "bank", "river", "street"),
    ("he lost the money in the bank.", "bank", "money", "letter"),
    ("she hit the drum with a wooden stick.", "stick", "drum", "table"),
    ("the band released a new record in 1997.", "record", "band", "town"),
    ("the animal did not cross the street because it was tired.", "it", "animal", "day"),
    ("the king said that he would fight.", "he", "king", "town"),
    ("the queen said that she would leave.", "she", "queen", "town"),
    ("the team lost the last match of the season.", "match", "team", "town"),
)

# A text with a mask, and replacements for its left and its right side.
SIDES = (
    ("the band released its debut [MASK] in 1997.", "the army released its debut", "for children."),
    ("he was born in new [MASK] in 1950.", "she had bought a new", "of wood."),
    ("the river flows into the [MASK] near the city.", "he put the book on the", "of france."),
    ("the team won the [MASK] in the final.", "the author wrote the", "by the army."),
    ("it is one of the largest [MASK] in the united states.", "he was the best", "of his life."),
)


def _arms(names: Sequence[str], measures: Mapping[str, Sequence[float]]) -> Mapping[str, Arms]:
    return {case: dict(zip(names, values, strict=True)) for case, values in measures.items()}


def _cosines(lab: Lab, word: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return cosines `[8, 8]` of a word in its eight sentences: last layer, static embeddings."""
    found = contexts(lab.model, word, SENSES[word])
    return np.array(found["similarity"][-1]), np.array(found["static"])


@measures
def context_differs(lab: Lab, seed: int) -> Mapping[str, Arms]:
    def separation(cosines: NDArray[np.float64]) -> float:
        return max(0.0, 1 - float(cosines[np.triu_indices(8, 1)].mean()))

    found = {word: [separation(part) for part in _cosines(lab, word)] for word in SENSES}
    return _arms(("apart, in context", "apart, static"), found)


@measures
def senses(lab: Lab, seed: int) -> Mapping[str, Arms]:
    values = {}
    for word in SENSES:
        cosines = _cosines(lab, word)[0]
        same = [cosines[i, j] for i, j in itertools.combinations(range(8), 2) if i // 4 == j // 4]
        values[word] = [float(np.mean(same)), float(cosines[:4, 4:].mean())]
    return _arms(("same sense", "other sense"), values)


def _word(inputs: EncodedInput, text: str) -> list[int]:
    """Return the positions of the tokens of a word in an input."""
    start = f" {inputs.texts[0]}".index(f" {text}")
    return next(word["tokens"] for word in inputs.words if word["start"] == start)


@measures
def river(lab: Lab, seed: int) -> Mapping[str, Arms]:
    values_by_system: dict[str, dict[str, float]] = {}
    for text, word, telling, other in TELLING:
        arms = values_by_system.setdefault(text, {})
        for name, there in (("the telling", telling), ("another", other)):
            inputs = encode_input(lab.model, text.replace(f" {telling}", f" {there}"))
            heads = inputs.attention()[:, :, _word(inputs, word)][..., _word(inputs, there)]
            heads = heads.mean((2, 3))
            arms[f"to {name} word"] = float(heads.mean())
            arms[f"to {name} word, one head"] = float(heads.max())
    return values_by_system


@measures
def heads_differ(lab: Lab, seed: int) -> Mapping[str, Arms]:
    fresh = Model.fresh(lab.model.encoder.config, lab.model.tokenizer, seed=seed)
    values = {}
    for text, *_ in TELLING:
        distances = []
        for model in (lab.model, fresh):
            weights = encode_input(model, text).attention()
            pairs = itertools.combinations(range(weights.shape[1]), 2)
            parts = [np.abs(weights[:, i] - weights[:, j]).sum(-1).mean() / 2 for i, j in pairs]
            distances.append(float(np.mean(parts)))
        values[text] = distances
    return _arms(("pre-trained heads", "random heads"), values)


def _with_config(model: Model, **changes: str) -> Model:
    """Return a model's encoder with other settings, without the weights that these lack."""
    config = model.encoder.config.with_values(**changes)
    bare = BareEncoder(Encoder(config, pooler=False))
    weights = {f"encoder.{key}": part for key, part in model.encoder.state_dict().items()}
    bare.load_state_dict(weights, strict=False)
    return Model(model.tokenizer, None, bare.eval())


@measures
def order(lab: Lab, seed: int) -> Mapping[str, Arms]:
    bag_of_words = _with_config(lab.model, positions="none", family="bertworks")
    values = {}
    for text, *_ in TELLING:
        words = text.removesuffix(".").split()
        turned = [*words[::2], *words[1::2]]
        both = [" ".join(words), " ".join(turned)]
        apart = [1 - float(model.similarity(*both)[0, 0]) for model in (lab.model, bag_of_words)]
        values[text] = [*(max(0.0, one) for one in apart), 1e-6]
    return _arms(("with positions", "without positions", "one in a million"), values)


@measures
def both_sides(lab: Lab, seed: int) -> Mapping[str, Arms]:
    causal = lab.model.encoder.config.with_values(attention="causal")
    twin = PretrainingNetwork(causal, next_sentence=False).eval()
    twin.load_state_dict(lab.model.network.state_dict(), strict=False)
    one_sided = Model(lab.model.tokenizer, lab.model.task, twin)

    def distance_moved(model: Model, text: str, other: str) -> float:
        return float((_at_blank(model, text) - _at_blank(model, other)).abs().sum() / 2)

    values = {}
    for text, left, right in SIDES:
        before, _, after = text.partition("[MASK]")
        others = f"{left} [MASK]{after}", f"{before}[MASK] {right}"
        measured = [distance_moved(lab.model, text, other) for other in others]
        values[text] = [*measured, round(distance_moved(one_sided, text, others[1]), 6), 1e-5]
    names = "words before changed", "words after changed", "words after changed, causal", "nothing"
    return _arms(names, values)


@torch.inference_mode()
def _at_blank(model: Model, text: str) -> torch.Tensor:
    """Return the probability of each piece at the mask of a text: `[vocab_size]`."""
    tokenizer = model.tokenizer
    (one,) = tokenizer.encode_batch([text], max_length=128, typed_mask=True)
    packed = Packed.from_arrays([one.input_ids]).to(next(model.network.parameters()).device)
    # Only models with this head are looked at.
    logits: torch.Tensor = model.network.mlm_head(model.encoder(packed))  # type: ignore[operator]
    return logits[int((packed.input_ids == tokenizer.mask_id).nonzero()[0, 0])].softmax(-1)


@measures
def cart_or_pair(lab: Lab, seed: int) -> Mapping[str, Arms]:
    blanks = (
        ("the woman went to the store and bought a [MASK] of shoes.", "pair", "cart"),
        ("the child came home from [MASK].", "school", "paper"),
        ("he was born in new [MASK] in 1950.", "york", "war"),
        ("it is one of the largest cities in the [MASK] states.", "united", "small"),
        ("the first world [MASK] began in 1914.", "war", "book"),
        ("my dog is cute. he likes [MASK].", "playing", "national"),
    )
    values = {}
    for text, *words in blanks:
        chances = _at_blank(lab.model, text)
        numbers = [lab.model.tokenizer.token_to_id(word) for word in words]
        values[text] = [float(chances[n]) if n is not None else 0.0 for n in numbers]
    return _arms(("the wanted word", "the other word"), values)


# Pairs of words that have the same relation.
RELATIONS = {
    "had and has": "had has, was is, were are, did does, won wins",
    "one and many": "city cities, country countries, year years, river rivers, player players, "
    "book books, member members, song songs",
    "man and woman": "man woman, king queen, he she, his her, son daughter, father mother, "
    "brother sister, husband wife, men women",
    "country and people": "france french, germany german, italy italian, spain spanish, "
    "russia russian, china chinese, japan japanese, india indian",
}


@measures
def analogies(lab: Lab, seed: int) -> Mapping[str, Arms]:
    static = WordVectors.of_model(lab.model)
    values = {}
    for name, pairs in RELATIONS.items():
        split = [pair.split() for pair in pairs.split(", ")]
        known = [pair for pair in split if set(pair) <= set(static.words)]
        right = []
        for (a, b), (c, d) in itertools.permutations(known, 2):
            nearest = (static.neighbours((b, c), (a,), top_k=1), static.neighbours((c,), top_k=1))
            right.append([words[0][0] == d for words in nearest])
        values[name] = np.mean(right, axis=0).tolist()
    return _arms(("with the offset", "nearest word alone"), values)
