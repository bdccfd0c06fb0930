"""Reading of packs (docs/formats/pack.md)."""

import zstandard
from blake3 import blake3
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

import age
import keys
import s2
from keys import Damaged

MAX_PACK_BYTES = 48 << 20
MAX_FRAMES = MAX_CHUNKS = 16384
MAX_FRAME_RAW_BYTES = 8 << 20
MAX_RAW_BYTES = 1 << 30
MAX_WRAPPED_BYTES = 16 << 10
TRAILER_BYTES = 36
TAG_BYTES = 16
KIND_DATA, KIND_SEGMENT, KIND_COMMIT, KIND_CATALOG, KIND_INDEX = 1, 2, 3, 4, 5


def _crc_table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_CRC = _crc_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def le(data):
    return int.from_bytes(data, "little")


class Cursor:
    """Takes values off bytes; what is not there is Damaged."""

    def __init__(self, data, what):
        self.data, self.at, self.what = data, 0, what

    def left(self):
        return len(self.data) - self.at

    def take(self, size):
        if size > self.left():
            raise Damaged(f"{self.what}: cut short")
        self.at += size
        return self.data[self.at - size : self.at]

    def byte(self):
        return self.take(1)[0]

    def varint(self, limit=2**64 - 1):
        value, shift = 0, 0
        while True:
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
            if shift > 63:
                raise Damaged(f"{self.what}: a number without an end")
        if value > limit:
            raise Damaged(f"{self.what}: the number {value}, at most {limit}")
        return value

    def end(self):
        if self.left():
            raise Damaged(f"{self.what}: {self.left()} bytes too many")


def unzstd(body, limit, what, dictionary=None):
    """Decompresses one Zstandard frame of at most limit bytes. The dictionary is raw content."""
    try:
        size = zstandard.frame_content_size(body)
        if size > limit:
            raise Damaged(f"{what}: {size} bytes")
        if dictionary is not None:
            dictionary = zstandard.ZstdCompressionDict(dictionary, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
        return zstandard.ZstdDecompressor(dict_data=dictionary, max_window_size=8 << 20).decompress(body, max_output_size=limit, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise Damaged(f"{what}: {e}") from e


class Trailer:
    def __init__(self, data, what):
        b = data[-TRAILER_BYTES:]
        if len(b) < TRAILER_BYTES or b[24:31] != b"bctlend":
            raise Damaged(f"{what}: does not end with a pack")
        if crc32c(b[:32]) != le(b[32:]):
            raise Damaged(f"{what}: the trailer's checksum")
        if b[31] != 1:
            raise Damaged(f"{what}: pack version {b[31]}")
        self.pack, self.header = le(b[:8]), le(b[8:12])
        self.table, self.bitmap, self.signature = le(b[12:16]), le(b[16:20]), le(b[20:24])
        self.frames_end = self.pack - TRAILER_BYTES - self.signature - self.bitmap - self.table
        if self.pack > MAX_PACK_BYTES or self.pack > len(data) or self.table < TAG_BYTES or not 48 < self.header <= self.frames_end:
            raise Damaged(f"{what}: lengths of the trailer")


class Frame:
    def __init__(self, number, codec, offset, sealed, raw, chunks, present):
        self.number, self.codec, self.offset, self.sealed, self.raw = number, codec, offset, sealed, raw
        self.chunk_count, self.present = chunks, present
        self.chunks = []  # (hash, offset, length)


class Pack:
    """A pack: data is all of its bytes."""

    def __init__(self, data, what, repository, identities, kind, pack_id=None, signed_as=None, signer=None):
        t = Trailer(data, what)
        if t.pack != len(data):
            raise Damaged(f"{what}: {len(data)} bytes, the trailer says {t.pack}")
        self.data, self.what, self.kind = data, what, kind
        signature_end = t.pack - TRAILER_BYTES
        if kind == KIND_DATA:
            if t.signature:
                raise Damaged(f"{what}: a data pack with a signature")
        else:
            if t.signature != 64 or t.bitmap:
                raise Damaged(f"{what}: a pack of kind {kind} without its signature, or with a bitmap")
            keys.verify(signer, repository, signed_as, data[: signature_end - 64], data[signature_end - 64 : signature_end])
        self.fixed = self._header(data[: t.header], repository, pack_id)
        wrapped = data[44 : t.header - 4]
        key = age.decrypt(wrapped, identities)
        if len(key) != 32:
            raise Damaged(f"{what}: a data key of {len(key)} bytes")
        self.aead = AESGCM(key)
        table = self._open(data[t.frames_end : t.frames_end + t.table], 1 << 63, b"T", 0)
        self.frames = self._table(table, data[t.frames_end + t.table :][: t.bitmap], t)

    def _header(self, h, repository, pack_id):
        wrapped = le(h[10:12])
        if h[:8] != b"bctlpack" or crc32c(h[:-4]) != le(h[-4:]):
            raise Damaged(f"{self.what}: the header's magic or checksum")
        if h[8] != 1 or h[9] != self.kind or not 0 < wrapped <= MAX_WRAPPED_BYTES or 48 + wrapped != len(h):
            raise Damaged(f"{self.what}: header of version {h[8]}, kind {h[9]}")
        if h[12:28] != repository or pack_id is not None and h[28:44] != pack_id:
            raise Damaged(f"{self.what}: another repository or pack id")
        self.id = h[28:44]
        return h[:44]

    def _open(self, sealed, counter, section, number):
        try:
            return self.aead.decrypt(b"bctl" + counter.to_bytes(8, "big"), sealed, self.fixed + section + number.to_bytes(4, "little"))
        except InvalidTag as e:
            raise Damaged(f"{self.what}: section {section.decode()} {number} does not authenticate") from e

    def _table(self, plaintext, bitmap, t):
        c = Cursor(plaintext, self.what + ": table")
        count = c.varint(MAX_FRAMES)
        if count == 0 or 4 * count > c.left():
            raise Damaged(f"{self.what}: {count} frames")
        present = [True] * count
        if bitmap:
            bits = le(bitmap)
            present = [bool(bits >> i & 1) for i in range(count)]
            if len(bitmap) != (count + 7) // 8 or bits >> count or all(present):
                raise Damaged(f"{self.what}: bitmap")
        frames, offset, raw_bytes, chunks = [], t.header, 0, 0
        for n in range(count):
            codec, sealed = c.byte(), c.varint(MAX_FRAME_RAW_BYTES + TAG_BYTES)
            raw, inside = c.varint(MAX_FRAME_RAW_BYTES), c.varint(MAX_CHUNKS)
            body = sealed - TAG_BYTES
            if codec > 2 or not 0 < body <= raw or codec == 0 and body != raw or inside == 0 and self.kind == KIND_DATA:
                raise Damaged(f"{self.what}: frame {n} of the table")
            frames.append(Frame(n, codec, offset, sealed, raw, inside, present[n]))
            offset += sealed if present[n] else 0
            raw_bytes, chunks = raw_bytes + raw, chunks + inside
        if offset != t.frames_end or raw_bytes > MAX_RAW_BYTES or chunks > MAX_CHUNKS:
            raise Damaged(f"{self.what}: frames end at {offset}, not at {t.frames_end}")
        for frame in frames:
            at = 0
            for _ in range(frame.chunk_count):
                digest, length = bytes(c.take(32)), c.varint(frame.raw - at)
                if length == 0:
                    raise Damaged(f"{self.what}: an empty chunk")
                frame.chunks.append((digest, at, length))
                at += length
            if frame.chunks and at != frame.raw:
                raise Damaged(f"{self.what}: chunks do not fill frame {frame.number}")
        c.end()
        return frames

    def read(self, number):
        """Returns the plaintext of a frame."""
        f = self.frames[number]
        if not f.present:
            raise Damaged(f"{self.what}: frame {number} was removed")
        body = self._open(self.data[f.offset : f.offset + f.sealed], number, b"F", number)
        what = f"{self.what}: frame {number}"
        try:
            raw = body if f.codec == 0 else unzstd(body, f.raw, what) if f.codec == 1 else s2.decode(body, f.raw)
        except s2.S2Error as e:
            raise Damaged(f"{what}: {e}") from e
        if len(raw) != f.raw:
            raise Damaged(f"{what}: {len(raw)} bytes, not {f.raw}")
        return raw


def split(data, what):
    """Yields the packs of an object, the last first: (offset, bytes)."""
    end = len(data)
    while end > 0:
        t = Trailer(data[:end], what)
        yield end - t.pack, data[end - t.pack : end]
        end -= t.pack


class Chunks:
    """All copies of all chunks in the store; a frame that was read is kept while it is the last."""

    def __init__(self, dedup):
        self.dedup, self.places, self.last = dedup, {}, (None, None, b"")

    def add(self, pack):
        for frame in pack.frames:
            if frame.present:
                for digest, offset, length in frame.chunks:
                    self.places.setdefault(digest[:16], []).append((pack, frame.number, digest, offset, length))

    def get(self, chunk_id, length, report):
        """Returns a chunk, from the first copy that is good."""
        problems = [f"chunk {chunk_id.hex()} is not in the store"]
        for pack, number, digest, offset, size in self.places.get(chunk_id, ()):
            try:
                if self.last[:2] != (pack, number):
                    self.last = (pack, number, pack.read(number))
                data = self.last[2][offset : offset + size]
                if size != length or blake3(data, key=self.dedup).digest() != digest:
                    raise Damaged(f"{pack.what}: chunk {chunk_id.hex()} does not have its hash or length")
                for problem in problems[1:]:
                    report(f"{problem}; another copy is good")
                return data
            except Damaged as e:
                problems.append(str(e))
        raise Damaged("; ".join(problems[1:] or problems))
