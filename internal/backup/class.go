package backup

// A Class says what a file's content looks like at its beginning. It is part of the Flags of an
// entry, so that two snapshots of a file can be compared without reading it.
type Class uint8

// The classes of content. An encrypted file is Opaque; before, it was mostly Typed or Plain.
const (
	Unclassified Class = iota // an older version read the file, or it was not read
	Typed                     // it begins like a known type that is not encrypted, or with text
	Plain                     // it begins like no known type, and not like random data
	Opaque                    // it begins like random data, or like a known type that is encrypted
)

// An Earlier says what the last snapshot has in place of a file that is to be read. A walker tells
// the reader, which then compares the classes of both (Counts.Judge).
type Earlier uint8

// What the last snapshot has in place of a file.
const (
	NotCompared Earlier = iota // the walker is of an older version
	NoneEarlier                // nothing
	SameName                   // a file of the same name, or one of a name that is gone
	OtherName                  // the same file, by another name that is gone
)

// The bits of Flags that are a Class and an Earlier. Only an entry that is Wanted has an Earlier.
// Its class is then that of the earlier file. A reader of an older version leaves both in the
// listing; the class is then that of no snapshot, and counts as Unclassified.
const (
	classShift, classMask     = 10, Flags(3 << classShift)
	earlierShift, earlierMask = 12, Flags(3 << earlierShift)
)

// Class returns the class of a file in a snapshot.
func (f Flags) Class() Class {
	if f&earlierMask != 0 {
		return Unclassified
	}
	return Class(f & classMask >> classShift)
}

// WithClass returns the flags of a file in a snapshot that has the class.
func (f Flags) WithClass(c Class) Flags {
	return f&^(classMask|earlierMask) | Flags(c)<<classShift&classMask
}

// Earlier returns what the last snapshot has in place of a file that is Wanted, and its class.
func (f Flags) Earlier() (Earlier, Class) {
	return Earlier(f & earlierMask >> earlierShift), Class(f & classMask >> classShift)
}

// WithEarlier returns the flags of a file that is Wanted.
func (f Flags) WithEarlier(e Earlier, was Class) Flags {
	return f.WithClass(was) | Flags(e)<<earlierShift&earlierMask
}

// Judge counts a file of which a walker has said what was there earlier, and that has the class
// now.
func (c *Counts) Judge(earlier Earlier, was, now Class) {
	if earlier == NotCompared {
		return
	}
	c.FilesJudged++
	if earlier == OtherName {
		c.FilesRenamed++
	}
	if earlier == NoneEarlier || now == Unclassified {
		return
	}
	if was == Typed && now != Typed {
		c.TypesLost++
	}
	if was != Opaque && now == Opaque {
		c.FilesOpaque++
	}
}
