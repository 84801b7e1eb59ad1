"""The lab: the server's application with the pages on it, in one process, until Ctrl-C.

Each language has its own address, so that a link leads where it was copied. Nothing comes from another host: the theme
names installed fonts, analytics are off, and Gradio can share or record nothing. Keys, names, and the limits of bodies
are those of the server, see `bertsmith.serve.pages`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

import gradio as gr
from fastapi import FastAPI
from fastapi.responses import JSONResponse, RedirectResponse, Response
from gradio.themes.utils import colors, sizes

from bertsmith.errors import InputError
from bertsmith.serve.pages import PageServer, ServedModel, is_loopback, serve_pages
from bertsmith.serve.settings import ServeSettings
from bertsmith_school.lab import (
    attention,
    compare,
    fill_mask,
    learn,
    my_task,
    next_sentence,
    search,
    similarity,
    tokens,
    topics,
    training,
    your_file,
)
from bertsmith_school.lab.models import LabModels
from bertsmith_school.lab.page_state import PageState
from bertsmith_school.lab.training import RunFolders
from bertsmith_school.learn.lesson import LANGUAGES, Language, Text

_TITLE = Text("bertsmith lab", "bertsmith 实验室")
_TABS: tuple[tuple[str, Text, Callable[[PageState], None]], ...] = (
    ("fill", Text("Fill the mask", "填空"), fill_mask.build),
    ("attention", Text("Attention", "注意力"), attention.build),
    ("next", Text("Next sentence", "下一句"), next_sentence.build),
    ("tokens", Text("Tokens", "词元"), tokens.build),
    ("task", Text("My task", "我的任务"), my_task.build),
    ("similarity", Text("Similarity", "相似度"), similarity.build),
    ("search", Text("Search", "搜索"), search.build),
    ("topics", Text("Topics", "主题"), topics.build),
    ("file", Text("Your file", "你的文件"), your_file.build),
    ("compare", Text("Compare", "比较"), compare.build),
)
_TRAINING, _LEARN = Text("Training", "训练"), Text("Learn", "学习")
_ICON = (
    "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'><rect width='32' height='32' rx='7' fill='#1f5fae'/>"
    "<path d='M9 7v18h9a5 5 0 0 0 1.500-9.700A4.600 4.600 0 0 0 17 7z M13 11h4a1.800 1.800 0 0 1 0 3.600h-4z"
    " M13 18h5a1.900 1.900 0 0 1 0 3.800h-5z' fill='white' fill-rule='evenodd'/></svg>"
)


def build_page(models: LabModels, runs: RunFolders, language: Language, progress: Path | None = None) -> gr.Blocks:
    """Lays out the page in one language; arguments as in `mount`."""
    page = gr.Blocks(title=_TITLE(language), analytics_enabled=False)
    with page:
        gr.HTML(_header(language))
        state = PageState(models, language, page)
        with gr.Tabs(elem_id="tabs", overflow_behavior="wrap"):
            opened = []
            for name, title, build in _TABS:
                with gr.Tab(state.say(title), id=name) as tab:
                    build(state)
                opened.append(tab)
            with gr.Tab(state.say(_TRAINING), id="training") as watching:
                timer = training.build(state, runs, watching)
            with gr.Tab(state.say(_LEARN), id="learn") as tab:
                learn.build(state, progress, tab)
            training.look_while_open(timer, watching, [*opened, tab])
    return page


def mount(
    server: PageServer, models: LabModels, runs: RunFolders, *, language: Language = "en", progress: Path | None = None
) -> None:
    """Puts the pages on a server's application: `/en/`, `/zh/`, and `/` for the one to begin with."""

    async def begin() -> Response:
        return RedirectResponse(f"/{language}/", status_code=307)

    async def icon() -> Response:
        return Response(_ICON, media_type="image/svg+xml")

    async def manifest() -> Response:
        return JSONResponse({"name": "bertsmith lab", "start_url": "/", "display": "browser"})

    for path, endpoint in (("/", begin), ("/favicon.ico", icon), ("/manifest.json", manifest)):
        server.app.add_api_route(path, endpoint, methods=["GET"], include_in_schema=False)
    pages = resources.files("bertsmith_school.lab") / "pages"
    style, saving = ((pages / name).read_text(encoding="utf-8") for name in ("lab.css", "save.js"))
    for each in LANGUAGES:
        gr.mount_gradio_app(
            server.app,
            build_page(models, runs, each, progress),
            path=f"/{each}",
            app_kwargs={"middleware": [server.middleware]},
            theme=theme(),
            css=style,
            head=_head(each, saving),
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            max_file_size=server.settings.limits.body_bytes,
            show_error=False,
        )


def _head(language: Language, script: str) -> str:
    """Returns what belongs into the head of a page: its icon, its language, and a script."""
    # 页面语言要如实标明：读屏软件按它发音，浏览器按它选字形
    named = f"document.documentElement.lang = '{language}';"
    return f"<link rel='icon' href='/favicon.ico'><script>{named}\n{script}</script>"


def theme() -> gr.themes.Base:
    """Returns the look: fonts that are on the reader's machine, none that would be fetched."""
    return gr.themes.Base(
        primary_hue=colors.blue,
        neutral_hue=colors.slate,
        radius_size=sizes.radius_md,
        font=["system-ui", "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", "sans-serif"],
        font_mono=["ui-monospace", "Noto Sans Mono", "Noto Sans Mono CJK SC", "monospace"],
    ).set(
        button_primary_background_fill="#1f5fae",
        button_primary_background_fill_hover="#174a89",
        button_primary_background_fill_dark="#2a6fc4",
        button_primary_text_color="white",
    )


def _header(language: Language) -> str:
    links = "".join(
        f"<a href='/{each}/' lang='{each}'{' aria-current=page' if each == language else ''}>{name}</a>"
        for each, name in (("en", "English"), ("zh", "中文"))
    )
    named = Text("Language", "语言")(language)
    said = Text("Look inside your model; everything stays on this machine.", "看看模型里面；一切都在本机完成。")
    return (
        f"<header class='top'><div><h1>{_TITLE(language)}</h1><p>{said(language)}</p></div>"
        f"<nav aria-label='{named}'>{links}</nav></header>"
    )


def build_lab(
    settings: ServeSettings, runs: Sequence[str | Path] = (), *, language: Language = "en", progress: Path | None = None
) -> FastAPI:
    """Builds the application: the server's endpoints, and the lab's pages, see `PageServer` for who may see them.

    The lab's models are the server's; `runs` are run folders, or folders that hold some; `language` is that of the page
    at `/`; `progress` is the file of the flash cards, None for the reader's own.
    """
    roots = tuple(Path(run) for run in runs)
    for root in roots:
        if not root.is_dir():
            raise InputError(f"{root}: is no folder; --runs takes a run folder, or one that holds some")
    server = PageServer(settings)

    def load(folder: str) -> ServedModel:
        # 文件夹常常都叫 model：带上它所在的文件夹，表头里才分得清
        return server.load("/".join(Path(folder).parts[-2:]), folder)

    # 只有本机的人能让实验室打开别的文件夹：访客不该借它探看这台机器的磁盘
    models = LabModels(server.models, settings, server.indexes, load=load if server.is_private else None)
    mount(server, models, RunFolders(roots), language=language, progress=progress)
    return server.app


def run_lab(
    settings: ServeSettings, runs: Sequence[str | Path] = (), *, language: Language = "en", progress: Path | None = None
) -> None:
    """Runs the lab until SIGTERM or SIGINT."""
    with tempfile.TemporaryDirectory(prefix="bertsmith-lab-") as passing:
        # 别人来用时，不去写本机用户自己的卡片文件：进度只在实验室开着时留着
        if progress is None and not is_loopback(settings.host):
            progress = Path(passing) / "cards.json"
        serve_pages(settings, lambda: build_lab(settings, runs, language=language, progress=progress), name="the lab")
