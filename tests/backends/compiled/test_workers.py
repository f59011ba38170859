"""Threads share a call, hold what it needs, and end with their owner."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref

from gamaneh.backends.compiled.workers import Workers, usable_cores


class Owner:
    pass


def test_every_thread_makes_the_call():
    workers, seen, all_there = Workers(3), [], threading.Barrier(3)

    def call(text, thread):
        seen.append((text, thread))
        all_there.wait(10)

    workers.run(call, "a")
    workers.settle()
    assert sorted(seen) == [("a", 0), ("a", 1), ("a", 2)]
    workers.close()


def test_what_a_call_needs_lives_until_the_last_thread_is_done():
    workers, gate = Workers(2), threading.Event()
    owner = Owner()
    alive = weakref.ref(owner)
    workers.run(lambda thread: None if thread == 0 else gate.wait(10), keep=owner)
    del owner
    gc.collect()
    assert alive() is not None
    gate.set()
    workers.settle()
    assert alive() is None
    workers.close()


def test_threads_end_when_they_are_closed_even_by_their_own_last_task():
    before = set(threading.enumerate())
    workers = Workers(2)
    owner = Owner()
    weakref.finalize(owner, workers.close)
    (helper,) = set(threading.enumerate()) - before
    workers.run(lambda thread: None, keep=owner)
    del owner
    workers.settle()
    helper.join(10)
    assert not helper.is_alive()


def test_threads_use_no_processor_time_between_calls():
    before = set(threading.enumerate())
    workers = Workers(2)
    (helper,) = set(threading.enumerate()) - before
    workers.run(lambda thread: None)
    workers.settle()
    clock = time.pthread_getcpuclockid(helper.ident)
    start, own = time.clock_gettime(clock), time.thread_time()
    while time.thread_time() < own + 0.05:  # this thread works for so long
        pass
    assert time.clock_gettime(clock) - start < 0.005
    workers.close()


def test_cores_follow_the_affinity_of_the_process():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        assert usable_cores() == 1
    finally:
        os.sched_setaffinity(0, mine)
