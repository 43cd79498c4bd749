"""Ctrl-C waits for the end of a block that must not be torn apart."""

from __future__ import annotations

import signal
import threading

import pytest

from jaxrl_stack.utils.interrupts import deferred_interrupt


@pytest.fixture
def python_handler():
    """Python's own handler, whatever the shell that started the tests has set."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_the_first_one_waits(python_handler):
    done = []

    def work():
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
            done.append("block")
        done.append("after")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["block"]


def test_the_second_one_goes_through(python_handler):
    done = []

    def work():
        with deferred_interrupt():
            signal.raise_signal(signal.SIGINT)
            done.append("first")
            signal.raise_signal(signal.SIGINT)
            done.append("second")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["first"]


def interrupted_and_failed():
    with deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("the program's own")


def test_it_is_not_lost_if_the_block_raises(python_handler):
    with pytest.raises(KeyboardInterrupt) as raised:
        interrupted_and_failed()
    assert isinstance(raised.value.__context__, ValueError)


def test_a_handler_that_only_takes_note_leaves_the_error(python_handler):
    noted = []
    signal.signal(signal.SIGINT, lambda *args: noted.append(args))
    with pytest.raises(ValueError, match="own"):
        interrupted_and_failed()
    assert len(noted) == 1
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_nothing_happens_without_one(python_handler):
    with deferred_interrupt():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    with pytest.raises(ValueError, match="own"), deferred_interrupt():
        raise ValueError("own")


def test_an_ignored_signal_stays_ignored_and_other_threads_run_as_they_are(python_handler):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []

    def work():
        with deferred_interrupt():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]
