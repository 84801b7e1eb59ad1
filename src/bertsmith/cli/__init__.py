"""The command line: one thin file per command group, and the boundary where errors become one line.

Heavy imports happen inside the commands, so that `bertsmith --help` answers at once.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

import typer

from bertsmith import __version__
from bertsmith.cli import (
    adapt,
    attention,
    compress,
    convert,
    corpus,
    distil,
    docs,
    export,
    finetune,
    inspect,
    lab,
    learn,
    plan,
    predict,
    pretrain,
    probe,
    push,
    quickstart,
    report,
    search,
    serve,
    sizes,
    study,
    vocab,
    words,
)
from bertsmith.cli.options import DeclaredCommand, DeclaredDeviceCommand, DeviceCommand
from bertsmith.errors import BertsmithError

app = typer.Typer(
    name="bertsmith",
    help="From a folder of text files to a working BERT.",
    no_args_is_help=True,
    epilog="Add --debug to any command to see the traceback of an error.",
    pretty_exceptions_enable=False,
)
app.command("quickstart", cls=DeclaredDeviceCommand)(quickstart.quickstart)
app.command("plan", cls=DeclaredDeviceCommand)(plan.plan)
app.command("vocab", cls=DeclaredCommand)(vocab.vocab)
app.command("corpus", cls=DeclaredCommand)(corpus.corpus)
app.command("pretrain", cls=DeclaredDeviceCommand)(pretrain.pretrain)
app.command("adapt", cls=DeclaredDeviceCommand)(adapt.adapt)
app.command("distil", cls=DeclaredDeviceCommand)(distil.distil)
app.command("compress", cls=DeclaredDeviceCommand)(compress.compress)
app.command("study", cls=DeclaredDeviceCommand)(study.study)
app.command("word-vectors", cls=DeclaredCommand)(words.word_vectors)
app.command("nearest")(words.nearest)
app.command("lstm", cls=DeclaredCommand)(words.lstm)
app.command("seq2seq", cls=DeclaredCommand)(words.seq2seq)
app.command("rewrite")(words.rewrite)
app.command("report")(report.report)
app.command("fill-mask", cls=DeviceCommand)(predict.fill_mask)
app.command("generate", cls=DeviceCommand)(predict.generate)
app.command("finetune", cls=DeclaredDeviceCommand)(finetune.finetune)
app.command("evaluate", cls=DeclaredDeviceCommand)(finetune.evaluate)
app.command("predict", cls=DeviceCommand)(predict.predict)
app.command("embed", cls=DeclaredDeviceCommand)(predict.embed)
app.command("similarity", cls=DeviceCommand)(predict.similarity)
app.command("next-sentence", cls=DeviceCommand)(predict.next_sentence)
app.command("index", cls=DeclaredDeviceCommand)(search.index)
app.command("search", cls=DeviceCommand)(search.search)
app.command("mine", cls=DeclaredDeviceCommand)(search.mine)
app.command("serve", cls=DeclaredDeviceCommand)(serve.serve)
app.command("attention", cls=DeviceCommand)(attention.attention)
app.command("attribute", cls=DeviceCommand)(attention.attribute)
app.command("probe", cls=DeclaredDeviceCommand)(probe.probe)
app.command("lab", cls=DeviceCommand)(lab.lab)
app.command("learn")(learn.learn)
app.command("docs")(docs.docs)
app.command("import")(convert.import_model)
app.add_typer(export.app, name="export")
app.command("push")(push.push)
app.command("sizes", cls=DeviceCommand)(sizes.sizes)
app.add_typer(inspect.app, name="inspect")

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
_RESUMING = (
    "quickstart",
    "adapt",
    "distil",
    "corpus",
    "pretrain",
    "study",
    "word-vectors",
    "lstm",
    "seq2seq",
    "finetune",
    "embed",
    "index",
)
"""Commands that keep what is done and go on from there."""


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """From a folder of text files to a working BERT."""
    if version:
        print(f"bertsmith {__version__}")
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; input errors end with one line on standard error and exit code 2."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    words = list(sys.argv[1:] if arguments is None else arguments)
    # 「--」之后的都是内容：恰好叫 --debug 的文本不是选项
    end = words.index("--") if "--" in words else len(words)
    debug = "--debug" in words[:end]
    words = [word for word in words[:end] if word != "--debug"] + words[end:]
    warnings.showwarning = lambda message, *_, **__: print(f"bertsmith: warning: {message}", file=sys.stderr)
    sys.exit(_run(words, debug=debug))


def _run(words: Sequence[str], *, debug: bool) -> int:
    try:
        outcome = app(list(words), standalone_mode=False)
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
        return _fail(f"{explain()} See --help.", 2) if explain() else 2
    # typer 自己接住 Ctrl-C，只把退出码交回来
    if outcome == _INTERRUPTED:
        goes_on = bool(words) and words[0] in _RESUMING
        return _fail("interrupted" + ("; run the same command again to go on" if goes_on else ""), _INTERRUPTED)
    return outcome if isinstance(outcome, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"bertsmith: {' '.join(message.split())}", file=sys.stderr)
    return code
