"""Decoding of S2 blocks: Snappy blocks with repeated offsets (docs/formats/pack.md)."""


class S2Error(Exception):
    pass


def decode(block, length):
    """Returns the plaintext, which must have that length."""
    at, total, shift = 0, 0, 0
    while True:
        if at >= len(block) or shift > 63:
            raise S2Error("no length")
        byte = block[at]
        at += 1
        total |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if total != length:
        raise S2Error(f"{total} bytes, not {length}")
    out, offset = bytearray(), 0

    def number(size):
        nonlocal at
        if at + size > len(block):
            raise S2Error("cut short")
        value = int.from_bytes(block[at : at + size], "little")
        at += size
        return value

    while at < len(block):
        tag = block[at]
        at += 1
        kind, high = tag & 3, tag >> 2
        if kind == 0:  # literal
            count = high + 1 if high < 60 else number(high - 59) + 1
            if at + count > len(block):
                raise S2Error("cut short")
            out += block[at : at + count]
            at += count
            if len(out) > length:
                raise S2Error("too long")
            continue
        if kind == 1:
            low = number(1)
            back, count = (tag >> 5) << 8 | low, (tag >> 2 & 7) + 4
            if back == 0:  # repeat
                n = tag >> 2 & 7
                count = n + 4 if n < 5 else (8, 260, 65540)[n - 5] + number(n - 4)
            else:
                offset = back
        else:
            count, offset = high + 1, number(2 if kind == 2 else 4)
        if not 0 < offset <= len(out) or len(out) + count > length:
            raise S2Error("a copy from nowhere")
        for _ in range(count):
            out.append(out[-offset])
    if len(out) != length:
        raise S2Error("too short")
    return bytes(out)
