"""Pictures in archives, in columns of tables, and in stores."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import pickle
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stoker.errors import ArgumentError, BadImage, DamagedFile, StaleSource
from stoker.source.images import ImageSource, listing, open_images
from stoker.source.images.labels import parsed
from stoker.source.images.tar_members import TarReader, members
from stoker.source.known_file import known_file
from stoker.store import Column, Writer


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(listing, "FRESH_SECONDS", -3600.0)
    return folder / "stoker" / "pictures"


def tar(path: Path, files: Sequence[tuple[str, bytes]], *, form: int = tarfile.PAX_FORMAT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def walked(path: Path) -> list[tuple[str, bytes]]:
    file = known_file(path)
    with file.open() as opened:
        content = path.read_bytes()
        found = members(TarReader(file, opened.fileno()))
        return [(os.fsdecode(member.name), content[member.offset : member.offset + member.size]) for member in found]


# ------------------------------------------------------------ archives, byte by byte

paths = st.text(st.characters(exclude_characters="\0/\\", codec="utf-8"), min_size=1, max_size=60)
long_paths = st.lists(paths, min_size=1, max_size=6).map("/".join)
contents = st.binary(max_size=1100)


@pytest.mark.parametrize(
    "form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT], ids=["ustar", "gnu", "pax"]
)
@given(files=st.lists(st.tuples(long_paths, contents), max_size=6), has_folder=st.booleans())
def test_archives_are_walked_as_the_standard_library_does(
    form: int, files: list[tuple[str, bytes]], has_folder: bool
) -> None:
    assume(not any(set(name.split("/")) & {".", ".."} for name, _ in files))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.tar")
        try:
            tar(path, files, form=form)
        except ValueError:  # a name too long for this format
            assume(False)
        with tarfile.open(path, "a", format=form) as archive:
            for kind in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE) if has_folder else ():
                entry = tarfile.TarInfo("another")
                entry.type, entry.linkname = kind, "x" * 150 if form != tarfile.USTAR_FORMAT else "x"
                archive.addfile(entry)
        with tarfile.open(path) as archive:
            expected = [
                (entry.name, opened.read())
                for entry in archive.getmembers()
                if entry.isreg() and (opened := archive.extractfile(entry)) is not None
            ]
        # the standard library takes slashes at the end away
        assert [(name.rstrip("/"), content) for name, content in walked(path)] == expected


@given(cut=st.floats(0, 1, exclude_max=True))
def test_an_archive_that_is_cut_short_anywhere_is_shown_by_name(cut: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = tar(Path(folder, "a.tar"), [(f"{number}.jpg", bytes(700 * number)) for number in range(5)])
        with tarfile.open(path) as archive:
            end = archive.offset if archive.getmembers() else 0
        os.truncate(path, int(cut * end))
        with pytest.raises(DamagedFile, match=r"a\.tar is truncated"):
            walked(path)


@given(at=st.integers(0, 512 * 9 - 1), byte=st.integers(0, 255))
def test_a_damaged_header_is_never_followed(at: int, byte: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = [("1.jpg", bytes(range(200)) * 5), ("x" * 120 + ".jpg", b"2"), ("3.cls", b"7")]
        path = tar(Path(folder, "a.tar"), files)
        before = walked(path)
        content = bytearray(path.read_bytes())
        content[at] = byte
        path.write_bytes(content)
        try:
            after = walked(path)
        except (DamagedFile, ArgumentError):
            return
        # the content may be anything, and so may fields that nobody looks at
        assert [len(data) for _, data in after] == [len(data) for _, data in before]


def test_sizes_beyond_octal_digits_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    entry = tarfile.TarInfo("big.jpg")
    entry.size = 9 * 2**30
    with open(path, "wb") as file:
        file.write(entry.tobuf(tarfile.GNU_FORMAT))
        file.truncate(512 + entry.size + 1024)
    pictures = open_images(path)
    assert len(pictures) == 1
    with pytest.raises(BadImage, match=r"a\.tar: big\.jpg cannot be decoded: it has 9\.0 GiB"):
        pictures.read(0)


@pytest.mark.parametrize("packing", ["gz", "bz2", "xz"])
def test_compressed_archives_say_what_to_do(tmp_path: Path, packing: str) -> None:
    plain = tar(tmp_path / "plain.tar", [("a.jpg", b"")]).read_bytes()
    library: Any = {"gz": gzip, "bz2": bz2, "xz": lzma}[packing]
    (tmp_path / "a.tar").write_bytes(library.compress(plain))
    with pytest.raises(ArgumentError, match=r"is compressed \(.*\nhint: decompress it"):
        open_images(tmp_path / "a.tar")
    os.rename(tmp_path / "a.tar", tmp_path / f"a.tar.{packing}")
    with pytest.raises(ArgumentError, match=r"is compressed, .*\nhint: decompress it"):
        open_images(tmp_path / f"a.tar.{packing}")
    (tmp_path / "b.tar").write_bytes(b"no archive at all" * 100)
    with pytest.raises(DamagedFile, match="is not a tar archive"):
        open_images(tmp_path / "b.tar")


# ------------------------------------------------------------ samples of archives

SHARD = [
    ("__meta__.json", b"{}"),
    ("README", b"no extension"),
    ("dir.v1/000.cls", b"5\n"),
    ("dir.v1/000.jpg", b"first"),
    ("dir.v1/000.seg.png", b"not the first"),
    ("001.JPEG", b"second"),
    ("001.cls", b"3"),
    ("alone.txt", b"no picture"),
]


def test_files_with_one_key_are_a_sample(tmp_path: Path) -> None:
    pictures = open_images(tar(tmp_path / "a.tar", SHARD))
    assert [bytes(pictures.read(number)) for number in range(len(pictures))] == [b"first", b"second"]
    assert pictures.labels is not None and pictures.classes is None
    assert pictures.labels.tolist() == [5, 3]
    assert pictures.name(0) == f"{tmp_path / 'a.tar'}: dir.v1/000.jpg"
    seg = open_images(tmp_path / "a.tar", column="seg.png", labels=False)
    assert len(seg) == 1 and bytes(seg.read(0)) == b"not the first"


def test_labels_are_text_or_a_field_of_json(tmp_path: Path) -> None:
    path = tar(
        tmp_path / "a.tar",
        [(f"{number}.{ext}", data) for number, kind in enumerate(("dog", "cat")) for ext, data in (
            ("jpg", b""), ("json", json.dumps({"label": kind, "meta": {"age": number + 1.5}}).encode()))],
    )  # fmt: skip
    pictures = open_images(path)
    assert pictures.labels is not None
    assert pictures.classes == ["cat", "dog"] and pictures.labels.tolist() == [1, 0]
    ages = open_images(path, label="meta.age").labels
    assert ages is not None and ages.tolist() == [1.5, 2.5]
    assert open_images(path, labels=False).labels is None
    by_name = open_images(path, labels={"1": "x", "0": "y"})
    assert by_name.labels is not None and by_name.labels.tolist() == [1, 0]
    with pytest.raises(ArgumentError, match="has no label 'nothing'"):
        open_images(path, label="nothing")


@pytest.mark.parametrize(
    ("texts", "classes", "labels"),
    [
        (["7" * 5000, "1"], ["1", "7" * 5000], [1, 0]),  # no number has so many digits
        (["nan", "2"], None, [np.nan, 2.0]),
        (["nan", "cat"], ["cat", "nan"], [1, 0]),
        (["nan", "nan"], ["nan"], [0, 0]),
        (["1e999", "-inf"], None, [np.inf, -np.inf]),
    ],
    ids=["digits", "nan among numbers", "nan among names", "nan alone", "beyond"],
)
def test_odd_labels_in_an_archive_are_numbers_or_names(
    tmp_path: Path, texts: list[str], classes: list[str] | None, labels: list[float]
) -> None:
    members = [member for n, text in enumerate(texts) for member in ((f"{n}.jpg", b"x"), (f"{n}.cls", text.encode()))]
    pictures = open_images(tar(tmp_path / "a.tar", members))
    assert pictures.classes == classes
    assert pictures.labels is not None
    np.testing.assert_array_equal(pictures.labels, labels)


ODD_LABELS = st.sampled_from(
    ["7" * 5000, "-" + "9" * 5000, "nan", "-inf", "1e9999", "1." + "0" * 5000, "007", "a", "1", "2.5"]
)


@given(texts=st.lists(ODD_LABELS | st.text(max_size=5), min_size=1, max_size=4), has_classes=st.booleans())
def test_any_labels_are_read_or_refused(texts: list[str], has_classes: bool) -> None:
    try:
        labels = parsed(texts, ["1", "a"] if has_classes else None)
    except ArgumentError:
        assert has_classes
    else:
        assert labels.values is not None and len(labels.values) == len(texts)


def test_labels_that_some_images_lack_are_an_error(tmp_path: Path) -> None:
    one = tar(tmp_path / "a.tar", [("1.jpg", b""), ("1.cls", b"1"), ("2.jpg", b"")])
    with pytest.raises(ArgumentError, match=r"a\.tar has no label for 1 of its 2 images, the first of them 2\.jpg"):
        open_images(one)
    for ending, nothing in (("cls", b" \n"), ("json", b'{"label": ""}')):
        one = tar(
            tmp_path / f"{ending}.tar", [("1.jpg", b""), ("1.cls", b"1"), ("2.jpg", b""), (f"2.{ending}", nothing)]
        )
        with pytest.raises(ArgumentError, match=r"has no label for 1 of its 2 images, the first of them 2\.jpg"):
            open_images(one)
    tar(tmp_path / "b" / "0.tar", [("1.jpg", b""), ("1.cls", b"1")])
    tar(tmp_path / "b" / "1.tar", [("2.jpg", b"")])
    with pytest.raises(ArgumentError, match=r"1\.tar has no labels, but other archives do"):
        open_images(tmp_path / "b")
    bad = tar(tmp_path / "c.tar", [("1.jpg", b""), ("1.json", b"{not")])
    with pytest.raises(DamagedFile, match=r"c\.tar contains 1\.json, which is not JSON"):
        open_images(bad)
    with pytest.raises(ArgumentError, match="there are no images in"):
        open_images(tar(tmp_path / "d.tar", [("a.txt", b"")]))
    with pytest.raises(ArgumentError, match=r"no members with extension \.png in"):
        open_images(tmp_path / "d.tar", column="png")
    whole = tar(tmp_path / "e.tar", [("1.jpg", b""), ("1.json", b'{"age": 3}')])
    with pytest.raises(ArgumentError, match=r"label='json' is a complete JSON object in .*e\.tar, as in 1\.json"):
        open_images(whole, label="json")
    plain = tar(tmp_path / "f.tar", [("1.jpg", b""), ("1.json", b"3")])
    labels = open_images(plain, label="json").labels
    assert labels is not None and labels.tolist() == [3]


def test_a_table_finds_members_that_tar_names_from_the_dot_on(tmp_path: Path) -> None:
    path = tar(tmp_path / "a.tar", [("./x/1.jpg", b""), ("./y/1.jpg", b"")])
    (tmp_path / "t.csv").write_text("file,label\ny/1.jpg,0\nx/1.jpg,1\n")
    pictures = open_images(path, labels=tmp_path / "t.csv")
    assert pictures.labels is not None and pictures.labels.tolist() == [1, 0]


def test_archives_are_found_by_pattern_range_folder_and_list(tmp_path: Path) -> None:
    for number in (0, 2, 10):
        tar(tmp_path / f"s-{number:03d}.tar", [(f"{number}.jpg", str(number).encode())])
        tar(tmp_path / f"t-{number}.tar", [(f"{number}.jpg", str(number).encode())])
    for given_path, expected in (
        (tmp_path / "s-*.tar", [b"0", b"2", b"10"]),
        (str(tmp_path / "t-*.tar"), [b"0", b"2", b"10"]),
        (str(tmp_path / "s-{000,010}.tar"), [b"0", b"10"]),
        (str(tmp_path / "{s-{010..010},t-0}.tar"), None),
        ([tmp_path / "s-010.tar", tmp_path / "t-2.tar"], [b"10", b"2"]),
        (tmp_path, [b"0", b"2", b"10"] * 2),
    ):
        if expected is None:
            continue
        pictures = open_images(given_path)
        found = [bytes(pictures.read(number)) for number in range(len(pictures))]
        assert sorted(found) == sorted(expected) if given_path == tmp_path else found == expected
    tar(tmp_path / "s-001.tar", [("1.jpg", b"1")])
    ranged = open_images(str(tmp_path / "s-{000..002}.tar"))
    assert [bytes(ranged.read(number)) for number in range(3)] == [b"0", b"1", b"2"]
    with pytest.raises(FileNotFoundError):
        open_images(str(tmp_path / "s-{000..004}.tar"))
    with pytest.raises(FileNotFoundError, match="matches no file"):
        open_images(str(tmp_path / "u-*.tar"))


def test_an_archive_is_indexed_once_and_again_when_it_changed(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import stoker.source.images.tar_shards as shards

    path = tar(tmp_path / "a.tar", SHARD)
    first = open_images(path)
    walks: list[Any] = []
    walk = shards._build_index

    def watched(*given: Any) -> Any:
        walks.append(given)
        return walk(*given)

    monkeypatch.setattr(shards, "_build_index", watched)
    second = open_images(path)
    assert not walks and second.fingerprint == first.fingerprint
    again = pickle.loads(pickle.dumps(second))
    assert bytes(again.read(1)) == b"second"
    (kept,) = own_cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:-9])
    assert open_images(path).fingerprint == first.fingerprint and len(walks) == 1
    tar(path, [("9.jpg", b"another"), ("9.cls", b"0")])
    assert bytes(open_images(path).read(0)) == b"another"
    with pytest.raises(StaleSource, match=r"a\.tar is no longer the file that was opened"):
        again = pickle.loads(pickle.dumps(second))
        again.read(0)


def test_an_archive_that_took_the_place_of_another_is_indexed_again(tmp_path: Path) -> None:
    for name, label in (("a", b"1"), ("b", b"2")):
        path = tar(tmp_path / f"{name}.tar", [(f"{name}.jpg", b""), (f"{name}.cls", label)])
        os.utime(path, (1e9, 1e9))
    first = open_images(tmp_path / "a.tar")
    assert first.labels is not None and first.labels.tolist() == [1]
    os.replace(tmp_path / "b.tar", tmp_path / "a.tar")  # of the same size and time, as from a backup
    second = open_images(tmp_path / "a.tar")
    assert second.labels is not None and second.labels.tolist() == [2]


def test_an_archive_that_was_just_written_is_not_trusted(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "FRESH_SECONDS", 3600.0)
    open_images(tar(tmp_path / "a.tar", SHARD))
    assert not own_cache.exists()


# ------------------------------------------------------------ columns


def table(features: dict[str, Any] | None = None, **columns: Any) -> Any:
    pa = pytest.importorskip("pyarrow")
    found = pa.table(columns)
    if features is not None:
        found = found.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    return found


HF = {"image": {"_type": "Image"}, "kind": {"names": ["cat", "dog"], "_type": "ClassLabel"}}


def rows(tmp_path: Path) -> Any:
    (tmp_path / "beside.jpg").write_bytes(b"file beside")
    values = [
        {"bytes": b"one", "path": "1.jpg"},
        {"bytes": None, "path": str(tmp_path / "beside.jpg")},
        {"bytes": None, "path": None},
    ]
    return table(HF, image=values, kind=[1, 0, 1], text=["a", "b", "c"])


def test_hugging_face_columns_of_parquet_have_their_classes(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(rows(tmp_path), tmp_path / "a.parquet", row_group_size=2)
    for path in (tmp_path / "a.parquet", [tmp_path / "a.parquet"], str(tmp_path / "*.parquet")):
        pictures = open_images(path)
        assert pictures.classes == ["cat", "dog"] and pictures.labels is not None
        assert pictures.labels.tolist() == [1, 0, 1]
        assert [bytes(pictures.read(number)) for number in (0, 1)] == [b"one", b"file beside"]
        with pytest.raises(BadImage, match=r"a\.parquet, row 2 cannot be decoded: the row has no image"):
            pictures.read(2)
    again = pickle.loads(pickle.dumps(pictures))
    assert bytes(again.read(0)) == b"one" and again.fingerprint == pictures.fingerprint
    named = open_images(tmp_path / "a.parquet", label="text")
    assert named.classes == ["a", "b", "c"]


def test_a_table_without_rows_is_refused(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    pq.write_table(table(image=[]).cast(table(image=[b""]).schema), tmp_path / "a.parquet")
    with pytest.raises(ArgumentError, match=r"there are no rows in .*a\.parquet"):
        open_images(tmp_path / "a.parquet")


def test_plain_columns_of_bytes_are_found_or_named(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table(jpg=[b"x", b"y"], label=[0.5, 1.5]), tmp_path / "a.parquet")
    pictures = open_images(tmp_path / "a.parquet")
    assert bytes(pictures.read(1)) == b"y" and pictures.labels is not None and pictures.labels.tolist() == [0.5, 1.5]
    assert open_images(tmp_path / "a.parquet", labels=["q", "r"]).classes == ["q", "r"]
    pq.write_table(table(left=[b"x"], right=[b"y"], n=[1]), tmp_path / "b.parquet")
    with pytest.raises(ArgumentError, match=r"several columns that may be images \(left, right\)"):
        open_images(tmp_path / "b.parquet")
    assert bytes(open_images(tmp_path / "b.parquet", column="right").read(0)) == b"y"
    with pytest.raises(ArgumentError, match="contains int64, not image files"):
        open_images(tmp_path / "b.parquet", column="n")
    with pytest.raises(ArgumentError, match="has no labels"):
        open_images(tmp_path / "b.parquet", column="right", labels=True)
    pq.write_table(table(image=[b"x", b"y"], label=[0, None]), tmp_path / "c.parquet")
    with pytest.raises(ArgumentError, match="row 1 of .* has no 'label'"):
        open_images(tmp_path / "c.parquet")


def test_a_saved_dataset_is_read_without_the_library_that_saved_it(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    folder = tmp_path / "saved"
    folder.mkdir()
    found = rows(tmp_path)
    with pa.ipc.new_stream(str(folder / "data-00000-of-00001.arrow"), found.schema) as writer:
        writer.write_table(found)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    pictures = open_images(folder)
    assert pictures.classes == ["cat", "dog"] and bytes(pictures.read(0)) == b"one"
    assert pictures.name(0).endswith("data-00000-of-00001.arrow, row 0")


# ------------------------------------------------------------ stores and others


def test_a_store_with_a_column_of_files_is_a_source_of_images(tmp_path: Path) -> None:
    columns = {"image": Column.blob(), "label": Column.fixed("int64"), "name": Column.blob()}
    with Writer(tmp_path / "store", columns, meta={"classes": ["a", "b"]}, shard_bytes=300) as writer:
        for number in range(9):
            writer.append(
                {"image": bytes([number]) * 100 * (number % 3), "label": number % 2, "name": b"n%d\xff" % number}
            )
    pictures = open_images(tmp_path / "store")
    assert len(pictures) == 9 and pictures.classes == ["a", "b"]
    assert pictures.labels is not None and pictures.labels.tolist() == [0, 1] * 4 + [0]
    for source in (pictures, pickle.loads(pickle.dumps(pictures))):
        for number in range(9):
            assert bytes(source.read(number)) == bytes([number]) * 100 * (number % 3)
    assert pictures.name(3) == f"{tmp_path / 'store'}: n3\\xff"
    with pytest.raises(ArgumentError, match="has no column 'photo' of images"):
        open_images(tmp_path / "store", column="photo")


def test_a_source_of_somebodys_own_is_taken_as_it_is() -> None:
    class Own:
        classes: list[str] | None = None
        labels: NDArray[Any] | None = np.zeros(1)
        fingerprint = "own"

        def __len__(self) -> int:
            return 1

        def read(self, position: int, /) -> bytes:
            return b"own"

        def name(self, position: int, /) -> str:
            return "own"

    own: ImageSource = Own()
    assert open_images(own) is own
