"""Lessons as files: pictures as SVG, Jupyter notebooks, and the flash cards for Anki.

Notebooks (nbformat 4.5, plain JSON) hold the same texts, each computation as a cell whose inputs can be changed, and
its equation in PyTorch as a cell to write anew. The cards are the text that Anki's File > Import reads; its header
lines name deck, note type, and the columns of identity and tags, so that a newer file changes the cards that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bertsmith.errors import InputError
from bertsmith.files import make_folder, write_text
from bertsmith.tinyworld import trained_model
from bertsmith_school.learn.computations import COMPUTATIONS, compute, picture
from bertsmith_school.learn.deck import xdg_folder
from bertsmith_school.learn.equations import EQUATIONS, IMPORTS
from bertsmith_school.learn.lesson import Computation, Exercise, Language, Lesson, Question, Section, Text, as_html
from bertsmith_school.learn.study import Study


def cache_folder() -> Path:
    """Where lessons read at a terminal put their pictures: `bertsmith/pictures` in the XDG cache home."""
    return xdg_folder("XDG_CACHE_HOME", ".cache") / "pictures"


def save_picture(folder: Path, lesson: Lesson, found: Computation, language: Language) -> Path | None:
    """Writes the picture of what a computation found, and returns the file; None where there is no picture."""
    drawn = picture(found, language)
    if drawn is None:
        return None
    path = make_folder(folder) / f"{lesson.number}-{lesson.id}-{found.id}.{language}.svg"
    write_text(path, drawn)
    return path


def save_pictures(
    folder: Path, story: Iterable[Lesson], language: Language, study: Study | None = None
) -> list[Path | str]:
    """Writes the pictures of lessons; returns the files, then for what the model cannot give a line that says why."""
    saved: list[Path | str] = []
    failed: list[str] = []
    for lesson in story:
        for id in lesson.computations:
            if COMPUTATIONS[id].draw is None:
                continue
            try:
                path = save_picture(folder, lesson, compute(id, language=language, study=study), language)
            except InputError as error:
                failed.append(f"{id}: {' '.join(str(error).split())}")
                continue
            assert path is not None
            saved.append(path)
    return saved + failed


_FORMAT = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    },
}


def write_notebooks(folder: Path, story: list[Lesson], language: Language, study: Study | None = None) -> list[Path]:
    """Writes a notebook for each lesson, `NUMBER-ID.LANGUAGE.ipynb`; files of these names are replaced."""
    study, paths = study or Study.village(), []
    make_folder(folder)
    for lesson in story:
        path = folder / f"{lesson.number}-{lesson.id}.{language}.ipynb"
        write_text(path, json.dumps(notebook(lesson, language, study), indent=1, ensure_ascii=False) + "\n")
        paths.append(path)
    return paths


def notebook(lesson: Lesson, language: Language, study: Study) -> dict[str, Any]:
    """Returns one lesson as nbformat has it."""
    # 笔记本在自己的文件夹里打开：相对路径要写成绝对的
    folder = Path(study.folder).resolve() if study.folder and Path(study.folder).is_dir() else study.folder
    model = "Study.village()" if study.folder in (None, trained_model()) else f"Study.load({str(folder)!r})"
    cells = [
        _text(f"# {lesson.number} · {lesson.title}"),
        _code(
            "from IPython.display import SVG, display\n"
            "from bertsmith_school.learn import Study, check_answer, check_equation, compute, find_lesson, picture\n\n"
            f'language = "{language}"\n'
            f'lesson = find_lesson("{lesson.id}", language)\n'
            f"study = {model}"
        ),
    ]
    for section in lesson.sections:
        cells += _section(section, language, study)
    cells.append(_text(f"## {Text('Questions', '问题')(language)}"))
    cells += [_question(question, language) for question in lesson.questions]
    cells.append(_text(f"## {Text('Exercises', '练习')(language)}"))
    for number, exercise in enumerate(lesson.exercises):
        cells += _exercise(exercise, number, language)
    for number, cell in enumerate(cells):
        cell["id"] = f"{lesson.id}-{number}"
    return {**_FORMAT, "cells": cells}


def _section(section: Section, language: Language, study: Study) -> list[dict[str, Any]]:
    id = section.computation
    if id is None:
        return [_text(section.fill())]
    recipe = COMPUTATIONS[id]
    try:
        found = compute(id, language=language, study=study)
    except InputError as error:
        # 这个模型算不了：原因写在原处，笔记本的其余部分照常可以运行
        said = Text("Not computed with this model", "这个模型算不出来")(language)
        return [_text(f"**{recipe.title(language)}**: {said}: {' '.join(str(error).split())}")]
    given = {each.name: each.default for each in recipe.inputs}
    if recipe.needs_study:
        given |= recipe.sentences(study.tokenizer)
    words = [f'"{id}"', "language=language", *(["study=study"] if recipe.needs_study else [])]
    words += [f"{name}={value!r}" for name, value in given.items()]
    drawn = "display(SVG(picture(found, language)))\n" if recipe.draw else ""
    inner = "".join(f"    {word},\n" for word in words)
    cells = [_text(section.fill(found)), _code(f"found = compute(\n{inner})\n{drawn}found")]
    return cells + ([_equation(id, found.code, language)] if found.code else [])


def _equation(id: str, code: str, language: Language) -> dict[str, Any]:
    """Returns a cell with an equation that a reader may write anew, and its comparison with bertsmith's own code."""
    invited = Text("take the body away, write it yourself, and run the cell", "删掉函数体，自己写一遍，再运行这一格")
    check = f'print(check_equation("{id}", {EQUATIONS[id].__name__}))'
    return _code(f"{IMPORTS}\n# {invited(language)}\n{code}\n\n\n{check}")


def _question(question: Question, language: Language) -> dict[str, Any]:
    choices = "\n".join(f"- {letter}) {choice}" for letter, choice in zip("abcdef", question.choices, strict=False))
    answer = f"{'abcdef'[question.answer]}) {question.choices[question.answer]}"
    shown = Text("Answer", "答案")(language)
    return _text(
        f"**{question.prompt}**\n\n{choices}\n\n<details><summary>{shown}</summary>\n\n{answer}\n\n"
        f"{question.explanation}\n\n</details>"
    )


def _exercise(exercise: Exercise, number: int, language: Language) -> list[dict[str, Any]]:
    hint = Text("your number here", "在这里写你的数")(language)
    code = (
        f"answer = None  # {hint}\nif answer is not None:\n    print(check_answer(lesson.exercises[{number}], answer))"
    )
    return [_text(f"**{number + 1}.** {exercise.prompt}"), _code(code)]


def _text(source: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "id": "", "metadata": {}, "source": source.splitlines(keepends=True)}


def _code(source: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    return {"cell_type": "code", "id": "", "metadata": {}, "execution_count": None, "outputs": [], "source": lines}


def write_anki(path: Path, story: Iterable[Lesson], language: Language) -> int:
    """Writes the cards of lessons, and returns how many there are."""
    rows = [
        (f"bertsmith/{card.id}/{language}", _field(card.front), _field(card.back), f"bertsmith {lesson.id}")
        for lesson in story
        for card in lesson.cards
    ]
    head = f"#separator:tab\n#html:true\n#notetype:Basic\n#deck:bertsmith {language}\n#guid column:1\n#tags column:4\n"
    write_text(path, head + "".join("\t".join(row) + "\n" for row in rows))
    return len(rows)


def _field(text: str) -> str:
    # 制表符和换行在这个格式里有别的意思：换成空格与 <br>
    return as_html(text).replace("\t", " ").replace("\n", "<br>")
