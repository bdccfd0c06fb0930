"""Signatures, key texts and the repository object (docs/formats/keys.md, store.md)."""

import base64
import hashlib
import re

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

import age

MAX_OBJECT_BYTES = 1 << 20
MAX_KEY_BYTES = 64 << 10
MAX_IDENTITY_BYTES = 1 << 20
MAX_RECIPIENTS = 64


class Damaged(Exception):
    """Bytes of the store are not what was written, or not by whom they should be."""


def verify(signer, repository, name, data, signature):
    """Raises Damaged unless the signature is the signer's, of data as that object."""
    message = b"bctl 2026-11-22 signature v1\0" + repository + len(name).to_bytes(4, "little") + name.encode() + blake3(data).digest()
    try:
        Ed25519PublicKey.from_public_bytes(signer).verify(signature, message)
    except (InvalidSignature, ValueError) as e:
        raise Damaged(f"{name} is not signed by {signer.hex()[:16]}") from e


class Text:
    """The lines of a key text, taken one by one."""

    def __init__(self, data, title, limit):
        if len(data) > limit:
            raise Damaged(f"{title}: {len(data)} bytes")
        self.data, self.at, self.title = data, 0, title
        if self.take(title) != "v1":
            raise Damaged(f"{title}: another version")

    def peek(self, word):
        end = self.data.find(b"\n", self.at)
        start = self.at + len(word) + 1
        return end >= start and self.data[self.at : start] == word.encode() + b" "

    def take(self, word):
        if not self.peek(word):
            raise Damaged(f"{self.title}: no line {word!r}")
        end = self.data.index(b"\n", self.at)
        value = self.data[self.at + len(word) + 1 : end]
        self.at = end + 1
        return value.decode("utf-8", "surrogateescape")

    def hex(self, word, size):
        value = self.take(word)
        if not re.fullmatch("[0-9a-f]{%d}" % (2 * size), value) or value.strip("0") == "":
            raise Damaged(f"{self.title}: line {word!r}")
        return bytes.fromhex(value)

    def base64(self, word):
        value = self.take(word)
        try:
            raw = base64.b64decode(value, validate=True)
        except ValueError as e:
            raise Damaged(f"{self.title}: line {word!r}") from e
        if not raw or base64.b64encode(raw).decode() != value:
            raise Damaged(f"{self.title}: line {word!r}")
        return raw

    def recipients(self):
        values = []
        while self.peek("recipient"):
            values.append(self.take("recipient"))
        if not 0 < len(values) <= MAX_RECIPIENTS:
            raise Damaged(f"{self.title}: {len(values)} recipients")
        return values

    def before(self):
        return self.data[: self.at]

    def end(self):
        if self.at != len(self.data):
            raise Damaged(f"{self.title}: more than there should be")

    def checksum(self):
        want = hashlib.sha256(self.before()).hexdigest()[:16]
        if self.take("checksum") != want:
            raise Damaged(f"{self.title}: checksum")
        self.end()


class Repository:
    """The object "repository"; its signer is still to be compared with one that is known."""

    def __init__(self, data):
        t = Text(data, "bctl-repository", MAX_OBJECT_BYTES)
        self.id = t.hex("repository", 16)
        created = t.take("created")
        if not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", created):
            raise Damaged("bctl-repository: line 'created'")
        self.chunker, self.codec = t.take("chunker"), t.take("codec")
        self.recipients = t.recipients()
        self.signer = t.hex("signer", 32)
        self.worker_key, self.committer_key = t.base64("worker-key"), t.base64("committer-key")
        signed = t.before()
        signature = t.hex("signature", 64)
        t.end()
        verify(self.signer, self.id, "repository", signed, signature)

    def dedup_key(self, identities):
        """Opens the worker key, which must belong to the object."""
        t = Text(age.decrypt(self.worker_key, identities), "bctl-worker-key", MAX_KEY_BYTES)
        repository, dedup, signer = t.hex("repository", 16), t.hex("dedup", 32), t.hex("signer", 32)
        t.recipients()
        t.checksum()
        if repository != self.id or signer != self.signer:
            raise Damaged("the sealed worker key is another repository's")
        return dedup


def signer_of(identity_text, repository):
    """Returns the signer that an identity file names for the repository, or None."""
    found = None
    for line in identity_text.splitlines():
        if not line.startswith("# bctl signer "):
            continue
        match = re.fullmatch(r"# bctl signer ([0-9a-f]{32}) ([0-9a-f]{64})", line)
        if not match:
            raise Damaged("identity file: a damaged line '# bctl signer'")
        if match[1] != repository.hex():
            continue
        if found not in (None, bytes.fromhex(match[2])):
            raise Damaged("identity file: two signers of the repository")
        found = bytes.fromhex(match[2])
    return found
