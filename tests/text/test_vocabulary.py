from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import DataError, SettingsError
from bertworks.jobs.parallel import HERE
from bertworks.text import vocabulary
from bertworks.text.definition import ORIGINAL_SPECIAL_PIECES
from bertworks.text.vocabulary import learn_pieces, train_vocabulary
from bertworks.text.wordpiece import Normalization

TEXT = ["The quick brown fox jumps over the lazy dog.", "Élan! the the thing", "中国 中", ""] * 3


def naive(words: Counter[str], pieces: list[str], size: int, min_frequency: int) -> list[str]:
    """The same merges, all pairs counted afresh before each: slow and plain."""
    learned_pieces = list(pieces)
    split = {word: [word[0], *("##" + char for char in word[1:])] for word in words}
    while len(learned_pieces) < size:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, count in words.items():
            for left, right in zip(split[word], split[word][1:], strict=False):
                pairs[learned_pieces.index(left), learned_pieces.index(right)] += count
        if not pairs:
            break
        (left, right), count = min(pairs.items(), key=lambda item: (-item[1], item[0]))
        if count < min_frequency:
            break
        merged_piece = learned_pieces[left] + learned_pieces[right].removeprefix("##")
        if merged_piece not in learned_pieces:
            learned_pieces.append(merged_piece)
        for word, parts in split.items():
            merged_parts: list[str] = []
            rest = list(parts)
            while rest:
                if rest[:2] == [learned_pieces[left], learned_pieces[right]]:
                    merged_parts.append(merged_piece)
                    del rest[:2]
                else:
                    merged_parts.append(rest.pop(0))
            split[word] = merged_parts
    return learned_pieces


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(
    words=st.dictionaries(st.text("abc", min_size=1, max_size=9), st.integers(1, 5), max_size=12),
    size=st.integers(6, 40),
    min_frequency=st.integers(1, 4),
)
def test_merges_are_those_of_a_plain_implementation(words, size, min_frequency):
    pieces = ["a", "b", "c", "##a", "##b", "##c"]
    ordered = sorted(words)
    counts = [words[word] for word in ordered]
    learned = learn_pieces(ordered, counts, pieces, size=size, min_frequency=min_frequency)
    assert learned == naive(Counter(words), pieces, size, min_frequency)


def test_special_pieces_have_the_original_ids():
    tokenizer = train_vocabulary(TEXT, size=170)
    assert tokenizer.pieces[:104] == ORIGINAL_SPECIAL_PIECES
    assert [tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id] == [0, 100, 101]
    assert [tokenizer.sep_id, tokenizer.mask_id] == [102, 103]
    assert tokenizer.unused_ids.tolist() == list(range(1, 100))
    assert tokenizer.vocab_size == 170
    singles = [piece for piece in tokenizer.pieces[104:] if len(piece.removeprefix("##")) == 1]
    assert list(tokenizer.pieces[104 : 104 + len(singles)]) == singles
    assert singles[0] == "!"
    assert tokenizer.lowercase
    assert "the" in tokenizer.pieces


def test_cased_vocabulary_keeps_capitals_and_accents():
    tokenizer = train_vocabulary(TEXT, size=200, lowercase=False)
    assert not tokenizer.lowercase
    assert {"T", "É", "##a"} <= set(tokenizer.pieces)
    assert "é" not in tokenizer.pieces


def test_punctuation_and_ideographs_never_continue():
    tokenizer = train_vocabulary(TEXT, size=200)
    assert {"中", "国", ".", "!"} <= set(tokenizer.pieces)
    assert not {"##中", "##国", "##.", "##!"} & set(tokenizer.pieces)


def test_a_small_corpus_gives_fewer_pieces():
    tokenizer = train_vocabulary(["ab ab"], size=30522)
    assert tokenizer.pieces[104:] == ("a", "b", "##a", "##b", "ab")
    assert train_vocabulary(["ab ab"], size=30522, min_frequency=3).vocab_size == 108


@pytest.mark.parametrize("texts", [[], [""], [" \x00 "]])
def test_text_without_words_is_refused(texts):
    with pytest.raises(DataError, match="no words to train a vocabulary from"):
        train_vocabulary(texts)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 110}, "size=110 has no room for 104 special pieces and 56 for the text's char"),
        ({"min_frequency": 0}, "min_frequency=0 is less than 1"),
        ({"character_coverage": 1.5}, "character_coverage=1.5 is not between 0 and 1"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(SettingsError, match=message):
        train_vocabulary(TEXT, **settings)


def test_the_least_size_that_is_advised_is_enough():
    with pytest.raises(SettingsError, match="Ask for at least 160"):
        train_vocabulary(TEXT, size=159)
    assert train_vocabulary(TEXT, size=160).vocab_size == 160


def test_bad_text_is_named():
    with pytest.raises(DataError, match=r"^paragraph 3: lone surrogate U\+D800 at character 2"):
        train_vocabulary(["a", "b", "c \ud800"])


def test_rare_characters_are_left_out():
    texts = ["abcd " * 1000, "qa qa qa bq"]
    everything = train_vocabulary(texts, size=300, character_coverage=1.0)
    tokenizer = train_vocabulary(texts, size=300, character_coverage=0.999)
    assert "q" in everything.pieces
    assert not any("q" in piece for piece in tokenizer.pieces[104:])
    assert tokenizer.piece_ids(["qa"])[0].tolist() == [tokenizer.unk_id]


def test_words_over_the_limit_are_not_learned():
    tokenizer = train_vocabulary(["abcabcabc abc"] * 5, size=300, max_word_characters=3)
    assert tokenizer.definition.max_word_characters == 3
    assert max(len(piece.removeprefix("##")) for piece in tokenizer.pieces[104:]) == 3


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=8), randomly=st.randoms())
def test_vocabulary_depends_on_word_counts_only(texts, randomly):
    """Order does not matter, the text's words are all known, and are counted as one would."""
    try:
        tokenizer = train_vocabulary(texts, size=2000, character_coverage=1.0)
    except DataError:
        assert not any(Normalization().words(text) for text in texts)
        return
    shuffled = list(texts)
    randomly.shuffle(shuffled)
    again = train_vocabulary(iter(shuffled), size=2000, character_coverage=1.0)
    assert again.fingerprint == tokenizer.fingerprint
    for ids in tokenizer.piece_ids(texts):
        assert tokenizer.unk_id not in ids
    count = vocabulary._WordCounter(Normalization(), 200)
    counts = vocabulary._count_words([(1, texts[:3]), (4, texts[3:])], count, HERE)
    assert counts == Counter(word for text in texts for word in Normalization().words(text))


@pytest.mark.long
def test_counting_in_parts_changes_nothing(monkeypatch):
    whole = train_vocabulary(TEXT, size=200)
    monkeypatch.setattr(vocabulary, "_PART_CHARACTERS", 5)
    for workers in (1, 3):
        again = train_vocabulary(TEXT, size=200, workers=workers)
        assert again.fingerprint == whole.fingerprint
    with pytest.raises(DataError, match=r"paragraph 4: .*surrogate"):
        train_vocabulary([*TEXT[:3], "\udc80"], size=200, workers=2)


def test_progress_reports_the_number_of_pieces():
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [f"{left}{right}" for left in letters for right in letters]
    reports = []
    train_vocabulary(
        words * 2, size=700, progress=lambda done, total: reports.append((done, total))
    )
    assert reports == [(500, 700)]


PROGRAM = """
import sys
from bertworks.text.vocabulary import train_vocabulary
lines = open(sys.argv[1], encoding="utf-8").read().split("\\n")[:1500]
train_vocabulary(lines, size=1200).save(sys.argv[2])
"""


@pytest.mark.long
def test_every_process_gives_the_same_bytes(data_dir, tmp_path):
    corpus = data_dir / "wikitext-2" / "valid.txt"
    processes = []
    for number, (threads, parallel) in enumerate([(1, "false"), (2, "true"), (1, "true")]):
        variables = {
            "RAYON_NUM_THREADS": str(threads),
            "TOKENIZERS_PARALLELISM": parallel,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONHASHSEED": str(number),
        }
        command = [sys.executable, "-c", PROGRAM, str(corpus), str(tmp_path / str(number))]
        processes.append(subprocess.Popen(command, env={**os.environ, **variables}))
    assert [process.wait(timeout=120) for process in processes] == [0, 0, 0]
    first = contents(tmp_path / "0")
    assert len(first["vocab.txt"].split()) == 1200
    assert contents(tmp_path / "1") == contents(tmp_path / "2") == first


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def wiki(data_dir: Path, files: int) -> list[str]:
    lines = []
    for file in sorted((data_dir / "wiki").iterdir())[:files]:
        lines += file.read_text(encoding="utf-8").split("\n")
    return [line for line in lines if not line.startswith(("<doc", "</doc"))]


@pytest.mark.slow
def test_the_librarys_trainer_learns_nearly_the_same(data_dir):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    texts = wiki(data_dir, 10)
    ours = train_vocabulary(texts, size=6000)
    alphabet = [p for p in ours.pieces[104:] if len(p.removeprefix("##")) == 1]
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer()
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=6000,
        min_frequency=2,
        limit_alphabet=sum(not piece.startswith("##") for piece in alphabet),
        special_tokens=[*ORIGINAL_SPECIAL_PIECES, *alphabet],
        show_progress=False,
    )
    theirs.train_from_iterator(texts, trainer)
    common = set(theirs.get_vocab()) & set(ours.pieces)
    assert len(common) > 0.99 * 6000
