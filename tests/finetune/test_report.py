import base64
import io
import itertools
import json
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import font_manager

from bertsmith.errors import InputError, RunFolderError
from bertsmith.finetune.baselines import add_baselines, read_baselines
from bertsmith.finetune.datasets.texts import LabelledText, ScoredText
from bertsmith.finetune.report import draw_confusion, draw_course, write_report
from bertsmith.finetune.run import fine_tune
from bertsmith.finetune.search import search
from bertsmith.finetune.settings import FineTuningSettings
from bertsmith.finetune.tasks.classify import ClassificationTask
from bertsmith.finetune.tasks.regress import RegressionTask
from bertsmith.reporting.drawing import _look_for_new_fonts, drawable

SETTINGS = FineTuningSettings(epochs=2, batch_size=8, learning_rate=1e-9)
NASTY = "<script>alert('the man')</script> & \"bread\""


class Page(HTMLParser):
    """The headings, the tables as rows of cells, and the pictures of a page."""

    def __init__(self, path):
        super().__init__()
        self.headings, self.tables, self.images, self.tags = [], {}, [], set()
        self.text = None
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        if tag in ("h1", "h2", "td", "th"):
            self.text = ""
        if tag == "table":
            self.tables[self.headings[-1]] = []
        if tag == "tr":
            self.tables[self.headings[-1]].append([])
        if tag == "img":
            self.images.append(dict(attributes)["src"])

    def handle_data(self, data):
        if self.text is not None:
            self.text += data

    def handle_endtag(self, tag):
        if tag in ("h1", "h2"):
            self.headings.append(self.text)
        if tag in ("td", "th"):
            self.tables[self.headings[-1]][-1].append(self.text)
        if tag in ("h1", "h2", "td", "th"):
            self.text = None


def examples(count):
    """Texts that nothing was learned from, so that there are mistakes of every kind."""
    labels = ["积极", "<消极>", "neutral | mixed"]
    return [LabelledText(f"{NASTY} {i}", None, labels[i % 3]) for i in range(count)]


@pytest.fixture
def finished(tiny_model, tmp_path):
    train, dev, test = examples(24), examples(15), examples(18)
    task = ClassificationTask.of(train)
    result = fine_tune(task, tiny_model, train, dev, tmp_path / "run", SETTINGS, test=test)
    add_baselines(tmp_path / "run", task, train, dev, test)
    return tmp_path / "run", result


def test_the_verdict_compares_with_what_needs_no_encoder_and_the_next_command_names_the_model(finished):
    run, result = finished
    text = write_report(run).read_text(encoding="utf-8")
    scores = {name: one.metrics["accuracy"] for name, one in read_baselines(run).evaluations.items()}
    best = max(scores, key=scores.get)
    judged = "better" if result.test.metrics["accuracy"] > scores[best] else "no better"
    assert text.count('<p class="verdict">accuracy') == 1
    assert f"{judged} than {best}, which needs no encoder ({scores[best]:.3f})." in text or "but within" in text
    assert text.index("verdict") < text.index("<h2>Figures") < text.index("<h2>Next")
    assert f"bertsmith predict --file YOUR_FILE.txt --model {run / 'model'}" in text


def test_a_report_shows_the_figures_of_the_run(finished):
    run, result = finished
    path = write_report(run)
    page = Page(path)
    assert path == run / "report.html"
    figures = {row[0]: row[1] for row in page.tables["Figures"][1:]}
    for part, scores in (("dev", result.dev), ("test", result.test)):
        interval = scores.intervals["accuracy"]
        expected = f"{scores.metrics['accuracy']:.3f} ({interval.low:.3f} to {interval.high:.3f})"
        assert figures[f"accuracy on {part}"] == expected
        assert figures[f"macro_f1 on {part}"].startswith(f"{scores.metrics['macro_f1']:.3f} (")
    by_label = {row[0]: row[1:] for row in page.tables["By label"][1:]}
    assert list(by_label) == list(result.dev.classes)
    assert by_label["<消极>"][3] == "5"
    assert by_label["<消极>"][7] == "6"
    assert by_label["<消极>"][2] == f"{result.dev.classes['<消极>'].f1:.3f}"
    systems = {row[0]: row[1] for row in page.tables["Baselines, on test"][1:]}
    assert list(systems) == ["BERT, classify", "majority", "tfidf"]
    assert systems["majority"].startswith("0.333 (")
    assert ["learning_rate", "1e-09"] in page.tables["Recipe"]


def test_mistakes_are_shown_as_they_are_and_nothing_of_them_is_markup(finished):
    run, result = finished
    page = Page(write_report(run))
    rows = page.tables["Worst mistakes on dev"][1:]
    assert [row[:3] for row in rows] == [[m.text, m.expected, m.predicted] for m in result.dev.mistakes]
    assert NASTY in rows[0][0]
    assert "script" not in page.tags


def test_a_report_is_one_file_with_its_pictures_inside(finished):
    run, _ = finished
    page = Page(write_report(run))
    # the course, the reliability, and a confusion matrix for dev and for test
    assert len(page.images) == 4
    for image in page.images:
        kind, data = image.split(",", 1)
        assert kind == "data:image/svg+xml;base64"
        assert ElementTree.fromstring(base64.b64decode(data)).tag.endswith("svg")
    assert {"link", "script"}.isdisjoint(page.tags)


def test_a_report_can_be_made_again_and_anywhere(finished, tmp_path):
    run, _ = finished
    first = write_report(run).read_text(encoding="utf-8")
    run.rename(tmp_path / "elsewhere")
    expected = first.replace(", run<", ", elsewhere<").replace("/run/model", "/elsewhere/model")
    assert write_report(tmp_path / "elsewhere").read_text(encoding="utf-8") == expected


def test_a_task_without_labels_has_no_tables_of_them(tiny_model, tmp_path):
    scored = [ScoredText("the man" if i % 2 else "a book", None, float(i % 2)) for i in range(12)]
    fine_tune(RegressionTask.of(scored), tiny_model, scored, scored, tmp_path / "run", SETTINGS)
    page = Page(write_report(tmp_path / "run"))
    assert page.headings[1:] == ["Figures", "Course", "Worst mistakes on dev", "Recipe", "Next"]
    head, *rows = page.tables["Worst mistakes on dev"]
    assert head == ["text", "true", "predicted", "error"]
    assert [float(row[3]) for row in rows] == pytest.approx([abs(float(r[1]) - float(r[2])) for r in rows], abs=0.01)
    assert "Farthest off" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert len(page.images) == 1


def test_a_search_has_the_table_of_its_runs_and_the_spread(tiny_model, tmp_path):
    train, dev, test = examples(24), examples(15), examples(18)
    task, folder = ClassificationTask.of(train), tmp_path / "search"
    settings = FineTuningSettings(epochs=1, batch_size=8, learning_rate=1e-3)
    result = search(task, tiny_model, train, dev, folder, settings, seeds=2, test=test)
    page = Page(folder / "report.html")
    header, *rows = page.tables["All runs"]
    assert header == ["seed", "accuracy on dev", "accuracy on test", "epoch", "seconds"]
    assert [row[:2] for row in rows] == [[str(r.settings["seed"]), f"{r.dev['accuracy']:.4f}"] for r in result.rows]
    assert "a little too good" not in (folder / "report.html").read_text(encoding="utf-8"), "no grid chose a seed"
    spread = {row[0]: row[1:] for row in page.tables["Spread over seeds"][1:]}
    assert next(iter(spread)) == "accuracy on dev"
    assert float(spread["accuracy on test"][0]) == pytest.approx(
        np.mean([row.test["accuracy"] for row in result.rows]), abs=1e-4
    )


def test_unfinished_and_damaged_folders_are_refused(finished, tmp_path):
    run, _ = finished
    with pytest.raises(InputError, match="no finished fine-tuning run"):
        write_report(tmp_path)
    (run / "search.json").write_text("{}")
    (run / "result.json").rename(run / "kept.json")
    with pytest.raises(InputError, match="search is not finished"):
        write_report(run)
    (run / "search.json").unlink()
    (run / "kept.json").rename(run / "result.json")
    request = json.loads((run / "finetune.json").read_text(encoding="utf-8"))
    (run / "finetune.json").write_text(json.dumps({**request, "dev": None}))
    with pytest.raises(RunFolderError, match="damaged"):
        write_report(run)


def test_a_confusion_matrix_is_legible_with_any_number_of_labels():
    for count in (2, 20, 120):
        table = np.arange(count * count).reshape(count, count)
        figure, note = draw_confusion([f"label {i}" for i in range(count)], table.tolist())
        figure.canvas.draw()
        axes = figure.axes[0]
        assert note == ""
        assert [text.get_text() for text in axes.get_yticklabels()] == [f"label {i}" for i in range(count)]
        boxes = [text.get_window_extent() for text in axes.get_yticklabels()]
        assert all(not a.overlaps(b) for a, b in itertools.pairwise(boxes))
        # every count that is not zero is written out where there is room, and none where there is not
        assert len(axes.texts) == (count * count - 1 if count <= 24 else 0)


def test_labels_without_a_font_become_numbers_with_a_key(monkeypatch):
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [])
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    _look_for_new_fonts.cache_clear()
    key = "No font with glyphs for all labels was found: 1 积极  2 ok"
    assert drawable(["积极", "ok"]) == (["1", "2"], None, key)
    assert drawable(["good", "ok"]) == (["good", "ok"], None, "")
    _look_for_new_fonts.cache_clear()


def test_a_font_is_asked_for_every_glyph():
    for label in ("🥰", "a\tb", "\U000e0041"):
        assert drawable([label, "ok"])[0] == ["1", "2"], label
    assert drawable(["né", "да"]) == (["né", "да"], None, "")


def test_labels_of_dollar_signs_are_no_formulas():
    figure, _ = draw_confusion(["$", "$$", r"$\frac$"], [[3, 1, 0], [0, 2, 0], [0, 0, 1]])
    figure.savefig(io.BytesIO(), format="png")
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == [r"\$", r"\$\$", r"\$\frac\$"]
    rows = [{"kind": "train", "epoch": 1, "loss": 1.0}, {"kind": "dev", "epoch": 1, "f1_$$": 0.5}]
    draw_course(rows, "f1_$$", 1).savefig(io.BytesIO(), format="png")


def test_a_thousand_labels_are_counted_and_not_named():
    figure, note = draw_confusion([f"label {i}" for i in range(1000)], np.eye(1000, dtype=int).tolist())
    assert "count them" in note
    assert len(figure.axes[0].get_yticklabels()) < 30
