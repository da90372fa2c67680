"""Each family's tokenizer, and an independent one: the tests' and `docs/families.md`'s.

    wordpiece       the class that Hugging Face took from BERT's original code (`oracle.py`)
    byte-level BPE  GPT-2's published description in plain Python (`bpe_oracle.py`)
    SentencePiece   Google's own library
    BPE of words    the first GPT's description in plain Python (`bpe_oracle.py`)

Texts are those of XQuAD: paragraphs and questions in six languages and scripts.
"""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path

import sentencepiece
import transformers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import Tokenizer as Library
from transformers.models.bert_japanese.tokenization_bert_japanese import SentencepieceTokenizer

from bertworks.text.tokenizer import Tokenizer

from .bpe_oracle import ByteLevelOracle, word_oracle
from .compare import LANGUAGES, Peer, Spans, compare_offsets, compare_words, xquad
from .oracle import Oracle

# --------------------------------------------------------------------------------------- WordPiece


def wordpiece(family: str, *vocabularies: str) -> Callable[[Path, Path], list[Peer]]:
    def peers(data: Path, folder: Path) -> list[Peer]:
        return [_wordpiece(data, folder / name, family, name) for name in vocabularies]

    return peers


@cache  # families of one vocabulary share what it computes
def _wordpiece_oracle(pieces: tuple[str, ...], lowercase: bool) -> Oracle:
    return Oracle(pieces, lowercase=lowercase)


def _wordpiece(data: Path, folder: Path, family: str, vocabulary: str) -> Peer:
    folder.mkdir()
    pieces = (data / "vocab" / f"bert-base-{vocabulary}-vocab.txt").read_bytes()
    (folder / "vocab.txt").write_bytes(pieces)
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    tokenizer = Tokenizer.load(folder)
    oracle = _wordpiece_oracle(tuple(tokenizer.pieces), vocabulary != "cased")

    def letters(token: str) -> str:
        return "" if token == "[UNK]" else token.removeprefix("##") or token

    return Peer(tokenizer, oracle.tokenize, compare_words(oracle.cached_words, letters))


def mpnet(data: Path, folder: Path) -> list[Peer]:
    """BERT's pieces between fairseq's special ones."""
    pieces = (data / "vocab" / "bert-base-uncased-vocab.txt").read_bytes()
    before = b"<s>\n<pad>\n</s>\n<unk>\n"
    (folder / "vocab.txt").write_bytes(before + pieces + b"<mask>\n")
    (folder / "config.json").write_text('{"model_type": "mpnet"}')
    tokenizer = Tokenizer.load(folder)
    oracle = Oracle(tokenizer.pieces, lowercase=True)

    def letters(token: str) -> str:
        return "" if token == "[UNK]" else token.removeprefix("##") or token

    ids = _ids_of_class("MPNetTokenizer", folder)
    return [Peer(tokenizer, ids, compare_words(oracle.cached_words, letters))]


def _ids_of_class(name: str, folder: Path) -> Callable[[str], list[int]]:
    """The ids by a class of `transformers`."""
    theirs = getattr(transformers, name).from_pretrained(folder)
    return lambda text: list(theirs(text, add_special_tokens=False)["input_ids"])


# ---------------------------------------------------------------------------------- byte-level BPE


def roberta_files(data: Path, folder: Path) -> Path:
    """GPT-2's vocabulary and merges, of which RoBERTa's are a renumbering."""
    (folder / "vocab.json").write_text(json.dumps(_byte_level_ids(data)))
    (folder / "merges.txt").write_bytes((data / "vocab" / "gpt2-merges.txt").read_bytes())
    return folder


def roberta(data: Path, folder: Path) -> list[Peer]:
    tokenizer = Tokenizer.load(roberta_files(data, folder))
    find = _find_byte_level(data)
    return [
        Peer(tokenizer, lambda t: [token for token, *_ in find(t)], compare_offsets(_spans(find)))
    ]


def deberta(data: Path, folder: Path) -> list[Peer]:
    """RoBERTa's pieces, in BERT's frame."""
    ids = _byte_level_ids(data)
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    ids |= {piece: len(ids) + number for number, piece in enumerate(special)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_bytes((data / "vocab" / "gpt2-merges.txt").read_bytes())
    (folder / "config.json").write_text('{"model_type": "deberta"}')
    find = _find_byte_level(data)
    tokenizer = Tokenizer.load(folder)
    return [
        Peer(tokenizer, lambda t: [token for token, *_ in find(t)], compare_offsets(_spans(find)))
    ]


def modernbert(data: Path, folder: Path) -> list[Peer]:
    """As ModernBERT's `tokenizer.json` has it: characters are composed (NFC) before."""
    merges = _merges(roberta_files(data, folder) / "merges.txt")
    library = Library(models.BPE(vocab=_byte_level_ids(data), merges=merges))
    special = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    library.add_special_tokens([AddedToken(piece, normalized=False) for piece in special])
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:0 [SEP]:0",
        special_tokens=[(piece, library.token_to_id(piece)) for piece in ("[CLS]", "[SEP]")],
    )
    own = folder / "modernbert"
    own.mkdir()
    library.save(str(own / "tokenizer.json"))
    find = _find_byte_level(data)
    tokenizer = Tokenizer.load(own)

    def tokenize_composed(text: str) -> list[str]:
        return [token for token, *_ in find(unicodedata.normalize("NFC", text))]

    def is_composed(text: str) -> bool:
        return unicodedata.is_normalized("NFC", text)

    return [
        Peer(tokenizer, tokenize_composed, None),
        Peer(tokenizer, None, compare_offsets(_spans(find)), is_composed),
    ]


def eurobert(data: Path, folder: Path) -> list[Peer]:
    """Byte-level BPE in a `tokenizer.json`, framed by the beginning and the end of a text.

    With GPT-2's words; EuroBERT's own differ, and are in its file.
    """
    merges = _merges(roberta_files(data, folder) / "merges.txt")
    library = Library(models.BPE(vocab=_byte_level_ids(data), merges=merges))
    first, last = "<|begin_of_text|>", "<|end_of_text|>"
    library.add_special_tokens([first, last, "<|mask|>"])
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B {last}",
        special_tokens=[(piece, library.token_to_id(piece)) for piece in (first, last)],
    )
    own = folder / "eurobert"
    own.mkdir()
    library.save(str(own / "tokenizer.json"))
    config = {"bos_token": first, "eos_token": last, "pad_token": last, "mask_token": "<|mask|>"}
    (own / "tokenizer_config.json").write_text(json.dumps(config))
    (own / "config.json").write_text(json.dumps({"model_type": "eurobert"}))
    find = _find_byte_level(data)
    tokenizer = Tokenizer.load(own)
    return [
        Peer(tokenizer, lambda t: [token for token, *_ in find(t)], compare_offsets(_spans(find)))
    ]


@cache  # families share what it computes
def _find_byte_level(data: Path) -> Callable[[str], list[tuple[str, int, int]]]:
    """GPT-2's tokens of a text, by the oracle."""
    merges = _merges(data / "vocab" / "gpt2-merges.txt")
    return lru_cache(1 << 14)(ByteLevelOracle(merges).tokenize)


def _spans(find: Callable[[str], list[tuple[str, int, int]]]) -> Callable[[str], Spans]:
    return lambda text: [(start, end) for _, start, end in find(text)]


def _byte_level_ids(data: Path) -> dict[str, int]:
    lines = (data / "vocab" / "gpt2-vocab-lines.txt").read_text(encoding="utf-8").split("\n")
    pieces = lines[:-1] if lines[-1] == "" else lines
    return {piece: number for number, piece in enumerate(pieces)}


def _merges(file: Path) -> list[tuple[str, str]]:
    lines = file.read_text(encoding="utf-8").split("\n")[1:]
    pairs = (line.split(" ") for line in lines if line)
    return [(first, second) for first, second in pairs]


# ----------------------------------------------------------------------------------- SentencePiece


def albert_files(data: Path, folder: Path) -> Path:
    (folder / "spiece.model").write_bytes((data / "vocab" / "albert-spiece.model").read_bytes())
    return folder


def albert(data: Path, folder: Path) -> list[Peer]:
    """Tokens as ALBERT's; offsets with its changes to the text left out, which move them.

    With its real model, of English, and with one of six languages.
    """
    library = sentencepiece.SentencePieceProcessor(str(albert_files(data, folder) / "spiece.model"))
    plain, other = folder / "plain", folder / "other"
    for directory in (plain, other):
        directory.mkdir()
    albert_files(data, plain)
    config = {"do_lower_case": False, "keep_accents": True}
    (plain / "tokenizer_config.json").write_text(json.dumps(config))
    (other / "spiece.model").write_bytes(_trained_on_xquad(data, "<pad>,[CLS],[SEP],[MASK]"))

    def spans(text: str) -> Spans:
        return [(start, end) for _, start, end in sentencepieces(library, text)]

    return [
        Peer(Tokenizer.load(folder), _original_ids(folder, lowercase=True), None),
        Peer(Tokenizer.load(other), _original_ids(other, lowercase=True), None),
        Peer(Tokenizer.load(plain), None, compare_offsets(spans), _is_read_as_is),
    ]


def _original_ids(folder: Path, *, lowercase: bool) -> Callable[[str], list[int]]:
    """The code of ALBERT and XLNet, which `transformers` still has as a part of another class."""
    theirs = SentencepieceTokenizer(
        str(folder / "spiece.model"), "<unk>", do_lower_case=lowercase, keep_accents=False
    )

    def ids(text: str) -> list[int]:
        # Word by word: in a long text, scores of single precision are equal that are not.
        pieces = (piece for word in text.split() for piece in theirs.tokenize(word))
        return [theirs.sp_model.piece_to_id(piece) for piece in pieces]

    return ids


def sentencepieces(
    model: sentencepiece.SentencePieceProcessor, text: str
) -> list[tuple[int, int, int]]:
    """SentencePiece's own pieces: id, and the characters that they came from, in part at least.

    Where each character of the normalised text came from is its own account too. What cannot be
    seen, before a piece and behind it, is left out.
    """
    normalized, origins = model.normalize(text, with_offsets=True)
    pieces = []
    position = 0
    for piece in model.encode(text, return_type="proto").pieces:
        first, position = position, position + len(piece.piece)
        assert normalized[first:position] == piece.piece
        start, last = origins[first], origins[position - 1]
        end = next((origin for origin in origins[position:] if origin > last), len(text))
        while start < end and _is_unseen(text[start]):
            start += 1
        while end > start and _is_unseen(text[end - 1]):
            end -= 1
        pieces.append((piece.id, start, start if piece.piece == "▁" else end))
    return pieces


def xlnet(data: Path, folder: Path) -> list[Peer]:
    """As ALBERT's, of another vocabulary and with capital letters."""
    plain = folder / "plain"
    plain.mkdir()
    for directory in (folder, plain):
        model = _trained_on_xquad(data, "<cls>,<sep>,<pad>,<mask>,<eod>,<eop>")
        (directory / "spiece.model").write_bytes(model)
        (directory / "config.json").write_text('{"model_type": "xlnet"}')
    (plain / "tokenizer_config.json").write_text('{"keep_accents": true}')
    library = sentencepiece.SentencePieceProcessor(str(folder / "spiece.model"))

    def spans(text: str) -> Spans:
        return [(start, end) for _, start, end in sentencepieces(library, text)]

    return [
        Peer(Tokenizer.load(folder), _original_ids(folder, lowercase=False), None),
        Peer(Tokenizer.load(plain), None, compare_offsets(spans), _is_read_as_is),
    ]


def _is_read_as_is(text: str) -> bool:
    """Whether neither quotes are changed before nor a number loses a comma."""
    return not re.search(r"``|''|\d,", text)


def _is_unseen(char: str) -> bool:
    """White space, and characters that have no width."""
    return char.isspace() or unicodedata.category(char) in ("Cf", "Cc")


def fairseq(family: str, shift: int, unk: int = 3) -> Callable[[Path, Path], list[Peer]]:
    """XLM-RoBERTa's and CamemBERT's: SentencePiece's ids, moved to make room for fairseq's."""

    def peers(data: Path, folder: Path) -> list[Peer]:
        (folder / "sentencepiece.bpe.model").write_bytes(_trained_on_xquad(data))
        (folder / "config.json").write_text(json.dumps({"model_type": family}))
        library = sentencepiece.SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
        find = lru_cache(1)(lambda text: sentencepieces(library, text))

        def ids(text: str) -> list[int]:
            return [number + shift if number else unk for number, *_ in find(text)]

        def spans(text: str) -> Spans:
            return [(start, end) for _, start, end in find(text)]

        return [Peer(Tokenizer.load(folder), ids, compare_offsets(spans))]

    return peers


def deberta_v2(data: Path, folder: Path) -> list[Peer]:
    (folder / "spm.model").write_bytes(_trained_on_xquad(data, "[PAD],[CLS],[SEP]"))
    return _own_ids(folder, "spm.model", "deberta-v2", '{"unk_token": "<unk>"}')


def rembert(data: Path, folder: Path) -> list[Peer]:
    """Tokens of the class, which keeps spaces at both ends; offsets where that changes nothing."""
    model = _trained_on_xquad(data, "[CLS],[SEP],[MASK]", is_rembert=True)
    (folder / "sentencepiece.model").write_bytes(model)
    (folder / "config.json").write_text('{"model_type": "rembert"}')
    library = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = Tokenizer.load(folder)

    def spans(text: str) -> Spans:
        return [(start, end) for _, start, end in sentencepieces(library, text)]

    ids = _ids_of_class("RemBertTokenizer", folder)

    def is_unchanged(text: str) -> bool:
        return ids(text) == library.encode(text)

    return [
        Peer(tokenizer, ids, None),
        Peer(tokenizer, None, compare_offsets(spans), is_unchanged),
    ]


def big_bird(data: Path, folder: Path) -> list[Peer]:
    (folder / "spiece.model").write_bytes(_trained_on_xquad(data, "<pad>,[CLS],[SEP],[MASK]"))
    return _own_ids(folder, "spiece.model", "big_bird", "{}")


def _own_ids(folder: Path, file: str, family: str, settings: str) -> list[Peer]:
    """The model file's own ids."""
    (folder / "config.json").write_text(json.dumps({"model_type": family}))
    (folder / "tokenizer_config.json").write_text(settings)
    library = sentencepiece.SentencePieceProcessor(str(folder / file))
    find = lru_cache(1)(lambda text: sentencepieces(library, text))

    def ids(text: str) -> list[int]:
        return [number for number, *_ in find(text)]

    def spans(text: str) -> Spans:
        return [(start, end) for _, start, end in find(text)]

    return [Peer(Tokenizer.load(folder), ids, compare_offsets(spans))]


@cache
def _trained_on_xquad(data: Path, control_symbols: str = "", is_rembert: bool = False) -> bytes:
    """A small SentencePiece model of six languages, trained as fairseq's were."""
    ids = {"pad_id": 0, "bos_id": 1, "unk_id": 2, "eos_id": -1} if is_rembert else {}
    buffer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([t for language in LANGUAGES for t in xquad(data, language)[:240]]),
        model_writer=buffer,
        vocab_size=4000,
        model_type="unigram",
        control_symbols=control_symbols,
        **ids,
        num_threads=1,
        minloglevel=2,
    )
    return buffer.getvalue()


# ----------------------------------------------------------------------------------- the first GPT


def gpt(data: Path, folder: Path) -> list[Peer]:
    """Merges learned by the library from XQuAD's English."""
    library = Library(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=3000,
        special_tokens=["<unk>"],
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    library.train_from_iterator(xquad(data, "en")[:240], trainer)
    library.model.save(str(folder))
    tokenizer = Tokenizer.load(folder)
    words = Oracle(lowercase=True).cached_words
    tokens = word_oracle(_merges(folder / "merges.txt"), words, set(tokenizer.pieces))

    def letters(token: str) -> str:
        return "" if token == "<unk>" else token.removesuffix("</w>")

    return [Peer(tokenizer, tokens, compare_words(words, letters))]


_xlm_roberta = fairseq("xlm-roberta", 1)

PEERS: dict[str, Callable[[Path, Path], list[Peer]]] = {
    "bert": wordpiece("bert", "uncased", "cased", "chinese"),
    "roberta": roberta,
    "xlm-roberta": _xlm_roberta,
    "camembert": fairseq("camembert", 4),
    "distilbert": wordpiece("distilbert", "cased"),
    "albert": albert,
    "ernie": wordpiece("ernie", "chinese"),
    "electra": wordpiece("electra", "uncased"),
    "modernbert": modernbert,
    "openai-gpt": gpt,
    "data2vec-text": roberta,
    "megatron-bert": wordpiece("megatron-bert", "uncased"),
    "roberta-prelayernorm": roberta,
    "xlm-roberta-xl": fairseq("xlm-roberta-xl", 1),
    "mpnet": mpnet,
    "rembert": rembert,
    "big_bird": big_bird,
    "eurobert": eurobert,
    "deberta": deberta,
    "deberta-v2": deberta_v2,
    "nomic_bert": wordpiece("nomic_bert", "uncased"),
    "gte": _xlm_roberta,
    "jina_embeddings_v3": fairseq("jina_embeddings_v3", 1),
    "squeezebert": wordpiece("squeezebert", "uncased"),
    "xlnet": xlnet,
    "mobilebert": wordpiece("mobilebert", "uncased"),
    "longformer": roberta,
}
"""For each family, what makes its tokenizers in a folder, from real data."""
