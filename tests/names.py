"""Counts names that do not say what a thing is: `python -m tests.names [FOLDER...]`.

A name that is a bare participle, preposition or adverb (`found`, `given`, `beside`) says what
happened to a value, not what it is. The script lists all variables, parameters, attributes,
functions and classes with such a name, or with one of the metaphors below. Variables whose first
binding and last use are within three lines are left out; parameters, attributes, functions,
classes and modules always count.

It also lists tests whose names are not `test_<subject>_<behaviour>` in plain words.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "bertworks"
LINES = 3
"""A variable may have any name for so many lines."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


IRREGULAR = _words(
    """
    begun bent bought broken brought built caught chosen cut dealt done drawn driven fallen fed
    felt forgotten found frozen given gone grown heard held kept known laid lain lent lost made
    meant met overwritten paid proven rebuilt rewritten risen said seen sent shaken shown shut
    sold sought spent spoken spread spun stood struck stuck sunk taken taught thought thrown
    told torn understood undone unknown unseen unsent withdrawn won worn written
    """
)
"""Participles that do not end in `-ed`. Not `left`, `set`, `read`, `split`, `put`, `hit` and
`bound`, which are a side, a collection, verbs and nouns as well."""

PREPOSITIONS_AND_ADVERBS = _words(
    """
    about above across after afterwards again ahead alike almost alone along already also apart
    around aside at away back before behind below beneath beside besides between beyond by down
    during earlier elsewhere ever everywhere far for forth from here how in inside instead into
    later like near never nowhere of off often on once onto otherwise outside over past since
    somewhere still then there throughout thus to together too toward towards twice under until
    up upon via when where while with within without yet
    """
)

METAPHORS = _words(
    """
    lane lanes stranger strangers surgery team teams thaw thawed thaws turnstile twin twins
    """
)
"""Not `gate`: a gated layer has one."""

NOUNS_AND_VERBS = _words(
    """
    deed embed exceed feed heed need proceed seed shed speed succeed weed
    """
)
"""Words in `-ed` that are no participles."""

FIELD = frozenset(
    {
        "cased",  # a vocabulary is cased or uncased
        "uncased",
        "expected",  # of assertions and messages, before what is actual
        "fused",  # an optimizer whose step is one kernel
        "gated",  # a layer with a gate
        "labelled",  # a table, a row: with labels
        "unlabelled",
        "unknown",  # an unknown token; a kind of piece in SentencePiece, as is an unused one
        "unused",
        "masked",  # masked tokens, masked language model
        "mixed",  # mixed precision
        "normalized",  # of an added token, in `tokenizers`
        "packed",  # sequences end to end, without padding; `torch.nn.utils.rnn.PackedSequence`
        "padded",
        "pooled",  # `pooled_output`
        "predicted",  # predicted and gold
        "pretrained",
        "quantized",
        "required",  # of options and fields, in argparse and pydantic
        "sharded",
        "sorted",
        "spread",  # of values, in statistics
        "tied",  # tied embeddings
        "tokenized",
        "truncated",
        "weighted",  # `average="weighted"` of scikit-learn
        "closed",  # a property of Python's file objects
        "created",  # of an answer of OpenAI's API, as is `owned_by`
        "distributed",  # distributed training; `torch.distributed`
        "sized",  # `collections.abc.Sized`
        "to",  # `torch.Tensor.to`
        "where",  # a part of an error, between `what` and `fix`
    }
)
"""Participles, prepositions and adverbs that name a thing in the field."""

NO_SUBJECT = _words(
    """
    both how it its none nothing that there these they this those what whatever when where which
    whichever while who whoever whose
    """
)
DIALECT = _words(
    """
    asked beside complained complains gone lacking said stand stands told tells theirs
    """
)
VERBS = _words(
    """
    are be can cannot could did do does had has have is may must need needs should was were will
    """
)


def is_word(word: str) -> bool:
    """Whether a word of a name is a participle, preposition, adverb or metaphor."""
    if word in NOUNS_AND_VERBS or word in FIELD:
        return False
    if word in IRREGULAR or word in PREPOSITIONS_AND_ADVERBS or word in METAPHORS:
        return True
    return word.endswith("ed") and len(word) > 3


def is_bare(name: str) -> bool:
    """Whether a name has nothing but such words, or any metaphor."""
    words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)]
    return bool(words) and (all(map(is_word, words)) or not METAPHORS.isdisjoint(words))


def find_test_name_fault(name: str) -> str | None:
    """What a test's name lacks, by rules of thumb, or None."""
    words = name.removeprefix("test_").split("_")
    is_participle_alone = is_word(words[0]) and (
        words[1:2] == ["and"] or all(map(is_word, words[:2]))
    )
    if words[0] in NO_SUBJECT | PREPOSITIONS_AND_ADVERBS or is_participle_alone:
        return "no subject"
    is_plural = words[0].endswith("s") and len(words) > 2 and not is_word(words[1])
    if not is_plural and not any(word in VERBS or word.endswith("s") for word in words[1:]):
        return "no behaviour"
    if not DIALECT.isdisjoint(words) or {"goes", "on"} <= set(words):
        return "dialect"
    return None


@dataclass
class Binding:
    """A name in a scope."""

    name: str
    kind: str
    """`variable`, `parameter`, `attribute`, `function`, `class` or `module`."""
    first: int
    last: int
    file: Path

    @property
    def lines(self) -> int:
        return self.last - self.first + 1

    @property
    def is_counted(self) -> bool:
        return is_bare(self.name) and (self.kind != "variable" or self.lines > LINES)

    def __str__(self) -> str:
        return f"{_shorten(self.file)}:{self.first}: {self.name} ({self.kind}, {self.lines})"


@dataclass
class Scope:
    """A module, class, function, lambda or comprehension."""

    kind: str
    names: dict[str, Binding] = field(default_factory=dict)
    outer_names: set[str] = field(default_factory=set)
    """Those that are declared `global` or `nonlocal`."""


class Bindings(ast.NodeVisitor):
    """All bindings of a module."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.scopes = [Scope("module")]
        self.bindings: list[Binding] = []
        self.uses: list[tuple[str, int, list[Scope]]] = []
        tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
        if file.stem != "__init__":
            self.bindings.append(Binding(file.stem, "module", 1, 1, file))
        self.visit(tree)
        self._count_lines()

    def _count_lines(self) -> None:
        """A name is used in the innermost scope that binds it; classes have no inner scopes."""
        for name, line, scopes in self.uses:
            visible = [scopes[-1], *(each for each in scopes[-2::-1] if each.kind != "class")]
            owner = next((each.names[name] for each in visible if name in each.names), None)
            if owner is not None:
                owner.last = max(owner.last, line)

    def _bind(
        self, name: str, line: int, kind: str = "variable", scope: Scope | None = None
    ) -> None:
        scope = scope or self.scopes[-1]
        if name in scope.outer_names:
            return
        if kind == "variable" and scope.kind in ("class", "module"):
            kind = "attribute"  # other modules use it
        if name in scope.names:
            scope.names[name].last = max(scope.names[name].last, line)
        else:
            scope.names[name] = Binding(name, kind, line, line, self.file)
            self.bindings.append(scope.names[name])

    def visit(self, node: ast.AST) -> None:
        match node:
            case ast.Name():
                if isinstance(node.ctx, ast.Store):
                    self._bind(node.id, node.lineno)
                self.uses.append((node.id, node.lineno, list(self.scopes)))
            case ast.Attribute():
                self._visit_attribute(node)
            case ast.NamedExpr():
                self.visit(node.value)
                scope = next(each for each in self.scopes[::-1] if each.kind != "comprehension")
                self._bind(node.target.id, node.lineno, scope=scope)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind(node.name, node.lineno, "function")
                self._visit_all([*node.decorator_list, node.returns])
                self._visit_function(node.args, node.body, "parameter")
            case ast.Lambda():
                self._visit_function(node.args, [node.body], "variable")
            case ast.ClassDef():
                self._bind(node.name, node.lineno, "class")
                self._visit_all([*node.decorator_list, *node.bases, *node.keywords])
                self._visit_scope("class", node.body)
            case ast.DictComp():
                self._visit_scope("comprehension", [*node.generators, node.key, node.value])
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                self._visit_scope("comprehension", [*node.generators, node.elt])
            case ast.Global() | ast.Nonlocal():
                self.scopes[-1].outer_names.update(node.names)
            case _:
                self._visit_other(node)

    def _visit_attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        classes = [each for each in self.scopes if each.kind == "class"]
        if is_own and classes and isinstance(node.ctx, ast.Store):
            self._bind(node.attr, node.lineno, "attribute", classes[-1])

    def _visit_function(self, arguments: ast.arguments, body: Sequence[ast.AST], kind: str) -> None:
        self._visit_all([*arguments.defaults, *arguments.kw_defaults])
        self.scopes.append(Scope("function"))
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        for each in [*every, arguments.vararg, arguments.kwarg]:
            if each is not None:
                self._bind(each.arg, each.lineno, kind)
                self._visit_all([each.annotation])
        self._visit_all(body)
        self.scopes.pop()

    def _visit_other(self, node: ast.AST) -> None:
        """Some nodes hold a name as a string."""
        match node:
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                self._bind(name, node.lineno)
            case ast.MatchStar(name=str(name)) | ast.alias(asname=str(name)):
                self._bind(name, node.lineno)
            case ast.MatchMapping(rest=str(name)):
                self._bind(name, node.lineno)
        self.generic_visit(node)

    def _visit_scope(self, kind: str, nodes: Iterable[ast.AST | None]) -> None:
        self.scopes.append(Scope(kind))
        self._visit_all(nodes)
        self.scopes.pop()

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)


def bindings(folders: Iterable[Path]) -> Iterator[Binding]:
    """All bindings of the Python files of folders."""
    for folder in folders:
        files = sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]
        for file in files:
            yield from Bindings(file).bindings


def totals(matches: Iterable[Binding], root: Path) -> dict[str, Counter[str]]:
    """How many bindings are counted by name, by folder below the root, and by file."""
    names: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for binding in matches:
        path = binding.file.relative_to(root)
        names[binding.name.strip("_")] += 1
        folders[path.parts[0] if len(path.parts) > 1 else "."] += 1
        files[path.as_posix()] += 1
    return {"name": names, "folder": folders, "file": files}


def _shorten(file: Path) -> Path:
    return file.relative_to(ROOT) if file.is_relative_to(ROOT) else file


def main(arguments: list[str]) -> None:
    for folder in [Path(argument).resolve() for argument in arguments] or [PACKAGE]:
        every = list(bindings([folder]))
        matches = [binding for binding in every if binding.is_counted]
        for binding in matches:
            print(binding)
        root = folder if folder.is_dir() else folder.parent
        for title, counts in totals(matches, root).items():
            if title != "file":
                print(f"\nby {title}:")
                print("\n".join(f"{count:6} {key}" for key, count in counts.most_common()))
        _print_test_names(every)
        print(f"\n{_shorten(folder)}: {len(matches):,} of {len(every):,} bindings")


def tests_of(every: Iterable[Binding]) -> list[tuple[Binding, str | None]]:
    """The tests among bindings, each with what its name lacks."""
    return [
        (each, find_test_name_fault(each.name))
        for each in every
        if each.kind == "function"
        and each.name.startswith("test_")
        and each.file.name.startswith("test_")
    ]


def _print_test_names(every: Iterable[Binding]) -> None:
    tests = tests_of(every)
    faults = [(each, fault) for each, fault in tests if fault]
    if tests:
        print("\ntest names:")
        for test, fault in faults:
            print(f"{_shorten(test.file)}:{test.first}: {test.name} ({fault})")
        print(f"{len(faults):,} of {len(tests):,} tests")


if __name__ == "__main__":
    main(sys.argv[1:])
