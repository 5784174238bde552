"""Wrapping the methods of live objects, for a while, so that somebody may look on without changing anything.

A hook is an attribute on the instance that stands before the method of its class; taking it off again leaves no trace. What
looks on may fail: then everything is taken off, it is said once, and the methods go on as before.
"""

from collections.abc import Callable
from functools import wraps
from traceback import format_exception
from typing import Any, NamedTuple

from lifecycle.logger import Logger

log = Logger(__name__)

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Before = Callable[[Args, Kwargs], Any]
After = Callable[[Any, Any], None]
Behind = Callable[[Args, Kwargs, Any], None]
Method = Callable[..., Any]


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

    def around(self, owner: Any, name: str, before: Before, after: After, refused: After | None = None) -> bool:
        """Have `before(args, kwargs)` called ahead of a method and `after(token, result)` behind it; say whether it is there.

        `token` is what `before` returned. Where the method raised, `refused(token, None)` is called instead, by default
        `after`. None can change what goes in or out. Where both `before` and the method raise, the call made no sense: the
        engine hears of it, nothing is looked at, and the onlooker has not failed.
        """
        behind_a_raise = after if refused is None else refused

        def standing_before(method: Method) -> Method:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if not self.live:
                    return method(*args, **kwargs)
                token = missed = None
                try:
                    token = before(args, kwargs)
                except Passed:
                    raise
                except Exception as error:
                    missed = error
                try:
                    result = method(*args, **kwargs)
                except BaseException as raised:
                    if missed is None:
                        self._after_a_raise(raised, behind_a_raise, token)
                    raise
                if missed is not None:
                    self.fail(missed)
                elif self.live:
                    try:
                        after(token, result)
                    except Exception as error:
                        self._failed(error)
                return result

            return wrapper

        return self._put(owner, name, standing_before)

    def ahead(self, owner: Any, name: str, before: Before) -> bool:
        """Have `before(args, kwargs)` called ahead of a method; say whether it is there."""

        def standing_before(method: Method) -> Method:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if self.live:
                    try:
                        before(args, kwargs)
                    except Exception as error:
                        self._failed(error)
                return method(*args, **kwargs)

            return wrapper

        return self._put(owner, name, standing_before)

    def behind(self, owner: Any, name: str, after: Behind) -> bool:
        """Have `after(args, kwargs, result)` called behind a method that did not raise; say whether it is there."""

        def standing_before(method: Method) -> Method:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                result = method(*args, **kwargs)
                if self.live:
                    try:
                        after(args, kwargs, result)
                    except Exception as error:
                        self._failed(error)
                return result

            return wrapper

        return self._put(owner, name, standing_before)

    def _put(self, owner: Any, name: str, standing_before: Callable[[Method], Method]) -> bool:
        method = getattr(owner, name, None)
        if method is None:
            return False
        wrapper = wraps(method)(standing_before(method))
        self._hooks.append(_Hook(owner, name, wrapper, vars(owner).get(name)))
        setattr(owner, name, wrapper)
        return True

    def _after_a_raise(self, raised: BaseException, after: After, token: Any) -> None:
        """Look on behind a method that raised. What is raised on purpose becomes a note on that: it never takes its place."""
        if not self.live:
            return
        try:
            after(token, None)
        except Passed as error:
            raised.add_note(str(error))
        except Exception as error:  # as in `_failed`
            self.fail(error)

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
            where="".join(format_exception(error)),  # no exc_info: who renders it may show the engine's tensors, and fail
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
