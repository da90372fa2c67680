"""Truncation on the left, as `transformers` reads it from a tokenizer's files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers, processors

import bertworks as bw
from bertworks.convert.export import write_tensorflow
from bertworks.errors import LengthError
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.serving.dialects.tei import PredictRequest
from bertworks.serving.request_error import RequestError
from bertworks.serving.runners import EmbedRunner, Text
from bertworks.text.definition import SPECIAL_PIECES
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.wordpiece import WordPieceDefinition

from .test_tokenizer_classes import open_in_transformers

LETTERS = "abcdefghijklmnop"
FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
FIRST, SECOND = "a b c d e f g h", "i j k l m n"
STRATEGIES = {"first": "only_first", "second": "only_second", "longest_first": "longest_first"}


def make_library(name: str) -> tokenizers.Tokenizer:
    """A tokenizer with a piece for each letter."""
    if name == "RobertaTokenizer":
        merges = [("Ġ", letter) for letter in LETTERS]
        pieces = [*FAIRSEQ, "Ġ", *LETTERS, *map("".join, merges)]
        ids = {piece: number for number, piece in enumerate(pieces)}
        library = tokenizers.Tokenizer(models.BPE(ids, merges, unk_token="<unk>"))
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
        library.add_special_tokens(FAIRSEQ)
        return library
    ids = {piece: number for number, piece in enumerate([*SPECIAL_PIECES, *LETTERS])}
    library = tokenizers.Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer()
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    library.add_special_tokens(list(SPECIAL_PIECES))
    return library


def make_model(tokenizer: Tokenizer, max_length: int) -> Model:
    config = EncoderConfig(
        vocab_size=tokenizer.vocab_size,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        intermediate_size=8,
        max_position_embeddings=max_length,
    )
    return Model.fresh(config, tokenizer)


def assert_same_truncation(directory: Path) -> None:
    """Check the ids of texts and pairs of every length against `transformers`."""
    tokenizer, theirs = Tokenizer.load(directory), open_in_transformers(directory)
    assert tokenizer.truncation_side == theirs.truncation_side
    for max_length in range(2, 14):
        expected = theirs(FIRST, truncation=True, max_length=max_length)["input_ids"]
        options: dict[str, Any] = {"max_length": max_length, "truncation": "longest_first"}
        assert tokenizer.encode(FIRST, **options).input_ids.tolist() == expected
        (row,) = tokenizer.sequences([FIRST], **options)
        assert row.input_ids.tolist() == expected
    special = tokenizer.num_special_tokens(pair=True)
    for ours, name in STRATEGIES.items():
        for max_length in range(special + 10, special + 16, 2):  # if odd, theirs may differ
            expected = theirs(
                FIRST,
                SECOND,
                truncation=name,
                max_length=max_length,
                return_offsets_mapping=True,
            )
            encoding = tokenizer.encode(FIRST, SECOND, max_length=max_length, truncation=ours)
            assert encoding.input_ids.tolist() == expected["input_ids"], (ours, max_length)
            assert encoding.offsets.tolist() == [*map(list, expected["offset_mapping"])]


@pytest.mark.parametrize("side", [None, "left", "right"])
@pytest.mark.parametrize("direction", [None, "left", "right"])
@pytest.mark.parametrize("name", ["BertTokenizer", "PreTrainedTokenizerFast", "RobertaTokenizer"])
def test_side_is_that_of_transformers(
    tmp_path: Path, name: str, direction: str | None, side: str | None
) -> None:
    library = make_library(name)
    if direction is not None:
        library.enable_truncation(512, direction=direction)
    library.save(str(tmp_path / "tokenizer.json"))
    settings = {"tokenizer_class": name}
    if name == "PreTrainedTokenizerFast":
        roles = ("pad", "unk", "cls", "sep", "mask")
        pieces = {f"{role}_token": f"[{role.upper()}]" for role in roles}
        settings |= pieces
    if side is not None:
        settings["truncation_side"] = side
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    family = "roberta" if name == "RobertaTokenizer" else "bert"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    assert_same_truncation(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.truncation_side == (side or direction or "right")
    tokenizer.save(tmp_path / "saved")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({"model_type": family}))
    assert_same_truncation(tmp_path / "saved")
    assert Tokenizer.load(tmp_path / "saved").fingerprint == tokenizer.fingerprint


def test_requests_and_models_truncate_on_the_side_of_the_tokenizer() -> None:
    """The side that a request names is used instead, where there is one text."""
    definition = Tokenizer.from_vocabulary([*SPECIAL_PIECES, *LETTERS]).definition
    assert isinstance(definition, WordPieceDefinition)
    tokenizer = Tokenizer(replace(definition, truncation_side="left"))
    model = make_model(tokenizer, max_length=5)
    runner, text = EmbedRunner(model.embedder()), Text("inputs", FIRST)
    for options, words in (({}, "f g h"), ({"side": "right"}, "a b c")):
        (encoded,) = runner.prepare([text], truncate=True, **options)
        assert encoded.encoding.input_ids.tolist() == tokenizer.encode(words).input_ids.tolist()
    with pytest.raises(LengthError):
        runner.prepare([text])
    job: Any = SimpleNamespace(model=model)
    for direction in (None, "Left"):
        PredictRequest(inputs=FIRST, truncation_direction=direction).check_options(job)
    with pytest.raises(RequestError, match="labels and ranks are truncated on the left"):
        PredictRequest(inputs=FIRST, truncation_direction="Right").check_options(job)


def test_side_is_read_without_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, *LETTERS]) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "truncation_side": "left"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert_same_truncation(tmp_path)
    left = Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    assert Tokenizer.load(tmp_path).fingerprint != left.fingerprint


def test_side_is_written_with_tensorflow_weights(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_vocabulary([*SPECIAL_PIECES, *LETTERS])
    tokenizer = Tokenizer(replace(tokenizer.definition, truncation_side="left"))
    write_tensorflow(make_model(tokenizer, max_length=16), tmp_path / "model")
    assert bw.load(tmp_path / "model", device="cpu").tokenizer.truncation_side == "left"
