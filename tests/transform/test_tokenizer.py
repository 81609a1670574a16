"""Tokenizers of every kind, made here: what they promise alike, and what each of them has to be kept from doing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import ArgumentError, DamagedFile, DataError, MissingExtra, StaleSource, StokerError
from stoker.transform.tokenizer import Identity, Tokenizer, gigatoken, open_tokenizer, opening, train_bpe
from stoker.transform.tokenizer.sample import TRICKY_TEXTS
from stoker.transform.tokenizer.tokenizer_protocols import Encoded

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("tiktoken")
sentencepiece = pytest.importorskip("sentencepiece")

END = "<|endoftext|>"
WORDS = ["the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he"]


def corpus(num_texts: int = 200) -> list[str]:
    chosen = random.Random(0)
    texts = []
    for number in range(num_texts):
        words = chosen.choices(WORDS, k=40)
        texts.append(" ".join(words).capitalize() + f". It's {number}!\n\n    def f(x):\n        return {number}\n")
    return texts


@dataclass(frozen=True)
class Files:
    """The tokenizers of this session."""

    folder: Path

    @property
    def huggingface(self) -> Path:
        return self.folder / "hf" / "tokenizer.json"

    @property
    def tiktoken(self) -> Path:
        return self.folder / "small.tiktoken"

    @property
    def sentencepiece(self) -> Path:
        return self.folder / "pieces.model"

    def open(self, kind: str, **options: Any) -> Tokenizer:
        if kind == "bytes":
            return open_tokenizer("bytes", **options)
        if kind == "tiktoken":
            options = {"pattern": "r50k_base", "specials": {END: 1000}} | options
        return open_tokenizer(getattr(self, kind), **options)


def rank_lines(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items())


def small_ranks() -> dict[bytes, int]:
    merges = [
        b"th",
        b"the",
        b" the",
        b"in",
        b"  ",
        b"    ",
        b"\n\n",
        b"'s",
        b"an",
        b"and",
        b" and",
        b"<|",
        b"|>",
        b"12",
    ]
    return {token: rank for rank, token in enumerate([bytes([value]) for value in range(256)] + merges)}


def pieces_model(**options: Any) -> bytes:
    model = io.BytesIO()
    settings = {"vocab_size": 400, "model_type": "bpe", "byte_fallback": True, "minloglevel": 2} | options
    lines = [line for text in corpus() for line in text.splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model, **settings)
    return model.getvalue()


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    made = Files(tmp_path_factory.mktemp("tokenizers"))
    train_bpe(corpus(), vocab_size=600, out=made.huggingface)
    made.tiktoken.write_bytes(rank_lines(small_ranks()))
    made.sentencepiece.write_bytes(pieces_model())
    return made


@pytest.fixture(scope="session")
def opened(files: Files) -> dict[str, Tokenizer]:
    """One of each kind, by its reference."""
    return {kind: files.open(kind, backend="reference") for kind in KINDS}


KINDS = ["huggingface", "tiktoken", "sentencepiece", "bytes"]
LOSSLESS = ["huggingface", "tiktoken", "bytes"]

characters = st.characters(codec="utf-8")  # all but surrogates
texts = st.one_of(
    st.text(characters),
    st.lists(
        st.sampled_from(["the ", "and", " ", "\n", "\r\n", "'s", END, "</s>", "é", "中", "🙂", "12", "\u0301"])
    ).map("".join),
    st.sampled_from(TRICKY_TEXTS),
)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids, lengths = tokenizer.encode([text])
    assert lengths.tolist() == [len(ids)]
    return [int(token) for token in ids]


# --- laws


@pytest.mark.parametrize("kind", LOSSLESS)
@given(text=texts)
def test_what_was_encoded_is_decoded_again(opened: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = opened[kind]
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


@pytest.mark.parametrize("kind", KINDS)
@given(many=st.lists(texts, max_size=8))
def test_encoding_many_texts_is_encoding_each(opened: dict[str, Tokenizer], kind: str, many: list[str]) -> None:
    tokenizer = opened[kind]
    ids, lengths = tokenizer.encode(many)
    assert ids.dtype == np.uint32 and lengths.dtype == np.int64
    assert lengths.shape == (len(many),)
    each = [ids_of(tokenizer, text) for text in many]
    assert ids.tolist() == [token for one in each for token in one]
    assert lengths.tolist() == [len(one) for one in each]


@pytest.mark.parametrize("kind", KINDS)
@given(text=texts)
def test_no_text_turns_into_a_special_token(opened: dict[str, Tokenizer], kind: str, text: str) -> None:
    tokenizer = opened[kind]
    specials = set(tokenizer.identity.specials.values())
    assert specials
    ids = ids_of(tokenizer, text)
    assert not specials & set(ids)
    assert all(token < tokenizer.identity.vocab_size for token in ids)


@pytest.mark.parametrize("kind", ["huggingface", "tiktoken"])
@given(many=st.lists(texts, max_size=4))
def test_gigatoken_makes_the_ids_of_the_reference(opened: dict[str, Tokenizer], kind: str, many: list[str]) -> None:
    fast = fast_one(opened[kind])
    assert_same(fast.encode(many), opened[kind].encode(many))


def assert_same(ours: Encoded, right: Encoded) -> None:
    np.testing.assert_array_equal(ours[0], right[0])
    np.testing.assert_array_equal(ours[1], right[1])


def fast_one(reference: Tokenizer) -> Tokenizer:
    """The same tokenizer by gigatoken, kept for the next example."""
    pytest.importorskip("gigatoken")
    assert isinstance(reference, opening._Opened)
    key = reference._choices.spec
    if key not in FAST:
        choices = dataclasses.replace(reference._choices, backend="gigatoken")
        FAST[key] = opening._opened(choices)
    assert FAST[key].backend == "gigatoken"
    return FAST[key]


FAST: dict[str, Tokenizer] = {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["huggingface", "tiktoken"])
@pytest.mark.parametrize("context", [" {}'s 2", "  {}"])
def test_gigatoken_knows_every_character_as_the_reference_does(
    opened: dict[str, Tokenizer], kind: str, context: str
) -> None:
    reference, fast = opened[kind], fast_one(opened[kind])
    every = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(every), 256):
        many = [context.replace("{}", character) for character in every[start : start + 256]]
        ours, right = fast.encode(many), reference.encode(many)
        if not np.array_equal(ours[0], right[0]):
            apart = [ascii(text) for text in many if ids_of(fast, text) != ids_of(reference, text)]
            pytest.fail(f"other ids for {len(apart)} texts: {apart[:5]}")


def test_texts_with_characters_new_in_unicode_go_to_the_reference(opened: dict[str, Tokenizer]) -> None:
    for character in ("\u088f", "\u1acf", "\ua7ce", "\U00010940", "\U000323b0", "\U00033479"):
        text = f"a {character}'s 1"
        assert gigatoken.has_newcomer(text, text.encode())
        for kind in ("huggingface", "tiktoken"):
            assert ids_of(fast_one(opened[kind]), text) == ids_of(opened[kind], text)
    for text in ("", "plain", "é ü", "中文", "हिन्दी ก", "글꾀", "🙂🙃", "\U0010ffff"):
        assert not gigatoken.has_newcomer(text, text.encode())


@pytest.mark.parametrize("kind", ["huggingface", "tiktoken", "sentencepiece"])
def test_threads_make_the_same_ids(files: Files, opened: dict[str, Tokenizer], kind: str) -> None:
    many = [text * 40 for text in corpus()] + ["", "end"]
    shared = files.open(kind, backend="reference", num_threads=3)
    assert_same(shared.encode(many), opened[kind].encode(many))


@pytest.mark.parametrize("kind", KINDS)
def test_no_texts_have_no_ids(opened: dict[str, Tokenizer], kind: str) -> None:
    for many in ([], [""], ["", ""]):
        ids, lengths = opened[kind].encode(many)
        assert ids.dtype == np.uint32 and ids.tolist() == []
        assert lengths.dtype == np.int64 and lengths.tolist() == [0] * len(many)
    assert opened[kind].decode([]) == ""


# --- identity


def test_bytes_are_the_bytes(opened: dict[str, Tokenizer]) -> None:
    tokenizer = opened["bytes"]
    assert ids_of(tokenizer, "aé") == list("aé".encode())
    assert (tokenizer.identity.vocab_size, tokenizer.identity.end_of_document) == (257, 256)
    assert tokenizer.decode([104, 105, 256]) == f"hi{END}"
    assert tokenizer.decode([0xC3]) == "\ufffd"
    assert tokenizer.backend == "bytes" and tokenizer.fallback_reason is None


@pytest.mark.parametrize("kind", KINDS)
def test_an_identity_survives_json_and_pickle(opened: dict[str, Tokenizer], kind: str) -> None:
    identity = opened[kind].identity
    assert Identity.from_meta(json.loads(json.dumps(identity.to_meta()))) == identity
    assert pickle.loads(pickle.dumps(identity)) == identity
    assert hash(identity) == hash(Identity.from_meta(identity.to_meta()))


@pytest.mark.parametrize(
    "change",
    [{"kind": None}, {"vocab_size": "many"}, {"end_of_document": True}, {"specials": [1]}, {"specials": {"a": -1}}],
)
def test_what_is_no_identity_is_refused(opened: dict[str, Tokenizer], change: dict[str, Any]) -> None:
    meta = opened["bytes"].identity.to_meta()
    with pytest.raises(DataError, match="does not describe a tokenizer"):
        Identity.from_meta(meta | change)
    del meta["digest"]
    with pytest.raises(DataError, match="'digest' is missing"):
        Identity.from_meta(meta)


@pytest.mark.parametrize(("size", "dtype"), [(256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_ids_get_the_smallest_type_that_holds_them(size: int, dtype: str) -> None:
    identity = Identity(kind="bytes", name="x", digest="", vocab_size=size, end_of_document=None)
    assert identity.dtype == dtype
    np.array(size - 1, dtype)


@pytest.mark.parametrize("kind", ["huggingface", "sentencepiece"])
def test_the_digest_is_that_of_the_file(files: Files, opened: dict[str, Tokenizer], kind: str) -> None:
    data = getattr(files, kind).read_bytes()
    assert opened[kind].identity.digest == hashlib.sha256(data).hexdigest()


def test_options_that_change_ids_change_the_digest(files: Files) -> None:
    digests = {
        files.open("tiktoken", pattern=pattern, specials=specials).identity.digest
        for pattern in ("r50k_base", "cl100k_base", r"(?s:.)")
        for specials in (None, {END: 1000}, {END: 1001})
    }
    assert len(digests) == 9
    one, other = (files.open("tiktoken", end_of_document=end).identity for end in (0, 1))
    assert one.digest == other.digest and one != other


def test_a_folder_with_a_tokenizer_json_is_that_file(files: Files) -> None:
    assert open_tokenizer(files.huggingface.parent).identity == open_tokenizer(str(files.huggingface)).identity
    with pytest.raises(ArgumentError, match=r"contains no tokenizer.json, but pieces.model, small.tiktoken"):
        open_tokenizer(files.folder)


# --- the end of a document


def test_the_end_of_a_document_is_found_or_given(files: Files, opened: dict[str, Tokenizer]) -> None:
    assert [opened[kind].identity.end_of_document for kind in KINDS] == [0, 1000, 2, 256]
    assert files.open("huggingface", end_of_document=END).identity.end_of_document == 0
    assert files.open("huggingface", end_of_document=7).identity.end_of_document == 7
    assert files.open("sentencepiece", end_of_document="<s>").identity.end_of_document == 1
    assert files.open("tiktoken", end_of_document="the").identity.end_of_document == small_ranks()[b"the"]
    assert files.open("tiktoken", specials=None).identity.end_of_document is None
    assert files.open("bytes", end_of_document="\n").identity.end_of_document == 10


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["<nothing like it>", -1, 10**6, True, 1.5])
def test_an_end_outside_the_vocabulary_is_refused(files: Files, kind: str, end: Any) -> None:
    with pytest.raises(ArgumentError, match="end_of_document[= ]"):
        files.open(kind, end_of_document=end)


def made(files: Files, folder: Path, change: Callable[[Any], None]) -> Path:
    """The trained tokenizer with a change."""
    content = json.loads(files.huggingface.read_bytes())
    change(content)
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(content))
    return path


def added(token: str, number: int, *, special: bool) -> dict[str, Any]:
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    return {"id": number, "content": token, "special": special, **flags}


@pytest.mark.parametrize("written", ["<|im_end|>", {"content": "<|im_end|>"}])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
def test_a_file_next_to_the_tokenizer_names_the_end_where_its_tokens_do_not(
    files: Files, tmp_path: Path, name: str, written: Any
) -> None:
    def for_chat(content: Any) -> None:
        vocabulary = content["model"]["vocab"]
        content["added_tokens"] = [added("<|im_end|>", len(vocabulary), special=True)]
        vocabulary["other"] = vocabulary.pop(END)

    path = made(files, tmp_path, for_chat)
    assert open_tokenizer(path).identity.end_of_document is None
    path.with_name(name).write_text(json.dumps({"eos_token": written}))
    assert open_tokenizer(path).identity.end_of_document == files.open("huggingface").identity.vocab_size
    for odd in (
        "{",
        "[]",
        '{"eos_token": 3}',
        '{"eos_token": {"content": null}}',
        '{"eos_token": "<other>"}',
        "[" * 9999,
    ):
        path.with_name(name).write_text(odd)
        assert open_tokenizer(path).identity.end_of_document is None


def test_the_end_of_a_document_goes_before_the_end_of_a_turn(files: Files, tmp_path: Path) -> None:
    size = files.open("huggingface").identity.vocab_size
    turn = added("<|im_end|>", size, special=True)
    path = made(files, tmp_path, lambda content: content["added_tokens"].append(turn))
    path.with_name("tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    identity = open_tokenizer(path).identity
    assert identity.end_of_document == 0
    assert identity.specials == {END: 0, "<|im_end|>": size}
    assert identity.vocab_size == size + 1


# --- what the libraries have to be kept from


def test_truncation_padding_dropout_and_templates_are_switched_off(files: Files, tmp_path: Path) -> None:
    plain = files.open("huggingface")
    model = tokenizers.Tokenizer.from_file(str(files.huggingface))
    model.enable_truncation(3)
    model.enable_padding(length=50)
    model.post_processor = tokenizers.processors.TemplateProcessing(single=f"{END} $A {END}", special_tokens=[(END, 0)])
    model.model.dropout = 0.9
    path = tmp_path / "tokenizer.json"
    model.save(str(path))
    many = [*corpus(5), "", *TRICKY_TEXTS]
    for backend in backends():
        tokenizer = open_tokenizer(path, backend=backend)
        assert_same(tokenizer.encode(many), plain.encode(many))


def backends() -> list[Any]:
    try:
        import gigatoken  # noqa: F401
    except ImportError:
        return ["reference", "auto"]
    return ["reference", "auto", "gigatoken"]


@pytest.mark.parametrize("normalized", [False, True])
def test_special_tokens_of_any_make_are_text_and_added_words_are_words(
    files: Files, tmp_path: Path, normalized: bool
) -> None:
    size = files.open("huggingface").identity.vocab_size

    def add(content: Any) -> None:
        strict = added("<|special|>", size, special=True) | {"normalized": normalized, "lstrip": True}
        content["added_tokens"] += [strict, added("wordlike", size + 1, special=False)]

    path = made(files, tmp_path, add)
    for backend in backends():
        tokenizer = open_tokenizer(path, backend=backend)
        assert size not in ids_of(tokenizer, "a <|special|> b<|special|>")
        assert size + 1 in ids_of(tokenizer, "a wordlike b")
        assert tokenizer.identity.specials == {END: 0, "<|special|>": size}
        assert tokenizer.decode([size, size + 1]).replace(" ", "") == "<|special|>wordlike"


def test_the_environment_is_as_it_was(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = files.open("huggingface", backend="reference", num_threads=2)
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    tokenizer.encode(corpus())
    assert "TOKENIZERS_PARALLELISM" not in os.environ
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "true")
    tokenizer.encode(corpus())
    assert os.environ["TOKENIZERS_PARALLELISM"] == "true"


def test_a_forked_child_encodes_after_its_parent_did(files: Files) -> None:
    tokenizer = files.open("huggingface", backend="reference", num_threads=2)
    right = tokenizer.encode(corpus())[0]
    with multiprocessing.get_context("fork").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_ids, (tokenizer,)), right)


def _ids(tokenizer: Tokenizer) -> Any:
    return tokenizer.encode(corpus())[0]


# --- texts and ids that are none


@pytest.mark.parametrize("kind", KINDS)
def test_half_a_surrogate_pair_is_named(files: Files, kind: str) -> None:
    for tokenizer in (files.open(kind), files.open(kind, backend="reference")):
        with pytest.raises(DataError, match=r"text 1 of 2 \('a\\ud800'\) cannot .*: character 1 is '\\ud800'"):
            tokenizer.encode(["fine", "a\ud800"])
        assert tokenizer.fallback_reason is None or kind == "sentencepiece"  # the text was to blame


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_text_is_refused(opened: dict[str, Tokenizer], kind: str) -> None:
    for wrong in (None, b"bytes", ("a", "pair"), 3):
        with pytest.raises(ArgumentError, match=f"text 1 of 2 must be a str, got {type(wrong).__name__}"):
            opened[kind].encode(["fine", wrong])  # type: ignore[list-item]
    with pytest.raises(ArgumentError, match="a list of texts"):
        opened[kind].encode("one")


@pytest.mark.parametrize("kind", KINDS)
def test_ids_that_are_none_are_refused(opened: dict[str, Tokenizer], kind: str) -> None:
    size = opened[kind].identity.vocab_size
    for wrong in (-1, size, 2**40):
        with pytest.raises(ArgumentError, match=rf"id {wrong} is not in the vocabulary(?s:.*) 0 to {size - 1}"):
            opened[kind].decode([5, wrong])
    for odd in ([1.5], [[1]], ["a"]):
        with pytest.raises(ArgumentError, match="cannot decode"):
            opened[kind].decode(odd)  # type: ignore[arg-type]


def test_ids_in_a_gap_of_the_vocabulary_are_refused(opened: dict[str, Tokenizer]) -> None:
    with pytest.raises(ArgumentError, match=r"tiktoken cannot decode these ids: .*999"):
        opened["tiktoken"].decode([65, 999])


def test_a_text_on_which_the_library_fails_is_named(opened: dict[str, Tokenizer]) -> None:
    with pytest.raises(DataError, match=r"text 1 of 3 \(.* with 1000001 characters\) .* tiktoken says: .*stack"):
        opened["tiktoken"].encode(["fine", " " * 10**6 + "x", "fine"])
    assert ids_of(opened["tiktoken"], "the") == [small_ranks()[b"the"]]  # and it goes on


def test_special_pieces_are_decoded_as_they_are_written(opened: dict[str, Tokenizer]) -> None:
    tokenizer = opened["sentencepiece"]
    ids = ids_of(tokenizer, "the and")
    assert tokenizer.decode([1, *ids, 2, *ids, 2]) == "<s>the and</s>the and</s>"


# --- gigatoken, and when it is not taken


class Wrong:
    """Stands in for gigatoken, and is wrong about one text."""

    library = "gigatoken"

    def __init__(self, file: Any, reference: Any) -> None:
        self._reference = reference

    def encode(self, texts: Sequence[str]) -> Any:
        ids, lengths = self._reference.encode(texts)
        if "odd" in texts:
            ids = ids + 1
        if "bad" in texts:
            raise RuntimeError("it broke")
        return ids, lengths


def test_gigatoken_is_taken_where_it_agrees(files: Files) -> None:
    pytest.importorskip("gigatoken")
    for kind in ("huggingface", "tiktoken"):
        tokenizer = files.open(kind)
        assert (tokenizer.backend, tokenizer.fallback_reason) == ("gigatoken", None)
        tokenizer.check([*corpus(), *TRICKY_TEXTS])
        assert tokenizer.backend == "gigatoken"
        assert tokenizer.identity == files.open(kind, backend="reference").identity
        assert pickle.loads(pickle.dumps(tokenizer)).backend == "gigatoken"


def test_gigatoken_is_not_taken_where_it_is_known_to_disagree(files: Files) -> None:
    pytest.importorskip("gigatoken")
    tokenizer = files.open("sentencepiece")
    assert tokenizer.backend == "sentencepiece"
    assert tokenizer.fallback_reason is not None and "sentencepiece give different ids" in tokenizer.fallback_reason
    with pytest.raises(DataError, match="sentencepiece give different ids(?s:.*)hint: backend='auto'"):
        files.open("sentencepiece", backend="gigatoken")


def test_a_panic_of_gigatoken_turns_to_the_reference(tmp_path: Path) -> None:
    pytest.importorskip("gigatoken")
    path = tmp_path / "x.tiktoken"
    path.write_bytes(rank_lines({**small_ranks(), b"no pair makes this": 270}))
    tokenizer = open_tokenizer(path, pattern="r50k_base")
    assert tokenizer.backend == "tiktoken"
    assert tokenizer.fallback_reason is not None and "it panicked" in tokenizer.fallback_reason


def test_a_difference_found_later_turns_to_the_reference(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "Gigatoken", Wrong)
    tokenizer = files.open("huggingface")
    assert tokenizer.backend == "gigatoken"
    tokenizer.check(iter(["fine", "odd", "fine"]))
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.fallback_reason is not None
    assert tokenizer.fallback_reason.startswith("gigatoken and tokenizers give different ids for 'odd': id 0 is ")
    copy = pickle.loads(pickle.dumps(tokenizer))  # what was learnt goes with it
    assert (copy.backend, copy.fallback_reason) == (tokenizer.backend, tokenizer.fallback_reason)
    strict = files.open("huggingface", backend="gigatoken")
    with pytest.raises(DataError, match="tokenizers give different ids for 'odd'"):
        strict.check(["odd"])


def test_a_failure_turns_to_the_reference(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "Gigatoken", Wrong)
    right = ids_of(files.open("huggingface", backend="reference"), "bad")
    tokenizer = files.open("huggingface")
    assert ids_of(tokenizer, "bad") == right
    assert (tokenizer.backend, tokenizer.fallback_reason) == ("tokenizers", "gigatoken failed: it broke")
    tokenizer = files.open("huggingface")
    tokenizer.check(["bad"])
    assert tokenizer.fallback_reason == "gigatoken failed on 'bad': it broke"
    with pytest.raises(DataError, match="gigatoken failed: it broke"):
        files.open("huggingface", backend="gigatoken").encode(["bad"])


def test_without_gigatoken_the_reference_is_taken(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    tokenizer = files.open("huggingface")
    assert tokenizer.backend == "tokenizers"
    assert tokenizer.fallback_reason is not None and "not installed" in tokenizer.fallback_reason
    with pytest.raises(MissingExtra, match=r"stoker\[gigatoken\]"):
        files.open("huggingface", backend="gigatoken")
    assert files.open("huggingface", backend="reference").fallback_reason is None


def test_what_gigatoken_remembers_is_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gigatoken")
    monkeypatch.setattr(gigatoken, "_MAX_GROWTH_BYTES", -1)
    tokenizer = files.open("huggingface", backend="gigatoken")
    assert isinstance(tokenizer, opening._Opened) and tokenizer._fast is not None
    before = tokenizer._fast._encoder
    np.testing.assert_array_equal(
        tokenizer.encode(corpus())[0], files.open("huggingface", backend="reference").encode(corpus())[0]
    )
    assert tokenizer._fast._encoder is not before


def test_a_fresh_gigatoken_does_not_take_a_changed_file(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gigatoken")
    path = tmp_path / "x.tiktoken"
    path.write_bytes(files.tiktoken.read_bytes())
    tokenizer = open_tokenizer(path, pattern="r50k_base", backend="gigatoken")
    monkeypatch.setattr(gigatoken, "_MAX_GROWTH_BYTES", -1)
    path.write_bytes(rank_lines({token: 259 - rank for token, rank in list(small_ranks().items())[:260]}))
    with pytest.raises(StaleSource, match=r"x\.tiktoken .* its content has changed"):
        tokenizer.encode(["the"])


@pytest.mark.parametrize(
    ("library", "kind"),
    [("tokenizers", "huggingface"), ("tiktoken", "tiktoken"), ("sentencepiece", "sentencepiece")],
)
def test_a_missing_library_is_named(
    files: Files, monkeypatch: pytest.MonkeyPatch, library: str, kind: str, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=rf"needs {library}, (?s:.*)stoker\[tokens\]"):
        files.open(kind)
    if kind == "huggingface":
        with pytest.raises(MissingExtra, match="training a tokenizer needs tokenizers"):
            train_bpe(["a"], vocab_size=300, out=tmp_path / "tokenizer.json")


# --- pickling


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_in_another_process_makes_the_same_ids(files: Files, kind: str) -> None:
    tokenizer = files.open(kind, end_of_document=5)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.identity == tokenizer.identity and copy.backend == tokenizer.backend
    np.testing.assert_array_equal(copy.encode(corpus())[0], tokenizer.encode(corpus())[0])
    assert len(pickle.dumps(tokenizer)) < 2000
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        np.testing.assert_array_equal(pool.apply(_ids, (tokenizer,)), tokenizer.encode(corpus())[0])


def test_a_copy_of_a_changed_file_is_refused(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(files.huggingface.read_bytes())
    sent = pickle.dumps(open_tokenizer(path))
    train_bpe(["other text"], vocab_size=260, out=path)
    with pytest.raises(StaleSource, match=r"tokenizer.json is no longer .* its digest is"):
        pickle.loads(sent)
    path.unlink()
    with pytest.raises(ArgumentError, match="tokenizer .* does not exist"):
        pickle.loads(sent)


# --- tiktoken's files


def test_a_rank_file_needs_its_pattern(files: Files, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the split pattern of .* is unknown(?s:.*)pass pattern="):
        open_tokenizer(files.tiktoken)
    named = tmp_path / "cl100k_base.tiktoken"
    named.write_bytes(files.tiktoken.read_bytes())
    with pytest.raises(DamagedFile, match="has 270 ranks, but OpenAI's file of that name has 100256"):
        open_tokenizer(named)
    assert open_tokenizer(named, pattern="r50k_base").identity.vocab_size == 270
    model = tmp_path / "tokenizer.model"  # as some models name theirs
    model.write_bytes(files.tiktoken.read_bytes())
    assert open_tokenizer(model, pattern="r50k_base").identity.kind == "tiktoken"


@pytest.mark.parametrize(
    ("pattern", "said"),
    [("(", "tiktoken rejects the pattern"), (r"\w+", "does not match all text"), ("", "does not match all text")],
)
def test_a_pattern_that_cannot_work_is_refused(files: Files, pattern: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        open_tokenizer(files.tiktoken, pattern=pattern)


@pytest.mark.parametrize("specials", [{END: 5}, {END: -1}, {"": 1000}, {END: "x"}, {"a": 1000, "b": 1000}])
def test_special_tokens_that_cannot_be_are_refused(files: Files, specials: Any) -> None:
    with pytest.raises(ArgumentError, match="special"):
        files.open("tiktoken", specials=specials)


@pytest.mark.parametrize("kind", ["huggingface", "sentencepiece", "bytes"])
@pytest.mark.parametrize("option", [{"pattern": "r50k_base"}, {"specials": {}}])
def test_options_of_rank_files_are_refused_elsewhere(files: Files, kind: str, option: Any) -> None:
    with pytest.raises(ArgumentError, match=f"does not take {next(iter(option))}="):
        files.open(kind, **option)


# --- faults


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("tokenizer.json", b""),
        ("tokenizer.json", b"hello"),
        ("tokenizer.json", b"\xff\xfe\x00"),
        ("tokenizer.json", b"[" * 100_000),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b'{"model": {"type": "Nothing"}}'),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}'),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}'),
        ("tokenizer.json", b'{"model": {"type": "BPE", "vocab": {}, "merges": []}}'),
        ("x.model", b""),
        ("x.model", b"hello world"),
        ("x.model", b"\xff" * 100),
        ("x.tiktoken", b""),
        ("x.tiktoken", b"hello"),
        ("x.tiktoken", b"YQ== 1 2\n"),
        ("x.tiktoken", b"YQ== -1\n"),
        ("x.tiktoken", b"YQ= 1\n"),
        ("x.tiktoken", b"\xc3\xa9== 1\n"),
        ("x.tiktoken", b"YQ== 99999999999999999999999\n"),
        ("x.tiktoken", b"YQ== 4294967295\n"),
        ("x.tiktoken", b"YQ== 1\nYQ== 2\n"),
        ("x.tiktoken", b"YQ== 1\nYg== 1\n"),
        ("x.tiktoken", rank_lines({bytes([value]): value for value in range(255)})),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    for backend in ("auto", "reference"):
        with pytest.raises(DamagedFile, match=r"(?s)" + name.replace(".", r"\.") + ".*hint: "):
            open_tokenizer(path, backend=backend, pattern="r50k_base" if name.endswith("tiktoken") else None)


@settings(max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("kind", ["huggingface", "tiktoken", "sentencepiece"])
def test_a_file_cut_short_is_damaged(files: Files, kind: str, data: st.DataObject) -> None:
    whole = getattr(files, kind).read_bytes().rstrip()
    path = files.folder / f"cut{getattr(files, kind).suffix}"
    path.write_bytes(whole[: data.draw(st.integers(0, 2000))])
    with pytest.raises(DamagedFile):
        open_tokenizer(path, pattern="r50k_base" if kind == "tiktoken" else None)


@settings(max_examples=100)
@given(place=st.integers(0, 1 << 20), value=st.binary(max_size=4))
@pytest.mark.parametrize("kind", ["huggingface", "tiktoken"])
def test_a_file_with_other_bytes_loads_or_is_refused(files: Files, kind: str, place: int, value: bytes) -> None:
    whole = getattr(files, kind).read_bytes()
    place %= len(whole)
    path = files.folder / f"changed{getattr(files, kind).suffix}"
    path.write_bytes(whole[:place] + value + whole[place + len(value) :])
    try:
        tokenizer = open_tokenizer(path, pattern="r50k_base" if kind == "tiktoken" else None)
        tokenizer.encode(corpus(3))
    except StokerError:
        pass


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"tokenizer .*gpt2 does not exist(?s:.*)nothing is downloaded"):
        open_tokenizer("gpt2")
    with pytest.raises(ArgumentError, match="contains no tokenizer.json"):
        open_tokenizer(tmp_path)
    (tmp_path / "vocab.txt").write_text("a")
    with pytest.raises(ArgumentError, match="the kind of tokenizer is not clear"):
        open_tokenizer(tmp_path / "vocab.txt")
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(ArgumentError, match="not a regular file"):
        open_tokenizer(tmp_path / "pipe.json")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(3 << 30)
    with pytest.raises(DamagedFile, match=r"has 3\.0 GiB, too large for a tokenizer"):
        open_tokenizer(tmp_path / "huge.json")
    with pytest.raises(ArgumentError, match="cannot read"):
        open_tokenizer(tmp_path / "vocab.txt" / "tokenizer.json")


@pytest.mark.parametrize("option", [{"backend": "fast"}, {"num_threads": 0}, {"num_threads": True}])
def test_options_that_cannot_be_are_refused(option: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(option))}[= ]"):
        open_tokenizer("bytes", **option)
    with pytest.raises(ArgumentError, match="does not support 'bytes'"):
        open_tokenizer("bytes", backend="gigatoken")


# --- training

TRAIN = """
import sys
from pathlib import Path
from tests.transform.test_tokenizer import corpus
from stoker.transform.tokenizer import train_bpe
texts = corpus() + ["".join(chr(97 + (i * j) % 13) for j in range(9)) for i in range(300)]
print(train_bpe(texts, vocab_size=900, out=sys.argv[1]).digest)
"""


def test_training_gives_the_same_bytes_whatever_the_threads(tmp_path: Path) -> None:
    contents = set()
    for number, threads in enumerate(["1", "2", "5"]):
        path = tmp_path / f"{number}.json"
        extra = {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads}
        command = [sys.executable, "-c", TRAIN, str(path)]
        root = Path(__file__).parents[2]
        done = subprocess.run(command, env=os.environ | extra, cwd=root, check=True, capture_output=True, text=True)
        contents.add(path.read_bytes())
        assert done.stdout.strip() == hashlib.sha256(path.read_bytes()).hexdigest()
    assert len(contents) == 1


@settings(max_examples=15)
@given(many=st.lists(texts, min_size=1, max_size=12), data=st.data())
def test_training_does_not_depend_on_the_order_of_texts(
    tmp_path_factory: pytest.TempPathFactory, many: list[str], data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("trained")
    one = train_bpe(many, vocab_size=300, out=folder / "one.json")
    other = train_bpe(data.draw(st.permutations(many)), vocab_size=300, out=folder / "other.json")
    assert one.digest == other.digest
    tokenizer = open_tokenizer(folder / "one.json")
    for text in many:
        assert tokenizer.decode(ids_of(tokenizer, text)) == text


def test_a_trained_tokenizer_has_its_special_tokens_first(tmp_path: Path) -> None:
    seen: list[int] = []
    (tmp_path / "new").mkdir()
    identity = train_bpe(
        iter(corpus()), vocab_size=500, specials=(END, "<|pad|>"), out=tmp_path / "new", progress=seen.append
    )
    assert identity.specials == {END: 0, "<|pad|>": 1}
    assert (identity.kind, identity.name, identity.vocab_size, identity.end_of_document) == (
        "huggingface",
        "tokenizer.json",
        500,
        0,
    )
    assert seen == [len(text) for text in corpus()]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["tokenizer.json"]
    assert train_bpe(["a"], vocab_size=256, specials=(), out=tmp_path / "none.json").end_of_document is None


def failing() -> Iterator[str]:
    yield "fine"
    raise KeyError("from the texts")


@pytest.mark.parametrize(
    ("many", "options", "error", "said"),
    [
        ([], {}, ArgumentError, "no texts to train on"),
        (["a", "b\udc00"], {}, DataError, "text 1 is not valid: character 1 is half"),
        (["a", 3], {}, ArgumentError, "text 1 must be a str, got int"),
        (["a"], {"vocab_size": 256}, ArgumentError, "at least 257"),
        (["a"], {"vocab_size": "many"}, ArgumentError, "vocab_size='many'"),
        (["a"], {"specials": "<eos>"}, ArgumentError, "specials must be a sequence of str"),
        (["a"], {"specials": ["x", "x"]}, ArgumentError, "has a duplicate"),
        (["a"], {"specials": [""]}, ArgumentError, "specials must be a sequence of str"),
        (failing(), {}, KeyError, "from the texts"),
    ],
)
def test_training_that_cannot_be_done_leaves_nothing(
    tmp_path: Path, many: Any, options: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        train_bpe(many, **({"vocab_size": 300, "out": tmp_path / "tokenizer.json"} | options))
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="cannot write the tokenizer to"):
        train_bpe(["a"], vocab_size=300, out=tmp_path / "file" / "tokenizer.json")
    with pytest.raises(ArgumentError, match="end the name with .json"):
        train_bpe(["a"], vocab_size=300, out=tmp_path / "file.model")
