"""Everything fairslice says to people: one function a message, one line, at most 256 characters.

Each text says what happened, with the numbers, and the way out. One module a subject; all names
are here as well.
"""

from fairslice.messages.asks import *  # noqa: F403
from fairslice.messages.denials import *  # noqa: F403
from fairslice.messages.guards import *  # noqa: F403
from fairslice.messages.marks import *  # noqa: F403
from fairslice.messages.order import *  # noqa: F403
from fairslice.messages.preemption import *  # noqa: F403
from fairslice.messages.reasons import *  # noqa: F403
from fairslice.messages.warnings import *  # noqa: F403
from fairslice.messages.wording import MAX_LENGTH as MAX_LENGTH
from fairslice.messages.wording import line as line
from fairslice.messages.wording import listed as listed
