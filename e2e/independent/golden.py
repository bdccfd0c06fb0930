"""The golden files of the formats, read by this reader."""

import os
import unittest

import age
import journal
import keys
import listing
import pack

HERE = os.path.dirname(os.path.abspath(__file__))


def path(package, name):
    return os.path.join(HERE, "..", "..", "internal", package, "testdata", "v1", name)


def read(package, name):
    with open(path(package, name), "rb") as f:
        return f.read()


def identity(package):
    return read(package, "identity.txt").decode()


def committer(package):
    """Returns repository id and signer of a committer key."""
    t = keys.Text(read(package, "committer.key"), "bctl-committer-key", keys.MAX_KEY_BYTES)
    repository, _, signer = t.hex("repository", 16), t.hex("seed", 32), t.hex("signer", 32)
    t.checksum()
    return repository, signer


class Listings(unittest.TestCase):
    def page(self, name):
        return listing.decode(read("listing", name), name)

    def test_small(self):
        p = self.page("small.listing")
        self.assertEqual([(e.name, e.kind, e.size, e.inode) for e in p.entries], [(b"a.txt", 1, 5, 12), (b"a.txt.d", 2, 0, 11)])
        self.assertEqual((p.next, p.self.mode, p.entries[0].refs[0].chunk), (0, 0o755, b"chunk of a.txt  "))

    def test_every_kind(self):
        p = self.page("every-kind.listing")
        e = {e.name: e for e in p.entries}
        self.assertEqual({x.kind for x in p.entries}, set(range(1, 8)))
        self.assertEqual(p.next, 2**53 + 1)
        self.assertEqual(p.self.flags, listing.RACY | listing.BOUNDARY)
        self.assertEqual(e[b"directory of another file system"].flags, listing.BOUNDARY)
        self.assertEqual(e[b"unreadable"].xattr_chunk, bytes([6] * 16))
        self.assertEqual((e[b"larger"].depth, e[b"larger"].xattr_chunk, e[b"larger"].refs[0].span), (1, bytes([8] * 16), 2**30 - 5))
        self.assertEqual([r.key() for r in e[b"large"].refs], [(0, 500, 2**41, bytes([3] * 16)), (2**40, 600, 2**40, bytes([4] * 16))])
        self.assertEqual([r.key() for r in e[b"holes"].refs], [(10, 20, 20, bytes([1] * 16)), (30, 40, 40, bytes([2] * 16))])
        self.assertEqual(e[b"small"].xattrs, [(b"user.a", b"value"), (b"user.empty", b"")])
        self.assertEqual((e[b"char"].rdev, e[b"symlink"].target, e[b"fifo"].mtime), (2**64 - 1, b"../\xfe", (-(2**40), 0)))
        self.assertEqual((e[b"socket"].uid, e[b"socket"].links, e[b"socket"].btime), (2**32 - 1, 2**32 - 1, (-1, 1)))

    def test_others(self):
        self.assertEqual([e.flags for e in self.page("wanted.listing").entries], [listing.WANTED, listing.XATTRS_WANTED | listing.RACY])
        self.assertEqual(self.page("unknown.listing").self.flags, listing.UNREADABLE | listing.ATTRIBUTES_UNKNOWN)
        self.assertEqual(len(self.page("second.listing").entries), 300)
        self.assertNotEqual(self.page("several.listing").next, 0)
        self.assertEqual(self.page("empty.listing").entries, [])

    def test_patches(self):
        base = listing.plain(read("listing", "second.listing"), "second.listing")
        changed = listing.patched(base, read("listing", "changed.patch"), "changed.patch")
        self.assertEqual(changed, listing.patched(None, read("listing", "whole.patch"), "whole.patch"))
        before, after = listing.decode(base, "second.listing").entries, listing.decode(changed, "changed.patch").entries
        self.assertEqual((len(before), len(after), after[100].name, after[100].size), (300, 299, before[100].name, 7))
        self.assertEqual([e.name for e in after], [e.name for e in before[:200] + before[201:]])

    def test_chunks(self):
        refs = listing.decode_refs(read("listing", "list.chunk"), 2, "list.chunk")
        self.assertEqual([r.span for r in refs], [2**41, 2**40])
        self.assertEqual([name for name, _ in listing.decode_xattrs(read("listing", "xattrs.chunk"), "xattrs.chunk")], [b"security.capability", b"user.empty", b"user.large"])


class Packs(unittest.TestCase):
    def setUp(self):
        self.identities = age.parse_identities(identity("pack"))
        self.repository, self.signer = committer("pack")

    def open(self, name, data=None, kind=pack.KIND_DATA):
        signed = ("segments/some/where", self.signer) if kind != pack.KIND_DATA else (None, None)
        return pack.Pack(data or read("pack", name), name, self.repository, self.identities, kind, b"sixteen byte id!", *signed)

    def test_codecs(self):
        small = self.open("small.pack")
        self.assertEqual([small.read(n) for n in range(2)], [b"hello, world", b"a" * 100])
        zstd, s2 = self.open("zstd.pack"), self.open("s2.pack")
        self.assertEqual((zstd.frames[0].codec, s2.frames[0].codec), (1, 2))
        self.assertEqual([zstd.read(n) for n in range(2)], [s2.read(n) for n in range(2)])
        for p in (small, zstd, s2):
            for frame in p.frames:
                raw = p.read(frame.number)
                for digest, offset, length in frame.chunks:
                    self.assertEqual(pack.blake3(raw[offset : offset + length], key=b"the dedup key has 32 bytes, too.").digest(), digest)

    def test_thinned(self):
        p = self.open("thinned.pack")
        self.assertEqual([f.present for f in p.frames], [False, True])
        self.assertEqual(p.read(1), b"a" * 100)
        with self.assertRaises(keys.Damaged):
            p.read(0)

    def test_row(self):
        row = read("pack", "row.object")
        found = list(pack.split(row, "row.object"))
        self.assertEqual([data for _, data in found], [read("pack", n) for n in ("s2.pack", "thinned.pack", "zstd.pack")])
        for _, data in found:
            self.open("row.object", data)
        with self.assertRaises(keys.Damaged):
            self.open("row.object")

    def test_signed(self):
        self.assertEqual(self.open("segment.pack", kind=pack.KIND_SEGMENT).read(0), b"rows of an index segment")
        self.assertEqual(self.open("index.pack", kind=pack.KIND_INDEX).read(1), b"and another")


class Keys(unittest.TestCase):
    def test_seal(self):
        text = identity("seal")
        identities = age.parse_identities(text)
        blob = age.decrypt(read("seal", "worker-key.age"), identities)
        self.assertEqual(blob, read("seal", "worker-key.txt"))
        t = keys.Text(blob, "bctl-worker-key", keys.MAX_KEY_BYTES)
        repository, dedup, signer = t.hex("repository", 16), t.hex("dedup", 32), t.hex("signer", 32)
        self.assertEqual(len(t.recipients()), 2)
        t.checksum()
        self.assertEqual(dedup, b"0123456789abcdef0123456789abcdef")
        self.assertEqual(keys.signer_of(text, repository), signer)
        self.assertEqual(age.decrypt(read("seal", "committer-key.age"), identities), read("seal", "committer-key.txt"))
        key = age.decrypt(read("seal", "wrapped.age"), identities)
        nonce = b"bctl" + (1 << 63 | 5).to_bytes(8, "big")
        self.assertEqual(pack.AESGCM(key).decrypt(nonce, read("seal", "sealed.bin"), b"additional data"), b"what the frame says")
        keys.verify(signer, repository, "commits/61206e616d65", b"what the committers say", read("seal", "signature.bin"))
        with self.assertRaises(keys.Damaged):
            keys.verify(signer, repository, "commits/61206e616d66", b"what the committers say", read("seal", "signature.bin"))

    def test_repository(self):
        text = identity("repo")
        r = keys.Repository(read("repo", "repository"))
        self.assertEqual((r.chunker, r.codec, len(r.recipients)), ("fastcdc-v1.0.0-1MiB", "zstd-1", 2))
        self.assertEqual(keys.signer_of(text, r.id), r.signer)
        t = keys.Text(read("repo", "worker.key"), "bctl-worker-key", keys.MAX_KEY_BYTES)
        t.hex("repository", 16)
        self.assertEqual(r.dedup_key(age.parse_identities(text)), t.hex("dedup", 32))
        self.assertEqual(committer("repo"), (r.id, r.signer))


class Golden:
    """A store of the golden objects of the journal."""

    def __init__(self, record, amendment=0):
        self.repository, self.signer = committer("journal")
        self.identities = age.parse_identities(identity("journal"))
        self.files = {journal.commit_name("ab" + "00" * 15, amendment): record}
        for part in range(2):
            self.files[f"segments/ab{'00' * 15}/010203{'00' * 13}-{part:06d}"] = f"segment-{part:06d}"
        self.files[f"segments/ab{'00' * 15}/040506{'00' * 13}-000000"] = "checkpoint"
        self.files[f"segments/ab{'00' * 15}/070809{'00' * 13}-000000"] = "patched"

    def read(self, name):
        return read("journal", self.files[name])


class Journal(unittest.TestCase):
    def test_commits(self):
        c = journal.Commit(Golden("committed"), "ab" + "00" * 15)
        self.assertEqual((c.state, c.snapshot["number"], c.snapshot["root"]), ("committed", 7, "type=ext4 id=a%20b inode=2 born=1700000000.000000005"))
        self.assertEqual((c.segment["parts"], c.counts["torn"], c.counts["commit_seconds"]), (2, 11, 7.5))
        self.assertEqual([p.get("path_b64") for p in c.problems], ["Y2Fm6S9sb2NrZWQ=", None, None])
        self.assertEqual(journal.Commit(Golden("failed"), "ab" + "00" * 15).state, "failed")

    def test_amendments(self):
        c = journal.Commit(Golden("amended", 3), "ab" + "00" * 15, 3)
        self.assertEqual((c.state, c.snapshot["number"], c.base["number"], c.segment["parts"]), ("committed", 7, 4, 2))
        self.assertNotEqual(c.base, c.snapshot["base"])
        for record, amendment in (("amended", 2), ("amended", 0), ("committed", 1)):
            with self.assertRaises(keys.Damaged):
                journal.Commit(Golden(record, amendment), "ab" + "00" * 15, amendment)

    def test_segments(self):
        for attempt, parts, base, checkpoint in (("010203", 2, True, False), ("040506", 1, False, True)):
            store = Golden("committed")
            c = journal.Commit(store, "ab" + "00" * 15)
            c.segment = {"attempt": attempt + "00" * 13, "parts": parts, "checkpoint": checkpoint}
            last = f"segments/{c.id}/{c.segment['attempt']}-{parts - 1:06d}"
            opened = pack.Pack(store.read(last), last, store.repository, store.identities, pack.KIND_SEGMENT, bytes.fromhex(c.segment["attempt"]), last, store.signer)
            c.content = journal.check_content(journal.header(opened, last)["content"], last)
            pages = journal.Pages()
            if base:  # of which only the digests are known
                for name, digest in (((b"usr/gone", 5), 5), ((b"other", 0), 6)):
                    version = journal.PageVersion(b"", bytes([digest] + [0] * 31))
                    pages.add(name, version, "base")
            pages.apply(store, c)
            self.assertEqual(pages.content(), c.content)
            self.assertIn((b"usr/\xff", 2**53 - 1), pages.pages)

    def test_patches(self):
        store = Golden("committed")
        c = journal.Commit(store, "ab" + "00" * 15)
        c.segment = {"attempt": "070809" + "00" * 13, "parts": 1, "checkpoint": False}
        name = f"segments/{c.id}/{c.segment['attempt']}-000000"
        opened = pack.Pack(store.read(name), name, store.repository, store.identities, pack.KIND_SEGMENT, bytes.fromhex(c.segment["attempt"]), name, store.signer)
        c.content = journal.check_content(journal.header(opened, name, (2,))["content"], name)
        pages = journal.Pages()
        pages.add((b"usr", 0), journal.PageVersion(read("listing", "second.listing"), bytes([5] + [0] * 31)), "base")
        pages.add((b"other", 0), journal.PageVersion(b"", bytes([6] + [0] * 31)), "base")
        pages.apply(store, c)
        self.assertEqual(pages.content(), c.content)
        self.assertEqual(pages.pages[b"usr", 0].listing, listing.plain(read("listing", "every-kind.listing"), "every-kind.listing"))
        with self.assertRaises(keys.Damaged):
            journal.Pages().apply(store, c)

    def test_catalog(self):
        store, name = Golden("committed"), "catalog/0000000000001234"
        p = pack.Pack(read("journal", "catalog"), name, store.repository, store.identities, pack.KIND_CATALOG, bytes(14) + b"\x12\x34", name, store.signer)
        h = journal.header(p, name)
        self.assertEqual((h["sequence"], h["filers"], h["shards"], h["policies"]), (0x1234, 2, 2, 2))
        lines = [journal.json.loads(line) for line in p.read(1).splitlines()]
        self.assertEqual([list(line) for line in lines], [["filer"]] * 2 + [["shard"]] * 2 + [["policy"]] * 2)
        self.assertEqual(lines[4]["policy"]["retention"]["within_seconds"], 172800)


if __name__ == "__main__":
    unittest.main()
