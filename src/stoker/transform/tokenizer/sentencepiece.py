"""SentencePiece models, by the library of that name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

from stoker.errors import DamagedFile, MissingExtra
from stoker.transform.tokenizer.mishap import loading
from stoker.transform.tokenizer.protocols import Encoded
from stoker.transform.tokenizer.sharing import encode_by_chunks, from_lists
from stoker.transform.tokenizer.tokenizer_file import TokenizerFile


@final
class SentencePiece:
    """A SentencePiece model.

    Its pieces of type *control* (`<s>`, `</s>`) come from no text. User-defined symbols are words of the vocabulary,
    and become their id wherever they stand. Most models normalise: what is decoded is not always what was encoded.
    """

    library = "sentencepiece"

    def __init__(self, file: TokenizerFile, *, num_threads: int) -> None:
        library = _library()
        if not file.data:
            raise DamagedFile(file.path, what="is empty")  # the library takes that for a model without pieces
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
        """Return the id of the piece with this very text, or None."""
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
        # One by one: given a list, the library starts a pool of threads for it, which costs a fifth.
        encode = self._processor.encode
        return from_lists([encode(text, out_type=int) for text in texts])

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`; special pieces, which the library leaves out, are put in as they are written."""
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
