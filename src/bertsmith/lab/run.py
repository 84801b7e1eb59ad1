"""Running the lab: the server's application with the pages on it, in one process, until Ctrl-C."""

from __future__ import annotations

import contextlib
import logging
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from bertsmith.errors import InputError
from bertsmith.lab.models import LabModels
from bertsmith.lab.page import mount
from bertsmith.lab.training import RunFolders
from bertsmith.learn.lesson import Language
from bertsmith.serve.app import build_app
from bertsmith.serve.connection import patient_connection
from bertsmith.serve.host_check import HostCheck, is_loopback
from bertsmith.serve.keys import KEYS_VARIABLE, ApiKeys
from bertsmith.serve.models import ServedModel, load_models
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

    On a loopback address the pages are for this machine and ask for no key, unless the settings name a file of keys;
    requests under any other name than `localhost`, a loopback address or `settings.host` are refused. On any other
    address a key is asked for, by the browser's own prompt, and a name must be one that the settings allow.

    Args:
        settings: of the server; its models are the lab's.
        runs: run folders, or folders that hold some.
        language: of the page at `/`.
        progress: the file of the flash cards; None for the reader's own.

    Raises:
        BertsmithError: a model folder or a folder of runs cannot be used, or there is no key where one is needed.
    """
    roots = tuple(Path(run) for run in runs)
    for root in roots:
        if not root.is_dir():
            raise InputError(f"{root}: is no folder; --runs takes a run folder, or one that holds some")
    keys = keys_of(settings)
    app = build_app(settings, keys=keys, for_browser=True)
    if not is_loopback(settings.host):
        names = (settings.host, socket.gethostname(), *settings.allowed_hosts)
        app.add_middleware(HostCheck, hosts=names, any_address=True)

    def load(folder: str) -> ServedModel:
        # 文件夹常常都叫 model：带上它所在的文件夹，表头里才分得清
        name = "/".join(Path(folder).parts[-2:])
        (model,) = load_models(replace(settings, models=((name, folder),)), app.state.admission.batcher)
        return model

    # 只有本机的人能让实验室打开别的文件夹：访客不该借它探看这台机器的磁盘
    is_private = not keys and not settings.allowed_hosts
    models = LabModels(list(app.state.models), settings, app.state.models.indexes, load=load if is_private else None)
    mount(app, models, RunFolders(roots), language=language, progress=progress)
    return app


def keys_of(settings: ServeSettings) -> ApiKeys:
    """Returns who may use the lab: everybody on this machine, holders of a key elsewhere.

    Raises:
        InputError: others reach the address and there is no key, or the keys cannot be read.
    """
    if is_loopback(settings.host) and settings.key_file is None:
        return ApiKeys()
    keys = ApiKeys.read(settings.key_file)
    if not keys:
        raise InputError(
            f"--host {settings.host}: others reach the lab there; say who may: --api-key-file FILE, or set"
            f" {KEYS_VARIABLE}"
        )
    return keys


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
    with listening_socket(settings) as listener, tempfile.TemporaryDirectory(prefix="bertsmith-lab-") as passing:
        # 别人来用时，不去写本机用户自己的卡片文件：进度只在实验室开着时留着
        if progress is None and not is_loopback(settings.host):
            progress = Path(passing) / "cards.json"
        app = build_lab(settings, runs, language=language, progress=progress)
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
