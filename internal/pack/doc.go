// Package pack writes and reads packs: the immutable objects that the store
// keeps. It is pure: a pack is built in memory and stored with one request.
//
// # Shape
//
//	header     magic, version, kind, repository and pack id, wrapped data key
//	frames     each: chunks, compressed together, then sealed
//	table      sealed: each frame's codec and lengths, each chunk's hash and length
//	bitmap     of a thinned pack: which frames are there
//	signature  of all kinds but data
//	trailer    lengths of the sections
//
// docs/formats/pack.md describes every byte.
//
// # Writing
//
//	NewWriter ─► Add, Add … ─► Finish
//	             └ Fits says whether a frame still goes in; ErrFull if not
//
// A Writer takes frames until Size reaches TargetBytes (its user's decision) or
// Fits says no. Nothing of a pack is in the store before Finish has returned
// and its bytes are put; a Writer that is dropped before leaves nothing. A pack
// of a kind other than KindData is signed instead: FinishSigned.
//
// Thin copies a data pack without some of its frames. It needs no key.
//
// # Reading
//
// Open makes two requests: the end of the pack, then the header. (Three for an
// object below 64 KiB, or a table above.) A Reader then knows where each frame
// is; its user fetches frames, or many at once, and gives them to DecodeFrame.
// A Place says where in its object a pack is. OpenSigned checks the signature of
// a whole object before it believes anything else of it.
//
// # What goes wrong
//
//	the object is truncated, or bytes of it changed    ErrCorrupt, from Open or from DecodeFrame
//	another pack under this name                       ErrCorrupt, from Open
//	none of the identities is a recipient              ErrWrongKey, from Open
//	written by a later version                         ErrInvalid, from Open
//	signed by nobody, by others, for another object    ErrCorrupt, from OpenSigned
//	the frame was removed by Thin                      ErrNotFound, from DecodeFrame
//	a chunk is not what its hash says                  ErrCorrupt, from DecodeFrame with a Hasher
//	the object is gone; the store does not answer      the Ranger's errors, from Open
//
// (All of package backup, wrapped.) A damaged frame costs its own chunks only;
// a damaged header or table costs the pack. No length is believed before it is
// checked against the object and the limits, and nothing is allocated for it before.
package pack
