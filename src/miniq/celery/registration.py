"""How kombu learns of the URLs `miniq://` and `miniqs://`.

kombu has a fixed table of transports and no entry points for them, but it loads the entry points of serializers in
every process. So MiniQ brings one, and the table gets its names when it is loaded. Only names: the transport itself is
imported when a URL needs it.
"""

from __future__ import annotations

import json
from typing import Any

from kombu.transport import TRANSPORT_ALIASES

TRANSPORT_ALIASES.setdefault("miniq", "miniq.celery.transport:Transport")
TRANSPORT_ALIASES.setdefault("miniqs", "miniq.celery.transport:TLSTransport")


def _encode(value: Any) -> str:
    """JSON as every reader of the standard knows it: NaN and infinities are refused."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)


SERIALIZER = (_encode, json.loads, "application/vnd.miniq+json", "utf-8")
"""What kombu registers as the serializer `miniq`: plain JSON."""
