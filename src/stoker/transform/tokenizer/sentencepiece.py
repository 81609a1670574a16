"""Tokenize with a SentencePiece model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from stoker.errors import DamagedFile, MissingExtra
from stoker.transform.tokenizer.chunked_encoding import encode_by_chunks, from_lists
from stoker.transform.tokenizer.library_errors import loading
from stoker.transform.tokenizer.tokenizer_file import TokenizerFile
from stoker.transform.tokenizer.tokenizer_protocols import Encoded


@final
class SentencePiece:
    """A SentencePiece model.

    No text encodes to pieces of type *control* (`<s>`, `</s>`). User-defined symbols are words of the vocabulary, and
    become their id wherever they occur. Most models normalize: decoding does not always return the original text.
    """

    library = "sentencepiece"

    def __init__(self, file: TokenizerFile, *, num_threads: int) -> None:
        library = _library()
        if not file.data:
            raise DamagedFile(file.path, what="is empty")  # the library would accept it as a model without pieces
        with loading(file.path, library=self.library):
            processor = library.SentencePieceProcessor(model_proto=file.data)
            self.vocab_size = int(processor.get_piece_size())
            every = list(range(self.vocab_size))
            controls = [token for token, is_control in zip(every, processor.is_control(every)) if is_control]
            self.specials = dict(zip(processor.id_to_piece(controls), controls))
        self.marks = list(self.specials)
        if not self.vocab_size:
            raise DamagedFile(file.path, what="has no pieces")
        self._processor, self._num_threads = processor, num_threads

    def find(self, token: str) -> int | None:
        """Return the id of the piece with exactly this text, or None."""
        token_id = int(self._processor.piece_to_id(token))
        return token_id if self._processor.id_to_piece(token_id) == token else None

    def usual_end(self) -> int | None:
        """Return the model's own end-of-sentence id."""
        end = int(self._processor.eos_id())
        return end if end >= 0 else None

    def encode(self, texts: Sequence[str]) -> Encoded:
        """Return the ids of all texts and the number of each."""
        return encode_by_chunks(self._encode, texts, num_threads=self._num_threads)

    def _encode(self, texts: list[str]) -> Encoded:
        # One by one: for a list, the library starts a thread pool, which is a fifth slower.
        encode = self._processor.encode
        return from_lists([encode(text, out_type=int) for text in texts])

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`, including special pieces, which the library would omit."""
        special_ids = {token: text for text, token in self.specials.items()}
        texts: list[str] = []
        run: list[int] = []
        for token in ids:
            if token in special_ids:
                texts += [str(self._processor.decode(run)) if run else "", special_ids[token]]
                run = []
            else:
                run.append(token)
        if run:
            texts.append(str(self._processor.decode(run)))
        return "".join(texts)


def _library() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise MissingExtra("sentencepiece", extra="tokens", need="a SentencePiece model") from error
    return sentencepiece
