// Package seal holds the keys of a repository and what they do.
//
// # Who has which key
//
//	key            what it is                       who has it
//	identity       age secret key                   operators who restore; never a service
//	recipient      age public key                   everyone
//	dedup key      32 random bytes                  walkers and readers, in a WorkerKey
//	signing key    Ed25519                          committers, in a CommitterKey; identities
//	signer         its public half                  everyone
//	data key       AES-256-GCM, one for each pack   whoever writes the pack, while it does; identities
//
// A worker seals each pack under a fresh DataKey, puts the key into the pack
// wrapped to the recipients, and forgets it. From then on only an identity
// opens the pack: a worker that is broken into later can name chunks (it has
// the dedup key) and write packs, but read none (I8).
//
// Committers sign what the store has of the index. The signature names the
// repository and the object, so that no object can be taken for another.
//
// # What sealing promises
//
// A DataKey keeps its plaintext secret and shows every change to the sealed
// bytes, to their counter and to their additional data. It does not say who
// sealed: recipients are public, so whoever can write to the store can write a
// pack that opens. What such a pack claims to hold is checked against the
// keyed hashes of its chunks, and so against the dedup key. Packs without
// chunks are believed for their signature only.
//
// # Errors
//
//	ErrInvalid    recipients, an identity file or a key file that cannot be parsed
//	ErrWrongKey   none of the identities is among the recipients
//	ErrCorrupt    the bytes are not what was sealed or signed
//
// (All of package backup.) Damage inside a recipient's own stanza of a wrapped
// key cannot be told from a key for somebody else, and reads as ErrWrongKey;
// the pack format has a checksum around the wrapped key, so that it reads as
// ErrCorrupt there.
//
// docs/formats/keys.md describes the bytes.
package seal
