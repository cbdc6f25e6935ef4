"""Random integers that are a function of a key and a counter alone, equal on every platform and Python version.

The generator is SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): word number `counter` of the stream whose seed is
`key`, reached without computing the words before it. Python's `random` promises no such stability.
"""

import hashlib
import json

_MASK = (1 << 64) - 1
_GOLDEN_GAMMA = 0x9E3779B97F4A7C15


def stream_key(*parts: str | int) -> int:
    """The 64-bit key of the stream that `parts` name: the start of the SHA-256 of their JSON."""
    name = json.dumps(parts, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")


def random_word(key: int, counter: int) -> int:
    """Word `counter` (from 0) of stream `key`: uniform over range(2**64)."""
    z = (key + (counter + 1) * _GOLDEN_GAMMA) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def random_below(key: int, counter: int, bound: int) -> int:
    """Word `counter` of stream `key`, scaled to range(bound); off uniform by less than bound / 2**64."""
    return random_word(key, counter) * bound >> 64


class RandomPermutation:
    """A keyed bijection of range(size), evaluated one index at a time.

    A four-round Feistel network (Luby and Rackoff, 1988) permutes the next larger range(4**n); walking its cycle until
    the value falls below `size` restricts it (Black and Rogaway, CT-RSA 2002).
    """

    def __init__(self, key: int, size: int) -> None:
        self.size = size
        self._key = key
        self._half_bits = max(1, ((size - 1).bit_length() + 1) // 2)

    def __call__(self, index: int) -> int:
        """The image of `index`, which is in range(size)."""
        if not 0 <= index < self.size:
            raise IndexError(f"index {index} is outside range({self.size})")
        mask = (1 << self._half_bits) - 1
        while True:
            left, right = index >> self._half_bits, index & mask
            for feistel_round in range(4):
                left, right = right, left ^ (random_word(self._key, 4 * right + feistel_round) & mask)
            index = left << self._half_bits | right
            if index < self.size:
                return index
