"""Wrapping the methods of live objects, for a while, so that somebody may look on without changing anything.

A hook is an attribute on the instance that stands before the method of its class; taking it off again leaves no trace. What
looks on may fail: then everything is taken off, it is said once, and the methods go on as before.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from lifecycle.logger import Logger

log = Logger(__name__)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Before = Callable[[Args, Kwargs], Any]
After = Callable[[Any, Any], None]


class Passed(Exception):
    """Base of what an onlooker raises on purpose, through the method that it looks on."""


class _Hook(NamedTuple):
    owner: Any
    name: str
    wrapper: Any
    shadowed: Any  # what stood on the instance itself before, or None


class Hooks:
    """The hooks of one onlooker."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._hooks: list[_Hook] = []
        self.live = True
        self.failure: Exception | None = None

    def around(self, owner: Any, name: str, before: Before | None, after: After | None) -> bool:
        """Have `before(args, kwargs)` called ahead of a method and `after(token, result)` behind it; say whether it is there.

        `token` is what `before` returned; `result` is None where the method raised. Neither can change what goes in or out.
        """
        method = getattr(owner, name, None)
        if method is None:
            return False

        @wraps(method)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if not self.live:
                return method(*args, **kwargs)
            token = None
            if before is not None:
                try:
                    token = before(args, kwargs)
                except Exception as error:
                    self._failed(error)
            try:
                result = method(*args, **kwargs)
            except BaseException:
                if after is not None and self.live:
                    self._after(after, token, None)
                raise
            if after is not None and self.live:
                try:
                    after(token, result)
                except Exception as error:
                    self._failed(error)
            return result

        shadowed = vars(owner).get(name)
        setattr(owner, name, wrapper)
        self._hooks.append(_Hook(owner, name, wrapper, shadowed))
        return True

    def _after(self, after: After, token: Any, result: Any) -> None:
        try:
            after(token, result)
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        """Let through what was raised on purpose. Whatever else goes wrong in looking on must not reach the one who is looked
        at: take everything off, and say so once."""
        if isinstance(error, Passed):
            raise error
        self.fail(error)

    def fail(self, error: Exception) -> None:
        """Take everything off and say why, once. From any thread."""
        if not self.live:
            return
        self.failure = error
        self.remove()
        log.error(
            f"{self._who} failed and is off; the engine goes on without it",
            error=repr(error),
            exc_info=error,
            what_to_do="report the error with the version of the engine; what was recorded until then can be read",
        )

    def remove(self) -> None:
        """Take every hook off. One that somebody else has wrapped meanwhile stays and only passes calls on."""
        self.live = False
        for owner, name, wrapper, shadowed in reversed(self._hooks):
            if vars(owner).get(name) is not wrapper:
                continue
            if shadowed is None:
                delattr(owner, name)
            else:
                setattr(owner, name, shadowed)
        self._hooks.clear()


def first(args: Args, kwargs: Kwargs) -> Any:
    """Return the first argument of a call, however it was passed."""
    return args[0] if args else next(iter(kwargs.values()))
