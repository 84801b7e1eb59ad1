"""`bertsmith topics`: groups of passages, their words, dates and page, on folders as people have them."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
from scipy.sparse import csc_array

import bertsmith
from bertsmith.cli import main
from bertsmith.errors import CheckpointError, ConfigError, InputError, RunFolderError
from bertsmith.journeys import topics as module
from bertsmith.retrieval.stored import IndexedDocument

pytestmark = pytest.mark.filterwarnings("ignore:.*never trained:UserWarning")

SUBJECTS = {
    "bread": ["The baker bakes bread in the oven.", "Flour and yeast make the bread rise.", "The oven bakes dough."],
    "ship": ["The captain steers the ship at sea.", "Sailors climb the mast of the Ship.", "A storm hits the harbour."],
}


@pytest.fixture
def letters(tmp_path):
    """Twelve letters on each subject, the second of a later year."""
    folder = tmp_path / "letters"
    folder.mkdir()
    for year, (subject, sentences) in zip((2020, 2023), SUBJECTS.items(), strict=True):
        for number in range(12):
            text = f"{sentences[number % 3]} It was on day {number} of the {subject}."
            (folder / f"{subject}{number}.md").write_text(f"---\ndate: {year}-05-{number + 1:02}\n---\n{text}\n")
    return folder


@pytest.fixture
def run(capsys):
    def call(*words):
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        told = capsys.readouterr()
        return ended.value.code, told.out, told.err

    return call


def test_a_folder_of_two_subjects_has_two_topics_with_their_words_and_years(letters, minilm_folder, tmp_path):
    result = bertsmith.topics(letters, minilm_folder, tmp_path / "out", count=2)
    found = result.details
    assert [topic.passages for topic in found.topics] == [12, 12]
    words = {subject: set() for subject in SUBJECTS}
    for topic in found.topics:
        subject = re.match("[a-z]+", topic.examples[0].file)[0]
        words[subject] = set(topic.words)
        assert {hit.file.startswith(subject) for hit in topic.examples} == {True}
        assert topic.over_time == {
            "2020": 12 * (subject == "bread"),
            "2021": 0,
            "2022": 0,
            "2023": 12 * (subject == "ship"),
        }
    assert {"bread", "oven"} <= words["bread"]
    assert {"ship", "captain"} <= words["ship"]
    # 两边一样常见的词不是谁的词
    assert not {"the", "day", "was"} & (words["bread"] | words["ship"])
    told = json.loads((tmp_path / "out/topics.json").read_text(encoding="utf-8"))
    assert [topic["passages"] for topic in told["topics"]] == [12, 12]
    assert {one["topic"] for one in told["passages"] if one["place"].startswith("ship")} == {
        topic.number for topic in found.topics if "ship" in topic.words
    }
    page = result.report.read_text(encoding="utf-8")
    assert found.verdict in page
    assert f"bertsmith search {tmp_path / 'out/index'}" in page
    assert page.count("<img") == 2


def test_a_map_of_ten_thousand_passages_is_a_small_picture(monkeypatch):
    """Points as elements of the page would be megabytes, and slow to show."""
    points = np.random.default_rng(0).standard_normal((10_000, 2))
    monkeypatch.setattr(module, "map_passages", lambda _: (np.arange(len(points)), points))
    topics = [module.Topic(number, {"bread": 1.0}, 5_000, 0.5, [], {}) for number in (1, 2)]
    placed = [("a.txt", 1 + row % 2) for row in range(len(points))]
    picture = module._map(module.Topics(topics, 0.1, placed, 1, 0), None)
    assert len(picture.svg) < 1_000_000
    # 文字仍是矢量
    assert b"<use" in base64.b64decode(picture.svg)


def test_the_number_of_topics_is_that_with_the_most_coherent_words():
    holding = np.repeat(np.eye(3), 20, axis=0)
    vectors = (holding + 0.01 * np.random.default_rng(0).standard_normal(holding.shape)).astype(np.float32)
    groups, coherence = module._grouped(vectors, csc_array(np.repeat(holding, 2, axis=1)), 0)
    assert np.bincount(groups).tolist() == [20, 20, 20]
    assert coherence == pytest.approx(1.0)


def test_words_are_weighed_by_class_based_tf_idf():
    present = csc_array(np.array([[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 1, 1]], dtype=np.float32))
    weights = module._class_tf_idf(present, np.array([0, 0, 1, 1]), np.array([2, 2]))
    # 手算：每类平均 (3 + 4) / 2 个词；第二个词在两类里差不多常见
    expected = [[2 / 3 * np.log(1 + 3.5 / 2), 0, 0], [0, 0, 2 / 4 * np.log(1 + 3.5 / 2)]]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("a.md", {"date": "2024-05-31T10:00:00Z"}, "2024-05-31"),
        ("a.eml", {"date": "Fri, 31 May 2024 10:00:00 +0200"}, "2024-05-31"),
        ("notes/2024-05-31 meeting.txt", {}, "2024-05-31"),
        ("1789-Washington.txt", {}, "1789"),
        ("sotu_1946.txt", {}, "1946"),
        ("a.md", {"date": "soon"}, ""),
        ("a.md", {"date": "2024-13-41"}, ""),
        ("room1946b.txt", {"date": ()}, ""),
    ],
)
def test_dates_are_found_as_people_write_them(name, metadata, expected):
    assert module.date_of(IndexedDocument(name, "", 1, metadata)) == expected


@pytest.mark.parametrize(
    ("dates", "periods"),
    [
        (["2024-05-30", "", "2024-06-01"], ["2024-05-30", "2024-05-31", "2024-06-01"]),
        (["2023-12-30", "2024-02-01"], ["2023-12", "2024-01", "2024-02"]),
        (["2024-12-30", "2025"], ["2024", "2025"]),
        (["1789", "1801"], [str(year) for year in range(1789, 1802)]),
        (["1789", "1846"], ["1780s", "1790s", "1800s", "1810s", "1820s", "1830s", "1840s"]),
        (["", ""], []),
    ],
)
def test_periods_are_as_fine_as_the_dates_and_the_page_allow(dates, periods):
    found, numbers = module._periods(dates)
    assert found == periods
    assert [number >= 0 for number in numbers] == [bool(text) for text in dates]


@pytest.mark.parametrize("texts", [["The man eats bread."], ["The man eats bread."] * 9, ["?", "!"]])
def test_one_text_or_the_same_many_times_is_one_topic(texts, tiny_model, tmp_path, run):
    (tmp_path / "few").mkdir()
    for number, text in enumerate(texts):
        (tmp_path / f"few/{number}.txt").write_text(text)
    (tmp_path / "few/blank.md").write_text("\n")
    (tmp_path / "few/table.csv").write_text("a,b\n")
    words = ("topics", tmp_path / "few", "--model", tiny_model, "--out", tmp_path / "out", "--overlap", 3)
    code, out, err = run(*words)
    assert (code, out.startswith("One topic: ")) == (0, True)
    assert f"{tmp_path / 'few'}: {len(texts)} .txt, 1 .md; 0.0 MB; utf-8; documents: a file is one\n" in err
    page = (tmp_path / "out/report.html").read_text(encoding="utf-8")
    assert "<img" not in page
    first = page.split("<h2>")[1]
    assert first.startswith("What was read</h2>")
    assert f"{tmp_path / 'few'}: {len(texts)} .txt, 1 .md; 0.0 MB; utf-8; documents: a file is one" in first
    assert "no text found in 1 file(s): blank.md" in first
    assert "left out 1 file(s): 1 .csv (tables: write their texts to .txt files)" in first
    code, _, err = run(*words, "--topics", 3)
    assert (code, "ask for fewer" in err) == (2, True)


def test_an_index_has_topics_without_a_model_and_without_dates(letters, tiny_model, tmp_path):
    for path in letters.iterdir():
        path.write_text(path.read_text().partition("---\n")[2].partition("---\n")[2])
    bertsmith.index(letters, tiny_model, tmp_path / "index", overlap=3)
    found = bertsmith.topics(tmp_path / "index", out=tmp_path / "out")
    assert (found.details.dated, found.details.topics[0].over_time) == (0, {})
    assert not (tmp_path / "out/index").exists()
    with pytest.raises(ConfigError, match="is an index, which has its model"):
        bertsmith.topics(tmp_path / "index", tiny_model, tmp_path / "out")


def test_what_cannot_be_grouped_is_refused(letters, tiny_model, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError):
        bertsmith.topics(tmp_path / "empty", tiny_model, tmp_path / "out")
    with pytest.raises(ConfigError, match="--model"):
        bertsmith.topics(letters, out=tmp_path / "out")
    with pytest.raises(RunFolderError, match="lies in"):
        bertsmith.topics(letters, tiny_model, letters / "out")
    shutil.copytree(tiny_model, tmp_path / "broken")
    (tmp_path / "broken/config.json").unlink()
    with pytest.raises(CheckpointError):
        bertsmith.topics(letters, tmp_path / "broken", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_passages_than_are_fitted_all_get_a_topic(monkeypatch):
    monkeypatch.setattr(module, "_FITTED", 40)
    holding = np.tile(np.eye(2, dtype=np.float32), (100, 1))
    vectors = holding + 0.01 * np.random.default_rng(0).standard_normal(holding.shape).astype(np.float32)
    groups, _ = module._grouped(vectors, csc_array(holding), 2)
    assert (groups.reshape(-1, 2) == groups[:2]).all()
    assert groups[0] != groups[1]
