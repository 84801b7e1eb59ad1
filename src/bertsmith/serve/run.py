"""Running the application: one process, or several uvicorn workers behind one port.

uvicorn listens, starts workers, and starts another for one that dies. Settings travel to the workers in an environment
variable; each loads the models for itself (weights are mapped files, so the machine holds float32 weights once).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from bertsmith.errors import BertsmithError, InputError
from bertsmith.serve.connection import patient_connection
from bertsmith.serve.guard import ApiKeys, is_loopback
from bertsmith.serve.settings import ServeSettings

SETTINGS_VARIABLE = "BERTSMITH_SERVE_SETTINGS"
"""The environment variable in which worker processes find their settings."""

_STARTED = "started"
_STARTUP_FAILURE = 3
_SWITCH_SECONDS = 0.0001


def serve(settings: ServeSettings) -> None:
    """Serves until SIGTERM or SIGINT; returns when every accepted request is answered."""
    keys = ApiKeys.read(settings.key_file)
    configure_logs()
    if not keys and not is_loopback(settings.host):
        logging.getLogger("bertsmith.serve").warning("no API key is set: whoever reaches %s can use it", settings.host)
    with listening_socket(settings) as listener:
        if settings.workers > 1:
            listener.close()
            _serve_with_workers(settings)
            return
        _tune()
        # 先绑定端口、后载入模型：端口被占用要立刻报错，不必等上几秒
        from bertsmith.serve.app import build_app

        app = build_app(settings, keys=keys)
        # 先听后说：日志里一有地址，就连得上
        listener.listen()
        _announce(settings, listener.getsockname())
        with _ends_quietly():
            uvicorn.Server(uvicorn.Config(app, **uvicorn_options(settings))).run(sockets=[listener])


def worker_app() -> Any:
    """Builds the application in a worker process; uvicorn calls it."""
    configure_logs()
    _tune()
    started = Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]) / _STARTED
    try:
        from bertsmith.serve.app import build_app

        app = build_app(ServeSettings.from_json(os.environ[SETTINGS_VARIABLE]))
    except BertsmithError as error:
        print(f"bertsmith: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        # 这个退出码告诉 uvicorn：重启也没有用，整个服务就此结束。曾经启动成功过就不同：别的工作进程还在服务，
        # 模型文件夹多半正在更换，只要再试
        sys.exit(1 if started.exists() else _STARTUP_FAILURE)
    started.touch()
    return app


@contextlib.contextmanager
def listening_socket(settings: ServeSettings) -> Iterator[socket.socket]:
    """Takes the address a server is to listen on."""
    address = f"{settings.host}:{settings.port}"
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"cannot listen on {address} ({reason}); pass another --host or --port") from None
    with contextlib.closing(listener):
        yield listener


def configure_logs() -> None:
    """Sends the server's own log, a line a request, to standard error."""
    logger = logging.getLogger("bertsmith")
    if not logger.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _serve_with_workers(settings: ServeSettings) -> None:
    folder = tempfile.mkdtemp(prefix="bertsmith-metrics-")
    # prometheus_client 在导入时就看这个变量，所以要在启动工作进程之前设好
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    os.environ[SETTINGS_VARIABLE] = settings.to_json()
    try:
        uvicorn.run(
            "bertsmith.serve.run:worker_app",
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            timeout_worker_healthcheck=30,
            **uvicorn_options(settings),
        )
        if not (Path(folder) / _STARTED).exists():
            raise BertsmithError("no worker could start; the lines above say why")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def uvicorn_options(settings: ServeSettings) -> dict[str, Any]:
    """Returns what uvicorn is told, whatever the number of workers."""
    return {
        "http": patient_connection(settings),
        "log_level": "warning" if settings.workers == 1 else "info",
        "access_log": False,
        "lifespan": "on",
        "ws": "none",
        "server_header": False,
        "date_header": True,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": round(settings.deadline) + 1,
    }


def _tune() -> None:
    # 计算线程每做完一步都要拿回解释器锁；默认 5 毫秒才换手，一次前向要等上百次
    sys.setswitchinterval(_SWITCH_SECONDS)


@contextlib.contextmanager
def _ends_quietly() -> Iterator[None]:
    """Makes SIGTERM and SIGINT end the process with 0, once uvicorn has stopped: it raises them again at its end."""

    def end(*_: object) -> None:
        raise SystemExit(0)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def address_of(name: tuple[Any, ...]) -> str:
    """Returns the URL of a listening socket, from its `getsockname()`."""
    host = f"[{name[0]}]" if ":" in str(name[0]) else name[0]
    return f"http://{host}:{name[1]}"


def _announce(settings: ServeSettings, address: tuple[Any, ...]) -> None:
    names = ", ".join(name for name, _ in settings.models)
    logging.getLogger("bertsmith.serve").info("serving %s on %s", names, address_of(address))
