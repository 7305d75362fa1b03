"""The description of a setting: the values it accepts, and the texts that explain it wherever it is shown.

A field of a settings class (``config.py``) is declared with ``setting`` and carries its own description. Command-line
flags and their help, the page's controls and tooltips, error messages and docs/settings.md are generated from it.
"""

from __future__ import annotations

import dataclasses
import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

# Inputs that mean None.
_NONE = ("", "none", "null", "unlimited", "∞")


class SettingError(ValueError):
    """A setting cannot have a value. The message is one line: the name, and the problem.

    Args:
        name: of the setting.
        problem: what is wrong and what to use instead, as in "is 0: use an integer of at least 1".
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name, self.problem = name, problem

    def __str__(self) -> str:
        return f"{self.name} {self.problem}"


@dataclass(frozen=True, kw_only=True)
class Values(ABC):
    """The values that a setting accepts.

    Attributes:
        name: the kind of values, as the page and the documentation call it.
        none: what None means, in words; "" if None is not allowed.
    """

    name: ClassVar[str]
    none: str = ""

    @abstractmethod
    def allows(self, value: object) -> bool:
        """Returns whether a value other than None is accepted."""

    def read(self, text: str) -> Any:
        """Parse a value from the command line. Raises ``ValueError`` if it is of another kind; checks no range."""
        return text

    @abstractmethod
    def __str__(self) -> str:
        """Returns the accepted values in words, for error messages: ``an integer of at least 1``."""


@dataclass(frozen=True)
class Whole(Values):
    """Integers in a range, including both ends; None means no limit. ``off``: the number that stands for a value of None
    where programs and controls have numbers only."""

    least: int | None = None
    most: int | None = None
    off: int | None = None
    name = "whole"

    def allows(self, value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and _within(value, self.least, self.most)

    def read(self, text: str) -> int:
        return int(text)

    def __str__(self) -> str:
        if self.most is None:
            return "an integer" if self.least is None else f"an integer of at least {self.least}"
        most = f"2**{self.most.bit_length()} - 1" if self.most > 2**53 else str(self.most)
        return f"an integer from {self.least} to {most}"


@dataclass(frozen=True)
class Number(Values):
    """Real numbers in a range; ``above`` excludes its lower end. ``note`` explains a special value."""

    least: float
    most: float | None = None
    above: bool = False
    note: str = ""
    name = "number"

    def allows(self, value: object) -> bool:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return False
        return _within(value, self.least, self.most) and not (self.above and value == self.least)

    def read(self, text: str) -> float:
        return float(text)

    def __str__(self) -> str:
        if self.most is None:
            words = f"a number {'above' if self.above else 'of at least'} {self.least:g}"
        elif self.above:
            words = f"a number above {self.least:g}, at most {self.most:g}"
        else:
            words = f"a number from {self.least:g} to {self.most:g}"
        return f"{words} ({self.note})" if self.note else words


@dataclass(frozen=True)
class Switch(Values):
    """On and off."""

    name = "switch"

    def allows(self, value: object) -> bool:
        return isinstance(value, bool)

    def read(self, text: str) -> bool:
        if text not in ("true", "false"):
            raise ValueError(f"{text!r} is neither true nor false")
        return text == "true"

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True)
class Choice(Values):
    """One of some words, a word that begins with ``prefix``, or the path of a file that ends with ``file``. ``shown``:
    the words for people, where they differ."""

    options: Sequence[str]
    shown: Sequence[str] = ()
    prefix: str = ""
    file: str = ""
    name = "choice"

    def allows(self, value: object) -> bool:
        if not isinstance(value, str):
            return False
        begins, ends = self.prefix and value.startswith(self.prefix), self.file and value.endswith(self.file)
        return value in self.options or bool(begins or ends)

    @property
    def words(self) -> list[str]:
        """The words, and one for each kind of other value: ``cuda:N``, ``FILE.json``."""
        return [
            *self.options,
            *([f"{self.prefix}N"] if self.prefix else []),
            *([f"FILE{self.file}"] if self.file else []),
        ]

    def __str__(self) -> str:
        return f"one of {', '.join(self.words)}"


@dataclass(frozen=True)
class Strings(Values):
    """A tuple of at most ``most`` texts, none of them empty and none longer than ``characters``."""

    most: int
    characters: int
    name = "strings"

    def allows(self, value: object) -> bool:
        return (
            isinstance(value, tuple)
            and len(value) <= self.most
            and all(isinstance(text, str) and 0 < len(text) <= self.characters for text in value)
        )

    def read(self, text: str) -> tuple[str, ...]:
        return (text,)

    def __str__(self) -> str:
        return f"at most {self.most} strings of at most {self.characters} characters, none of them empty"


@dataclass(frozen=True)
class Text(Values):
    """A text of ``least`` to ``most`` characters; ``off`` as of ``Whole``."""

    most: int
    least: int = 1
    off: str = ""
    name = "text"

    def allows(self, value: object) -> bool:
        return isinstance(value, str) and self.least <= len(value) <= self.most

    def __str__(self) -> str:
        return f"text of {self.least} to {self.most} characters"


@dataclass(frozen=True)
class TokenIds(Values):
    """A tuple of token ids."""

    name = "token ids"

    def allows(self, value: object) -> bool:
        return isinstance(value, tuple) and all(Whole(0).allows(token) for token in value)

    def read(self, text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))

    def __str__(self) -> str:
        return "token ids (integers of at least 0)"


@dataclass(frozen=True)
class Biases(Values):
    """Pairs (token id, number) with different ids and numbers from ``-most`` to ``most``."""

    most: float
    name = "biases"

    def allows(self, value: object) -> bool:
        if not isinstance(value, tuple) or len(dict(value)) < len(value):
            return False
        each = Number(-self.most, self.most)
        return all(Whole(0).allows(token) and each.allows(bias) for token, bias in value)

    def read(self, text: str) -> Any:
        return json.loads(text)

    def __str__(self) -> str:
        return f'numbers from -{self.most:g} to {self.most:g} by token id, as {{"17": -100}}'


@dataclass(frozen=True)
class Structure(Text):
    """What an answer must follow, as the JSON text of an object with one key, see ``SamplingParams.structured_outputs``."""

    def allows(self, value: object) -> bool:
        try:
            structure: Any = json.loads(value) if isinstance(value, str) and len(value) <= self.most else None
        except ValueError:
            return False
        match structure:
            case {"json": dict() | str() | bool()} | {"regex": str()}:
                return len(structure) == 1
            case {"choice": [_, *_] as texts}:
                return len(structure) == 1 and all(isinstance(text, str) and text for text in texts)
        return False

    def __str__(self) -> str:
        return '{"json": a JSON schema}, {"regex": a text} or {"choice": a list of texts}, none of them empty'


def _within(value: float, least: float | None, most: float | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The description of a setting: everything but its name and default."""

    values: Values  # the values that it accepts
    label: str  # its name on the page
    hint: str  # what it acts on, in a word or two: "smoothness"
    help: str  # what it does, in full sentences
    short: str = ""  # its name where there is little room; "" to use the label
    unit: str = ""  # unit of its values: "tokens"; "" for none
    watch: str = ""  # the metrics that show its effect, marked with ``**``, and how they change; "" if none does
    costs: str = ""  # what a change costs; "" for nothing
    # vLLM's name for it, with ``=value`` if it corresponds to one value of that setting; "" if vLLM has none.
    vllm: str = ""
    opposite: bool = False  # whether vLLM's setting is on where this one is off
    nearest: str = ""  # vLLM's most similar setting, if it does not have this one; "" for none
    needs: str = ""  # what it needs to have an effect: "a GPU", "a CPU"; "" for nothing
    # The id of its control on the page; "" for none. Controls of knobs are sliders, switches and rows of words.
    control: str = ""
    # How two runs that are compared may differ in it: "row", it has a row in a table of both; "name", only if it is
    # named; "", not at all.
    compared: Literal["row", "name", ""] = "row"
    # Lowest and highest position and step of a sampling parameter's control; None for a text box.
    slider: tuple[float, float, float] | None = None
    multiline: bool = False  # whether the text box has two lines
    # The default of a sampling parameter in the API, where OpenAI's differs from ours; else None.
    api_default: Any = None
    recommended: bool = False  # whether a model's author may recommend a value of it, in ``generation_config.json``

    @property
    def takes(self) -> str:
        """The accepted values in words: ``an integer of at least 1, or null (unlimited)``."""
        return f"{self.values}, or null ({self.values.none})" if self.values.none else str(self.values)

    @property
    def explanation(self) -> str:
        """What the setting does, and what it needs for that."""
        return f"{self.help} Needs {self.needs}." if self.needs else self.help

    @property
    def vllm_name(self) -> str:
        """vLLM's name for the setting, in words: ``enforce_eager (inverted)``."""
        return f"{self.vllm} (inverted)" if self.opposite else self.vllm

    def check(self, name: str, value: object) -> None:
        """Raises ``SettingError``, saying what to use instead, for a value that is not accepted."""
        if value is None and self.values.none:
            return
        if not self.values.allows(value):
            raise SettingError(name, f"is {_short.repr(value)}: use {self.takes}")

    def read(self, text: str) -> Any:
        """Returns a value from the command line; ``none`` and ``unlimited`` are None where that is allowed.

        Raises:
            ValueError: the text is not of the right kind; ranges are checked by ``check``.
        """
        if self.values.none and text.strip().lower() in _NONE:
            return None
        return self.values.read(text)

    def given(self, name: str, value: Any) -> Any:
        """Returns a value that a program sent, or that was typed; raises ``SettingError`` if it is text that cannot
        be read. Other values are for ``check``."""
        if isinstance(value, float) and isinstance(self.values, Whole) and value.is_integer():
            return int(value)  # JSON has one kind of numbers
        try:
            value = self.read(value.strip()) if isinstance(value, str) else value
        except ValueError:
            raise SettingError(name, f"is {_short.repr(value)}: use {self.takes}") from None
        return None if value == getattr(self.values, "off", None) else value

    def show(self, value: object) -> str:
        """Returns a value in words: ``on``, ``unlimited``, ``16``."""
        if value is None:
            return self.values.none
        if isinstance(value, bool):
            return "on" if value else "off"
        if isinstance(value, tuple):
            return ", ".join(map(str, value)) or "none"
        return f"{value:g}" if isinstance(value, float) else str(value)

    def label_of(self, value: Any) -> Any:
        """Returns what the page shows for a value: the words for a choice that has some, otherwise the value itself."""
        if not isinstance(self.values, Choice):
            return value
        labels = zip(self.values.options, self.values.shown, strict=False)  # choices without words have none
        return next((label for option, label in labels if option == value), value)

    def to_dict(self) -> dict[str, Any]:
        """Returns the description as JSON values, for the page."""
        values = {k: v for k, v in vars(self.values).items() if k == "options" or v not in ("", None, ())}
        texts = {name: value for name, value in vars(self).items() if name != "values" and value}
        acronym = self.label[:2].isupper()
        short = self.label if acronym else self.label[:1].lower() + self.label[1:]
        flags = {"flag": flag_of(self.vllm), "nearest": flag_of(self.nearest)}
        return {"kind": self.values.name, "short": short, **values, **texts, **{k: v for k, v in flags.items() if v}}


def flag_of(vllm: str) -> str:
    """Returns vLLM's flag for a setting of vLLM: ``--max-num-seqs``, ``--load-format dummy``, ``--a-config.some_key``;
    "" for ""."""
    name, dot, key = vllm.partition(".")
    return f"--{name.replace('_', '-').replace('=', ' ')}{dot}{key}" if vllm else ""


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def setting(default: Any, values: Values, label: str, hint: str, help: str, **more: Any) -> Any:
    """Returns a dataclass field with a ``Setting`` as its description; ``more`` are further attributes of it."""
    described = Setting(values=values, label=label, hint=hint, help=help, **more)
    return dataclasses.field(default=default, metadata={"setting": described})


def redeclared(kind: type, name: str, default: Any) -> Any:
    """Returns a dataclass field that is a setting of another class, with a default of its own."""
    return dataclasses.field(default=default, metadata={"setting": settings_of(kind)[name]})


def settings_of(kind: type) -> Mapping[str, Setting]:
    """Returns the settings of a class by name, in order."""
    return {field.name: field.metadata["setting"] for field in dataclasses.fields(kind)}


def defaults_of(kind: type) -> dict[str, Any]:
    """Returns the defaults of a settings class by name, in order."""
    return {field.name: field.default for field in dataclasses.fields(kind)}


def check_all(settings: Any) -> None:
    """Check every field of a settings object; raises ``SettingError`` for the first bad value."""
    for name, described in settings_of(type(settings)).items():
        described.check(name, getattr(settings, name))
