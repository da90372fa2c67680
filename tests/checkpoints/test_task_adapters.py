"""Adapters in a model's own directory, in Jina embeddings v3's layouts, against the formula."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from typer.testing import CliRunner

import bertworks as bw
from bertworks.analysis.retrieval.index import Index
from bertworks.cli import app
from bertworks.errors import BertworksWarning, CheckpointError
from bertworks.loading import use
from bertworks.serving.models import Models
from bertworks.utils.json_files import write_json
from tests.checkpoints.journeys import PIECES, saved_by_them

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`")
NAMES = ["retrieval.query", "retrieval.passage", "separation", "classification", "text-matching"]
RANK, ALPHA = 2, 3
TEXTS = ["a b c a b c", "c a", "b b b a", "c"]
PUBLISHED_CONFIG = {  # the entries of jinaai/jina-embeddings-v3's config.json that matter here
    "architectures": ["XLMRobertaLoRA"],
    "attention_probs_dropout_prob": 0.1,
    "emb_pooler": None,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 48,
    "intermediate_size": 80,
    "layer_norm_eps": 1e-05,
    "load_trained_adapters": True,
    "lora_adaptations": NAMES,
    "lora_alpha": ALPHA,
    "lora_dropout_p": 0.0,
    "lora_main_params_trainable": False,
    "lora_rank": RANK,
    "matryoshka_dimensions": [32, 48],
    "max_position_embeddings": 40,
    "model_type": "xlm-roberta",
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "position_embedding_type": "rotary",
    "rotary_emb_base": 30000.0,
    "task_instructions": {name: f"{letter} " for name, letter in zip(NAMES, "abcde", strict=True)},
    "type_vocab_size": 1,
    "use_flash_attn": True,
    "vocab_size": len(PIECES),
}


def write_published(folder: Path) -> tuple[Any, dict[str, Tensor]]:
    """Write a model of Jina's own code with adapters; return its base, and the adapters' tensors.

    Each linear map and table of embeddings has adapters, as in that code.
    """
    rope = {"rope_type": "default", "rope_theta": PUBLISHED_CONFIG["rotary_emb_base"]}
    base = saved_by_them("jina_embeddings_v3", "encoder", folder, rope_parameters=rope)
    tensors = load_file(folder / "model.safetensors")
    random = torch.Generator().manual_seed(1)
    result: dict[str, Tensor] = {}
    low_rank: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        whole = name if name.startswith("roberta.") else f"roberta.{name}"
        if tensor.ndim != 2:
            result[whole] = tensor
            continue
        module = f"{whole.removesuffix('.weight')}.parametrizations.weight"
        rows, columns = tensor.shape
        shapes = [(len(NAMES), RANK, columns), (len(NAMES), rows, RANK)]
        if "embeddings" in whole:
            shapes = [(len(NAMES), rows, RANK), (len(NAMES), RANK, columns)]
        result[f"{module}.original"] = tensor
        for letter, shape in zip("AB", shapes, strict=True):
            low_rank[f"{module}.0.lora_{letter}"] = torch.randn(shape, generator=random) * 0.3
    save_file(result | low_rank, folder / "model.safetensors")
    write_json(folder / "config.json", PUBLISHED_CONFIG)
    return base, low_rank


def add_adapter(base: Any, low_rank: dict[str, Tensor], number: int) -> None:
    """Add an adapter to their model by the formula."""
    modules = dict(base.named_modules())
    theirs = {
        "embeddings.word_embeddings": ["embeddings.word_embeddings"],
        "embeddings.token_type_embeddings": ["embeddings.token_type_embeddings"],
        "pooler.dense": ["pooler.dense"],
    }
    for layer in range(PUBLISHED_CONFIG["num_hidden_layers"]):
        one, own = f"encoder.layers.{layer}", f"layers.{layer}"
        theirs[f"{one}.mixer.Wqkv"] = [f"{own}.self_attn.{part}_proj" for part in "qkv"]
        theirs[f"{one}.mixer.out_proj"] = [f"{own}.self_attn.o_proj"]
        theirs |= {f"{one}.mlp.{part}": [f"{own}.mlp.{part}"] for part in ("fc1", "fc2")}
    assert len(theirs) == len(low_rank) // 2
    for name, parts in theirs.items():
        place = f"roberta.{name}.parametrizations.weight.0.lora_"
        low, high = low_rank[f"{place}A"][number], low_rank[f"{place}B"][number]
        change = (low @ high if "embeddings" in name else high @ low) * ALPHA / RANK
        for part, rows in zip(parts, change.chunk(len(parts)), strict=True):
            modules[part].weight.data += rows


def means(model: Any, texts: list[str]) -> list[np.ndarray]:
    """Mean vectors of texts, computed by `transformers`."""
    result = []
    for ids in bw.Tokenizer.from_vocabulary(PIECES).sequences(texts):
        with torch.no_grad():
            states = model(torch.tensor(ids.input_ids.astype(np.int64))[None]).last_hidden_state
        result.append(states[0].mean(0).numpy())
    return result


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 4])
def test_an_adapter_inside_the_weights_is_merged(tmp_path: Path, number: int) -> None:
    base, low_rank = write_published(tmp_path)
    model = bw.load(tmp_path, adapter=NAMES[number].replace("-", "_"), device="cpu")
    add_adapter(base, low_rank, number)
    prompt = "abcde"[number] + " "
    vectors = model.embed(TEXTS, precision="fp32")
    np.testing.assert_allclose(vectors, means(base, [prompt + text for text in TEXTS]), atol=1e-5)
    assert model.encoder.config.rotary.theta == PUBLISHED_CONFIG["rotary_emb_base"]

    model.save(tmp_path / "saved")
    again = bw.load(tmp_path / "saved", device="cpu")
    assert np.array_equal(again.embed(TEXTS, precision="fp32"), vectors)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "saved").eval()
    np.testing.assert_allclose(means(theirs, TEXTS), means(base, TEXTS), atol=1e-5)


def test_the_base_weights_are_loaded_without_an_adapter(tmp_path: Path) -> None:
    base, low_rank = write_published(tmp_path)
    with pytest.warns(BertworksWarning, match=r"choose one with adapter: retrieval\.query, "):
        model = bw.load(tmp_path, device="cpu")
    vectors = model.embed(TEXTS, precision="fp32")
    np.testing.assert_allclose(vectors, means(base, TEXTS), atol=1e-5)
    assert model.report is not None
    assert low_rank.keys() <= model.report.dropped_tensors.keys()


def test_verbs_use_a_model_with_adapters_inside_its_weights(tmp_path: Path) -> None:
    write_published(tmp_path)
    with pytest.warns(BertworksWarning, match="loaded without an adapter"):
        expected = bw.load(tmp_path, device="cpu").embed("a b")
    with pytest.warns(BertworksWarning, match="loaded without an adapter"):
        actual = use(tmp_path, lambda model: model.embed("a b"))
    np.testing.assert_allclose(actual, expected, atol=1e-6)


def test_prompts_of_sentence_transformers_count(tmp_path: Path) -> None:
    write_published(tmp_path)
    modules = [
        ("", "custom_st.Transformer"),
        ("1_Pooling", "sentence_transformers.models.Pooling"),
        ("2_Normalize", "sentence_transformers.models.Normalize"),
    ]
    write_json(
        tmp_path / "modules.json",
        [
            {"idx": number, "name": str(number), "path": path, "type": kind}
            for number, (path, kind) in enumerate(modules)
        ],
    )
    (tmp_path / "1_Pooling").mkdir()
    write_json(
        tmp_path / "1_Pooling" / "config.json",
        {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True},
    )
    prompts = {"retrieval.query": "h ", "separation": ""}
    write_json(tmp_path / "config_sentence_transformers.json", {"prompts": prompts})
    model = bw.load(tmp_path, adapter="retrieval.query", device="cpu")
    assert model.sentence is not None
    assert model.sentence.embed_defaults() == {"normalize": True, "prompt": "h "}
    other = bw.load(tmp_path, adapter="separation", device="cpu")
    assert other.sentence is not None
    assert other.sentence.embed_defaults() == {"normalize": True}


@pytest.mark.long
def test_an_adapter_in_a_folder_is_merged(tmp_path: Path) -> None:
    saved_by_them("jina_embeddings_v3", "encoder", tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        for name in ("separation", "text_matching"):
            base = transformers.AutoModel.from_pretrained(tmp_path)
            targets = r".*(word_embeddings|[qvo]_proj|fc1|dense)"
            config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets)
            theirs = peft.get_peft_model(base, config, adapter_name=name).eval()
            for parameter, weight in theirs.named_parameters():
                if "lora_" in parameter:
                    torch.nn.init.normal_(weight, std=0.3)
            theirs.save_pretrained(tmp_path, selected_adapters=[name])
    model = bw.load(tmp_path, adapter="text-matching", device="cpu")
    vectors = model.embed(TEXTS, precision="fp32")
    np.testing.assert_allclose(vectors, means(theirs, TEXTS), atol=1e-5)
    with pytest.warns(BertworksWarning, match="choose one with adapter: separation, text_matching"):
        base_model = bw.load(tmp_path, device="cpu")
    assert np.abs(base_model.embed(TEXTS, precision="fp32") - vectors).max() > 0.1


@pytest.mark.long
def test_retrieval_has_an_adapter_for_queries_and_one_for_documents(tmp_path: Path) -> None:
    write_published(tmp_path)
    model = bw.load(tmp_path, adapter="retrieval", device="cpu")
    for name, is_query in (("retrieval.query", True), ("retrieval.passage", False)):
        one = bw.load(tmp_path, adapter=name, device="cpu")
        assert np.array_equal(model.embed(TEXTS, is_query=is_query), one.embed(TEXTS))
    (hits,) = Index.open(model, TEXTS).search("c a b", 4)
    scores = model.similarity("c a b", TEXTS)[0]
    assert [hit.row for hit in hits] == np.argsort(-scores, kind="stable").tolist()
    models = Models({"jina": str(tmp_path)}, device="cpu", adapters={"adapter": "retrieval"})
    served_model = models.get()
    assert served_model.prompts.default == "retrieval.passage"
    assert served_model.is_for_queries("retrieval.query")
    assert not served_model.is_for_queries("retrieval.passage")
    assert served_model.num_bytes == 2 * 4 * model.num_parameters


def test_an_unknown_adapter_is_an_error_that_lists_the_names(tmp_path: Path) -> None:
    write_published(tmp_path)
    with pytest.raises(CheckpointError, match=r"no adapter 'query'.* It has retrieval\.query"):
        bw.load(tmp_path, adapter="query", device="cpu")
    with pytest.raises(CheckpointError, match="It has none; leave adapter out"):
        bw.load("mini", adapter="retrieval", device="cpu")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"lora_rank": 3}, r"do not fit a matrix .* lora_rank=3"),
        ({"lora_rank": 0}, "lora_rank=0 in config.json"),
        ({"lora_adaptations": [*NAMES, "sixth"]}, r"shapes \(5, .* do not fit a matrix"),
        ({"emb_pooler": "cls"}, "emb_pooler='cls' is not supported"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    tmp_path: Path, entries: dict[str, Any], message: str
) -> None:
    write_published(tmp_path)
    write_json(tmp_path / "config.json", {**PUBLISHED_CONFIG, **entries})
    name = "sixth" if "lora_adaptations" in entries else "separation"
    with pytest.raises(CheckpointError, match=message):
        bw.load(tmp_path, adapter=name, device="cpu")


def test_adapters_that_only_the_config_names_are_refused(tmp_path: Path) -> None:
    saved_by_them("jina_embeddings_v3", "encoder", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    write_json(tmp_path / "config.json", {**config, "lora_adaptations": NAMES})
    bw.load(tmp_path, device="cpu")
    message = re.escape("'separation', which the weights do not have")
    with pytest.raises(CheckpointError, match=message):
        bw.load(tmp_path, adapter="separation", device="cpu")


@pytest.mark.long
def test_adapters_are_named_on_the_command_line(tmp_path: Path) -> None:
    saved_by_them("bert", "encoder", tmp_path / "m")
    base = transformers.AutoModel.from_pretrained(tmp_path / "m")
    config = peft.LoraConfig(r=RANK, target_modules=["query"])
    adapted_network = peft.get_peft_model(base, config)
    query = adapted_network.base_model.encoder.layer[0].attention.self.query
    torch.nn.init.ones_(query.lora_B.default.weight)
    adapted_network.save_pretrained(tmp_path / "adapter")
    (tmp_path / "m").rename(tmp_path / "moved")
    write_published(tmp_path / "jina")
    for folder, options, keywords in (
        ("adapter", ["--base", str(tmp_path / "moved")], {"base": tmp_path / "moved"}),
        ("jina", ["--adapter", "separation"], {"adapter": "separation"}),
    ):
        out = tmp_path / f"{folder}.npy"
        words = ["embed", str(tmp_path / folder), *TEXTS, *options, "--device", "cpu"]
        result = CliRunner().invoke(app, [*words, "--out", str(out), "precision=fp32"])
        assert result.exit_code == 0, result.output
        model = bw.load(tmp_path / folder, device="cpu", **keywords)
        assert np.array_equal(np.load(out), model.embed(TEXTS, precision="fp32"))
        inspection = CliRunner().invoke(
            app, ["inspect", str(tmp_path / folder), *options, "--json"]
        )
        assert json.loads(inspection.stdout)["parameters"]["total"] == model.num_parameters
