package dump

import (
	"errors"
	"testing"

	"github.com/bctl/bctl/internal/backup"
)

func TestACLText(t *testing.T) {
	entry := func(tag, rights byte, id ...byte) []byte {
		return append([]byte{tag, 0, rights, 0}, append(id, 0xff, 0xff, 0xff, 0xff)[:4]...)
	}
	acl := func(entries ...[]byte) []byte {
		b := []byte{2, 0, 0, 0}
		for _, e := range entries {
			b = append(b, e...)
		}
		return b
	}
	text, err := aclText(acl(entry(1, 7), entry(2, 4, 0xe1, 0x10, 0, 0), entry(4, 5), entry(8, 7, 99, 0, 0, 0), entry(0x10, 7), entry(0x20, 0)))
	if want := "user::rwx,user:4321:r--,group::r-x,group:99:rwx,mask::rwx,other::---"; err != nil || text != want {
		t.Errorf("%q, %v; want %q", text, err, want)
	}
	for what, bad := range map[string][]byte{
		"nothing": nil, "a version": {3, 0, 0, 0}, "half an entry": {2, 0, 0, 0, 1, 0, 7}, "a tag": acl(entry(3, 7)), "rights": acl(entry(1, 8)),
	} {
		if _, err := aclText(bad); !errors.Is(err, backup.ErrCorrupt) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func FuzzACLText(f *testing.F) {
	f.Add([]byte{2, 0, 0, 0, 1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, value []byte) {
		if text, err := aclText(value); err == nil && len(text) > 32*len(value) {
			t.Errorf("%d bytes of text from %d", len(text), len(value))
		}
	})
}
