"""Running the lab: the server's application with the pages on it, in one process, until Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from bertsmith.errors import InputError
from bertsmith.lab.models import LabModels
from bertsmith.lab.page import mount
from bertsmith.lab.training import RunFolders
from bertsmith.learn.lesson import LANGUAGES, Language
from bertsmith.serve.app import build_app
from bertsmith.serve.connection import patient_connection
from bertsmith.serve.host_check import BodyLimit, is_loopback
from bertsmith.serve.keys import ApiKeys
from bertsmith.serve.run import address_of, configure_logs, listening_socket
from bertsmith.serve.settings import ServeSettings

_GOODBYE_SECONDS = 1


def build_lab(
    settings: ServeSettings,
    runs: Sequence[str | Path] = (),
    *,
    language: Language = "en",
    progress: Path | None = None,
) -> FastAPI:
    """Builds the application: the server's endpoints, and the lab's pages.

    It asks for no API key: the pages are for whoever reaches the address. On a loopback address that is this machine,
    and requests under any other name than `localhost`, a loopback address or `settings.host` are refused.

    Args:
        settings: of the server; its models are the lab's.
        runs: run folders, or folders that hold some.
        language: of the page at `/`.
        progress: the file of the flash cards; None for the reader's own.

    Raises:
        BertsmithError: a model folder or a folder of runs cannot be used.
    """
    roots = tuple(Path(run) for run in runs)
    for root in roots:
        if not root.is_dir():
            raise InputError(f"{root}: is no folder; --runs takes a run folder, or one that holds some")
    app = build_app(settings, keys=ApiKeys())
    models = LabModels(list(app.state.models), settings, app.state.models.indexes)
    mount(app, models, RunFolders(roots), language=language, progress=progress)
    app.add_middleware(BodyLimit, paths=[f"/{each}" for each in LANGUAGES], most=settings.limits.body_bytes)
    return app


def run_lab(
    settings: ServeSettings,
    runs: Sequence[str | Path] = (),
    *,
    language: Language = "en",
    progress: Path | None = None,
) -> None:
    """Runs the lab until SIGTERM or SIGINT.

    Raises:
        BertsmithError: a folder or the address cannot be used.
    """
    configure_logs()
    # 页面的每个小文件都是一次请求：访问日志在这里只会刷屏
    logging.getLogger("bertsmith.access").setLevel(logging.WARNING)
    told = logging.getLogger("bertsmith.lab")
    with listening_socket(settings) as listener:
        app = build_lab(settings, runs, language=language, progress=progress)
        if not is_loopback(settings.host):
            told.warning("the lab asks for no key: whoever reaches %s can use it", settings.host)
        # 先听后说：日志里一有地址，就连得上
        listener.listen()
        told.info("the lab is open on %s - Ctrl-C closes it", address_of(listener.getsockname()))
        # 打开的网页一直占着一条连接：停机时不等它，一秒后断开
        config = uvicorn.Config(
            app,
            http=patient_connection(settings),
            log_level="critical",
            access_log=False,
            lifespan="on",
            ws="none",
            server_header=False,
            timeout_graceful_shutdown=_GOODBYE_SECONDS,
        )
        # Ctrl-C 是关闭实验室的正常方式，不是错误
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
