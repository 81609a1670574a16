from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import xxhash

from stoker.errors import ArgumentError, StaleSource
from stoker.prepare.inputs import find_inputs, identify_inputs


def names(paths: object, **options: object) -> list[str]:
    return [Path(entry.path).name for entry in find_inputs(paths, **options)]  # type: ignore[arg-type]


def touch(folder: Path, *files: str) -> None:
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


def test_files_come_in_natural_order_however_they_are_given(tmp_path: Path) -> None:
    touch(tmp_path, "part-10.txt", "part-9.txt", "part-1.txt", "other.txt")
    wanted = ["other.txt", "part-1.txt", "part-9.txt", "part-10.txt"]
    assert names(tmp_path) == wanted
    assert names(str(tmp_path / "*.txt")) == wanted
    assert (
        names([tmp_path / "part-10.txt", tmp_path / "part-9.txt", tmp_path / "part-1.txt", tmp_path / "o*"]) == wanted
    )
    assert names([tmp_path, tmp_path / "part-9.txt"]) == wanted


def test_folders_give_what_can_be_read_and_leave_out_the_rest(tmp_path: Path) -> None:
    touch(tmp_path, "a.parquet", "b/c.jsonl.gz", "b/d.txt", "b/.hidden.txt", ".cache/e.txt", "f.json", "g.safetensors")
    touch(tmp_path, "out/skipped.jsonl")
    assert names(tmp_path, without=tmp_path / "out") == ["a.parquet", "c.jsonl.gz", "d.txt"]
    assert [entry.kind for entry in find_inputs(tmp_path, without=tmp_path / "out")] == ["parquet", "json", "text"]


def test_a_pattern_reaches_into_folders(tmp_path: Path) -> None:
    touch(tmp_path, "a/x.jsonl", "a/b/y.jsonl", "a/b/z.txt")
    assert names(tmp_path / "**" / "*.jsonl") == ["y.jsonl", "x.jsonl"]


def test_a_file_that_is_named_may_have_any_suffix(tmp_path: Path) -> None:
    touch(tmp_path, "README", "lines.json", "text.log.gz")
    kinds = {
        Path(entry.path).name: (entry.kind, entry.compression) for entry in find_inputs(sorted(tmp_path.iterdir()))
    }
    assert kinds == {"README": ("text", None), "lines.json": ("json", None), "text.log.gz": ("text", "gzip")}


@pytest.mark.parametrize(("given", "message"), [("none.txt", "does not exist"), ("*.none", "matches no files")])
def test_what_is_not_there_is_named(tmp_path: Path, given: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        find_inputs(tmp_path / given)


def test_a_folder_with_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="contains no file to read"):
        find_inputs(tmp_path)


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    with pytest.raises(ArgumentError, match="not a regular file"):
        find_inputs(tmp_path / "pipe.txt")


def test_a_hugging_face_folder_gives_its_data_and_not_its_caches(tmp_path: Path) -> None:
    touch(tmp_path, "train/data-00000-of-00001.arrow", "train/cache-123.arrow", "train/dataset_info.json")
    (tmp_path / "train" / "state.json").write_text(
        json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
    )
    assert names(tmp_path / "train") == ["data-00000-of-00001.arrow"]
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    with pytest.raises(ArgumentError, match="splits train, test"):
        find_inputs(tmp_path)


def test_digests_are_those_of_the_content(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "a.txt").write_bytes(content)
    seen: list[int] = []
    [entry] = identify_inputs(find_inputs(tmp_path), (), progress=seen.append)
    assert entry.digest == xxhash.xxh3_128_hexdigest(content)
    assert seen[-1] == len(content)


def test_a_digest_is_taken_over_when_path_size_and_time_are_the_same(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "b.txt")
    inputs = identify_inputs(find_inputs(tmp_path), ())
    known = [entry.to_meta() | {"digest": "taken over"} for entry in inputs]
    assert [entry.digest for entry in identify_inputs(find_inputs(tmp_path), known)] == ["taken over"] * 2
    os.utime(tmp_path / "a.txt", ns=(1, 1))
    (tmp_path / "b.txt").write_text("longer")
    again = identify_inputs(find_inputs(tmp_path), known)
    assert again[0].digest == inputs[0].digest
    assert again[1].digest == xxhash.xxh3_128_hexdigest(b"longer")


def test_a_file_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt")
    inputs = find_inputs(tmp_path)
    (tmp_path / "a.txt").write_text("longer")
    with pytest.raises(StaleSource, match="it had 1 bytes and has 6"):
        identify_inputs(inputs, ())


def test_a_name_that_is_no_text_can_be_kept(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.txt"
    with open(path, "w") as file:
        file.write("x")
    [entry] = find_inputs(tmp_path)
    assert entry.to_meta()["path"].endswith("\\xff.txt")


def test_the_folder_that_is_filled_is_left_out_however_it_is_given(tmp_path: Path) -> None:
    touch(tmp_path, "a.txt", "out/skipped.jsonl", "out/manifest.json", "out2/b.txt")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for given in (tmp_path / "*", tmp_path / "**", [tmp_path / "a.txt", tmp_path / "out", tmp_path / "out2"]):
        assert names(given, without=tmp_path / "out") == ["a.txt", "b.txt"]


def test_links_that_lead_round_are_followed_once(tmp_path: Path) -> None:
    touch(tmp_path, "a/b.txt")
    for name, place in (("a/up", ".."), ("a/here", "."), ("here", "."), ("z", "a")):
        (tmp_path / name).symlink_to(place)
    assert [entry.path for entry in find_inputs(tmp_path)] == [str(tmp_path / "a" / "b.txt")]
