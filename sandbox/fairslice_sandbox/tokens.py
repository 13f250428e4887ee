"""Bearer tokens: fixed ones of users, and signed ones of ServiceAccounts."""

import base64
import hashlib
import hmac
import secrets
import uuid
from datetime import timedelta

import msgspec

from .clock import Clock, timestamp
from .store import Store
from .users import UserInfo, service_account

__all__ = ["Tokens"]

_ISSUER = "https://kubernetes.default.svc.cluster.local"


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class Tokens:
    """Who bears which token."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._users: dict[str, UserInfo] = {}

    def of_user(self, user: UserInfo) -> str:
        """Give a token that authenticates a user, the same one each time."""
        for token, known in self._users.items():
            if known.username == user.username:
                return token
        token = secrets.token_urlsafe(32)
        self._users[token] = user
        return token

    def issue(self, namespace: str, name: str, uid: str, seconds: int) -> tuple[str, str]:
        """Issue a token of a ServiceAccount: the token and when it expires."""
        now = self._clock.now()
        expiry = now + timedelta(seconds=seconds)
        claims = {
            "aud": [_ISSUER],
            "exp": int(expiry.timestamp()),
            "iat": int(now.timestamp()),
            "iss": _ISSUER,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        header = _b64(msgspec.json.encode({"alg": "HS256", "typ": "JWT"}))
        body = header + b"." + _b64(msgspec.json.encode(claims))
        return (body + b"." + self._sign(body)).decode(), timestamp(expiry)

    def authenticate(self, token: str) -> UserInfo | None:
        """Find the bearer; None for an unknown, expired or orphaned token."""
        if user := self._users.get(token):
            return user
        body, _, signature = token.rpartition(".")
        if not hmac.compare_digest(self._sign(body.encode()), signature.encode()):
            return None
        payload = body.partition(".")[2]
        claims = msgspec.json.decode(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        bound = claims["kubernetes.io"]
        account = bound["serviceaccount"]
        found = self._store.get("serviceaccounts", bound["namespace"], account["name"])
        expired = claims["exp"] < self._clock.now().timestamp()
        if expired or found is None or found["metadata"]["uid"] != account["uid"]:
            return None
        return service_account(bound["namespace"], account["name"], account["uid"], claims["jti"])

    def _sign(self, body: bytes) -> bytes:
        return _b64(hmac.digest(self._key, body, hashlib.sha256))
