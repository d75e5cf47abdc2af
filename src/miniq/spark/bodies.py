"""JSON bodies as typed columns, and columns as JSON bodies.

A body that is read must fit its Spark type exactly, or it is *corrupt*: a number is not a string, and 300 does not fit
a tinyint.
NaN and the infinities, which JSON lacks, are the strings that Spark's own `to_json` and `from_json` use.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, NotRequired, TypedDict

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Meta, Raw, Struct
from pyspark.sql import types as T
from pyspark.sql.pandas.types import is_variant

from miniq.errors import InvalidRequest

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_WHOLE = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}
_SIMPLE: dict[type[T.DataType], Any] = {
    T.StringType: str,
    T.BooleanType: bool,
    T.DecimalType: Decimal,
    T.DateType: date,
    T.TimestampType: datetime,
    T.TimestampNTZType: Annotated[datetime, Meta(tz=False)],
    T.BinaryType: bytes,
    T.VariantType: Raw,
    T.NullType: None,
    **{kind: Annotated[int, Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)] for kind, bits in _WHOLE.items()},
}
"""What msgspec decodes a value to, by its Spark type."""
KEYS: tuple[type[T.DataType], ...] = (T.StringType, T.BooleanType, *_WHOLE)
"""Types of keys that a JSON object can have."""
WRITTEN: tuple[type[T.DataType], ...] = (*_SIMPLE, T.FloatType, T.DoubleType)


class Corrupt(Struct, frozen=True):
    """A body that does not fit its type, and why."""

    row: int
    text: str
    reason: str


# Reading


class _Number(float):
    """A number for the decoder's hook, which also accepts the names of `NOT_FINITE`."""


class BodyReader:
    """Reads JSON texts as values of a Spark type."""

    def __init__(self, kind: T.DataType, arrow_type: pa.DataType) -> None:
        self._arrow_type = arrow_type
        self._decode = msgspec.json.Decoder(_shape(kind, float)).decode
        self._decode_again = msgspec.json.Decoder(_shape(kind, _Number), dec_hook=_number).decode
        """Slower, and accepts more; for texts that the first decoder refuses."""
        self._finish = _finisher(kind)

    def read(self, body: pa.Array, data: pa.Array) -> tuple[pa.Array, list[Corrupt]]:
        """The values of the bodies, null where there is none or it is corrupt, and the corrupt ones."""
        values: list[Any] = []
        corrupt: list[Corrupt] = []
        for row, text in enumerate(body.to_pylist()):
            value = None
            if text is not None:
                try:
                    value = self._value(text)
                except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                    corrupt.append(Corrupt(row, text, str(error)))
            values.append(value)
        for row in pc.indices_nonzero(pc.is_valid(data)).to_pylist():
            text = base64.b64encode(data[row].as_py()).decode()
            corrupt.append(Corrupt(row, text, "its content type is neither JSON nor text"))
        try:
            return pa.array(values, self._arrow_type), corrupt
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            corrupt += list(self._misfits(values, body))
        for misfit in corrupt:
            values[misfit.row] = None
        return pa.array(values, self._arrow_type), corrupt

    def _value(self, text: str) -> Any:
        try:
            value = self._decode(text)
        except msgspec.ValidationError:
            value = self._decode_again(text)
        return value if self._finish is None or value is None else self._finish(value)

    def _misfits(self, values: Sequence[Any], body: pa.Array) -> Iterator[Corrupt]:
        """Values that only Arrow refuses, such as a decimal with too many digits."""
        for row, value in enumerate(values):
            try:
                pa.array([value], self._arrow_type)
            except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
                yield Corrupt(row, body[row].as_py(), str(error))


def check_readable(kind: T.DataType, name: str) -> None:
    """Raise if JSON cannot be read as this type; `name` is the column or option that asks for it."""
    try:
        _shape(kind, float)
    except TypeError as error:
        raise InvalidRequest(f"{name}: {error}", field=name) from None


def _shape(kind: T.DataType, number: Any) -> Any:
    """The type for msgspec; `number` is the one of float and double."""
    if isinstance(kind, T.StructType):
        fields: dict[str, Any] = {}
        for field in kind:
            shape = _optional(_shape(field.dataType, number), field.nullable)
            fields[field.name] = NotRequired[shape] if field.nullable else shape
        return TypedDict("Body", fields)  # type: ignore[operator]
    if isinstance(kind, T.ArrayType):
        return list[_optional(_shape(kind.elementType, number), kind.containsNull)]  # type: ignore[misc]
    if isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, KEYS):
            raise TypeError(f"{kind.simpleString()}: keys of type {kind.keyType.simpleString()} are not supported")
        key = bool if isinstance(kind.keyType, T.BooleanType) else _shape(kind.keyType, number)
        return dict[key, _optional(_shape(kind.valueType, number), kind.valueContainsNull)]  # type: ignore[misc,valid-type]
    if isinstance(kind, (T.FloatType, T.DoubleType)):
        return number
    for simple, shape in _SIMPLE.items():
        if isinstance(kind, simple):
            return shape
    raise TypeError(f"type {kind.simpleString()} is not supported")


def _optional(shape: Any, nullable: bool) -> Any:
    """A union with None; a raw value includes null."""
    return shape | None if nullable and shape not in (Raw, None) else shape


def _number(kind: type, value: Any) -> Any:
    """The decoder's hook for `_Number`."""
    if isinstance(value, str) and value in NOT_FINITE:
        return _Number(NOT_FINITE[value])
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return _Number(value)
    raise ValueError(f"Expected `float`, got `{type(value).__name__}`")


def _finisher(kind: T.DataType) -> Callable[[Any], Any] | None:
    """Turns a decoded value into one that Arrow accepts; None if it already is."""
    if isinstance(kind, T.VariantType):
        return _variant
    if isinstance(kind, T.StructType):
        fields = {field.name: finish for field in kind if (finish := _finisher(field.dataType))}

        def struct(value: dict[str, Any]) -> dict[str, Any]:
            return value | {name: _some(fields[name], value[name]) for name in fields if name in value}

        return struct if fields else None
    if isinstance(kind, T.ArrayType) and (element := _finisher(kind.elementType)):
        return lambda value: [_some(element, item) for item in value]
    if isinstance(kind, T.MapType) and (item := _finisher(kind.valueType)):
        return lambda value: {key: _some(item, each) for key, each in value.items()}
    return None


def _some(finish: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else finish(value)


def _variant(raw: Raw) -> dict[str, bytes]:
    """JSON text as the two binaries of a VARIANT."""
    value = T.VariantVal.parseJson(bytes(raw).decode())
    return {"value": bytes(value.value), "metadata": bytes(value.metadata)}


# Writing


def check_writable(kind: T.DataType, name: str) -> None:
    """Raise if a type has no form in JSON."""
    if isinstance(kind, T.StructType):
        for field in kind:
            check_writable(field.dataType, f"{name}.{field.name}")
    elif isinstance(kind, T.ArrayType):
        check_writable(kind.elementType, name)
    elif isinstance(kind, T.MapType):
        if not isinstance(kind.keyType, KEYS):
            shown = kind.keyType.simpleString()
            raise InvalidRequest(f"{name}: has keys of type {shown}, which JSON lacks; cast them to string", field=name)
        check_writable(kind.valueType, name)
    elif not isinstance(kind, WRITTEN):
        shown = kind.simpleString()
        raise InvalidRequest(f"{name}: has type {shown}, which JSON lacks; cast it to string", field=name)


def as_json(column: pa.Array) -> pa.Array:
    """Each value as JSON text. Null fields of a struct are left out, as in Spark's `to_json`."""
    if pa.types.is_boolean(column.type) or pa.types.is_integer(column.type):
        return pc.cast(column, pa.string())
    encode = msgspec.json.Encoder(decimal_format="number").encode
    plain = _plain(column.type)
    texts = [
        None if value is None else encode(value if plain is None else plain(value)).decode()
        for value in column.to_pylist()
    ]
    return pa.array(texts, pa.string())


def _plain(kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Turns a value of Arrow into one for the encoder; None if it already is."""
    if pa.types.is_struct(kind):
        if is_variant(kind):
            return lambda value: Raw(T.VariantVal(value["value"], value["metadata"]).toJson().encode())
        fields = {field.name: _plain(field.type) for field in kind}
        return lambda value: {
            name: item if (plain := fields[name]) is None else plain(item)
            for name, item in value.items()
            if item is not None
        }
    if pa.types.is_map(kind):
        item = _plain(kind.item_type)
        return lambda pairs: {_key(key): value if item is None else _some(item, value) for key, value in pairs}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _plain(kind.value_type)
        return None if element is None else lambda values: [_some(element, value) for value in values]
    return _finite if pa.types.is_floating(kind) else None


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _finite(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
