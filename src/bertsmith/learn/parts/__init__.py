"""The six parts of the story: texts in two languages, questions, cards, links; their numbers come from the code."""
