"""Who may ask: basic authentication against bcrypt hashes, and a rate limit."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from gpuwatch.config import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_REMEMBERED = 100
# A hash of nothing anybody knows: an unknown user takes as long as a wrong password.
_NOBODY = "$2b$10$ukfTBqhKtbZJkvUm8Dn3Z.1Rx3RkXq9OlYF6XWmS7bX3xGUkWF3Iu"


class Passwords:
    """Checks passwords. One that was right is remembered as a keyed digest, because bcrypt takes its time.

    Raises:
        ConfigError: Users are configured and the package bcrypt is not installed.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = dict(users)
        self._key = os.urandom(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        if users:
            try:
                import bcrypt  # noqa: PLC0415  # only where somebody has a password
            except ImportError:
                raise ConfigError("basic_auth_users needs the package bcrypt: pip install bcrypt") from None
            self._check = bcrypt.checkpw

    @property
    def needed(self) -> bool:
        """Whether anybody must log in."""
        return bool(self._users)

    def remembered(self, user: str, password: str) -> bool:
        """Say whether this login was right before; takes no time."""
        digest = self._digest(user, password)
        if digest not in self._right:
            return False
        self._right.move_to_end(digest)
        return True

    def check(self, user: str, password: str) -> bool:
        """Say whether a login is right; takes as long as the cost of the hash says. May run in any thread."""
        hashed = self._users.get(user, _NOBODY)
        try:
            right = bool(self._check(password.encode(), hashed.encode())) and user in self._users
        except ValueError:  # over 72 bytes, or a NUL: no such password can have been hashed
            return False
        if right:
            self._right[self._digest(user, password)] = None
            while len(self._right) > _REMEMBERED:
                self._right.popitem(last=False)
        return right

    def _digest(self, user: str, password: str) -> bytes:
        import hashlib  # noqa: PLC0415  # OpenSSL is behind it, for those who have users
        import hmac  # noqa: PLC0415  # as above

        text = f"{len(user)}:{user}:{self._users.get(user, '')}:{password}"
        return hmac.new(self._key, text.encode(), hashlib.sha256).digest()


class Bucket:
    """A token bucket: `burst` requests at once, one more each `interval` seconds. None: no limit."""

    def __init__(self, rate: tuple[float, int] | None, now: float) -> None:
        self._rate = rate
        self._tokens = float(rate[1]) if rate is not None else 0.0
        self._at = now

    def take(self, now: float) -> bool:
        """Say whether a request may pass at `now` (monotonic seconds)."""
        if self._rate is None:
            return True
        interval, burst = self._rate
        self._tokens = min(float(burst), self._tokens + (now - self._at) / interval)
        self._at = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True
