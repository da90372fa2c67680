"""Translation as a task: learned, measured, saved, opened again."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from bertworks.convert.export import write_onnx
from bertworks.errors import BertworksError, CheckpointError, DataError, SettingsError
from bertworks.loading import load
from bertworks.model import Model
from bertworks.nn.config import EncoderConfig
from bertworks.tasks.translation import TranslationTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.training.finetune import finetune

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", *"ABCDEFGH", ","]
FAST: dict[str, Any] = {
    **{"learning_rate": 4e-3, "batch_size": 16, "max_seq_length": 12},
    **{"tensorboard": False, "dropout": 0.1},
}


def fresh(**changes: Any) -> Model:
    config = {
        **{"vocab_size": len(PIECES), "hidden_size": 48, "num_attention_heads": 4},
        **{"num_hidden_layers": 1, "intermediate_size": 96, "max_position_embeddings": 32},
        **{"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "type_vocab_size": 0},
        **{"family": "bertworks", "positions": "sinusoidal", "initializer_range": 0.1},
    }
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=False)
    return Model.fresh(EncoderConfig.parse({**config, **changes}), tokenizer)


def rows(count: int, seed: int = 0) -> list[dict[str, str]]:
    """Letters, and the same in capitals from the last to the first."""
    draw = random.Random(seed)
    texts = [" ".join(draw.choices("abcdefgh", k=draw.randint(2, 5))) for _ in range(count)]
    return [{"source": text, "target": text[::-1].upper()} for text in texts]


@pytest.mark.long
def test_a_toy_language_is_learned_saved_and_opened(tmp_path: Path) -> None:
    dev = rows(40, seed=1)
    out = tmp_path / "run"
    settings = {**FAST, "epochs": 10, "eval_every": 250}  # to generate takes longer than to learn
    result = finetune(fresh(), "translation", train=rows(400), dev=dev, out=out, **settings)
    assert result.metrics["bleu"] > 60
    assert result.metrics["loss"] < 0.5
    model = load(out)
    assert isinstance(model.task, TranslationTask)
    texts = [row["source"] for row in dev]
    predictions = model.predict(texts)
    right = sum(
        one["translation"] == row["target"] for one, row in zip(predictions, dev, strict=True)
    )
    assert right > 25
    assert predictions == result.model.predict(texts)
    assert [model.predict([text])[0] for text in texts[:5]] == predictions[:5]
    measured = model.evaluate(dev)
    assert measured.metrics == pytest.approx(dict(result.metrics))

    further = finetune(
        model, "translation", train=dev, dev=dev, out=tmp_path / "b", epochs=1, **FAST
    )
    assert not further.new_parameters  # the decoder is copied


def test_bleu_is_of_the_corpus_and_losses_are_means_of_tokens() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    task = TranslationTask.from_dict(
        {"source_column": "source", "target_column": "target"},
        Tokenizer.from_vocabulary(PIECES, lowercase=False),
    )
    evaluator = task.evaluator()
    predicted = {0: "A B C D E", 1: "A B C D , F G"}
    gold = ["A B C D E", "A B C D F , G H"]
    for index in (1, 0):  # in any order
        row = {"source": "a b", "target": gold[index]}
        batch = task.collate([task.example(row, index)]).to("cpu")
        ids = task.tokenizer.encode_batch([predicted[index]], max_length=20)[0].input_ids[1:]
        outputs = {"tokens": torch.from_numpy(ids)[None], "loss": torch.tensor(6.0)}
        assert task.decode(outputs, batch)[index]["translation"].split() == [
            *predicted[index].replace(" ,", ",").split()
        ]
        evaluator.add(outputs, batch)
    result = evaluator.result()
    assert result["bleu"] == pytest.approx(
        sacrebleu.corpus_bleu(list(predicted.values()), [gold]).score
    )
    assert result["loss"] == pytest.approx(12 / (6 + 9))  # the tokens and [SEP] of each


def test_a_sequence_autoencoder_has_the_source_as_its_target(tmp_path: Path) -> None:
    given = {"source_column": "source", "target_column": "source", "epochs": 1, **FAST}
    result = finetune(fresh(), "translation", train=rows(20), out=tmp_path, **given)
    task = result.model.task
    assert isinstance(task, TranslationTask)
    example = task.example({"source": "a b"}, 0)
    assert example.target.tolist() == example.sequences[0].input_ids.tolist()


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"positions": "rotary"}, "a decoder takes the encoder's embeddings"),
        ({"attention": "two-way"}, "a decoder takes the encoder's embeddings"),
        ({"max_position_embeddings": 8}, "max_seq_length=12"),
    ],
)
def test_encoders_that_have_no_decoder(changes: dict[str, Any], what: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=what):
        finetune(fresh(**changes), "translation", train=rows(4), out=tmp_path, **FAST)


def test_row_without_its_target_is_refused(tmp_path: Path) -> None:
    for empty in (None, " ", float("nan")):
        bad = [*rows(2), {"source": "a", "target": empty}]
        says = r"row 3: the target \(column 'target'\) is empty, as in 1 of 3 rows"
        with pytest.raises(DataError, match=says):
            finetune(fresh(), "translation", train=bad, out=tmp_path, **FAST)


def test_sacrebleu_is_required_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(BertworksError, match=r"bertworks\[translation\]"):
        finetune(fresh(), "translation", train=rows(8), dev=rows(4), out=tmp_path / "a", **FAST)
    assert not (tmp_path / "a" / "checkpoints").exists()


@pytest.mark.long
def test_onnx_has_no_decoder(tmp_path: Path) -> None:
    """The encoder alone was written."""
    pytest.importorskip("onnxscript")
    model = fresh()
    settings = {"source_column": "s", "target_column": "t", "max_seq_length": 12}
    task = TranslationTask.from_dict(settings, model.tokenizer)
    translator = Model(model.tokenizer, task, task.network(model.encoder.config).eval())
    says = r"for translation cannot be written as ONNX: .* without 'decoder\.\S+'.* --task encoder"
    with pytest.raises(CheckpointError, match=says):
        write_onnx(translator, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
