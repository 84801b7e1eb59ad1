"""The command line: one thin file per command group, and the boundary where errors become one line.

Heavy imports happen inside the commands, so that `bertsmith --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import cache

import typer

from bertsmith import __version__
from bertsmith.cli import finetune, folders, predict, search, text, training
from bertsmith.cli.options import Command, DeviceCommand
from bertsmith.errors import BertsmithError, show_warning
from bertsmith.settings import installed

app = typer.Typer(
    name="bertsmith",
    help="From a folder of text files to a working BERT.",
    no_args_is_help=True,
    epilog="Add --debug to any command to see the traceback of an error.",
    pretty_exceptions_enable=False,
)

_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Start": {
        "quickstart": training.quickstart,
        "solve": training.solve,
        "look": finetune.look,
        "plan": training.plan,
        "models": folders.models,
        "docs": folders.docs,
    },
    "Train": {
        "finetune": finetune.finetune,
        "vocab": text.vocab,
        "corpus": text.corpus,
        "pretrain": training.pretrain,
        "adapt": training.adapt,
        "distil": training.distil,
        "compress": training.compress,
    },
    "Use": {
        "predict": predict.predict,
        "evaluate": finetune.evaluate,
        "index": search.index,
        "search": search.search,
        "topics": search.topics,
        "serve": search.serve,
        "embed": predict.embed,
        "fill-mask": predict.fill_mask,
        "generate": predict.generate,
        "mine": search.mine,
    },
    "Look": {"report": training.report},
    "Exchange": {"import": folders.import_model, "push": folders.push},
}
_FILES_INTO_FILES = ("look", "vocab", "corpus", "report", "models", "import", "push", "docs")
"""Commands that compute with no model, and so on no device."""

for _panel, _commands in _PANELS.items():
    for _name, _command in _commands.items():
        _kind = Command if _name in _FILES_INTO_FILES else DeviceCommand
        _kind = finetune.TaskCommand if _name == "finetune" else _kind
        app.command(_name, cls=_kind, rich_help_panel=_panel)(_command)
app.add_typer(text.inspect, name="inspect", rich_help_panel="Look")
app.add_typer(folders.export, name="export", rich_help_panel="Exchange")

ENVIRONMENT = {
    # OpenMP 的线程默认长时间空转等待；机器上只要还有别的程序在忙，训练就会慢几十倍。短暂空转后让出核心，空闲时几乎无损
    "GOMP_SPINCOUNT": "50000",
    # 大张量从页的开头放起，并请求大页：每批的形状都不同，释放的内存这样才更常合下一批用，峰值低得多，速度不变
    "THP_MEM_ALLOC_ENABLE": "1",
    # oneDNN 为每种形状编译一段程序并留着；批的形状几乎不重复，默认留一千份，白占几百兆。torch 自己又另外留一份
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}
"""What torch, OpenMP and oneDNN read when they are loaded, unless you have set it: see "A step on a busy machine" and
"Fine-tuning" in docs/notes/measurements.md."""

_INTERRUPTED = 130
_RESUMING = frozenset(
    {"quickstart", "solve", "adapt", "distil", "corpus", "pretrain", "finetune", "embed", "index", "topics"}
    | {"study", "compare word-vectors", "compare lstm", "compare seq2seq"}
)
"""Commands that keep what is done and resume from there."""
_MOVED = {
    **{name: f"compare {name}" for name in ("word-vectors", "nearest", "lstm", "seq2seq", "rewrite")},
    "sizes": "plan, without --text",
    "similarity": "embed --compare TEXT",
    "next-sentence": "predict --next-sentence",
}
"""Names of 0.2 → where the command is now."""


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    """From a folder of text files to a working BERT."""
    if version:
        print(f"bertsmith {__version__}")
        raise typer.Exit


@cache
def all_commands() -> typer.Typer:
    """Returns the command line; each entry point `bertsmith.commands`, a function of the `typer.Typer`, adds to it."""
    # 学校的命令也这样来，和任何人的一样
    installed("bertsmith.commands", lambda add: add(app))
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; input errors end with one line on standard error and exit code 2."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    words = list(sys.argv[1:] if arguments is None else arguments)
    # 「--」之后的都是内容：恰好叫 --debug 的文本不是选项
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    words = [word for word in words[:end] if word != "--debug"] + words[end:]
    warnings.showwarning = show_warning
    sys.exit(_run(words, debug=debug))


def _run(words: Sequence[str], *, debug: bool) -> int:
    if words and words[0] in _MOVED:
        return _fail(f"{words[0]} is now: bertsmith {_MOVED[words[0]]}", 2)
    try:
        outcome = all_commands()(list(words), standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        outcome = _INTERRUPTED
    except BertsmithError as error:
        if debug:
            raise
        return _fail(str(error), 2)
    except OSError as error:
        if debug:
            raise
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", 2)
    except Exception as error:
        # 命令行解析库的错误类不公开，只认它的 format_message；其余异常是程序缺陷，照常抛出
        explain = getattr(error, "format_message", None)
        if debug or explain is None:
            raise
        # 不带参数时解析库已打印帮助，错误文字为空，没有什么可补充的
        return _fail(f"{explain().rstrip('.')}. See --help.", 2) if explain() else 2
    # typer 自己接住 Ctrl-C，只把退出码交回来
    if outcome == _INTERRUPTED:
        goes_on = not _RESUMING.isdisjoint((" ".join(words[:1]), " ".join(words[:2])))
        return _fail("interrupted" + ("; run the same command again to resume" if goes_on else ""), _INTERRUPTED)
    return outcome if isinstance(outcome, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"bertsmith: {' '.join(message.split())}", file=sys.stderr)
    return code
