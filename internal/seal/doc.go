// Package seal implements the keys of a repository and the operations on them.
//
// # Keys and their holders
//
//	key            type                             holders
//	identity       age secret key                   operators who restore; never a service
//	recipient      age public key                   everyone
//	dedup key      32 random bytes                  walkers and readers, in a WorkerKey
//	signing key    Ed25519                          committers, in a CommitterKey; identities
//	signer         its public half                  everyone
//	data key       AES-256-GCM, one per pack        the pack's writer, while it writes; identities
//
// A worker seals each pack under a fresh DataKey, stores the key in the pack, wrapped to the
// recipients, and forgets it. After that only an identity can open the pack: an attacker who later
// takes over the worker can name chunks (the worker has the dedup key) and write packs, but cannot
// read any (I8).
//
// Committers sign the store's copy of the index. The signature covers the repository and the name
// of the object, so that no object can be substituted for another.
//
// # Guarantees
//
// A DataKey keeps its plaintext secret and detects every change to the sealed bytes, to their
// counter and to their additional data. It does not authenticate the writer: recipients are public,
// so anyone who can write to the store can write a pack that opens. The chunks of such a pack are
// checked against their keyed hashes, and so against the dedup key. Packs without chunks are
// trusted only because of their signature.
//
// # Errors
//
//	ErrInvalid    recipients, an identity file or a key file that cannot be parsed
//	ErrWrongKey   none of the identities is among the recipients
//	ErrCorrupt    the bytes differ from those that were sealed or signed
//
// (All are those of package backup.) Damage inside a recipient's own stanza of a wrapped key cannot
// be distinguished from a key for another recipient, and is reported as ErrWrongKey. The pack
// format has a checksum around the wrapped key, so that such damage is ErrCorrupt there.
//
// docs/formats/keys.md describes the bytes.
package seal
