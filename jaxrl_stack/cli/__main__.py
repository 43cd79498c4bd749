"""``python -m jaxrl_stack.cli``: the same as the command ``jaxrl``."""

from __future__ import annotations

import sys

from jaxrl_stack.cli import main

if __name__ == "__main__":
    sys.exit(main())
