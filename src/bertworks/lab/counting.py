"""Claims about counts: parameters, operations, masks, pieces. No model is trained."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping

import numpy as np

from ..data.tables import read_rows
from ..nn.config import EncoderConfig
from ..nn.device import without_weights
from ..nn.encoder import BareEncoder, Encoder
from ..packed import Packed
from ..tasks.classification import ClassificationSettings, ClassificationTask
from ..tasks.pretraining.masking import Masker, MaskingSettings
from ..text.tokenizer import Tokenizer
from ..text.vocabulary import train_vocabulary
from ..text.wordpiece import Normalization
from ..training.operations import encoder_flops
from .bench import Lab
from .claims import MEASURES, Arms, Measure, measures


def _sized(size: str, millions: int) -> Measure:
    """Compare the parameters of an encoder of a released size with the number in the paper."""

    def measure(lab: Lab, seed: int) -> Mapping[str, Arms]:
        with without_weights():
            network = BareEncoder(Encoder(EncoderConfig.from_size(size), pooler=True))
        counted = sum(weight.numel() for weight in network.parameters()) / 1e6
        off = {"off by": abs(counted / millions - 1), "two in a hundred": 0.02}
        return {size: {"counted, millions": counted, **off}}

    return measure


MEASURES["base-110m"] = _sized("base", 110)
MEASURES["large-340m"] = _sized("large", 340)
MEASURES["large-345m"] = _sized("large", 345)


@measures
def new_parameters(lab: Lab, seed: int) -> Mapping[str, Arms]:
    names = lab.model.network.state_dict().keys()
    counts_by_part = {}
    for labels in (2, 3, 10):
        rows = [(f"text {number}", f"label {number}") for number in range(labels)]
        task = ClassificationTask.from_table(
            lab.model.tokenizer, read_rows(rows), ClassificationSettings()
        )
        network = task.network(lab.model.encoder.config)
        new = sum(part.numel() for key, part in network.state_dict().items() if key not in names)
        said = labels * lab.model.encoder.config.hidden_size
        arms = {"new": float(new), "K x H": float(said), "in addition to K x H": new / said - 1}
        counts_by_part[f"{labels} labels"] = {**arms, "one in a hundred": 0.01}
    return counts_by_part


@measures
def square_of_length(lab: Lab, seed: int) -> Mapping[str, Arms]:
    config = EncoderConfig.from_size("base")

    def flops(length: int) -> tuple[float, float]:
        one = Packed.from_arrays([np.zeros(length, np.int64)])
        apart = Packed.from_arrays([np.zeros(1, np.int64)] * length)  # equal linear layers
        return encoder_flops(config, one), encoder_flops(config, apart)

    (whole, linear), (before, linear_before) = flops(512), flops(256)
    alone = math.log2((whole - linear) / (before - linear_before))
    arms = {"the whole encoder": math.log2(whole / before), "attention alone": alone}
    return {"256 to 512 tokens": {**arms, "the square": 2.0}}


@measures
def masking_split(lab: Lab, seed: int) -> Mapping[str, Arms]:
    tokenizer = lab.model.tokenizer
    flat = np.concatenate(tokenizer.piece_ids(lab.paragraphs[:3000]))
    ids = np.resize(flat, 400 * 500).astype(np.int64)
    mask = Masker(MaskingSettings(), tokenizer)
    keys = np.array([random.Random(f"{seed} {n}").getrandbits(64) for n in range(400)], np.uint64)
    instances = mask(ids, np.arange(401) * 500, keys)
    seen = instances.input_ids[instances.positions]
    masked, kept = ((seen == what).sum() / 400 for what in (tokenizer.mask_id, instances.labels))
    num_masked = len(instances.positions) / 400
    parts = {"[MASK]": masked, "random": num_masked - masked - kept, "kept": kept}
    deviation = max(
        abs(part - said) for part, said in zip(parts.values(), (60, 7.5, 7.5), strict=True)
    )
    arms = {
        "chosen": num_masked,
        **parts,
        "off 75": abs(num_masked / 75 - 1),
        "one in a hundred": 0.01,
    }
    return {
        f"seed {seed}": {**arms, "off 60, 7.5 and 7.5": deviation / 75, "three in a hundred": 0.03}
    }


@measures
def rare_words(lab: Lab, seed: int) -> Mapping[str, Arms]:
    train_words, other = _halves(lab)
    counts = Counter(train_words)
    shares = {}
    for size in (2000, 4000, 8000):
        tokenizer = train_vocabulary(train_words, size=size)
        vocabulary = {word for word, _ in counts.most_common(size)}
        pieces = _pieces_of(tokenizer, sorted(set(other)))
        num_unknown = sum(tokenizer.unk_id in pieces[word] for word in other)
        rare = [len(pieces[word]) for word in other if counts[word] <= 1]
        frequent = [len(pieces[word]) for word in other if counts[word] >= 100]
        shares[f"{tokenizer.vocab_size} pieces"] = {
            "unknown, whole words": sum(word not in vocabulary for word in other) / len(other),
            "unknown, pieces": num_unknown / len(other),
            "pieces of a rare word": float(np.mean(rare)),
            "pieces of a frequent word": float(np.mean(frequent)),
        }
    return shares


@measures
def vocabulary_size(lab: Lab, seed: int) -> Mapping[str, Arms]:
    seen, other = _halves(lab)
    blocks = {f"part {n + 1}": other[n::5] for n in range(5)}
    sizes = {size: train_vocabulary(seen, size=size) for size in (1000, 2000, 4000, 8000)}
    num_pieces = {size: _pieces_of(made, sorted(set(other))) for size, made in sizes.items()}
    return {
        name: {
            f"{size:,} pieces": float(np.mean([len(pieces[word]) for word in words]))
            for size, pieces in num_pieces.items()
        }
        for name, words in blocks.items()
    }


@measures
def necessarily_broken(lab: Lab, seed: int) -> Mapping[str, Arms]:
    seen, other = _halves(lab)
    counts = Counter(word for word in [*seen, *other] if len(word) > 5 and word.endswith("ing"))
    frequent_words = [word for word, _ in counts.most_common()]
    pieces = _pieces_of(lab.model.tokenizer, frequent_words)

    def mean_pieces(words: list[str]) -> float:
        return float(np.mean([len(pieces[word]) > 1 for word in words]))

    frequent, rare = frequent_words[:50], frequent_words[-50:]
    arms = {
        "cut, frequent words in -ing": mean_pieces(frequent),
        "cut, rare words in -ing": mean_pieces(rare),
    }
    return {"all": {**arms, "nearly all": 0.9}}


@measures
def preset_positions(lab: Lab, seed: int) -> Mapping[str, Arms]:
    config = lab.model.encoder.config
    operations = {}
    for name, kind in (("BERT", "learned"), ("preset pattern", "sinusoidal")):
        encoder = Encoder(config.with_values(positions=kind), pooler=False)
        table = encoder.embeddings.position_embeddings
        operations[f"learned numbers, {name}"] = (
            0.0 if table is None else float(table.weight.numel())
        )
    return {"all": operations}


def _halves(lab: Lab) -> tuple[list[str], list[str]]:
    """Return the words of every second paragraph, and those of the other paragraphs."""
    normalize = Normalization(lowercase=True)
    words = [normalize.words(text) for text in lab.paragraphs]
    one, other = ([w for part in words[n::2] for w in part if w.isalpha()] for n in (0, 1))
    return one, other


def _pieces_of(tokenizer: Tokenizer, words: list[str]) -> dict[str, list[int]]:
    """The pieces of each word."""
    found = tokenizer.piece_ids(words)
    return {word: ids.tolist() for word, ids in zip(words, found, strict=True)}
