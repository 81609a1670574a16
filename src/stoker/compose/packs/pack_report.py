"""How well documents fill their rows."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What became of the documents of a source. `str()` is a small table."""

    num_rows: int
    length: int
    num_documents: int
    """Those with tokens."""
    num_empty: int
    """Documents without tokens, which are in no row."""
    num_tokens: int
    """Tokens that are in rows."""
    fill: float
    """The share of the rows' tokens that is content."""
    num_padding: int
    """The tokens that are not."""
    num_cut: int
    """Documents that are in more than one row, or truncated."""
    num_truncated: int
    """Tokens that are in no row, because their documents are too long."""
    min_documents: int
    """The fewest documents, or parts of them, in a row."""
    mean_documents: float
    max_documents: int

    def __str__(self) -> str:
        share = self.num_cut / self.num_documents if self.num_documents else 0
        lines = {
            "rows": f"{self.num_rows:,} of {self.length:,} tokens",
            "documents": f"{self.num_documents:,}"
            + (f", and {self.num_empty:,} empty ones left out" if self.num_empty else ""),
            "tokens": f"{self.num_tokens:,}"
            + (f", and {self.num_truncated:,} truncated" if self.num_truncated else ""),
            "fill": f"{100 * self.fill:.4f} % ({self.num_padding:,} tokens of padding)",
            "cut": f"{self.num_cut:,} documents ({100 * share:.2f} %)",
            "per row": f"{self.mean_documents:.1f} documents ({self.min_documents:,} to {self.max_documents:,})",
        }
        return "\n".join(f"{name:<9} {text}" for name, text in lines.items())
