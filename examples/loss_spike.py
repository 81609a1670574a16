"""Loss spike: see what was in the step that spoiled a run, find when a sample comes again, and continue without it."""

import json
from itertools import islice

from stoker import DataLoader

documents = [float(position) for position in range(10_000)]
documents[1234] = 1e9  # the one that does it


def loader_of(skip: tuple[tuple[int, int], ...] = ()) -> DataLoader[float]:
    return DataLoader(documents, batch_size=32, shuffle=True, seed=1, skip=skip)


# Train, keep a state from now and then, and meet the spike.
loader = loader_of()
saved, spike = "", -1
for batch in loader:
    recipe = loader.recipe
    assert recipe is not None
    if batch.max() > 1e6:
        spike = recipe.step
        break
    if recipe.step % 50 == 0:
        saved = json.dumps(loader.state_dict())

# What was in it? Arithmetic: no data is read, and any machine can ask.
plan = loader.plan
assert plan is not None
positions = plan.recipe(spike).positions
print(f"the loss jumps at step {spike}, which held positions {positions[:5].tolist()} and {len(positions) - 5} more")
assert 1234 in positions

# When does that document come again?
again = plan.find(1234, epoch=1)
assert again is not None
print(f"document 1234 comes again in epoch 1, at step {again.step}, row {again.row}")
assert plan.recipe(again.step).positions[again.row] == 1234

# Go back to the last state and pass over three steps. All other steps stay what they were.
resumed = loader_of(skip=((spike - 1, spike + 2),))
resumed.load_state_dict(json.loads(saved))
steps = []
for batch in islice(resumed, 100):
    assert batch.max() < 1e6
    assert resumed.recipe is not None
    steps.append(resumed.recipe.step)
print(f"resumed at step {steps[0]}; steps {spike - 1} to {spike + 1} were passed over")
assert not {spike - 1, spike, spike + 1} & set(steps)
assert {spike - 2, spike + 2} <= set(steps)
