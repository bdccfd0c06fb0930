package index

// The most that one thing in a message may come to. What is above is refused
// with backup.ErrInvalid.
const (
	MaxListingBytes = 4 << 20  // an encoded page
	MaxParts        = 4096     // parts of a SliceWalked
	MaxReliesOn     = 64 << 10 // packs of a BatchStored
	MaxChunks       = 1 << 20  // chunks of a PackStored, or of a ListsStored
)
