"""A command's options, from the dataclasses that hold its settings.

    @declares(recipe="bertsmith.train.recipe.PreTrainingRecipe", options="bertsmith.train.run.RunOptions")
    def pretrain(
        corpus: Annotated[Path, typer.Option(help="Folder of shards.")],
        *,
        recipe: Given[PreTrainingRecipe],
        options: Given[RunOptions],
    ) -> None:
        '''Pre-train a BERT.'''
        run(corpus, recipe.over(recipe_for("mini")), options.build())

    app.command("pretrain", cls=DeclaredCommand)(pretrain)

Every setting of the dataclass (`bertsmith.options`) becomes an option with its help, its range, its choices and its
default, in a panel named by the class attribute `panel` of the dataclass that declares it. Parameters that are not
named in `declares` are written as typer reads them. What was not typed stays unset: `Given.build` takes the
declared defaults for it, `Given.over` those of a base such as the recipe of a size, and `Given.values` holds what was
typed alone.

The dataclasses are imported when the command is used or its own help is asked for, so that `bertsmith --help` loads
neither torch nor NumPy. Instead of a dotted name, `declares` takes a function that returns the dataclass, for one that
is put together at run time (`dataclasses.make_dataclass`).
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, Generic, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from bertsmith.options import Setting, built, changed, settings_of

SettingsT = TypeVar("SettingsT")
Source = str | Callable[[], type]
"""Where a dataclass comes from: its dotted name, or a function that returns it."""


@dataclass(frozen=True)
class Given(Generic[SettingsT]):
    """The settings of a dataclass that were typed.

    Attributes:
        kind: the dataclass.
        values: name of the setting, with underscores → value, of those that were typed.
    """

    kind: type[SettingsT]
    values: Mapping[str, Any]

    def build(self) -> SettingsT:
        """Returns the settings, as declared where nothing was typed."""
        return built(self.kind, self.values)

    def over(self, base: SettingsT) -> SettingsT:
        """Returns settings that others chose, with what was typed in their place."""
        return changed(base, **self.values)

    def typed(self, *names: str) -> list[str]:
        """Returns those of the settings that were typed, as options such as `--mask-rate`."""
        return [flag_of(name) for name in names if name in self.values]


def flag_of(name: str) -> str:
    """Returns the option of a setting: `--mask-rate` for `mask_rate`."""
    return "--" + name.replace("_", "-")


def declares(**sources: Source) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Marks parameters of a command as dataclasses whose settings are options of the command.

    Args:
        **sources: name of the parameter → where its dataclass comes from. The parameter receives a `Given`.
    """

    def decorate(command: Callable[..., None]) -> Callable[[], None]:
        def declared() -> None:
            raise AssertionError("a command with declared settings is registered with cls=DeclaredCommand")

        declared.__name__, declared.__doc__ = command.__name__, command.__doc__
        declared.expand = lambda: _expanded(command, sources)  # type: ignore[attr-defined]
        return declared

    return decorate


class DeclaredCommand(TyperCommand):
    """A command whose options are made when they are first asked for."""

    @cached_property
    def _expanded(self) -> TyperCommand:
        app = typer.Typer(add_completion=False)
        app.command()(self.callback.expand())  # type: ignore[union-attr]
        made: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
        return made

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the options; from here on the command runs what they belong to."""
        self.params, self.callback = self._expanded.params, self._expanded.callback
        return super().get_params(ctx)


class _WithDevice(TyperCommand):
    """A command that computes, and may be told where."""

    @cached_property
    def _device(self) -> Any:
        app = typer.Typer(add_completion=False)
        app.command()(_device_alone)
        (option,) = typer.main.get_command(app).params
        option.expose_value = False
        return option

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the options, `--device` before `--help`."""
        *own, last = super().get_params(ctx)
        return [*own, self._device, last]


def _use_device(context: typer.Context, name: str | None) -> str | None:
    """Lets this command, and the processes it starts, compute on a device; forgotten when the command is over."""
    if name is None or context.resilient_parsing:
        return name
    from bertsmith.kernels.layers import DEVICE_VARIABLE, device_named

    device_named(name)
    # 经由环境变量：这条命令启动的子进程也读得到
    before = os.environ.get(DEVICE_VARIABLE)
    os.environ[DEVICE_VARIABLE] = name

    def forget() -> None:
        if before is None:
            del os.environ[DEVICE_VARIABLE]
        else:
            os.environ[DEVICE_VARIABLE] = before

    context.call_on_close(forget)
    return name


def _device_alone(
    device: Annotated[
        str | None,
        typer.Option(callback=_use_device, help="Device: cpu, cuda, cuda:1 or mps; default: a GPU if there is one."),
    ] = None,
) -> None:
    """Declares the option."""


class DeviceCommand(_WithDevice):
    """A command whose options are written as typer reads them, and `--device`."""


class DeclaredDeviceCommand(_WithDevice, DeclaredCommand):
    """A command with declared settings, and `--device`."""


def _expanded(command: Callable[..., None], sources: Mapping[str, Source]) -> Callable[..., None]:
    """Returns the command with an option for every setting of its dataclasses."""
    kinds = {name: _load(source) for name, source in sources.items()}
    settings = {
        name: {f"{name}_{'_'.join(setting.path)}": setting for setting in settings_of(kind)}
        for name, kind in kinds.items()
    }

    def run(**typed: Any) -> None:
        for name, kind in kinds.items():
            values = {}
            for parameter, setting in settings[name].items():
                value = None if setting.option.in_file_only else typed.pop(parameter)
                # 空列表是 typer 对“没有给出”的另一种说法
                if value is not None and value != []:
                    values[setting.name] = _value(setting, value)
            typed[name] = Given(kind, values)
        command(**typed)

    parameters = []
    hints = {name: hint for name, hint in command.__annotations__.items() if name not in kinds and name != "return"}
    written = get_type_hints(_annotated(command, hints), include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if name in kinds:
            shown = {one: setting for one, setting in settings[name].items() if not setting.option.in_file_only}
            parameters += [_parameter(one, setting) for one, setting in shown.items()]
        else:
            parameters.append(parameter.replace(annotation=written[name], kind=parameter.KEYWORD_ONLY))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _annotated(command: Callable[..., None], hints: Mapping[str, Any]) -> Callable[..., None]:
    """Returns a stand-in with some of a command's annotations, to be resolved where the command was written."""
    namespace = {"__annotations__": dict(hints), "__module__": command.__module__}
    return type("Hints", (), namespace)


def _load(source: Source) -> type:
    if callable(source):
        return source()
    module, _, name = source.rpartition(".")
    kind: type = getattr(import_module(module), name)
    return kind


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    declared = setting.option
    flag = flag_of(setting.name)
    is_off = setting.type is bool and setting.default is False and not setting.optional
    names = [f"{flag}/--no-{flag[2:]}" if setting.type is bool and not is_off else flag]
    made = typer.Option(
        *names,
        help=f"{declared.help} {_default_of(setting)}".strip(),
        min=declared.min,
        max=declared.max,
        metavar="|".join(setting.choices) or None,
        show_default=False,
        rich_help_panel=setting.panel or None,
    )
    kind = _typer_type(setting)
    required = setting.default is MISSING and not setting.is_many
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, made],
    )


def _typer_type(setting: Setting) -> Any:
    if setting.option.parse is not None or setting.choices:
        return str
    if setting.is_many:
        return list.__class_getitem__(str if setting.option.parse_each else get_args(setting.type)[0])
    return setting.type


def _default_of(setting: Setting) -> str:
    """Returns what the help says of the default; nothing where unset means none."""
    default, least = setting.default, setting.option.min
    if setting.option.shown_default:
        return f"Default: {setting.option.shown_default}."
    unset = default in (MISSING, None, "", ()) or setting.type is bool
    # 小于下限的默认值只能表示“没有给出”
    return "" if unset or (least is not None and default < least) else f"Default: {default}."


def _value(setting: Setting, typed: Any) -> Any:
    """Returns the value of what was typed.

    Raises:
        ConfigError: it is not one of the choices.
    """
    if setting.option.parse is not None:
        return setting.option.parse(typed)
    setting.require_choice(typed, flag_of(setting.name))
    return tuple(map(setting.option.parse_each or (lambda one: one), typed)) if setting.is_many else typed
