"""Tokens: a text corpus, a tokenizer trained on it, a store, and batches of tokens with their labels."""

import tempfile
from pathlib import Path

import numpy as np

import stoker
from stoker import DataLoader
from stoker.transform.tokenizer import open_tokenizer

WORDS = "the stoker feeds a boiler while sailors watch northern storms and old captains polish every lantern on deck"
NUM_FILES, PER_FILE, LENGTH = 3, 300, 128


def write(folder: Path) -> Path:
    """Write files of text with a document on each line."""
    rng = np.random.default_rng(1)
    words = WORDS.split()
    folder.mkdir()
    for number in range(NUM_FILES):
        lengths = np.exp(rng.normal(4, 0.8, size=PER_FILE)).astype(int) + 3
        lines = [" ".join(rng.choice(words, size=length)) for length in lengths]
        (folder / f"part-{number}.txt").write_text("\n".join(lines) + "\n")
    return folder


def main(folder: Path) -> None:
    corpus, tokenizer, out = write(folder / "corpus"), folder / "tokenizer.json", folder / "store"

    # `stoker prepare tokenizer` and `stoker prepare tokens` do the same from the command line.
    identity = stoker.prepare.tokenizer(corpus, vocab_size=400, documents="line", out=tokenizer)
    report = stoker.prepare.tokens(corpus, tokenizer=tokenizer, documents="line", out=out)
    print(f"prepared:  {report.documents} documents, {report.tokens} tokens, {identity.vocab_size} different ones")
    assert report.documents == NUM_FILES * PER_FILE

    # Again, with one file changed: only its piece is made.
    with (corpus / "part-1.txt").open("a") as file:
        file.write("one more document\n")
    report = stoker.prepare.tokens(corpus, tokenizer=tokenizer, documents="line", out=out)
    print(f"again:     {report.num_made} of {report.num_pieces} pieces made, {report.num_reused} were there")
    assert (report.num_made, report.num_reused) == (1, NUM_FILES - 1)

    # Refused if it is not what is expected; opened in a moment however large it is.
    store = stoker.open(out, expect={"tokenizer": tokenizer, "documents": "line"})
    decode = open_tokenizer(tokenizer, backend="reference").decode
    print(f"a sample:  {decode(store[5]['tokens'])[:60]!r}...")

    # Rows of tokens, with the next tokens as labels. Two worker processes gather them straight into shared memory.
    rows = store.tokens(length=LENGTH)
    loader = DataLoader(rows, batch_size=16, shuffle=True, seed=1, num_workers=2)
    num_tokens = 0
    for batch in loader:
        assert (batch["tokens"][:, 1:] == batch["labels"][:, :-1]).all()
        num_tokens += batch["tokens"].numel()
    print(f"trained:   {len(loader)} batches, {num_tokens} of {store.meta['counts']['tokens']} tokens")

    # Within documents: the last row of each is filled up, and what was filled up has no label.
    within = store.tokens(length=LENGTH, across=False)
    labels = within[0]["labels"]
    print(f"within:    {len(within)} rows; {int((labels != -100).sum())} of {LENGTH} labels of the first one count")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
