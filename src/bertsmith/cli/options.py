"""A command's options, from the dataclasses that hold its settings.

    @declares("bertsmith.train.recipe.PreTrainingRecipe", "bertsmith.train.pretraining.RunOptions")
    def pretrain(corpus: Annotated[Path, typer.Option(help="Folder of shards.")], **settings: Any) -> None:
        '''Pre-train a BERT.'''
        run_pretraining(corpus, **settings)

    app.command("pretrain", cls=DeviceCommand)(pretrain)

Every setting of the dataclasses (`bertsmith.settings`) becomes an option with its help, range, choices and default, in
the panel that the class attribute `panel` names. `settings` holds those that were typed, by name, and no others; the
call that does the work takes the declared defaults for the rest. The dataclasses are imported when the command or its
own help is asked for, so that `bertsmith --help` loads neither torch nor NumPy.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import MISSING
from functools import cached_property
from importlib import import_module
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from bertsmith.settings import HOURS, Setting, in_minutes, settings_of

Source = str | type
"""A dataclass, or the dotted name of one, or of a function that puts one together."""


def flag_of(name: str) -> str:
    """Returns the option of a setting: `--mask-rate` for `mask_rate`."""
    return "--" + name.replace("_", "-")


def declares(*sources: Source) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Gives a command an option for each setting of dataclasses; it takes what was typed as `**settings`."""

    def decorate(command: Callable[..., None]) -> Callable[[], None]:
        def declared() -> None:
            raise AssertionError("a command with declared settings is registered with cls=Command")

        declared.__name__, declared.__doc__ = command.__name__, command.__doc__
        declared.expand = lambda: _expanded(command, sources)  # type: ignore[attr-defined]
        return declared

    return decorate


class Command(TyperCommand):
    """A command whose declared options are made when they are first asked for."""

    @cached_property
    def _expanded(self) -> TyperCommand:
        app = typer.Typer(add_completion=False)
        app.command()(self.callback.expand())  # type: ignore[union-attr]
        made: TyperCommand = typer.main.get_command(app)  # type: ignore[assignment]
        return made

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the options; from here on the command runs what they belong to."""
        if "_expanded" in vars(self) or hasattr(self.callback, "expand"):
            self.params, self.callback = self._expanded.params, self._expanded.callback
        return super().get_params(ctx)


class DeviceCommand(Command):
    """A command that computes, and may be told where."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the options, `--device` before `--help`."""
        *own, last = super().get_params(ctx)
        return [*own, self._device, last]

    @cached_property
    def _device(self) -> Any:
        def alone(
            device: Annotated[
                str | None,
                typer.Option(
                    callback=_use_device, help="Device: cpu, cuda, cuda:1 or mps; default: a GPU if there is one."
                ),
            ] = None,
        ) -> None: ...

        app = typer.Typer(add_completion=False)
        app.command()(alone)
        (option,) = typer.main.get_command(app).params
        option.expose_value = False
        return option


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


def _expanded(command: Callable[..., None], sources: tuple[Source, ...]) -> Callable[..., None]:
    settings = {
        f"setting_{shown.name}": shown
        for source in sources
        for one in settings_of(_load(source))
        for shown in (one, HOURS)[: 2 if one.name == "minutes" else 1]
        if not one.option.in_file_only
    }

    def run(**typed: Any) -> None:
        for parameter, setting in settings.items():
            value = typed.pop(parameter)
            # 空列表是 typer 对“没有给出”的另一种说法
            if value is not None and value != []:
                typed[setting.name] = _value(setting, value)
        command(**in_minutes(typed))

    written = inspect.signature(command, eval_str=True).parameters.values()
    own = [one.replace(kind=one.KEYWORD_ONLY) for one in written if one.kind != one.VAR_KEYWORD]
    parameters = [*own, *(_parameter(name, setting) for name, setting in settings.items())]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _load(source: Source) -> type:
    if isinstance(source, type):
        return source
    module, _, name = source.rpartition(".")
    found = getattr(import_module(module), name)
    kind: type = found if isinstance(found, type) else found()
    return kind


def _parameter(name: str, setting: Setting) -> inspect.Parameter:
    declared = setting.option
    flag = flag_of(setting.name)
    is_off = setting.type is bool and setting.default is False and not setting.optional
    made = typer.Option(
        f"{flag}/--no-{flag[2:]}" if setting.type is bool and not is_off else flag,
        help=f"{declared.help} {_default_of(setting)}".strip(),
        min=declared.least_given,
        max=declared.max,
        metavar="|".join(setting.choices) or None,
        show_default=False,
        rich_help_panel=setting.panel or None,
    )
    kind: Any = setting.type
    if declared.parse is not None or setting.choices:
        kind = str
    elif setting.is_many:
        kind = list.__class_getitem__(str if declared.parse_each else get_args(kind)[0])
    required = setting.default is MISSING and not setting.is_many
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if required else None,
        annotation=Annotated[kind if required else kind | None, made],
    )


def _default_of(setting: Setting) -> str:
    """Returns what the help says of the default; nothing where unset means none."""
    default, least = setting.default, setting.option.least_given
    if setting.option.shown_default:
        return f"Default: {setting.option.shown_default}."
    unset = default in (MISSING, None, "", ()) or setting.type is bool
    # 小于下限的默认值只能表示“没有给出”
    return "" if unset or (least is not None and default < least) else f"Default: {default}."


def _value(setting: Setting, typed: Any) -> Any:
    if setting.option.parse is not None:
        return setting.option.parse(typed)
    setting.require_choice(typed, flag_of(setting.name))
    return tuple(map(setting.option.parse_each or (lambda one: one), typed)) if setting.is_many else typed
