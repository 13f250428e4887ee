"""What a Kubernetes API call can come to, other than success."""

from msgspec import DecodeError, Struct, json

__all__ = [
    "AlreadyExists",
    "ApiError",
    "Cause",
    "Conflict",
    "Forbidden",
    "Gone",
    "Invalid",
    "NotFound",
    "Status",
    "TooManyRequests",
    "Unauthorized",
    "Unreachable",
    "api_error",
]


class Cause(Struct, frozen=True):
    """One of several reasons for a failure: `field` is a path such as `spec.mode.hide`."""

    reason: str = ""
    message: str = ""
    field: str = ""


class _Details(Struct, frozen=True, rename="camel"):
    retry_after_seconds: float | None = None
    causes: tuple[Cause, ...] | None = None


class Status(Struct, frozen=True):
    """The API's own error object (metav1.Status)."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None


class ApiError(Exception):
    """A call that the API server refused: HTTP status, its reason word, its message.

    `retry_after` is in seconds, None if the server said nothing. `str()` is one line.
    """

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        causes: tuple[Cause, ...] = (),
    ) -> None:
        super().__init__(status, reason, message)
        self.status = status
        self.reason = reason
        self.message = " ".join(message.split())
        self.retry_after = retry_after
        self.causes = causes

    def __str__(self) -> str:
        return self.message or f"{self.status} {self.reason}"


class Unauthorized(ApiError):
    """401: the credentials are not (or no longer) good."""


class Forbidden(ApiError):
    """403: the caller may not do this, or an admission plugin refused it."""


class NotFound(ApiError):
    """404: no such object, or no such kind."""


class AlreadyExists(ApiError):
    """409 on create: the name is taken."""


class Conflict(ApiError):
    """409: the object has changed since it was read, or a precondition does not hold."""


class Gone(ApiError):
    """410: the resource version or continue token is too old; list anew."""


class Invalid(ApiError):
    """422: the object breaks its schema; `causes` has a field path for each fault."""


class TooManyRequests(ApiError):
    """429: later, please; of an eviction: a disruption budget forbids it now."""


class Unreachable(ApiError):
    """No answer: refused, reset, timed out, or not speaking the expected protocol."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "Unreachable", message)


_BY_STATUS: dict[int, type[ApiError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    422: Invalid,
    429: TooManyRequests,
}
_STATUS = json.Decoder(Status)
_LONGEST_TEXT = 300


def api_error(http_status: int, body: bytes, retry_after: str | None = None) -> ApiError:
    """Make the error that an HTTP answer (or an in-stream ERROR object) stands for."""
    try:
        status = _STATUS.decode(body)
    except DecodeError:
        text = body[:_LONGEST_TEXT].decode(errors="replace")
        status = Status(message=f"{http_status}: {text}" if text.strip() else "")
    code = http_status if http_status >= 400 else status.code
    kind = _BY_STATUS.get(code, ApiError)
    if status.reason == "AlreadyExists":
        kind = AlreadyExists
    if kind is ApiError and status.reason == "Expired":
        kind = Gone
    details = status.details or _Details()
    return kind(
        code,
        status.reason or f"HTTP {code}",
        status.message or f"the API server answered {code}",
        _seconds(retry_after, details.retry_after_seconds),
        details.causes or (),
    )


def _seconds(header: str | None, in_body: float | None) -> float | None:
    # The header may also be a date; the API server never sends one.
    if header is not None and header.isascii() and header.isdigit():
        return float(header)
    return in_body or None
