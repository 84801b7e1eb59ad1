"""The lessons are complete in both languages, their numbers come from the code, and their links lead somewhere."""

import re
from pathlib import Path

import pytest

from bertsmith.errors import InputError
from bertsmith_school.learn import COMPUTATIONS, LANGUAGES, compute, environment_language, find_lesson, grade, lessons
from bertsmith_school.learn.lesson import read_yaml
from bertsmith_school.learn.story import PartFile, part_files, read_part

ROOT = Path(__file__).parents[3]
CHINESE = re.compile(r"[\u4e00-\u9fff]")


PARTS = list(zip(part_files("en"), part_files("zh"), strict=True))
BLOCK = re.compile(r"\n\n+")


def texts_of(file):
    """The paragraphs, choices and headings of a part; links and names of computations are code."""
    prose = re.sub(r"```compute\n\w+\n```|\[`[\w.]+`\]\([^)]*\)|^### [\w-]+ \| ", "", file.text, flags=re.MULTILINE)
    return BLOCK.split(prose)


def test_there_are_seven_parts_with_all_that_belongs_to_them():
    parts = "why architecture pre-training fine-tuning experiments details families"
    assert [english.id for english, _ in PARTS] == parts.split()
    for lesson in lessons():
        assert lesson.computations
        assert 3 <= len(lesson.questions) <= 4
        assert 4 <= len(lesson.cards) <= 6
        assert 2 <= len(lesson.exercises) <= 3
        assert lesson.code_links


DRAWN_THROUGHOUT = {"why", "experiments", "details", "families"}
"""Parts in which every section has a picture."""


def test_every_part_has_an_idea_with_a_picture_and_these_parts_one_for_every_idea():
    for lesson in lessons():
        drawn = {id for id in lesson.computations if COMPUTATIONS[id].draw}
        assert lesson.shown in drawn
        assert 40 < len(lesson.idea) < 200
        if lesson.id in DRAWN_THROUGHOUT:
            assert [section.computation in drawn for section in lesson.sections] == [True] * len(lesson.sections)


def test_every_computation_is_in_a_lesson():
    used = [name for lesson in lessons() for name in lesson.computations]
    assert sorted(used) == sorted(COMPUTATIONS)


@pytest.mark.parametrize("files", PARTS, ids=lambda files: files[0].id)
def test_no_number_is_typed(files):
    """Digits may stand in section numbers of the paper and in F1 alone; all else is a placeholder."""
    for file in files:
        for text in texts_of(file):
            bare = re.sub(r"\{[^}]*\}", "", text)
            bare = re.sub(r"§\d(\.\d)?|\b[A-C]\.\d|\bF1\b|(?<=的 )F1", "", bare)
            assert not re.search(r"\d", bare), bare


@pytest.mark.parametrize("files", PARTS, ids=lambda files: files[0].id)
def test_both_languages_say_it_with_the_same_numbers(files):
    english_texts, chinese_texts = map(texts_of, files)
    unit = re.compile(r"(hundred_)?millions:,?\.[01]f")
    for english, chinese in zip(english_texts, chinese_texts, strict=True):
        assert not CHINESE.search(english), english
        first, second = (set(re.findall(r"\{[^}]*\}", text)) for text in (english, chinese))
        # Chinese counts in hundreds of millions what English counts in millions
        assert {unit.sub("millions", name) for name in second} == {unit.sub("millions", name) for name in first}, (
            english
        )
    for lesson in lessons("zh"):
        assert all(CHINESE.search(section.template) for section in lesson.sections)


@pytest.mark.parametrize("files", PARTS, ids=lambda files: files[0].id)
def test_both_languages_have_the_same_structure(files):
    english, chinese = (read_part(file, language) for file, language in zip(files, LANGUAGES, strict=True))
    assert [section.computation for section in english.sections] == [s.computation for s in chinese.sections]
    assert [(q.id, q.answer, len(q.choices)) for q in english.questions] == [
        (q.id, q.answer, len(q.choices)) for q in chinese.questions
    ]
    assert [card.id for card in english.cards] == [card.id for card in chinese.cards]
    assert [link.name for link in english.code_links] == [link.name for link in chinese.code_links]


GOOD = """# Title

> The idea. | masking

One.

```compute
masking
```

Two.

## Questions

### Which?

- [ ] This one.
- [x] That one.

Because.

## Exercises

### left | How many of {e.tokens}?

{e.answer}.

## Cards

### one | Front?

Back.

## Code

- the loss: [`bertsmith.objectives.pretraining.MaskedLMLoss`](docs/en/explanation/paper-map.md#31-pre-training)
"""


def test_a_part_in_its_form():
    lesson = read_part(PartFile("7-why.en.md", GOOD), "en")
    assert (lesson.id, lesson.number, lesson.title) == ("why", 7, "Title")
    assert (lesson.idea, lesson.shown) == ("The idea.", "masking")
    assert [(s.template, s.computation) for s in lesson.sections] == [("One.", "masking"), ("Two.", None)]
    assert lesson.questions[0].answer == 1
    assert lesson.cards[0].id == "why/one"


@pytest.mark.parametrize(
    ("there", "instead", "message"),
    [
        ("## Cards\n", "## Others\n", "must be a title, .*, and ## Questions, ## Exercises, ## Cards, ## Code"),
        ("# Title\n", "Title\n", "must be a title"),
        ("> The idea. | masking\n", "", "must be a title, > IDEA \\| COMPUTATION"),
        ("- [x] That", "- [ ] That", "question 'Which\\?' must have choices"),
        ("- [ ] This", "- [x] This", "question 'Which\\?' must have choices"),
        ("Because.", "", "an explanation"),
        ("left | How", "How", "'How .*' must be headed by ### KEY"),
        ("Back.", "", "with text below"),
        ("(docs/en/explanation/paper-map.md#31-pre-training)", "", "is no link of the form"),
    ],
)
def test_a_part_of_another_form(there, instead, message):
    assert there in GOOD
    with pytest.raises(InputError, match=f"^7-why.en.md: .*{message}"):
        read_part(PartFile("7-why.en.md", GOOD.replace(there, instead)), "en")


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_text_is_filled(language):
    for lesson in lessons(language):
        for section in lesson.sections:
            found = compute(section.computation, language=language) if section.computation else None
            text = section.fill(found)
            assert len(text) > 40
            assert not re.search(r"[{}]", text), text
        for question in lesson.questions:
            assert not re.search(r"[{}]", question.prompt + "".join(question.choices) + question.explanation)
            assert len(set(question.choices)) == len(question.choices)
            assert 0 <= question.answer < len(question.choices)
        assert not any(re.search(r"[{}]", card.front + card.back) for card in lesson.cards)


def test_a_text_speaks_of_the_inputs_it_was_computed_with():
    section = next(s for s in lessons()[1].sections if s.computation == "parameters")
    assert "335,141,888" in section.fill(compute("parameters", size="large"))
    with pytest.raises(ValueError, match="speaks of parameters"):
        section.fill(compute("schedule"))
    with pytest.raises(ValueError, match="speaks of parameters"):
        section.fill()


def test_chinese_counts_parameters_in_hundreds_of_millions():
    chinese = lessons("zh")
    (card,) = (card for card in chinese[1].cards if card.id == "architecture/base")
    assert "共约 1.1 亿个参数" in card.back
    assert "（3.4 亿对 1.1 亿）" in chinese[4].sections[1].fill(compute("larger_networks"))
    english = lessons("en")
    assert "335 against 109 million" in " ".join(english[4].sections[1].fill(compute("larger_networks")).split())


def test_the_right_answer_is_not_always_in_one_place():
    for lesson in lessons():
        assert len({question.answer for question in lesson.questions}) > 1
    answers = [question.answer for lesson in lessons() for question in lesson.questions]
    assert all(answers.count(place) >= 4 for place in range(3))


def test_no_two_cards_have_the_same_id():
    ids = [card.id for lesson in lessons() for card in lesson.cards]
    assert len(set(ids)) == len(ids)


def words_of(texts, *path):
    """Every text below some words: where it stands, its placeholders, and how many parts it has."""
    if isinstance(texts, str):
        yield path, sorted(re.findall(r"\{[^}]*\}", texts)), texts.count("|")
    else:
        for name, below in texts.items() if isinstance(texts, dict) else enumerate(texts):
            yield from words_of(below, *path, name)


def test_the_words_of_computations_have_the_same_parts_in_both_languages():
    english, chinese = (read_yaml(f"computations.{language}.yaml") for language in LANGUAGES)
    assert list(words_of(english)) == list(words_of(chinese))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_link_is_on_the_paper_map_and_in_the_code(language):
    for lesson in lessons(language):
        for link in lesson.code_links:
            page, _, anchor = link.map_page.partition("#")
            text = (ROOT / page).read_text(encoding="utf-8")
            headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors
            # the name stands in the chapter that the link leads to
            heading = next(h for h in headings if re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") == anchor)
            chapter = text.split(f"# {heading}\n")[1].split("\n## ")[0]
            assert f"`{link.name}`" in chapter, (link.name, heading)
            source = ROOT / "src" / link.file
            assert source.is_file()
            assert link.name.split(".")[-1] in source.read_text(encoding="utf-8")


def test_grading():
    question = lessons()[0].questions[0]
    right = grade(question, question.answer)
    assert right.correct
    assert right.answer == question.choices[question.answer]
    assert right.explanation == question.explanation
    assert not grade(question, (question.answer + 1) % 3).correct
    for impossible in (-1, 3, True, "a", None, 1.0):
        with pytest.raises(InputError, match="choices 0 to 2"):
            grade(question, impossible)


@pytest.mark.parametrize("name", ["3", "pre-training", " Pre-Training "])
def test_a_lesson_by_number_or_name(name):
    assert find_lesson(name).number == 3


@pytest.mark.parametrize("name", ["0", "8", "", "why not", "\x00", "1.0", "x" * 9999])
def test_a_lesson_that_is_not_there(name):
    with pytest.raises(InputError, match="there is no part"):
        find_lesson(name)


def test_a_language_that_is_not_there():
    with pytest.raises(InputError, match="use en or zh"):
        lessons("fr")


@pytest.mark.parametrize(
    ("environment", "language"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh_CN.UTF-8", "LC_ALL": "C"}, "en"),
        ({"LANG": "en_US.UTF-8", "LC_MESSAGES": "zh_TW"}, "zh"),
        ({"LANG": "zh_CN", "LC_ALL": "", "LC_MESSAGES": ""}, "zh"),
        ({"LANG": "de_DE"}, "en"),
    ],
)
def test_the_language_of_the_environment(environment, language):
    assert environment_language(environment) == language
