"""A setting is declared once; its flag, help, errors and documentation are generated from the declaration."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pytest

from roseplay.arguments import Parser, add_field_flags, given_fields
from roseplay.config import EngineConfig, Knobs, SamplingParams
from roseplay.settings import Choice, Number, Setting, Strings, Switch, TokenIds, Whole, check_all, setting, settings_of

ALL = (EngineConfig, Knobs, SamplingParams)


@dataclass(frozen=True, kw_only=True)
class Invented:
    """Settings that roseplay does not have."""

    patience: int | None = setting(
        3, Whole(1, 9, none="endless"), "Patience", "mood", "How long it waits.", unit="steps"
    )
    zeal: float = setting(0.5, Number(0, 1, above=True, note="1 is all"), "Zeal", "mood", "How hard it tries.")
    polite: bool = setting(True, Switch(), "Polite", "manners", "Whether it asks first.", needs="a GPU")
    tone: str = setting("flat", Choice(("flat", "sharp"), prefix="pitch:"), "Tone", "manners", "How it sounds.")

    def __post_init__(self) -> None:
        check_all(self)


def parsed(*argv: str, **options: Any) -> dict[str, Any]:
    parser = Parser(prog="invented")
    add_field_flags(parser, Invented, **options)
    return vars(parser.parse_args(argv))


def test_each_field_is_a_flag() -> None:
    given = parsed("--patience", "unlimited", "--zeal", "0.25", "--no-polite", "--tone", "pitch:440")
    settings = Invented(**given_fields(Invented, given))
    assert settings == Invented(patience=None, zeal=0.25, polite=False, tone="pitch:440")
    assert given_fields(Invented, parsed()) == {}
    assert parsed(fill=True, defaults={"zeal": 1.0}) == {"patience": 3, "zeal": 1.0, "polite": True, "tone": "flat"}
    assert parsed(only=("zeal", "tone"), leave_out=("tone",)).keys() == {"zeal"}


def test_help_says_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("--help", defaults={"patience": None})
    shown = " ".join(capsys.readouterr().out.split())
    assert "--patience STEPS How long it waits. (default: endless)" in shown
    assert "--polite, --no-polite Whether it asks first. Needs a GPU. (default: on)" in shown
    assert "--tone flat|sharp|pitch:N" in shown


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"patience": 0}, r"patience is 0: use an integer from 1 to 9, or null \(endless\)"),
        ({"patience": True}, "patience is True"),
        ({"zeal": 0}, r"zeal is 0: use a number above 0, at most 1 \(1 is all\)"),
        ({"zeal": float("nan")}, "zeal is nan"),
        ({"zeal": None}, "zeal is None"),
        ({"polite": 1}, "polite is 1: use true or false"),
        ({"tone": "shrill"}, "tone is 'shrill': use one of flat, sharp, pitch:N"),
        ({"tone": "x" * 10_000}, r"^.{1,200}$"),
    ],
)
def test_a_bad_value_is_refused_with_what_to_use(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Invented(**changes)


@pytest.mark.parametrize("argv", [("--patience", "soon"), ("--zeal", "much"), ("--pat", "3")])
def test_a_flag_of_another_kind_is_one_line(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(*argv)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("kind", ALL)
def test_every_setting_is_described(kind: type) -> None:
    for name, described in settings_of(kind).items():
        default = next(field.default for field in dataclasses.fields(kind) if field.name == name)
        described.check(name, default)
        assert described.label and described.hint and described.help.endswith(".")
        assert described.to_dict()["kind"] in (
            "whole",
            "number",
            "switch",
            "choice",
            "strings",
            "text",
            "token ids",
            "biases",
        )


def test_what_the_page_gets() -> None:
    assert settings_of(Invented)["patience"].to_dict() == {
        "kind": "whole", "compared": "row", "short": "patience", "least": 1, "most": 9, "none": "endless", "label": "Patience", "hint": "mood",
        "help": "How long it waits.", "unit": "steps",
    }  # fmt: skip


def test_texts_and_token_ids() -> None:
    stop = Setting(values=Strings(2, 3), label="", hint="", help="")
    for bad in (("a", "b", "c"), ("abcd",), ("",), (1,), "a"):
        with pytest.raises(ValueError, match="at most 2 strings of at most 3 characters"):
            stop.check("stop", bad)
    stop.check("stop", ("a", "abc"))
    ids = Setting(values=TokenIds(), label="", hint="", help="")
    for bad in ((-1,), (1.5,), (True,), [1]):
        with pytest.raises(ValueError, match="integers of at least 0"):
            ids.check("stop_token_ids", bad)
    ids.check("stop_token_ids", (0, 7))
