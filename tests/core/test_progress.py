"""What a start reports, and how often."""

from __future__ import annotations

from roseplay.core.progress import REPORT_S, Progress, Reporter


class Heard:
    """A reporter whose clock advances only when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[Progress] = []
        self.reporter = Reporter(self.sent.append, lambda: self.now)


def test_each_stage_is_reported_as_it_begins_and_with_its_last_count() -> None:
    heard = Heard()
    heard.reporter.begin("weights", 100, "bytes", "random")
    for _ in range(5):
        heard.reporter.advance(20)
    heard.reporter.begin("kernels")
    heard.reporter.end()
    assert heard.sent == [
        Progress("weights", 0, 100, "bytes", "random"),
        Progress("weights", 100, 100, "bytes", "random"),
        Progress("kernels", 0, None, "parts", ""),
    ]


def test_counts_in_between_are_reported_now_and_then() -> None:
    heard = Heard()
    heard.reporter.begin("weights", 1000, "bytes")
    for _ in range(100):
        heard.now += REPORT_S / 10
        heard.reporter.advance(10)
    assert 8 <= len(heard.sent) <= 12
    assert [progress.done for progress in heard.sent] == sorted(progress.done for progress in heard.sent)


def test_more_than_the_total_is_never_reported() -> None:
    heard = Heard()
    heard.reporter.begin("kernels", 3)
    heard.reporter.expect(2)
    for _ in range(9):
        heard.reporter.advance()
    heard.reporter.end()
    assert (heard.sent[-1].done, heard.sent[-1].total) == (5, 5)
    heard.reporter.begin("download", unit="bytes")
    heard.reporter.count(7, 9)
    heard.reporter.end()
    assert heard.sent[-1] == Progress("download", 7, 9, "bytes")


def test_without_a_listener_nothing_is_sent_and_everything_may_be_called() -> None:
    reporter = Reporter()
    assert not reporter.heard
    reporter.advance()  # no stage has begun
    reporter.begin("weights", 10)
    reporter.advance(3)
    reporter.end()
    assert reporter.stage == "weights"
