"""Fine-tuning: from labelled files to a model for one task, its scores and its report.

The package is a function as well: `bertsmith.finetune("classify", ...)` is `bertsmith.finetune.calls.finetune`.
"""

from bertsmith.result import make_callable

make_callable(__name__)
