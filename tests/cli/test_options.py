"""A command's options come from dataclasses: names, help, ranges, choices, defaults and panels are written once."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from bertsmith.cli.options import Command, declares
from bertsmith.errors import ConfigError
from bertsmith.files import from_json, to_json
from bertsmith.settings import Checked, built, changed, divided, from_table, option, settings_of, to_table
from typed_command import typed

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Oven(Checked):
    panel: ClassVar[str] = "The oven"

    heat: int = option(180, help="Degrees.", min=50, max=300)
    mode: Literal["top", "fan"] = option("top", help="Where the heat comes from.")
    light: bool = option(False, help="Switch the lamp on.")
    steam: bool | None = option(None, help="Add water.")
    heated_for: int = 0


def _halves(text: str) -> tuple[int, ...]:
    return tuple(int(half) for half in text.split("+"))


@dataclass(frozen=True)
class Cake(Checked):
    panel: ClassVar[str] = "The cake"

    flour: float = option(help="Kilos.", name="flour_kilos")
    shape: str = option("round", help="Of the tin.", shown_default="as the tin is")
    fruit: tuple[str, ...] = option((), help="Once for each.")
    layers: tuple[int, ...] = option((), help="A+B.", parse=_halves)
    tin: Path | None = option(None, help="File that describes it.")
    oven: Oven = field(default_factory=Oven)


@pytest.fixture
def bake():
    """Runs the command; returns what it received, or the line of an error."""
    received = {}

    @declares(Cake, Clock)
    def command(eggs: Annotated[int, typer.Argument()], **settings) -> None:
        """Bakes."""
        received.update(settings, eggs=eggs)

    app = typer.Typer()
    app.command("bake", cls=Command)(command)
    app.command("other")(lambda: None)

    def run(*words: str):
        result = CliRunner().invoke(app, ["bake", *words])
        if isinstance(result.exception, ConfigError):
            raise result.exception
        return received, result.output

    return run


@dataclass(frozen=True)
class Clock:
    minutes: int = option(40, help="To wait.")


def test_what_is_typed_reaches_the_part_that_declares_it(bake):
    words = "3 --flour-kilos 0.5 --heat 200 --mode fan --light --no-steam --fruit fig --fruit pear --layers 1+2 --tin t"
    received, output = bake(*words.split(), "--minutes", "5")
    oven = Oven(200, "fan", light=True, steam=False)
    assert (received.pop("eggs"), received.pop("minutes")) == (3, 5), output
    assert built(Cake, received) == Cake(0.5, "round", ("fig", "pear"), (1, 2), Path("t"), oven)


def test_hours_are_added_to_the_minutes(bake):
    words = ("1", "--flour-kilos", "1", "--heat", "180", "--hours", "2")
    assert bake(*words)[0]["minutes"] == 120
    received, _ = bake(*words, "--minutes", "5")
    assert received["minutes"] == 125
    assert "hours" not in received


def test_what_is_not_typed_is_told_from_the_default(bake):
    received, _ = bake("1", "--flour-kilos", "1", "--heat", "180")
    assert received == {"eggs": 1, "flour_kilos": 1.0, "heat": 180}
    chosen_by_others = Cake(2.0, "square", oven=Oven(90, "fan"))
    del received["eggs"]
    assert changed(chosen_by_others, **received) == Cake(1.0, "square", oven=Oven(180, "fan"))


def test_the_help_says_ranges_choices_defaults_and_panels(bake):
    _, output = bake("--help")
    for said in ("Bakes.", "The oven", "The cake", "Degrees.", "50<=x<=300", "top|fan", "180", "as the tin is", "40"):
        assert said in output, said
    assert "heated" not in output


def test_a_word_that_is_no_choice_and_a_number_out_of_range_are_refused(bake):
    with pytest.raises(ConfigError, match=r"--mode 'side' is unknown; use top, fan"):
        bake("1", "--flour-kilos", "1", "--mode", "side")
    assert "equal to 300" in bake("1", "--flour-kilos", "1", "--heat", "301")[1]
    assert "--flour-kilos" in bake("1")[1]


def test_a_setting_cannot_be_declared_twice():
    @dataclass(frozen=True)
    class Twice:
        heat: int = option(1, help="")
        again: int = option(1, help="", name="heat")

    with pytest.raises(ValueError, match="two settings are called heat"):
        settings_of(Twice)


def test_settings_survive_a_file_and_are_changed_by_name():
    cake = Cake(0.5, fruit=("fig",), layers=(1, 2), tin=Path("t"), oven=Oven(heat=200, heated_for=9))
    table = to_table(cake)
    assert table["oven"] == {"heat": 200, "mode": "top", "light": False}
    assert built(Cake, from_table(Cake, table)) == Cake(
        0.5, fruit=("fig",), layers=(1, 2), tin=Path("t"), oven=Oven(200)
    )
    assert changed(cake, mode="fan", flour_kilos=3.0).oven == Oven(200, "fan", heated_for=9)
    with pytest.raises(ConfigError, match="there is no setting 'speed'"):
        changed(cake, speed=1)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"flour": 1, "oven": {"heat": "hot"}}, r'oven.heat is "hot", not a whole number'),
        ({"flour": 1, "oven": {"heat": True}}, "oven.heat is true"),
        ({"flour": 1, "oven": {"mode": "side"}}, r'oven.mode is "side", not'),
        ({"flour": 1, "oven": {"sound": 1}}, "oven.sound is no setting"),
        ({"flour": 1, "oven": 3}, "oven is no setting"),
        ({"flour": 1, "layers": [1, "two"]}, r"layers\[1\] is"),
        ({"flour": 1, "layers": "two"}, r"layers\[0\] is"),
        ({"flour": 1, "layers": [date(2024, 1, 1)]}, r'layers\[0\] is "date 2024-01-01", not a whole number'),
    ],
)
def test_a_file_by_hand_is_checked(table, said):
    with pytest.raises(ConfigError, match=said):
        from_table(Cake, table)


def test_a_single_value_is_a_list_of_one_in_files_and_calls_as_on_the_command_line():
    assert from_table(Cake, {"flour": 1, "fruit": "fig"})["fruit"] == ("fig",)
    assert divided({"fruit": Path("fig")}, Cake, command="bake") == [{"fruit": ("fig",)}]


@dataclass(frozen=True)
class Timer(Checked):
    minutes: float = option(0.0, min=0, below=100, least_given=0.5)
    share: float = option(0.5, above=0, max=1)
    rings: int = option(0, min=2)
    tone: Literal["low", "high"] | None = option(None)
    days: tuple[Literal["sat", "sun"], ...] = option(())
    loud: bool = option(False)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"minutes": -0.1}, "minutes is -0.1; give at least 0 and less than 100"),
        ({"minutes": 100}, "minutes is 100.0; give at least 0 and less than 100"),
        ({"minutes": float("nan")}, "minutes is nan; give a finite number"),
        ({"minutes": None}, "minutes is null, not a number"),
        ({"share": 0}, "share is 0.0; give more than 0 and at most 1"),
        ({"share": float("inf")}, "share is inf; give a finite number"),
        ({"rings": 1}, "rings is 1; give at least 2"),
        ({"rings": 2.0}, "rings is 2.0, not a whole number"),
        ({"rings": True}, "rings is true, not a whole number"),
        ({"rings": -(10**400)}, r"rings is -10{38}; give at least 2"),
        ({"tone": "shrill"}, "tone 'shrill' is unknown; use low, high"),
        ({"share": 10**400}, "too large"),
        ({"days": ("sat", "mon")}, r"""days\[1\] is "mon", not 'sat' or 'sun'"""),
        ({"loud": "no"}, 'loud is "no", not true or false'),
    ],
)
def test_a_value_is_checked_however_its_dataclass_is_made(values, said):
    for make in (Timer, partial(replace, Timer()), partial(changed, Timer()), lambda **some: built(Timer, some)):
        with pytest.raises(ConfigError, match=said):
            make(**values)
    with pytest.raises((ConfigError, ValueError, OverflowError)):
        from_json(Timer, to_json(values))


def test_a_default_may_stand_for_nothing_and_code_may_go_lower_than_a_user():
    assert Timer(rings=0, minutes=0.1, days=["sun"]) == Timer(minutes=0.1, days=("sun",))
    with pytest.raises(ConfigError, match="minutes is 0.1; give at least 0.5 and less than 100"):
        divided({"minutes": 0.1}, Timer, command="bake")


def test_every_declaration_of_ours_is_checked():
    sources = [path for room in ("bertsmith", "bertsmith_school") for path in (SOURCE / room).rglob("*.py")]
    for path in (path for path in sources if path.is_file()):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                values = [one.value for one in node.body if isinstance(one, ast.AnnAssign)]
                declares = any(isinstance(one, ast.Call) and ast.unparse(one.func) == "option" for one in values)
                own = {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
                assert not declares or (node.bases and "__post_init__" not in own), f"{path}: {node.name}"


WITHOUT_DEVICE = {
    # text and vocabularies
    *("vocab", "corpus", "look"),
    # small networks for comparison, and the lessons: always on the CPU
    *("compare", "learn"),
    # files into files
    *("report", "docs", "models", "import", "export", "push", "inspect"),
}


def test_every_command_that_computes_with_a_model_takes_a_device():
    from typer.main import get_command

    from bertsmith.cli import all_commands

    commands = get_command(all_commands()).commands
    found = {
        name
        for name, one in commands.items()
        if all("--device" not in parameter.opts for parameter in one.get_params(typer.Context(one)))
    }
    assert found == WITHOUT_DEVICE


def test_device_reaches_the_command_and_its_processes_and_is_forgotten(tiny_model, capsys, monkeypatch):
    from bertsmith.cli import main
    from bertsmith.kernels.layers import DEVICE_VARIABLE, best_device

    seen = []
    monkeypatch.setattr(
        "bertsmith.inference.load_pipeline",
        lambda *_, **__: seen.append((os.environ[DEVICE_VARIABLE], best_device().type)) or (lambda *_: np.ones(1)),
    )
    with pytest.raises(SystemExit):
        main(["predict", "--next-sentence", "a\tb", "--model", str(tiny_model), "--device", "cpu"])
    assert seen == [("cpu", "cpu")]
    assert DEVICE_VARIABLE not in os.environ
    assert "device 'tpu': torch sees none of that name here; there are cpu" in typed(
        capsys, "predict", "--next-sentence", "a\tb", "--model", tiny_model, "--device", "tpu", code=2
    )
