"""Bad samples: skip what cannot be read, list it in a ledger, and give up when it is too much."""

from stoker import DataLoader, Policy
from stoker.errors import TooManySkipped


class Damaged:
    """Every 200th file is broken."""

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, position: int) -> int:
        if position % 200 == 7:
            raise OSError("the file is truncated")
        return position

    def describe(self, position: int) -> str:
        """Name the source of a sample, for the ledger and for errors."""
        return f"images/{position:04}.jpg"


# By default the error is raised, with the position and the file in its notes.
try:
    list(DataLoader(Damaged(), batch_size=10))
except OSError as error:
    note = error.__notes__[0]
    print(f"raise: {error}; {note}")
else:
    raise AssertionError("the error was lost")
assert "images/0007.jpg" in note

# "skip" puts another sample in its place, so that shapes and steps stay as they are.
loader = DataLoader(Damaged(), batch_size=10, on_error="skip", num_threads=2)
batches = list(loader)
print(f"skip:  {loader.ledger.num_skipped} of {loader.ledger.num_served} samples replaced")
for entry in loader.ledger:
    print(f"       {entry.where}: {entry.reason}, replaced by {entry.replaced_by}")
assert [entry.position for entry in loader.ledger] == [7, 207, 407, 607, 807]
assert all(len(batch) == 10 for batch in batches)

# A policy sets limits: a data set that is rotten through and through should not go by unnoticed.
try:
    list(DataLoader(Damaged(), batch_size=10, on_error=Policy(max_skipped=2)))
except TooManySkipped as error:
    num_skipped = error.skipped
    print(f"limit: {str(error).splitlines()[0]}")
else:
    raise AssertionError("the limit was not kept")
assert num_skipped == 3
