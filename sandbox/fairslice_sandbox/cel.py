"""CEL for match conditions and schema rules: compiled once, kept by text.

Of Kubernetes' own additions to the language there is `sum`. Source: k8s.io/apiserver,
pkg/cel/library/lists.go.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel
from cel_expr_python.ext import ext_optional, ext_strings

__all__ = ["CelError", "compiles", "evaluate"]

_VARIABLES = ("object", "oldObject", "request", "namespaceObject", "authorizer", "self", "oldSelf")


_SUM = cel.FunctionDecl(
    "sum",
    [cel.Overload("list_int_sum_int", cel.Type.INT, [cel.Type.LIST], is_member=True, impl=sum)],
)


class CelError(Exception):
    """An expression that doesn't compile, or failed on its input."""


@cache
def _environment() -> Any:
    return cel.NewEnv(
        variables=dict.fromkeys(_VARIABLES, cel.Type.DYN),
        extensions=[ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=[_SUM],
    )


@cache
def _compile(expression: str) -> Any:
    try:
        return _environment().compile(expression)
    except RuntimeError as error:
        raise CelError(str(error).removeprefix("INVALID_ARGUMENT: ")) from error


def compiles(expression: str) -> None:
    """Check an expression. Raises CelError saying where it is wrong."""
    _compile(expression)


def evaluate(expression: str, data: Mapping[str, Any]) -> Any:
    """Evaluate an expression to a plain value. Raises CelError."""
    try:
        result = _compile(expression).eval(data=data)
    except RuntimeError as error:
        raise CelError(str(error)) from error
    if result.type() == cel.Type.ERROR:
        raise CelError(_reworded(str(result.value())))
    return result.plain_value()


def _reworded(message: str) -> str:
    # cel-go, which the API server uses, says it this way.
    _, _, key = message.partition("Key not found in map : ")
    return f"no such key: {key.strip(chr(34))}" if key else message
