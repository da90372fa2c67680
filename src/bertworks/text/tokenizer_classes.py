"""The `transformers` classes of tokenizers: which of them opens a directory."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

from ..errors import DataError
from .file_names import read_optional

# The `transformers` class of a family, if no file names one.
_CLASSES = {
    **dict.fromkeys(("bert", "distilbert", "electra", "ernie"), "BertTokenizer"),
    "mpnet": "MPNetTokenizer",
    "roformer": "RoFormerTokenizer",
    "roberta": "RobertaTokenizer",
    "gpt2": "GPT2Tokenizer",
}
# The classes that read BERT's files as BERT's class does.
BERTS = {
    *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "ErnieTokenizer"),
    *("MobileBertTokenizer", "SqueezeBertTokenizer", "ConvBertTokenizer", "LayoutLMTokenizer"),
    *("LxmertTokenizer", "RetriBertTokenizer", "DPRReaderTokenizer"),
    *("DPRQuestionEncoderTokenizer", "DPRContextEncoderTokenizer"),
}
# The classes that read `vocab.json` and `merges.txt` as GPT-2's, RoBERTa's or the first GPT's do.
BPES = {
    *("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),
    *("GPT2Tokenizer", "OpenAIGPTTokenizer"),
}
# Classes that use `tokenizer.json` unchanged.
_GENERAL = {"PreTrainedTokenizer", "TokenizersBackend", "PythonBackend"}
# Classes that read `add_prefix_space` only from `tokenizer_config.json`.
PREFIXING = {
    *("RobertaTokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),
    "GPT2Tokenizer",
}


def find_class(directory: Path, config: dict[str, Any]) -> str | None:
    """The `transformers` class that opens a directory.

    None: a class that uses `tokenizer.json` unchanged, as for a single file.
    """
    model = read_optional(directory / "config.json")
    family = model.get("model_type")
    if family == "modernbert":  # its files often name a wrong class
        return None
    class_name = config.get("tokenizer_class") or model.get("tokenizer_class")
    if isinstance(class_name, str):
        class_name = class_name.removesuffix("Fast")
        return None if class_name in _GENERAL else class_name
    return _CLASSES.get(family, family) if isinstance(family, str) else None


def check_class(directory: Path, config: dict[str, Any], supported: Container[str]) -> None:
    """Check that a directory's files are those of a class that reads them as it is done here.

    BERT's files are also those of classes that first split words otherwise
    (`BertJapaneseTokenizer`) or put other pieces around texts (`MPNetTokenizer`).

    Raises:
        DataError: another class is named.
    """
    opener = find_class(directory, config)
    is_named = opener in _CLASSES.values() or (opener or "")[:1].isupper()
    if opener is not None and is_named and opener not in supported:
        raise DataError(
            f"the tokenizer class {opener} is not supported",
            where=str(directory),
            fix="Its ids would be others. If the files are BERT's, set tokenizer_class to "
            "BertTokenizer in tokenizer_config.json.",
        )
