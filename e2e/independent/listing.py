"""Decoding of listings, list chunks and xattr chunks (docs/formats/listing.md)."""

from blake3 import blake3

from keys import Damaged
from pack import Cursor, unzstd

MAX_COLUMNS_BYTES = 4 << 20
MAX_PATCHED_BYTES = 1 << 20
MAX_ROWS = 1 << 14
MAX_REFS = 1 << 20
MAX_NAME_BYTES = 1020
MAX_TARGET_BYTES = 64 << 10
MAX_XATTRS = 1 << 16
MAX_DEPTH = 4
MAX_INT = 2**63 - 1
FILE, DIRECTORY, SYMLINK, FIFO, SOCKET, CHARDEV, BLOCKDEV = range(1, 8)
RACY, UNREADABLE, CHANGED_WHILE_READ, WANTED = 1, 2, 4, 8
XATTRS_WANTED, XATTRS_UNREADABLE, BOUNDARY, ATTRIBUTES_UNKNOWN, CONTENT_MISSING = 16, 32, 64, 128, 256
PROVISIONAL = RACY | UNREADABLE | CHANGED_WHILE_READ | XATTRS_UNREADABLE | ATTRIBUTES_UNKNOWN | CONTENT_MISSING
FLAWS = {
    UNREADABLE: "could not be read: an earlier state",
    CHANGED_WHILE_READ: "changed while it was read",
    XATTRS_UNREADABLE: "extended attributes could not be read",
    ATTRIBUTES_UNKNOWN: "attributes are not known",
}


class Ref:
    __slots__ = ("hole", "length", "span", "chunk")

    def key(self):
        return self.hole, self.length, self.span, self.chunk


class Entry:
    """One row. Times are (seconds, nanoseconds)."""

    def __init__(self):
        self.name, self.kind, self.flags, self.inode = b"", 0, 0, 0
        self.mode = self.uid = self.gid = self.links = self.size = self.rdev = 0
        self.mtime = self.ctime = self.btime = (0, 0)
        self.target = b""
        self.xattrs, self.xattr_bytes, self.xattr_chunk = [], 0, None
        self.depth, self.refs = 0, []

    def full(self):
        return self.kind != DIRECTORY or self.name == b""


class Page:
    def __init__(self):
        self.next, self.self, self.entries = 0, None, []


def valid_name(name):
    return 0 < len(name) <= MAX_NAME_BYTES and name not in (b".", b"..") and b"/" not in name and b"\0" not in name


def zigzag(value):
    return value >> 1 ^ -(value & 1)


def deltas(c, count, low, high):
    """A column of differences, modulo 2^64, of numbers from low to high."""
    values, value = [], 0
    for _ in range(count):
        value = (value + zigzag(c.varint())) % 2**64
        number = value - 2**64 if low < 0 and value >= 2**63 else value
        if not low <= number <= high:
            raise Damaged(f"{c.what}: the number {number}")
        values.append(number)
    return values


def xattr_list(c, count):
    if count > MAX_XATTRS or 2 * count > c.left():
        raise Damaged(f"{c.what}: {count} xattrs")
    return [(bytes(c.take(c.varint())), bytes(c.take(c.varint()))) for _ in range(count)]


def ref_numbers(c, count, depth):
    if depth > MAX_DEPTH:
        raise Damaged(f"{c.what}: depth {depth}")
    refs = []
    for _ in range(count):
        r = Ref()
        r.hole, r.length, r.chunk = c.varint(MAX_INT), c.varint(MAX_INT), b""
        r.span = c.varint(MAX_INT) if depth else r.length
        refs.append(r)
    return refs


def plain(data, what):
    """The listing with columns that are not compressed."""
    c = Cursor(data, what)
    if c.byte() != 1:
        raise Damaged(f"{what}: another version")
    compression = c.byte()
    columns = bytes(c.take(c.varint()))
    if compression > 1:
        raise Damaged(f"{what}: compression {compression}")
    columns = unzstd(columns, MAX_COLUMNS_BYTES, what) if compression else columns
    return b"\x01\x00" + varint(len(columns)) + columns + bytes(c.take(c.left()))


def patched(base, patch, what):
    """The plain listing of which patch is the patch, given the plain listing that is its base, or None."""
    c = Cursor(patch, what)
    if c.byte() != 2:
        raise Damaged(f"{what}: another version")
    length = c.varint(MAX_PATCHED_BYTES)
    if base is not None and len(base) > MAX_PATCHED_BYTES:
        raise Damaged(f"{what}: a base of {len(base)} bytes")
    data = unzstd(bytes(c.take(c.left())), length, what, base)
    if len(data) != length or data[:2] != b"\x01\x00":
        raise Damaged(f"{what}: it makes {len(data)} bytes")
    return data


def decode(data, what):
    """Decodes a listing."""
    c = Cursor(data, what)
    if c.byte() != 1:
        raise Damaged(f"{what}: another version")
    compression = c.byte()
    columns = c.take(c.varint())
    lists = c.varint(MAX_REFS)
    list_ids = Cursor(c.take(16 * lists), what + ": ids of list chunks")
    if c.left() % 16:
        raise Damaged(f"{what}: chunk ids")
    other_ids = Cursor(c.take(c.left()), what + ": chunk ids")
    if compression > 1:
        raise Damaged(f"{what}: compression {compression}")
    columns = unzstd(columns, MAX_COLUMNS_BYTES, what) if compression else columns
    if len(columns) > MAX_COLUMNS_BYTES:
        raise Damaged(f"{what}: {len(columns)} bytes of columns")
    page, rows = decode_columns(Cursor(columns, what + ": columns"))
    for e in rows:
        for r in e.refs:
            r.chunk = bytes((list_ids if e.depth else other_ids).take(16))
    for e in rows:
        if e.xattr_bytes:
            e.xattr_chunk = bytes(other_ids.take(16))
    list_ids.end()
    other_ids.end()
    return page


def decode_columns(c):
    page, has_self = Page(), c.byte()
    page.next, count = c.varint(MAX_INT), c.varint(MAX_ROWS)
    if has_self > 1 or has_self > count or 5 * count > c.left():
        raise Damaged(f"{c.what}: {count} rows, self {has_self}")
    rows = [Entry() for _ in range(count)]
    names(c, rows, has_self)
    for e in rows:
        e.kind = c.byte()
        if not FILE <= e.kind <= BLOCKDEV:
            raise Damaged(f"{c.what}: kind {e.kind}")
    for e in rows:
        e.flags = c.varint(2**16 - 1)
    for e, inode in zip(rows, deltas(c, count, 0, 2**64 - 1)):
        e.inode = inode
    if has_self and rows[0].kind != DIRECTORY:
        raise Damaged(f"{c.what}: self is no directory")
    full = [e for e in rows if e.full()]
    attributes(c, full)
    for e in full:
        if e.kind == SYMLINK:
            e.target = bytes(c.take(c.varint(MAX_TARGET_BYTES)))
        elif e.kind in (CHARDEV, BLOCKDEV):
            e.rdev = c.varint()
    total = 0
    for e in full:
        x = c.varint()
        if x == 1:
            e.xattr_bytes = c.varint(MAX_INT)
        if x % 2 and (x != 1 or not e.xattr_bytes):
            raise Damaged(f"{c.what}: xattrs {x}")
        if x % 2 == 0:
            e.xattrs = xattr_list(c, x // 2)
            total += x // 2
    if total > MAX_XATTRS:
        raise Damaged(f"{c.what}: {total} xattrs")
    for e in full:
        if e.kind == FILE:
            contents(c, e)
    c.end()
    if has_self:
        page.self, rows = rows[0], rows[1:]
    page.entries = rows
    return page, full


def names(c, rows, has_self):
    shared = [c.varint() for _ in rows]
    own = [c.varint() for _ in rows]
    before, total = b"", 0
    for e, s, o in zip(rows, shared, own):
        total += s + o
        if s > len(before) or total > MAX_COLUMNS_BYTES:
            raise Damaged(f"{c.what}: lengths of names")
        e.name = before[:s] + bytes(c.take(o))
        first = e is rows[0]
        if first and has_self:
            if e.name:
                raise Damaged(f"{c.what}: self has a name")
        elif not valid_name(e.name) or e.name <= before:
            raise Damaged(f"{c.what}: name {e.name!r} after {before!r}")
        before = e.name


def attributes(c, rows):
    n = len(rows)
    for field, high in (("mode", 0o7777), ("uid", 2**32 - 1), ("gid", 2**32 - 1), ("links", 2**32 - 1)):
        for e, value in zip(rows, deltas(c, n, 0, high)):
            setattr(e, field, value)
    for e in rows:
        e.size = c.varint(MAX_INT)
    seconds = [deltas(c, n, -(2**63), MAX_INT) for _ in range(3)]
    for field, secs in zip(("mtime", "ctime", "btime"), seconds):
        planes = [c.take(n) for _ in range(4)]
        for i, e in enumerate(rows):
            nanos = sum(planes[k][i] << 8 * k for k in range(4))
            if nanos > 999_999_999:
                raise Damaged(f"{c.what}: {nanos} nanoseconds")
            setattr(e, field, (secs[i], nanos))


def contents(c, e):
    x = c.varint()
    if x == 1:
        r = Ref()
        r.hole, r.length, r.span, r.chunk = 0, e.size, e.size, b""
        e.refs = [r]
    elif x > 1:
        e.depth = c.byte()
        if 2 * (x - 1) > c.left():
            raise Damaged(f"{c.what}: {x - 1} refs")
        e.refs = ref_numbers(c, x - 1, e.depth)


def decode_refs(data, depth, what):
    """Decodes a list chunk, whose refs must be of that depth."""
    c = Cursor(data, what)
    if c.byte() != 1 or c.byte() != depth:
        raise Damaged(f"{what}: another version or depth")
    count = c.varint(MAX_REFS)
    if 18 * count > c.left():
        raise Damaged(f"{what}: {count} refs")
    refs = ref_numbers(c, count, depth)
    for r in refs:
        r.chunk = bytes(c.take(16))
    c.end()
    return refs


def decode_xattrs(data, what):
    """Decodes an xattr chunk."""
    c = Cursor(data, what)
    if c.byte() != 1:
        raise Damaged(f"{what}: another version")
    xattrs = xattr_list(c, c.varint())
    c.end()
    return xattrs


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def digest(path, key, fingerprint, inode, listing):
    """The digest of a version of a page."""
    return blake3(varint(len(path)) + path + varint(key) + fingerprint + varint(inode) + listing).digest()
