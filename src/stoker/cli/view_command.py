"""`stoker view`: draw batches as the model sees them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stoker.cli.image_options import ImageColumnOption, LabelOption, LabelsOption, SplitOption, image_options
from stoker.cli.pack import StrategyName

if TYPE_CHECKING:
    from PIL.Image import Image

    from stoker.loader import DataLoader
    from stoker.plan import Recipe

view_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Draw batches: images after augmentation, packed rows, attention masks. "
    "Try [bold]stoker view images --help[/].",
)

_Seed = Annotated[int, typer.Option(help="The loader's seed.")]
_Step = Annotated[int, typer.Option(min=0, help="Step of the run, from 0.")]
_Tokens = Annotated[
    str, typer.Argument(metavar="STORE", help="A store of tokens, or other tokens that stoker.open reads.")
]
_Length = Annotated[int, typer.Option(min=2, help="Tokens per row.")]
_Strategy = Annotated[StrategyName, typer.Option(help="How documents are packed into rows.")]
_Column = Annotated[str, typer.Option(help="Column of the tokens.")]


def _output(name: str) -> Any:
    return typer.Option("-o", "--out", help=f"Output file; its extension sets the format (default: {name}).")


@view_app.command()
def images(
    path: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder of images, or other data that stoker.images reads.")
    ],
    out: Annotated[Path, _output("sheet.png")] = Path("sheet.png"),
    size: Annotated[int, typer.Option(min=1, help="Height and width of an image as the model sees it.")] = 224,
    batch_size: Annotated[int, typer.Option(min=1, help="Images in the batch.")] = 32,
    augment: Annotated[
        bool,
        typer.Option("--augment/--no-augment", help="RandomResizedCrop and flip, or a center crop."),
    ] = True,
    seed: _Seed = 0,
    step: _Step = 0,
    columns: Annotated[int | None, typer.Option(min=1, help="Images per row.")] = None,
    labels: LabelsOption = None,
    column: ImageColumnOption = None,
    label: LabelOption = None,
    split: SplitOption = None,
) -> None:
    """Draw a contact sheet of a shuffled batch: each image after transforms, with its label and position.

    Example: [bold cyan]stoker view images data/photos -o sheet.png[/]

    Example: [bold cyan]stoker view images data/photos --no-augment --batch-size 64 --step 3[/]
    """
    _check_output(out)
    import stoker
    from stoker.loader import DataLoader
    from stoker.transform import CenterCrop, RandomHorizontalFlip, RandomResizedCrop, Resize

    transform: list[Any] = (
        [RandomResizedCrop(size), RandomHorizontalFlip()] if augment else [Resize(size), CenterCrop(size)]
    )
    options = image_options(labels=labels, column=column, label=label, split=split)
    dataset: Any = stoker.images(path, transform=transform, allow_empty=True, **options)
    batch_size = min(batch_size, len(dataset))
    loader: DataLoader[Any] = DataLoader(dataset, batch_size, shuffle=True, seed=seed, skip=((0, step),) * bool(step))
    _check_step(loader, step)
    batch, recipe = _take(loader)
    how = "augmented" if augment else "not augmented"
    image = stoker.view.batch(
        batch,
        classes=dataset.classes,
        positions=recipe.positions.tolist(),
        columns=columns,
        max_images=batch_size,
        title=f"{Path(path).absolute().name}: {len(dataset):,} images, step {step}, seed {seed}, {how}",
    )
    _save(image, out)


@view_app.command()
def tokens(
    path: _Tokens,
    out: Annotated[Path, _output("rows.png")] = Path("rows.png"),
    length: _Length = 1024,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in the batch.")] = 16,
    strategy: _Strategy = StrategyName.best_fit,
    seed: _Seed = 0,
    step: _Step = 0,
    column: _Column = "tokens",
) -> None:
    """Draw a shuffled batch of packed rows: one color per document, with its number of tokens; padding hatched.

    Example: [bold cyan]stoker view tokens data/corpus -o rows.png --length 2048[/]
    """
    _check_output(out)
    import stoker

    batch, recipe, title = _pack(path, length, batch_size, strategy, seed, step, column)
    image = stoker.view.batch(batch, positions=recipe.positions.tolist(), max_images=batch_size, title=title)
    _save(image, out)


@view_app.command()
def mask(
    path: _Tokens,
    out: Annotated[Path, _output("mask.png")] = Path("mask.png"),
    length: _Length = 1024,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows in the batch, one mask each.")] = 4,
    strategy: _Strategy = StrategyName.best_fit,
    seed: _Seed = 0,
    step: _Step = 0,
    column: _Column = "tokens",
) -> None:
    """Draw the attention masks of a shuffled batch of packed rows: which tokens each token attends to.

    Example: [bold cyan]stoker view mask data/corpus -o mask.png --length 512[/]
    """
    _check_output(out)
    import stoker

    batch, recipe, title = _pack(path, length, batch_size, strategy, seed, step, column)
    image = stoker.view.mask(batch, positions=recipe.positions.tolist(), max_masks=batch_size, title=title)
    _save(image, out)


def _pack(
    path: str, length: int, batch_size: int, strategy: StrategyName, seed: int, step: int, column: str
) -> tuple[Any, Recipe, str]:
    """Return a batch of packed rows, its recipe, and a title."""
    import stoker
    from stoker.loader import DataLoader

    rows = stoker.pack(stoker.open(path), length, strategy=strategy.value, column=column)
    batch_size = min(batch_size, len(rows))
    loader: DataLoader[Any] = DataLoader(rows, batch_size, shuffle=True, seed=seed, skip=((0, step),) * bool(step))
    _check_step(loader, step)
    batch, recipe = _take(loader)
    return batch, recipe, f"{Path(path).absolute().name}: {len(rows):,} rows, step {step}, seed {seed}"


def _take(loader: DataLoader[Any]) -> tuple[Any, Recipe]:
    batches = iter(loader)
    try:
        batch = next(batches)
    finally:
        batches.close()
    recipe = loader.recipe
    assert recipe is not None
    return batch, recipe


def _check_step(loader: DataLoader[Any], step: int) -> None:
    from stoker.errors import ArgumentError

    plan = loader.plan
    assert plan is not None
    if step >= plan.steps_in(0):
        raise ArgumentError(
            f"step {step} is out of range: an epoch has {plan.steps_in(0)} steps of {plan.batch_size} samples",
            hint=f"choose a step from 0 to {plan.steps_in(0) - 1}, or a smaller --batch-size",
        )


def _check_output(out: Path) -> None:
    """Raise an error, before anything is loaded, if the output cannot be written."""
    from stoker.errors import ArgumentError
    from stoker.view.showing import require_pillow

    require_pillow()
    from PIL import Image

    Image.init()
    suffix = out.suffix.lower()
    if Image.registered_extensions().get(suffix) not in Image.SAVE:
        raise ArgumentError(
            f"unsupported image format {suffix!r} of {out}"
            if suffix
            else f"{out} has no file extension to set the image format",
            hint="use .png, .jpg, .webp or .pdf",
        )
    if not out.absolute().parent.is_dir():
        raise ArgumentError(
            f"folder {out.absolute().parent} does not exist", hint="create it first, or write elsewhere"
        )


def _save(image: Image, out: Path) -> None:
    image.save(out)
    print(f"{out}: {image.width} x {image.height} pixels")
