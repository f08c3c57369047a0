"""``python -m stoker``: the command line."""

from __future__ import annotations

from stoker.cli import main

if __name__ == "__main__":
    main()
