package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// testOwners is the ownerMap of a machine with the users root 0, alice 7 and bob 8.
func testOwners(t *testing.T) (ids *idMap, notes *[]string) {
	t.Helper()
	notes = new([]string)
	numbers := map[string]string{"root": "0", "alice": "7", "bob": "8"}
	return &idMap{
		kind: idKind{"user", "passwd", func(name string) (string, error) {
			if n, ok := numbers[name]; ok {
				return n, nil
			}
			return "", os.ErrNotExist
		}},
		note: func(format string, args ...any) { *notes = append(*notes, fmt.Sprintf(format, args...)) },
	}, notes
}

// What is named in a flag wins over names of the file server, and these over "all others".
func TestOwnersAreMapped(t *testing.T) {
	file := filepath.Join(t.TempDir(), "passwd")
	lines := "# a comment\nroot:x:0:0:root:/root:/bin/sh\nalice:x:1001:100::/:\nbob:x:1002:100::/:\ncarol:x:1003:100::/:\n" +
		"+::::::\nbad:x:many:1::/:\nother:x:1001:100::/:\n12:x:1004:100::/:\n"
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, test := range map[string]struct {
		flags []string
		names bool
		want  map[uint32]uint32
		notes []string
	}{
		"numbers":        {[]string{"1:2", "2:1"}, false, map[uint32]uint32{1: 2, 2: 1, 3: 3}, nil},
		"names":          {[]string{"alice:bob"}, false, map[uint32]uint32{7: 8, 8: 8}, nil},
		"all others":     {[]string{"1:2", "*:alice"}, false, map[uint32]uint32{1: 2, 0: 7, 9: 7}, nil},
		"by name":        {nil, true, map[uint32]uint32{0: 0, 1001: 7, 1002: 8, 1003: 1003, 1004: 1004, 5: 5}, []string{"this machine has no user carol: what belongs to it keeps the number 1003"}},
		"by name, flags": {[]string{"1001:9", "*:0"}, true, map[uint32]uint32{1001: 9, 1002: 8, 1003: 0, 5: 0}, nil},
	} {
		t.Run(what, func(t *testing.T) {
			ids, notes := testOwners(t)
			if err := ids.parse("map-owner", test.flags); err != nil {
				t.Fatal(err)
			}
			if test.names {
				if err := ids.readNames(file); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 { // each note comes once
				for id, want := range test.want {
					if got := ids.get(id); got != want {
						t.Errorf("%d becomes %d, want %d", id, got, want)
					}
				}
			}
			if !slices.Equal(*notes, test.notes) {
				t.Errorf("notes %q, want %q", *notes, test.notes)
			}
		})
	}
}

func TestOwnersThatMakeNoSense(t *testing.T) {
	for value, want := range map[string]string{
		"":             `--map-owner "" is not FROM:TO`,
		"alice":        `--map-owner "alice" is not FROM:TO`,
		"alice:":       `--map-owner "alice:" is not FROM:TO`,
		"1:4294967295": "4294967295 is not the number of a user",
		"1:9999999999": "9999999999 is not the number of a user",
		"1:dave":       "this machine has no user dave; give the number",
		"dave:1":       "this machine has no user dave; give the number",
		"-1:1":         "this machine has no user -1; give the number",
	} {
		ids, _ := testOwners(t)
		if err := ids.parse("map-owner", []string{value}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", value, err, want)
		}
	}
	ids, _ := testOwners(t)
	empty := filepath.Join(t.TempDir(), "passwd")
	if err := os.WriteFile(empty, []byte("nothing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := ids.readNames(empty); err == nil || !strings.Contains(err.Error(), "has no names of users") {
		t.Errorf("no names: %v", err)
	}
	if err := ids.readNames(empty + "x"); err == nil || !strings.Contains(err.Error(), "copy it from the file server") {
		t.Errorf("no file: %v", err)
	}
}
