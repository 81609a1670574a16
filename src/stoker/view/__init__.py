"""Show what a model sees: images of batches, packed rows and attention masks. Report how a run went.

Results are Pillow images, or a page for a report. Notebooks display both; `.save(path)` writes them to a file.
"""

from stoker.lab.page import report
from stoker.view.showing import batch, mask

__all__ = ["batch", "mask", "report"]
