"""A store in a table of PostgreSQL, with pgvector: `postgresql://USER@HOST/DATABASE?table=NAME`.

The table has a row for each text: `number, id, text, vector`. Its comment has the model's
fingerprint. A change is one transaction; there is one writer at a time.
"""

from __future__ import annotations

import json
import warnings
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import numpy as np
from numpy.typing import NDArray

from ...errors import BertworksWarning, DataError, OutputError, import_optional
from .store_backend import StoreBackend, not_store_error, public_address, ranking_of
from .text_index import Ranking

SCHEMES = ("postgresql", "postgres")
DEFAULT_TABLE = "bertworks_texts"

_FORMAT_VERSION = 1
_MANY = 20_000
"""Number of texts whose HNSW index takes long to make."""
_MIN_CANDIDATES, _MAX_CANDIDATES = 100, 1000  # hnsw.ef_search; 1000 is pgvector's maximum


class PostgresBackend(StoreBackend):
    """A table of texts and vectors.

    Args:
        address: the URL that libpq reads; `table` in its query names the table.
        width: of the vectors, for a new table.
        create: make the table if it is absent.

    Raises:
        BertworksError: psycopg is not installed.
        OutputError: the database cannot be reached, has no pgvector, or has no such table.
        DataError: the table is not a store, or another model's.
    """

    def __init__(self, address: str, fingerprint: str, *, width: int, create: bool) -> None:
        self._psycopg: Any = import_optional("psycopg", "postgres", "A store in PostgreSQL")
        url = urlsplit(address)
        options = dict(parse_qsl(url.query))
        table = options.pop("table", DEFAULT_TABLE)
        name = f"{public_address(address)} table {table}"
        super().__init__(name, fingerprint)
        self._table = self._psycopg.sql.Identifier(*table.split("."))
        self._address = url._replace(query=urlencode(options, quote_via=quote)).geturl()
        self._connection: Any = None
        with self._transaction() as cursor:
            self._lock(cursor)
            if not self._has_table(cursor):
                if not create:
                    raise not_store_error(name)
                self._create(cursor, width)

    def __len__(self) -> int:
        ((count,),) = self._rows("SELECT count(*) FROM {}")
        return int(count)

    def ids(self) -> list[str]:
        return [name for (name,) in self._rows("SELECT id FROM {} ORDER BY number")]

    def texts(self, ids: Collection[str]) -> dict[str, str]:
        return dict(self._rows("SELECT id, text FROM {} WHERE id = ANY(%s)", [list(ids)]))

    def texts_in_rows(self, rows: set[int]) -> dict[int, tuple[str, str]]:
        query = "SELECT number, id, text FROM {} WHERE number = ANY(%s)"
        return {row: (name, text) for row, name, text in self._rows(query, [list(rows)])}

    def put(self, ids: Sequence[str], texts: Sequence[str], vectors: NDArray[np.float32]) -> None:
        insertion = (
            "INSERT INTO {} (id, text, vector) VALUES (%s, %s, %s::vector) "
            "ON CONFLICT (id) DO UPDATE SET text = excluded.text, vector = excluded.vector"
        )
        with self._writing() as cursor:
            numbers = map(_text_of_vector, vectors)
            cursor.executemany(self._query(insertion), zip(ids, texts, numbers, strict=True))

    def delete(self, ids: Collection[str]) -> int:
        with self._writing() as cursor:
            cursor.execute(self._query("DELETE FROM {} WHERE id = ANY(%s)"), [list(ids)])
            return int(cursor.rowcount)

    def nearest(self, queries: NDArray[np.float32], count: int, *, approximate: bool) -> Ranking:
        """As `StoreBackend.nearest`; an approximation uses an HNSW index, which it creates.

        If that gives too few texts for a query, all texts are compared.
        """
        if approximate:
            self._create_index()
            candidates = min(max(_MIN_CANDIDATES, 2 * count), _MAX_CANDIDATES)
            option, order = f"hnsw.ef_search = {candidates}", ""
        else:
            option, order = "enable_indexscan = off", ", number"
        query = (
            "SELECT number, -(vector <#> %(vector)s::vector) FROM {} "
            f"ORDER BY vector <#> %(vector)s::vector{order} LIMIT %(count)s"
        )
        pairs = []
        with self._transaction() as cursor:
            cursor.execute(f"SET LOCAL {option}")
            for vector in queries:
                values = {"vector": _text_of_vector(vector), "count": count}
                pairs.append(cursor.execute(self._query(query), values).fetchall())
        scores, rows = ranking_of(pairs, count)
        is_short = np.array([len(found) < count for found in pairs], bool)
        if approximate and is_short.any():
            # An HNSW index gives `ef_search` rows at most, and fewer where texts were deleted.
            exact = self.nearest(queries[is_short], count, approximate=False)
            scores[is_short], rows[is_short] = exact
        return scores, rows

    def _create(self, cursor: Any, width: int) -> None:
        """Make the table, whose comment says which model's vectors it has."""
        sql = self._psycopg.sql
        cursor.execute("CREATE EXTENSION IF NOT EXISTS vector")
        cursor.execute(
            self._query(
                "CREATE TABLE {} (number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, "
                f"id text NOT NULL UNIQUE, text text NOT NULL, vector vector({width}) NOT NULL)"
            )
        )
        content = {"bertworks": _FORMAT_VERSION, "model": self.fingerprint}
        comment = sql.SQL("COMMENT ON TABLE {} IS {}")
        cursor.execute(comment.format(self._table, sql.Literal(json.dumps(content))))

    def _create_index(self) -> None:
        """Create an HNSW index, if there is none; warn if this takes long."""
        with self._transaction() as cursor:
            if self._has_index(cursor):
                return
        if (count := len(self)) >= _MANY:
            what = f"makes an HNSW index of {count:,} texts, which takes minutes, and is kept"
            warnings.warn(f"{self.name}: {what}", BertworksWarning, stacklevel=2)
        with self._writing() as cursor:
            if not self._has_index(cursor):  # another process may have made it meanwhile
                cursor.execute(self._query("CREATE INDEX ON {} USING hnsw (vector vector_ip_ops)"))

    def _has_index(self, cursor: Any) -> bool:
        """Whether the table has an index for inner products, by any name."""
        query = (
            "SELECT EXISTS (SELECT FROM pg_index JOIN pg_opclass ON pg_opclass.oid = indclass[0] "
            "WHERE indrelid = to_regclass(%s) AND opcname = 'vector_ip_ops')"
        )
        ((has_index,),) = cursor.execute(query, [self._table.as_string(None)]).fetchall()
        return bool(has_index)

    def _has_table(self, cursor: Any) -> bool:
        """Whether there is a table; its comment is checked.

        Raises:
            DataError: the table is no store, or has vectors of another model.
        """
        name = self._table.as_string(None)
        query = "SELECT to_regclass(%s) IS NOT NULL, obj_description(to_regclass(%s))"
        ((is_there, comment),) = cursor.execute(query, [name, name]).fetchall()
        if not is_there:
            return False
        try:
            content = json.loads(comment or "")
            version = content["bertworks"]
        except (ValueError, KeyError, TypeError):
            fix = "Choose another table: ?table=NAME."
            raise DataError("is no store of texts", where=self.name, fix=fix) from None
        if version != _FORMAT_VERSION:
            what = f"has format {version}, and this version of bertworks reads {_FORMAT_VERSION}"
            raise DataError(what, where=self.name, fix="Make the store again.")
        self.check_model(content.get("model"))
        return True

    def _query(self, text: str) -> Any:
        return self._psycopg.sql.SQL(text).format(self._table)

    def _rows(self, text: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._transaction() as cursor:
            rows: list[Any] = cursor.execute(self._query(text), values).fetchall()
            return rows

    def _lock(self, cursor: Any) -> None:
        """Wait until no other transaction writes the table, or creates it."""
        name = self._table.as_string(None)
        cursor.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [name])

    @contextmanager
    def _writing(self) -> Iterator[Any]:
        """A transaction that changes the table."""
        with self._transaction() as cursor:
            self._lock(cursor)
            if not self._has_table(cursor):
                raise not_store_error(self.name)
            yield cursor

    @contextmanager
    def _transaction(self) -> Iterator[Any]:
        """A transaction, on a connection that is opened again if it was lost."""
        try:
            if self._connection is None or self._connection.closed:
                self._connection = self._psycopg.connect(self._address, autocommit=True)
                weakref.finalize(self, self._connection.close)
            with self._connection.transaction(), self._connection.cursor() as cursor:
                yield cursor
        except self._psycopg.Error as error:
            raise OutputError(" ".join(str(error).split()), where=self.name) from None


def _text_of_vector(vector: NDArray[np.float32]) -> str:
    """Return a vector as pgvector reads it; each float32 is read back as it was."""
    return json.dumps(vector.tolist())
