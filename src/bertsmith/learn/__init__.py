"""The story of the paper and its families in seven lessons, worked by hand: texts, computations, quizzes.

    lessons("zh")                        the seven parts in one language
    compute("two_tokens", x=[[1, 0], [0, 1]])     a computation, step by step, with one's own inputs
    section.fill(compute(section.computation))   a section's text with its numbers
    grade(question, choice)              whether a choice is right, and why
    Deck(path).due(), .answer(card, "good")      spaced repetition, kept in a local file

Everything returns data; the terminal (`terminal`) and the browser render the same objects.
"""

from bertsmith.learn.computations import COMPUTATIONS, compute
from bertsmith.learn.deck import ANSWERS, Deck, Review, default_path
from bertsmith.learn.lesson import (
    LANGUAGES,
    Card,
    CodeLink,
    Computation,
    Grade,
    Input,
    Language,
    Lesson,
    Question,
    Section,
    Step,
    grade,
)
from bertsmith.learn.story import environment_language, find_lesson, lessons
from bertsmith.learn.study import Study

__all__ = [
    "ANSWERS",
    "COMPUTATIONS",
    "LANGUAGES",
    "Card",
    "CodeLink",
    "Computation",
    "Deck",
    "Grade",
    "Input",
    "Language",
    "Lesson",
    "Question",
    "Review",
    "Section",
    "Step",
    "Study",
    "compute",
    "default_path",
    "environment_language",
    "find_lesson",
    "grade",
    "lessons",
]
