// Package rewrap wraps the data keys of packs again, for the recipients in force. After it, a
// recipient that was added later opens packs that were written before.
//
// A pack never changes, and neither does the wrapped key in it. So a rotation puts the data keys of
// packs into objects of its own, the parts: the keys in a part are sealed together to the
// recipients, and the part is signed by the committer key. An identity that does not open the key
// in a pack looks for it in the parts. docs/formats/keys.md describes the bytes.
//
// A rotation needs an identity, because only an identity opens the keys. It reads the headers of
// packs and no data.
//
// # A rotation that is interrupted
//
// The parts of a rotation cover the range of key ids without gaps, from the smallest id on. Each
// part is one atomic write. The next run for the same recipients continues after the last part.
// The rotation is complete when a part covers the greatest id: one that lacks keys, because the
// identity did not open a pack, or a pack was damaged, covers all ids but that one. So does one
// that was continued, and the run that continues it then begins another, which finds out what is
// lacking. A key that a rotation for all recipients in force has is not wrapped again, so a later
// rotation only writes the keys of packs that have been written since.
//
// # Memory
//
// Rotate works through the ids in windows of about 262,144 keys, and reads the list of packs once
// for each. A finder keeps up to 8 parts of 16,384 keys, and the names of all parts.
//
// # Files
//
//	part.go      the bytes of a part
//	find.go      finds the keys that an identity needs
//	rotate.go    writes a rotation
//	coverage.go  lists the rotations that are complete
//	tested.go    tests whether an identity opens packs
package rewrap
