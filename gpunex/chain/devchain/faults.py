"""What the chain does wrong on purpose, switched by ``POST /faults`` with any of the keys below; ``GET /faults`` shows them.

Counts run down to 0. ``reset`` clears everything first. Three more keys act at once: ``release`` lands the held transactions that can
still land, ``advance_blocks`` lets blocks pass, ``rent_lamports_per_byte`` changes the price of accounts. The last two are journalled.

A node is told apart by the path of its URL: with ``only_path`` set to ``/b``, the faults of answering hold for ``http://…/b`` alone.
"""

import time
from dataclasses import asdict, dataclass, fields
from typing import Any

ACTIONS = frozenset({"reset", "release", "advance_blocks", "rent_lamports_per_byte"})


class UnknownFault(ValueError):
    """A key that is none of ours, or a value of another type."""


@dataclass(slots=True)
class Faults:
    drop: int = 0  # this many sends are accepted and never land
    hold: int = 0  # this many sends are accepted and land only on release
    timeout_after_land: int = 0  # this many sends land, and the connection closes without an answer
    hide_status_s: float = 0.0  # for so long nobody is told of any transaction
    height_as_slot: bool = False  # getBlockHeight answers with the slot
    short_life: int = 0  # getLatestBlockhash tells a last valid height that is lower by so many blocks
    rate_limit: int = 0  # this many calls get 429 with Retry-After
    retry_after_s: int = 1
    rpc_down: bool = False  # every call gets 503
    # A node that tells what is not so: "landed" of transactions it never saw, "failed" of those that succeeded, "empty" as if
    # those moved no money. "" for the truth.
    lie: str = ""
    only_path: str = ""

    _hidden_until: float = 0.0

    def change(self, wanted: dict[str, Any]) -> None:
        """Raises UnknownFault and then changes nothing."""
        kinds = {field.name: type(field.default) for field in fields(self) if not field.name.startswith("_")}
        for name, value in wanted.items():
            if name in ACTIONS:
                continue
            kind = kinds.get(name)
            if kind is None:
                raise UnknownFault(f"unknown fault {name!r}")
            if type(value) is not kind and not (kind is float and type(value) is int):
                raise UnknownFault(f"{name} takes a value of type {kind.__name__}")
        if wanted.get("reset"):
            for field in fields(self):
                setattr(self, field.name, field.default)
        for name, value in wanted.items():
            if name not in ACTIONS:
                setattr(self, name, value)
        if "hide_status_s" in wanted:
            self._hidden_until = time.monotonic() + self.hide_status_s

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if not name.startswith("_")}

    def take(self, name: str) -> bool:
        """Whether a counted fault happens now; counts it down."""
        left: int = getattr(self, name)
        if left <= 0:
            return False
        setattr(self, name, left - 1)
        return True

    def apply_to(self, path: str) -> bool:
        return not self.only_path or self.only_path == path

    def lies(self, path: str) -> str:
        return self.lie if self.apply_to(path) else ""

    def status_hidden(self, path: str) -> bool:
        return self.apply_to(path) and time.monotonic() < self._hidden_until
