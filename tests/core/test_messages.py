"""What is said is one line, says what and the way out, and fits whatever it is about."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from fairslice import message_catalogue, messages

NAMES = [entry.name for entry in message_catalogue.entries()]
LONG = "x" * 300
ODD = "one\ntwo\x1b[31m\u202e\ttail " * 30


def filled(function: Callable[..., str], text: str, number: int) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for item in inspect.signature(function, eval_str=True).parameters.values():
        if item.annotation is str:
            made[item.name] = text
        elif item.annotation in (int, float):
            made[item.name] = item.annotation(number)
        elif item.annotation is bool:
            made[item.name] = True
        else:
            made[item.name] = (text, text)
    return made


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("text", [LONG, ODD, ""], ids=["long", "odd", "empty"])
@pytest.mark.parametrize("number", [0, 1, 10**15])
def test_a_message_is_one_line_of_at_most_256_characters(name: str, text: str, number: int) -> None:
    function = getattr(messages, name)
    try:
        said = function(**filled(function, text, number))
    except (TypeError, ValueError):
        # Numbers in a list are no texts: the example has to do.
        return
    assert len(said) <= messages.MAX_LENGTH
    assert "\n" not in said
    assert said.isprintable()


DENIALS = [entry for entry in message_catalogue.entries() if entry.verb == "Deny"]

# What to do, or what there is to choose from instead.
_WAYS_OUT = (
    "add it", "ask for", "ask the platform team", "create it", "choose", "delete it", "end ",
    "end something", "is below", "kubectl fairslice queue", "leave it out", "let it wait",
    "look like", "lower", "make it", "name the variables", "put ", "remove", "set ", "submit it",
    "such as", "tell the platform team", "this cluster has", "try again", "use ",
)  # fmt: skip


@pytest.mark.parametrize("entry", DENIALS, ids=[entry.name for entry in DENIALS])
def test_a_denial_names_a_way_out(entry: message_catalogue.Entry) -> None:
    assert any(word in entry.example for word in _WAYS_OUT), entry.example


def test_every_message_that_admission_gives_is_in_the_catalogue() -> None:
    public = {
        name
        for name, function in inspect.getmembers(messages, inspect.isfunction)
        if function.__module__.startswith("fairslice.messages.")
        and not function.__module__.endswith(".wording")
    }
    assert public <= set(NAMES)
