# pyright: strict
"""How many requests may be in flight, of all tenants and of one; when there is room again."""

import time
from collections import Counter

from specserve.api.keys import Tenant
from specserve.api.pace import Pace
from specserve.errors import Busy


class Places:
    """Of one service. Every request in flight has one."""

    def __init__(self, num_places: int, max_per_tenant: int) -> None:
        """`max_per_tenant` of `num_places` may be one tenant's; 0: all."""
        self._num_places, self._max_per_tenant = num_places, max_per_tenant
        self._num_taken: Counter[str] = Counter()  # by tenant
        self._pace = Pace(num_places)

    def require(self, tenant: Tenant) -> None:
        """Raise Busy, which says when to come back, if there is no place for one more of his."""
        if self._num_taken.total() >= self._num_places:
            self._refuse(
                f"server.max_queued_requests: {self._num_places} requests are in flight, "
                "which is the limit"
            )
        if 0 < self._max_per_tenant <= self._num_taken[tenant.identity]:
            self._refuse(
                f"server.max_requests_per_key: {self._max_per_tenant} requests of the key "
                f"{tenant.shown} are in flight, which is the limit"
            )

    def take(self, tenant: Tenant) -> None:
        """One place, which `require` has found free."""
        self._num_taken[tenant.identity] += 1

    def free(self, tenant: Tenant) -> None:
        """One place is free again."""
        self._num_taken[tenant.identity] -= 1
        if not self._num_taken[tenant.identity]:
            del self._num_taken[tenant.identity]  # keys come and go
        self._pace.freed(time.monotonic())

    def _refuse(self, problem: str) -> None:
        raise Busy(problem, self._pace.wait_s(time.monotonic()))
