"""What was documented and is gone is found, and what is here is not."""

from __future__ import annotations

from tests.documented_names import compare

PAGE = """
Plain words such as vanished_setting do not count, `kept_setting=1` and `vanished_setting=2` do.

```python
from jaxrl_stack.algorithms.ppo import PPOConfig, PPOConfiguration  # theirs
from jaxrl_stack.ops.returns import (
    gae,
    vanished_function as f,
)

config = jaxrl_stack.algorithms.ppo.PPOConfig().training(kept_setting=1)
```
"""
BEFORE = '''
"""See `jaxrl_stack.ops.vanished`."""

def gae(kept_setting, vanished_setting):
    """Is in another module now."""

def undocumented():
    pass

def _private():
    """Private."""

class Base:
    """Was joined with the class that derived from it."""

    def build(self):
        """Is a method of that class."""

    def vanished_method(self):
        """Is not."""

class Learner(Base):
    """Is elsewhere, too."""

    def vanished_method(self):
        """Is not."""
'''
NOW = {
    "jaxrl_stack/ops/returns.py": "def gae(kept_setting): ...",
    "jaxrl_stack/core/learner/learner.py": "class Learner: ...",
}


def test_what_is_gone_is_told_by_how_it_was_documented():
    before = {"README.md": PAGE, "docs/page.md": "`undocumented`", "jaxrl_stack/ops/old.py": BEFORE}
    assert compare(before, NOW | {"README.md": "`undocumented`"}) == {
        "paths": [
            "jaxrl_stack.algorithms.ppo.PPOConfiguration",
            "jaxrl_stack.ops.returns.vanished_function",
            "jaxrl_stack.ops.vanished",
        ],
        "words": ["vanished_setting"],
        "definitions": ["jaxrl_stack.ops.old:Base.vanished_method", "jaxrl_stack.ops.old:Learner.vanished_method"],
        "moved": [
            "jaxrl_stack.ops.old:Base → jaxrl_stack.core.learner.learner:Learner",
            "jaxrl_stack.ops.old:Learner → jaxrl_stack.core.learner.learner",
            "jaxrl_stack.ops.old:gae → jaxrl_stack.ops.returns",
        ],
    }
