"""Every family, from text to a model that loads again: a few steps each, on what can be learned."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers, pre_tokenizers, trainers

import bertworks
from bertworks.data.prepare import prepare
from bertworks.data.shards import Corpus
from bertworks.errors import DataError
from bertworks.tasks.pretraining.instances import InstanceSettings
from bertworks.tasks.pretraining.source import PretrainingSource
from bertworks.tasks.pretraining.task import PretrainingTask
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import train_vocabulary
from bertworks.training.pretrain import pretrain

STEPS = 14
END = "<|endoftext|>"
DOCUMENTS = [
    [f"The {noun} of Anna Berg {verb} here." for verb in ("was", "lay", "stood", "fell")]
    + [f"Nobody took the {noun}."]
    for noun in ("door", "train", "river", "letter", "garden", "window") * 3
]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "corpus.txt"
    path.write_text("\n\n".join("\n".join(document) for document in DOCUMENTS))
    return path


def words(folder: Path) -> Tokenizer:
    """BERT's kind."""
    return train_vocabulary((s for d in DOCUMENTS for s in d), size=220, lowercase=False)


def byte_level(folder: Path) -> Tokenizer:
    """RoBERTa's kind."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator((" ".join(d) for d in DOCUMENTS), trainer)
    library.model.save(str(folder))
    return Tokenizer.load(folder)


def end_of_word(folder: Path) -> Tokenizer:
    """The first GPT's kind: no frame, and nothing that ends a document."""
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=120, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    library.train_from_iterator((" ".join(d) for d in DOCUMENTS), trainer)
    library.model.save(str(folder))
    return Tokenizer.load(folder)


def with_end(folder: Path) -> Tokenizer:
    """GPT-2's kind: bytes, nothing unknown, no frame, and a piece that ends a document."""
    library = Library(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator((" ".join(d) for d in DOCUMENTS), trainer)
    library.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return Tokenizer.load(folder)


def cls_last(folder: Path) -> Tokenizer:
    """XLNet's kind: SentencePiece's pieces, and the one for classification at the end."""
    model_file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([sentence for document in DOCUMENTS for sentence in document]),
        model_writer=model_file,
        vocab_size=90,
        hard_vocab_limit=False,
        control_symbols="<cls>,<sep>,<pad>,<mask>,<eod>,<eop>",
        num_threads=1,
        minloglevel=2,
    )
    (folder / "spiece.model").write_bytes(model_file.getvalue())
    (folder / "config.json").write_text('{"model_type": "xlnet"}')
    return Tokenizer.load(folder)


KINDS = {f.__name__: f for f in (words, byte_level, end_of_word, with_end, cls_last)}


@pytest.fixture(scope="module")
def prepared_data(text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The corpus by each kind of tokenizer, with the spans that rules find."""
    root = tmp_path_factory.mktemp("prepared")
    datasets = {}
    for kind, make in KINDS.items():
        (root / "files" / kind).mkdir(parents=True)
        tokenizer = make(root / "files" / kind)
        datasets[kind] = root / kind
        prepare(text, tokenizer=tokenizer, out=datasets[kind], spans="rules")
    return datasets


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kind", "format_", "values"),
    [
        ("roberta", "byte_level", "full-sentences", {"masking": {"unit": "whole-word"}}),
        ("distilbert", "words", "doc-sentences", {}),
        ("albert", "words", "sentence-order", {"model": {"embedding_size": 8}}),
        ("ernie", "words", "segment-pair", {"masking": {"unit": "knowledge"}}),
        ("modernbert", "byte_level", "full-sentences", {"model": {"local_attention": 8}}),
        ("deberta", "words", "doc-sentences", {}),
        ("xlnet", "cls_last", "full-sentences", {"objective": "permutation"}),
        (
            *("openai-gpt", "end_of_word", "full-sentences"),
            {"model": {"intermediate_size": 64}, "objective": "causal"},
        ),
    ],
)
def test_a_family_trains_and_loads_again(
    prepared_data: dict[str, Path],
    tmp_path: Path,
    family: str,
    kind: str,
    format_: str,
    values: dict[str, Any],
) -> None:
    geometry = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}
    geometry |= {"intermediate_size": 32, "max_position_embeddings": 40}
    settings: dict[str, Any] = {
        "data": str(prepared_data[kind]),
        "batch_size": 16,
        "phases": [{"max_seq_length": 32}],
        "instances": {"format": format_},
        "masking": values.get("masking", {}),
        "objective": values.get("objective", "mlm"),
        "learning_rate": 2e-2,
        "warmup": 1,
        "precision": "fp32",
        "log_every": 1,
        "eval_every": 100,
        "held_out": {"documents": 2, "sequences": 8},
        "tensorboard": False,
    }
    result = pretrain(
        out=tmp_path / "run",
        model={"family": family, **geometry, **values.get("model", {})},
        steps=STEPS,
        **settings,
    )
    lines = list(result.run.lines())
    losses = [line["loss"] for line in lines if line["kind"] == "train"]
    assert len(losses) == STEPS
    assert all(map(math.isfinite, losses))
    assert sum(losses[-3:]) / 3 < losses[0] - 0.5
    name = "lm_loss" if family == "openai-gpt" else "mlm_loss"
    first = next(line["metrics"] for line in lines if line["kind"] == "eval")
    assert result.metrics[name] < first[name] - 0.3
    model = bertworks.load(result.run.model, device="cpu")
    assert model.encoder.config.family == family
    assert model.tokenizer.fingerprint == Corpus.open(prepared_data[kind]).manifest.vocabulary_hash
    # And another run begins as this one ended.
    resumed_result = pretrain(
        out=tmp_path / "again", init_checkpoint=str(result.run.path), steps=1, **settings
    )
    assert resumed_result.start is not None and not resumed_result.start.new_tensors
    assert next(resumed_result.run.lines())["metrics"] == pytest.approx(result.metrics, rel=1e-6)


# ---------------------------------------------------------------------------- without cls and sep


def source_of(directory: Path, format_: Any) -> tuple[PretrainingSource, Tokenizer]:
    corpus = Corpus.open(directory)
    tokenizer = corpus.load_tokenizer()
    settings = InstanceSettings(format=format_, max_seq_length=24)
    everything = np.arange(corpus.num_documents)
    return PretrainingSource(corpus, everything, tokenizer, settings, seed=1), tokenizer


@pytest.mark.parametrize("kind", ["end_of_word", "with_end"])
@pytest.mark.parametrize("format_", ["full-sentences", "doc-sentences"])
def test_documents_follow_each_other_with_what_ends_them(
    prepared_data: dict[str, Path], kind: str, format_: str
) -> None:
    source, tokenizer = source_of(prepared_data[kind], format_)
    whole = [tokenizer.piece_ids([" ".join(document)])[0].tolist() for document in DOCUMENTS]
    end = tokenizer.token_to_id(END)
    assert (end is None) == (kind == "end_of_word")
    assert source.num_blocks(0) == 1
    block = source.block(0, 0)
    assert max(block.lengths) == 24
    assert sum(block.lengths) == len(block.tokens)  # in the order of the documents
    if end is None:
        assert sorted(block.tokens.tolist()) == sorted(t for ids in whole for t in ids)
        return
    documents: list[list[int]] = [[]]
    for token in block.tokens.tolist():
        if token == end:
            documents.append([])
        else:
            documents[-1].append(token)
    assert documents.pop() == []
    assert sorted(documents) == sorted(whole)
    if format_ == "doc-sentences":
        assert all(end not in example.input_ids[:-1] for example in block)


@pytest.mark.parametrize("format_", ["full-sentences", "segment-pair"])
def test_sequences_have_the_frame_and_types_of_texts(
    prepared_data: dict[str, Path], format_: str
) -> None:
    source, tokenizer = source_of(prepared_data["cls_last"], format_)
    examples = list(source.examples(0, 8))
    packed = PretrainingTask(tokenizer, source.instances).collate(examples).packed
    special = [tokenizer.sep_id, tokenizer.cls_id]
    for number, row in enumerate(packed.sequence_row.tolist()):
        start, end = packed.cu_seqlens[number : number + 2].tolist()
        types = packed.token_type_ids[start:end].tolist()
        ids = examples[row].input_ids
        assert ids[-2:].tolist() == special and tokenizer.cls_id not in ids[:-1]
        first = ids.tolist().index(tokenizer.sep_id) + 1
        is_pair = format_ == "segment-pair"
        rest = len(ids) - first - 1
        assert types == [0] * first + [1 if is_pair else 0] * rest + [2]


def test_pairs_need_a_frame(prepared_data: dict[str, Path]) -> None:
    with pytest.raises(DataError, match=r"format=segment-pair has pairs.*full-sentences"):
        source_of(prepared_data["end_of_word"], "segment-pair")


def test_masks_need_a_mask(prepared_data: dict[str, Path], tmp_path: Path) -> None:
    plain = {"format": "full-sentences"}
    with pytest.raises(DataError, match=r"no mask token.*model\.family=openai-gpt"):
        pretrain(
            data=str(prepared_data["with_end"]),
            out=tmp_path,
            steps=1,
            batch_size=2,
            instances=plain,
        )


def test_knowledge_needs_spans(text: Path, tmp_path: Path) -> None:
    prepare(text, tokenizer=words(tmp_path), out=tmp_path / "plain")
    with pytest.raises(DataError, match=r"the corpus has no spans.*--spans given"):
        pretrain(
            data=str(tmp_path / "plain"),
            out=tmp_path / "run",
            steps=1,
            masking={"unit": "knowledge"},
        )
