"""What a process and its workers say to each other: a line of JSON and raw bytes. No pickle, so a worker runs nothing that it is sent."""

from __future__ import annotations

import json
import struct
from typing import Any, BinaryIO

import numpy as np

from twinvec import errors
from twinvec.errors import EncodeError, TwinvecError
from twinvec.scale.compute import Computed

_SIZES = struct.Struct("<QQ")


def send(stream: BinaryIO, head: dict[str, Any], body: bytes = b"") -> None:
    line = json.dumps(head).encode()
    stream.write(_SIZES.pack(len(line), len(body)))
    stream.write(line)
    stream.write(body)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """EOFError when the other side has gone."""
    first, second = _SIZES.unpack(_exactly(stream, _SIZES.size))
    return json.loads(_exactly(stream, first)), _exactly(stream, second)


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size) if size else b""
    if len(data) < size:
        raise EOFError
    return data


def pack_texts(texts: list[str]) -> bytes:
    data = [text.encode("utf-8", "surrogatepass") for text in texts]
    return np.fromiter(map(len, data), np.int64, len(data)).tobytes() + b"".join(data)


def unpack_texts(body: bytes, count: int) -> list[str]:
    ends = np.cumsum(np.frombuffer(body, np.int64, count)) + 8 * count
    out, at = [], 8 * count
    for end in ends.tolist():
        out.append(body[at:end].decode("utf-8", "surrogatepass"))
        at = end
    return out


def pack_computed(found: Computed) -> tuple[dict[str, Any], bytes]:
    rows, dimensions = found.vectors.shape
    return {"rows": rows, "dimensions": dimensions}, found.vectors.astype("<f4").tobytes() + found.counts.astype("<i8").tobytes()


def unpack_computed(head: dict[str, Any], body: bytes) -> Computed:
    rows, dimensions = head["rows"], head["dimensions"]
    vectors = np.frombuffer(body, "<f4", rows * dimensions).reshape(rows, dimensions)
    counts = np.frombuffer(body, "<i8", rows * 5, offset=4 * rows * dimensions).reshape(rows, 5)
    return Computed(vectors.astype(np.float32, copy=False), counts.astype(np.int64, copy=False))


def pack_error(error: BaseException) -> dict[str, Any]:
    """An error on its way to another process."""
    ours = isinstance(error, TwinvecError)
    return {"error": type(error).__name__, "message": str(error) if ours else f"{type(error).__name__}: {error}"}


def unpack_error(head: dict[str, Any], where: str) -> TwinvecError:
    """The error that came, as one of ours: a usage error stays one."""
    kind = getattr(errors, head["error"], None)
    if isinstance(kind, type) and issubclass(kind, TwinvecError):
        return kind(head["message"])
    return EncodeError(f"{where}: {head['message']}")
