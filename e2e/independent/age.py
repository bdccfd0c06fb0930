"""Decryption of age files, from https://age-encryption.org/v1 (X25519 only)."""

import base64
import hashlib
import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

INTRO = b"age-encryption.org/v1\n"
CHUNK_BYTES = 64 << 10
BECH32 = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"


class AgeError(Exception):
    """The file cannot be decrypted with these identities."""


def bech32_decode(text):
    """Returns the human-readable part and the bytes of a Bech32 text (BIP 173)."""
    if text.lower() != text and text.upper() != text:
        raise AgeError("mixed case")
    text = text.lower()
    prefix, separator, data = text.rpartition("1")
    if not separator or not prefix or any(c not in BECH32 for c in data):
        raise AgeError("not Bech32")
    values = [BECH32.index(c) for c in data]
    check = 1
    expanded = [ord(c) >> 5 for c in prefix] + [0] + [ord(c) & 31 for c in prefix]
    for value in expanded + values:
        top = check >> 25
        check = (check & 0x1FFFFFF) << 5 ^ value
        for i, g in enumerate((0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)):
            if top >> i & 1:
                check ^= g
    if check != 1:
        raise AgeError("wrong checksum")
    number, bits, out = 0, 0, bytearray()
    for value in values[:-6]:
        number, bits = number << 5 | value, bits + 5
        if bits >= 8:
            bits -= 8
            out.append(number >> bits & 0xFF)
    if bits >= 5 or number & ((1 << bits) - 1):
        raise AgeError("wrong padding")
    return prefix, bytes(out)


def parse_identities(text):
    """Returns the X25519 identities of an identity file."""
    identities = []
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        prefix, raw = bech32_decode(line)
        if prefix != "age-secret-key-" or len(raw) != 32:
            raise AgeError("an identity of another kind than X25519")
        identities.append(X25519PrivateKey.from_private_bytes(raw))
    if not identities:
        raise AgeError("no identity")
    return identities


def unpadded(text):
    raw = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    if base64.b64encode(raw).rstrip(b"=") != text:
        raise AgeError("base64 in another form")
    return raw


def hkdf(key, salt, info):
    return HKDF(hashes.SHA256(), 32, salt, info).derive(key)


def parse_header(data):
    """Returns the stanzas, what the MAC is of, the MAC, and where the payload begins."""
    if not data.startswith(INTRO):
        raise AgeError("not an age file")
    offset, stanzas = len(INTRO), []
    while True:
        end = data.find(b"\n", offset)
        if end < 0:
            raise AgeError("header cut short")
        line = data[offset:end]
        if line.startswith(b"--- "):
            return stanzas, data[: offset + 3], unpadded(line[4:]), end + 1
        if not line.startswith(b"-> "):
            raise AgeError("a line that is no stanza")
        arguments, body, offset = line[3:].split(b" "), b"", end + 1
        while True:
            end = data.find(b"\n", offset)
            if end < 0:
                raise AgeError("header cut short")
            line, offset = data[offset:end], end + 1
            body += unpadded(line)
            if len(line) < 64:
                break
        stanzas.append((arguments, body))


def file_key(stanzas, identities):
    for arguments, body in stanzas:
        if arguments[0] != b"X25519" or len(arguments) != 2 or len(body) != 32:
            continue
        share = unpadded(arguments[1])
        for identity in identities:
            public = identity.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
            shared = identity.exchange(X25519PublicKey.from_public_bytes(share))
            wrap = hkdf(shared, share + public, b"age-encryption.org/v1/X25519")
            try:
                return ChaCha20Poly1305(wrap).decrypt(bytes(12), body, None)
            except InvalidTag:
                continue
    raise AgeError("none of the identities is a recipient")


def decrypt(data, identities):
    """Returns the plaintext of an age file."""
    try:
        stanzas, authenticated, mac, offset = parse_header(data)
        key = file_key(stanzas, identities)
        expected = hmac.new(hkdf(key, b"", b"header"), authenticated, hashlib.sha256).digest()
        if not hmac.compare_digest(mac, expected):
            raise AgeError("the header's MAC does not match")
        nonce, payload = data[offset : offset + 16], data[offset + 16 :]
        if len(nonce) != 16:
            raise AgeError("cut short")
        aead = ChaCha20Poly1305(hkdf(key, nonce, b"payload"))
        out, counter = b"", 0
        while True:
            chunk, payload = payload[: CHUNK_BYTES + 16], payload[CHUNK_BYTES + 16 :]
            last = not payload
            out += aead.decrypt(counter.to_bytes(11, "big") + bytes([last]), chunk, None)
            if last and counter > 0 and len(chunk) == 16:
                raise AgeError("an empty last chunk")
            if last:
                return out
            counter += 1
    except (InvalidTag, ValueError) as e:
        raise AgeError(f"damaged: {e!r}") from e
