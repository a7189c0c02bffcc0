"""Files with damage: bytes that flip, go missing, come twice or come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

MAX_CHANGES = 4
MAX_STRETCH_BYTES = 64
"""Long ones leave nothing of a small file to read."""

NUMBERS = (b"0", b"-1", b"-0", b"1e9", b"0.0005", b"9007199254740993", b"9223372036854775807", b"-9223372036854775808", b"1" * 40)


def damaged(random: Random, whole: bytes, others: Sequence[bytes], words: Sequence[bytes]) -> bytes:
    """A few changes of different kinds. others: files of the format, to take from; words: what the format is made of."""
    data = bytearray(whole)
    for _ in range(random.randint(1, MAX_CHANGES)):
        start = random.randrange(len(data) + 1)
        end = min(len(data), start + random.randint(1, MAX_STRETCH_BYTES))
        match random.randrange(8):
            case 0 if start < len(data):
                data[start] ^= 1 << random.randrange(8)
            case 1 if start < len(data):
                data[start] = random.randrange(256)
            case 2:
                del data[start:end]
            case 3:
                data[start:start] = data[start:end]
            case 4:
                other = random.choice(others)
                place = random.randrange(len(other))
                data[start:end] = other[place : place + random.randint(1, MAX_STRETCH_BYTES)]
            case 5:
                data[start:start] = random.choice(words)
            case 6:
                data[start:end] = random.choice(NUMBERS)
            case _ if random.randrange(4) == 0:
                del data[start:]
    return bytes(data)
