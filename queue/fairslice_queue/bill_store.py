"""Bills by month, each in a ConfigMap `fairslice-bill-2026-11` of our own namespace."""

from msgspec import DecodeError, Struct, ValidationError, json

from fairslice.bills import BillRecord
from fairslice.kube.client import MERGE_PATCH, ApiError, KubeClient, NotFound
from fairslice.kube.objects import ObjectMeta

__all__ = ["BillStore", "BillUnreadable"]

_PREFIX = "fairslice-bill-"
_KEY = "bill.json"
_LABEL = "fairslice.io/bill"


class BillUnreadable(ApiError):
    """A bill that somebody has changed by hand: where it is, and what is wrong with it."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(500, "Unreadable", f"ConfigMap {name} is no bill: {why}")


class _Map(Struct, frozen=True, kw_only=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class _Maps(Struct, frozen=True, kw_only=True):
    items: tuple[_Map, ...] = ()


class BillStore:
    """Reads and writes bills. Methods raise ApiError."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._path = f"/api/v1/namespaces/{namespace}/configmaps"

    async def months(self) -> tuple[str, ...]:
        """List the months of which there is a bill, the earliest first."""
        return tuple(sorted(each.metadata.name.removeprefix(_PREFIX) for each in await self._all()))

    async def of(self, month: str) -> BillRecord | None:
        """Read a month's bill, if there is one."""
        try:
            raw = await self._client.get(f"{self._path}/{_PREFIX}{month}")
        except NotFound:
            return None
        return _read(json.decode(raw, type=_Map))

    async def latest(self) -> BillRecord | None:
        """Read the last month's bill that there is."""
        last = max(await self._all(), key=lambda each: each.metadata.name, default=None)
        return _read(last) if last is not None else None

    async def save(self, record: BillRecord) -> None:
        """Write a bill down, unless a later leader has written it since."""
        path = f"{self._path}/{_PREFIX}{record.month}"
        metadata: dict[str, object] = {
            "name": _PREFIX + record.month,
            "labels": {_LABEL: "true"},
        }
        body = {"metadata": metadata, "data": {_KEY: json.encode(record).decode()}}
        try:
            found = json.decode(await self._client.get(path), type=_Map)
        except NotFound:
            whole = {"apiVersion": "v1", "kind": "ConfigMap", **body}
            await self._client.create(self._path, whole)
            return
        if _read(found).at <= record.at:
            metadata["resourceVersion"] = found.metadata.resource_version
            await self._client.patch(path, body, MERGE_PATCH)

    async def _all(self) -> tuple[_Map, ...]:
        raw = await self._client.get(self._path, {"labelSelector": f"{_LABEL}=true"})
        found = json.decode(raw, type=_Maps).items
        return tuple(each for each in found if each.metadata.name.startswith(_PREFIX))


def _read(found: _Map) -> BillRecord:
    text = (found.data or {}).get(_KEY, "")
    try:
        return json.decode(text, type=BillRecord)
    except (DecodeError, ValidationError) as error:
        raise BillUnreadable(found.metadata.name, str(error)) from None
