"""The story of the paper and its families in seven lessons, worked by hand: texts, computations, quizzes.

    lessons("zh")                        the seven parts in one language
    compute("two_tokens", x=[[1, 0], [0, 1]])     a computation, step by step, with one's own inputs
    section.fill(compute(section.computation))   a section's text with its numbers
    picture(found, "zh")                 a computation's diagram as SVG, or None
    grade(question, choice)              whether a choice is right, and why
    check_answer(exercise, "7,087")      whether the answer of an exercise is right, and how it comes about
    check_equation("two_tokens", mine)       compares an equation that one wrote in PyTorch with bertsmith's own code
    Deck(path).due(), .answer(card, "good")     spaced repetition, kept in a local file

Everything returns data; the terminal (`terminal`) and the browser render the same objects.
"""

from bertsmith_school.learn.computations import COMPUTATIONS, compute, picture
from bertsmith_school.learn.deck import ANSWERS, Deck, Review, default_path
from bertsmith_school.learn.equation_checks import check_equation
from bertsmith_school.learn.facts import check_answer
from bertsmith_school.learn.lesson import (
    LANGUAGES,
    Card,
    CodeLink,
    Computation,
    Exercise,
    Grade,
    Input,
    Language,
    Lesson,
    Question,
    Section,
    Step,
    grade,
)
from bertsmith_school.learn.story import environment_language, find_lesson, lessons
from bertsmith_school.learn.study import Study

__all__ = [
    "ANSWERS",
    "COMPUTATIONS",
    "LANGUAGES",
    "Card",
    "CodeLink",
    "Computation",
    "Deck",
    "Exercise",
    "Grade",
    "Input",
    "Language",
    "Lesson",
    "Question",
    "Review",
    "Section",
    "Step",
    "Study",
    "check_answer",
    "check_equation",
    "compute",
    "default_path",
    "environment_language",
    "find_lesson",
    "grade",
    "lessons",
    "picture",
]
