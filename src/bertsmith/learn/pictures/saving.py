"""Pictures as files: `PART-COMPUTATION.LANGUAGE.svg`, such as `2-architecture-looking_up.en.svg`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from bertsmith.errors import InputError
from bertsmith.files import make_folder, write_text
from bertsmith.learn.computations import COMPUTATIONS, compute, picture
from bertsmith.learn.lesson import Computation, Language, Lesson
from bertsmith.learn.study import Study


def cache_folder() -> Path:
    """Where lessons read at a terminal put their pictures: `bertsmith/pictures` in the XDG cache home."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # XDG 规定：相对路径无效，应当忽略
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    return base / "bertsmith" / "pictures"


def save_picture(folder: Path, lesson: Lesson, found: Computation, language: Language) -> Path | None:
    """Writes the picture of what a computation found.

    Returns:
        The file; None for a computation that has no picture.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    drawn = picture(found, language)
    if drawn is None:
        return None
    path = make_folder(folder) / f"{lesson.number}-{lesson.id}-{found.id}.{language}.svg"
    write_text(path, drawn)
    return path


def save_pictures(
    folder: Path, story: Iterable[Lesson], language: Language, study: Study | None = None
) -> tuple[list[Path], list[str]]:
    """Writes the pictures of lessons.

    Args:
        folder: made when missing.
        story: the lessons.
        language: of the words in the pictures.
        study: the model to compute with; None for the village model.

    Returns:
        The files; and for each picture that the model cannot give, a line that says why.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    saved, failed = [], []
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
    return saved, failed
