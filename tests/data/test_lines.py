"""The one reader of lines: encodings, lines without an end, files that are not text."""

from __future__ import annotations

import codecs
import gzip
import io
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bertworks.data.lines import read_lines
from bertworks.data.reading import ReadCounts, Reading, text_encoding
from bertworks.errors import DataError

from .files import zstd


def reading(**settings: object) -> Reading:
    return Reading(ReadCounts(), **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "encodings"),
    [
        ("Grüße\r\nzwei\n\nvier ohne Ende", "utf-8 utf-8-sig latin-1 cp1252 utf-16 utf-16-le"),
        ("Grüße\r\nzwei\n\nvier ohne Ende", "utf-32 cp037 gb18030"),
        ("한국어\n둘째 줄\n", "iso2022_kr euc_kr cp949 johab utf-7"),
        ("日本語\n二行目\n", "iso2022_jp iso2022_jp_2 shift_jis euc_jp utf-7"),
        ("中文\n第二行\n", "hz gb2312 gbk utf-16-be utf-7"),
    ],
)
def test_lines_are_decoded_in_every_encoding(tmp_path: Path, text: str, encodings: str) -> None:
    numbered_lines = list(enumerate(text.splitlines(keepends=True), 1))
    for encoding in encodings.split():
        file = tmp_path / f"{encoding}.gz"
        file.write_bytes(gzip.compress(text.encode(encoding)))
        assert list(read_lines(str(file), reading(encoding=encoding))) == numbered_lines


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_mark_alone_is_no_line(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "mark.txt"
    file.write_bytes("".encode(encoding) or codecs.BOM_UTF8)
    assert list(read_lines(str(file), reading(encoding=encoding.removesuffix("-sig")))) == []
    file.write_bytes("\n".encode(encoding))
    assert list(read_lines(str(file), reading(encoding=encoding.removesuffix("-sig")))) == [
        (1, "\n")
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("Grüße".encode("latin-1"), ":1: not UTF-8 .*--encoding latin-1"),
        ("a\n“b”".encode("cp1252"), ":2: not UTF-8 .*--encoding cp1252"),
        ("Text".encode("utf-16"), ":1: not UTF-8 .*--encoding utf-16 "),
        ("plain".encode("utf-16-le"), ":1: every other byte is null.*--encoding utf-16-le"),
        ("plain".encode("utf-16-be"), ":1: every other byte is null.*--encoding utf-16-be"),
        (b"\x7fELF\0\xff", ":1: not UTF-8 .* is it a text file"),
        (b"%PDF-1.4", ": cannot be read .*a PDF"),
        (b"SQLite format 3\0", ": cannot be read .*SQLite"),
        (b"PK\x03\x04", r": cannot be read .*workbook such as \.xlsx"),
        (
            gzip.compress(gzip.compress(b"a", mtime=0), mtime=0),
            ": cannot be read .*inside another compression",
        ),
    ],
)
def test_bytes_that_are_not_utf_8_give_a_hint(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "f"
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"f{message}"):
        list(read_lines(str(file), reading()))


def test_bytes_that_break_an_encoding_are_placed(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"good\nbad \x81\nagain\n")
    with pytest.raises(DataError, match="f:2: not CP1252"):
        list(read_lines(str(tmp_path / "f"), reading(encoding="cp1252")))
    skipping = reading(encoding="cp1252", skip_bad=True)
    assert [number for number, _ in read_lines(str(tmp_path / "f"), skipping)] == [1, 3]
    (tmp_path / "f").write_bytes("one\ntwo\n".encode("utf-16-le") + b"\0\xd8x\0")
    with pytest.raises(DataError, match="not utf-16-le from here on"):
        list(read_lines(str(tmp_path / "f"), reading(encoding="utf-16-le")))


NOTATIONS = ["idna", "punycode", "unicode_escape", "raw_unicode_escape", "charmap"]


@pytest.mark.parametrize("name", ["latin-7777", "base64", "", "\0", "IDNA", *NOTATIONS])
def test_unknown_encoding_is_refused(name: str) -> None:
    with pytest.raises(DataError, match="unknown text encoding") as error:
        text_encoding(name)
    assert error.value.fix is not None
    suggested = re.search(r"nearest valid name is '(.*)'", error.value.fix)
    assert suggested is None or text_encoding(suggested[1])


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstd])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16-le"])
def test_line_beyond_the_limit_is_refused_or_skipped(
    tmp_path: Path, compress: object, encoding: str
) -> None:
    file = tmp_path / "f"
    text = "x" * 10 + "\n" + "y" * 11 + "\n" + "z\n" + "w" * 500
    file.write_bytes(compress(text.encode(encoding)))  # type: ignore[operator]
    limited = reading(max_line_bytes=10, encoding=encoding)
    with pytest.raises(DataError, match=r"f:2: the line is longer than 10 bytes.*max-line-bytes"):
        list(read_lines(str(file), limited))
    skipping = reading(max_line_bytes=10, encoding=encoding, skip_bad=True)
    assert list(read_lines(str(file), skipping)) == [(1, "x" * 10 + "\n"), (3, "z\n")]
    assert skipping.counts.num_skipped_by_kind == {"long line": 2}


LINE_WITHOUT_END = """
import sys
from bertworks.data.reading import ReadCounts, Reading
from bertworks.data.lines import read_lines
from bertworks.errors import DataError
try:
    list(read_lines(sys.argv[1], Reading(ReadCounts())))
except DataError as error:
    print(error)
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("compress", [gzip.compress, zstd])
def test_a_line_without_an_end_takes_little_memory(tmp_path: Path, compress: object) -> None:
    """300 MB of one letter in an archive of some kilobytes."""
    file = tmp_path / "f"
    file.write_bytes(compress(bytes(b"a" * (300 << 20))))  # type: ignore[operator]
    assert file.stat().st_size < 1 << 20
    process = subprocess.run(
        [sys.executable, "-c", LINE_WITHOUT_END, file], capture_output=True, text=True, check=True
    )
    assert "f:1: the line is longer than 67,108,864 bytes" in process.stdout
    peak = int(process.stdout.rsplit("VmHWM:", 1)[1].split()[0])
    assert peak < 400 << 10  # kB


def test_standard_input_is_read_by_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from bertworks.cli.texts import lines_of
    from bertworks.data.tables import read_rows

    def set_stdin(content: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    set_stdin("Grüße\n".encode("latin-1"))
    assert list(lines_of(["-"], {"encoding": "latin-1"})) == ["Grüße"]
    set_stdin(b"x" * 20)
    with pytest.raises(DataError, match="standard input:1: the line is longer than 10 bytes"):
        list(lines_of(["-"], {"max_line_bytes": 10}))
    set_stdin("text\tlabel\nGrüße\t1\n".encode("latin-1"))
    (row,) = read_rows("-", encoding="latin-1")
    assert row.values == {"text": "Grüße", "label": "1"}
    set_stdin(b"x" * 20)
    with pytest.raises(DataError, match="standard input:1: the line is longer than 10 bytes"):
        read_rows("-", max_line_bytes=10)


@pytest.mark.long
def test_lines_of_64_mib_are_read_by_default(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_bytes(b"x" * 2**26)
    ((_, line),) = read_lines(str(file), reading())
    assert len(line) == 2**26
    file.write_bytes(b"x" * (2**26 + 1))
    with pytest.raises(DataError, match="the line is longer than 67,108,864 bytes"):
        list(read_lines(str(file), reading()))
