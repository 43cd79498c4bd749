"""Processes that save to one path again and again, and are killed at random moments. Run by `test_kills.py`.

They are forked from this one, which has imported everything, and has started no thread and no JAX backend.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path

import numpy as np

from jaxrl_stack.checkpoints import files as checkpoint_files
from jaxrl_stack.checkpoints import folder_replacement
from jaxrl_stack.checkpoints.files import Component

PATIENCE = 60.0


def component_of(description: dict) -> Component:
    parts = {name: component_of(part) for name, part in description.pop("parts").items()}
    return Component(**description, parts=parts)


def filled(shapes: dict, counter: int) -> dict:
    """The state of these shapes, every number of which is the counter."""
    return {
        name: filled(shape, counter) if isinstance(shape, dict) else np.full(shape, counter, np.float32)
        for name, shape in shapes.items()
    }


def slow_renames() -> None:
    """Take long between any two renames, so that there are kills in between."""
    rename = os.rename

    def slow(source, target):
        rename(source, target)
        time.sleep(0.02)

    os.rename = slow


def save_forever(path: str, component: Component, shapes: dict, counter: int, report: int) -> None:
    while True:
        counter += 1
        os.write(report, b"b")
        checkpoint_files.write(path, component, filled(shapes, counter))
        os.write(report, b"e")


def main(path: str, description: str, num_kills: int, has_exchange: bool) -> None:
    content = json.loads(Path(description).read_text())
    component = component_of(content["component"])
    chance = random.Random(7)
    counter = 0
    for _ in range(num_kills):
        receive, report = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                if not has_exchange:
                    folder_replacement._exchange = lambda one, other: False
                    slow_renames()
                save_forever(path, component, content["shapes"], counter, report)
            finally:
                os._exit(1)
        os.close(report)
        # The first save takes longer than all others.
        progress = b""
        start = time.monotonic()
        while b"e" not in progress:
            if not select.select([receive], [], [], PATIENCE)[0]:
                os.kill(pid, signal.SIGKILL)
                sys.exit(f"nothing saved in {PATIENCE} s")
            progress += os.read(receive, 100)
            if not progress:
                sys.exit("a save went wrong")
            if chance.random() < 0.1:
                break
        time.sleep(chance.random() * min(0.2, time.monotonic() - start))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(receive, 1000):
            progress += more
        os.close(receive)
        print(counter + progress.count(b"e"), counter + progress.count(b"b"), flush=True)
        # The checkpoint that is there may be one more than was reported.
        counter = int(sys.stdin.readline())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "exchange")
