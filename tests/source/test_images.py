"""Pictures of a folder or a list: which there are, in which order, and with which labels."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.features
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.errors import ArgumentError, BadImage, DamagedFile, StaleSource
from stoker.source.images import ImageSource, listing, open_images
from stoker.source.images.listing_cache import ArrayCache
from stoker.source.images.names import Names, natural_keys, natural_order, printable


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder for each test, and no waiting for folders to be old enough to be trusted."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.setattr(listing, "FRESH_SECONDS", -3600.0)
    return folder / "stoker" / "pictures"


def make(folder: Path, *names: str | bytes) -> Path:
    for name in names:
        path = os.path.join(os.fsencode(folder), os.fsencode(name))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(b"content of " + os.fsencode(name))
    return folder


def within(pictures: ImageSource, folder: Path) -> list[str]:
    return [os.path.relpath(pictures.name(position), folder) for position in range(len(pictures))]


# ------------------------------------------------------------ names

plain_names = st.binary(max_size=9).map(lambda name: name.replace(b"\0", b"0"))
digit_names = st.text("0019ab-./", max_size=8).map(str.encode)


@given(names=st.lists(plain_names | digit_names, max_size=12))
def test_natural_order_is_that_of_texts_and_numbers_in_turn(names: list[bytes]) -> None:
    def spelled(name: bytes) -> tuple[list[bytes | int], bytes]:
        parts = re.split(rb"([0-9]+)", name)
        return [int(part) if number % 2 else part for number, part in enumerate(parts)], name

    assert [names[number] for number in natural_order(names)] == sorted(names, key=spelled)


@given(names=st.lists(plain_names | digit_names, max_size=12, unique=True))
def test_natural_keys_tell_all_names_apart(names: list[bytes]) -> None:
    assert len(set(natural_keys(names))) == len(names)


@given(names=st.lists(plain_names, max_size=9))
def test_names_come_back_as_they_were(names: list[bytes]) -> None:
    packed = pickle.loads(pickle.dumps(Names.of(names)))
    assert list(packed) == names
    assert [packed[number] for number in range(len(packed))] == names


def test_odd_characters_in_names_can_be_printed() -> None:
    assert printable(b"a\xff\n.jpg") == "a\\xff\\n.jpg"
    assert printable("größe.jpg".encode()) == "größe.jpg"


# ------------------------------------------------------------ folders


def test_sub_folders_are_classes_in_natural_order(tmp_path: Path) -> None:
    make(
        tmp_path,
        "c10/a2.jpg",
        "c10/a10.PNG",
        "c9/z.jpeg",
        "c9/deep/er/y.webp",
        "c10/a1.txt",
        ".hidden/a.jpg",
    )
    pictures = open_images(tmp_path)
    assert isinstance(pictures, ImageSource)
    assert pictures.classes == ["c9", "c10"]
    assert within(pictures, tmp_path) == ["c9/z.jpeg", "c9/deep/er/y.webp", "c10/a2.jpg", "c10/a10.PNG"]
    assert pictures.labels is not None
    assert pictures.labels.dtype == np.int64 and pictures.labels.tolist() == [0, 0, 1, 1]
    assert bytes(pictures.read(1)) == b"content of c9/deep/er/y.webp"


def test_pictures_in_the_folder_itself_have_no_labels(tmp_path: Path) -> None:
    pictures = open_images(make(tmp_path, "img10.jpg", "img2.jpg", "notes.md"))
    assert within(pictures, tmp_path) == ["img2.jpg", "img10.jpg"]
    assert pictures.labels is None and pictures.classes is None


def test_pictures_both_in_the_folder_and_below_it_are_labelled_on_request_only(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "cats/b.jpg")
    with pytest.raises(ArgumentError, match=r"contains images itself \(1, such as a\.jpg\) and in subfolders \(1\)"):
        open_images(tmp_path)
    assert within(open_images(tmp_path, labels=False), tmp_path) == ["a.jpg", "cats/b.jpg"]


def test_classes_can_be_given_so_that_two_folders_have_the_same_numbers(tmp_path: Path) -> None:
    make(tmp_path, "cat/1.jpg", "owl/1.jpg")
    pictures = open_images(tmp_path, classes=["owl", "dog", "cat"])
    assert pictures.labels is not None
    assert pictures.classes == ["owl", "dog", "cat"] and pictures.labels.tolist() == [2, 0]
    with pytest.raises(ArgumentError, match="classes= lacks 1 class of the data: owl"):
        open_images(tmp_path, classes=["cat"])
    with pytest.raises(ArgumentError, match="classes= has cat twice"):
        open_images(tmp_path, classes=["cat", "cat", "owl"])


def test_a_class_without_pictures_does_not_shift_the_others(tmp_path: Path) -> None:
    make(tmp_path, "ant/1.jpg", "bee/notes.txt", "bee/.a.jpg", "cow/deep/1.jpg", "dog/deep/er/2.txt")
    for _ in range(2):  # the second time from the listing that was kept
        with pytest.raises(ArgumentError, match="subfolders without images: bee, dog; .*\nhint: allow_empty=True "):
            open_images(tmp_path)
    kept = open_images(tmp_path, allow_empty=True)
    assert kept.labels is not None
    assert kept.classes == ["ant", "bee", "cow", "dog"] and kept.labels.tolist() == [0, 2]
    chosen = open_images(tmp_path, classes=["cow", "bee", "ant"])
    assert chosen.labels is not None
    assert chosen.classes == ["cow", "bee", "ant"] and chosen.labels.tolist() == [2, 0]
    assert open_images(tmp_path, labels=False).labels is None
    assert open_images(tmp_path, labels=[5, 6]).classes is None
    os.unlink(tmp_path / "ant" / "1.jpg")
    with pytest.raises(ArgumentError, match="without images: ant, bee, dog"):
        open_images(tmp_path)


def test_sub_folders_without_pictures_matter_only_where_sub_folders_are_classes(tmp_path: Path) -> None:
    assert open_images(make(tmp_path / "a", "1.jpg", "annotations/1.json")).classes is None
    assert open_images(make(tmp_path / "b", "ant/1.jpg", "__MACOSX/ant/._1.jpg")).classes == ["ant"]


def test_other_classes_than_those_of_the_training_data_are_noticed(tmp_path: Path) -> None:
    make(tmp_path, "train/ant/1.jpg", "train/bee/1.jpg", "train/cow/1.jpg", "val/ant/1.jpg", "val/cow/1.jpg")
    train = open_images(tmp_path / "train")
    with pytest.warns(UserWarning, match=r"1 is 'cow' here and 'bee' there\nhint: pass classes=train\.classes"):
        open_images(tmp_path / "val")
    val = open_images(tmp_path / "val", classes=train.classes)
    assert val.labels is not None and val.labels.tolist() == [0, 2]
    make(tmp_path, "val/bee/1.jpg", "test/ant/1.jpg", "test/bee/1.jpg", "valid/a.jpg")
    for name in ("val", "test", "valid", "train"):  # the same, the first of them, or none: all numbers mean the same
        open_images(tmp_path / name)
    make(tmp_path, "val/dog/1.jpg")
    with pytest.warns(UserWarning, match="3 is 'dog' here and None there"):
        open_images(tmp_path / "val")


def readable(monkeypatch: pytest.MonkeyPatch, *, avif: bool, heif: bool) -> None:
    monkeypatch.setattr(PIL.features, "check_module", {"avif": avif}.__getitem__)
    monkeypatch.setattr(listing, "find_spec", lambda _: object() if heif else None)


def test_pictures_that_cannot_be_read_here_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable(monkeypatch, avif=False, heif=False)
    make(tmp_path, "a/1.jpg", "a/2.HEIC", "b/1.jpg", "b/3.avif", "b/4.avif")
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"2 \.avif files, such as b/3\.avif; 1 \.heic file, such as a/2\.HEIC\n"):
            assert len(open_images(tmp_path)) == 2
    assert len(open_images(tmp_path, extensions=["jpg"])) == 2  # that is what was asked for
    assert len(open_images(tmp_path, extensions=["jpg", "avif"])) == 4
    for name in ("a/1.jpg", "b/1.jpg"):
        os.unlink(tmp_path / name)
    with pytest.raises(ArgumentError, match=r"contains no images: .*skipped: 2 \.avif files.*\nhint: .*pillow-heif"):
        open_images(tmp_path)
    make(tmp_path, "b/1.jpg")
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(ArgumentError, match=r"without images: a; .*skipped: .* 1 \.heic file"),
    ):
        open_images(tmp_path)


def test_pictures_are_taken_where_pillow_can_read_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable(monkeypatch, avif=True, heif=True)
    make(tmp_path, "a/1.jpg", "a/2.HEIC", "b/3.avif", "b/4.heif")
    assert within(open_images(tmp_path), tmp_path) == ["a/1.jpg", "a/2.HEIC", "b/3.avif", "b/4.heif"]


def test_an_empty_folder_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match=r"contains no images: no file in it or below ends in (avif, )?bmp, gif, .*\nhint: "
    ):
        open_images(make(tmp_path, "a.txt"))
    assert len(open_images(tmp_path, extensions=".TXT")) == 1
    with pytest.raises(FileNotFoundError, match="missing does not exist"):
        open_images(tmp_path / "missing")
    with pytest.raises(ArgumentError, match="has no subfolders with images"):
        open_images(make(tmp_path / "b", "a.jpg"), labels=True)


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    make(tmp_path / "data", "a/1.jpg", "a/b/2.jpg")
    make(tmp_path / "elsewhere", "3.jpg")
    (tmp_path / "data" / "a" / "b" / "back").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "c").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "c" / "4.jpg").symlink_to(tmp_path / "data" / "a" / "1.jpg")
    pictures = open_images(tmp_path / "data")
    assert within(pictures, tmp_path / "data") == ["a/1.jpg", "a/b/2.jpg", "c/3.jpg", "c/4.jpg"]
    assert bytes(pictures.read(3)) == b"content of a/1.jpg"


def test_a_link_that_leads_to_itself_spoils_nothing_but_itself(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg")
    for name in ("b", "c.jpg"):
        (tmp_path / name).symlink_to(name)
    pictures = open_images(tmp_path)
    assert within(pictures, tmp_path) == ["a.jpg", "c.jpg"]
    with pytest.raises(BadImage, match=r"c\.jpg cannot be decoded: it cannot be read: Too many levels"):
        pictures.read(1)


def test_names_of_any_bytes_are_read_and_printed(tmp_path: Path) -> None:
    names = [
        b"n\xff\xfe/\xf0.jpg",
        b"n\xff\xfe/two\nlines.jpg",
        "n\udcff\udcfe/größe.jpg".encode("utf-8", "surrogateescape"),
    ]
    pictures = open_images(make(tmp_path, *names))
    assert pictures.classes == ["n\udcff\udcfe"]
    assert sorted(bytes(pictures.read(number)) for number in range(3)) == sorted(
        b"content of " + name for name in names
    )
    assert all(pictures.name(number).isprintable() for number in range(3))
    assert pictures.name(1).endswith("/n\\xff\\xfe/two\\nlines.jpg") or pictures.name(0).endswith("two\\nlines.jpg")
    assert pictures.fingerprint


def test_a_source_travels_to_other_processes_as_a_few_arrays(tmp_path: Path) -> None:
    make(tmp_path, *(f"class{number % 3}/{number}.jpg" for number in range(300)))
    pictures = open_images(tmp_path)
    packed = pickle.dumps(pictures)
    again = pickle.loads(packed)
    assert len(packed) < 300 * 40
    assert [again.name(number) for number in range(300)] == [pictures.name(number) for number in range(300)]
    assert again.fingerprint == pictures.fingerprint and again.classes == pictures.classes


def test_the_fingerprint_tells_of_names_sizes_labels_and_not_of_the_place(tmp_path: Path) -> None:
    first, second = (make(tmp_path / name, "a/1.jpg", "b/2.jpg") for name in ("one", "two"))
    told = {open_images(first).fingerprint}
    assert open_images(second).fingerprint in told
    told.add(open_images(first, labels=False).fingerprint)
    told.add(open_images(first, classes=["b", "a"]).fingerprint)
    (second / "a" / "1.jpg").write_bytes(b"longer than it was before")
    told.add(open_images(second).fingerprint)
    make(second, "b/3.jpg")
    told.add(open_images(second).fingerprint)
    assert len(told) == 5


# ------------------------------------------------------------ the kept listing


def watched(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return a list that tells which folders are listed from now on."""
    seen: list[bytes] = []
    scandir: Callable[..., object] = os.scandir

    def scan(path: bytes) -> object:
        if isinstance(path, bytes):  # others look into the cache
            seen.append(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    return seen


def test_a_second_start_lists_nothing_and_looks_at_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/1.jpg", "b/c/2.jpg")
    first = open_images(tmp_path)
    seen = watched(monkeypatch)
    second = open_images(tmp_path)
    assert seen == []
    assert within(second, tmp_path) == within(first, tmp_path)
    assert within(open_images(tmp_path, cache=False), tmp_path) == within(first, tmp_path)
    assert len(seen) == 4


@pytest.mark.parametrize("change", ["added", "removed", "renamed", "deep", "times set back"])
def test_a_folder_that_changed_is_listed_anew(tmp_path: Path, change: str) -> None:
    make(tmp_path, "a/1.jpg", "b/c/2.jpg", "b/c/3.jpg")
    assert len(open_images(tmp_path)) == 3
    if change == "added":
        make(tmp_path, "a/9.jpg")
    elif change == "removed":
        (tmp_path / "b" / "c" / "2.jpg").unlink()
    elif change == "renamed":
        (tmp_path / "a" / "1.jpg").rename(tmp_path / "a" / "7.jpg")
    elif change == "deep":
        make(tmp_path, "b/c/d/e/4.jpg")
    else:
        before = os.stat(tmp_path / "a")
        make(tmp_path, "a/9.jpg")
        os.utime(tmp_path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert within(open_images(tmp_path), tmp_path) == within(open_images(tmp_path, cache=False), tmp_path)


def test_a_folder_that_has_just_changed_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/1.jpg")
    monkeypatch.setattr(listing, "FRESH_SECONDS", 3600.0)
    open_images(tmp_path)
    seen = watched(monkeypatch)
    open_images(tmp_path)
    assert len(seen) == 2


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), cut=st.booleans())
def test_a_damaged_cache_is_made_again(at: int, byte: int, cut: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, cache = make(Path(folder, "data"), "a/1.jpg", "b/2.jpg"), Path(folder, "cache")
        open_images(data, cache=cache)
        (kept,) = cache.iterdir()
        content = bytearray(kept.read_bytes())
        if cut:
            del content[at % len(content) :]
        else:
            content[at % len(content)] = byte
        kept.write_bytes(content)
        assert within(open_images(data, cache=cache), data) == ["a/1.jpg", "b/2.jpg"]
        assert ArrayCache(cache).load(b"nothing of this name") is None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    make(tmp_path, "data/a.jpg")
    (tmp_path / "file").write_bytes(b"in the way")
    assert len(open_images(tmp_path / "data", cache=tmp_path / "file" / "cache")) == 1
    with pytest.raises(ArgumentError, match="cache must be True, False or a folder, got 3"):
        open_images(tmp_path / "data", cache=3)  # type: ignore[arg-type]


# ------------------------------------------------------------ labels


def test_labels_from_a_table_are_matched_by_name(tmp_path: Path) -> None:
    make(tmp_path / "data", "x/2.jpg", "x/10.jpg", "y/1.jpg")
    table = tmp_path / "labels.csv"
    for files in (
        ["y/1.jpg", "x/10.jpg", "x/2.jpg"],
        ["1.jpg", "10.jpg", "2.jpg"],
        ["1", "10", "2"],
        ["y/1", "x/10", "x/2"],
    ):
        rows = "".join(f"{file},{label}\n" for file, label in zip(files, ("dog10", "dog9", "cat")))
        table.write_text("File,Label\n" + rows)
        pictures = open_images(tmp_path / "data", labels=table)
        assert pictures.labels is not None
        assert pictures.classes == ["cat", "dog9", "dog10"] and pictures.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("texts", "expected", "kind"),
    [
        (("3", "-1"), [3, -1], "i"),
        (("0.5", "2"), [0.5, 2.0], "f"),
        (("007", "008"), [0, 1], "classes"),
        (("-inf", "2"), [float("-inf"), 2.0], "f"),
        (("nan", "inf"), [1, 0], "classes"),
        (("007", "0.5"), [1, 0], "classes"),
        (("9" * 30, "8"), [1, 0], "classes"),
        (("b", "1"), [1, 0], "classes"),
    ],
    ids=["whole", "fractions", "infinite", "leading zeros", "words", "zeros and a fraction", "long", "mixed"],
)  # fmt: skip
def test_numbers_stay_numbers_and_all_else_is_a_class(
    tmp_path: Path, texts: tuple[str, str], expected: list[float], kind: str
) -> None:
    make(tmp_path / "data", "a.jpg", "b.jpg")
    (tmp_path / "t.tsv").write_text(f"name\tother\ty\na.jpg\t-\t{texts[0]}\nb.jpg\t-\t{texts[1]}\n")
    pictures = open_images(tmp_path / "data", labels=tmp_path / "t.tsv")
    assert pictures.labels is not None
    assert pictures.labels.tolist() == expected
    assert (pictures.classes is not None) == (kind == "classes")
    assert pictures.labels.dtype.kind == ("i" if kind == "classes" else kind)


def test_labels_from_parquet_may_be_several_numbers(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    make(tmp_path / "data", "a.jpg", "b.jpg")
    pq.write_table(pa.table({"f": ["b.jpg", "a.jpg"], "x": [1.0, 2.0], "y": [3, 4]}), tmp_path / "t.parquet")
    pictures = open_images(tmp_path / "data", labels=tmp_path / "t.parquet", columns=("f", "x", "y"))
    assert pictures.labels is not None
    assert pictures.labels.tolist() == [[2.0, 4.0], [1.0, 3.0]]
    pictures = open_images(tmp_path / "data", labels=tmp_path / "t.parquet", columns=["f", "y"])
    assert pictures.labels is not None and pictures.labels.tolist() == [4, 3]


def test_a_parquet_table_may_name_files_by_numbers_and_must_have_all_labels(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    make(tmp_path / "data", "7.jpg", "10.jpg")
    pq.write_table(pa.table({"image_id": [10, 7], "label": ["a", "b"]}), tmp_path / "t.parquet")
    pictures = open_images(tmp_path / "data", labels=tmp_path / "t.parquet")
    assert pictures.labels is not None and pictures.labels.tolist() == [1, 0]
    pq.write_table(pa.table({"image_id": [10, 7], "label": ["a", None]}), tmp_path / "t.parquet")
    with pytest.raises(ArgumentError, match=r"t\.parquet has no label for 7"):
        open_images(tmp_path / "data", labels=tmp_path / "t.parquet")


def test_labels_may_be_a_mapping_or_a_list(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "b.jpg")
    for labels in ({"b.jpg": "x", "a.jpg": "y"}, ["y", "x"], np.array(["y", "x"])):
        pictures = open_images(tmp_path, labels=labels)
        assert pictures.labels is not None
        assert pictures.classes == ["x", "y"] and pictures.labels.tolist() == [1, 0]
    floats = open_images(tmp_path, labels=np.array([[0.5, 1], [2, 3]], np.float32)).labels
    assert floats is not None and floats.dtype == np.float32 and floats.shape == (2, 2)
    numbers = open_images(tmp_path, labels=[1, 0], classes=["x", "y"])
    assert numbers.classes == ["x", "y"]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"a.jpg": 1}, r"has no label for 1 of the 2 images in .*: b\.jpg\nhint: its names look like 'a\.jpg'"),
        ({"a.jpg": 1, "b.jpg": 2, "c.jpg": 3}, r"has labels for 1 images that are not in .*: c\.jpg"),
        ({"a.jpg": 1, "./a.jpg": 2}, r"has \./a\.jpg twice"),
        ([1, 2, 3], "labels= has 3 labels, and .* 2 images"),
        ([1, "x"], "labels contain names, but also 1"),
        ([{}, {}], "neither a number nor a name"),
        ([[1], [1, 2]], "not numbers of one shape"),
        (7, "unknown labels=7"),
        ("table.json", "is not a supported table"),
    ],
    ids=["missing", "surplus", "twice", "too many", "mixed", "objects", "shapes", "number", "other file"],
)  # fmt: skip
def test_labels_that_do_not_fit_are_told_by_name(tmp_path: Path, labels: object, message: str) -> None:
    make(tmp_path, "a.jpg", "b.jpg")
    with pytest.raises(ArgumentError, match=message):
        open_images(tmp_path, labels=labels)


def test_a_table_that_cannot_be_understood_says_so(tmp_path: Path) -> None:
    make(tmp_path, "data/a.jpg", "data/b.jpg")
    table = tmp_path / "t.csv"
    for text, kind, message in (
        ("", DamagedFile, "is empty"),
        ("a,b,c\n1,2,3\n", ArgumentError, r"it is unclear which columns of .* \(a, b, c\)"),
        ("file,label\na.jpg,cat\nb.jpg,\n", ArgumentError, r"has no label for b\.jpg"),
        ("file,label\na.jpg,1\nb.jpg, \n", ArgumentError, r"has no label for b\.jpg"),
        (f"file,label\na.jpg,{'x' * 200_000}\n", DamagedFile, "cannot be read at line 2"),
        ("file,label\na.jpg\n", DamagedFile, "has 1 columns in row 2, and 2 in its first one"),
    ):
        table.write_text(text)
        with pytest.raises(kind, match=message):
            open_images(tmp_path / "data", labels=table)
    with pytest.raises(ArgumentError, match="has no column 'x'"):
        open_images(tmp_path / "data", labels=table, columns=("x", "label"))


# ------------------------------------------------------------ lists


def test_a_list_keeps_its_order_and_may_have_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "b/9.jpg", "a/1.jpg")
    paths = [tmp_path / "b" / "9.jpg", str(tmp_path / "a" / "1.jpg"), tmp_path / "b" / "9.jpg"]
    pictures = open_images(paths)
    assert within(pictures, tmp_path) == ["b/9.jpg", "a/1.jpg", "b/9.jpg"] and pictures.labels is None
    labelled = open_images([(path, label) for path, label in zip(paths, ("x", "y", "x"))])
    assert labelled.labels is not None
    assert labelled.classes == ["x", "y"] and labelled.labels.tolist() == [0, 1, 0]
    assert open_images(paths, labels=[0.5, 1, 2]).labels is not None
    monkeypatch.chdir(tmp_path)
    relative = open_images(["a/1.jpg"])
    monkeypatch.chdir("/")
    assert bytes(relative.read(0)) == b"content of a/1.jpg"


@pytest.mark.parametrize("option", ["column", "label", "split", "columns"])
def test_what_files_do_not_have_cannot_be_asked_of_them(tmp_path: Path, option: str) -> None:
    make(tmp_path, "x/a.jpg", "x/b.jpg")
    for source in (tmp_path, [tmp_path / "x" / "a.jpg"]):
        with pytest.raises(ArgumentError, match=rf"{option}=.* is only for "):
            open_images(source, **{option: ["file", "label"] if option == "columns" else "x"})  # type: ignore[arg-type]


def test_a_list_of_anything_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="the list of images is empty"):
        open_images([])
    with pytest.raises(ArgumentError, match="both files and"):
        open_images(["a.jpg", ("b.jpg", 1)])
    with pytest.raises(ArgumentError, match="3 is not a path"):
        open_images([3])
    with pytest.raises(ArgumentError, match="5 is not a known source of images"):
        open_images(5)
    with pytest.raises(ArgumentError, match="is not a path") as refused:
        open_images([{"jpg": b"picture" * 10_000}])
    assert len(str(refused.value)) < 500


def test_a_pattern_of_pictures_is_told_what_to_do(tmp_path: Path) -> None:
    make(tmp_path, "x/a.jpg")
    with pytest.raises(ArgumentError, match=r"is a pattern, but patterns are only supported for \.tar"):
        open_images(tmp_path / "x" / "*.jpg")


# ------------------------------------------------------------ reading


def test_a_file_that_goes_or_changes_later_is_told_by_name_or_read_as_it_is(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg", "b.jpg", "c.jpg", "d.jpg", "e.jpg")
    pictures = open_images(tmp_path)
    (tmp_path / "a.jpg").unlink()
    (tmp_path / "b.jpg").write_bytes(b"other and longer content")
    (tmp_path / "c.jpg").write_bytes(b"")
    (tmp_path / "d.jpg").unlink()
    (tmp_path / "d.jpg").mkdir()
    (tmp_path / "e.jpg").unlink()
    os.mkfifo(tmp_path / "e.jpg")
    with pytest.raises(StaleSource, match=r"a\.jpg is no longer the file that was opened: it is gone"):
        pictures.read(0)
    assert bytes(pictures.read(1)) == b"other and longer content"
    assert bytes(pictures.read(2)) == b""
    for position in (3, 4):
        with pytest.raises(BadImage, match=r"[de]\.jpg cannot be decoded: it is not a regular file"):
            pictures.read(position)


def test_a_link_to_nothing_is_told_when_it_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").symlink_to(tmp_path / "nothing")
    with pytest.raises(StaleSource, match="a broken link"):
        open_images(tmp_path).read(0)


def test_a_file_of_two_gigabytes_is_refused(tmp_path: Path) -> None:
    make(tmp_path, "a.jpg")
    os.truncate(tmp_path / "a.jpg", 2**31)
    with pytest.raises(BadImage, match=r"a\.jpg cannot be decoded: it has 2\.0 GiB"):
        open_images(tmp_path).read(0)


def test_a_folder_that_cannot_be_looked_into_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path, "a/1.jpg", *(f"b{number}/2.jpg" for number in range(20)))
    scandir: Callable[..., object] = os.scandir

    def refuse(path: bytes) -> object:
        if path.endswith(b"b7/"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="Permission denied, while listing images: .*/b7/'") as told:
        open_images(tmp_path)
    assert told.value.__notes__[0].startswith("hint: ")


def test_opening_pictures_as_other_data_shows_the_way(tmp_path: Path) -> None:
    make(tmp_path, "cats/1.JPG")
    with pytest.raises(ArgumentError, match=r"contains images.*\nhint: stoker\.images\("):
        stoker.open(tmp_path)
    with pytest.raises(ArgumentError, match=r"contains images.*\nhint: stoker\.images\("):
        stoker.open(tmp_path / "cats" / "1.JPG")
