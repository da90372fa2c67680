"""YAML: documents, files of settings, and the values that a user types.

PyYAML is imported by this module alone, and this module where something is read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml

from ..errors import SettingsError, first_line
from ..utils.regular_files import read_bytes

_MAX_NODES = 100_000
"""Maximum number of values in a YAML document; aliases could expand ten lines to billions."""


class _Loader(yaml.SafeLoader):
    """YAML loader that limits the size and rejects duplicate keys (else the last would count)."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        node = super().compose_node(parent, index)
        children = list(node.value) if isinstance(node, yaml.CollectionNode) else []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in children for child in pair]
        size = 1 + sum(self._sizes.get(id(child), 1) for child in children)
        if node is not None and size > _MAX_NODES:
            raise yaml.composer.ComposerError(
                None, None, f"it has more than {_MAX_NODES:,} values", node.start_mark
            )
        self._sizes[id(node)] = size
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in keys:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key.value!r} is given twice", key.start_mark
                    )
                keys.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_integer(self, node: yaml.ScalarNode) -> int:
        return int(str(self.construct_scalar(node)).replace("_", ""))


class _Dumper(yaml.SafeDumper):
    """YAML dumper that quotes each text that the loader, or one of YAML 1.1, reads as a number."""


# As in YAML 1.2: in 1.1, 010 is 8, 1:30 is 90, and 1e-4 is a text.
_NUMBERS = {
    "int": r"[-+]?[0-9][0-9_]*",
    "float": r"[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
_TAGS = {f"tag:yaml.org,2002:{kind}": re.compile(f"(?:{it})$") for kind, it in _NUMBERS.items()}
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] not in _TAGS]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _TAGS.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_tag, _pattern, list("-+.0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)


def load_yaml(text: str) -> Any:
    """Parse a YAML document.

    Raises:
        yaml.YAMLError, ValueError, RecursionError: it is not valid YAML, or too large.
    """
    return yaml.load(text, Loader=_Loader)  # a SafeLoader


def dump_yaml(tree: Mapping[str, Any]) -> str:
    """Return a mapping as YAML, in its order."""
    return yaml.dump(dict(tree), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the settings in a file, without validation.

    Raises:
        SettingsError: the file is missing, cannot be read, or is not a YAML mapping.
    """
    try:
        tree = load_yaml(read_bytes(path).decode("utf-8"))
    except FileNotFoundError:
        raise SettingsError("no such file", where=str(path)) from None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot be read ({first_line(error)})", where=str(path)) from None
    except (ValueError, RecursionError) as error:  # 2024-99-99 is not a date; [[[… is too deep
        raise SettingsError(f"not valid YAML ({_reason(error)})", where=str(path)) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = " ".join(str(getattr(error, "problem", error)).split())
        raise SettingsError(f"not valid YAML ({problem})", where=where) from None
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingsError("the file must hold `key: value` lines", where=str(path))
    return tree


def parse_value(text: str, kind: Any) -> Any:
    """Parse the value that a user types for a setting: text as it is, other types as YAML.

    Lists need no brackets: layers=-2,-1. In those of texts, yes and 1 are texts too. Where a text
    or a list of texts is allowed, ["a", "b"] is a list, and [a] a text.
    """
    has_texts = get_origin(kind) is tuple and str in get_args(kind)
    is_list = any(get_origin(part) is tuple for part in (kind, *get_args(kind)))
    if not has_texts and str in (kind, *get_args(kind)):
        texts = _parse_scalar(text) if is_list and re.match(r"\[\s*[\"']", text) else None
        return texts if isinstance(texts, list) else _parse_text(text)
    if is_list and text[:1] not in ("[", "~") and text not in ("", "null"):
        if has_texts and not set(text) & set("\"'"):
            return [part.strip() for part in text.split(",")]
        text = f"[{text}]"
    return _parse_scalar(text)


def _parse_scalar(text: str) -> Any:
    try:
        value = load_yaml(text)
    except yaml.constructor.ConstructorError as error:
        raise SettingsError(f"{text}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date such as 2001-99-99
        return text
    if isinstance(value, str):  # inf and nan, which the setting then refuses as numbers
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _parse_text(text: str) -> str | None:
    """Return text as typed, but without YAML's quotes, and None for `~` and `null`."""
    if text in ("~", "null"):
        return None
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        try:
            return str(yaml.safe_load(text))
        except (yaml.YAMLError, ValueError):
            return text
    return text


def _reason(error: Exception) -> str:
    return "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
