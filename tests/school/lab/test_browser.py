"""The lab in a browser: every tab by mouse and by keyboard, wide and narrow, in English and Chinese."""

import csv
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest

import bertsmith
from bertsmith import WordPieceTokenizer, load_pipeline
from bertsmith.journeys.topics import find_topics
from bertsmith.retrieval import load_index
from bertsmith_school.looking.maps import load_for_maps, maps_of

EVIL = "<script>window.ran = 1</script> the man <img src=x onerror='window.ran = 2'> eats"
TABS = {
    "en": "Fill the mask|Attention|Next sentence|Tokens|My task|Similarity|Search|Topics|Your file"
    "|Compare|Training|Learn",
    "zh": "填空|注意力|下一句|词元|我的任务|相似度|搜索|主题|你的文件|比较|训练|学习",
}
PLOT = ".js-plotly-plot"
pytest.importorskip("playwright.sync_api", reason="browser tests need pip install playwright")


def open_tab(page, name):
    page.locator("[role=tablist] button[role=tab]", has_text=name).first.click()
    page.wait_for_selector(f"[role=tab][aria-selected=true]:has-text({name!r})")


def choose_model(page, name):
    page.locator("#model input").click()
    page.locator("ul[role=listbox] [role=option]", has_text=name).first.click()


def choose_other(page, given):
    page.fill("#compare-other input", given)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")


def typed(page, place, text):
    page.fill(f"{place} textarea", text)


BARS = "[...document.querySelectorAll('{} .bar')].map(b => ['.name', '.value'].map(p => b.querySelector(p).innerText))"
"""All bars of a place at once: between two readings a page may be drawn again."""


def bars_of(page, place):
    return [tuple(pair) for pair in page.evaluate(BARS.format(place))]


def wait_for_bars(page, place, shares):
    """Waits until the bars say these shares; what stood there before, or nothing, may be seen until then."""
    said = json.dumps(sorted(shares.items()))
    page.wait_for_function(f"JSON.stringify({BARS.format(place)}.sort()) === JSON.stringify({said})")


def shares_of(found):
    return {name: f"{100 * share:.1f} %" for name, share in found.probabilities.items()}


def plotted(page, place, path):
    """Reads a figure's own data, arrays in whatever packing Plotly keeps them."""
    page.wait_for_selector(f"{place} {PLOT}")
    script = f"""() => {{
        const plain = value => ArrayBuffer.isView(value) ? Array.from(value)
            : Array.isArray(value) ? value.map(plain) : value;
        return plain(document.querySelector("{place} {PLOT}").{path});
    }}"""
    return page.evaluate(script)


def test_the_tabs_show_what_the_pipelines_say(open_page, folders, notes):
    base = folders["base"]
    page = open_page()

    # all tabs have room, and the first one shows something before any click
    assert page.locator("[role=tablist] button[role=tab]:visible").count() == len(TABS["en"].split("|"))
    page.wait_for_selector("#fill-results .bar")
    text = "the man [MASK] bread ."
    (expected,) = load_pipeline("fill-mask", base)(text, top_k=10)
    typed(page, "#fill-text", text)
    page.click("#fill-button")
    first = f"{100 * expected[0].probability:.1f} %"
    page.wait_for_function(f"document.querySelector('#fill-results .bar .value')?.textContent.trim() === '{first}'")
    assert bars_of(page, "#fill-results") == [(one.piece, f"{100 * one.probability:.1f} %") for one in expected]
    number, piece = next((n, one.piece) for n, one in enumerate(expected) if not one.piece.startswith("##"))
    page.locator("#fill-results button.bar").nth(number).click()
    page.wait_for_selector("#fill-results .done")
    assert page.input_value("#fill-text textarea") == f"the man {piece} bread ."

    open_tab(page, "Attention")
    typed(page, "#attention-first", "the man eats bread .")
    typed(page, "#attention-second", "the woman reads a book !")
    page.click("#attention-button")
    model, tokenizer = load_for_maps(base)
    maps = maps_of(model, tokenizer, "the man eats bread .", "the woman reads a book !").maps
    # the map of the example that the page opens with is there until the answer comes
    shown = f"document.querySelector('#attention-map {PLOT}')?._fullData?.[0]?.customdata"
    page.wait_for_function(f"{shown}?.length === {maps.shape[-1]}")
    np.testing.assert_allclose(plotted(page, "#attention-map", "_fullData[0].customdata"), maps[1, 0], atol=1e-6)
    page.check("#attention-pairs input")
    page.wait_for_selector("#attention-told .pair >> nth=3")
    page.wait_for_function(f"document.querySelector('#attention-map {PLOT}').data.length === 4")
    # pointing at a cell tells its weight
    size = maps.shape[-1]
    ground = page.locator(f"#attention-map {PLOT} .nsewdrag").first
    ground.scroll_into_view_if_needed()
    box = ground.bounding_box()
    for shift in (0, 1):
        page.mouse.move(box["x"] + box["width"] * 1.5 / size + shift, box["y"] + box["height"] * 2.5 / size)
    hover = page.wait_for_selector(f"#attention-map {PLOT} .hovertext").text_content()
    assert f"{100 * maps[1, 0, 2, 1]:.1f}%" in hover

    open_tab(page, "Next sentence")
    page.click("#next-button")
    page.wait_for_selector("#next-results .bar")
    first, second = page.input_value("#next-first textarea"), page.input_value("#next-second textarea")
    (probability,) = load_pipeline("next-sentence", base)([first], [second])
    assert bars_of(page, "#next-results")[0][1] == f"{100 * probability:.1f} %"

    open_tab(page, "Tokens")
    typed(page, "#tokens-first", "the woman reads")
    page.click("#tokens-button")
    page.wait_for_selector("#tokens-results table")
    ids = page.locator("#tokens-results tbody td:nth-child(3)").all_inner_texts()
    assert [int(one) for one in ids] == WordPieceTokenizer.load(base)("the woman reads")["input_ids"]

    open_tab(page, "Similarity")
    lines = ["the man eats bread .", "the woman reads a book !", "where is the market ?"]
    typed(page, "#similarity-text", "\n".join(lines))
    page.click("#similarity-button")
    expected = load_pipeline("embed", base).compare(lines)
    np.testing.assert_allclose(plotted(page, "#similarity-matrix", "_fullData[0].z"), expected, atol=1e-5)

    open_tab(page, "Search")
    typed(page, "#search-query", "who reads book ?")
    page.click("#search-button")
    page.wait_for_selector("#search-results .hits li")
    places = [one.splitlines()[0] for one in page.locator("#search-results h3").all_inner_texts()]
    hits = load_index(notes).search("who reads book ?")
    assert places == [f"{hit.file}:{hit.line}" for hit in hits]
    page.click("#search-mode label:has-text('words')")
    page.click("#search-button")
    page.wait_for_function("document.querySelectorAll('#search-results mark.colour1').length == 0")
    marks = page.locator("#search-results li:first-child mark").all_inner_texts()
    assert marks == ["reads", "book"]

    open_tab(page, "My task")
    # the result that the page opens with comes by itself, of the same model: base has no task
    page.wait_for_selector("#task-results .bar")
    choose_model(page, "classify")
    # the answer to the choice empties the results: what is asked for before it comes is lost
    page.wait_for_selector(".lead:visible:text-matches('^The head of classify is for')")
    typed(page, "#task-first", "the man eats bread .")
    page.click("#task-button")
    (found,) = load_pipeline("classify", folders["classify"])(["the man eats bread ."])
    wait_for_bars(page, "#task-results", shares_of(found))
    page.click("#task-why")
    page.wait_for_selector("#task-reasons .attributed span")


@pytest.mark.parametrize(("language", "tab"), [("en", "My task"), ("zh", "我的任务")])
def test_a_lab_without_a_model_shows_a_task_at_first_sight(open_page, bundled_address, language, tab):
    page = open_page(language, address=bundled_address)
    open_tab(page, tab)
    page.wait_for_selector("#task-results .bar")
    assert page.input_value("#model input") == "village"
    assert "village-reviews" in page.inner_text(".lead:visible")
    assert page.locator(".notice:visible").count() == 0
    (found,) = load_pipeline("classify", "village-reviews")([page.input_value("#task-first textarea")])
    assert found.label == "good"
    wait_for_bars(page, "#task-results", shares_of(found))
    page.click("#task-why")
    page.wait_for_selector("#task-reasons .attributed span")


def test_a_dropped_file_is_looked_at_and_taken_away(open_page, folders, tmp_path):
    left = set(Path(tempfile.gettempdir()).glob("gradio/*/*.csv"))
    page = open_page()
    open_tab(page, "Your file")
    rows = "".join(f"the man eats {n} bread;{'good' if n % 3 else '<b>bad</b>'}\n" for n in range(30))
    (tmp_path / "reviews.csv").write_text(f"Review Text;Label\n{rows}the book;\n", encoding="utf-8")
    page.set_input_files("#file-drop input[type=file]", tmp_path / "reviews.csv")
    page.wait_for_selector("#file-results table")
    shown = dict(
        zip(*(page.locator(f"#file-results td:nth-child({n})").all_inner_texts() for n in (1, 2)), strict=True)
    )
    expected = bertsmith.look(tmp_path / "reviews.csv", model=folders["base"])
    assert shown["form"] == expected.form
    assert shown["columns"] == "Review Text → text, Label → label"
    sizes = expected.lengths
    assert shown["length in pieces: half, 95 %, longest"] == f"{sizes.half}, {sizes.most}, {sizes.longest}"
    assert bars_of(page, "#file-results") == [("good", "20"), ("<b>bad</b>", "10")]
    notes = page.locator("#file-results .notice").all_inner_texts()
    assert any(one.startswith("reviews.csv: left out 1 rows: line 32 has an empty label") for one in notes)
    assert set(Path(tempfile.gettempdir()).glob("gradio/*/*.csv")) == left
    (tmp_path / "a.csv").write_bytes(bytes(range(256)))
    page.set_input_files("#file-drop input[type=file]", tmp_path / "a.csv")
    page.wait_for_selector(".notice.wrong:visible:has-text('a.csv: looks binary')")
    assert not page.locator("#file-results table").count()
    page.wait_for_selector("#file-drop:has-text('Drop File Here')")


def words_of(found):
    """What the bars of *Topics* say."""
    words = [f"{topic.number} {', '.join(topic.words)}".strip() for topic in found.topics]
    return list(zip(words, [f"{one.passages:,} · {100 * one.share:.1f} %" for one in found.topics], strict=True))


@pytest.mark.filterwarnings("ignore:.*never trained:UserWarning")
def test_topics_of_an_index_and_of_a_dropped_file_are_bars_a_map_and_dates(open_page, folders, notes, tmp_path):
    left = set(Path(tempfile.gettempdir()).glob("gradio/*/*.md"))
    page = open_page()
    open_tab(page, "Topics")
    page.click("#topics-button")
    expected = find_topics(load_index(notes))
    page.wait_for_selector("#topics-words .bar")
    assert bars_of(page, "#topics-words") == words_of(expected)
    counts = plotted(page, "#topics-map", "_fullData.map(one => one.x.length)")
    assert counts == [topic.passages for topic in expected.topics]
    # no file of the index has a date
    assert page.locator(f"#topics-dates {PLOT}").count() == 0

    name = "diary 2024-05-01.md"
    (tmp_path / name).write_text("# Bread\n\nThe man eats bread.\n\n# Books\n\nThe woman reads a book!\n", "utf-8")
    page.set_input_files("#topics-drop input[type=file]", tmp_path / name)
    assert plotted(page, "#topics-dates", "_fullLayout.xaxis.ticktext") == ["2024-05-01"]
    (tmp_path / "texts").mkdir()
    (tmp_path / name).rename(tmp_path / "texts" / name)
    found = find_topics(load_index(bertsmith.index(tmp_path / "texts", folders["base"], tmp_path / "index").folder))
    assert bars_of(page, "#topics-words") == words_of(found)
    counts = plotted(page, "#topics-dates", "_fullData[0].customdata")
    assert counts == [[topic.over_time["2024-05-01"]] for topic in found.topics]
    page.wait_for_selector("#topics-drop:has-text('Drop File Here')")
    assert set(Path(tempfile.gettempdir()).glob("gradio/*/*.md")) == left


def test_training_is_live_and_lessons_compute(open_page, runs):
    page = open_page()
    open_tab(page, "Training")
    assert plotted(page, "#training-plot", "data.map(one => one.name)") == ["cold", "warm"]
    assert plotted(page, "#training-plot", "_fullData[1].y") == [6.5, 5.5, 4.5]
    assert "cannot be read" in page.inner_text("#training-states")
    log = runs / "warm" / "metrics.jsonl"
    with log.open("a") as handle:
        handle.write('{"kind": "heldout", "step": 400, "tokens": 20000, "mlm_loss": 4.0}\n')
    page.wait_for_function(f"document.querySelector('#training-plot {PLOT}')._fullData[1].y.length === 4")

    open_tab(page, "Learn")
    page.wait_for_selector("#lesson-why .steps table")
    for entry, place in ((2, "#section-why-3"), (-1, "#cards")):
        page.locator(".contents a").nth(entry).click()
        inside = "one => { const top = one.getBoundingClientRect().top; return top >= -1 && top < innerHeight; }"
        assert page.locator(place).evaluate(inside), place
    page.locator("#lesson-why .question label").first.click()
    page.wait_for_selector("#lesson-why [role=status] b")
    page.click("#card-next")
    page.click("#card-turn")
    page.wait_for_selector("#card hr")
    page.click("#card-good")
    page.wait_for_selector("#card-turn:visible")
    # what was answered stays while another tab is open; another part takes the place of this one
    open_tab(page, "Training")
    open_tab(page, "Learn")
    page.wait_for_selector("#lesson-why [role=status] b")
    page.locator("#learn-part input").click()
    page.locator("ul[role=listbox] [role=option]", has_text="Pre-training").click()
    page.wait_for_selector("#lesson-pre-training .steps")
    assert page.locator("#lesson-why").count() == 0


def test_a_folder_is_compared_with_the_chosen_model(open_page, folders, tmp_path):
    page = open_page()
    open_tab(page, "Compare")

    for given, said in ((f"{tmp_path}/none", "there is no such folder"), (f"{tmp_path}", "has no config.json")):
        choose_other(page, given)
        page.click("#compare-fill")
        page.wait_for_selector(f".notice.wrong:visible:has-text({said!r})")
    choose_other(page, str(folders["base"]))
    for text, said in (("", "write something first"), ("the man .", "Write [MASK]")):
        typed(page, "#compare-text", text)
        page.click("#compare-fill")
        page.wait_for_selector(f".notice.wrong:visible:has-text({said!r})")
    typed(page, "#compare-text", "the man [MASK] bread .")
    page.click("#compare-fill")
    page.wait_for_selector("#compare-filled table")
    (expected,) = load_pipeline("fill-mask", folders["base"])("the man [MASK] bread .", top_k=10)
    for column in (1, 3):
        found = page.locator(f"#compare-filled td:nth-child({column})").all_inner_texts()
        assert found == [one.piece for one in expected]
    lines = ["the man eats bread .", "the woman reads a book !", "where is the market ?"]
    typed(page, "#compare-lines", "\n".join(lines))
    page.click("#compare-button")
    page.wait_for_selector("#compare-alike table")
    cosines = load_pipeline("embed", folders["base"]).compare(lines)[0, 1:]
    assert page.locator("#compare-alike td:nth-child(3)").all_inner_texts() == [f"{one:.3f}" for one in cosines]


def saved_by(page, button):
    with page.expect_download() as download:
        page.click(button)
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def test_tables_bars_figures_and_pictures_are_saved(open_page):
    page = open_page("zh")
    typed(page, "#fill-text", "the man [MASK] bread .")
    page.click("#fill-button")
    page.wait_for_selector("#fill-results .bar")
    name, content = saved_by(page, "#fill-results .save")
    assert name.endswith(".csv")
    assert list(map(tuple, csv.reader(content.decode("utf-8-sig").splitlines()))) == bars_of(page, "#fill-results")

    open_tab(page, "词元")
    typed(page, "#tokens-first", 'she sells , the "book" 今天')
    page.click("#tokens-button")
    page.wait_for_selector("#tokens-results table")
    name, content = saved_by(page, "#tokens-results .save")
    assert name == "词元.csv"
    rows = list(csv.reader(content.decode("utf-8-sig").splitlines()))
    cells = page.locator("#tokens-results :is(th, td)").all_inner_texts()
    assert [cell for row in rows for cell in row] == cells
    assert len({len(row) for row in rows}) == 1
    open_tab(page, "相似度")
    page.click("#similarity-button")
    page.wait_for_selector(f"#similarity-matrix {PLOT}")
    name, content = saved_by(page, "#similarity-matrix .modebar-btn")
    assert name.endswith(".png")
    assert content.startswith(b"\x89PNG")
    assert page.locator("#similarity-matrix .modebar-btn:visible").count() == 1

    open_tab(page, "学习")
    page.locator("#learn-part input").click()
    page.locator("ul[role=listbox] [role=option]").nth(1).click()
    page.wait_for_selector(".lesson-picture")
    name, content = saved_by(page, ".saved:has(.lesson-picture) > .save >> nth=0")
    assert name.endswith(".png")
    assert content.startswith(b"\x89PNG")
    assert len(content) > 5_000


@pytest.mark.slow
def test_script_in_a_text_is_shown_and_never_run(open_page):
    page = open_page()
    for tab, field, button, shown in (
        ("Fill the mask", "#fill-text", "#fill-button", "#fill-results .bar"),
        ("Attention", "#attention-first", "#attention-button", f"#attention-map {PLOT}"),
        ("Tokens", "#tokens-first", "#tokens-button", "#tokens-results table"),
    ):
        open_tab(page, tab)
        typed(page, field, f"{EVIL} [MASK]")
        page.click(button)
        page.wait_for_selector(shown)
    assert "<" in page.locator("#tokens-results .pieces li").all_inner_texts()
    open_tab(page, "Search")
    typed(page, "#search-query", "evil script")
    page.click("#search-button")
    page.wait_for_selector("#search-results .hits li")
    assert any("<script>" in text for text in page.locator("#search-results .reading").all_inner_texts())
    open_tab(page, "Similarity")
    typed(page, "#similarity-text", f"{EVIL}\n{EVIL} bread")
    page.click("#similarity-button")
    page.wait_for_selector("#similarity-lines li")
    assert page.locator("#similarity-lines li").first.inner_text() == EVIL
    choose_model(page, "tag")
    open_tab(page, "My task")
    page.wait_for_selector("#task-first textarea:visible")
    typed(page, "#task-first", EVIL)
    page.click("#task-button")
    page.wait_for_selector("#task-results .reading")
    assert "<script>window.ran = 1</script>" in page.locator("#task-results .reading").evaluate(
        "one => { one.querySelectorAll('small').forEach(small => small.remove()); return one.textContent }"
    )
    assert page.evaluate("window.ran") is None


def test_bad_input_is_answered_in_place(open_page):
    page = open_page()
    for text, said in (
        ("", "write something first"),
        ("the man eats bread .", "Write [MASK]"),
        ("[MASK] " * 200, "the model reads 128"),
        ("a" * 30_000, "characters are too many"),
    ):
        typed(page, "#fill-text", text)
        page.click("#fill-button")
        page.wait_for_selector(f".notice.wrong:visible:has-text({said!r})")
    typed(page, "#fill-text", "the man [MASK] .")
    page.click("#fill-button")
    page.wait_for_selector("#fill-results .bar")
    assert page.locator(".notice:visible").count() == 0
    choose_model(page, "classify")
    page.wait_for_selector(".notice.wrong:visible:has-text('has no masked-LM head')")


def test_masks_are_filled_by_keyboard_alone(open_page):
    page = open_page()

    def focus_on(what):
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches({what!r})"):
                return
        pytest.fail(f"the keyboard does not reach {what}")

    focus_on("#fill-text textarea")
    page.keyboard.press("Control+A")
    page.keyboard.type("the man [MASK] bread .")
    page.keyboard.press("Enter")
    page.wait_for_selector("#fill-results .bar")
    focus_on("#fill-results button.bar")
    page.keyboard.press("Enter")
    page.wait_for_selector("#fill-results .done")
    assert "[MASK]" not in page.input_value("#fill-text textarea")


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_tab_fits_a_telephone_and_is_reached_by_keyboard(open_page, language):
    page = open_page(language, width=390)
    assert page.evaluate("document.documentElement.lang") == language
    # two in a row, all in sight
    places = [tab.bounding_box() for tab in page.locator("[role=tablist] button[role=tab]:visible").all()]
    assert len(places) == len(TABS[language].split("|"))
    assert [one["y"] for one in places[::2]] == [one["y"] for one in places[1::2]]
    assert len({one["y"] for one in places}) == len(places) // 2
    assert page.locator(".overflow-menu").count() == 0
    for name in TABS[language].split("|"):
        page.locator("[role=tablist] button[role=tab]", has_text=name).first.press("Enter")
        page.wait_for_selector(f"[role=tab][aria-selected=true]:has-text({name!r})")
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    assert page.locator(f"a[lang={'zh' if language == 'en' else 'en'}]").get_attribute("href") in ("/en/", "/zh/")


CUT_OFF = """shown => {
    shown.scrollIntoView({ inline: "end", block: "nearest" });
    const right = shown.getBoundingClientRect().right, width = document.documentElement.clientWidth;
    const boxes = [];
    for (let box = shown.parentElement; box; box = box.parentElement)
        if (getComputedStyle(box).overflowX !== "visible") boxes.push(box.getBoundingClientRect().right);
    return Math.round(right - Math.min(width, ...boxes));
}"""
"""How far something's right end is out of sight when everything is scrolled to it."""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_table_or_figure_is_cut_off_on_a_telephone(open_page, folders, scheme):
    page = open_page(width=390, scheme=scheme)
    assert page.evaluate("document.body.classList.contains('dark')") == (scheme == "dark")
    text = "the woman reads a book in the market and the man eats bread ."
    for tab, fields, button, shown in (
        ("Attention", ("#attention-first", "#attention-second"), "#attention-button", "#attention-heads"),
        ("Tokens", ("#tokens-first",), "#tokens-button", "#tokens-results table"),
        ("Similarity", (), "#similarity-button", "#similarity-matrix"),
        ("Topics", (), "#topics-button", "#topics-map"),
        ("Compare", (), "#compare-fill", "#compare-filled table"),
        ("Training", (), None, "#training-plot"),
        ("Learn", (), None, "#lesson-why table"),
    ):
        open_tab(page, tab)
        if tab == "Compare":
            choose_other(page, str(folders["base"]))
        for field in fields:
            typed(page, field, text)
        if button:
            page.click(button)
        page.wait_for_selector(shown if "table" in shown else f"{shown} {PLOT}")
        for summary in page.locator("summary:visible").all():
            summary.click()
        found = page.locator(f".sideways table:visible, {PLOT}:visible, .lesson-picture:visible").all()
        assert found
        for one in found:
            assert one.evaluate(CUT_OFF) <= 1, f"{tab}: {one.evaluate('one => one.outerHTML.slice(0, 300)')}"
        assert page.evaluate("document.scrollingElement.scrollWidth") <= 390
    open_tab(page, "Attention")
    fits = "table => table.offsetWidth <= table.parentElement.clientWidth"
    assert page.locator("#attention-told .sideways table").first.evaluate(fits)


@pytest.mark.slow
def test_the_first_view_waits_for_nothing_that_is_not_seen(open_page, record_property):
    """Prints how long it took, which depends on the machine; what makes it long is counted."""
    asked = []
    page = open_page(asked=asked)
    paint = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
    took = {"first contentful paint": page.evaluate(paint), "first tab usable": page.evaluate("performance.now()")}
    for name, milliseconds in took.items():
        record_property(name, milliseconds)
        print(f"{name}: {milliseconds:.0f} ms, {len(asked)} requests")
    assert not [url for url in asked if "Plotly" in url], "the code of figures, 4.6 MB, without a figure"
    assert len(asked) < 90
    config = page.request.get(page.url + "config").json()
    assert len(config["components"]) < 200
    for hidden in ("#attention-button", "#training-plot", "#learn-part"):
        assert page.locator(hidden).count() == 0
