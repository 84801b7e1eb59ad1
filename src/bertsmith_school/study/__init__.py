"""The paper's tables, and some that it leaves out, on any text: sets of runs, and a page that compares them."""

from bertsmith_school.study.run import StudyOptions, run_study, score_models
from bertsmith_school.study.study import Arm, Base, Start, Study, start, studies, study_named

__all__ = [
    "Arm",
    "Base",
    "Start",
    "Study",
    "StudyOptions",
    "run_study",
    "score_models",
    "start",
    "studies",
    "study_named",
]
