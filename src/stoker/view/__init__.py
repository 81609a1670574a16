"""Look at what a model sees: pictures of batches, of packed rows and of attention masks; and at how a run went.

Pictures are Pillow images, a report is a page: notebooks show both by themselves, `.save(path)` writes them.
"""

from stoker.view.page import report
from stoker.view.showing import batch, mask

__all__ = ["batch", "mask", "report"]
