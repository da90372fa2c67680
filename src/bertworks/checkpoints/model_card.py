"""A model card: the `README.md` of a model, whose parts are rewritten unless a user edited them.

    ---
    language: en                            entries: the front matter, in YAML
    pipeline_tag: text-classification
    ---
    # Tickets                               the title; all text outside of sections is the user's

    <!-- bertworks: training -->            sections
    …
    <!-- bertworks: end -->

    <!-- bertworks wrote: language=… -->    checksums of the parts (`utils/edits.py`)

An entry or a section is replaced if it is as this package wrote it. What a user has changed, added
or removed stays so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import yaml

from ..settings.yaml_values import dump_yaml, load_yaml
from ..utils.edits import checksum, read_checksums, with_checksums

CARD = "README.md"
_FRONT_MATTER = re.compile(
    r"\ufeff?\s*---[ \t]*\n(.*?)^---[ \t]*(?:\n|\Z)", re.DOTALL | re.MULTILINE
)
_KEY = re.compile(r"""["']?([\w-]+)["']?:""")
_SECTION = re.compile(r"<!-- bertworks: (\w+) -->\n(.*?)<!-- bertworks: end -->\n", re.DOTALL)


@dataclass(frozen=True)
class ModelCard:
    """The text of a model card.

    Attributes:
        text: the content of `README.md`.
        hub_name: the model's name on the hub, if it was loaded from there.
    """

    text: str = ""
    hub_name: str | None = None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The entries of the front matter; empty if it is absent or is not valid YAML."""
        match = _FRONT_MATTER.match(self.text)
        if match is None:
            return {}
        try:
            values = load_yaml(match[1])
        except (yaml.YAMLError, ValueError, RecursionError):
            return {}
        return values if isinstance(values, dict) else {}

    def derive(self, *, is_same_model: bool) -> Self:
        """Return the card of a model that is made from this one.

        Args:
            is_same_model: whether it is this model, changed or stored in another way, so that what
                a user wrote holds for it too. A card on the hub is its author's: of such a model,
                as of another, only the language, the licence and the name are taken over.
        """
        if is_same_model and self.hub_name is None:
            return self
        names = ("language", "license", "license_name", "license_link")
        values = {name: self.metadata.get(name) for name in names}
        if values["language"] is False:  # YAML's reading of Norwegian: no
            values["language"] = "no"
        values["base_model"] = self.hub_name or self.metadata.get("base_model")
        return type(self)().update({name: value for name, value in values.items() if value}, {})

    def update(self, entries: Mapping[str, Any], sections: Mapping[str, str | None]) -> Self:
        """Return the card with other entries and sections, but for those that a user edited.

        Args:
            entries: values of the front matter; None removes one.
            sections: texts by name; None removes one; a new section is added at the end.
        """
        rest, checksums = read_checksums(self.text) or (self.text, {})
        match = _FRONT_MATTER.match(rest)
        head, body = ("", rest) if match is None else (match[1], rest[match.end() :])
        blocks = dict(_blocks(head))
        for name, value in entries.items():
            block = blocks.get(name)
            if checksums.get(name) != (None if block is None else checksum(block)):
                continue  # the user's
            if value is None:
                blocks.pop(name, None)
                checksums.pop(name, None)
            else:
                blocks[name] = dump_yaml({name: value})
                checksums[name] = checksum(blocks[name])
        existing = {found[1]: found for found in _SECTION.finditer(body)}
        for name, text in sections.items():
            section = existing.get(name)
            if checksums.get(name) != (None if section is None else checksum(section[2])):
                continue
            if text is None:
                body = body if section is None else body.replace(section[0], "", 1)
                checksums.pop(name, None)
                continue
            new = f"<!-- bertworks: {name} -->\n{text}<!-- bertworks: end -->\n"
            gap = "\n" if body and not body.endswith("\n\n") else ""
            body = f"{body}{gap}{new}" if section is None else body.replace(section[0], new, 1)
            checksums[name] = checksum(text)
        front_matter = f"---\n{''.join(blocks.values())}---\n" if blocks else ""
        return type(self)(with_checksums(front_matter + body, checksums))

    def update_from(self, other: ModelCard) -> Self:
        """Return the card with what this package wrote in another card of the model."""
        rest, checksums = read_checksums(other.text) or (other.text, {})
        match = _FRONT_MATTER.match(rest)
        blocks = dict(_blocks("" if match is None else match[1]))
        entries = {
            name: other.metadata.get(name)
            for name, block in blocks.items()
            if checksums.get(name) == checksum(block)
        }
        own = read_checksums(self.text)
        removed = set() if own is None else own[1].keys() & (self.metadata.keys() - blocks.keys())
        sections: dict[str, str | None] = {
            match[1]: match[2]
            for match in _SECTION.finditer(rest)
            if checksums.get(match[1]) == checksum(match[2])
        }
        own_sections = {match[1] for match in _SECTION.finditer(self.text)}
        all_sections = dict.fromkeys(own_sections - sections.keys()) | sections
        return self.update(dict.fromkeys(removed) | entries, all_sections)

    def with_title(self, title: str) -> Self:
        """Return the card with a title, if it has no text before its sections."""
        rest, checksums = read_checksums(self.text) or (self.text, {})
        match = _FRONT_MATTER.match(rest)
        start = 0 if match is None else match.end()
        if rest[start:].strip() and not rest[start:].lstrip().startswith("<!-- bertworks: "):
            return self
        text = f"{rest[:start]}# {title}\n\n{rest[start:].lstrip()}"
        return type(self)(with_checksums(text, checksums))


def _blocks(front_matter: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the lines of each entry; lines before the first have no name."""
    name, lines = "", ""
    for line in front_matter.splitlines(keepends=True):
        match = _KEY.match(line)
        if match is not None:
            if lines:
                yield name, lines
            name, lines = match[1], ""
        lines += line
    if lines:
        yield name, lines
