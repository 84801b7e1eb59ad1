"""A plan measures text and machine, keeps nothing, and promises what the law says."""

import gzip
from dataclasses import replace

import pytest

from bertsmith import WordPieceTokenizer
from bertsmith.cli import main
from bertsmith.data.corpus.build import build_corpus
from bertsmith.data.corpus.options import CorpusOptions
from bertsmith.data.corpus.shards import TRAIN
from bertsmith.errors import BertsmithError, ConfigError
from bertsmith.quickstart import calls, planning
from bertsmith.quickstart.options import PlanOptions
from bertsmith.quickstart.planning import Forecast, Plan, plan
from bertsmith.tinyworld import draw_stories, render
from bertsmith.train.forecast import LAWS

SIZES = ("1/64", "2/64")


@pytest.fixture
def text(tmp_path):
    """Four files, one of them packed."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(4):
        stories = "\n\n".join(" ".join(render(s) for s in story.sentences) for story in draw_stories(number, 150))
        (folder / f"{number}.txt").write_text(stories, encoding="utf-8")
    packed = folder / "3.txt"
    (folder / "3.txt.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    return folder


def test_what_a_time_would_bring(text):
    found = plan([str(text)], PlanOptions(minutes=0.5, sizes=SIZES, vocab_size=400))
    assert [forecast.size for forecast in found.forecasts] == list(SIZES)
    for forecast in found.forecasts:
        assert forecast.steps == int(30 / forecast.seconds_per_step)
        assert forecast.passes == pytest.approx(forecast.tokens / found.text_tokens)
        law = LAWS["modernbert"]
        expected = law.loss(forecast.parameters, forecast.tokens, found.unigram_entropy, text_tokens=found.text_tokens)
        assert forecast.loss == expected
        assert forecast.loss_of_twice_the_time <= forecast.loss
        assert forecast.loss_of_twice_the_text <= forecast.loss
    assert found.best in found.forecasts


def test_a_size_too_small_for_the_time_is_not_the_best():
    small, large = (
        Forecast(size, parameters, 16, 0.1, 100, 3e6, 1.0, loss, loss, loss)
        for size, parameters, loss in (("1/64", 100_000, 4.0), ("tiny", 300_000, 4.2))
    )
    found = Plan(1, 1.0, 400, 6.0, 0.1, beyond=False, forecasts=[small, large])
    assert found.best is large
    assert replace(found, forecasts=[small]).best is small


def test_a_part_of_the_text_stands_for_all_of_it(text, tmp_path, monkeypatch):
    files = sorted(text.glob("*.txt"))
    (text / "3.txt.gz").unlink()
    tokenizer = WordPieceTokenizer.train((file.read_text() for file in files), vocab_size=400)
    options = CorpusOptions(documents="blank-line", heldout_share=0.04, keep_duplicates=True)
    whole = build_corpus(files, tokenizer, tmp_path / "corpus", options).counts[TRAIN].tokens
    monkeypatch.setattr(planning, "SAMPLED_BYTES", files[0].stat().st_size * 3 // 2)
    found = plan([str(text)], PlanOptions(minutes=0.5, sizes=SIZES[:1], vocab_size=400, documents="blank-line"))
    assert found.text_bytes == sum(file.stat().st_size for file in files)
    assert found.text_tokens == pytest.approx(whole, rel=0.1)


def test_the_command_names_the_size_and_the_next_command(text, capsys, monkeypatch):
    before = sorted(text.iterdir())
    with pytest.raises(SystemExit) as ended:
        main(["plan", "--text", str(text), "--minutes", "0.5", "--size", "1/64", "--vocab-size", "400"])
    assert not ended.value.code
    out = capsys.readouterr().out
    assert "1/64 learns most in 0.5 minutes" in out
    assert f"bertsmith quickstart {text} --vocab-size 400 --family modernbert --size 1/64 --minutes 0.5" in out
    assert sorted(text.iterdir()) == before


def test_the_next_command_reads_the_text_as_the_plan_did(text, capsys, monkeypatch):
    small, large = (
        Forecast(size, parameters, 16, 0.1, 100, 3e6, 1.0, loss, loss, loss)
        for size, parameters, loss in (("1/64", 100_000, 4.0), ("tiny", 300_000, 4.2))
    )
    found = Plan(1, 1.0, 400, 6.0, 0.1, beyond=False, forecasts=[small, large])
    monkeypatch.setattr(calls, "plan", lambda *_, **__: found)
    with pytest.raises(SystemExit):
        main(["plan", "--text", "my texts", "--documents", "blank-line", "--encoding", "gbk", "--vocab-size", "400"])
    out = capsys.readouterr().out
    assert "1/64 is no choice: it would read 30 tokens a parameter, and over 20 the law promises too much" in out
    assert "bertsmith quickstart 'my texts' --documents blank-line --encoding gbk --vocab-size 400 --family" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"family": "distilbert"}, "no law of distilbert is known"),
        ({"family": "bret"}, "no law of bret is known"),
        ({"sizes": ("huge",)}, "huge"),
        (
            {"sizes": ("2/64",), "minutes": 0.0005},
            r"2/64 takes \d+ of at least 20 steps on this machine; give .* or a smaller size",
        ),
    ],
)
def test_a_plan_that_cannot_be_made(text, options, said):
    with pytest.raises(ConfigError, match=said):
        plan([str(text)], PlanOptions(**{"minutes": 0.5, "vocab_size": 400, **options}))


@pytest.mark.parametrize("content", ["", "one line\n"])
def test_too_little_text(tmp_path, content):
    (tmp_path / "a.txt").write_text(content)
    with pytest.raises(BertsmithError, match=r"a\.txt|document"):
        plan([str(tmp_path / "a.txt")], PlanOptions(minutes=0.5, sizes=SIZES[:1]))
