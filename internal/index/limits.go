package index

// Upper limits for the content of one message. A message that exceeds one is refused with
// backup.ErrInvalid.
const (
	MaxListingBytes = 4 << 20  // an encoded page
	MaxParts        = 4096     // parts of a SliceWalked
	MaxReliesOn     = 64 << 10 // packs of a BatchStored
	MaxChunks       = 1 << 20  // chunks of a PackStored, or of a ListsStored
)
