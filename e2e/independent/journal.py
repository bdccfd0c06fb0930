"""Segments, commit records, and the pages of a snapshot (docs/formats/journal.md)."""

import json
import re

import listing
from keys import Damaged
from pack import KIND_COMMIT, KIND_SEGMENT, Cursor, Pack

MAX_PATH_BYTES = 64 << 10


def header(pack, what, versions=(1,)):
    try:
        h = json.loads(pack.read(0).decode("utf-8"))
    except ValueError as e:
        raise Damaged(f"{what}: header: {e}") from e
    if not isinstance(h, dict) or h.get("version") not in versions:
        raise Damaged(f"{what}: another version")
    return h


def is_id(value):
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value) is not None


def check_snapshot(s, snapshot, what):
    base = s.get("base")
    if s.get("id") != snapshot or not is_id(s.get("shard_key")) or not isinstance(s.get("number"), int) or s["number"] < 1:
        raise Damaged(f"{what}: of snapshot {s.get('id')!r}")
    if base is not None and not (is_id(base.get("id")) and 0 < base["number"] < s["number"]):
        raise Damaged(f"{what}: base {base!r}")


def check_content(content, what):
    if not isinstance(content, dict) or not re.fullmatch("[0-9a-f]{64}", content.get("sum", "")) or content.get("pages", -1) < 0:
        raise Damaged(f"{what}: content {content!r}")
    return content["pages"], content["sum"]


def commit_name(snapshot, amendment):
    return f"commits/{snapshot}-{amendment:06d}" if amendment else f"commits/{snapshot}"


class Commit:
    """A commit record. The valid one of several is that of the greatest amendment."""

    def __init__(self, store, snapshot, amendment=0):
        name = commit_name(snapshot, amendment)
        pack = Pack(store.read(name), name, store.repository, store.identities, KIND_COMMIT, bytes.fromhex(snapshot), name, store.signer)
        h = header(pack, name, (2,) if amendment else (1,))
        check_snapshot(h["snapshot"], snapshot, name)
        if h.get("amendment", 0) != amendment:
            raise Damaged(f"{name}: amendment {h.get('amendment')!r}")
        # The snapshot on which the segment is based.
        self.base = h.get("based_on") if amendment else h["snapshot"].get("base")
        self.id, self.snapshot, self.state = snapshot, h["snapshot"], h["state"]
        self.segment, self.content, self.counts = h.get("segment"), None, h["counts"]
        self.started, self.reason = h["snapshot"]["started"], h.get("reason", "")
        if self.state not in ("committed", "failed"):
            raise Damaged(f"{name}: state {self.state!r}")
        if self.state == "committed":
            self.content = check_content(h.get("content"), name)
            g = self.segment
            if g is not None and not (is_id(g["attempt"]) and g["parts"] >= 1):
                raise Damaged(f"{name}: segment {g!r}")
            if amendment and (self.base is None) != (g is not None and g["checkpoint"]):
                raise Damaged(f"{name}: based on {self.base!r}, segment {g!r}")
        if self.base is not None and not (is_id(self.base.get("id")) and 0 < self.base["number"] < h["snapshot"]["number"]):
            raise Damaged(f"{name}: base {self.base!r}")
        self.problems = []
        for n in range(1, len(pack.frames)):
            for line in pack.read(n).decode("utf-8").split("\n")[:-1]:
                self.problems.append(json.loads(line))
        if len(self.problems) != h["problems"]:
            raise Damaged(f"{name}: {len(self.problems)} problems, the header says {h['problems']}")


def valid_path(path):
    return path == b"" or len(path) <= MAX_PATH_BYTES and all(listing.valid_name(name) for name in path.split(b"/"))


class PageVersion:
    def __init__(self, data, digest):
        self.listing, self.digest = data, int.from_bytes(digest, "little")


class Pages:
    """The pages of a snapshot, by (path, key)."""

    def __init__(self):
        self.pages, self.sum = {}, 0

    def content(self):
        return len(self.pages), (self.sum % 2**256).to_bytes(32, "little").hex()

    def remove(self, name, what):
        if name not in self.pages:
            raise Damaged(f"{what}: page {name} ends, and was not there")
        self.sum -= self.pages.pop(name).digest

    def add(self, name, version, what):
        if name in self.pages:
            raise Damaged(f"{what}: page {name} is added, and is there")
        self.pages[name] = version
        self.sum += version.digest

    def apply(self, store, commit):
        """Applies the segment that the commit record names."""
        g = commit.segment
        added, ended = [], []
        for part in range(g["parts"]):
            name = f"segments/{commit.id}/{g['attempt']}-{part:06d}"
            pack = Pack(store.read(name), name, store.repository, store.identities, KIND_SEGMENT, bytes.fromhex(g["attempt"]), name, store.signer)
            h, last = header(pack, name, (1, 2)), part == g["parts"] - 1
            check_snapshot(h["snapshot"], commit.id, name)
            if h["part"] != part or h["last"] != last or h["checkpoint"] != g["checkpoint"] or (h.get("content") is not None) != last:
                raise Damaged(f"{name}: it is part {h['part']}, last {h['last']}, checkpoint {h['checkpoint']}")
            if last and check_content(h["content"], name) != commit.content:
                raise Damaged(f"{name}: another content than in the commit record")
            for n in range(1, len(pack.frames)):
                c = Cursor(pack.read(n), f"{name}: frame {n}")
                while c.left():
                    change(c, added, ended, self.pages if h["version"] == 2 and not g["checkpoint"] else None)
        if g["checkpoint"]:
            if ended:
                raise Damaged(f"{name}: a checkpoint ends pages")
            self.pages, self.sum = {}, 0
        for page in ended:
            self.remove(page, name)
        for page, version in added:
            self.add(page, version, name)


def change(c, added, ended, base):
    """Reads a change. base has the base's pages if patches may occur."""
    kind = c.byte()
    path = bytes(c.take(c.varint()))
    key = c.varint(2**63 - 1)
    if kind not in ((1, 2) if base is None else (1, 2, 3)) or not valid_path(path):
        raise Damaged(f"{c.what}: a change of kind {kind} at {path!r}")
    if kind == 2:
        ended.append((path, key))
        return
    fingerprint, inode = bytes(c.take(16)), c.varint()
    data = bytes(c.take(c.varint()))
    if kind == 3:
        if (path, key) not in base:
            raise Damaged(f"{c.what}: a patch of a page that the base does not have: {path!r}")
        data = listing.patched(listing.plain(base[path, key].listing, c.what), data, c.what)
    added.append(((path, key), PageVersion(data, listing.digest(path, key, fingerprint, inode, data))))


def pages_of(store, commit):
    """Returns the pages of a committed snapshot, proven by its digest and those on the way."""
    chain = [commit]
    while True:
        c = chain[-1]
        if c.state != "committed":
            raise Damaged(f"snapshot {c.id} was not committed")
        base = c.base
        if base is None or c.segment is not None and c.segment["checkpoint"]:
            break
        before = store.commit(base["id"])
        if before.snapshot["number"] != base["number"] or before.snapshot["shard_key"] != c.snapshot["shard_key"]:
            raise Damaged(f"snapshot {c.id} is based on {base!r}, which is another's")
        chain.append(before)
    pages = Pages()
    for c in reversed(chain):
        if c.segment is not None:
            pages.apply(store, c)
        if pages.content() != c.content:
            raise Damaged(f"snapshot {c.id} consists of {pages.content()}, its commit record says {c.content}")
    return pages.pages
