"""`python -m stoker` is the command line, where scripts are not on the path."""

from __future__ import annotations

from stoker.cli import main

if __name__ == "__main__":
    main()
