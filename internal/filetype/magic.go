package filetype

import "github.com/bctl/bctl/internal/backup"

// The beginnings of formats that are encrypted. Some begin with text or with zeros, and would
// otherwise not be Opaque. Binary messages of OpenPGP look random.
var encrypted = []string{
	"Salted__", "U2FsdGVkX1", "age-encryption.org/", "-----BEGIN AGE ENCRYPTED FILE-----", "-----BEGIN PGP MESSAGE-----", "$ANSIBLE_VAULT;",
	"LUKS\xba\xbe",
}

// The beginnings of other known types.
var magics = []string{
	// Programs and libraries.
	"\x7fELF", "MZ", "\xca\xfe\xba\xbe", "\xcf\xfa\xed\xfe", "\xce\xfa\xed\xfe", "\x00asm", "dex\n", "!<arch>\n", "BC\xc0\xde",
	// Documents.
	"%PDF", "%!PS", "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "{\\rtf", "AT&TFORM", "ITSF", "!BDN", "AC10", "\xff\xfe", "\xfe\xff",
	// Archives and compressed files.
	"PK\x03\x04", "PK\x05\x06", "PK\x07\x08", "\x1f\x8b", "\x1f\x9d", "\x1f\xa0", "BZh", "\xfd7zXZ\x00", "7z\xbc\xaf\x27\x1c", "\x28\xb5\x2f\xfd",
	"\x04\x22\x4d\x18", "\x02\x21\x4c\x18", "LZIP", "\x89LZO", "Rar!\x1a\x07", "\x78\x01", "\x78\x5e", "\x78\x9c", "\x78\xda", "MSCF", "xar!",
	"\xed\xab\xee\xdb", "\x60\xea", "hsqs", "\xff\x06\x00\x00sNaPpY", "\x5d\x00\x00", "070701", "070707", "\x37\xa4\x30\xec",
	// Images.
	"\xff\xd8\xff", "\x89PNG\r\n\x1a\n", "GIF8", "II*\x00", "MM\x00*", "II+\x00", "IIRO", "IIU\x00", "BM", "\x00\x00\x01\x00", "8BPS", "gimp xcf",
	"\x00\x00\x00\x0cjP", "\x00\x00\x00\x0cJXL", "\xff\x4f\xff\x51", "\xff\x0a", "FUJIFILM", "FOVb", "\xd7\xcd\xc6\x9a", "DDS ", "qoif", "SIMPLE",
	// Sound and video.
	"RIFF", "RIFX", "RF64", "fLaC", "OggS", "ID3", "\xff\xfb", "\xff\xfa", "\xff\xf3", "\xff\xf2", "\xff\xf1", "\xff\xf9", "FORM", ".snd", "#!AMR",
	"MThd", "\x1aE\xdf\xa3", "\x00\x00\x01\xba", "\x00\x00\x01\xb3", "FLV\x01", "0&\xb2u", ".RMF", "wvpk", "MAC ", "\x0b\x77",
	// Databases and data.
	"SQLite format 3\x00", "\x89HDF", "CDF\x01", "CDF\x02", "PAR1", "Obj\x01", "ORC", "ARROW1", "\x93NUMPY", "\x80\x02", "\x80\x03", "\x80\x04",
	"\x80\x05", "bplist00", "glTF", "GRIB", "PGDMP", "\xfe\xed\xfe\xed", "regf",
	// Fonts.
	"wOFF", "wOF2", "\x00\x01\x00\x00\x00", "OTTO", "ttcf",
	// Disks of machines, repositories.
	"QFI\xfb", "KDMV", "vhdxfile", "conectix", "<<< ", "PACK", "\xfftOc", "DIRC", "MIDX",
}

// hasInside reports whether head has a magic that does not begin the file.
func hasInside(head []byte) bool {
	if len(head) < 8 {
		return false
	}
	switch string(head[4:8]) {
	case "ftyp", "moov", "mdat", "free", "skip", "wide", "Stan": // "Standard Jet DB", "Standard ACE DB"
		return true
	}
	return string(head[2:5]) == "-lh" || hasAt(head, 128, "DICM") || hasAt(head, 257, "ustar")
}

func hasAt(head []byte, offset int, magic string) bool {
	return len(head) >= offset+len(magic) && string(head[offset:][:len(magic)]) == magic
}

// A format is a known type.
type format struct {
	magic string
	class backup.Class
}

// byFirst has the formats by their first bytes.
var byFirst = func() (table [256][]format) {
	for class, list := range map[backup.Class][]string{backup.Typed: magics, backup.Opaque: encrypted} {
		for _, m := range list {
			table[m[0]] = append(table[m[0]], format{m, class})
		}
	}
	return table
}()
