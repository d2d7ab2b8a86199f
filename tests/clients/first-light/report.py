"""One line per check, and the first difference ends the run.

Owns: the words printed, the exception that stops everything.
Not here: what is checked.
"""

import time


class Difference(Exception):
    """A check found something else than it must be."""


def need(condition, text):
    """Fails the running check with `text` unless the condition holds."""
    if not condition:
        raise Difference(text)


def same(what, found, wanted):
    """Fails with both sides, shortened, unless they are equal."""
    if found != wanted:
        raise Difference(f"{what}: found {short(found)}, wanted {short(wanted)}")


def short(value, limit=300):
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


class Report:
    """Prints the checks of one suite; a check is a with block."""

    def __init__(self, suite):
        self.suite = suite
        self.passed = 0

    def check(self, name):
        return _Check(self, name)


class _Check:
    def __init__(self, report, name):
        self.report = report
        self.name = name

    def __enter__(self):
        self.start = time.monotonic()
        return self

    def __exit__(self, kind, error, trace):
        took = time.monotonic() - self.start
        if kind is None:
            self.report.passed += 1
            print(f"ok      {took:6.1f}s  {self.report.suite}: {self.name}", flush=True)
            return False
        print(f"FAILED  {took:6.1f}s  {self.report.suite}: {self.name}", flush=True)
        return False
