"""What the tabs share: the language, the chosen model, and how a click becomes an answer or a friendly sentence.

What cannot be done is said in place, above empty results: nothing of an earlier answer is left standing below it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gradio as gr

from bertsmith.errors import BertsmithError
from bertsmith.serve.pages import HttpError
from bertsmith_school.lab.markup import notice
from bertsmith_school.lab.models import LabError, LabModel, LabModels, missing_head, starting_text
from bertsmith_school.learn.lesson import Language, Text

QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
"""How an event is answered at once, without Gradio's queue and its signs of progress."""

Work = Callable[..., Sequence[Any]]
"""Takes a model (or none, see `answer`) and the inputs' values; returns the outputs' values."""


class PageState:
    """The page around the tabs."""

    def __init__(self, models: LabModels, language: Language, page: gr.Blocks) -> None:
        self.models, self.page = models, page
        self.language: Language = language
        self.chosen = self.menu(models.names, "Model", "模型", "model", value=models.names[0], interactive=True)

    @property
    def first(self) -> LabModel:
        """The model that is shown before another one is chosen."""
        return self.models.named(self.models.names[0])

    def say(self, en: str | Text, zh: str = "") -> str:
        """Returns a text in the page's language."""
        return (en if isinstance(en, Text) else Text(en, zh))(self.language)

    def lead(self, en: str, zh: str) -> None:
        """Puts a sentence on what a tab is for at its top."""
        gr.HTML(f"<p class='lead'>{self.say(en, zh)}</p>")

    def field(self, name: Text, id: str, text: str | Sequence[str] = "", **shape: Any) -> gr.Textbox:
        """Makes a field for texts, which begins with a text, or with the one of several that the model knows best."""
        start = text if isinstance(text, str) else starting_text(self.first.tokenizer, text)
        return gr.Textbox(start, label=self.say(name), elem_id=id, **{"max_lines": 6, **shape})

    def button(self, en: str, zh: str, id: str, **how: Any) -> gr.Button:
        """Makes a button."""
        return gr.Button(self.say(en, zh), elem_id=id, **how)

    def menu(self, choices: Sequence[Any], en: str, zh: str, id: str, **how: Any) -> gr.Dropdown:
        """Makes a list to choose from."""
        return gr.Dropdown(list(choices), label=self.say(en, zh), elem_id=id, **{"filterable": False, **how})

    def needs(self, kind: str) -> gr.HTML:
        """Makes the place for notices of a tab that is of no use without a head."""
        return self.place_for_notice(
            lambda model: None if kind in model.served.pipelines else missing_head(model, kind)
        )

    def place_for_notice(self, unfit: Callable[[LabModel], LabError | None] | None = None) -> gr.HTML:
        """Makes the place where a tab says what cannot be done, and at first why it is of no use with a model."""

        def reason(model: LabModel) -> str:
            why = None if unfit is None else unfit(model)
            return "" if why is None else notice(self.say(why.text), wrong=True)

        place = gr.HTML(reason(self.first), elem_classes="place")
        if unfit is not None:
            self.on_choice(lambda model: [reason(model)], [place])
        return place

    def on_choice(self, work: Work, outputs: Sequence[Any]) -> None:
        """Calls a function of the model whenever another one is chosen."""
        handler = self._handler(work, [gr.skip()] * len(outputs), with_model=True)
        self.chosen.change(handler, [self.chosen], list(outputs), **QUIET)

    def answer(
        self,
        triggers: Sequence[Any],
        work: Work,
        inputs: Sequence[Any],
        place: gr.HTML,
        outputs: Sequence[Any],
        *,
        slow: bool = False,
        with_model: bool = True,
        with_event: bool = False,
    ) -> None:
        """Wires clicks up: `work` computes the outputs' values, or it is said in `place` what cannot be done.

        Args:
            triggers: events, such as `button.click`.
            work: takes the chosen model first, then the inputs' values, then what the event brought along.
            outputs: components; HTML, plots and files are emptied where there is no answer.
        """
        blank = [_blank(output) for output in outputs]
        handler = self._handler(work, blank, with_model=with_model, place=True)
        if with_event:
            handler = _with_event(handler)
        given = [self.chosen, *inputs] if with_model else list(inputs)
        # 不经 Gradio 的队列：它轮询着派活，会给每次点击平添几十毫秒；并发由服务端自己的队列管
        gr.on(
            list(triggers),
            handler,
            given,
            [place, *outputs],
            queue=False,
            show_progress="minimal" if slow else "hidden",
            api_visibility="private",
            trigger_mode="always_last",
        )

    def in_words(self, error: Exception) -> str:
        """Says an error in the page's language, as far as it is known in it."""
        if isinstance(error, LabError):
            return self.say(error.text)
        message = " ".join(str(error).split())
        return self.say(message, f"做不到：{message}")

    def _handler(
        self, work: Work, blank: Sequence[Any], *, with_model: bool, place: bool = False
    ) -> Callable[..., Any]:
        def handle(*values: Any) -> Any:
            try:
                if with_model:
                    values = (self.models.named(values[0]), *values[1:])
                found = [*work(*values)]
                said = ""
            except (BertsmithError, HttpError) as error:
                found, said = [*blank], notice(self.in_words(error), wrong=True)
            found = [said, *found] if place else found
            return found if len(found) > 1 else found[0]

        return handle


def _with_event(handler: Callable[..., Any]) -> Callable[..., Any]:
    """Passes what an event brought along as the last value; Gradio goes by the annotation."""

    def handle(event: gr.EventData, *values: Any) -> Any:
        return handler(*values, event._data)

    return handle


def _blank(component: Any) -> Any:
    """Returns what empties a component that shows results; others keep what they hold."""
    if isinstance(component, gr.HTML):
        return ""
    return None if isinstance(component, (gr.Plot, gr.File)) else gr.skip()
