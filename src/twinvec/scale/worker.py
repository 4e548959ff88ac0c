"""One process of `processes.Pool`: reads blocks of texts from standard input, answers with vectors on standard output."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from typing import Any, BinaryIO

from twinvec.scale.compute import Calls, Facts, ModelSpec, encode_block
from twinvec.scale.wire import pack_computed, pack_error, receive, send, unpack_texts


def main() -> None:
    # What a library prints must not get among the answers, so those keep the channel and prints go to standard error.
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    inbox: queue.Queue[tuple[dict[str, Any], bytes]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, inbox), daemon=True).start()
    start, _ = inbox.get()
    try:
        encoder = ModelSpec(start["model"], start["options"]).load(start["device"], start["threads"])
        send(replies, {"ready": Facts.of(encoder).to_dict()})
    except Exception as err:
        send(replies, pack_error(err))
        return
    while True:
        head, body = inbox.get()
        began = time.perf_counter()
        try:
            told, answer = pack_computed(encode_block(encoder, unpack_texts(body, head["texts"]), Calls(**head["calls"])))
            send(replies, {**told, "seconds": time.perf_counter() - began}, answer)
        except BrokenPipeError:
            return
        except Exception as err:  # this block fails, the worker lives
            send(replies, pack_error(err))


def _listen(stream: BinaryIO, inbox: queue.Queue[tuple[dict[str, Any], bytes]]) -> None:
    """Hand on what comes. When the parent has gone, however it went, this process ends at once, in the middle of its work."""
    while True:
        try:
            inbox.put(receive(stream))
        except Exception:
            os._exit(0)
