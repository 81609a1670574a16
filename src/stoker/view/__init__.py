"""Look at what a model sees: pictures of batches, of packed rows and of attention masks.

Each is a Pillow image: notebooks show it by itself, `.save("sheet.png")` writes it.
"""

from stoker.view.showing import batch, mask

__all__ = ["batch", "mask"]
