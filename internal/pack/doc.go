// Package pack writes and reads packs, the immutable objects in the store. It does no I/O of its
// own when it writes: a pack is built in memory, and the caller stores it with one request.
//
// # Layout
//
//	header     magic, version, kind, repository and pack id, wrapped data key
//	frames     each: chunks, compressed together, then sealed
//	table      sealed: each frame's codec and lengths, each chunk's hash and length
//	bitmap     of a thinned pack: which frames are present
//	signature  of all kinds except data
//	trailer    lengths of the sections
//
// docs/formats/pack.md describes every byte.
//
// # Writing
//
//	NewWriter ─► Add, Add … ─► Finish
//	             └ Fits reports whether a frame still fits; ErrFull if not
//
// A Writer accepts frames until Fits returns false, or until the caller decides that Size has
// reached TargetBytes. Nothing of a pack is in the store before the caller puts the bytes that
// Finish returns; discarding a Writer earlier leaves nothing behind. A pack of a kind other than
// KindData is finished and signed by FinishSigned.
//
// Thin copies a data pack without some of its frames. It needs no key.
//
// # Reading
//
// Open makes two requests: for the end of the pack, and for the header. It makes three if the
// object is below 64 KiB, or the table above. A Reader knows the position of each frame; the caller
// fetches one or more frames and passes them to DecodeFrame. A Place locates a pack within an
// object. OpenSigned checks the signature of a whole object before it uses anything else in it.
//
// # Errors
//
//	the object is truncated, or some of its bytes changed  ErrCorrupt, from Open or from DecodeFrame
//	another pack is stored under this name                 ErrCorrupt, from Open
//	none of the identities is a recipient                  ErrWrongKey, from Open
//	written by a later version                             ErrInvalid, from Open
//	unsigned, signed by others or for another object       ErrCorrupt, from OpenSigned
//	the frame was removed by Thin                          ErrNotFound, from DecodeFrame
//	a chunk does not match its hash                        ErrCorrupt, if DecodeFrame has a Hasher
//	the object is missing; the store does not respond      the Ranger's errors, from Open
//
// (All are those of package backup, wrapped.) A damaged frame affects only its own chunks; a
// damaged header or table affects the whole pack. Every length is checked against the object and
// the limits before it is used, and nothing is allocated for it before.
//
// # Files
//
//	format.go    kinds, limits, header and trailer
//	table.go     encodes the table
//	compress.go  compresses frames, and decides whether to
//	writer.go    builds a pack
//	signed.go    signs a pack, and checks the signature
//	reader.go    opens a pack, and decodes its frames
//	inspect.go   checks a pack without a key
//	object.go    opens all packs of an object
//	thin.go      copies a pack without some of its frames
//	sums.go      proves a whole pack without a key
//	mend.go      puts a pack together of damaged copies
package pack
