"""PodTemplates: where the queue keeps the manifests of what must come back.

It creates such an object again under its own name, and believes the stamps in its manifest: whose
work it is, since when it waits. So nobody else may write one.
"""

import msgspec
from msgspec import Struct

from fairslice import messages
from fairslice.kube.objects import ObjectMeta
from fairslice_webhook.decision import Answer
from fairslice_webhook.patching import map_ops
from fairslice_webhook.pod_edits import foreign_stamps
from fairslice_webhook.pod_updates import restored
from fairslice_webhook.review import Review
from fairslice_webhook.view import View

__all__ = ["decide_stored_manifest"]


class _Whole(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_META = msgspec.json.Decoder(_Whole)


def decide_stored_manifest(review: Review, view: View) -> Answer:
    """Drop the stamps of a PodTemplate that the queue didn't write, or put them back."""
    if review.user in view.own_users:
        return Answer()
    try:
        meta = _META.decode(review.object).metadata
        old = _META.decode(review.old_object).metadata if review.operation == "UPDATE" else None
    except msgspec.DecodeError:
        return Answer()  # the API server refuses it in better words
    if old is None:
        annotations, labels = foreign_stamps(meta.annotations), foreign_stamps(meta.labels)
        ops = (
            *map_ops("/metadata/annotations", meta.annotations, annotations),
            *map_ops("/metadata/labels", meta.labels, labels),
        )
    else:
        before = restored(meta, old)
        ops = (
            *map_ops("/metadata/annotations", meta.annotations, before[0]),
            *map_ops("/metadata/labels", meta.labels, before[1]),
        )
    return Answer(ops, (messages.stamps_kept(),) if ops else (), strict=True)
