"""What is said once."""

from __future__ import annotations

import logging

import pytest

from jaxrl_stack.utils import notices


@pytest.fixture
def said(monkeypatch, caplog, tmp_path):
    """What is logged from now on, as by processes of their own: each call forgets what the last one gave."""
    monkeypatch.setattr(notices.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(notices, "_shared", None)
    monkeypatch.setattr(notices.logger, "propagate", True)
    caplog.set_level(logging.WARNING, logger=notices.logger.name)

    def say(message: str, group: str | None = None) -> int:
        monkeypatch.setattr(notices, "_given", set())
        if group is not None:
            notices.share_notices(group)
        caplog.clear()
        notices.notice_once(message)
        notices.notice_once(message)
        return len(caplog.records)

    return say


def test_a_notice_is_given_once_in_each_process(said):
    assert [said("slow"), said("slow"), said("slower")] == [1, 1, 1]


def test_of_processes_that_share_one_gives_it(said):
    assert [said("slow", "run 1"), said("slow", "run 1"), said("slower", "run 1"), said("slow", "run 2")] == [
        1,
        0,
        1,
        1,
    ]


def test_where_nothing_can_be_shared_it_is_given(said, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setattr(notices.tempfile, "gettempdir", lambda: str(tmp_path / "file"))
    assert [said("slow", "run"), said("slow", "run")] == [1, 1]
