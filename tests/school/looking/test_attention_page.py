import base64
import json
import re
import zlib
from pathlib import Path

import numpy as np
import pytest

from bertsmith.errors import InputError, RunFolderError
from bertsmith.reporting.drawing import write_picture
from bertsmith_school.looking.attention import attention_page, draw_heatmap, write_attention
from bertsmith_school.looking.maps import AttentionMaps, load_for_maps, maps_of, rollout

CHROMIUM = Path("/usr/bin/chromium")


def random_attention(layers, heads, size, *, sharpness=2.0, pair=False):
    scores = sharpness * np.random.default_rng(0).normal(size=(layers, heads, size, size))
    maps = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    tokens = ["[CLS]", *(f"token{place}" for place in range(size - 2)), "[SEP]"]
    types = [int(pair and place > size // 2) for place in range(size)]
    return AttentionMaps(tokens, types, maps.astype(np.float32), (size - 1,))


def data_of(page):
    (payload,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(payload)


def weights_of(packed, *shape):
    levels = np.frombuffer(zlib.decompress(base64.b64decode(packed)), dtype=np.uint8)
    return (levels.reshape(shape) / 255.0) ** 2


def test_the_page_holds_the_weights():
    attention = random_attention(2, 3, 20, sharpness=4)
    data = data_of(attention_page(attention))
    for layer in range(2):
        for head in range(3):
            stored = weights_of(data["maps"][layer][head], 20, 20)
            np.testing.assert_allclose(stored, attention.maps[layer, head], atol=0.004)
            # small weights keep their digits: the error is a share of the weight's root
            assert (np.abs(stored - attention.maps[layer, head]) <= np.sqrt(stored) / 255 + 1e-5).all()
        np.testing.assert_allclose(
            weights_of(data["rollout"][layer], 20, 20), rollout(attention.maps)[layer], atol=0.004
        )
    assert data["tokens"] == attention.tokens


@pytest.mark.parametrize("sharpness", [0.5, 2.0, 4.0])
def test_a_12_x_12_model_on_128_tokens_makes_a_page_under_3_mb(sharpness):
    page = attention_page(random_attention(12, 12, 128, sharpness=sharpness, pair=True))
    assert len(page.encode("utf-8")) < 3_000_000


def test_markup_in_the_text_cannot_leave_the_data():
    attention = random_attention(1, 2, 4)
    attention.tokens[1:3] = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>"]
    page = attention_page(attention)
    assert "<script>alert" not in page
    assert "<img" not in page
    assert data_of(page)["tokens"] == attention.tokens


def test_the_page_names_no_other_place_and_forbids_all():
    page = attention_page(random_attention(1, 1, 4))
    assert not re.findall(r"https?:|//[a-z0-9.-]+\.[a-z]{2,}/|@import|url\(", page)
    assert "default-src &#39;none&#39;" in page


def test_a_text_that_was_cut_is_said_on_the_page(tiny_model):
    attention = maps_of(*load_for_maps(tiny_model), "the man " * 100)
    assert "the last 170 are cut off" in attention_page(attention)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"layer": 2}, "there is no layer 3; the model has layers 1 to 2"),
        ({"head": 3}, "there is no head 4; the model has heads 1 to 3"),
        ({"layer": 0, "head": 1}, "head 2 of layer 1 was pruned"),
    ],
)
def test_a_layer_or_head_that_does_not_exist(chosen, message):
    attention = random_attention(2, 3, 5)
    attention.maps[0, 1] = np.nan
    with pytest.raises(InputError, match=message):
        attention_page(attention, **chosen)


def test_the_folder_holds_the_page_and_the_picture(tmp_path, tiny_model):
    model, tokenizer = load_for_maps(tiny_model)
    first, *notes = write_attention(maps_of(model, tokenizer, "the man eats $ .", "a book"), tmp_path / "out", head=0)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"attention.html", "head.png"}
    assert (tmp_path / "out" / "head.png").read_bytes().startswith(b"\x89PNG")
    assert "10 tokens, 1 layers of 1 heads" in first
    assert notes == []


def test_a_folder_that_holds_something_else_is_left_alone(tmp_path):
    attention = random_attention(1, 1, 4)
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="is not empty and holds no attention.html"):
        write_attention(attention, tmp_path)
    with pytest.raises(RunFolderError, match="file stands where a folder is needed"):
        write_attention(attention, tmp_path / "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_characters_without_a_font_are_named_in_a_note(tmp_path, monkeypatch):
    monkeypatch.setattr("bertsmith.reporting.drawing.CJK_FONTS", ())
    weights = random_attention(1, 1, 4).maps[0, 0]
    note = draw_heatmap(["[CLS]", "战", "国", "[SEP]"], weights, title="").note
    assert "No font with glyphs for all labels was found: 1 [CLS]  2 战  3 国" in note
    # Khmer is in no font that matplotlib brings: as labels it becomes numbers, elsewhere the boxes are owned up to
    drawn = draw_heatmap(["[CLS]", "\u1780", "\u1781", "[SEP]"], weights, title="")
    assert "2 \u1780  3 \u1781" in drawn.note
    assert write_picture(drawn.figure, tmp_path / "head.png") == ""
    drawn.figure.axes[0].set_title("\u1780")
    assert "head.png: no font here has some" in write_picture(drawn.figure, tmp_path / "head.png")


# ---- in a browser ----


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM.exists():
        pytest.skip(f"no browser at {CHROMIUM}")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Opens the page of an attention at a width, and fails where it complains or asks for anything."""
    complaints, contexts = [], []

    def open_page(attention, *, width=1280, **chosen):
        (tmp_path / "attention.html").write_text(attention_page(attention, **chosen), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 900})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(f"dialog: {dialog.message}") or dialog.dismiss())
        page.on("request", lambda request: complaints.append(request.url) if len(requests(request)) else None)
        page.goto((tmp_path / "attention.html").as_uri())
        page.wait_for_selector("body[data-ready]")
        return page

    def requests(request):
        return [] if request.url.startswith(("file:", "data:")) else [request.url]

    yield open_page
    assert complaints == []
    for context in contexts:
        context.close()


def point_at(page, view, row, column):
    """Moves the mouse over a cell, by the page's own geometry; the view is scrolled to its beginning."""
    left, top, cell = page.evaluate("[mapView.left, mapView.top, mapView.cell]")
    page.locator(view).scroll_into_view_if_needed()
    page.hover(view, position={"x": left + (column + 0.5) * cell, "y": top + (row + 0.5) * cell})


def test_pointing_at_a_cell_shows_its_weight(opened, minilm_folder):
    attention = maps_of(*load_for_maps(minilm_folder), "The man reads the newspaper.", "He likes stories.")
    page = opened(attention, layer=1, head=8)
    point_at(page, "#map", 2, 3)
    said = page.inner_text("#readout")
    assert said.startswith("“man” (3) reads “reads” (4): ")
    assert float(said.split()[-2]) / 100 == pytest.approx(attention.maps[1, 8, 2, 3], abs=0.005)
    # choosing another layer and head shows another map
    page.select_option("#layer", "0")
    page.select_option("#head", "rollout")
    page.locator("#name", has_text="Rollout up to layer 1").wait_for()
    point_at(page, "#map", 2, 3)
    share = float(page.inner_text("#readout").split()[-2]) / 100
    assert share == pytest.approx(rollout(attention.maps)[0, 2, 3], abs=0.005)
    page.select_option("#head", "mean")
    page.locator("#name", has_text="Layer 1, mean of the heads").wait_for()
    point_at(page, "#map", 2, 3)
    share = float(page.inner_text("#readout").split()[-2]) / 100
    assert share == pytest.approx(attention.maps[0, :, 2, 3].mean(), abs=0.005)


def test_script_in_the_text_is_text(opened):
    attention = random_attention(2, 2, 6, pair=True)
    attention.tokens[1:3] = ["<script>alert(1)</script>", "<img src=x onerror=alert(2)>"]
    page = opened(attention)
    assert page.inner_text("#tokens button:nth-child(2)") == "<script>alert(1)</script>"
    assert page.locator("img").count() == 0
    assert page.evaluate("document.scripts.length") == 2


def test_thumbnails_tables_and_keys(opened):
    attention = random_attention(3, 4, 40)
    attention.maps[1, 1] = np.nan
    page = opened(attention, width=390)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.click("#grid button[title='layer 2, head 4']")
    page.locator("#name", has_text="Layer 2, head 4").wait_for()
    assert page.locator("#grid button:disabled").get_attribute("title") == "layer 2, head 2: pruned"
    # by keys alone: into the map, one step down and one to the right, then to the row's end
    page.focus("#map")
    for key in ("ArrowDown", "ArrowRight", "End"):
        page.keyboard.press(key)
    assert page.inner_text("#readout").startswith("“token0” (2) reads “[SEP]” (40): ")
    page.focus("#tokens button")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tokenreadout").startswith("“token0” (2) reads ")
    page.focus("#grid button[tabindex='0']")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator("#name", has_text="Layer 3, head 2").wait_for()
    # sorted by entropy, most spread first; eleven heads are left
    page.click("#headings th:nth-child(3) button")
    spread = [float(text) for text in page.locator("#rows td:nth-child(3)").all_inner_texts()]
    assert spread == sorted(spread, reverse=True)
    assert len(spread) == 11


def test_scrolling_under_a_resting_pointer_chooses_no_word(opened):
    page = opened(random_attention(1, 1, 300), width=390)
    button = page.locator("#tokens button").nth(150)
    button.hover()
    readout = page.locator("#tokenreadout")
    assert readout.inner_text().startswith("“token149” (151) ")
    page.focus("#tokens button")
    assert readout.inner_text().startswith("“[CLS]” (1) ")
    # the words pass under the pointer, which nobody moved
    button.scroll_into_view_if_needed()
    page.evaluate("window.scrollBy(0, 60)")
    page.evaluate("new Promise(done => setTimeout(done, 300))")
    assert page.evaluate("document.querySelector('#tokens button:hover') !== null")
    assert readout.inner_text().startswith("“[CLS]” (1) ")


def test_a_long_text_keeps_its_labels_and_draws_only_what_is_seen(opened):
    page = opened(random_attention(1, 1, 300), head=0)
    assert page.evaluate("mapView.cell") >= 9
    width, height = page.evaluate("[mapView.canvas.clientWidth, mapView.canvas.clientHeight]")
    assert width <= 1280
    assert height <= 900
    assert page.evaluate("mapView.host.scrollWidth") > 300 * 9
    page.focus("#map")
    page.keyboard.press("End")
    assert "(300)" in page.inner_text("#readout")
    assert page.evaluate("mapView.host.scrollLeft") > 0
