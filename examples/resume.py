"""Resume: stop one rank in mid-epoch, continue with two ranks and another batch size. Nothing is lost or repeated."""

import json
from itertools import islice

from stoker import DataLoader

positions = range(1000)  # a dataset whose samples are their positions
Loader = DataLoader[int]


def served(loader: Loader, num_steps: int | None = None) -> list[int]:
    return [number for batch in islice(loader, num_steps) for number in batch.tolist()]


whole: Loader = DataLoader(positions, batch_size=32, shuffle=True, seed=1)
expected = served(whole)

# One rank, batches of 32, stopped after 12 steps.
before: Loader = DataLoader(positions, batch_size=32, shuffle=True, seed=1)
first = served(before, 12)
state = json.loads(json.dumps(before.state_dict()))

# Two ranks, batches of 24 each. Both load the same state.
ranks: list[Loader] = [
    DataLoader(positions, batch_size=24, shuffle=True, seed=1, rank=rank, num_ranks=2) for rank in range(2)
]
for loader in ranks:
    loader.load_state_dict(state)
shares = [served(loader) for loader in ranks]
print(f"{len(first)} samples on one rank, then {len(shares[0])} and {len(shares[1])} on two")
assert sorted(first + shares[0] + shares[1]) == list(positions)
# Even their order is that of the whole run: the ranks take turns.
assert first + [share[row] for row in range(len(shares[0])) for share in shares if row < len(share)] == expected

# On the same number of ranks the digest goes on, so two runs can be compared by sixteen letters.
again: Loader = DataLoader(positions, batch_size=50, shuffle=True, seed=1, num_threads=2)
again.load_state_dict(state)
served(again)
print(f"digest {again.state_dict()['digest']}, without a stop {whole.state_dict()['digest']}")
assert again.state_dict()["digest"] == whole.state_dict()["digest"]
