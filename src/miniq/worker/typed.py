"""Bodies and parameters by annotation: JSON to what a handler or task declares, through msgspec.

Dataclasses, `TypedDict`, `NamedTuple`, enums, dates, `attrs` classes and msgspec records are msgspec's own; pydantic
models validate themselves. What does not fit is an `Unfit`, which names the field.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import msgspec.inspect as inspection

from miniq.client._async.message import AsyncMessage
from miniq.client._sync.message import Message
from miniq.client.bodies import decode
from miniq.client.delivery import Delivery
from miniq.errors import InvalidRequest, MiniQError
from miniq.json_values import is_json
from miniq.worker.jobs import Unfit, is_coroutine

Kind = inspect._ParameterKind
MESSAGES = (Message, AsyncMessage)
JSON_TYPES = (dict, list, str, int, float, bool, type(None))


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function or callable object, with names resolved."""
    target = function if inspect.isroutine(function) else type(function).__call__
    try:
        return typing.get_type_hints(inspect.unwrap(target), include_extras=True)
    except (NameError, AttributeError) as error:
        raise InvalidRequest(
            f"{name_of(function)}: its annotations cannot be resolved ({error}); import their types where it is "
            "defined, not under TYPE_CHECKING",
            field=name_of(function),
        ) from None


def name_of(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _from_builtins(kind: type, value: Any) -> Any:
    """A value of a type that msgspec does not know: a pydantic model."""
    validate = getattr(kind, "model_validate", None)
    if validate is None:
        if isinstance(value, kind):
            return value
        raise NotImplementedError(f"values of type {kind.__qualname__} cannot be read from JSON")
    return validate(value)


def check_type(hint: Any, parameter: str, of: str) -> None:
    """Refuse an annotation whose values no JSON can give; `of` is the task or handler with the parameter."""
    try:
        kind = _unreadable(inspection.type_info(hint), set())
        problem = None if kind is None else f"values of type {kind.__qualname__} cannot be read from JSON"
    except TypeError as error:
        problem = f"cannot be read from JSON: {error}"
    if problem is not None:
        text = f"{of}: {parameter}: {problem}; use a dataclass, a msgspec record or a pydantic model"
        raise InvalidRequest(text, field=parameter)


def _unreadable(info: Any, seen: set[int]) -> type | None:
    """A class without which there is no value of a type, and which is neither JSON nor a pydantic model."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, inspection.CustomType):
        kind = typing.get_origin(info.cls) or info.cls
        is_readable = hasattr(kind, "model_validate") or any(issubclass(each, kind) for each in JSON_TYPES)
        return None if is_readable else kind
    if isinstance(info, inspection.UnionType):
        kinds = [_unreadable(each, seen) for each in info.types]
        return kinds[0] if all(kinds) else None
    if isinstance(info, inspection.Field):
        return _unreadable(info.type, seen) if info.required else None
    if isinstance(info, inspection.Type):
        for name in info.__struct_fields__:
            value = getattr(info, name)
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, inspection.Type | inspection.Field) and (kind := _unreadable(each, seen)):
                    return kind
    return None


class Reader:
    """Reads bodies as values of one type."""

    def __init__(self, kind: Any, field: str) -> None:
        self._kind = kind
        self._field = field
        try:
            self._decode = msgspec.json.Decoder(kind, dec_hook=_from_builtins).decode
        except TypeError as error:
            raise InvalidRequest(f"{field}: cannot be read from JSON: {error}", field=field) from None

    def read(self, message: Delivery[Any]) -> Any:
        if self._kind is bytes:
            return message.data
        try:
            if is_json(message.content_type):
                return self._decode(message.data)
            body = decode(message.data, message.content_type)
            try:
                return msgspec.convert(body, self._kind, dec_hook=_from_builtins)
            except (msgspec.MsgspecError, MiniQError, NotImplementedError):
                # Not a type that text fits: JSON from a program that sends all bodies as text, such as SQS clients.
                if not isinstance(body, str) or not _is_json_text(body):
                    raise
            return self._decode(body)
        except (msgspec.MsgspecError, MiniQError, NotImplementedError, RecursionError) as error:
            raise Unfit(f"{self._field}: {error}") from None


def _is_json_text(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return False
    return True


def returned(function: Callable[..., Any], value: Any) -> Any:
    """A result as the function's annotation says; as it is, if it does not fit that."""
    try:
        return msgspec.convert(value, hints_of(function).get("return", Any), dec_hook=_from_builtins)
    except (MiniQError, ValueError, TypeError, NotImplementedError, RecursionError):
        return value


class Body:
    """The parameters of a message handler: the body by its annotation, and perhaps the message."""

    def __init__(self, function: Callable[..., Any], is_batch: bool) -> None:
        self._is_batch = is_batch
        hints = hints_of(function)
        self._reader: Reader | None = None
        self._order: list[bool] = []
        """For each positional argument: whether it is the message."""
        self.kind: type[Delivery[Any]] = AsyncMessage if is_coroutine(function) else Message
        """The class of message that the handler takes."""
        self._keywords: dict[str, bool] = {}
        names = []
        for name, parameter in inspect.signature(function).parameters.items():
            hint = hints.get(name, Any)
            item = _item(hint) if is_batch else hint
            is_message = item in MESSAGES
            if is_message:
                self.kind = item
            elif parameter.default is not parameter.empty or parameter.kind in (
                Kind.VAR_POSITIONAL,
                Kind.VAR_KEYWORD,
            ):
                continue
            else:
                names.append(name)
                if item is not Any and item is not parameter.empty:
                    check_type(item, name, name_of(function))
                    self._reader = Reader(item, name)
            if parameter.kind is Kind.KEYWORD_ONLY:
                self._keywords[name] = is_message
            else:
                self._order.append(is_message)
        if len(names) > 1:
            raise InvalidRequest(
                f"{name_of(function)}: {', '.join(names)}: a handler takes one body, and a message if it is annotated "
                "as miniq.Message or miniq.AsyncMessage",
                field=name_of(function),
            )

    def read(self, message: Delivery[Any]) -> Any:
        return message.body if self._reader is None else self._reader.read(message)

    def arguments(
        self, body: Any, message: Delivery[Any] | Sequence[Delivery[Any]]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args = tuple(message if is_message else body for is_message in self._order)
        return args, {name: message if is_message else body for name, is_message in self._keywords.items()}


def _item(hint: Any) -> Any:
    """The type of the items of a list."""
    arguments = typing.get_args(hint)
    return arguments[0] if arguments else Any


class Parameters:
    """The parameters of a task: a JSON object with their names."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self._function = function
        self._task = task
        self._signature = inspect.signature(function)
        self._more = [p.name for p in self._signature.parameters.values() if p.kind is Kind.VAR_KEYWORD]
        self._decoder: Any = None
        self._positional: list[str] = []
        self._star: str | None = None
        self._named: list[str] = []
        for parameter in self._signature.parameters.values():
            if parameter.kind in (Kind.POSITIONAL_ONLY, Kind.POSITIONAL_OR_KEYWORD):
                self._positional.append(parameter.name)
            elif parameter.kind is Kind.KEYWORD_ONLY:
                self._named.append(parameter.name)
            elif parameter.kind is Kind.VAR_POSITIONAL:
                self._star = parameter.name

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The body of a message: the arguments by name."""
        known = self._signature.parameters
        if not self._more and (unknown := next((name for name in kwargs if name not in known), None)) is not None:
            raise TypeError(
                f"task {self._task!r}: there is no parameter {unknown!r}, only: {', '.join(known) or 'none'}"
            )
        try:
            arguments = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise TypeError(f"task {self._task!r}: {error}") from None
        for name in self._more:
            arguments.update(arguments.pop(name, {}))
        return arguments

    def prepare(self) -> None:
        """Resolve annotations; raises what is wrong with them."""
        if self._decoder is not None:
            return
        hints = hints_of(self._function)
        fields: list[Any] = []
        for parameter in self._signature.parameters.values():
            hint: Any = hints.get(parameter.name, Any)
            if hint in MESSAGES:
                raise InvalidRequest(
                    f"{self._task}: {parameter.name}: a task is called with what was sent; use miniq.current_message()",
                    field=parameter.name,
                )
            if parameter.default is parameter.empty:
                check_type(hint, parameter.name, self._task)
            if parameter.kind is Kind.VAR_POSITIONAL:
                fields.append((parameter.name, list[hint], msgspec.field(default_factory=list)))
            elif parameter.kind is Kind.VAR_KEYWORD:
                continue
            elif parameter.default is parameter.empty:
                fields.append((parameter.name, hint))
            else:
                fields.append((parameter.name, hint, msgspec.field(default_factory=_given(parameter.default))))
        kind = msgspec.defstruct(name_of(self._function), fields, kw_only=True, forbid_unknown_fields=not self._more)
        self._decoder = Reader(kind, "body")

    def read(self, message: Delivery[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in a message."""
        self.prepare()
        values = self._decoder.read(message)
        args = [getattr(values, name) for name in self._positional]
        if self._star is not None:
            args += getattr(values, self._star)
        kwargs = {name: getattr(values, name) for name in self._named}
        if self._more:
            known = {*self._positional, *self._named, self._star}
            kwargs |= {name: value for name, value in message.body.items() if name not in known}
        return tuple(args), kwargs


def _given(value: Any) -> Callable[[], Any]:
    return lambda: value
