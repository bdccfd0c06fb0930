#!/usr/bin/env python3
"""Restores a snapshot from a bctl store, from docs/formats alone."""

import argparse
import os
import stat
import sys

import age
import journal
import keys
import listing
import pack
from keys import Damaged

KINDS = {
    listing.FIFO: stat.S_IFIFO,
    listing.SOCKET: stat.S_IFSOCK,
    listing.CHARDEV: stat.S_IFCHR,
    listing.BLOCKDEV: stat.S_IFBLK,
}


class Store:
    """A store in a directory, and what it takes to believe and open it."""

    def __init__(self, path, identity_text, signer, report):
        self.path, self.report = path, report
        self.identities = age.parse_identities(identity_text)
        r = keys.Repository(self.read("repository"))
        known = signer or keys.signer_of(identity_text, r.id)
        if known is None:
            report(f"nothing names the signer of repository {r.id.hex()}: the store is believed as it is")
        elif known != r.signer:
            raise Damaged(f"the object repository names the signer {r.signer.hex()}, and {known.hex()} is known: it was replaced")
        self.repository, self.signer = r.id, r.signer
        self.dedup = r.dedup_key(self.identities)

    def read(self, name):
        try:
            with open(os.path.join(self.path, name), "rb") as f:
                return f.read()
        except FileNotFoundError as e:
            raise Damaged(f"{name} is not in the store") from e

    def names(self, prefix):
        for directory, _, files in sorted(os.walk(os.path.join(self.path, prefix))):
            for name in sorted(files):
                yield os.path.relpath(os.path.join(directory, name), self.path)

    def amendments(self):
        """The greatest amendment of each snapshot that has a record."""
        newest = {}
        for name in self.names("commits"):
            snapshot, _, digits = name.removeprefix("commits/").partition("-")
            amendment = int(digits) if digits.isdecimal() else 0
            if name == journal.commit_name(snapshot, amendment):
                newest[snapshot] = max(newest.get(snapshot, 0), amendment)
        return newest

    def commit(self, snapshot):
        """The valid record of a snapshot."""
        return journal.Commit(self, snapshot, self.amendments().get(snapshot, 0))

    def commits(self):
        """All valid commit records that can be read, the oldest snapshot first."""
        found = []
        for snapshot, amendment in self.amendments().items():
            try:
                found.append(journal.Commit(self, snapshot, amendment))
            except Damaged as e:
                self.report(str(e))
        return sorted(found, key=lambda c: (c.snapshot["shard_key"], c.snapshot["number"]))

    def chunks(self):
        """All chunks of all packs that can be opened."""
        chunks = pack.Chunks(self.dedup)
        for name in self.names("packs"):
            data = self.read(name)
            try:
                for offset, one in pack.split(data, name):
                    chunks.add(pack.Pack(one, f"{name} at {offset}", self.repository, self.identities, pack.KIND_DATA))
            except (Damaged, age.AgeError) as e:
                self.report(f"{name}: {e}")
        return chunks


class Tree:
    """The directories of a snapshot, every page of which is in its place."""

    def __init__(self, pages):
        self.pages, self.unread = pages, set(pages)
        self.directories = {}
        waiting = [b""]
        while waiting:
            path = waiting.pop()
            directory, entries = self.follow(path)
            self.directories[path] = (directory, entries)
            waiting += [join(path, e.name) for e in entries if e.kind == listing.DIRECTORY]
        if self.unread:
            raise Damaged(f"pages that no page leads to: {sorted(self.unread)[:5]}")

    def follow(self, path):
        """Reads a directory from its first page along the chain."""
        key, directory, entries = 0, None, []
        while True:
            if (path, key) not in self.unread:
                raise Damaged(f"page {key} of {path!r} is missing, or comes twice")
            self.unread.remove((path, key))
            p = listing.decode(self.pages[path, key].listing, f"page {key} of {path!r}")
            if (p.self is not None) != (key == 0):
                raise Damaged(f"page {key} of {path!r}: only the first page has the directory itself")
            if p.entries and entries and p.entries[0].name <= entries[-1].name:
                raise Damaged(f"page {key} of {path!r}: names do not ascend")
            directory, entries = directory or p.self, entries + p.entries
            if p.next == 0:
                return directory, entries
            key = p.next


def join(path, name):
    return path + b"/" + name if path else name


class Group:
    """The names of one file."""

    def __init__(self, first, born):
        self.first, self.born = first, born

    def may_have(self, e):
        """The birth times are equal, or one of them is unknown."""
        return not any(self.born) or not any(e.btime) or self.born == e.btime


class Restore:
    def __init__(self, store, pages, target, compare):
        self.by_ctime = "ctime" in compare
        self.store, self.tree, self.target = store, Tree(pages), os.fsencode(target)
        self.chunks, self.problems, self.links = store.chunks(), 0, {}

    def problem(self, path, text):
        self.problems += 1
        self.store.report(f"{os.fsdecode(path) or '.'}: {text}")

    def run(self):
        os.mkdir(self.target, 0o700)
        self.directory(b"", b"")

    def at(self, path):
        return join(self.target, path) if path else self.target

    def directory(self, path, file_system):
        self_, entries = self.tree.directories[path]
        if self_.flags & listing.BOUNDARY:
            file_system = path
        self.flaws(path, self_)
        for e in entries:
            child = join(path, e.name)
            try:
                if e.kind == listing.DIRECTORY and self.gone(child):
                    continue
                if e.kind == listing.DIRECTORY:
                    os.mkdir(self.at(child), 0o700)
                    self.directory(child, file_system)
                else:
                    self.entry(child, e, child if e.flags & listing.BOUNDARY else file_system)
            except (Damaged, OSError) as error:
                self.problem(child, str(error))
        if not self_.flags & listing.ATTRIBUTES_UNKNOWN:
            self.attributes(path, self_, self.xattrs(self_))

    def gone(self, path):
        """Whether a directory was gone before it could be looked at."""
        flags = self.tree.directories[path][0].flags
        return flags & (listing.ATTRIBUTES_UNKNOWN | listing.UNREADABLE) == listing.ATTRIBUTES_UNKNOWN

    def flaws(self, path, e):
        for flag, text in listing.FLAWS.items():
            if e.flags & flag:
                self.problem(path, text)

    def entry(self, path, e, file_system):
        self.flaws(path, e)
        if e.flags & listing.CONTENT_MISSING:
            return
        xattrs = self.xattrs(e)
        keys = self.link_keys(e, file_system, xattrs)
        group = next((self.links[key] for key in keys if key in self.links and self.links[key].may_have(e)), None)
        if group:
            os.link(self.at(group.first), self.at(path), follow_symlinks=False)
            group.born = group.born if any(group.born) else e.btime
            self.learn(keys, group)
            return
        if e.kind == listing.FILE:
            self.file(path, e)
        elif e.kind == listing.SYMLINK:
            os.symlink(e.target, self.at(path))
        else:
            os.mknod(self.at(path), KINDS[e.kind] | 0o600, e.rdev)
        self.attributes(path, e, xattrs)
        self.learn(keys, Group(path, e.btime))

    def learn(self, keys, group):
        for key in keys:
            self.links.setdefault(key, group)

    def link_keys(self, e, file_system, xattrs):
        """Two names are one file if they have one of these in common, and Group.may_have."""
        if e.links < 2:
            return []
        common = (file_system, e.inode, e.kind, e.size, e.mode, e.uid, e.gid, e.mtime, e.rdev, e.target, tuple(sorted(xattrs)))
        keys = [(common, "content", e.depth, tuple(r.key() for r in e.refs))]
        if self.by_ctime and e.kind == listing.FILE and e.ctime[1] and not e.flags & listing.PROVISIONAL:
            keys.append((common, "ctime", e.ctime))
        return [(key, e.btime) for key in keys if any(e.btime)] + keys

    def file(self, path, e):
        fd = os.open(self.at(path), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, e.size)
            self.content(fd, e.refs, e.depth, 0, e.size)
        except Damaged:
            os.unlink(self.at(path))
            raise
        finally:
            os.close(fd)

    def content(self, fd, refs, depth, at, end):
        """Writes what refs stand for, from at to end; the rest is a hole."""
        for r in refs:
            at += r.hole
            if r.length < 1 or at + r.span > end:
                raise Damaged("content reaches beyond its file")
            data = self.chunks.get(r.chunk, r.length, self.store.report)
            if depth:
                self.content(fd, listing.decode_refs(data, depth - 1, f"list chunk {r.chunk.hex()}"), depth - 1, at, at + r.span)
            else:
                os.pwrite(fd, data, at)
            at += r.span

    def xattrs(self, e):
        if e.xattr_chunk is None:
            return e.xattrs
        return listing.decode_xattrs(self.chunks.get(e.xattr_chunk, e.xattr_bytes, self.store.report), f"xattr chunk {e.xattr_chunk.hex()}")

    def attributes(self, path, e, xattrs):
        """Owner first, which takes set-id bits away; mtime last."""
        full = self.at(path)
        try:
            os.chown(full, e.uid, e.gid, follow_symlinks=False)
        except PermissionError as error:
            self.problem(path, f"owner {e.uid}:{e.gid}: {error}")
        for name, value in xattrs:
            try:
                os.setxattr(full, name, value, follow_symlinks=False)
            except OSError as error:
                self.problem(path, f"extended attribute {name!r}: {error}")
        if e.kind != listing.SYMLINK:
            os.chmod(full, e.mode)
        seconds, nanos = e.mtime
        os.utime(full, ns=(seconds * 10**9 + nanos,) * 2, follow_symlinks=False)


def choose(commits, wanted):
    """The snapshot whose id begins with wanted, or the one of the greatest number."""
    found = [c for c in commits if c.state == "committed" and (wanted == "latest" or c.id.startswith(wanted))]
    if not found or wanted != "latest" and len(found) > 1:
        raise Damaged(f"{len(found)} committed snapshots are {wanted!r}")
    return max(found, key=lambda c: c.snapshot["number"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", required=True, help="the store's directory")
    parser.add_argument("--identity", required=True, help="an identity file")
    parser.add_argument("--signer", type=bytes.fromhex, help="the repository's signer, where the identity file does not name it")
    parser.add_argument("--snapshot", default="latest", help="an id, its beginning, or latest")
    parser.add_argument("--target", help="a directory to make; without it, snapshots are listed")
    o = parser.parse_args()

    def report(text):
        print(text, file=sys.stderr)

    try:
        with open(o.identity, encoding="utf-8") as f:
            identity_text = f.read(keys.MAX_IDENTITY_BYTES)
        store = Store(o.store, identity_text, o.signer, report)
        commits = store.commits()
        if o.target is None:
            for c in commits:
                print(c.id, c.snapshot["filer"], c.snapshot["shard"], c.snapshot["number"], c.state, c.snapshot["started"])
            return 0
        chosen = choose(commits, o.snapshot)
        restore = Restore(store, journal.pages_of(store, chosen), o.target, chosen.snapshot["compare"])
        restore.run()
        return 3 if restore.problems else 0
    except (Damaged, age.AgeError) as e:
        report(f"restore: {e}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
