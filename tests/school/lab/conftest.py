"""Small models of every kind in a lab, and the lab in a browser."""

import contextlib
import json
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bertsmith.hub import BUNDLED
from bertsmith.inference.task_file import write_task_file
from bertsmith.model import (
    BertConfig,
    BertForMultipleChoice,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
)
from bertsmith.retrieval import build_index
from bertsmith.serve.settings import ServeSettings, served
from bertsmith.tokenizer import WordPieceTokenizer

SENTENCES = [
    "the man eats bread .",
    "the woman reads a book !",
    "where is the market ?",
    "she sells the < script > in a café ; 今天天气很好",
]
FILLING = ["the market sells bread .", "where is the café ?", "the man is here .", "she eats bread !", "the end ."]
CHROMIUM = Path("/usr/bin/chromium")


@pytest.fixture(scope="session")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A random model of each kind, over one vocabulary; their weights are large, so that texts differ."""
    root = tmp_path_factory.mktemp("lab-models")
    tokenizer = WordPieceTokenizer.train(SENTENCES * 3, vocab_size=300)
    config = BertConfig.named("2/64", vocab_size=tokenizer.vocab_size, max_position_embeddings=128).changed(
        initializer_range=0.2, num_attention_heads=4
    )
    torch.manual_seed(0)
    three = {0: "bad", 1: "fair", 2: "good"}
    problems = {
        "classify": ("single_label_classification", three),
        "multilabel": ("multi_label_classification", three),
        "regress": ("regression", {0: "score"}),
        "rank": (None, {0: "relevance"}),
    }
    made = {"base": BertForPreTraining(config)}
    for name, (problem, labels) in problems.items():
        made[name] = BertForSequenceClassification(config.changed(problem_type=problem, id2label=labels))
    made["tag"] = BertForTokenClassification(config.changed(id2label={0: "O", 1: "B-PER", 2: "B-LOC"}))
    made["answer"] = BertForQuestionAnswering(config)
    made["choose"] = BertForMultipleChoice(config)
    for name, model in made.items():
        model.save_pretrained(root / name)
        tokenizer.save(root / name)
    reader = {"task": "answer", "max_length": 40, "stride": 8, "max_answer_tokens": 5, "null_threshold": None}
    write_task_file(root / "answer", reader)
    return {name: root / name for name in made}


@pytest.fixture(scope="session")
def notes(folders, tmp_path_factory) -> Path:
    """An index by the pre-training model; one of its texts is a script."""
    root = tmp_path_factory.mktemp("searched")
    (root / "texts").mkdir()
    for number, text in enumerate([*SENTENCES, "an evil <script>window.ran = 3</script> .", *FILLING]):
        (root / "texts" / f"{number}.txt").write_text(text, encoding="utf-8")
    build_index(root / "texts", folders["base"], root / "index")
    return root / "index"


def write_run(folder: Path, losses: list[float]) -> Path:
    """Writes the log of a run of pre-training: a row each hundred steps."""
    folder.mkdir(parents=True)
    rows = [
        {"kind": kind, "step": 100 * number, "tokens": 5000 * number, "mlm_loss": loss + shift}
        for number, loss in enumerate(losses, 1)
        for kind, shift in (("train", 0.0), ("heldout", 0.5))
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture(scope="session")
def runs(tmp_path_factory) -> Path:
    """A folder of two runs, and one whose log is no text."""
    root = tmp_path_factory.mktemp("runs")
    write_run(root / "warm", [6.0, 5.0, 4.0])
    write_run(root / "cold", [6.5, 6.0, 5.5])
    (root / "broken").mkdir()
    (root / "broken" / "metrics.jsonl").write_bytes(b"\xff\xfe\x00\x01")
    return root


def settings_of(folders, names=None) -> ServeSettings:
    models = tuple((name, str(folder)) for name, folder in folders.items() if names is None or name in names)
    return ServeSettings(models=models, threads=1, drain=0.0)


@pytest.fixture(scope="session")
def lab(folders):
    """The models as the tabs see them, by name, without a page."""
    from bertsmith.serve.app import build_app
    from bertsmith.serve.guard import ApiKeys
    from bertsmith_school.lab.models import LabModels

    settings = settings_of(folders)
    app = build_app(settings, keys=ApiKeys())
    models = LabModels(list(app.state.models), settings)
    yield {name: models.named(name) for name in models.names}
    app.state.admission.close()
    app.state.admission.batcher.close()


@contextlib.contextmanager
def listening(settings, progress, runs=()):
    """Runs a lab that really listens, and lends its address."""
    pytest.importorskip("gradio", reason="the lab needs pip install 'bertsmith[school]'")
    import uvicorn

    from bertsmith_school.lab.run import build_lab

    app = build_lab(settings, runs, progress=progress / "cards.json")
    config = uvicorn.Config(app, port=0, log_level="critical", access_log=False, ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="module")
def page_address(folders, runs, notes, tmp_path_factory) -> str:
    """A lab with a pre-training model, a classifier, a tagger and an index."""
    settings = replace(settings_of(folders, ("base", "classify", "tag")), indexes=(("notes", str(notes)),))
    with listening(settings, tmp_path_factory.mktemp("progress"), [runs]) as address:
        yield address


@pytest.fixture(scope="module")
def bundled_address(tmp_path_factory) -> str:
    """A lab as it opens without a model."""
    settings = replace(served(list(BUNDLED), None), threads=1, drain=0.0)
    with listening(settings, tmp_path_factory.mktemp("progress")) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    """Debian's chromium, without a screen."""
    playwright = pytest.importorskip("playwright.sync_api", reason="browser tests need pip install playwright")
    if not CHROMIUM.exists():
        pytest.skip(f"browser tests need {CHROMIUM}")
    with playwright.sync_playwright() as engine:
        started = engine.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        with contextlib.closing(started):
            yield started


@pytest.fixture
def open_page(browser, page_address):
    """Opens the lab; at the end of the test nothing may have gone wrong in it, nor been asked of another host."""
    pages, trouble = [], []

    def begin(language="en", width=1280, scheme="light", asked=None, address=None):
        address = address or page_address
        asked = [] if asked is None else asked
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(60_000)
        page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: (trouble.append(f"dialog: {dialog.message}"), dialog.dismiss()))

        def watch(request):
            asked.append(request.url)
            if not request.url.startswith((address, "data:", "blob:")):
                trouble.append(f"asked {request.url}")

        page.on("request", watch)
        page.on("response", lambda one: trouble.append(f"{one.status} {one.url}") if one.status >= 400 else None)
        page.goto(f"{address}/{language}/")
        page.wait_for_selector("#fill-button")
        pages.append(page)
        return page

    yield begin
    for page in pages:
        page.close()
    assert not trouble
