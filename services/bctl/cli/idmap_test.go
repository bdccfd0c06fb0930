package cli

import "testing"

func TestMapsAllIDs(t *testing.T) {
	for table, want := range map[string]bool{
		"         0          0 4294967295\n":                                true,
		"         0    1000000 1000000000\n1000000000 0 3294967295\n":       true,
		"         0          0 4294967294\n":                                false,
		"         0       1000          1\n":                                false,
		"         0       1000          1\n         1     100000   65536\n": false,
		"":             false,
		"0 0 many\n":   false,
		"0 4294967295": false,
	} {
		if got := mapsAllIDs(table); got != want {
			t.Errorf("%q: %v", table, got)
		}
	}
}
