"""The `transformers` classes of tokenizers: how each reads its files, in one table.

A directory names its class in `tokenizer_config.json` or `config.json`, or the class follows from
its `model_type`. A class that is not in the table is an error: its files may look like another
class's, but their ids would be others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError
from ..utils.regular_files import read_content
from .definition import BERT_ROLES, CLS, MASK, SEP, UNK, Frame, Roles
from .file_names import MERGES, SENTENCEPIECES, TOKENIZER, VOCAB, read_optional

Algorithm = Literal[
    "WordPiece",
    "WordPiece of split words",
    "byte-level BPE",
    "BPE of words",
    "fastBPE",
    "Unigram",
    "letters",
]
"""How a class splits words into pieces."""

FILES_OF: Mapping[Algorithm, tuple[str, ...]] = {
    "WordPiece": (VOCAB,),
    "WordPiece of split words": (VOCAB, *SENTENCEPIECES[:1]),
    "byte-level BPE": (MERGES,),
    "BPE of words": (MERGES,),
    "fastBPE": (VOCAB,),
    "Unigram": SENTENCEPIECES,
    "letters": (VOCAB,),
}
"""The files of a vocabulary, without `tokenizer.json`."""

WITHOUT_JSON: frozenset[Algorithm] = frozenset({"WordPiece of split words", "fastBPE", "letters"})
"""Classes of these do not read `tokenizer.json`."""


@dataclass(frozen=True)
class FrameOfRoles:
    """The special pieces around one text or two, by their roles."""

    start: tuple[str, ...]
    middle: tuple[str, ...]
    end: tuple[str, ...]
    second_type: int
    cls_type: int = 0  # the token type of the piece with the role cls

    def frame_for(self, roles: Roles) -> Frame:
        """The frame with a tokenizer's pieces."""
        start, middle, end = (
            tuple(getattr(roles, role) or "" for role in part)
            for part in (self.start, self.middle, self.end)
        )
        special_types = ((roles.cls, self.cls_type),) if self.cls_type and roles.cls else ()
        return Frame(start, middle, end, self.second_type, special_types)


GENERAL_CLASS = "PreTrainedTokenizerFast"
"""The class that uses `tokenizer.json` unchanged, in every version of `transformers`."""

# Of RoBERTa, and of all models trained with fairseq.
_FAIRSEQ_ROLES = Roles("<pad>", "<unk>", "<s>", "</s>", "<mask>")
_BERT_FRAME = FrameOfRoles(("cls",), ("sep",), ("sep",), 1)
_ROBERTA_FRAME = FrameOfRoles(("cls",), ("sep", "sep"), ("sep",), 0)


@dataclass(frozen=True)
class TokenizerClass:
    """How a class reads its files."""

    name: str
    algorithm: Algorithm
    roles: Roles = BERT_ROLES  # if its settings name no others
    frame: FrameOfRoles = _BERT_FRAME
    model_types: tuple[str, ...] = ()  # the families that use it if no file names a class
    other_frames: tuple[FrameOfRoles, ...] = ()  # those that its tokenizer.json may have instead
    reads_prefix_space: bool = False  # whether `add_prefix_space` is only read from its settings
    # Whether `transformers` gives the tokens of a saved copy under this name. Otherwise it builds
    # another tokenizer from the vocabulary, so a copy names the general class.
    is_name_saved: bool = True

    def saved_settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of a copy, from those that were read."""
        return {**config} if self.is_name_saved else {**config, "tokenizer_class": GENERAL_CLASS}


# Those that read BERT's files as BERT's class does.
_LIKE_BERT = (
    *("DistilBertTokenizer", "ElectraTokenizer", "ErnieTokenizer", "MobileBertTokenizer"),
    *("SqueezeBertTokenizer", "ConvBertTokenizer", "LayoutLMTokenizer", "LxmertTokenizer"),
    *("RetriBertTokenizer", "RealmTokenizer", "NezhaTokenizer", "DPRReaderTokenizer"),
    *("DPRQuestionEncoderTokenizer", "DPRContextEncoderTokenizer"),
)
_BERT_TYPES = (
    *("bert", "distilbert", "electra", "ernie", "convbert", "layoutlm", "lxmert", "megatron-bert"),
    *("mobilebert", "nezha", "nomic_bert", "qdqbert", "realm", "retribert", "squeezebert", "dpr"),
    *("bros", "visual_bert"),
)
_ROBERTA_TYPES = (
    *("roberta", "roberta-prelayernorm", "data2vec-text", "ibert", "lilt", "longformer", "mega"),
    *("mra", "bart"),
)
_XLM_ROBERTA_TYPES = ("xlm-roberta", "xlm-roberta-xl", "xmod", "gte", "jina_embeddings_v3")
_FAIRSEQ: dict[str, Any] = {"roles": _FAIRSEQ_ROLES, "frame": _ROBERTA_FRAME}
_ROBERTA: dict[str, Any] = {**_FAIRSEQ, "reads_prefix_space": True}
_ALBERT_ROLES = Roles("<pad>", "<unk>", CLS, SEP, MASK)

CLASSES: Mapping[str, TokenizerClass] = {
    entry.name: entry
    for entry in (
        TokenizerClass("BertTokenizer", "WordPiece", model_types=_BERT_TYPES),
        *(TokenizerClass(name, "WordPiece") for name in _LIKE_BERT),
        TokenizerClass(
            "MPNetTokenizer",
            "WordPiece",
            Roles("<pad>", UNK, "<s>", "</s>", "<mask>"),
            _ROBERTA_FRAME,
            ("mpnet",),
        ),
        TokenizerClass(
            "FunnelTokenizer",
            "WordPiece",
            Roles("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
            FrameOfRoles(("cls",), ("sep",), ("sep",), 1, cls_type=2),
            ("funnel",),
        ),
        TokenizerClass(
            "BertJapaneseTokenizer", "WordPiece of split words", model_types=("bert-japanese",)
        ),
        TokenizerClass("RoFormerTokenizer", "WordPiece of split words", model_types=("roformer",)),
        TokenizerClass(
            "RobertaTokenizer", "byte-level BPE", model_types=_ROBERTA_TYPES, **_ROBERTA
        ),
        TokenizerClass("BartTokenizer", "byte-level BPE", **_ROBERTA),
        TokenizerClass("LongformerTokenizer", "byte-level BPE", **_ROBERTA),
        TokenizerClass("LEDTokenizer", "byte-level BPE", model_types=("led",), **_ROBERTA),
        TokenizerClass("GPT2Tokenizer", "byte-level BPE", model_types=("gpt2",), **_ROBERTA),
        TokenizerClass(
            "DebertaTokenizer",
            "byte-level BPE",
            model_types=("deberta",),
            # Since version 5, `transformers` puts two separators between texts.
            other_frames=(_ROBERTA_FRAME,),
            reads_prefix_space=True,
            is_name_saved=False,
        ),
        TokenizerClass(
            "OpenAIGPTTokenizer",
            "BPE of words",
            Roles(unk="<unk>"),
            FrameOfRoles((), (), (), 0),
            ("openai-gpt",),
        ),
        TokenizerClass(
            "HerbertTokenizer", "BPE of words", _FAIRSEQ_ROLES, model_types=("herbert",)
        ),
        TokenizerClass("PhobertTokenizer", "fastBPE", model_types=("phobert",), **_FAIRSEQ),
        TokenizerClass("BertweetTokenizer", "fastBPE", model_types=("bertweet",), **_FAIRSEQ),
        TokenizerClass(
            "EsmTokenizer",
            "letters",
            Roles("<pad>", "<unk>", "<cls>", "<eos>", "<mask>"),
            FrameOfRoles(("cls",), ("sep",), ("sep",), 0),
            ("esm",),
            is_name_saved=False,
        ),
        TokenizerClass(
            "AlbertTokenizer",
            "Unigram",
            _ALBERT_ROLES,
            model_types=("albert", "yoso"),
            is_name_saved=False,
        ),
        TokenizerClass(
            "XLMRobertaTokenizer", "Unigram", model_types=_XLM_ROBERTA_TYPES, **_FAIRSEQ
        ),
        TokenizerClass("CamembertTokenizer", "Unigram", model_types=("camembert",), **_FAIRSEQ),
        TokenizerClass(
            "DebertaV2Tokenizer", "Unigram", model_types=("deberta-v2",), is_name_saved=False
        ),
        TokenizerClass(
            "RemBertTokenizer",
            "Unigram",
            _ALBERT_ROLES,
            model_types=("rembert",),
            is_name_saved=False,
        ),
        TokenizerClass(
            "BigBirdTokenizer",
            "Unigram",
            _ALBERT_ROLES,
            model_types=("big_bird",),
            is_name_saved=False,
        ),
        TokenizerClass(
            "XLNetTokenizer",
            "Unigram",
            Roles("<pad>", "<unk>", "<cls>", "<sep>", "<mask>"),
            FrameOfRoles((), ("sep",), ("sep", "cls"), 1, cls_type=2),
            ("xlnet",),
            is_name_saved=False,
        ),
        # KoBERT's, in two releases: XLNet's with BERT's pieces around texts.
        TokenizerClass("KoBERTTokenizer", "Unigram", is_name_saved=False),
        TokenizerClass("KoBertTokenizer", "Unigram", is_name_saved=False),
    )
}
"""The classes that are read, by name."""

_GENERAL = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"}
"""The names of that class."""

_UNSUPPORTED_TYPES = {
    "bert-generation": "BertGenerationTokenizer",
    "canine": "CanineTokenizer",
    "esmc": "EsmcTokenizer",
    "flaubert": "FlaubertTokenizer",
    "fnet": "FNetTokenizer",
    "layoutlmv2": "LayoutLMv2Tokenizer",
    "layoutlmv3": "LayoutLMv3Tokenizer",
    "layoutxlm": "LayoutXLMTokenizer",
    "luke": "LukeTokenizer",
    "markuplm": "MarkupLMTokenizer",
    "mluke": "MLukeTokenizer",
    "perceiver": "PerceiverTokenizer",
    "prophetnet": "ProphetNetTokenizer",
    "reformer": "ReformerTokenizer",
    "roc_bert": "RoCBertTokenizer",
    "splinter": "SplinterTokenizer",
    "tapas": "TapasTokenizer",
    "xlm": "XLMTokenizer",
}
"""The classes of other families of encoders, which are refused."""

_CLASS_OF_TYPE = {
    **_UNSUPPORTED_TYPES,
    **{kind: entry.name for entry in CLASSES.values() for kind in entry.model_types},
}
# The files of these families often name a wrong class; their `tokenizer.json` is used unchanged.
_MISNAMING_TYPES = {"modernbert", "modernbert-decoder"}
_LLAMA_NAMES = {"LlamaTokenizer", "LlamaTokenizerFast"}  # with a byte-level file
_MISNAMING_MODELS = {"camembertv2-base", "camembertav2-base"}  # by the entry `model_name`


def find_class(directory: Path, config: Mapping[str, Any]) -> TokenizerClass | None:
    """The `transformers` class that opens a directory.

    None: a class that uses `tokenizer.json` unchanged, as for a single file.

    Raises:
        DataError: a class is named that is not in the table.
    """
    model = read_optional(directory / "config.json")
    family = model.get("model_type")
    if family in _MISNAMING_TYPES or model.get("model_name") in _MISNAMING_MODELS:
        return None
    for file, entries in (("tokenizer_config.json", config), ("config.json", model)):
        name = entries.get("tokenizer_class")
        if not isinstance(name, str | None):
            raise DataError("tokenizer_class is no string", where=f"{directory / file}")
        if name in _LLAMA_NAMES and _is_byte_level(directory / TOKENIZER):
            return None
        if name and name.startswith("XLNet") and family == "bert":
            raise DataError(
                "the tokenizer class XLNetTokenizer contradicts model_type bert: it puts the piece "
                "for classification last",
                where=f"{directory / file}",
                fix="If this is KoBERT, set tokenizer_class to KoBERTTokenizer.",
            )
        if name:
            return _class_of_name(name, f"{directory / file}")
    if "word_tokenizer_type" in config:  # older files of this class name no class
        return _class_of_name("BertJapaneseTokenizer", str(directory))
    name = _CLASS_OF_TYPE.get(family) if isinstance(family, str) else None
    return None if name is None else _class_of_name(name, str(directory))


def _is_byte_level(file: Path) -> bool:
    return file.exists() and b'"ByteLevel"' in read_content(file, DataError)


def _class_of_name(class_name: str, where: str) -> TokenizerClass | None:
    name = class_name.removesuffix("Fast")
    if name in _GENERAL:
        return None
    if name not in CLASSES:
        raise DataError(
            f"the tokenizer class {name} is not supported",
            where=where,
            fix="Its ids would be others. If tokenizer.json holds the whole tokenizer, set "
            "tokenizer_class to PreTrainedTokenizerFast in tokenizer_config.json; if the files "
            "are BERT's, to BertTokenizer.",
        )
    return CLASSES[name]


def check_case_is_kept(lowercase: bool | None, file: Path) -> None:
    """Check that `lowercase` is left out, since the case of this kind of file cannot be changed.

    Raises:
        DataError: it is not.
    """
    if lowercase is not None:
        raise DataError(
            "this tokenizer's case cannot be changed", where=str(file), fix="Leave `lowercase` out."
        )


def check_algorithm(opener: TokenizerClass | None, algorithm: Algorithm | None, file: Path) -> None:
    """Check that a file is of a kind that its directory's class reads.

    Args:
        opener: the class of the directory; None: a class that reads any file.
        algorithm: the algorithm of the file; None: none that a class of the table has.

    Raises:
        DataError: the class reads another kind of file.
    """
    if opener is not None and opener.algorithm != algorithm:
        raise DataError(
            f"is {algorithm or 'of another kind'}, but the tokenizer class {opener.name} reads "
            f"{opener.algorithm}",
            where=str(file),
            fix="Set tokenizer_class in tokenizer_config.json to the class of this file, or to "
            "PreTrainedTokenizerFast if tokenizer.json holds the whole tokenizer.",
        )
