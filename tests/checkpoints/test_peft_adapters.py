"""Adapters of the `peft` library, merged on loading, compared with `peft`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModelForSequenceClassification

import bertworks as bw
from bertworks.errors import CheckpointError
from bertworks.packed import Batch, Packed
from bertworks.utils.json_files import write_json
from tests.checkpoints.journeys import PIECES
from tests.checkpoints.oracles import error, geometry, theirs_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`", "ignore:fan_in_fan_out", "ignore:LoRA adapter added"
)
TEXTS = ["a b c a b c", "c a", "b b b a", "c"]
ALL = ["query", "key", "value", "dense"]
OTHER_NAMES = ("nomic_bert", "gte", "jina_embeddings_v3", "modernbert", "openai-gpt", "xlnet")
"""Families whose modules have other names or shapes than the tensors in files."""


def write(
    folder: Path, kind: str, family: str = "bert", modules: Any = ALL, **settings: Any
) -> tuple[Path, Any]:
    """Write a base model and an adapter of it with random weights; return the adapted model."""
    torch.manual_seed(0)
    own = geometry(family, vocab_size=len(PIECES))
    has_head = kind == "SEQ_CLS" and family != "bert"
    saved = theirs_of(own, "classification" if has_head else "encoder", torch.float32, num_labels=3)
    saved.save_pretrained(folder / "base")
    bw.Tokenizer.from_vocabulary(PIECES).save(folder / "base")
    base = theirs_of(own, "encoder", torch.float32).from_pretrained(folder / "base")
    if kind == "SEQ_CLS":
        base = AutoModelForSequenceClassification.from_pretrained(folder / "base", num_labels=3)
    config = peft.LoraConfig(task_type=kind, r=4, lora_alpha=6, target_modules=modules, **settings)
    model = peft.get_peft_model(base, config).eval()
    for name, weight in model.named_parameters():
        is_trained_bias = weight.requires_grad and name.endswith("bias")
        if "lora_" in name or "classifier" in name or is_trained_bias:
            torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder / "adapter")
    return folder / "adapter", model


def run(model: Any, text: str) -> Any:
    (ids,) = bw.Tokenizer.from_vocabulary(PIECES).sequences([text])
    with torch.no_grad():
        return model(torch.tensor(ids.input_ids.astype(np.int64))[None])


def packed(model: bw.Model, text: str) -> Packed:
    (sequence,) = model.tokenizer.sequences([text])
    return Packed.from_arrays([sequence.input_ids]).to("cpu")


def states(model: bw.Model, text: str) -> torch.Tensor:
    with torch.no_grad():
        return model.encoder(packed(model, text))


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        *({}, {"use_rslora": True}, {"bias": "all"}, {"bias": "lora_only"}),
        {"alpha_pattern": {"query": 2}, "rank_pattern": {"value": 2}},
        {"alpha_pattern": {"key|value": 2, "layer.0.attention.self.query": 9}},
    ],
)
def test_adapters_are_merged(tmp_path: Path, settings: dict[str, Any]) -> None:
    folder, theirs = write(tmp_path, "FEATURE_EXTRACTION", **settings)
    model = bw.load(folder, device="cpu")
    vectors = model.embed(TEXTS, precision="fp32")
    base = bw.load(tmp_path / "base").embed(TEXTS, precision="fp32")
    model.encoder.double()  # float32 rounds by as much as is tolerated
    for text in TEXTS:
        expected = run(theirs.double(), text).last_hidden_state[0]
        assert (states(model, text) - expected).abs().max() < 1e-5
    assert np.abs(base - vectors).max() > 0.1
    assert bw.inspect(folder).parameters == bw.inspect(tmp_path / "base").parameters


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, "FEATURE_EXTRACTION") for family in OTHER_NAMES),
        *((family, "SEQ_CLS") for family in ("nomic_bert", "gte")),
    ],
)
def test_adapters_of_modules_with_other_names_are_merged(
    tmp_path: Path, family: str, kind: str
) -> None:
    folder, theirs = write(tmp_path, kind, family, "all-linear")
    model = bw.load(folder, device="cpu")
    model.network.double()
    for text in TEXTS:
        output = run(theirs.double(), text)
        if kind == "SEQ_CLS":
            with torch.no_grad():
                own = model.network.predict(Batch(packed(model, text)))["logits"]
            assert error(own, output.logits) < 1e-5
        else:
            assert error(states(model, text), output.last_hidden_state[0]) < 1e-5


def test_an_adapter_of_convolutions_is_refused(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, "FEATURE_EXTRACTION", "squeezebert", ["query"])
    with pytest.raises(CheckpointError, match=r"'.*query', a convolution, which is not supported"):
        bw.load(folder)


@pytest.mark.long
def test_an_adapter_brings_its_head(tmp_path: Path) -> None:
    folder, theirs = write(tmp_path, "SEQ_CLS")
    (tmp_path / "base").rename(tmp_path / "moved")
    with pytest.raises(CheckpointError):
        bw.load(folder)
    model = bw.load(folder, base=tmp_path / "moved", device="cpu")
    answers = model.predict(TEXTS, precision="fp32")
    for text, answer in zip(TEXTS, answers, strict=True):
        expected = run(theirs, text).logits[0].softmax(-1).tolist()
        assert list(answer["probabilities"].values()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3', which is not supported"),
        ({"use_dora": True}, "use_dora is not supported"),
        ({"alora_invocation_tokens": [1]}, "alora_invocation_tokens is not supported"),
        ({"init_lora_weights": "PiSSA_niter_4"}, "=pissa_niter_4 also changes the base"),
        ({"init_lora_weights": "olora"}, "=olora also changes the base"),
        ({"alpha_pattern": {"query(": 2}}, "alpha_pattern is not valid .missing \\)"),
        ({"alpha_pattern": ["query"]}, "alpha_pattern is not valid .the patterns are not an"),
        ({"lora_alpha": float("nan")}, "alpha_pattern is not valid .it is not finite"),
        ({"lora_alpha": 10**400}, "alpha_pattern is not valid .int too large"),
        ({"lora_alpha": None}, "lora_alpha or alpha_pattern is not valid"),
        ({"base_model_name_or_path": None}, "the adapter does not name its base model"),
    ],
)
def test_other_adapters_are_refused(tmp_path: Path, entries: dict[str, Any], message: str) -> None:
    folder, _ = write(tmp_path, "FEATURE_EXTRACTION")
    file = folder / "adapter_config.json"
    write_json(file, {**json.loads(file.read_text()), **entries})
    with pytest.raises(CheckpointError, match=message):
        bw.load(folder)
    with pytest.raises(CheckpointError, match="is no adapter"):
        bw.load(tmp_path / "base", base=folder)


@pytest.mark.long
def test_an_adapter_brings_its_sentence_transformers_modules(tmp_path: Path) -> None:
    folder, _ = write(tmp_path, "FEATURE_EXTRACTION")
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    parts = [
        {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for at, (path, kind) in enumerate(modules)
    ]
    write_json(folder / "modules.json", parts)
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": geometry("bert").hidden_size}
    pooling |= {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    entries = {"prompts": {"query": "a "}, "similarity_fn_name": "dot"}
    write_json(folder / "config_sentence_transformers.json", entries)
    for file in (tmp_path / "base").glob("*to*"):
        if file.suffix in (".json", ".txt"):
            shutil.copy(file, folder)
    theirs = SentenceTransformer(str(folder), device="cpu")
    model = bw.load(folder, device="cpu")
    assert model.similarity_function == theirs.similarity_fn_name == "dot"
    expected = theirs.encode(TEXTS, normalize_embeddings=False)
    np.testing.assert_allclose(model.embed(TEXTS, precision="fp32"), expected, atol=1e-5)
    expected = theirs.encode(TEXTS, prompt_name="query")
    actual = model.embed(TEXTS, is_query=True, precision="fp32")
    np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_adapters_of_other_libraries_are_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "adapter_config.json", {"model_name": "base", "version": "3.1.1"})
    with pytest.raises(CheckpointError, match="there is no peft_type: it is no adapter of peft"):
        bw.load(tmp_path)
