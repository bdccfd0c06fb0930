package cli

import (
	"testing"

	"github.com/bctl/bctl/internal/index"
)

// The hint of the brake says how many operators must confirm.
func TestConfirmationNamesTheOperators(t *testing.T) {
	for _, test := range []struct {
		operators int
		confirmed []string
		want      string
	}{
		{1, nil, "bctl confirm 7"},
		{2, nil, "bctl confirm 7 as 2 different operators"},
		{2, []string{"alice"}, "bctl confirm 7 as 1 other operator"},
		{3, []string{"alice"}, "bctl confirm 7 as 2 other operators"},
		{2, []string{"alice", "bob"}, "bctl confirm 7"},
	} {
		s := stopOf{Stop: index.Stop{ID: 7, Operators: test.operators, Confirmed: test.confirmed}}
		if got := s.confirmation(); got != test.want {
			t.Errorf("%d operators, confirmed by %q: %q, want %q", test.operators, test.confirmed, got, test.want)
		}
	}
}
